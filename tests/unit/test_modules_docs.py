# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every module's documentation parses and says what its argument spec says."""

from __future__ import annotations

import importlib
import pathlib
import re

import pytest
import yaml
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.called import operation_of

PLUGINS = pathlib.Path(__file__).resolve().parents[2] / "plugins"
MODULES = sorted(path.stem for path in (PLUGINS / "modules").glob("*.py") if path.stem != "__init__")
# The others are the documentation of an action plugin.
WITH_MAIN = [name for name in MODULES if "def main(" in (PLUGINS / "modules" / (name + ".py")).read_text()]

# Those of them that run an operation of the same name on the node.
OPERATIONS = [name for name in MODULES if operation_of(name) is not None]

every_module = pytest.mark.parametrize("name", MODULES)
every_module_with_main = pytest.mark.parametrize("name", WITH_MAIN)


class Asked(Exception):
    """Carries what a module hands to AnsibleModule."""


def load(name):
    return importlib.import_module("ansible_collections.inference.fleet.plugins.modules." + name)


def documentation_of(module):
    """A module's documentation with the fragments it extends; what it says itself comes first."""
    documentation = yaml.safe_load(module.DOCUMENTATION)
    for name in documentation.get("extends_documentation_fragment", []):
        namespace, collection, fragment, *part = name.split(".")
        builtin = (namespace, collection) == ("ansible", "builtin")
        package = "ansible.plugins" if builtin else "ansible_collections.%s.%s.plugins" % (namespace, collection)
        holder = importlib.import_module("%s.doc_fragments.%s" % (package, fragment)).ModuleDocFragment
        extended = yaml.safe_load(getattr(holder, part[0].upper() if part else "DOCUMENTATION"))
        for section in ("options", "attributes"):
            own = documentation.setdefault(section, {})
            for key, value in (extended.get(section) or {}).items():
                own[key] = {**value, **own.get(key, {})}
    return documentation


def handed_to_ansible(module, monkeypatch):
    """The arguments of AnsibleModule(): nothing of the module is run after it."""

    def ask(self, **arguments):
        raise Asked(arguments)

    monkeypatch.setattr(AnsibleModule, "__init__", ask)
    with pytest.raises(Asked) as caught:
        module.main()
    return caught.value.args[0]


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


@every_module
def test_documentation_parses_and_is_whole(name):
    module = load(name)
    documentation = documentation_of(module)
    assert documentation["module"] == name
    assert documentation["version_added"] == "0.1.0"
    assert {"short_description", "description", "author"} <= set(documentation)
    examples = yaml.safe_load(module.EXAMPLES)
    assert any("inference.fleet." + name in task for task in examples)
    for key, value in (yaml.safe_load(module.RETURN) or {}).items():
        assert {"description", "returned", "type"} <= set(value), key


@every_module
def test_check_and_diff_mode_are_documented(name):
    attributes = documentation_of(load(name))["attributes"]
    for attribute in ("check_mode", "diff_mode"):
        assert attributes[attribute]["support"] in ("full", "partial", "none", "N/A")
        assert attributes[attribute]["description"]


@every_module_with_main
def test_check_mode_is_what_is_documented(name, monkeypatch):
    module = load(name)
    attributes = documentation_of(module)["attributes"]
    supported = handed_to_ansible(module, monkeypatch).get("supports_check_mode", False)
    assert supported == (attributes["check_mode"]["support"] in ("full", "partial"))


def spec_of(name, monkeypatch):
    if name in OPERATIONS:
        return operation_of(name).arguments
    return handed_to_ansible(load(name), monkeypatch)["argument_spec"]


@pytest.mark.parametrize("name", sorted({*WITH_MAIN, *OPERATIONS}))
def test_options_equal_the_argument_spec(name, monkeypatch):
    documented = documentation_of(load(name)).get("options") or {}
    assert form(documented, "suboptions") == form(spec_of(name, monkeypatch), "options")


def test_documented_operations_are_found():
    assert set(MODULES) - set(OPERATIONS) == {"node", "plan", "report"}


def test_operations_that_roles_and_playbooks_run_exist():
    files = [path for folder in ("roles", "playbooks") for path in (PLUGINS.parent / folder).rglob("*.yml")]
    names = {name for path in files for name in re.findall(r"^ *operation: (\S+)$", path.read_text(), re.MULTILINE)}
    assert "engine_servers" in names
    assert [name for name in names if operation_of(name) is None] == []
