# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that run and do not serve, or whose files somebody changed: status reports it, a run repairs only that."""

from __future__ import annotations

import errno
import hashlib
import os
import pathlib
import signal
import socket
import subprocess
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files, metrics, processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import python as host_python
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import read_json, read_text
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import drift
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import Observed
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services import supervisord
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import state as guard_state
from ansible_collections.inference.fleet.tests.unit.engines.small_node import pids, rehash, wait_until

SECRET = "hf_a-secret-value"


def reasons(result):
    return {server["name"]: server["reason"] for server in result["servers"]}


def stop_by_signal(pid):
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: processes.process(pid).state == "T", what="the signal")


def test_a_server_without_a_record_of_its_start_restarts(node):
    """Its account can write anything there; the guard of the next start writes a true record."""
    entries, words = [node.entry("server-0"), node.entry("server-1")], "the record of its start is gone"
    before = pids(node.serving(entries))
    record = pathlib.Path(node.paths.server_state("server-0"))
    record.write_text("[]")
    status = node.module("engine_servers_info", entries, probe=True)["servers"][0]
    assert (status["state"], [status["pid"]], status["drift"]) == ("running", node.running("server-0"), words)
    ready = node.module("engine_ready", entries)
    assert (ready["final"], words + "; run engine_servers to restart it" in ready["msg"]) == (True, True)
    assert reasons(node.servers(entries, check=True))["server-0"] == "would restart: " + words
    result = node.serving(entries)
    assert (result["changed"], result["repaired"]) == (True, {"server-0": words})
    assert reasons(result) == {"server-0": "restarted: " + words, "server-1": None}
    old, before["server-0"] = before["server-0"], pids(result)["server-0"]
    assert old != before["server-0"]
    assert read_json(str(record))["hash"] == entries[0]["hash"] and record.stat().st_mode & 0o777 == 0o640
    again = node.servers(entries)
    assert (again["changed"], pids(again)) == (False, before)


def test_one_that_is_stopped_by_a_signal_is_restarted_after_its_budget(node):
    entry = node.entry("server-0", health={"path": "/health", "budget_s": 0, "poll_s": 0.1})
    first = pids(node.servers([entry]))
    stop_by_signal(first["server-0"])
    state = read_json(node.paths.server_state("server-0"))
    files.write_json(node.paths.server_state("server-0"), dict(state, starts=[time.time() - 100]))
    result = node.servers([entry])
    assert result["repaired"]["server-0"].startswith("it does not answer 10")
    assert "s after its start, its start budget is 0 s: its process" in result["repaired"]["server-0"]
    assert pids(result) != first


def test_a_server_that_started_without_its_encodings_is_restarted_once(node, tmp_path):
    folder = tmp_path / "encodings"
    entry = node.entry("server-0", environment={"TIKTOKEN_ENCODINGS_BASE": str(folder)})
    first = pids(node.servers([entry]))
    assert node.servers([entry])["changed"] is False
    folder.mkdir()
    (folder / "o200k_base.tiktoken").write_text("x")
    words = "%s changed since it was started" % (folder / "o200k_base.tiktoken")
    assert node.module("engine_servers_info", [entry])["servers"][0]["drift"] == words
    result = node.servers([entry])
    assert [one["reason"] for one in result["actions"]] == [words]
    assert pids(result) != first
    (folder / "o200k_base.tiktoken").unlink()  # what it has read it keeps
    assert node.servers([entry])["changed"] is False


ABC = hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize(("noted", "changed"), [
    ({}, True), ({"a.tiktoken": "0"}, True), ({"a.tiktoken": ABC}, False), ({"a.tiktoken": ABC, "b": "1"}, False),
    ({"a.tiktoken": None}, False), (None, False),
])  # fmt: skip
def test_a_vocabulary_counts_by_its_bytes(tmp_path, noted, changed):
    """Other bytes and new files are a difference; other times, lost files and what nobody noted are not."""
    (tmp_path / "a.tiktoken").write_text("abc")
    (tmp_path / "README").touch()
    now = guard_state.weights_read({"environment": {"TIKTOKEN_ENCODINGS_BASE": str(tmp_path)}})
    noted = noted and {str(tmp_path / name): one for name, one in noted.items()}
    one = Observed("server-0", state={"weights": noted}, weights={**now, "/without/a/manifest": None})
    assert drift.changed_weights(one) == ([str(tmp_path / "a.tiktoken")] if changed else [])


def test_the_nodes_own_watchdog(node):
    """Under supervisord: a server that was ready and hangs is restarted without a play, and counted as a start."""
    entries = [node.entry("server-0"), node.entry("server-1")]
    watch = {"interval": 1, "failures": 2, "timeout": 1}
    assert "watchdog: runs\n" in node.servers(entries, watchdog=watch, check=True)["diff"]["after"]
    first = pids(node.serving(entries, watchdog=watch))
    assert node.servers(entries, watchdog=watch)["changed"] is False
    answers = 'fleet_server_answers{server="server-0"} 1'
    wait_until(lambda: answers in (read_text(metrics.file_in(node.paths.metrics)) or ""), what="its first answer")
    stop_by_signal(first["server-0"])
    wait_until(lambda: node.running("server-0") not in ([], [first["server-0"]]), what="the restart")
    node.ready(entries)
    assert node.running("server-1") == [first["server-1"]]
    assert len(read_json(node.paths.server_state("server-0"))["starts"]) == 2
    assert "server-0 is restarted" in pathlib.Path(node.paths.log + "/watchdog.log").read_text()

    assert node.servers(entries, watchdog={**watch, "failures": 9})["changed"]
    assert node.servers(entries, watchdog={**watch, "failures": 9}, state="stopped")["changed"]
    assert node.running("server-0") == []
    node.servers(entries, watchdog=watch)
    assert node.servers(entries)["changed"]
    assert node.servers(entries)["changed"] is False
    assert not any("watchdog" in name for name in os.listdir(node.paths.etc + "/supervisor.d"))
    assert not any("watch" in processes.argv(pid) for pid in node.daemons())


