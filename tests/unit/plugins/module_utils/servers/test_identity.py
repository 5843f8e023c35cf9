# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who answers on a server's port: verdicts are about the planned entry's own process; the times of its start."""

from __future__ import annotations

import functools
import getpass
import json
import os
import pathlib
import re
import socket
from types import SimpleNamespace

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import Container
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import identity
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.identity import start_times
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import Node, Observed
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking, runner
from ansible_collections.inference.fleet.tests.unit.engines.deployed import a_port, deployed, holding, write_down
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import container, plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine

USER = getpass.getuser()
MANAGER = SimpleNamespace(  # no server of these tests is held by a service manager
    statuses=dict, defined=list, masked=lambda _: False, definition_path=lambda _: None, log_files=lambda _: [],
)  # fmt: skip


def node_below(root):
    return Node(NodePaths(str(root)), MANAGER)


def verify(root, *entries, mode="quick", **arguments):
    node = node_below(root)
    options = asking.Options(mode=mode, timeout=60, quick_timeout=60)
    return runner.verify_servers(list(entries), options, identity.Watch(node).over, **arguments)["verdicts"]


def words_of(verdict):
    """Why it is not verified, with pids and commands left out; its probes say the same."""
    assert verdict["ok"] is False
    first, *rest = verdict["probes"]
    assert (first["name"], first["ok"]) == ("identity", False)
    assert first["cause"] == "not verified: " + verdict["not_verified"]
    assert {probe["ok"] for probe in rest} == {None}
    assert {probe["cause"] for probe in rest} <= {
        "not run: identity failed", "not run: no probe got an answer",
    }  # fmt: skip
    return re.sub(r"process \d+ of %s \([^)]*\)" % re.escape(USER), "PROCESS", verdict["not_verified"])


@pytest.fixture
def serving(tmp_path):
    """(the engine behind the port, the deployed entry, the path of the record of its start)."""
    with ScriptedEngine() as engine, deployed(tmp_path, engine.port, plan_entry) as entry:
        yield engine, entry, pathlib.Path(NodePaths(str(tmp_path)).server_state("server-0"))


def held(entry, name="server-0"):
    """How a port is described that a server of ours holds."""
    return "the port %d is held by our server '%s', PROCESS" % (entry["port"], name)


def test_the_planned_entry_that_runs_and_holds_its_port_is_verified(tmp_path):
    with ScriptedEngine() as engine, deployed(tmp_path, engine.port, plan_entry) as entry:
        (verdict,) = verify(tmp_path, entry)
    assert (verdict["ok"], verdict["not_verified"]) == (True, None)
    words = r"process \d+ \(.*\) runs the planned entry %s and holds the port %d" % (entry["hash"][:12], entry["port"])
    assert re.fullmatch(words, verdict["probes"][0]["got"])
    assert words_of(verify(tmp_path, entry)[0]) == "server-0 does not run (stopped)"


def test_nothing_is_deployed_and_somebody_elses_server_answers(tmp_path):
    listener = a_port()
    entry = plan_entry(listener.getsockname()[1])
    with ScriptedEngine() as engine, holding(listener, engine.port):
        (verdict,) = verify(tmp_path, entry, mode="full")
        assert words_of(verdict) == "nothing is deployed as server-0; the port %d is held by PROCESS" % entry["port"]
        assert engine.requests == []


def test_another_entry_is_deployed_than_the_planned_one(tmp_path, serving):
    """Of an older or a newer plan, of another run at the same time, or edited on the node."""
    engine, entry, _record = serving
    planned = plan_entry(entry["port"], environment={"A": "1"}, model_id="gpt-oss-20b")
    words = words_of(verify(tmp_path, planned)[0])
    assert all(one["hash"][:12] in words for one in (entry, planned))
    assert words.endswith("; they differ in environment, model_id; " + held(entry))
    assert engine.requests == []
    pathlib.Path(NodePaths(str(tmp_path)).entry("server-0")).write_text(json.dumps(dict(entry, devices=[7])))
    assert "; they differ in devices; the port" in words_of(verify(tmp_path, entry)[0])


def test_an_older_entry_runs_than_the_deployed_one(tmp_path, serving):
    _engine, entry, record = serving
    write_down(tmp_path, entry, json.loads(record.read_text())["pid"], runs="0" * 64)
    words = words_of(verify(tmp_path, entry)[0])
    assert words.startswith("server-0 runs the entry 000000000000, and the plan's is %s" % entry["hash"][:12])
    assert held(entry) in words
    record.unlink()
    words = words_of(verify(tmp_path, entry)[0])
    assert re.match(r"server-0 runs as process \d+, whose start is not recorded", words)


def test_another_server_of_ours_has_its_port(tmp_path):
    one, other = a_port(), a_port()
    entries = [plan_entry(one.getsockname()[1]), plan_entry(other.getsockname()[1], "server-1")]
    with (
        ScriptedEngine() as engine,
        holding(one, engine.port, str(tmp_path), "server-1") as first,
        holding(other, engine.port, str(tmp_path), "server-0") as second,
    ):
        write_down(tmp_path, entries[0], second)
        write_down(tmp_path, entries[1], first)
        found = [words_of(verdict) for verdict in verify(tmp_path, *entries)]
    assert found == [held(entries[0], "server-1"), held(entries[1], "server-0")]


def test_a_port_that_two_share_is_not_ours_alone(tmp_path):
    """With SO_REUSEPORT the kernel gives each request to one of them."""
    listeners = []
    for _turn in range(2):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", listeners[0].getsockname()[1] if listeners else 0))
        listener.listen()
        listeners.append(listener)
    entry = plan_entry(listeners[0].getsockname()[1])
    with (
        ScriptedEngine() as engine,
        holding(listeners[0], engine.port, str(tmp_path), "server-0") as pid,
        holding(listeners[1], engine.port),
    ):
        write_down(tmp_path, entry, pid)
        assert words_of(verify(tmp_path, entry)[0]) == "the port %d is held by PROCESS" % entry["port"]


