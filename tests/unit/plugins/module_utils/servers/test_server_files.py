# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that are installed together."""

from __future__ import annotations

import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.server_files import Staging


def test_a_file_that_cannot_be_installed_leaves_the_others_as_they_were(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError), Staging() as staging:
        for name in ("old", "new", "folder"):
            staging.add(str(tmp_path / name), "new")
        staging.commit()
    assert (tmp_path / "old").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["folder", "old"]
