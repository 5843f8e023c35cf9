# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What node_preflight says of GPUs, and what it leaves alone. Everything is read below a made root."""

from __future__ import annotations

import os
import subprocess
from xml.etree import ElementTree

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.base import Context
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.host import System
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.nvidia import platform
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.registry import PLATFORMS
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.nvidia_node import NvidiaNode

NVIDIA = PLATFORMS["nvidia"]
INSTALLS = {"nvidia-container-toolkit": {"version": "1.20.0"}}
CDI = """cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
containerEdits:
  mounts:
  - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.%s
"""
HELD = "<process_info><pid>%d</pid><type>C</type><process_name>python3</process_name></process_info>"


@pytest.fixture
def node(tmp_path):
    made = NvidiaNode(tmp_path / "sysroot")
    made.program("dmesg", "#!/bin/sh\necho ready\n")
    made.program("systemctl", "#!/bin/sh\necho LoadState=loaded\necho ActiveState=active\n")
    for name in ("docker", "nvidia-ctk"):
        made.program(name, "#!/bin/sh\n")
    made.write("/etc/cdi/nvidia.yaml", CDI % "580.105.08")
    return made


def entries(accelerator="h100", count=8, devices=2, launcher="container", **hardware):
    servers = [{"role": "server", "count": "auto", "devices": devices, "port": 18000}]
    declared = plans.written(launcher=launcher, servers=servers)
    found = plans.entries_of(declared, {"accelerator": accelerator, "count": count, **hardware})
    return {entry["name"]: entry for entry in found}


def look(node, needs=None, planned=None, hardware=None, **context):
    """({check: [messages]}, warnings) of the platform, hardware's shortfalls among them."""
    hardware = hardware or {"accelerator": "h100", "count": 8}
    context = Context(
        root="/nonexistent", system=System(node.root), entries=entries() if planned is None else planned,
        hardware=hardware, needs=needs or {}, **context,
    )  # fmt: skip
    context.found = NVIDIA.detect(context.system)
    short = NVIDIA.shortfalls(context.found, context.hardware, context.needs)
    context.fits = not short
    found = {"hardware": short, **dict(NVIDIA.preflight(context))}
    return {check: messages for check, messages in found.items() if messages}, context.warnings


def one(node, **given):
    """The only message, and its check."""
    found, _warnings = look(node, **given)
    ((check, (message,)),) = found.items()
    return check, message


@pytest.mark.parametrize("launcher", ["container", "process"])
def test_nothing_is_wrong(node, launcher):
    assert look(node.has("h100-8"), planned=entries(launcher=launcher)) == ({}, [])


def test_another_kind_of_gpu_is_named_unless_excluded(node):
    node.has("h100-8", change=lambda root: node.set(root, 0, "product_name", "NVIDIA H200"), csv=lambda text: "")
    assert "has NVIDIA H200 in addition to NVIDIA H100" in look(node)[0]["hardware"][0]
    without = {"accelerator": "h100", "count": 8, "exclude": [0]}
    assert look(node, hardware=without, planned=entries(exclude=[0]))[0] == {}


def test_a_sick_gpu_concerns_those_who_get_it(node):
    node.has("h100-8", change=lambda root: node.set(root, 6, "remapped_rows/remapped_row_pending", "Yes"))
    assert one(node)[0] == "gpus"
    for given in ({"only": ("server-0",)}, {"unchanged": ("server-3",)}):
        found, warnings = look(node, **given)
        assert found == {}
        assert [text[:21] for text in warnings] == ["GPU 6 (0000:b9:00.0) "]
    planned = entries(exclude=[6])
    assert look(node, planned=planned, hardware={"accelerator": "h100", "count": 8, "exclude": [6]}) == ({}, [])


# ---- who has them


def test_a_process_of_somebody_else_holds_one(node, monkeypatch):
    other = subprocess.Popen(["sleep", "60"])
    try:
        node.has("h100-8", change=lambda root: root.findall("gpu")[4].find("processes").append(
            ElementTree.fromstring(HELD % other.pid)))  # fmt: skip
        check, message = one(node)
        assert check == "holders"
        assert message.startswith("pid %d (sleep 60) holds GPU 4, assigned to server-2." % other.pid)
        assert look(node, unchanged=("server-2",))[0] == {}  # it may be its own, of another namespace
        assert look(node, only=("server-1",))[0] == {}
        monkeypatch.setattr(processes, "marked_processes", lambda root: {"server-2": [other.pid]})
        assert look(node)[0] == {}
    finally:
        other.kill()
        other.wait()


