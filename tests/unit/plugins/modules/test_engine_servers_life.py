# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that die, and what starts them: followers, the start limit, the program and its versions, adopted servers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import launchers
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import read_json
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import observe
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services import supervisord
from ansible_collections.inference.fleet.tests.unit.engines import small_node
from ansible_collections.inference.fleet.tests.unit.engines.small_node import (
    ENGINE,
    SmallNode,
    alive,
    pids,
    rehash,
    row,
    wait_until,
)
from ansible_collections.inference.fleet.tests.unit.operating import operate


def test_an_engine_that_ignores_term_is_killed(node, monkeypatch):
    monkeypatch.setattr(supervisord, "STOP_WAIT_S", 0)
    monkeypatch.setattr(launchers, "TERM_S", 0.2)
    entry = node.entry("server-0", "--ignore-term", "--child", "--away")
    node.serving([entry])
    old = wait_until(lambda: len(found := node.running("server-0")) == 2 and found)
    result = node.servers([entry], state="stopped")
    assert row(result, "server-0")["state"] == "stopped"
    assert [pid for pid in old if alive(pid)] == []
    assert processes.port_holder("127.0.0.1", entry["port"]) is None


def test_a_follower_restarts_with_its_leader_where_it_says_so(node):
    """When the leader dies, and by the play; one that only loaded what its leader made is left alone."""
    lead = node.entry("lead")
    bound = node.entry("bound", start={"after": ["lead"], "restart_with_leader": True})
    loose = node.entry("loose", start={"after": ["lead"], "restart_with_leader": False})
    before = pids(node.serving([lead, bound, loose]))
    os.kill(before["lead"], signal.SIGKILL)
    wait_until(lambda: not alive(before["bound"]), what="the end of the follower")
    after = pids(node.ready([lead, bound, loose]))
    assert {name: after[name] == before[name] for name in after} == {"lead": False, "bound": False, "loose": True}
    changed = rehash(lead, environment={"A": "1"})
    result = node.servers([changed, bound, loose], only=["lead"], check=True)
    assert [row["name"] for row in result["servers"]] == ["lead", "bound"]
    assert "bound:\n  state: running (restarted)\n" in result["diff"]["after"]


def test_a_server_that_always_dies_fails_and_is_started_by_the_next_run(node):
    entry = node.entry("server-0")
    first = pids(node.serving([entry]))["server-0"]
    path = node.paths.server_state("server-0")
    state = read_json(path)
    state["starts"] = [state["started"]] * 5
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(state, stream)
    os.kill(first, signal.SIGKILL)

    reason = "start limit: it started 5 times within 350 s and ended each time"
    manager = supervisord.Supervisord(node.paths, sys.prefix)
    wait_until(lambda: manager.statuses()["server-0"].state == "failed")
    check = node.servers([entry], check=True)
    assert row(check, "server-0")["state"] == "failed"
    assert row(check, "server-0")["reason"] == "would start: it has failed: " + reason
    assert row(check, "server-0")["log_tail"][-1].endswith(" guard: " + reason)
    failed = node.module("engine_ready", [entry])
    assert (failed["final"], reason in failed["msg"]) == (True, True)

    found = row(node.servers([entry]), "server-0")
    assert (found["state"], found["restarts"]) == ("running", 0)
    assert node.servers([entry])["changed"] is False


def test_a_killed_supervisord_is_replaced_without_double_processes(node):
    entries = [node.entry("server-0"), node.entry("server-1", start={"after": ["server-0"]})]
    node.servers(entries)
    first = pids(node.serving(entries))
    for pid in node.daemons():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: node.daemons() == [])
    assert alive(first["server-0"])

    check = node.servers(entries, check=True)
    assert row(check, "server-0")["state"] == "running"
    assert row(check, "server-0")["reason"].startswith("would restart: it runs without its service manager")
    result = node.servers(entries)
    assert result["changed"]
    assert not alive(first["server-0"])
    node.ready(entries)
    assert [len(node.running(name)) for name in ("server-0", "server-1")] == [1, 1]
    assert node.servers(entries)["changed"] is False


def test_a_foreign_process_on_the_port_is_named_before_anything_stops(node):
    entries = [node.entry("server-0"), node.entry("server-1")]
    first = pids(node.servers(entries))
    port = small_node.free_port()
    with socket.create_server(("127.0.0.1", port)):  # reuses an address that only waits to be forgotten
        moved = rehash(node.entry("server-1", port=port))
        for check_mode in (True, False):
            result = node.module("engine_servers", [entries[0], moved], check=check_mode)
            assert result["code"] == "servers.port-held"
            assert "its port %d on 127.0.0.1 is held by process %d of " % (port, os.getpid()) in result["msg"]
            assert result["holder"]["pid"] == os.getpid()
    assert pids(node.servers(entries)) == first

    # servers that swap their ports are no conflict
    swapped = [node.entry("server-0", port=entries[1]["port"]), node.entry("server-1", port=entries[0]["port"])]
    second = pids(node.serving(swapped))
    assert second.keys() == first.keys()
    # nor is a port that a server gives up, but one that a server keeps is
    result = node.module("engine_servers", [swapped[0], node.entry("server-1", port=swapped[0]["port"])])
    assert "is held by our server 'server-0', process %d of" % second["server-0"] in result["msg"]
    assert pids(node.servers(swapped)) == second


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

    held = wave("server-0")
    assert held["code"] == "servers.port-held" and observe.BY_HAND % "vllm" in held["msg"]
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
