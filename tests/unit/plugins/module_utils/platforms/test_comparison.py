# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Found hardware compared with the declared and required hardware: one comparison for all platforms."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.base import Accelerators, Device
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.nvidia.platform import GpuDevice
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.registry import PLATFORMS

H200 = "NVIDIA H200"


def devices(count, memory=98304, cores=1, gone=(), of=Device, **more):
    return [of(id=number, memory_mib=memory, cores=cores, numa=None, cpus="", **more) for number in range(count)
            if number not in gone]  # fmt: skip


def neuron(**changes):
    found = {"devices": devices(4, 147456, 4), "driver": "2.30.2.0", "lnc": 2, "runtime": "2.34.1"}
    return Accelerators("trainium3", "AWS", "Trainium3", "v4", **{**found, **changes})


def nvidia(gpus=None, **changes):
    gpus = gpus or devices(8, 143771, of=GpuDevice, product=H200, compute_capability="9.0")
    return Accelerators("h200", "NVIDIA", H200, "9.0", **{"driver": "580.105.08", "devices": gpus, **changes})


def ascend(count=16, **changes):
    return Accelerators("ascend-a3", "Huawei", "Ascend910", "Atlas A3",
                        **{"driver": "25.0.rc1.1", "devices": devices(count, 65536), **changes})  # fmt: skip


def cpu(**changes):
    return Accelerators("cpu", "AMD", "EPYC", "avx2", None, devices(2, 65536, 8), **changes)


TRN = {"count": 4, "cores": 8, "lnc": 2, "memory_gib": 144}
# platform, found, fleet_hardware, needs, a part of each message
CASES = [
    ("neuron", neuron(), {}, {}, []),
    ("neuron", neuron(), TRN, {"lnc": 2, "device_memory_gib": 144, "driver": "2.30"}, []),
    ("neuron", neuron(), {**TRN, "memory_gib": 145}, {}, []),  # 1% is the same
    ("neuron", neuron(), {**TRN, "count": 16}, {},
     ["without 4-15. Repair the node, or set fleet_hardware.count to 4."]),
    ("neuron", neuron(devices=devices(4, 147456, 4, gone=[1])), TRN, {},
     ["without 1. Repair the node, or list 1 in fleet_hardware.exclude."]),
    ("neuron", neuron(devices=devices(4, 147456, 4, gone=[1])), {**TRN, "exclude": [1]}, {}, []),
    ("neuron", neuron(), {"lnc": 1}, {}, ["LNC 1 is planned"]),
    ("neuron", neuron(), {}, {"lnc": 1}, ["LNC 1 is planned"]),
    ("neuron", neuron(lnc=None), TRN, {"lnc": 1}, []),
    ("neuron", neuron(), {**TRN, "cores": 16}, {}, ["count 4 × cores 16 / lnc 2), this node has 16"]),
    ("neuron", neuron(), {**TRN, "memory_gib": 160}, {"device_memory_gib": 200}, ["fleet_hardware.memory_gib"]),
    ("neuron", neuron(), {}, {"device_memory_gib": 200}, ["needs.device_memory_gib"]),
    ("neuron", neuron(), {}, {"driver": "2.31"}, ["needs.driver"]),
    ("neuron", neuron(driver=None), {}, {"driver": "2.31"}, ["this node has none"]),
    ("neuron", neuron(runtime="2.20"), {}, {}, ["runtime 2.33 or later"]),
    ("neuron", neuron(), {}, {"compute_capability": ["9.0"]}, ["needs.compute_capability"]),
    ("nvidia", nvidia(), {"count": 8}, {"driver": "575.51.03", "compute_capability": ["9.0", "10.0"]}, []),
    ("nvidia", nvidia(devices(7, 143771, of=GpuDevice, product=H200), warnings=["Seen."]), {"count": 8}, {},
     ["without 7. Seen. GPUs are numbered"]),
    ("nvidia", nvidia(devices(8, 81559, of=GpuDevice, product=H200)), {"memory_gib": 79.6}, {}, []),
    ("nvidia", nvidia(devices(8, 81559, of=GpuDevice, product="NVIDIA H20", compute_capability="9.0")), {}, {},
     ["fleet_hardware.memory_gib", "NVIDIA H20"]),
    ("nvidia", nvidia(), {}, {"driver": "610.43"}, ["610.43 or later"]),
    ("nvidia", nvidia(driver=None), {}, {"driver": "610.43"}, []),
    ("nvidia", nvidia(), {}, {"compute_capability": ["10.0"]}, ["needs.compute_capability"]),
    ("nvidia", nvidia(), {}, {"lnc": 2}, ["needs.lnc"]),
    ("ascend", ascend(), {"count": 16}, {"driver": "25.0"}, []),
    ("ascend", ascend(), {"count": 8}, {}, ["Set fleet_hardware.count to 16"]),
    ("ascend", ascend(), {"count": 17}, {}, ["without 16."]),
    ("ascend", ascend(devices=devices(16, 32768)), {"count": 16}, {}, ["fleet_hardware.memory_gib"]),
    ("ascend", ascend(), {}, {"driver": "25.0.0"}, ["needs.driver"]),
    ("ascend", ascend(), {}, {"lnc": 2, "compute_capability": ["9.0"]}, ["needs.lnc", "needs.compute_capability"]),
    ("cpu", cpu(), {"count": 16, "cores": 1, "memory_gib": 8}, {"device_memory_gib": 8}, []),
    ("cpu", cpu(), {"count": 17, "cores": 1, "exclude": [4]}, {}, []),
    ("cpu", cpu(warnings=["Cut."]), {"count": 17, "memory_gib": 8}, {},
     ["count 17 × cores 1), this node has 16 (EPYC). Cut.", "fleet_hardware.memory_gib"]),
    ("cpu", cpu(), {"count": 4}, {"device_memory_gib": 64}, ["needs.device_memory_gib"]),
    ("cpu", cpu(), {}, {"driver": "580", "lnc": 2}, ["needs.lnc", "needs.driver"]),
]  # fmt: skip


