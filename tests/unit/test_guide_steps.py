# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tests/guide_steps.yml: every step of the guides is listed once, and every test that it names exists."""

from __future__ import annotations

import ast
import re

import pytest
import yaml
from ansible_collections.inference.fleet.tools import reference_pages

CLONE = reference_pages.CLONE
GUIDES = yaml.safe_load(reference_pages.STEPS.read_text(encoding="utf-8"))["guides"]
# A step's closed program or reason, by how it is proven.
REASONS = {"real": set(), "simulated": set(), "planned": {"closed"}, "missing": {"why"}}
EACH = [("%s-%s" % (number, step["id"]), step) for number, guide in GUIDES.items() for step in guide["steps"]]


def exists(test):
    """Whether a test, FILE::FUNCTION, or a file that a Molecule scenario runs, exists."""
    path, _colons, function = test.partition("::")
    file = CLONE / path
    if not file.is_file():
        return False
    if function:
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        return function in {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    scenario = (file.parent / "molecule.yml").read_text(encoding="utf-8")
    # Molecule itself runs files with the names of its steps
    return file.name in scenario or file.name in ("molecule.yml", "converge.yml", "verify.yml", "prepare.yml")


@pytest.mark.parametrize(("name", "step"), EACH, ids=[name for name, _step in EACH])
def test_every_step_has_tests_that_exist(name, step):
    assert set(step) == {"id", "step", "how", "tests"} | REASONS[step["how"]]
    assert [test for test in step["tests"] if not exists(test)] == []
    assert bool(step["tests"]) == (step["how"] != "missing")


def test_no_step_is_missing():
    assert len({name for name, _step in EACH}) == len(EACH) == 59
    assert [name for name, step in EACH if step["how"] == "missing"] == []


def test_the_table_of_recipes_says_simulated_for_those_that_nodes_start():
    """Those named in a Molecule scenario or in a test of nodes, but for the stand-in's, which are real."""
    files = [*(CLONE / "molecule").glob("**/*.yml"), *(CLONE / "tests" / "nodes").glob("test_*.py")]
    words = set(
        re.findall(r"[a-z0-9][a-z0-9.-]+[a-z0-9]", " ".join(file.read_text(encoding="utf-8") for file in files))
    )
    page = reference_pages.SUPPORT.read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    claimed = {name: row[3] for row in rows if len(row) == 4 for name in re.findall(r"`([^`]+)`", row[0])}
    recipes = {file.stem for file in (CLONE / "recipes").glob("*.yml")} - {"images"}
    assert set(claimed) == recipes
    simulated = {name for name, claim in claimed.items() if "simulated node" in claim}
    assert simulated == {name for name in recipes & words if not name.startswith("cpu-")}
