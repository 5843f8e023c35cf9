# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Platforms that are found; nodes without accelerators, and with some of no platform; hardware compared with a plan."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import amd, other_hardware, registry
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.ascend import NpuDevice
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.base import Accelerators, Device
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.cpu import share
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.host import System
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.nvidia.platform import GpuDevice
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.registry import PLATFORMS
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import preflight
from ansible_collections.inference.fleet.plugins.modules import accelerator_info
from ansible_collections.inference.fleet.tests.runs import CLONE
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = CLONE / "tests/unit/fixtures"


def sysroot(name):
    return str(FIXTURES / ("sysroot-" + name))


@pytest.fixture
def tree(tmp_path):
    """tree({path: text}): a copy of a recorded tree with other files."""

    def copy(changes):
        root = tmp_path / "sysroot"
        shutil.copytree(sysroot("one-node"), root)
        for path, text in changes.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return str(root)

    return copy


# name: (vendor, model, generation, [(id, memory_mib, cores, numa, cpus)], warnings)
RECORDED = {
    "one-node": ("AMD", "AMD EPYC", "avx512_bf16", [(0, 24105, 2, 0, "0-1")], []),
    "two-nodes-gap": ("Intel", "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", "avx512f",
                      [(0, 65536, 8, 0, "0-3,8-11"), (1, 65536, 8, 2, "4-7,12-15")], []),
    "no-numa": ("ARM", "implementer 0x48 part 0xd01", "asimd", [(0, 32768, 4, None, "0-3")], []),
    "cgroup2-quota": ("AMD", "AMD EPYC 9554", "avx512_bf16", [(0, 8192, 2, 0, "0-3"), (1, 8192, 3, 1, "4-7")],
                      ["fleet.slice/cpu.max allows 5 CPUs of 8", "fleet.slice/memory.max limits memory to 16384 MiB"]),
    "affinity": ("AMD", "AMD EPYC 9554", "avx512_bf16", [(0, 32768, 2, 0, "1-2"), (1, 32768, 1, 1, "6")],
                 ["CPUs 1-2,6 only (its affinity), of 0-7 online"]),
    "offline-cpus": ("Intel", "Intel(R) Xeon(R) Platinum 8480+", "avx512_bf16", [(0, 32768, 6, 0, "0-2,4-6")],
                     ["CPUs 3,7 are offline"]),
    "garbled": ("AMD", "AMD EPYC", "avx512_bf16", [(0, 8192, 2, 0, "0-1")],
                ["/proc/self/status", "/node1/cpulist", "/a.slice/cpu.max", "/a.slice/memory.max"]),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_trees(name):
    vendor, model, generation, devices, words = RECORDED[name]
    found = registry.detect(sysroot=sysroot(name)).as_dict()
    flags, warnings = found.pop("flags"), found.pop("warnings")
    assert flags == sorted(set(flags)) and len(flags) > 10
    assert len(warnings) == len(words) and all(part in text for part, text in zip(words, warnings)), warnings
    names = ("id", "memory_mib", "cores", "numa", "cpus")
    assert found == {
        "accelerator": "cpu", "vendor": vendor, "model": model, "generation": generation, "driver": None,
        "devices": [dict(zip(names, one), health="ok", holders=[], core_ids=[]) for one in devices],
        "lnc": None, "runtime": None,
    }  # fmt: skip


def test_flags_are_those_that_all_processors_have(tree):
    first, second = (FIXTURES / "sysroot-one-node/proc/cpuinfo").read_text().split("\n\n")[:2]
    changed = first + "\n\n" + second.replace(" avx512_bf16", "") + "\n\n"
    found = registry.detect(sysroot=tree({"proc/cpuinfo": changed}))
    assert "avx512_bf16" not in found.flags
    assert found.generation == "avx512f"


def test_a_node_that_cannot_be_read_is_an_error(tmp_path):
    assert error(registry.detect, sysroot=str(tmp_path)).code == "cpu.unreadable"


@pytest.mark.parametrize(("name", "available"), [
    ("one-node", 24244848 // 1024),  # MemAvailable; the cgroups set no limit
    ("cgroup2-quota", 16384 - (8192 - 1024)),
    ("garbled", 8000000 // 1024),
])  # fmt: skip
def test_memory_for_new_processes(name, available):
    assert System(sysroot(name)).memory_available() == available


@given(
    st.lists(st.integers(min_value=0, max_value=500), min_size=1, max_size=9), st.integers(min_value=0, max_value=3000)
)
def test_shares_add_up_to_the_limit_and_nobody_gets_more_than_before(amounts, limit):
    shares = share(limit, amounts)
    assert sum(shares) == min(limit, sum(amounts))
    assert all(0 <= got <= had for got, had in zip(shares, amounts))


# ---- platforms


def test_an_unknown_one_lists_those_there_are():
    found = error(registry.platform_of, "abacus")
    assert (found.code, found.values) == ("platform.unknown", ("abacus", ", ".join(registry.PLATFORMS)))


def test_all_that_accelerator_info_returns_is_documented():
    def fields(*kinds):
        return {field.name for kind in kinds for field in dataclasses.fields(kind)}

    documented = yaml.safe_load(accelerator_info.RETURN)
    assert fields(Accelerators) - {"warnings"} == set(documented)
    assert fields(GpuDevice, amd.GpuDevice, NpuDevice) == set(documented["devices"]["contains"])


# ---- accelerators without a platform

INTEL = {"vendor": "0x8086", "class": "0x038000"}
MI100 = {"vendor": "0x1002", "class": "0x038000", "device": "0x738c"}


@pytest.fixture
def node(tree):
    """node(*devices): the sysroot of a node with these devices on its PCI bus."""
    return lambda *devices: tree({
        "sys/bus/pci/devices/0000:%02x:00.0/%s" % (number, key): "%s\n" % value
        for number, device in enumerate(devices) for key, value in {"present": "", **device}.items()
    })  # fmt: skip


@pytest.mark.parametrize(("device", "vendor", "model"), [
    (MI100, "AMD", "PCI 0x1002:0x738c"),
    ({**MI100, "product_name": "AMD Instinct MI100 OAM"}, "AMD", "AMD Instinct MI100 OAM"),
    ({"vendor": "0x1da3", "class": "0x120000", "device": "0x1020"}, "Intel Habana", "PCI 0x1da3:0x1020"),
    ({**INTEL, "device": "0x0bd5", "lmem_total_bytes": 1}, "Intel", "PCI 0x8086:0x0bd5"),
])  # fmt: skip
def test_an_accelerator_without_a_platform_is_named(node, device, vendor, model):
    found = registry.detect("auto", node(device, device))
    assert (found.accelerator, found.vendor, found.model) == ("unsupported", vendor, model)
    assert [each.id for each in found.devices] == [0, 1]
    assert "2 x %s (%s)" % (vendor, model) in found.warnings[0]


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize(("name", "vendor", "kind"), [
    ("amd", "0x1002", "0x120000"), ("ascend", "0x19e5", "0x120000"), ("nvidia", "0x10de", "0x030200"),
])  # fmt: skip
def test_hardware_without_its_tool_is_an_error(node, name, vendor, kind, count):
    root = node(*[{"vendor": vendor, "class": kind}] * count)
    found = error(registry.detect, name, root)
    assert (found.code, found.values) == (name + ".driver-missing", (count,))
    assert PLATFORMS[name].present(System(root)) is bool(count)
    assert other_hardware.describe(System(root)) is None


@pytest.mark.parametrize("device", [
    {"vendor": "0x1a03", "class": "0x030000", "device": "0x2000"},
    {"vendor": "0x1002", "class": "0x030000", "device": "0x164e"},
    {**INTEL, "device": "0x9a60"},
    {},
], ids=["BMC", "with a screen", "without memory", "nothing to read"])  # fmt: skip
def test_other_devices_are_not_accelerators(node, device):
    assert registry.detect("auto", node(device)).accelerator == "cpu"


def test_preflight_names_accelerators_without_a_platform(node):
    root = node(MI100)
    result = preflight.preflight(platform="cpu", sysroot=root, root=str(root) + "/r")
    assert any("1 x AMD (PCI 0x1002:0x738c)" in warning for warning in result["warnings"])
    found = error(preflight.preflight, platform="nvidia", sysroot=root, root=str(root) + "/r")
    (message,) = [each["message"] for each in found.details["problems"] if each["check"] == "hardware"]
    assert "1 x AMD (PCI 0x1002:0x738c)" in message


# ---- found hardware compared with the declared and required hardware: one comparison for all platforms


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


def processor(**changes):
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
    ("neuron", neuron(driver="2.29.0", runtime="2.32.9"), {}, {}, ["runtime 2.33 or later"]),
    ("neuron", neuron(runtime="2.33"), {}, {}, []),
    ("neuron", neuron(driver="2.28.9", runtime="2.20"), {}, {}, []),
    ("neuron", neuron(driver=None, runtime="2.20"), {}, {}, []),
    ("nvidia", nvidia(), {"count": 8}, {"driver": "575.51.03", "compute_capability": ["9.0", "10.0"]}, []),
    ("nvidia", nvidia(devices(7, 143771, of=GpuDevice, product=H200), warnings=["Seen."]), {"count": 8}, {},
     ["without 7. Seen. GPUs are numbered"]),
    ("nvidia", nvidia(devices(8, 81559, of=GpuDevice, product=H200)), {"memory_gib": 79.6}, {}, []),
    ("nvidia", nvidia(devices(8, 81559, of=GpuDevice, product="NVIDIA H20", compute_capability="9.0")), {}, {},
     ["fleet_hardware.memory_gib", "NVIDIA H20"]),
    ("nvidia", nvidia(), {}, {"driver": "610.43"}, ["610.43 or later"]),
    ("nvidia", nvidia(driver=None), {}, {"driver": "610.43"}, []),
    ("nvidia", nvidia(), {}, {"compute_capability": ["10.0"]}, ["needs.compute_capability"]),
    ("ascend", ascend(), {"count": 16}, {"driver": "25.0"}, []),
    ("ascend", ascend(), {"count": 8}, {}, ["Set fleet_hardware.count to 16"]),
    ("ascend", ascend(), {"count": 17}, {}, ["without 16."]),
    ("ascend", ascend(), {}, {"lnc": 2, "compute_capability": ["9.0"]}, ["needs.lnc", "needs.compute_capability"]),
    ("cpu", processor(), {"count": 16, "cores": 1, "memory_gib": 8}, {"device_memory_gib": 8}, []),
    ("cpu", processor(), {"count": 17, "cores": 1, "exclude": [4]}, {}, []),
    ("cpu", processor(warnings=["Cut."]), {"count": 17, "memory_gib": 8}, {},
     ["count 17 × cores 1), this node has 16 (EPYC). Cut.", "fleet_hardware.memory_gib"]),
    ("cpu", processor(), {"count": 4}, {"device_memory_gib": 64}, ["needs.device_memory_gib"]),
    ("cpu", processor(), {}, {"driver": "580", "lnc": 2}, ["needs.lnc", "needs.driver"]),
]  # fmt: skip


@pytest.mark.parametrize(("platform", "found", "hardware", "needs", "words"), CASES)
def test_every_shortfall_of_every_platform(platform, found, hardware, needs, words):
    messages = list(map(str, PLATFORMS[platform].shortfalls(found, hardware, needs)))
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