# ---- NVLink


def service(node, state):
    node.program("systemctl", "#!/bin/sh\necho ActiveState=%s\n" % state)


def test_fabric_manager_if_nvidia_smi_reports_no_state(node):
    node.write("/dev/nvidia-nvswitchctl", "")
    service(node, "inactive")
    given = {"planned": entries("a100"), "hardware": {"accelerator": "a100", "count": 8}, "installs": INSTALLS}
    check, message = one(node.has("a100-8-old-schema"), **given)
    assert check == "fabric"
    assert "nvidia-fabricmanager is inactive" in message and "535.183.01" in message
    service(node, "active")
    assert look(node, **given)[0] == {}
    service(node, "failed")
    assert look(node.has("h100-8"))[0] == {}  # it reports that its fabric is complete


@pytest.mark.parametrize(("state", "problem"), [("failed", True), ("inactive", False)])
def test_imex(node, state, problem):
    service(node, state)
    node.write("/etc/cdi/nvidia.yaml", CDI % "580.173.02")
    hardware = {"accelerator": "gb200", "count": 4}
    found, _warnings = look(node.has("gb200-4"), planned=entries("gb200", 4), hardware=hardware)
    assert ["nvidia-imex" in text for text in found.get("fabric", [])] == [True] * problem


# ---- containers


@pytest.mark.parametrize(("path", "words"), [
    ("/usr/bin/nvidia-ctk", "This node has no NVIDIA Container Toolkit (nvidia-ctk)"),
    ("/etc/cdi/nvidia.yaml", "No file in /etc/cdi or /var/run/cdi describes the GPUs (nvidia.com/gpu)."),
])  # fmt: skip
def test_what_containers_lack_and_the_role_brings(node, path, words):
    node.has("h100-8")
    os.unlink(node.root + path)
    check, message = one(node)
    assert (check, message[: len(words)]) == ("containers", words)
    assert look(node, installs=INSTALLS)[0] == {}
    assert look(node, planned=entries(launcher="process"))[0] == {}
    assert look(node, unchanged=tuple(entries()))[0] == {}


@pytest.mark.parametrize("folder", ["/etc/cdi", "/var/run/cdi"])
def test_a_description_for_another_driver(node, folder):
    os.unlink(node.root + "/etc/cdi/nvidia.yaml")
    node.write(folder + "/nvidia.yaml", CDI % "570.148.08")
    check, message = one(node.has("h100-8"))
    assert check == "containers"
    assert message.startswith(
        "%s/nvidia.yaml describes the GPUs for the driver 570.148.08, and 580.105.08 is loaded: " % folder
    )
    assert look(node, installs=INSTALLS)[0] == {}


@pytest.mark.parametrize(("kind", "version", "folders", "prepares", "problem"), [
    ("docker", "28.2.2", ["/etc/cdi"], False, False), ("docker", "20.10.24", [], True, True),
    ("docker", "26.1.0", [], True, False), ("docker", "26.1.0", [], False, True),
    ("podman", "4.0.3", [], True, False), ("podman", "4.0.3", [], False, True),
])  # fmt: skip
def test_engines_without_cdi(monkeypatch, kind, version, folders, prepares, problem):
    monkeypatch.setattr(platform.Engine, "cdi", lambda self: (version, folders))
    messages = list(platform._engine_without_cdi(kind, prepares))
    assert [version in text for text in messages] == [True] * problem


def test_who_asks_for_gpus_by_a_flag_needs_the_toolkit_and_no_description(node):
    planned = entries()
    for entry in planned.values():
        entry["container"].update(devices=[], flags=["--gpus=all"])
    os.unlink(node.root + "/etc/cdi/nvidia.yaml")
    assert look(node.has("h100-8"), planned=planned)[0] == {}
    os.unlink(node.root + "/usr/bin/nvidia-ctk")
    assert "no NVIDIA Container Toolkit" in one(node, planned=planned)[1]
