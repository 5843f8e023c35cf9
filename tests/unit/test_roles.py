# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The documentation of roles equals their defaults; rules for tasks that ansible-lint does not have."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml

CLONE = pathlib.Path(__file__).resolve().parents[2]
ROLES = sorted(path for path in (CLONE / "roles").iterdir() if path.is_dir())

every_role = pytest.mark.parametrize("role", ROLES, ids=lambda path: path.name)


class Loader(yaml.SafeLoader):
    """YAML as Ansible reads it, its own tags taken for their text."""


Loader.add_multi_constructor("!", lambda loader, tag, node: loader.construct_scalar(node))


def load(path):
    return yaml.load(path.read_text(encoding="utf-8"), Loader)


def options_of(role):
    """The documented variables of a role: {name: option}."""
    return load(role / "meta/argument_specs.yml")["argument_specs"]["main"].get("options") or {}


def is_template(value):
    """Whether a default is a template, or has one in it."""
    if isinstance(value, dict):
        return any(map(is_template, [*value, *value.values()]))
    if isinstance(value, list):
        return any(map(is_template, value))
    return isinstance(value, str) and ("{{" in value or "{%" in value)


@every_role
def test_documented_options_equal_the_defaults(role):
    """A template is no default in a spec, of which Ansible works out all, also those that the caller gives."""
    optional = {name: one for name, one in options_of(role).items() if not one.get("required")}
    defaults = load(role / "defaults/main.yml") or {}
    assert {name: one.get("default", ...) for name, one in optional.items()} == {
        name: ... if is_template(value) else value for name, value in defaults.items()
    }


@every_role
def test_the_readme_names_every_variable(role):
    text = (role / "README.md").read_text(encoding="utf-8")
    assert [name for name in options_of(role) if "`%s`" % name not in text] == []


def test_a_node_is_rebooted_for_its_driver_only_if_neuron_reboot_is_set():
    """Between the two comparisons, the second of which requires that everything fits."""
    folder = next(path for path in ROLES if path.name == "neuron") / "tasks"
    first, block = load(folder / "main.yml")
    assert "not ansible_check_mode" in block["when"]
    *_installs, reboots, last = block["block"]
    assert "ansible.builtin.reboot" in reboots
    assert reboots["when"] == first["register"] + ".reboot"
    assert first["inference.fleet.node"]["arguments"]["reboot"] == "{{ neuron_reboot | bool }}"
    assert last["inference.fleet.node"]["arguments"]["installed"] is True


KEYWORDS = ("ignore_errors", "failed_when", "ignore_unreachable")


def tasks_and_plays():
    for folder in ("playbooks", "roles", "molecule"):
        for path in sorted((CLONE / folder).rglob("*.yml")):
            for document in yaml.load_all(path.read_text(encoding="utf-8"), Loader=Loader):
                yield from ((path.relative_to(CLONE), one) for one in mappings(document))


def mappings(value):
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from mappings(one)


def templated(mapping):
    """The keywords whose value Ansible may read before the template is worked out: any non-empty string is true."""
    return [name for name in KEYWORDS if "{{" in str(mapping.get(name, "")) or "{%" in str(mapping.get(name, ""))]


def test_no_keyword_is_templated():
    found = list(tasks_and_plays())
    assert len(found) > 1000
    assert [(str(path), templated(one)) for path, one in found if templated(one)] == []


def test_tasks_of_roles_hide_no_change_and_do_not_set_become():
    """ansible-lint has further rules for tasks. The play's `become` is not meant for hosts of delegated tasks."""
    roles = [(path, one) for path, one in tasks_and_plays() if path.parts[0] == "roles" and "argument_specs" not in one]
    tasks = [(path, one) for path, one in roles if path.parts[2] in ("tasks", "handlers")]
    assert len(tasks) > 100
    own = [(path, one) for path, one in tasks if "delegate_to" not in one]
    assert [str(path) for path, one in own if "become" in one] == []
    assert [str(path) for path, one in tasks if one.get("changed_when") is False] == []


def test_errors_are_ignored_nowhere():
    """Neither by value nor by default; a part that may fail has a rescue that says so."""
    assert [
        str(path) for path, one in tasks_and_plays() if "ignore_errors" in one or one.get("failed_when") is False
    ] == []


def test_filters_that_return_sets_decide_no_order():
    """Ansible's difference and union lose the order, which then differs in each run: of members, targets and hashes."""
    sets = re.compile(r"(?:\| *|map\(')(?:difference|union|symmetric_difference)\b(?!.*\| length)")
    files = [*CLONE.glob("playbooks/**/*.yml"), *CLONE.glob("roles/**/*.yml"), *CLONE.glob("roles/**/*.j2")]
    assert len(files) > 100
    found = [str(path) for path in files for line in path.read_text().splitlines() if sets.search(line)]
    # settings of the daemon, of which only a list of names is shown
    assert {path for path in found if not path.endswith("roles/container_engine/tasks/docker.yml")} == set()


def test_arguments_of_roles_are_validated_everywhere():
    assert [str(path) for path, one in tasks_and_plays() if "rolespec_validate" in one] == []
