# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers started, stopped, restarted and changed, in four steps, under a real supervisord."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import tempfile

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import python as host_python
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import apply
from ansible_collections.inference.fleet.tests.unit.engines import small_node
from ansible_collections.inference.fleet.tests.unit.engines.small_node import (
    SmallNode,
    alive,
    engine_environment,
    pids,
    rehash,
    row,
    wait_until,
)

SECRET = "hf_a-secret-value"


def test_started_in_four_steps(node):
    entries = [node.entry("server-0"), node.entry("server-1")]

    check = node.servers(entries, check=True)
    assert check["changed"]
    assert [server["state"] for server in check["servers"]] == ["missing"] * 2
    assert not os.path.exists(node.root)

    apply = node.servers(entries)
    assert apply["changed"]
    assert apply["diff"] == check["diff"]
    assert not apply["answering"]  # what was just started is waited for
    for entry, server in zip(entries, apply["servers"]):
        expected = {"name": entry["name"], "state": "running", "ready": None, "restarts": 0, "hash": entry["hash"]}
        assert expected.items() <= server.items()
        # In the moment of its exec a process has no argv.
        wait_until(lambda pid=server["pid"]: processes.argv(pid), what="argv")
        assert processes.argv(server["pid"]) == entry["command"]
    node.ready(entries)

    for check_mode in (True, False):
        again = node.servers(entries, check=check_mode)
        assert (again["changed"], again["diff"], again["removed"]) == (False, {"before": "", "after": ""}, [])
        assert pids(again) == pids(apply)
        assert again["answering"]

    os.kill(pids(apply)["server-1"], signal.SIGSTOP)
    words = "would restart: it was ready and does not answer any more: its process "
    assert row(node.servers(entries, check=True), "server-1")["reason"].startswith(words)
    os.unlink(node.paths.ready("server-1"))  # one that was not seen ready has its start budget
    again = node.servers(entries)
    assert (again["answering"], again["changed"], again["repaired"], again["pending"]) == (False, False, {}, {})
    os.kill(pids(apply)["server-1"], signal.SIGCONT)


def test_stopped_restarted_and_absent_in_four_steps(node):
    entries = [node.entry("server-0")]
    first = pids(node.servers(entries))["server-0"]

    def each_step(state, *found):
        """(changed, state) of two calls in check mode and two without."""
        for check_mode, expected in zip((True, False, True, False), found, strict=True):
            result = node.servers(entries, state=state, check=check_mode)
            assert (result["changed"], row(result, "server-0")["state"]) == expected

    each_step("stopped", (True, "running"), (True, "stopped"), (False, "stopped"), (False, "stopped"))
    assert not alive(first)
    assert node.daemons() == []
    assert os.path.exists(node.paths.entry("server-0"))

    result = node.servers(entries, check=True)
    assert row(result, "server-0")["reason"] == "would start: it is stopped"
    second = pids(node.servers(entries))["server-0"]
    assert node.servers(entries)["changed"] is False

    result = node.servers(entries, state="restarted", check=True)
    assert (result["changed"], pids(result)["server-0"]) == (True, second)
    third = pids(node.servers(entries, state="restarted"))["server-0"]
    assert third != second
    assert not alive(second)
    assert node.servers(entries, state="restarted")["changed"]

    each_step("absent", (True, "running"), (True, "missing"), (False, "missing"), (False, "missing"))
    assert node.running("server-0") == []
    assert node.daemons() == []
    left = [str(path) for path in pathlib.Path(node.root).rglob("*server-0*")]
    assert left == [node.paths.lib + "/servers/server-0"]


