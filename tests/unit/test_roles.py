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
    first, block = load(CLONE / "roles/neuron/tasks/main.yml")
    (reboot,) = [one for one in block["block"] if "ansible.builtin.reboot" in one]
    assert "not ansible_check_mode" in block["when"] and reboot["when"] == first["register"] + ".reboot"
    assert first["inference.fleet.node"]["arguments"]["reboot"] == "{{ neuron_reboot | bool }}"


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


def test_no_keyword_is_templated():
    """Ansible may read the value before the template is worked out, and any non-empty string is true."""
    found = list(tasks_and_plays())
    assert len(found) > 1000
    for path, one in found:
        assert not any(is_template(one.get(name)) for name in KEYWORDS), path


def test_tasks_hide_no_change_ignore_no_error_and_validate_their_arguments():
    """ansible-lint has further rules for tasks. The play's `become` is not meant for hosts of delegated tasks. A part
    that may fail has a rescue."""
    found = list(tasks_and_plays())
    roles = [(path, one) for path, one in found if path.parts[0] == "roles" and "argument_specs" not in one]
    tasks = [(path, one) for path, one in roles if path.parts[2] in ("tasks", "handlers")]
    assert len(tasks) > 100
    assert [str(path) for path, one in tasks if "delegate_to" not in one and "become" in one] == []
    assert [str(path) for path, one in tasks if one.get("changed_when") is False] == []
    for path, one in found:
        assert not ("ignore_errors" in one or one.get("failed_when") is False or "rolespec_validate" in one), path


def test_filters_that_return_sets_decide_no_order():
    """Ansible's difference and union lose the order, which then differs in each run: of members, targets and hashes."""
    sets = re.compile(r"(?:\| *|map\(')(?:difference|union|symmetric_difference)\b(?!.*\| length)")
    files = [*CLONE.glob("playbooks/**/*.yml"), *CLONE.glob("roles/**/*.yml"), *CLONE.glob("roles/**/*.j2")]
    assert len(files) > 100
    found = [str(path) for path in files for line in path.read_text().splitlines() if sets.search(line)]
    # settings of the daemon, of which only a list of names is shown
    assert {path for path in found if not path.endswith("roles/container_engine/tasks/docker.yml")} == set()
