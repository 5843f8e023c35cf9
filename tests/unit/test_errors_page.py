# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue has every error of the source, with its values and its remedy; docs/using/errors.md lists them."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import errors
from ansible_collections.inference.fleet.tools import errors_page

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\.[a-z0-9]+(-[a-z0-9]+)*")
REMEDY_IN_VALUES = {
    "doctor.device-faulty", "inventory.one-machine-twice", "inventory.secret-missing", "recipe.key-invalid",
    "weights.job-failed",
}  # fmt: skip


@functools.cache
def trees():
    return [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PLUGINS.rglob("*.py"))]


def nodes(kind):
    return [node for tree in trees() for node in ast.walk(tree) if isinstance(node, kind)]


def kinds():
    """The names of FleetError, the classes that derive from it, and the method of Mistakes."""
    found = {"FleetError", "add"}
    for node in nodes(ast.ClassDef):
        if any(isinstance(base, ast.Name) and base.id in found for base in node.bases):
            found.add(node.name)
    return found


def calls():
    """[(code, number of values or None if the call has *values)] of the errors with a literal code."""
    names, found = kinds(), []
    for node in nodes(ast.Call):
        if getattr(node.func, "id", getattr(node.func, "attr", None)) in names and node.args:
            code = node.args[0]
            if isinstance(code, ast.Constant) and isinstance(code.value, str) and "." in code.value:
                starred = any(isinstance(one, ast.Starred) for one in node.args)
                found.append((code.value, None if starred else len(node.args) - 1))
    return found


def test_the_page_is_current():
    current = errors_page.PAGE.read_text(encoding="utf-8") == errors_page.render(errors.catalogue())
    assert current, "run: .venv/bin/python tools/errors_page.py"


def test_the_catalogue_has_every_code_of_the_source_and_no_other():
    strings = {node.value for node in nodes(ast.Constant) if isinstance(node.value, str)}
    assert {code for code, _count in calls()} <= set(errors.catalogue())
    assert set(errors.catalogue()) <= strings
    assert [code for code in errors.catalogue() if not CODE.fullmatch(code)] == []
    assert list(errors.catalogue()) == sorted(errors.catalogue())


def test_each_error_has_the_values_of_its_placeholders():
    wrong = [(code, count) for code, count in calls() if count not in (None, len(errors.placeholders(code)))]
    assert wrong == []


def test_each_code_has_a_problem_and_its_own_remedy():
    texts = errors.catalogue()
    assert {code for code, one in texts.items() if not one["remedy"]} == REMEDY_IN_VALUES
    assert [code for code, one in texts.items() if set(one) != {"problem", "remedy"} or not one["problem"]] == []


def test_a_code_of_another_collection_has_its_message_as_its_value():
    error = errors.FleetError("abacus.no-device", "There is no rod in it.", details={"a": 1})
    assert (error.message, error.details) == ("There is no rod in it.", {"a": 1, "code": "abacus.no-device"})
