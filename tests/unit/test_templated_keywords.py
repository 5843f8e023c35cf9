# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keywords that decide about the exit status say the same whatever a template gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

CLONE = Path(__file__).resolve().parents[2]
KEYWORDS = ("ignore_errors", "failed_when", "ignore_unreachable")


class Loader(yaml.SafeLoader):
    """YAML with Ansible's tags."""


Loader.add_multi_constructor("!", lambda loader, suffix, node: None)


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


@pytest.mark.parametrize("value", ["{{ go_on | default(false) }}", ["{{ a }}"], "{% if a %}true{% endif %}"])
def test_a_template_is_found(value):
    (found,) = [one for one in mappings([{"block": [{"ignore_errors": value}]}]) if templated(one)]
    assert found == {"ignore_errors": value}


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


def test_arguments_of_roles_are_validated_everywhere():
    assert [str(path) for path, one in tasks_and_plays() if "rolespec_validate" in one] == []
