# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds the devices of stopped servers: what is left of ours is ended, what is others' is named."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import device_holders
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.base import Accelerators, Device
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.host import System
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron.platform import Platform
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.registry import PLATFORMS
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import state as guard_state
from ansible_collections.inference.fleet.tests.unit.engines import plan_entries


@pytest.fixture
def node(monkeypatch, tmp_path):
    """Two devices of four cores; started(device, **markers) starts a process that holds one until it ends."""
    started = []

    class Node:
        root = str(tmp_path)

        def started(self, device, ignores_term=False, **markers):
            code = "import signal, sys, time; %sprint(1, flush=True); time.sleep(900)" % (
                "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if ignores_term else ""
            )
            process = subprocess.Popen([sys.executable, "-c", code], env=markers, stdout=subprocess.PIPE)
            process.stdout.readline()
            started.append((device, process))
            return process

        def ours(self, device, server="server-0", **kwargs):
            return self.started(
                device, **{processes.MARKER_SERVER: server, processes.MARKER_ROOT: self.root, **kwargs}
            )  # fmt: skip

    class Detected(Platform):
        def detect(self, system):
            devices = [Device(id=number, memory_mib=None, cores=4, numa=None, cpus="",
                              core_ids=list(range(4 * number, 4 * number + 4))) for number in (0, 1)]  # fmt: skip
            for number, process in started:
                if process.poll() is None:
                    devices[number].holders.append({"pid": process.pid, "command": "x"})
            return Accelerators("trainium3", "AWS", "", "", None, devices)

    monkeypatch.setitem(PLATFORMS, "neuron", Detected())
    yield Node()
    for _device, process in started:
        process.kill()
        process.wait()


def entry(name="server-0", devices=(0, 1, 2, 3), **changes):
    return plan_entries.plan_entry(8000, name, **{"platform": "neuron", "devices": list(devices), **changes})


def test_what_is_left_of_ours_is_ended(node):
    stubborn, gentle = node.ours(0, ignores_term=True), node.ours(0)
    assert device_holders.release([entry()], node.root) == ([], None)
    assert stubborn.poll() == -9 and gentle.poll() == -15


def test_what_is_others_is_named_and_left(node):
    stranger, other_root = (
        node.started(0),
        node.started(0, **{processes.MARKER_SERVER: "server-0", processes.MARKER_ROOT: "/x"}),
    )
    node.started(1)
    found, _why = device_holders.release([entry()], node.root)
    assert [(one["pid"], one["devices"]) for one in found] == [(stranger.pid, [0]), (other_root.pid, [0])]
    assert stranger.poll() is None
    user = guard_state.user_of_process().pw_name
    words = device_holders.describe(dict(found[0], command="python x"))
    assert words == "process %d of %s (python x) on device 0" % (stranger.pid, user)


def test_a_running_server_of_ours_beside_it_is_left_alone(node):
    running = node.ours(0, "server-1")
    assert device_holders.release([entry()], node.root) == ([], None)
    assert running.poll() is None


def test_the_unit_tells_whose_a_process_is(monkeypatch, tmp_path):
    assert device_holders.UNIT.search("/system.slice/inference-fleet-server-0.service/").group(1) == "server-0"
    assert device_holders.UNIT.search("0::/system.slice/ssh.service/") is None
    assert device_holders.server_of(os.getpid(), str(tmp_path)) is None


def test_whoever_has_other_cores_of_the_device_holds_nothing_of_it(node):
    node.started(0, NEURON_RT_VISIBLE_CORES="2-3")
    overlapping = node.started(0, NEURON_RT_VISIBLE_CORES="1-2")
    found, _why = device_holders.release([entry(devices=[0, 1])], node.root)
    assert [one["pid"] for one in found] == [overlapping.pid]


def test_devices_that_cannot_be_asked_are_no_error(node, tmp_path, monkeypatch):
    """Before and after what is left of ours was ended: a node is cleaned up where its driver is broken as well."""
    monkeypatch.setitem(PLATFORMS, "neuron", Platform())
    held, why = device_holders.release([entry()], node.root, System(str(tmp_path)))
    assert held is None
    assert "neuron-ls" in why
