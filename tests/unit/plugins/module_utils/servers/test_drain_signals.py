# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which process of a server gets the signals of a drain, and which PYTHONPATH brings its handlers into a container."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import apply
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import Observed
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.base import Status
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import containers
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry

CLIENT, INIT, ENGINE, WORKER = 10, 20, 30, 40
BOTH = {signal.SIGUSR1, signal.SIGUSR2}
# {pid: signals that it catches}; the client of a container engine catches all, a worker perhaps one
CAUGHT = {CLIENT: BOTH, INIT: set(), WORKER: {signal.SIGUSR1}, ENGINE: BOTH}


@pytest.mark.parametrize(("launcher", "pids", "expected"), [
    ("container", [CLIENT, INIT, WORKER, ENGINE], [(ENGINE, signal.SIGUSR1)]),
    ("container", [CLIENT, INIT, WORKER], []),
    ("process", [CLIENT], [(CLIENT, signal.SIGUSR1)]),
])  # fmt: skip
def test_the_engine_and_not_the_client_of_its_container_gets_the_signal(monkeypatch, launcher, pids, expected):
    sent = []
    monkeypatch.setattr(processes, "contained", lambda pid: pid != CLIENT)
    monkeypatch.setattr(processes, "catches", lambda pid, sign: sign in CAUGHT[pid])
    monkeypatch.setattr(os, "kill", lambda *given: sent.append(given))
    one = Observed("server-0", plan_entry(8000, launcher=launcher), service=Status("up", CLIENT), pids=pids)
    assert apply._signal(one, signal.SIGUSR1) is bool(expected)
    assert sent == expected


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root makes namespaces")
def test_a_process_of_another_pid_namespace_is_contained():
    program = "import sys; print(flush=True); sys.stdin.read()"
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as unshare:
        unshare.stdout.readline()
        inner = processes.with_children([unshare.pid]) - {unshare.pid}
        assert [processes.contained(pid) for pid in (os.getpid(), unshare.pid, *inner)] == [False, False, True]
        unshare.stdin.close()
    assert processes.contained(2**22 + 1) is False


@pytest.mark.parametrize(("ours", "image", "expected"), [
    (NodePaths("").engine_lib, {"PYTHONPATH": "/cann"}, NodePaths("").engine_lib + ":/cann"),
    (NodePaths("").engine_lib, {"PATH": "/bin"}, NodePaths("").engine_lib),
    ("/of/the/recipe", {"PYTHONPATH": "/cann"}, "/of/the/recipe"),
])  # fmt: skip
def test_an_image_keeps_its_pythonpath(monkeypatch, ours, image, expected):
    class Engine:
        def find_image(self, name, digest):
            return {"reference": "sha256:1", "environment": image}

    monkeypatch.setattr(containers, "engine_of_entry", lambda entry: Engine())
    entry = {"container": {"image": "i:1", "digest": None}, "command": ["serve"], "hash": "1",
             "launch": ["docker", "run", "--env=PYTHONPATH=" + ours, "i:1", "serve"]}  # fmt: skip
    assert "--env=PYTHONPATH=" + expected in containers.launch_command(entry, "")