@pytest.mark.parametrize(("bind", "sockets", "reached"), [
    ("0.0.0.0", {"0.0.0.0": 1, "127.0.0.1": 2}, {2}), ("0.0.0.0", {"0.0.0.0": 1, "10.0.0.1": 2}, {1}),
    ("127.0.0.1", {"::": 1, "0.0.0.0": 2}, {2}), ("::1", {"::1": 1, "127.0.0.1": 2}, {1}),
    ("10.0.0.1", {"127.0.0.1": 1}, set()),
])  # fmt: skip
def test_the_socket_that_takes_the_requests_counts(monkeypatch, bind, sockets, reached):
    """One of the very address comes before one of all addresses."""
    found = [(address, 8000, inode, 0) for address, inode in sockets.items()]
    monkeypatch.setattr(processes, "listening_sockets", lambda: found)
    monkeypatch.setattr(processes, "_holders", lambda listeners, sockets: set(listeners))
    assert set(processes.port_holders(bind, 8000)) == reached


def test_a_swap_in_the_middle_of_the_verification_is_noticed(tmp_path, serving):
    """What answered is gone by the end, and another entry is deployed: none of the answers is about the plan."""
    engine, entry, record = serving
    pid, newer = json.loads(record.read_text())["pid"], plan_entry(entry["port"], environment={"A": "1"})
    engine.pages["/v1/models"] = lambda: (
        write_down(tmp_path, newer, pid) or json.dumps({"data": [{"id": "gpt-oss-120b"}]})
    )
    (verdict,) = verify(tmp_path, entry)
    assert [(probe["name"], probe["ok"]) for probe in verdict["probes"]] == [
        ("identity", False), ("model-id", True), ("completion", True),
    ]  # fmt: skip
    assert verdict["ok"] is False
    assert verdict["not_verified"].startswith("server-0 is deployed as the entry %s, " % newer["hash"][:12])
    assert verdict["not_verified"].endswith(" (since the probes began)")


@pytest.mark.parametrize(("running", "its_hash", "ports", "holder", "expected"), [
    (True, None, [8000], None, "its container runs the planned entry %s; its container publishes the port 8000"),
    (True, None, [8000], "root", "its container runs the planned entry %s; the process that holds the port 8000 "
     "cannot be seen as this user, its container can and holds the port 8000"),
    (True, "0" * 64, [8000], "root", "server-0 runs the entry 000000000000, and the plan's is %s; site.yml "
     "restarts it; the port 8000 is held by a process of root that this user cannot see"),
    (False, None, [8000], None, "no container of server-0 runs (stopped)"),
])  # fmt: skip
def test_a_container_is_known_by_its_labels(monkeypatch, tmp_path, running, its_hash, ports, holder, expected):
    entry = plan_entry(8000, launcher="container", container=container())
    one = Container("a" * 64, "c", running, "server-0", str(tmp_path), its_hash or entry["hash"], ports)
    seen = {"server-0": Observed("server-0", entry=entry, containers=[one])}
    hidden = {"pid": None, "command": None, "user": "root", "server": None, "root": None}
    monkeypatch.setattr(processes, "port_holders", lambda bind, port, sockets=None: [hidden] if holder else [])
    try:
        words = identity.who_answers(node_below(tmp_path), entry, seen)
    except identity.Stranger as stranger:
        words = str(stranger)
    assert words == (expected % entry["hash"][:12] if "%s" in expected else expected)


def test_the_workers_behind_a_frontend_are_the_planned_ones_too(tmp_path):
    front = {"name": "frontend", "role": "frontend"}
    with ScriptedEngine() as engine, deployed(tmp_path, engine.port, functools.partial(plan_entry, **front)) as entry:
        worker = plan_entry(None, "decode-0", role="decode")
        assert words_of(verify(tmp_path, entry, worker)[0]) == "nothing is deployed as decode-0"


def test_check_mode_verifies_nothing_but_what_is_planned(tmp_path, serving):
    engine, entry, _record = serving
    planned = plan_entry(entry["port"], environment={"A": "1"})
    (verdict,) = verify(tmp_path, planned, check_mode=True)
    assert (verdict["ok"], verdict["not_verified"]) == (None, None)
    assert {probe["cause"] for probe in verdict["probes"]} == {"not verified (check)"}
    # a run that says that it changed nothing is held to it
    assert verify(tmp_path, planned, check_mode=True, servers_changed=False)[0]["ok"] is False
    assert [path for method, path, *_rest in engine.requests if method == "POST"] == []


def test_the_times_of_a_start(tmp_path):
    paths, entry = NodePaths(str(tmp_path)), plan_entry(8000)
    path = pathlib.Path(paths.ready("server-0"))
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    os.utime(path, (6000, 6000))
    state = {"pid": 1, "started": 5000.5, "artifact": "compiles"}
    found = start_times(paths, entry, Observed("server-0", state=state, pids=[os.getpid()], was_ready=True))
    assert found.pop("memory_mib") > 0
    assert found == {"started": "1970-01-01T01:23:20Z", "ready": "1970-01-01T01:40:00Z", "artifact": "compiles"}
    # a record of another process says nothing about this one
    found = start_times(paths, entry, Observed("server-0", state={"started": 5000.5}))
    assert found == {"started": "1970-01-01T01:23:20Z", "ready": None, "artifact": None, "memory_mib": None}
