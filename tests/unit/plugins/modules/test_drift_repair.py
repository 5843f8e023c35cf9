# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody did to a running server: status says it, engine_servers repairs it, and only that server."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import server_files
from ansible_collections.inference.fleet.tests.unit.engines.small_node import rehash, wait_until

INFO = "engine_servers_info"
SECRET = "hf_a-secret-value"
SECRETS = {"fleet_hf_token": SECRET}


def differences(node, entries, **params):
    found = node.module(INFO, entries, **params)["servers"]
    return {row["name"]: [(one["kind"], one["text"]) for one in row["differences"]] for row in found}


def two(node):
    """Two servers that run, the first with a secret; their pids."""
    secret = {"secrets": {"HF_TOKEN": "fleet_hf_token"}, "secret_versions": {"HF_TOKEN": "1"}}
    entries = [node.entry("server-0", **secret), node.entry("server-1")]
    node.servers(entries, secrets=SECRETS)
    return entries, settled(node, entries)


def settled(node, entries):
    """Pids, once the engines are what they are to be."""
    node.ready(entries)
    return {row["name"]: row["pid"] for row in node.servers(entries, secrets=SECRETS, check=True)["servers"]}


def open_secrets(node, pid):
    os.chmod(node.paths.secret("server-0"), 0o644)
    return "file mode", "%s has mode 0644 instead of 0600" % node.paths.secret("server-0")


def edited_program(node, pid):
    path = node.paths.etc + "/supervisor.d/inference-fleet-server-0.conf"
    with open(path, "a", encoding="utf-8") as stream:
        stream.write("environment=A=1\n")
    return "definition", "its service definition differs (%s)" % path


def edited_guard(node, pid):
    path = os.path.realpath(node.paths.guard) + "/fleet_node/cli.py"
    with open(path, "a", encoding="utf-8") as stream:
        stream.write("# edited\n")
    return "shared file", "%s is damaged: %s has another size" % (node.paths.guard, path)


def gone_folder(node, pid):
    path = node.paths.directories("server-0")["work"]
    shutil.rmtree(path)
    return "directory", "its directory %s is missing" % path


FAULTS = (open_secrets, edited_program, edited_guard, gone_folder)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported_and_repaired_without_a_restart(node, fault):
    entries, before = two(node)
    assert differences(node, entries, secrets=SECRETS) == {"server-0": [], "server-1": []}
    reported = fault(node, before["server-0"])
    found = differences(node, entries, secrets=SECRETS)
    assert reported in found["server-0"]
    assert SECRET not in repr(found)
    assert found["server-1"] == ([reported] if fault is edited_guard else [])

    check = node.servers(entries, secrets=SECRETS, check=True)
    assert check["changed"]
    applied = node.servers(entries, secrets=SECRETS)
    assert applied["diff"] == check["diff"]
    assert settled(node, entries) == before
    assert differences(node, entries, secrets=SECRETS) == {"server-0": [], "server-1": []}
    for check_mode in (True, False):
        assert not node.servers(entries, secrets=SECRETS, check=check_mode)["changed"]


def test_secrets_that_changed_on_the_node_are_named_without_their_value(node):
    entries, _before = two(node)
    assert differences(node, entries, secrets={"fleet_hf_token": "hf_0ther-value"})["server-0"] == [
        ("secrets", "its file of secrets has another value of HF_TOKEN"),
    ]
    assert differences(node, entries)["server-0"] == []  # by names alone, as without a vault
    os.unlink(node.paths.secret("server-0"))
    assert differences(node, entries)["server-0"] == [("secrets", "its file of secrets is missing")]


def test_a_stopped_server_and_one_whose_port_somebody_took(node):
    entries, _before = two(node)
    node.servers(entries, state="stopped", only=["server-0"])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", entries[0]["port"]))
        taken.listen()
        found = differences(node, entries, probe=True)
    me = processes.user_name(os.getuid())
    held = "its port %d on 127.0.0.1 is held by process %d of %s (" % (entries[0]["port"], os.getpid(), me)
    assert found["server-0"][0] == ("stopped", "it is stopped")
    assert found["server-0"][1][0] == "port" and found["server-0"][1][1].startswith(held)
    assert found["server-1"] == []