def test_a_smaller_plan_and_one_changed_argument(node):
    entries = [node.entry("server-%d" % number) for number in range(3)]
    first = pids(node.servers(entries))
    changed = rehash(entries[0], command=[*entries[0]["command"], "--max-life", "100"])

    result = node.servers([changed, *entries[1:]])
    assert '"--max-life"' in result["diff"]["after"] and '"--max-life"' not in result["diff"]["before"]
    second = pids(result)
    assert {name for name in first if first[name] != second[name]} == {"server-0"}
    assert not alive(first["server-0"])

    only = node.servers([changed], only=["server-0"])
    assert (only["changed"], only["removed"]) == (False, [])
    assert alive(second["server-2"])

    os.unlink(node.paths.entry("server-2"))  # it is found by its process
    result = node.servers([changed])
    assert result["removed"] == ["server-1", "server-2"]
    assert pids(result) == {"server-0": second["server-0"]}
    assert not alive(second["server-1"]) and not alive(second["server-2"])
    assert [one["name"] for one in node.module("engine_servers_info", [])["servers"]] == ["server-0"]

    result = node.servers([])
    assert (result["removed"], node.daemons()) == (["server-0"], [])


def test_secrets_are_in_their_file_and_the_environment_alone(node):
    entry = node.entry("server-0", secrets={"HF_TOKEN": "fleet_hf_token"}, secret_versions={"HF_TOKEN": "1"})
    missing = node.module("engine_servers", [entry])
    assert missing["code"] == "servers.secret-missing" and "'fleet_hf_token'" in missing["msg"]
    results = [node.servers([entry], secrets={"fleet_hf_token": SECRET}, check=True)]
    results.append(node.servers([entry], secrets={"fleet_hf_token": SECRET}))
    pid = pids(results[-1])["server-0"]
    node.ready([entry])  # by then the guard has become the engine
    assert engine_environment(pid)[b"HF_TOKEN"] == SECRET.encode()
    assert SECRET not in processes.command(pid)

    log = pathlib.Path(node.paths.log_file("server-0"))
    wait_until(lambda: SECRET in log.read_text(encoding="utf-8"), what="the log")
    holders = []
    for path in pathlib.Path(node.root).rglob("*"):
        if path.is_file() and SECRET.encode() in path.read_bytes():
            holders.append((str(path), oct(path.stat().st_mode & 0o777)))
    # the log has it because this engine prints it
    assert sorted(holders) == [(node.paths.secret("server-0"), "0o600"), (str(log), "0o640")]
    info = row(node.module("engine_servers_info", [entry], log_lines=5), "server-0")
    assert info["log_tail"][1] == "token ***"

    other = {"fleet_hf_token": SECRET + "2"}
    results.append(node.servers([entry], secrets=other, check=True))
    assert '"HF_TOKEN": "another value"' in results[-1]["diff"]["before"]
    results.append(node.servers([entry], secrets=other))
    assert engine_environment(pids(results[-1])["server-0"])[b"HF_TOKEN"] == SECRET.encode() + b"2"
    assert node.servers([entry], secrets=other)["changed"] is False
    results.append(node.servers([rehash(entry, secret_versions={"HF_TOKEN": "2"})], secrets=other, check=True))
    found = [results[-1]["diff"][side].partition("secrets: ")[2] for side in ("before", "after")]
    assert found == ['{\n    "HF_TOKEN": "version %d"\n  }\n' % number for number in (1, 2)]
    assert SECRET not in json.dumps(results)

    node.servers([rehash(entry, secrets={}, secret_versions={})])
    assert not os.path.exists(node.paths.secret("server-0"))
    (pid,) = wait_until(lambda: node.running("server-0"))
    assert b"HF_TOKEN" not in engine_environment(pid)


def test_a_config_file_is_checked_written_kept_and_given_up(node, monkeypatch):
    """The image is asked before the old server is stopped, and not at all where nothing is started."""
    asked = []

    def check(_node, servers):
        asked.append([one.config for one in servers])
        if "wrong" in str(servers[0].config if servers else ""):
            raise FleetError("test.refused", "no")

    monkeypatch.setattr(apply, "check_configs", check)
    path = pathlib.Path(node.paths.configs, "server-0.yml")
    config = {"path": str(path), "format": "yaml", "content": {"a": 1}}
    entry = node.entry("server-0", config=config)
    node.servers([entry])
    path.write_text("edited: true\n")
    result = node.servers([entry])
    assert "config: a file that differs\n" in result["diff"]["before"]
    assert yaml.safe_load(path.read_text()) == config["content"]
    before = pids(result)
    assert pids(node.servers([entry])) == before
    changed = rehash(entry, config={**config, "content": {"a": "wrong"}})
    assert node.module("engine_servers", [changed])["msg"] == "no"
    after = node.servers([entry])
    assert (after["changed"], pids(after)) == (False, before)
    assert [yaml.safe_load(text) for (text,) in filter(None, asked)] == [{"a": 1}, {"a": 1}, {"a": "wrong"}]
    node.servers([rehash(entry, config=None)])
    assert not path.exists()


