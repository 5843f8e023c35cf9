# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is made of nvidia-smi's answers: recorded ones, failures, and broken ones. fixtures/nvidia/README.md has where
they are from."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import registry
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.host import System
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.nvidia import platform, smi
from ansible_collections.inference.fleet.tests.unit.detected_node import mangled
from ansible_collections.inference.fleet.tests.unit.engines.nvidia_node import FIXTURES, NvidiaNode
from hypothesis import given

# node: (accelerator, product, GPUs, MiB, compute capability, driver, CUDA)
NODES = {
    "a100-1": ("a100", "NVIDIA A100-SXM4-40GB", 1, 40960, "8.0", "570.148.08", "12.8"),
    "a100-8-old-schema": ("a100", "NVIDIA A100-SXM4-80GB", 8, 81920, "8.0", "535.183.01", "12.2"),
    "b200-4-next-schema": ("b200", "NVIDIA B200", 4, 183359, "10.0", "610.43.02", "13.3"),
    "b200-8": ("b200", "NVIDIA B200", 8, 183359, "10.0", "580.105.08", "13.0"),
    "b300-8": ("b300", "NVIDIA B300 SXM6 AC", 8, 275040, "10.3", "580.95.05", "13.0"),
    "gb200-4": ("gb200", "NVIDIA GB200", 4, 189471, "10.0", "580.173.02", "13.0"),
    "gb300-4": ("gb300", "NVIDIA GB300", 4, 284208, "10.3", "580.173.02", "13.0"),
    "h100-8": ("h100", "NVIDIA H100 80GB HBM3", 8, 81559, "9.0", "580.105.08", "13.0"),
    "h200-1": ("h200", "NVIDIA H200", 1, 143771, "9.0", "580.159.04", "13.0"),
    "h200-8": ("h200", "NVIDIA H200", 8, 143771, "9.0", "580.126.09", "13.0"),
    "l40s-1": ("l40s", "NVIDIA L40S", 1, 46068, "8.9", "595.91.07", "13.2"),
    "rtx-pro-6000-1": ("rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 1, 97887, "12.0", "580.105.08",
                       "13.0"),
    "t4-1": ("unknown", "Tesla T4", 1, 15360, "7.5", "595.91.07", "13.2"),
}  # fmt: skip


@pytest.fixture
def node(tmp_path):
    return NvidiaNode(tmp_path / "sysroot")


def gpus(node, name="h100-8", **changes):
    return node.has(name, **changes).detect().devices


@pytest.mark.parametrize("name", NODES)
def test_every_node(node, name):
    accelerator, product, count, memory, capability, driver, cuda = NODES[name]
    found = node.has(name).detect()
    assert (found.accelerator, found.model, found.generation) == (accelerator, product, capability)
    assert (found.vendor, found.driver, found.runtime) == ("NVIDIA", driver, cuda)
    assert len(found.warnings) == (accelerator == "unknown")
    assert [device.id for device in found.devices] == list(range(count))
    assert {(one.memory_mib, one.compute_capability, one.health) for one in found.devices} == {
        (memory, capability, "ok")
    }
    assert [one.faults + one.holders for one in found.devices] == [[]] * count
    assert "GPU-0" not in json.dumps(found.as_dict())  # identifiers are kept nowhere
    short = registry.PLATFORMS["nvidia"].shortfalls(found, {"count": count}, {})  # of the memory that a plan assumes
    assert len(short) == (name == "a100-1")


def test_the_numbers_are_nvidia_smi_s_own(node):
    found = gpus(node, "h200-2", csv=lambda text: "5" + text[1:].replace("\n1,", "\n3,"))
    assert [(one.id, one.address) for one in found] == [(3, "0000:64:00.0"), (5, "0000:53:00.0")]


@pytest.mark.parametrize(("product", "capability", "kind"), [
    ("NVIDIA A100 80GB PCIe", "8.0", "a100"), ("NVIDIA GB200", "10.0", "gb200"), ("NVIDIA GB300", None, "gb300"),
    ("NVIDIA H20", "9.0", None), ("NVIDIA GH200 144G HBM3e", "9.0", None), ("NVIDIA A100X", "8.0", None),
    (None, None, None), ("NVIDIA H100 80GB HBM3", "10.0", None),
])  # fmt: skip
def test_names_are_for_people_and_the_capability_counts(product, capability, kind):
    assert smi.kind_of(product, capability) == kind


# ---- failures


@pytest.mark.parametrize(("failure", "code"), [
    ("driver-not-loaded", "driver-not-loaded"), ("library-mismatch", "driver-versions-differ"),
    ("library-missing", "driver-incomplete"), ("no-devices", "no-devices"), ("no-permission", "no-permission"),
    ("access-blocked", "access-blocked"), ("unknown-error", "no-answer"),
])  # fmt: skip
def test_each_failure_has_its_code(node, failure, code):
    node.write("/sys/module/nvidia/version", "580.95.05\n")
    error = node.fails(failure).refused()
    assert (error.code, error.values[0]) == ("nvidia." + code, "580.95.05")


@pytest.mark.parametrize("failure", ["gpu-lost", "gpu-unknown-error"])
def test_one_dead_of_eight_that_keeps_all_from_answering(node, failure):
    """Then each is asked for itself; the dead one has the number that the bus gives it."""
    found = node.has("h100-8", dead="0000:86:00.0", failure=failure).detect()
    assert [one.health for one in found.devices] == ["ok"] * 3 + ["lost"] + ["ok"] * 4
    (fault,) = found.devices[3].faults
    assert fault.startswith("GPU 3 (0000:86:00.0) does not answer: ")
    assert fault.endswith("List 3 in fleet_hardware.exclude and have the board replaced.")