@pytest.mark.parametrize(("platform", "found", "hardware", "needs", "words"), CASES)
def test_every_shortfall_of_every_platform(platform, found, hardware, needs, words):
    messages = PLATFORMS[platform].shortfalls(found, hardware, needs)
    assert len(messages) == len(words), messages
    assert all(part in message for part, message in zip(words, messages)), messages


def test_a_driver_that_the_role_installs_is_no_shortfall():
    needs = {"driver": "2.31"}
    installs = ("aws-neuronx-dkms", "aws-neuronx-runtime-lib")
    assert PLATFORMS["neuron"].shortfalls(neuron(runtime="2.20"), {}, needs, installs) == []


@pytest.mark.parametrize(("platform", "found", "hardware", "needs", "words"), [
    ("neuron", neuron(), TRN, {"lnc": 2}, []),
    ("neuron", neuron(lnc=None), TRN, {}, ["LNC"]),
    ("neuron", neuron(devices=devices(4, None)), {}, {"device_memory_gib": 9},
     ["the memory of each Neuron device"]),
    ("neuron", neuron(driver=None), {}, {"driver": "2"}, []),  # a shortfall
    ("nvidia", nvidia(devices(1, None, of=GpuDevice), driver=None), {},
     {"driver": "580", "compute_capability": ["9.0"]}, ["memory", "the driver", "compute capability"]),
    ("ascend", ascend(driver=None), {}, {"driver": "25"}, ["the driver"]),
])  # fmt: skip
def test_hardware_that_cannot_be_compared_is_named(platform, found, hardware, needs, words):
    messages = PLATFORMS[platform].unchecked(found, hardware, needs)
    assert len(messages) == len(words), messages
    assert all(part in message for part, message in zip(words, messages)), messages
