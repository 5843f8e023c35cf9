# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Detection and preflight of nodes with AMD Instinct GPUs, by recorded output of amd-smi."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import amd
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.base import Context
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.host import System
from ansible_collections.inference.fleet.tests.unit.detected_node import DetectedNode

FIXTURES = pathlib.Path(__file__).resolve().parents[3] / "fixtures/amd"
HIP = [3, 2, 0, 1, 7, 6, 4, 5]  # of GPU 0 to 7 of amd-smi


class Node(DetectedNode):
    vendor = "amd"

    def has(self, node="mi300x-8", path="/usr/bin/", change=lambda text: text, **answers):
        recorded = {file.stem: file.read_text() for file in (FIXTURES / node).glob("[slp]*.json")}
        for name, text in {**recorded, "static": change(recorded["static"]), **answers}.items():
            self.write("/answers/%s" % name, text)
        self.write(path + "amd-smi", '#!/bin/sh\ncat "%s/answers/$1"\n' % self.root, 0o755)
        self.write("/dev/kfd")
        for number, bus in enumerate(re.findall(r'"bdf": "(\S+)"', recorded["list"])):
            for key, value in (
                ("vendor", "0x1002"), ("class", "0x120000"), ("numa_node", number // 4), ("local_cpulist", number),
            ):  # fmt: skip
                self.write("/sys/bus/pci/devices/%s/%s" % (bus, key), "%s\n" % value)
        return self


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path / "sysroot")


def test_a_server_of_eight(node):
    """Numbers are HIP's, which are not amd-smi's."""
    found = node.has().detect("auto")
    assert (found.accelerator, found.vendor, found.model) == ("mi300x", "AMD", "AMD Instinct MI300X")
    assert (found.generation, found.driver, found.warnings) == ("gfx942", "6.19.14", [])
    assert [(one.id, one.memory_mib, one.health) for one in found.devices] == [(n, 196592, "ok") for n in range(8)]
    assert [found.devices[number].numa for number in HIP] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [found.devices[number].cpus for number in HIP] == ["0", "1", "2", "3", "4", "5", "6", "7"]
    assert (found.devices[3].address, found.devices[0].address) == ("0000:05:00.0", "0000:46:00.0")
    # the process opens GPU 3 of amd-smi, HIP's 1, too, and has no memory there
    assert {one.id: one.holders for one in found.devices if one.holders} == {
        0: [{"pid": 632268, "command": "python3.12"}]
    }


def test_virtual_functions_without_the_numbers_of_hip(node):
    """GPUs are numbered in the order of the driver's topology, as HIP numbers them. ROCm is not on the PATH."""
    found = node.has("mi325x-2", "/opt/rocm/bin/", process="[]").detect()
    assert (found.accelerator, found.warnings) == ("mi325x", [])
    assert [(one.id, one.address) for one in found.devices] == [(0, "0000:8b:00.0"), (1, "0000:83:00.0")]
    assert [round(one.memory_mib / 1024, 2) for one in found.devices] == [255.98, 255.98]


def test_a_partitioned_gpu_is_a_fault(node):
    found = node.has(change=lambda text: text.replace('"SPX"', '"CPX"', 1)).detect()
    assert [one.id for one in found.devices if one.health != "ok"] == [HIP[0]]
    entry = {"devices": [3]}
    context = Context("", System(node.root), {"server-3": entry}, found=found, fits=True)
    (checked,) = [messages for name, messages in amd.Platform().preflight(context) if name == "gpus"]
    assert "GPU 3 (0000:05:00.0) is partitioned (CPX)" in checked[0]


def test_gpus_of_no_known_kind_and_gpus_without_an_answer(node):
    found = node.has(change=lambda text: text.replace("0x74a1", "0x740f")).detect()
    assert (found.accelerator, len(found.warnings)) == ("unknown", 1)
    data = json.loads((FIXTURES / "mi300x-8/static.json").read_text())
    del data["gpu_data"][7]
    found = node.has(change=lambda text: json.dumps(data)).detect()
    assert "0000:e5:00.0" in found.warnings[0]
    (missing,) = amd.Platform().shortfalls(found, {"accelerator": "mi300x", "count": 8}, {})
    assert (missing.code, missing.values[2:5]) == ("platform.devices-missing", (7, "0-4,6-7", "5"))


@pytest.mark.parametrize(("answer", "kfd", "code"), [
    ("ERROR:root:Unable to get devices, driver not initialized\n", False, "amd.driver-not-loaded"),
    ("[{broken", True, "amd.no-answer"),
    ('{"gpu_data": []}', True, "amd.no-answer"),
])  # fmt: skip
def test_each_failure_has_an_error(node, answer, kfd, code):
    node.has(static=answer, list=answer, process=answer)
    if not kfd:
        (node.path / "dev/kfd").unlink()
    error = node.refused()
    assert error.code == code and error.values[0] == "/dev/kfd"


def test_a_driver_that_is_not_loaded(node):
    found = node.has().detect()
    (node.path / "dev/kfd").unlink()
    (problem,) = dict(amd.Platform().preflight(Context("", System(node.root), {}, found=found)))["driver"]
    assert problem.code == "amd.driver-not-loaded"
    assert dict(amd.Platform().preflight(Context("", System(node.root), {}))) == {"driver": []}
