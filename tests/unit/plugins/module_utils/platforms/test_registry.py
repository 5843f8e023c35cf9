# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node side of platforms: every file is found, and has its role and docs."""

from __future__ import annotations

import pathlib

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.discover import discover
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.registry import (
    PLATFORMS,
    platform_of,
)
from ansible_collections.inference.fleet.tests.unit.engines.plans import error

CLONE = pathlib.Path(__file__).resolve().parents[5]


def test_a_file_of_another_vendor_is_found(tmp_path, monkeypatch):
    folder = tmp_path / "made_up_platforms"
    (folder / "soroban").mkdir(parents=True)
    for name, text in (
        ("__init__.py", ""), ("base.py", "class Platforms:\n    pass\n"), ("broken.py", "1 / 0\n"),
        ("abacus.py", "\nclass Platform:\n    rods = 1\n"), ("soroban/__init__.py", ""),
        ("soroban/platform.py", "\nclass Platform(object):\n    rods = 2\n"), ("soroban/beads.py", "1 / 0\n"),
    ):  # fmt: skip
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = discover("made_up_platforms", [str(folder)], "Platform", "platform")
    assert {name: one.rods for name, one in found.items()} == {"abacus": 1, "soroban": 2}


def test_the_cpu_is_asked_last():
    assert list(PLATFORMS)[-1] == "cpu"


def test_an_unknown_one_lists_those_there_are():
    found = error(platform_of, "abacus")
    assert (found.code, found.values) == ("platform.unknown", ("abacus", ", ".join(PLATFORMS)))


def lacking(name, root=CLONE):
    """What a platform with a node side lacks elsewhere, as sentences."""
    role = root / "roles" / name
    if not (role / "tasks/main.yml").is_file():
        return ["there is no role %s" % name]
    found = []
    if not (role / "README.md").is_file() or "# %s\n" % name not in (role / "README.md").read_text(encoding="utf-8"):
        found.append("the role %s has no README.md" % name)
    if not list((root / "plugins/plugin_utils/platforms").glob(name + "*")):
        found.append("there is no plugins/plugin_utils/platforms/%s.py" % name)
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text(encoding="utf-8")) or {}
    if not isinstance(defaults.get(name + "_packages"), dict):
        found.append("the role %s does not say in %s_packages what it installs ({} for nothing)" % (name, name))
    return found


@pytest.mark.parametrize("name", sorted(PLATFORMS))
def test_a_platform_has_a_role_and_its_docs(name):
    assert lacking(name) == []
