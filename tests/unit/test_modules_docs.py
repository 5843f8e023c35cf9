# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of operations are documented; ansible-test sanity has the other rules for documentation."""

from __future__ import annotations

import importlib
import pathlib
import re

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.doc_fragments import node
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.called import operation_of

PLUGINS = pathlib.Path(__file__).resolve().parents[2] / "plugins"
MODULES = sorted(path.stem for path in (PLUGINS / "modules").glob("*.py") if path.stem != "__init__")
# Those that run an operation of the same name on the node.
OPERATIONS = [name for name in MODULES if operation_of(name) is not None]


def options_of(name):
    """The options that a module and the fragments that it extends document."""
    module = importlib.import_module("ansible_collections.inference.fleet.plugins.modules." + name)
    documentation = yaml.safe_load(module.DOCUMENTATION)
    found = documentation.get("options") or {}
    for fragment in documentation.get("extends_documentation_fragment", ()):
        _namespace, _collection, _file, *part = fragment.upper().split(".")
        text = getattr(node.ModuleDocFragment, part[0] if part else "DOCUMENTATION")
        found = {**(yaml.safe_load(text).get("options") or {}), **found}
    return found


def form(options, inner):
    """{name: (type, elements, required, default, choices, suboptions)}; inner: the key of the options in an option."""
    return {
        name: (
            option.get("type", "str"),
            option.get("elements"),
            option.get("required", False),
            option.get("default"),
            option.get("choices"),
            form(option.get(inner) or {}, inner),
        )
        for name, option in options.items()
    }


def test_a_module_without_main_documents_an_action_plugin():
    actions = {path.stem for path in (PLUGINS / "action").glob("*.py")}
    routed = yaml.safe_load((PLUGINS.parent / "meta" / "runtime.yml").read_text())["plugin_routing"]["modules"]
    assert sorted([*actions, *routed]) == MODULES


@pytest.mark.parametrize("name", OPERATIONS)
def test_options_equal_the_argument_spec(name):
    assert form(options_of(name), "suboptions") == form(operation_of(name).arguments, "options")


def test_operations_that_are_documented_or_that_roles_and_playbooks_run_exist():
    assert set(MODULES) - set(OPERATIONS) == {"node", "plan", "report"}
    files = [path for folder in ("roles", "playbooks") for path in (PLUGINS.parent / folder).rglob("*.yml")]
    names = {name for path in files for name in re.findall(r"^ *operation: (\S+)$", path.read_text(), re.MULTILINE)}
    assert "engine_servers" in names
    assert [name for name in names if operation_of(name) is None] == []
