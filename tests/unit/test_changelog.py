# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Version, changelog and documentation tell the same story of what is released."""

from __future__ import annotations

import re
from pathlib import Path

import tomllib
import yaml

ROOT = Path(__file__).resolve().parents[2]
VERSION = yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"]
RELEASES = yaml.safe_load((ROOT / "changelogs" / "changelog.yaml").read_text())["releases"]


def test_a_released_version_has_no_news():
    """After a release the first fragment comes with a new version in galaxy.yml."""
    fragments = sorted(path.name for path in (ROOT / "changelogs" / "fragments").glob("*.y*ml"))
    assert VERSION not in RELEASES or fragments == []


def test_what_is_documented_was_added_in_a_release_or_in_this_version():
    paths = [path for path in (ROOT / "plugins").rglob("*") if path.suffix in (".py", ".yml")]
    added = {version for path in paths for version in re.findall(r"version_added: *(\S+)", path.read_text())}
    assert added
    assert added <= {*RELEASES, VERSION}


def test_the_clone_has_the_version_of_the_collection():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION
