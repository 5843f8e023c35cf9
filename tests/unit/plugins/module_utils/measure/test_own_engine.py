# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that stop for a tool come back, however the tool ends and whoever waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import types

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import run
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.tools import benchmarks
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.tools.benchmarks import Point
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.supervisord import Supervisord
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.systemd import Systemd
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.points import tools
from ansible_collections.inference.fleet.tests.runs import wait_for
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.node_helpers import script

LATENCY = Point("vllm-latency", tools()["vllm-latency"], "m", "/m", ("http://127.0.0.1:1",), 1, 1, 1)
ENTRIES = {name: plan_entry(8000, name) for name in ("server-0", "server-1")}


class Manager:
    """A service manager that notes what it is asked."""

    def __init__(self, folder):
        self.folder, self.calls, self.up = folder, [], {"server-0", "server-1"}

    def stop(self, names):
        self.calls.append(("stop", *names))
        self.up -= set(names)

    def start(self, names):
        self.calls.append(("start", *names))
        self.up |= set(names)

    def statuses(self):
        return {name: types.SimpleNamespace(state="up" if name in self.up else "down") for name in ENTRIES}

    def start_argv(self, names):
        path = "%s/%s" % (self.folder, "-".join(names))
        return ["sh", "-c", "echo added; echo a warning >&2; touch " + path]


class Launcher:
    """Says what is left of a server."""

    left = ()

    def stop_leftovers(self, entry):
        return [{"id": 7, "what": "process 7: engine"}] if entry["name"] in self.left else []


@pytest.fixture
def servers(tmp_path, monkeypatch):
    launcher = Launcher()
    monkeypatch.setattr(run, "get_launcher", lambda entry, root: launcher)
    node = types.SimpleNamespace(manager=Manager(tmp_path), paths=NodePaths(str(tmp_path / "root")))
    found = run.StoppedServers(node, ENTRIES)
    found.launcher, found.back = launcher, tmp_path / "server-0-server-1"
    return found


def test_they_stop_and_only_those_that_are_down_start(servers):
    servers.stop()
    servers.node.manager.up.add("server-1")
    servers.start()
    assert servers.node.manager.calls == [("stop", "server-0", "server-1"), ("start", "server-0")]
    servers.start()
    assert len(servers.node.manager.calls) == 2


def test_one_that_does_not_stop_is_an_error_and_all_start_again(servers):
    servers.launcher.left = ("server-1",)
    with pytest.raises(FleetError) as caught:
        servers.stop()
    assert (caught.value.code, caught.value.values) == ("measure.server-stays", ("server-1", "process 7: engine"))
    assert servers.node.manager.calls[-1] == ("start", "server-0", "server-1")


@pytest.mark.parametrize("status", [0, 3])
def test_the_job_starts_them_when_the_tool_has_ended_however_it_did(servers, status):
    tool = ["sh", "-c", "echo its last words; exit %d" % status]
    done = subprocess.run(
        servers.wrapped(tool), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert (done.returncode, servers.back.exists(), done.stdout) == (status, True, "its last words\n")


def test_the_job_starts_them_when_it_is_ended(servers, tmp_path):
    tool = script(tmp_path / "tool", "touch %s/at-work\nexec sleep 60" % tmp_path)
    job = subprocess.Popen(servers.wrapped([tool]), start_new_session=True)
    wait_for((tmp_path / "at-work").exists, 60, "the tool")
    os.killpg(job.pid, signal.SIGTERM)
    job.wait(60)
    assert servers.back.exists()


def test_what_starts_them_with_each_service_manager(tmp_path):
    paths = NodePaths(str(tmp_path))
    assert Systemd(paths).start_argv(["server-0"]) == [
        "systemctl", "start", "--no-block", "--", "inference-fleet-server-0.service"
    ]  # fmt: skip
    assert Supervisord(paths, "/toolkit").start_argv(["server-0", "server-1"]) == [
        "/toolkit/bin/supervisorctl", "-c", paths.etc + "/supervisord.conf", "add", "inference-fleet-server-0",
        "inference-fleet-server-1",
    ]  # fmt: skip


def test_an_engine_takes_the_place_of_a_servers_process(tmp_path):
    python = script(tmp_path / "python", "true")
    entry = plan_entry(8000, command=[python, "-m", "x"], cpus="0-3", user="engine", environment={"A": "1"})
    argv, variables, _python = benchmarks.program(LATENCY, None, entry, "", str(tmp_path), "0.32.0")
    assert argv == [
        "runuser", "-u", "engine", "--", "taskset", "--cpu-list", "0-3", python, "-m", "vllm.entrypoints.cli.main",
        "bench", "latency",
    ]  # fmt: skip
    assert variables["A"] == "1" and variables["INFERENCE_FLEET_SERVER"] == "server-0"
    assert os.path.exists(tmp_path / "vllm-0.32.0+cpu.dist-info" / "METADATA")


def test_an_engine_takes_the_place_of_a_servers_container(monkeypatch):
    seen = []
    containers = benchmarks.containers
    monkeypatch.setattr(containers, "launch_command", lambda entry, _root: seen.append(entry) or entry["launch"])
    monkeypatch.setattr(containers, "client_environment", lambda *given: {"B": "2"})
    entry = plan_entry(
        8000,
        container={"engine": "docker"},
        command=["vllm", "serve", "/m"],
        launch=["docker", "run", "--name=inference-fleet-server-0", "image", "vllm", "serve", "/m"],
    )
    argv, variables, _python = benchmarks.program(LATENCY, None, entry, "", "/f")
    assert argv == ["docker", "run", "--name=inference-fleet-server-0", "image", "vllm", "bench", "latency"]
    assert (variables, seen[0]["command"]) == ({"B": "2"}, ["vllm", "bench", "latency"])
