# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What starts servers: the program, damaged or of another version; service definitions; processes started by hand."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import python as host_python
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import read_json
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services import supervisord
from ansible_collections.inference.fleet.tests.unit.engines.small_node import (
    ENGINE,
    SmallNode,
    rehash,
    wait_until,
)
from ansible_collections.inference.fleet.tests.unit.operating import operate
from ansible_collections.inference.fleet.tests.unit.plugins.modules.engine_servers_calls import pids, row


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


def test_a_program_that_was_damaged_is_repaired_under_running_servers(node):
    entry = node.entry("server-0")
    first, place = pids(node.servers([entry])), pathlib.Path(node.paths.program)
    node.ready([entry])
    for swapped in (True, False):
        if swapped:
            os.unlink(place / program.CURRENT)
            os.symlink("/tmp", place / program.CURRENT)
        else:
            shutil.rmtree(place)
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
    first = pids(node.serving([entry]))
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
    node.serving([entry], state="restarted")
    assert started_by(node) == os.path.join(node.paths.program, own)


def test_a_changed_service_definition_restarts_nothing(node):
    entry = node.entry("server-0")
    first = pids(node.servers([entry]))
    definition = supervisord.Supervisord(node.paths, sys.prefix).definition_path("server-0")
    for path in (definition, node.paths.etc + "/supervisord.conf"):
        text = pathlib.Path(path).read_text()
        pathlib.Path(path).write_text(text.replace("maxbytes=", "maxbytes=1"))
    result = node.servers([entry], check=True)
    assert row(result, "server-0")["reason"].startswith("would redefine: its service definition differs")
    assert "%s/supervisord.conf: differs from this" % node.paths.etc in result["diff"]["before"]
    result = node.servers([entry])
    assert (result["changed"], pids(result)) == (True, first)
    assert node.servers([entry])["changed"] is False
    second = pids(node.servers([entry], state="restarted"))
    assert second != first
    assert node.servers([entry])["changed"] is False


def test_another_python_of_the_node_changes_a_link_alone(node, tmp_path):
    entry = node.entry("server-0")
    first = pids(node.servers([entry]))
    link = host_python.link(node.paths)
    chosen = os.readlink(link)
    host_python.put(node.paths, str(tmp_path / "gone"))
    result = node.servers([entry], check=True)
    assert result["diff"] == {"before": link + ": to another Python\n", "after": "%s: to %s\n" % (link, chosen)}
    result = node.servers([entry])
    assert (result["changed"], pids(result), os.readlink(link)) == (True, first, chosen)
    assert node.servers([entry])["changed"] is False


def test_a_root_whose_path_is_too_long_for_a_socket(tmp_path):
    node = SmallNode(tmp_path / ("a-long-name-" * 8))
    try:
        entry = node.entry("server-0")
        node.servers([entry])
        manager = supervisord.Supervisord(node.paths, sys.prefix)
        assert len(manager.socket) < 100
        assert oct(os.stat(manager.socket_folder).st_mode & 0o777) == "0o700"
        assert node.servers([entry])["changed"] is False
        node.servers([entry], state="absent")
        assert not os.path.exists(manager.socket_folder)
    finally:
        node.end()


@pytest.fixture
def by_hand(tmp_path, node):
    """(entries of two planned servers, processes of engines on their ports)."""
    (tmp_path / "vllm").symlink_to(ENGINE)
    entries = [node.entry("server-%d" % number) for number in range(2)]
    argv = [sys.executable, "-S", str(tmp_path / "vllm"), "serve", "m", "--port"]
    processes = [subprocess.Popen([*argv, str(entry["port"])]) for entry in entries]
    try:
        wait_until(lambda: len(operate("foreign_servers", servers=entries, root=node.root)["found"]) == 2)
        yield entries, processes
    finally:
        for one in processes:
            one.kill()
            one.wait()


def test_servers_that_were_started_by_hand_are_replaced_in_turns(node, by_hand):
    entries, (first, second) = by_hand

    def wave(name, servers=entries, **options):
        return node.module("engine_servers", servers, changes="wave", only=[name], **options)

    assert wave("server-0")["code"] == "servers.port-held"
    planned = node.servers(entries, changes="one_by_one", adopt=True)
    assert planned["waves"] == [["server-0"], ["server-1"]]
    unready = [rehash(entries[0], weights=["/none"]), entries[1]]
    assert wave("server-0", unready, adopt=True)["code"] == "servers.not-prepared"
    assert (first.poll(), second.poll(), node.running("server-0")) == (None, None, [])

    assert not wave("server-0", adopt=True).get("failed")
    assert (first.wait(10) in (0, -15), second.poll()) == (True, None)
    assert not wave("server-1", adopt=True).get("failed")
    node.ready(entries)
    assert second.wait(10) in (0, -15)