def test_a_port_that_is_taken_while_a_server_restarts_over_and_over(node):
    entry = node.entry("server-0")
    node.servers([entry])
    node.ready([entry])
    pid = node.module(INFO, [entry])["servers"][0]["pid"]
    taker = ("import socket, sys, time\ns = socket.socket()\ns.setsockopt(1, 2, 1)\n"
             "while True:\n try: s.bind(('127.0.0.1', %d)); break\n except OSError: time.sleep(0.001)\n"
             "s.listen()\nprint('held', flush=True)\nsys.stdin.read()\n" % entry["port"])  # fmt: skip
    stranger = subprocess.Popen([sys.executable, "-c", taker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        os.kill(pid, 9)
        assert stranger.stdout.readline() == "held\n"

        def found():
            rows = node.module(INFO, [entry], probe=True)["servers"]
            return [one["text"] for one in rows[0]["differences"] if one["kind"] == "port"]

        words = wait_until(found, what="the holder")[0]
        start = "its port %d on 127.0.0.1 is held by process %d of " % (entry["port"], stranger.pid)
        assert words.startswith(start)
        assert start in node.module("engine_ready", [entry])["msg"]
    finally:
        stranger.communicate()


def test_a_program_that_is_gone_and_an_interpreter_that_is_broken(node, tmp_path):
    program = tmp_path / "engine"
    program.symlink_to(sys.executable)
    entry = node.entry("server-0")
    entry = rehash(entry, command=[str(program), *entry["command"][1:]])
    node.servers([entry])
    node.ready([entry])
    program.unlink()
    path = node.paths.etc + "/supervisor.d/inference-fleet-server-0.conf"
    text = pathlib.Path(path).read_text(encoding="utf-8")
    pathlib.Path(path).write_text(text.replace("command=", "command=/nowhere/", 1), encoding="utf-8")
    found = [one["kind"] for one in node.module(INFO, [entry])["servers"][0]["differences"]]
    assert {"program", "definition"} <= set(found)


# ---- a file system that does not take what is written


ERRORS = ["ENOSPC", "EROFS"]


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("call", ["mkstemp", "fsync", "link", "rename"])
def test_a_file_that_cannot_be_written_leaves_all_as_it_was(node, monkeypatch, name, call):
    entry = node.entry("server-0")
    node.servers([entry])
    node.ready([entry])
    files = {path: path.read_bytes() for path in pathlib.Path(node.paths.etc).rglob("*") if path.is_file()}
    code = getattr(errno, name)
    module = server_files.tempfile if call == "mkstemp" else server_files.os
    real = getattr(module, call)

    def fail(*arguments, **named):
        about = repr((arguments, named)) + repr([os.readlink("/proc/self/fd/%d" % one) for one in arguments
                                                 if isinstance(one, int)])  # fmt: skip
        if "/servers" in about and "/etc/" in about:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(module, call, fail)
        result = node.module("engine_servers", [rehash(entry, environment={"OMP_NUM_THREADS": "3"})])
    assert result["failed"]
    assert result["msg"].startswith(
        "The servers cannot be brought to the plan: %s: %s. " % (node.paths.entry("server-0"), os.strerror(code))
    )
    assert result["errno"] == name
    assert "Run again then" in result["msg"]
    assert {path: path.read_bytes() for path in pathlib.Path(node.paths.etc).rglob("*") if path.is_file()} == files
    node.ready([entry])
    assert not node.servers([entry])["changed"]


def test_a_file_system_without_links_does_as_well(node, monkeypatch):
    entry = node.entry("server-0")
    node.servers([entry])

    def refuse(*unused, **named):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(server_files.os, "link", refuse)
    changed = rehash(entry, environment={"OMP_NUM_THREADS": "3"})
    assert node.servers([changed])["changed"]
    node.ready([changed])
    assert sorted(os.listdir(node.paths.servers)) == ["server-0.json"]
