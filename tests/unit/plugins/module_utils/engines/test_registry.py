# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every engine of the folder is registered, and every engine that the plan knows has its causes."""

from __future__ import annotations

import pathlib

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import base, registry


def test_every_file_with_an_engine_is_registered():
    folder = pathlib.Path(registry.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if "\nENGINE = " in path.read_text(encoding="utf-8")}
    assert set(registry.ENGINES) == files
    assert {name: one.name for name, one in registry.ENGINES.items()} == {name: name for name in files}


def test_one_that_is_not_known_has_the_general_causes():
    assert registry.engine_of({"engine": "unheard-of"}).__class__ is base.Engine