def test_one_dead_of_eight_beside_the_answers_of_the_others(node):
    found = gpus(node, change=lambda root: root.remove(root.findall("gpu")[3]),
                 before="Unable to determine the device handle for GPU3: 0000:86:00.0: GPU is lost\n")  # fmt: skip
    assert [one.id for one in found if one.health == "lost"] == [3]
    assert len(found) == 8


def test_one_that_is_gone_moves_the_others_up(node):
    for bus in ("53", "64", "75"):
        node.write("/sys/bus/pci/devices/0000:%s:00.0/vendor" % bus, "0x10de\n")
        node.write("/sys/bus/pci/devices/0000:%s:00.0/class" % bus, "0x030200\n")
    node.has("h100-8", change=lambda root: [root.remove(one) for one in root.findall("gpu")[1:2]])
    found = node.detect()
    assert [one.id for one in found.devices] == list(range(7))
    (warning,) = found.warnings
    assert "0000:64:00.0" in warning


@pytest.mark.parametrize(("path", "value", "word", "words"), [
    ("fb_memory_usage/total", "GPU is lost", "lost", "Reboot the node"),
    ("product_name", "ERR!", "unreadable", "--gpu-reset -i 0"),
    ("mig_mode/current_mig", "[GPU requires reset]", "needs reset", "--gpu-reset -i 0"),
    ("gpu_recovery_action", "Reset", "needs reset", "requires: reset"),
    ("mig_mode/current_mig", "Enabled", "MIG", "`nvidia-smi -i 0 -mig 0`"),
    ("mig_mode/pending_mig", "Enabled", "MIG", "-mig 0"),
    ("ecc_errors/volatile/dram_uncorrectable", "2", "ECC", "had 2 uncorrectable"),
    ("ecc_errors/aggregate/sram_threshold_exceeded", "Yes", "ECC", "List 0 in fleet_hardware.exclude"),
    ("remapped_rows/remapped_row_pending", "Yes", "remap pending", "--gpu-reset -i 0"),
    ("remapped_rows/remapped_row_failure", "Yes", "remap failed", "List 0 in fleet_hardware.exclude"),
    ("ecc_errors/tpc_repair_pending", "Yes", "repair pending", "--gpu-reset -i 0"),
    ("ecc_errors/unrepairable_memory", "Yes", "repair failed", "List 0 in fleet_hardware.exclude"),
    ("fabric/state", "In Progress", "fabric", "state In Progress"),
    ("fabric/status", "Insufficient Resources", "fabric", "Insufficient Resources"),
    ("fabric/health/summary", "Unhealthy", "fabric", "is unhealthy"),
])  # fmt: skip
def test_each_fault_of_a_gpu(node, path, value, word, words):
    found = gpus(node, change=lambda root: node.set(root, 0, path, value))
    assert [one.health for one in found] == [word] + ["ok"] * 7
    assert words in found[0].faults[0] and found[0].faults[0].count("GPU 0 (0000:53:00.0)")


def test_who_computes_on_it(node):
    """Names of processes are not escaped in this XML."""
    row = "<process_info><pid>%d</pid><type>%s</type><process_name>%s</process_name></process_info>"
    held = [(77, "C", "/usr/bin/python3"), (78, "G", "Xorg"), (79, "M+C", "a<b & c\x01")]
    text = (FIXTURES / "h100-8/q-x.xml").read_text()
    text = text.replace("<processes>", "<processes>" + "".join(row % one for one in held), 1)
    expected = [{"pid": 77, "command": "/usr/bin/python3"}, {"pid": 79, "command": "a<b & c"}]
    assert gpus(node, text=text)[0].holders == expected


def test_one_answer_stands_in_for_the_other(node):
    whole = node.has("h100-8").detect().as_dict()
    only_csv = node.has("h100-8", text="<nvidia_smi_log><gpu").detect()
    assert [one.memory_mib for one in only_csv.devices] == [81559] * 8
    assert "its XML is not understood" in only_csv.warnings[0]
    only_xml = node.has("h100-8", csv=lambda text: 'Field "compute_cap" is not a valid field to query.\n').detect()
    assert only_xml.accelerator == whole["accelerator"] == "h100"
    assert {one.compute_capability for one in only_xml.devices} == {None}


@pytest.mark.parametrize(
    ("text", "bus"),
    [("00000000:8F:00.0", "0000:8f:00.0"), ("0000:8F:00", "0000:8f:00.0"), ("00000008:06:00.0", "0008:06:00.0"),
     ("8f:00.0", "0000:8f:00.0"), ("N/A", None), ("", None), (None, None)],
)  # fmt: skip
def test_addresses(text, bus):
    assert smi.bus_of(text) == bus


# ---- whatever comes

TEXTS = {name: (FIXTURES / name / "q-x.xml").read_text() for name in NODES}
CSVS = {name: (FIXTURES / name / "query-gpu.csv").read_text() for name in NODES}


@given(mangled(TEXTS), mangled(CSVS))
def test_nothing_breaks_it_and_nothing_is_a_silent_zero(text, csv):
    warnings = []
    rows = smi.parse_csv(csv, warnings.append)
    try:
        root = smi.parse_xml(text)
    except ValueError:
        return
    found = [smi.Gpu(element, warnings.append) for element in root.findall("gpu")]
    devices = platform._devices(System("/nonexistent"), found, rows, {})
    assert [one.id for one in devices] == sorted({one.id for one in devices})
    for device in devices:
        assert device.memory_mib is None or device.memory_mib > 0
        assert device.health == "ok" or device.faults
        assert "GPU-0" not in json.dumps(device.faults)
