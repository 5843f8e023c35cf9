# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The line of a crontab that starts the servers of a root after a reboot."""

from __future__ import annotations

import types

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services import supervisord
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.supervisord import Supervisord

CRONTAB = """#!/bin/sh
cd %s
[ -e refuse-$1 ] && { echo "bad minute" >&2; exit 1; }
[ "$1" = - ] && exec cat > table
[ -e table ] && exec cat table; echo "no crontab for me" >&2; exit 1
"""
OTHERS = "MAILTO=me\n*/5 * * * * true # inference.fleet\n@reboot true # inference.fleet /other\n"


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node with a root and a program crontab, whose table is in `table`."""
    program = tmp_path / "crontab"
    program.write_text(CRONTAB % tmp_path)
    program.chmod(0o755)
    monkeypatch.setattr(supervisord, "CRONTAB", str(program))
    paths = NodePaths(str(tmp_path / "a root's 100% $HOME"))
    manager = Supervisord(paths, "/toolkit")
    return types.SimpleNamespace(paths=paths, manager=manager, table=tmp_path / "table", folder=tmp_path)


@pytest.mark.parametrize("others", ["", OTHERS])
def test_the_line_is_added_and_removed_and_other_lines_stay(node, others):
    if others:
        node.table.write_text(others)
    assert supervisord.ensure_start_on_boot(node, False)["changed"] is False
    assert supervisord.ensure_start_on_boot(node, True, True)["changed"] and not (
        node.table.exists() and "toolkit" in node.table.read_text()
    )
    found = supervisord.ensure_start_on_boot(node, True)
    assert found["changed"] and node.table.read_text() == others + found["diff"]["after"] + "\n"
    assert supervisord.ensure_start_on_boot(node, True)["changed"] is False
    assert supervisord.ensure_start_on_boot(node, False)["changed"]
    assert node.table.read_text() == others


def test_a_crontab_that_cannot_be_used(node, monkeypatch):
    (node.folder / "refuse--").touch()
    assert "bad minute" in supervisord.ensure_start_on_boot(node, True)["warnings"][0]
    (node.folder / "refuse--l").touch()
    assert "bad minute" in supervisord.ensure_start_on_boot(node, True)["warnings"][0]
    monkeypatch.setattr(supervisord, "CRONTAB", "/none")
    assert "cannot be executed" in supervisord.ensure_start_on_boot(node, True)["warnings"][0]
    assert supervisord.ensure_start_on_boot(node, False)["warnings"] == []
    node.manager = types.SimpleNamespace(name="systemd")
    assert supervisord.ensure_start_on_boot(node, True)["warnings"] == []
