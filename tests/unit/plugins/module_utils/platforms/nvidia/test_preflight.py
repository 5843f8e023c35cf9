# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What node_preflight says of GPUs, and what it leaves alone. Everything is read below a made root."""

from __future__ import annotations

import os

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
  - hostPath: /usr/lib/libcuda.so.%s
"""


@pytest.fixture
def node(tmp_path):
    made = NvidiaNode(tmp_path / "sysroot")
    made.program("dmesg", "#!/bin/sh\necho ready\n")
    made.program("systemctl", "#!/bin/sh\necho LoadState=loaded\necho ActiveState=active\n")
    for name in ("docker", "nvidia-ctk"):
        made.program(name, "#!/bin/sh\n")
    made.write("/etc/cdi/nvidia.yaml", CDI % "580")
    made.write("/usr/lib/libcuda.so.580")
    return made


def entries(accelerator="h100", count=8, devices=2, launcher="container", **hardware):
    servers = [{"role": "server", "count": "auto", "devices": devices, "port": 18000}]
    declared = plans.written(launcher=launcher, servers=servers)
    found = plans.entries_of(declared, {"accelerator": accelerator, "count": count, **hardware})
    return {entry["name"]: entry for entry in found}


def look(node, needs=None, planned=None, hardware=None, **context):
    """({check: [codes, or messages without a code]}, warnings) of the platform and of its hardware's shortfalls."""
    hardware = hardware or {"accelerator": "h100", "count": 8}
    context = Context(
        root="/nonexistent", system=System(node.root), entries=entries() if planned is None else planned,
        hardware=hardware, needs=needs or {}, **context,
    )  # fmt: skip
    context.found = NVIDIA.detect(context.system)
    short = NVIDIA.shortfalls(context.found, context.hardware, context.needs)
    context.fits = not short
    found = {"hardware": short, **dict(NVIDIA.preflight(context))}
    found = {check: [getattr(one, "code", one) for one in problems] for check, problems in found.items() if problems}
    return found, context.warnings


def one(node, **given):
    """The only problem, and its check."""
    found, _warnings = look(node, **given)
    ((check, (problem,)),) = found.items()
    return check, problem


def test_another_kind_of_gpu_is_named_unless_excluded(node):
    node.has("h100-8", change=lambda root: node.set(root, 0, "product_name", "NVIDIA H200"), csv=lambda text: "")
    assert look(node)[0]["hardware"] == ["nvidia.kinds-differ"]
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
    node.has("h100-8", change=lambda root: node.set(root, 4, "processes/process_info/pid", "4194304"))
    assert one(node) == ("holders", "platform.device-held")
    assert look(node, unchanged=("server-2",))[0] == {}  # it may be its own, of another namespace
    assert look(node, only=("server-1",))[0] == {}
    monkeypatch.setattr(processes, "marked_processes", lambda root: {"server-2": [4194304]})
    assert look(node)[0] == {}


# ---- NVLink


@pytest.mark.parametrize(("recorded", "state", "problems"), [
    ("a100-8-old-schema", "inactive", ["nvidia.fabric-manager-inactive"]), ("a100-8-old-schema", "active", []),
    ("h100-8", "failed", []),  # it reports that its fabric is complete
    ("gb200-4", "failed", ["nvidia.imex-failed"]), ("gb200-4", "inactive", []),
])  # fmt: skip
def test_services_of_nvlink(node, recorded, state, problems):
    node.write("/dev/nvidia-nvswitchctl", "")
    node.program("systemctl", "#!/bin/sh\necho ActiveState=%s\n" % state)
    accelerator, count = recorded.split("-")[0], int(recorded.split("-")[1])
    given = {"planned": entries(accelerator, count), "hardware": {"accelerator": accelerator, "count": count}}
    found, _warnings = look(node.has(recorded), installs=INSTALLS, **given)
    assert found == ({"fabric": problems} if problems else {})


# ---- containers


@pytest.mark.parametrize(("path", "code"), [
    ("/usr/bin/nvidia-ctk", "nvidia.toolkit-missing"),
    ("/etc/cdi/nvidia.yaml", "nvidia.cdi-outdated"),
    ("/usr/lib/libcuda.so.580", "nvidia.cdi-outdated"),  # another driver is installed
])  # fmt: skip
def test_what_containers_lack_and_the_role_brings(node, path, code):
    node.has("h100-8")
    os.unlink(node.root + path)
    assert one(node) == ("containers", code)
    assert look(node, installs=INSTALLS)[0] == {}
    assert look(node, planned=entries(launcher="process"))[0] == {}
    assert look(node, unchanged=tuple(entries()))[0] == {}


@pytest.mark.parametrize(("driver", "problem"), [("580", False), ("570", True)])
def test_the_specification_of_the_toolkit_s_own_service(node, driver, problem):
    os.unlink(node.root + "/etc/cdi/nvidia.yaml")
    node.write("/var/run/cdi/nvidia.yaml", CDI % driver)
    assert look(node.has("h100-8"))[0].get("containers", []) == ["nvidia.cdi-outdated"] * problem


@pytest.mark.parametrize(("kind", "version", "folders", "prepares", "problem"), [
    ("docker", "28.2.2", ["/etc/cdi"], False, False), ("docker", "20.10.24", [], True, True),
    ("docker", "26.1.0", [], True, False), ("docker", "26.1.0", [], False, True),
    ("podman", "4.0.3", [], True, False), ("podman", "4.0.3", [], False, True),
])  # fmt: skip
def test_engines_without_cdi(monkeypatch, kind, version, folders, prepares, problem):
    monkeypatch.setattr(platform.Engine, "cdi", lambda self: (version, folders))
    found = list(platform._engine_without_cdi(kind, prepares))
    assert [error.values for error in found] == [(kind, version)] * problem


def test_who_asks_for_gpus_by_a_flag_needs_the_toolkit_and_no_description(node):
    planned = entries()
    for entry in planned.values():
        entry["container"].update(devices=[], flags=["--gpus=all"])
    os.unlink(node.root + "/etc/cdi/nvidia.yaml")
    assert look(node.has("h100-8"), planned=planned)[0] == {}
    os.unlink(node.root + "/usr/bin/nvidia-ctk")
    assert one(node, planned=planned) == ("containers", "nvidia.toolkit-missing")
