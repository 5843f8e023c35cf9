# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import registry
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.host import json_of
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import kinds, platform
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.neuron_node import NeuronNode, records
from hypothesis import given
from hypothesis import strategies as st

# name: (kind, chips, MiB of a chip)
SHAPES = {"trn2-16": ("trainium2", 16, 98304), "trn3-16": ("trainium3", 16, 147456), "trn3-4": ("trainium3", 4, 147456)}
PLATFORM = registry.PLATFORMS["neuron"]
BENCH = [{"pid": 113985, "command": "neuron-bench exec --run-as-cc-neff --..."}]


@pytest.fixture
def node(tmp_path):
    """node(output, files={path: content}): Accelerators of a node whose `neuron-ls -j` prints the output."""

    def detect(output=None, files=(), platform="neuron", script="cat"):
        made = NeuronNode(tmp_path / "sysroot")
        for path, content in dict(files).items():
            made.write(path, content)
        if output is not None:
            made.lists(output, script)
        return made.detect(platform)

    return detect


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape(node, name):
    kind, chips, memory = SHAPES[name]
    known = records(name)
    assert node(known, {"/sys/module/neuron/version": "2.30.2.0\n"}).as_dict() == {
        "accelerator": kind, "vendor": "AWS", "model": kind.capitalize(),
        "generation": {"trainium2": "v3", "trainium3": "v4"}[kind], "driver": "2.30.2.0", "flags": [],
        "devices": [
            {"id": number, "memory_mib": memory, "cores": 4, "numa": int(known[number]["numa_node"]),
             "cpus": known[number]["cpu_affinity"], "health": "ok", "holders": BENCH if name == "trn2-16" else [],
             "core_ids": [4 * number + core for core in range(4)]}
            for number in range(chips)
        ],
        "warnings": [], "lnc": 2, "runtime": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("instance", "kind", "source"),
    [("inf2.48xlarge", "inferentia2", "record"), ("trn1n.32xlarge", "trainium1", "dmi"),
     ("trn2u.48xlarge", "trainium2", "record")],
)  # fmt: skip
def test_the_instance_type_decides_the_kind(node, instance, kind, source):
    known, files = records("trn1"), {}
    if source == "record":
        known[0]["instance_type"] = instance
    else:
        files["/sys/class/dmi/id/product_name"] = instance + "\n"
    assert node(known, files).accelerator == kind


@pytest.mark.parametrize(("device", "kind"), [(kind[4], name) for name, kind in kinds.KINDS.items() if kind[4]])
def test_a_device_on_the_bus_without_tools_is_an_error(node, device, kind):
    bus = "/sys/bus/pci/devices/0000:00:1e.0/"
    files = {bus + "vendor": "0x1d0f\n", bus + "device": device + "\n"}
    assert plans.error(node, files=files, platform="auto").code == "neuron.no-device"
    assert node(records("trn1"), platform="auto").accelerator == kind


def test_an_older_json_without_lnc_and_numa(node):
    found = node(records("trn1"), {"/sys/class/dmi/id/product_name": "trn1.2xlarge\n"})
    (device,) = found.devices
    assert (device.memory_mib, device.cores, device.numa, device.core_ids) == (32768, 2, None, [0, 1])
    assert (device.cpus, found.lnc, found.warnings) == ("0-7", 1, [])


def test_unreadable_fields_are_unknown_and_the_others_are_read(node):
    known = records("trn3-4")
    known[0].update(numa_node="north", cpu_affinity="0-x", memory_size="lots", neuroncore_ids=[0, 1])
    known[1]["neuron_processes"] = ["?", {"pid": 7, "command": "train"}, {"pid": 8, "command": "neuron-top"}]
    known[2]["nc_count"] = None
    known[3]["logical_neuroncore_config"] = 1
    known.append({**known[3], "neuron_device": 4, "nc_count": 1 << 40})  # needs more memory than a node has
    found = node("2026-Nov-20 ERROR nrt noise\n" + json.dumps(known), {"/dev/neuron2": ""})
    assert [(device.id, device.memory_mib, device.numa, device.cpus, device.core_ids) for device in found.devices] == [
        (0, None, None, "", [0, 1, 2, 3]),
        (1, 147456, 0, "0-47,96-143", [4, 5, 6, 7]),
        (3, 147456, 1, "48-95,144-191", [12, 13, 14, 15]),
    ]
    assert found.devices[1].holders == [{"pid": 7, "command": "train"}]
    assert found.lnc is None
    assert len(found.warnings) == 6  # CPUs, two devices, one that is not listed, LNC, kind


@pytest.mark.parametrize(("output", "script", "words"), [
    (None, "cat", ""), ("", "cat", ""), ("[]", "cat", ""), ("no JSON", "cat", ""), ('{"devices": []}', "cat", ""),
    ("", "exit 3 #", "status 3"),
])  # fmt: skip
def test_a_node_without_devices(node, output, script, words):
    found = plans.error(node, output, script=script)
    assert found.code == "neuron.no-device" and words in found.values[1]


@pytest.mark.parametrize("gone", [(3,), (0, 9), (15,)])
def test_an_excluded_device_may_be_missing(node, gone):
    """Its cores are nobody's, and the others keep their numbers."""
    hardware = {"accelerator": "trainium3", "count": 16, "cores": 8, "lnc": 2, "memory_gib": 144, "exclude": [*gone]}
    entries = plans.entries_of("trn3-eagle3", hardware)
    left = [record for record in records("trn3-16") if record["neuron_device"] not in gone]
    found = node(left)
    assert PLATFORM.shortfalls(found, hardware, {"device_memory_gib": 144}) == []
    assert list(platform.missing_cores(entries, found)) == []
    found.devices = [device for device in found.devices if device.id != 5]
    assert len(PLATFORM.shortfalls(found, hardware, {})) == 1
    assert len(list(platform.missing_cores(entries, found))) == 1


VALUE = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 1 << 40), st.text(max_size=9), st.lists(st.integers(-3, 70))
)
FIELDS = ("nc_count", "logical_neuroncore_config", "memory_size", "neuroncore_ids", "numa_node", "cpu_affinity")
PROCESSES = st.one_of(VALUE, st.lists(st.one_of(VALUE, st.fixed_dictionaries({"pid": VALUE, "command": VALUE}))))
RECORD = st.fixed_dictionaries(
    {"neuron_device": VALUE}, optional={**dict.fromkeys(FIELDS, VALUE), "neuron_processes": PROCESSES}
)


@given(output=st.one_of(st.text(max_size=40), st.lists(RECORD, max_size=4).map(json.dumps)))
def test_any_output_is_read_or_refused(output):
    for record in json_of(output) or ():
        with contextlib.suppress(ValueError):
            device, lnc = platform.device_of(record, "trainium3", lambda message: None)
            assert len(device.core_ids) == device.cores
            assert lnc is None or isinstance(lnc, int)