def test_a_reboot_below_a_root(node, tmp_path, monkeypatch):
    """Nothing runs any more, what was written down is still there, and then cron does what the line says."""
    entries = [node.entry("server-0"), node.entry("server-1")]
    table = tmp_path / "table"
    program = tmp_path / "crontab"
    program.write_text('#!/bin/sh\n[ "$1" = - ] && exec cat > "%s"\nexec cat "%s"\n' % (table, table))
    program.chmod(0o755)
    monkeypatch.setattr(supervisord, "CRONTAB", str(program))
    table.write_text("# mine\n")
    first = pids(node.servers(entries, start_on_boot=True))
    node.end()
    mine, line = table.read_text().splitlines()
    command = line.removeprefix("@reboot ").replace("\\%", "%")
    subprocess.run(["/usr/bin/env", "-i", "/bin/sh", "-c", command], check=True, cwd="/")
    node.ready(entries)
    again = node.servers(entries, start_on_boot=True)
    assert (mine, again["changed"]) == ("# mine", False)
    assert not set(pids(again).values()) & set(first.values())

    node.servers(entries, start_on_boot=True, state="stopped")
    subprocess.run(["/usr/bin/env", "-i", "/bin/sh", "-c", command], check=False, cwd="/")
    assert node.daemons() == []  # stopped stays stopped
    node.servers(entries, state="absent")
    assert table.read_text() == "# mine\n"


SECRETS = {"fleet_hf_token": SECRET}


def differences(node, entries, **params):
    found = node.module("engine_servers_info", entries, **params)["servers"]
    return {row["name"]: [(one["kind"], one["text"]) for one in row["differences"]] for row in found}


def test_faults_are_reported_and_repaired_without_a_restart(node):
    """A stopped server whose port somebody took is reported too."""
    secret = {"secrets": {"HF_TOKEN": "fleet_hf_token"}, "secret_versions": {"HF_TOKEN": "1"}}
    entries = [node.entry("server-0", **secret), node.entry("server-1")]
    before = pids(node.serving(entries, secrets=SECRETS))
    assert differences(node, entries, secrets=SECRETS) == {"server-0": [], "server-1": []}
    program, settings = os.path.realpath(node.paths.guard) + "/fleet_node/cli.py", node.paths.etc + "/supervisord.conf"
    os.chmod(node.paths.secret("server-0"), 0o644)
    os.chmod(settings, 0o666)
    definition = pathlib.Path(node.paths.etc + "/supervisor.d/inference-fleet-server-0.conf")
    definition.write_text(definition.read_text().replace("maxbytes=", "maxbytes=1"))
    link = host_python.link(node.paths)
    files.put_link(link, node.root + "/gone")
    with open(program, "a", encoding="utf-8") as stream:
        stream.write("# edited\n")
    found = differences(node, entries, secrets=SECRETS)
    shared = [
        ("shared file", "%s has mode 0666 instead of 0644" % settings),
        ("shared file", "%s leads to another Python" % link),
        ("shared file", "%s is damaged: %s was changed" % (node.paths.guard, program)),
    ]
    assert found["server-1"] == shared
    assert sorted(found["server-0"]) == [
        ("definition", "its service definition differs (%s)" % definition),
        ("file mode", "%s has mode 0644 instead of 0600" % node.paths.secret("server-0")),
        *shared,
    ]
    assert SECRET not in repr(found)

    check = node.servers(entries, secrets=SECRETS, check=True)
    assert check["changed"]
    applied = node.serving(entries, secrets=SECRETS)
    assert (applied["diff"], pids(applied)) == (check["diff"], before)
    assert differences(node, entries, secrets=SECRETS) == {"server-0": [], "server-1": []}
    assert not node.servers(entries, secrets=SECRETS)["changed"]
    node.servers(entries, state="stopped", only=["server-0"])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", entries[0]["port"]))
        taken.listen()
        found = differences(node, entries, probe=True)
    (stopped, *_others, (kind, text)), held = found["server-0"], "its port %d " % entries[0]["port"]
    assert (stopped[0], kind, found["server-1"]) == ("stopped", "port", [])
    assert held in text and "is held by process %d of " % os.getpid() in text


@pytest.mark.parametrize(("call", "name"), [("fsync", "ENOSPC"), ("rename", "EROFS")])
def test_a_file_that_cannot_be_written_leaves_all_as_it_was(node, monkeypatch, name, call):
    entry = node.entry("server-0")
    node.serving([entry])

    def files():
        return {path: path.read_bytes() for path in pathlib.Path(node.paths.etc).rglob("*") if path.is_file()}

    before = files()
    code = getattr(errno, name)
    real = getattr(os, call)

    def fail(*arguments, **named):
        folders = [os.readlink("/proc/self/fd/%d" % one) for one in arguments if isinstance(one, int)]
        about = repr((arguments, named, folders))
        if "/servers" in about and "/etc/" in about:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        result = node.module("engine_servers", [rehash(entry, environment={"OMP_NUM_THREADS": "3"})])
    assert (result["failed"], result["errno"]) == (True, name)
    assert "%s: %s. " % (node.paths.entry("server-0"), os.strerror(code)) in result["msg"]
    assert files() == before
    node.ready([entry])
    assert not node.servers([entry])["changed"]
