# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node side of platforms: every file is found, shipped, and has its role and docs."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils import platforms
from ansible_collections.inference.fleet.plugins.module_utils.engines import shipped as engines_shipped
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.platforms import shipped
from ansible_collections.inference.fleet.plugins.module_utils.platforms.base import Detector
from ansible_collections.inference.fleet.plugins.module_utils.platforms.registry import (
    PLATFORMS,
    REGISTERED,
    platform_of,
)
from ansible_collections.inference.fleet.tools import platforms as tool

CLONE = pathlib.Path(__file__).resolve().parents[5]


def test_what_is_shipped_is_up_to_date():
    message = "run python3 tools/platforms.py"
    assert pathlib.Path(shipped.__file__).read_text(encoding="utf-8") == tool.text(tool.platforms()), message
    engines = pathlib.Path(engines_shipped.__file__).read_text(encoding="utf-8")
    assert engines == tool.engines_text(tool.engines()), message


def test_every_platform_is_found():
    """By importing all, where the tool reads them."""
    found = {}
    for module in pkgutil.walk_packages(platforms.__path__, platforms.__name__ + "."):
        one = getattr(importlib.import_module(module.name), "Platform", None)
        if one is not None and one.__module__ == module.name:
            found[module.name.removeprefix(platforms.__name__ + ".").partition(".")[0]] = one
    assert found == {name: type(one) for name, one in REGISTERED.items()}
    assert all(issubclass(one, Detector) for one in found.values())


def test_a_file_of_another_vendor_is_found(tmp_path):
    (tmp_path / "base.py").write_text("class Detector:\n    pass\n")
    (tmp_path / "abacus.py").write_text("class Platform:\n    pass\n")
    (tmp_path / "soroban").mkdir()
    (tmp_path / "soroban/platform.py").write_text("class Platform:\n    pass\n")
    (tmp_path / "soroban/beads.py").write_text("class Beads:\n    pass\n")
    found = tool.platforms(tmp_path)
    assert found == {"abacus": "abacus", "soroban": "soroban.platform"}
    assert tool.text(found).endswith(
        "platforms.abacus import Platform as Abacus\n"
        "from ansible_collections.inference.fleet.plugins.module_utils.platforms.soroban.platform import Platform as "
        'Soroban\n\nPLATFORM_CLASSES = {"abacus": Abacus, "soroban": Soroban}\n'
    )


def test_the_cpu_is_asked_last():
    assert list(PLATFORMS)[-1] == "cpu"


def test_an_unknown_one_lists_those_there_are():
    with pytest.raises(FleetError) as caught:
        platform_of("abacus")
    assert (caught.value.code, caught.value.values) == ("platform.unknown", ("abacus", ", ".join(PLATFORMS)))


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


def test_what_is_lacking_is_said(tmp_path):
    assert lacking("abacus", tmp_path) == ["there is no role abacus"]
    for path, text in (("tasks/main.yml", "[]"), ("defaults/main.yml", "---")):
        file = tmp_path / "roles/abacus" / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
    assert lacking("abacus", tmp_path) == [
        "the role abacus has no README.md",
        "there is no plugins/plugin_utils/platforms/abacus.py",
        "the role abacus does not say in abacus_packages what it installs ({} for nothing)",
    ]