def test_what_cannot_be_done_is_said(node):
    """Check mode does not look at what an earlier task may install."""
    zero, one = node.entry("server-0"), node.entry("server-1")
    cases = [
        ({"only": ["server-7"]}, [zero, one], "servers.only-unknown", True),
        ({"root": "relative"}, [zero], "node.root-not-absolute", True),
        ({}, [rehash(zero, start={"after": ["leader"]})], "servers.start-order-invalid", True),
        ({}, [dict(zero, port=1)], "entry.invalid", True),
        ({}, [rehash(zero, user="no-such-user")], "servers.not-prepared", False),
        ({}, [rehash(zero, command=["/no/such/program"])], "launch.not-prepared", False),
        ({"toolkit": node.root + "/toolkit"}, [zero], "servers.cannot-start", False),
    ]
    for params, entries, code, in_check_mode in cases:
        for check_mode in (True, False):
            result = node.module("engine_servers", entries, check=check_mode, **params)
            assert result.get("code") == (code if in_check_mode or not check_mode else None)
    assert node.root + "/toolkit/bin/supervisord" in result["msg"]
    assert not os.path.exists(node.root + "/etc")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run servers as another user")
def test_a_server_of_another_user():
    folder = tempfile.mkdtemp(prefix="fleet-user-")
    os.chmod(folder, 0o755)
    node = SmallNode(folder)
    shutil.copy(small_node.ENGINE, folder)  # where every user may read it
    python = shutil.which("python3", path="/usr/bin")
    if python is None or not host_python.can_execute("nobody", python):
        pytest.skip("there is no /usr/bin/python3 that every user may execute")
    try:
        with small_node.watched(folder):
            port = small_node.free_port()
            command = [python, "-I", "-S", folder + "/small_engine.py", "--port", str(port), "--model", "small"]
            entry = node.entry("server-0", command=command, port=port, secrets={"HF_TOKEN": "fleet_hf_token"},
                               secret_versions={"HF_TOKEN": "1"}, user="nobody")  # fmt: skip
            umask = os.umask(0o077)
            try:
                node.servers([entry], secrets={"fleet_hf_token": SECRET})
            finally:
                os.umask(umask)
            node.ready([entry])
            (pid,) = node.running("server-0")
            variables = engine_environment(pid)
            assert os.stat("/proc/%d" % pid).st_uid == os.stat(node.paths.secret("server-0")).st_uid == 65534
            assert (variables[b"USER"], variables[b"HF_TOKEN"]) == (b"nobody", SECRET.encode())
            assert os.stat(node.paths.directories("server-0")["work"]).st_uid == 65534
            assert node.servers([entry], secrets={"fleet_hf_token": SECRET})["changed"] is False
            assert os.stat(node.paths.state).st_uid == 65534

            port = small_node.free_port()
            command = [*command[:4], "--port", str(port), "--model", "small"]
            second = node.entry("server-1", command=command, port=port, user="daemon")
            node.serving([entry, second], only=["server-1"])
            assert oct(os.stat(node.paths.state).st_mode & 0o7777) == "0o1777"
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: node.running("server-0") not in ([], [pid]))
            node.ready([entry, second])
            own = rehash(entry, user="daemon")
            result = node.servers([own, second], secrets={"fleet_hf_token": SECRET}, check=True)
            assert row(result, "server-0")["reason"] == "would change: changed: user"
    finally:
        node.end()
        shutil.rmtree(folder)
