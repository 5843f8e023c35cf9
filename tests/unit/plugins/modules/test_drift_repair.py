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

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import server_files
from ansible_collections.inference.fleet.tests.unit.engines.small_node import rehash

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


def test_faults_are_reported_and_repaired_without_a_restart(node):
    entries, before = two(node)
    assert differences(node, entries, secrets=SECRETS) == {"server-0": [], "server-1": []}
    folder = node.paths.directories("server-0")["work"]
    program = os.path.realpath(node.paths.guard) + "/fleet_node/cli.py"
    os.chmod(node.paths.secret("server-0"), 0o644)
    shutil.rmtree(folder)
    with open(program, "a", encoding="utf-8") as stream:
        stream.write("# edited\n")
    found = differences(node, entries, secrets=SECRETS)
    shared = ("shared file", "%s is damaged: %s has another size" % (node.paths.guard, program))
    assert found["server-1"] == [shared]
    assert sorted(found["server-0"]) == [
        ("directory", "its directory %s is missing" % folder),
        ("file mode", "%s has mode 0644 instead of 0600" % node.paths.secret("server-0")),
        shared,
    ]
    assert SECRET not in repr(found)

    check = node.servers(entries, secrets=SECRETS, check=True)
    assert check["changed"]
    applied = node.servers(entries, secrets=SECRETS)
    assert applied["diff"] == check["diff"]
    assert settled(node, entries) == before
    assert differences(node, entries, secrets=SECRETS) == {"server-0": [], "server-1": []}
    for check_mode in (True, False):
        assert not node.servers(entries, secrets=SECRETS, check=check_mode)["changed"]


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
    assert found["server-0"][-1][0] == "port" and found["server-0"][-1][1].startswith(held)
    assert found["server-1"] == []


# ---- a file system that does not take what is written


@pytest.mark.parametrize(("call", "name"), [("mkstemp", "EROFS"), ("rename", "ENOSPC")])
def test_a_file_that_cannot_be_written_leaves_all_as_it_was(node, monkeypatch, name, call):
    entry = node.entry("server-0")
    node.serving([entry])
    files = {path: path.read_bytes() for path in pathlib.Path(node.paths.etc).rglob("*") if path.is_file()}
    code = getattr(errno, name)
    module = server_files.files.tempfile if call == "mkstemp" else server_files.os
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
        "The servers cannot be changed as planned: %s: %s. " % (node.paths.entry("server-0"), os.strerror(code))
    )
    assert result["errno"] == name
    assert "Run again then" in result["msg"]
    assert {path: path.read_bytes() for path in pathlib.Path(node.paths.etc).rglob("*") if path.is_file()} == files
    node.ready([entry])
    assert not node.servers([entry])["changed"]
