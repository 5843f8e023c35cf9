# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that starts servers: damaged, of another version, or as an earlier version of this collection had it."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import read_json
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.plugins.modules.engine_servers_calls import pids


def killed(node, pid):
    """The pid of server-0 after it was killed and its service manager has started it again."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: node.running("server-0") not in ([], [pid]))
    row = wait_until(lambda: _running(node))
    return row["pid"]


def _running(node):
    row = node.module("engine_servers_info", [])["servers"][0]
    return row if row["state"] == "running" else None


def started_by(node):
    return read_json(node.paths.server_state("server-0"))["program"]


def gone(place):
    shutil.rmtree(place)


def swapped(place):
    os.unlink(place / program.CURRENT)
    os.symlink("/tmp", place / program.CURRENT)


@pytest.mark.parametrize("fault", [gone, swapped])
def test_a_program_that_was_damaged_is_repaired_under_running_servers(node, fault):
    entry = node.entry("server-0")
    first = pids(node.servers([entry]))
    node.ready([entry])
    fault(pathlib.Path(node.paths.program))
    found = node.module("engine_servers_info", [entry])["servers"][0]["differences"]
    assert [one["kind"] for one in found] == ["shared file"]
    assert node.servers([entry], check=True)["changed"]
    result = node.servers([entry])
    assert (result["changed"], result["actions"], pids(result)) == (True, [], first)
    assert node.servers([entry])["changed"] is False
    second = killed(node, first["server-0"])  # as after a reboot
    assert node.servers([entry])["changed"] is False
    assert pids(node.servers([entry])) == {"server-0": second}


def test_two_controllers_of_different_versions_restart_nothing(node, monkeypatch):
    entry = node.entry("server-0")
    first = pids(node.servers([entry]))
    node.ready([entry])
    own, files = program.own_version(), program.files_of()
    files["fleet_node/more.py"] = b""
    other = program.version(files)
    with monkeypatch.context() as patch:
        patch.setattr(program, "files_of", lambda: files)
        patch.setattr(program, "own_version", lambda: other)
        result = node.servers([entry])
        assert (result["changed"], result["actions"], pids(result)) == (True, [], first)
        assert node.servers([entry])["changed"] is False
    # the engine holds what started it, and `current` is the other one's
    assert {own, other} <= set(os.listdir(node.paths.program))
    second = killed(node, first["server-0"])
    assert started_by(node) == os.path.join(node.paths.program, other)
    assert pids(node.servers([entry])) == {"server-0": second}
    assert {own, other} <= set(os.listdir(node.paths.program))
    node.servers([entry], state="restarted")
    node.ready([entry])
    assert started_by(node) == os.path.join(node.paths.program, own)
