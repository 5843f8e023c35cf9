# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
import json
import pathlib

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import registry as accelerators
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import (
    kinds,
    neuron_ls,
    preflight,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = pathlib.Path(__file__).resolve().parents[4] / "fixtures" / "neuron"
# name: (kind, chips, MiB of a chip)
SHAPES = {"trn2-16": ("trainium2", 16, 98304), "trn3-16": ("trainium3", 16, 147456), "trn3-4": ("trainium3", 4, 147456)}
PLATFORM = accelerators.PLATFORMS["neuron"]
BENCH = [{"pid": 113985, "command": "neuron-bench exec --run-as-cc-neff --..."}]


@pytest.fixture
def node(tmp_path):
    """node(json=…, table=…, sysfs={path: text}, packages={name: version}): the sysroot of such a node, as a text.

    json, table: what neuron-ls prints with and without -j; None: it refuses that. Neither: it is not installed.
    """

    def make(json_text=None, table=None, sysfs=(), packages=(), script=None):
        root = tmp_path / "sysroot"
        for path, text in dict(sysfs).items():
            (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            (root / path.lstrip("/")).write_text(text)
        if packages:
            status = root / "var/lib/dpkg/status"
            status.parent.mkdir(parents=True)
            status.write_text(
                "".join(
                    "Package: %s\nStatus: install ok installed\nVersion: %s\nDescription: x\n more: y\n\n" % item
                    for item in dict(packages).items()
                )
            )
        if json_text is not None or table is not None or script:
            tool = root / "opt/aws/neuron/bin/neuron-ls"
            tool.parent.mkdir(parents=True, exist_ok=True)
            for name, text in (("json", json_text), ("table", table)):
                if text is not None:
                    (tool.parent / name).write_text(text)
            tool.write_text(
                script
                or '#!/bin/sh\ncd "$(dirname "$0")"\n'
                'case "$1" in -j) f=json;; *) f=table;; esac\n'
                "test -f $f || { echo \"unknown shorthand flag: 'j'\" >&2; exit 1; }\ncat $f\n"
            )
            tool.chmod(0o755)
        root.mkdir(exist_ok=True)
        return str(root)

    return make


def text_of(name):
    return (FIXTURES / name).read_text()


def driver_files(kind, chips, cores=4, driver="2.30.2.0", device_type="device_name"):
    files = {"/sys/module/neuron/version": driver + "\n"}
    for number in range(chips):
        folder = "/sys/devices/virtual/neuron_device/neuron%d" % number
        files[folder + "/core_count"] = "%d\n" % cores
        files[folder + "/info/architecture/" + device_type] = kind + "\n"
        files[folder + "/info/architecture/instance_type"] = "Trn9\n"  # a lie that nobody may believe
        files["/dev/neuron%d" % number] = ""
    return files


def whole(name, holders=()):
    """The devices that a node of this shape has."""
    _kind, chips, memory = SHAPES[name]
    records = json.loads(text_of(name + ".json"))
    return [
        {
            "id": number,
            "memory_mib": memory,
            "cores": 4,
            "numa": int(records[number]["numa_node"]),
            "cpus": records[number]["cpu_affinity"],
            "health": "ok",
            "holders": list(holders),
            "core_ids": [4 * number + core for core in range(4)],
        }
        for number in range(chips)
    ]


@pytest.mark.parametrize("form", ["json", "table"])
@pytest.mark.parametrize("name", SHAPES)
def test_both_forms_of_every_shape(node, name, form):
    kind = SHAPES[name][0]
    texts = {"json_text": text_of(name + ".json")} if form == "json" else {"table": text_of(name + ".txt")}
    holders = BENCH if name == "trn2-16" and form == "json" else []
    found = accelerators.detect("neuron", node(**texts, sysfs=driver_files(kind, SHAPES[name][1]))).as_dict()
    assert found == {
        "accelerator": kind, "vendor": "AWS", "model": kind.capitalize(),
        "generation": {"trainium2": "v3", "trainium3": "v4"}[kind], "driver": "2.30.2.0", "flags": [],
        "devices": whole(name, holders), "warnings": [], "lnc": 2, "runtime": None,
    }  # fmt: skip


def test_without_the_driver_s_name_the_memory_tells_the_kind(node):
    assert accelerators.detect("neuron", node(text_of("trn3-4.json"))).accelerator == "trainium3"


def test_a_kind_that_is_not_known(node):
    found = accelerators.detect("neuron", node(text_of("trn1.json")))
    assert (found.accelerator, found.model) == ("unknown", "Trainium1 or Inferentia2")
    assert "neither the driver's files nor neuron-ls name it" in found.warnings[0]


TYPES = {"inf1.2xlarge": "inferentia1", "inf2.48xlarge": "inferentia2", "trn1.32xlarge": "trainium1",
         "trn1n.32xlarge": "trainium1", "trn2u.48xlarge": "trainium2", "trn3.48xlarge": "trainium3"}  # fmt: skip


@pytest.mark.parametrize("instance", TYPES)
@pytest.mark.parametrize("told", ["record", "around", "table", "driver", "dmi"])
def test_the_type_of_the_instance_tells_the_kind(node, instance, told):
    records = json.loads(text_of("trn1.json"))
    answers, sysfs = {"json_text": json.dumps(records)}, {}
    if told == "record":
        answers["json_text"] = json.dumps([{**records[0], "instance_type": instance}])
    elif told == "around":
        answers["json_text"] = json.dumps({"instance_type": instance, "neuron_devices": records})
    elif told == "table":
        answers = {"table": "instance-type: %s\n" % instance + text_of("trn2-16.txt").partition("\n")[2]}
    elif told == "driver":
        sysfs["/sys/devices/virtual/neuron_device/neuron0/info/architecture/instance_type"] = instance
    else:
        sysfs["/sys/class/dmi/id/product_name"] = instance + "\n"
    found = accelerators.detect("neuron", node(**answers, sysfs=sysfs))
    assert (found.accelerator, found.model) == (TYPES[instance], TYPES[instance].capitalize())


@pytest.mark.parametrize(("device", "kind"), kinds.PCI_KINDS.items())
def test_without_a_driver_it_is_no_node_of_processors(node, device, kind):
    bus = "/sys/bus/pci/devices/0000:00:1e.0/"
    root = node(text_of("trn1.json"), sysfs={bus + "vendor": "0x1d0f\n", bus + "device": device + "\n"})
    assert accelerators.detect("auto", root).accelerator == kind
    (pathlib.Path(root) / "opt/aws/neuron/bin/neuron-ls").unlink()
    with pytest.raises(FleetError) as caught:
        accelerators.detect("auto", root)
    assert caught.value.code == "neuron.no-device"


def test_an_older_json_without_lnc_and_numa(node):
    found = accelerators.detect("neuron", node(text_of("trn1.json"), sysfs=driver_files("Trainium1", 1)))
    assert found.as_dict()["devices"] == [
        {"id": 0, "memory_mib": 32768, "cores": 2, "numa": None, "cpus": "0-7", "health": "ok", "holders": [],
         "core_ids": [0, 1]}
    ]  # fmt: skip
    assert (found.accelerator, found.lnc, found.warnings) == ("trainium1", 1, [])


def test_an_older_table_with_physical_cores_and_processes(node):
    found = accelerators.detect("neuron", node(table=text_of("trn2-16-old.txt"), sysfs=driver_files("Trainium2", 16)))
    assert (len(found.devices), found.lnc, found.warnings) == (16, 2, [])
    assert {device.cores for device in found.devices} == {4}
    assert found.devices[15].core_ids == [60, 61, 62, 63]
    assert [device.holders for device in found.devices] == [
        [{"pid": 268911, "command": "neuron-bench exec --run-as-cc-neff --..."}]  # neuron-ls itself is not one
    ] * 16


def test_a_chip_that_the_tools_do_not_see(node):
    found = accelerators.detect("neuron", node(text_of("trn3-4.json"), sysfs=driver_files("Trainium3", 6)))
    assert len(found.devices) == 4
    assert found.warnings == ["/dev has Neuron devices 4-5, which neuron-ls does not list; see dmesg."]


def test_lnc_1(node):
    records = json.loads(text_of("trn3-4.json"))
    for number, record in enumerate(records):
        record.update(
            nc_count=8, logical_neuroncore_config=1, neuroncore_ids=list(range(8 * number, 8 * number + 8))
        )  # fmt: skip
    found = accelerators.detect("neuron", node(json.dumps(records)))
    assert (found.lnc, [device.cores for device in found.devices]) == (1, [8] * 4)


def test_a_json_that_is_no_longer_bare_and_has_a_log_line_before_it(node):
    text = "2026-Nov-20 ERROR nrt noise\n" + json.dumps({"version": "2", "devices": json.loads(text_of("trn3-4.json"))})
    found = accelerators.detect("neuron", node(text))
    assert len(found.devices) == 4
    assert found.warnings == ["neuron-ls -j: this line is not understood: 2026-Nov-20 ERROR nrt noise"]


def test_what_is_not_understood_is_warned_of_and_the_rest_is_read(node):
    records = json.loads(text_of("trn3-4.json"))
    records[0].update(numa_node="north", cpu_affinity="0-x", memory_size="lots", neuroncore_ids=[0, 1])
    records[1]["neuron_processes"] = ["?", {"pid": 7, "command": "train"}]
    records[2]["nc_count"] = None
    records[3]["logical_neuroncore_config"] = 1
    found = accelerators.detect("neuron", node(json.dumps(records), sysfs=driver_files("trainium3", 4)))
    assert [(device.id, device.memory_mib, device.numa, device.cpus, device.core_ids) for device in found.devices] == [
        (0, None, None, "", [0, 1, 2, 3]),
        (1, 147456, 0, "0-47,96-143", [4, 5, 6, 7]),
        (3, 147456, 1, "48-95,144-191", [12, 13, 14, 15]),
    ]
    assert found.devices[1].holders == [{"pid": 7, "command": "train"}]
    assert found.lnc is None
    assert found.warnings == [
        "neuron-ls: device 0: neuroncore_ids is [0, 1], but it has 4 cores.",
        "neuron-ls: device 0: memory_size is not understood: lots",
        "neuron-ls: device 0: numa_node is not understood: north",
        "neuron-ls: device 0: cpu_affinity is not understood: '0-x' in '0-x' is neither a number nor a range like 0-3",
        'neuron-ls: device 1: this process is not understood: "?"',
        "neuron-ls: this device is not understood (nc_count is null, no number): %s" % json.dumps(records[2])[:120],
        "neuron-ls: the devices differ in their logical NeuronCore configuration: 1, 2.",
        "/dev has Neuron device 2, which neuron-ls does not list; see dmesg.",
    ]


def test_lines_of_a_table_that_are_not_understood(node):
    lines = text_of("trn3-4.txt").splitlines()
    lines[4] = lines[4].replace("NUMA", "MOON")
    lines[8] = lines[8].replace("4-7 ", "4-x ")
    lines.insert(9, "| what | is | this |")
    lines.append("Have a nice day")
    found = accelerators.detect("neuron", node(table="\n".join(lines)))
    assert [device.id for device in found.devices] == [0, 2, 3]
    assert found.warnings == [
        "neuron-ls: this column is not understood: MOON NODE",
        "neuron-ls: this line is not understood: " + lines[8][:120].strip(),
        "neuron-ls: this line is not understood: | what | is | this |",
        "neuron-ls: this line is not understood: Have a nice day",
    ]


@pytest.mark.parametrize("kind", ["Trainium3", "trainium3", "Trainium 3"])
def test_without_the_tools_the_driver_s_files_answer(node, kind):
    root = node(sysfs=driver_files(kind, 4), packages={"aws-neuronx-runtime-lib": "2.34.10.0-abc"})
    for pid, targets in ((41, ["/dev/neuron1", "/dev/null"]), (42, ["/dev/neuron1", "/dev/neuron3"])):
        folder = pathlib.Path(root) / "proc" / str(pid) / "fd"
        folder.mkdir(parents=True)
        for number, target in enumerate(targets):
            (folder / str(number)).symlink_to(target)
        (folder.parent / "cmdline").write_bytes(b"python3\0-m\0train\0")
    found = accelerators.detect("neuron", root)
    assert (found.accelerator, found.driver, found.runtime, found.lnc) == ("trainium3", "2.30.2.0", "2.34.10.0-abc", 2)
    assert [(device.id, device.memory_mib, device.cores, device.numa) for device in found.devices] == [
        (number, 147456, 4, None) for number in range(4)
    ]
    command = "python3 -m train"
    assert [device.holders for device in found.devices] == [
        [], [{"pid": 41, "command": command}, {"pid": 42, "command": command}], [], [{"pid": 42, "command": command}]
    ]  # fmt: skip
    assert found.warnings == []


def test_physical_cores_in_the_driver_s_files_tell_no_lnc(node):
    found = accelerators.detect("neuron", node(sysfs=driver_files("Trainium3", 4, cores=8)))
    assert (found.lnc, [(device.cores, device.core_ids) for device in found.devices]) == (None, [(8, [])] * 4)
    assert found.warnings == [
        "The driver's files do not tell the logical NeuronCore configuration. Install aws-neuronx-tools for an answer."
    ]
    chosen, declared = accelerators.platform_of("neuron"), {"count": 4, "cores": 8, "lnc": 2, "memory_gib": 144}
    assert chosen.shortfalls(found, declared, {"lnc": 2}) == []
    assert len(chosen.unchecked(found, declared, {"lnc": 2})) == 1
    assert chosen.unchecked(found, {}, {}) == []


def test_the_memory_of_a_known_kind_counts_without_the_tools(node):
    found = accelerators.detect("neuron", node(sysfs=driver_files("Trainium3", 4)))
    (message,) = accelerators.platform_of("neuron").shortfalls(found, {"memory_gib": 999}, {})
    assert "fleet_hardware.memory_gib" in message


def test_what_the_files_of_an_unknown_kind_do_not_tell(node):
    found = accelerators.detect("neuron", node(sysfs=driver_files("Trainium9", 4)))
    assert [(device.memory_mib, device.core_ids) for device in found.devices] == [(None, [])] * 4
    unchecked = accelerators.platform_of("neuron").unchecked(found, {"lnc": 2, "memory_gib": 1}, {})
    assert len(unchecked) == 2


def test_a_trainium1_has_one_lnc(node):
    found = accelerators.detect("neuron", node(sysfs=driver_files("Trainium1", 2, cores=2)))
    assert (found.lnc, [device.core_ids for device in found.devices]) == (1, [[0, 1], [2, 3]])


def pci_files(*places):
    """A Neuron device on the PCI bus for each (NUMA node, CPUs), and a network card."""
    files = {}
    for number, (numa, cpus) in enumerate(places):
        folder = "/sys/bus/pci/devices/0000:%02x:00.0" % (0x10 + number)
        files.update({folder + "/vendor": "0x1d0f\n", folder + "/device": "0x7364\n",
                      folder + "/numa_node": numa + "\n", folder + "/local_cpulist": cpus + "\n"})  # fmt: skip
    card = "/sys/bus/pci/devices/0000:00:05.0"
    return {**files, card + "/vendor": "0x1d0f\n", card + "/device": "0xefa1\n", card + "/numa_node": "7\n"}


def test_the_pci_bus_tells_where_the_devices_are(node):
    root = node(sysfs={**driver_files("Trainium3", 2), **pci_files(("1", "48-95"), ("1", "48-95"))})
    found = accelerators.detect("neuron", root)
    assert [(device.numa, device.cpus) for device in found.devices] == [(1, "48-95")] * 2
    assert found.warnings == []


def test_no_numa_node_is_none(node):
    found = accelerators.detect("neuron", node(sysfs={**driver_files("Trainium3", 1), **pci_files(("-1", "0-7"))}))
    assert [(device.numa, device.cpus) for device in found.devices] == [(None, "0-7")]


def test_devices_at_two_places_are_not_told_apart(node):
    root = node(sysfs={**driver_files("Trainium3", 2), **pci_files(("0", "0-47"), ("1", "48-95"))})
    found = accelerators.detect("neuron", root)
    assert [(device.numa, device.cpus) for device in found.devices] == [(None, "")] * 2
    assert found.warnings == [
        "The driver's files do not tell which Neuron device is beside which CPUs. Install aws-neuronx-tools for an "
        "answer."
    ]


def test_a_driver_that_moved_its_files(node):
    files = driver_files("Trainium3", 2)
    moved = {path.replace("/core_count", "/device/hw/core_count").replace("architecture", "arch/a"): text
             for path, text in files.items()}  # fmt: skip
    found = accelerators.detect("neuron", node(sysfs=moved))
    assert (found.accelerator, len(found.devices), found.warnings) == ("trainium3", 2, [])


def test_devices_without_a_count(node):
    files = driver_files("Trainium3", 3)
    files["/sys/devices/virtual/neuron_device/neuron1/core_count"] = "many\n"
    del files["/sys/devices/virtual/neuron_device/neuron2/core_count"]
    found = accelerators.detect("neuron", node(sysfs=files))
    assert [device.id for device in found.devices] == [0]
    assert found.warnings == [
        "/sys/devices/virtual/neuron_device/neuron1/core_count is not there or not understood: many; "
        "device 1 is not counted.",
        "/sys/devices/virtual/neuron_device/neuron2/core_count is not there or not understood; "
        "device 2 is not counted.",
    ]


def test_tools_without_an_answer_leave_it_to_the_driver_s_files(node):
    root = node(sysfs=driver_files("Trainium3", 4), script="#!/bin/sh\necho no driver >&2\nexit 3\n")
    found = accelerators.detect("neuron", root)
    assert len(found.devices) == 4
    assert found.warnings == [
        "neuron-ls gives no answer: status 3: no driver; with -j: status 3: no driver."
    ]  # fmt: skip


def test_a_node_without_anything(node):
    with pytest.raises(FleetError) as caught:
        accelerators.detect("neuron", node())
    assert caught.value.code == "neuron.no-device"


def test_auto_takes_it_before_the_cpu(node):
    assert accelerators.detect(sysroot=node(sysfs=driver_files("Trainium3", 1))).vendor == "AWS"


@pytest.mark.parametrize(
    ("driver", "runtime", "unfit"),
    [
        ("2.30.2.0", "2.34.10.0", False),
        ("2.29.0.0", "2.33.0.0", False),
        ("2.29.0.0", "2.32.9.9", True),
        ("2.28.1.0", "2.20.0.0", False),
        ("2.30.2.0", None, False),
        (None, "2.20", False),
    ],
)
def test_driver_and_runtime(driver, runtime, unfit):
    assert bool(kinds.mismatch(driver, runtime)) is unfit


@pytest.mark.parametrize("gone", [(3,), (0, 9), (15,)])
def test_an_excluded_device_may_be_gone(node, gone):
    """Its cores are nobody's, and the others keep their numbers."""
    hardware = {"accelerator": "trainium3", "count": 16, "cores": 8, "lnc": 2, "memory_gib": 144, "exclude": [*gone]}
    recipe = load.resolve_recipe(load.find_recipe("trn3-eagle3", []), [])
    entries = plan.plan_host("n", recipe, parse_hardware(hardware, "n"), plan.Site())
    records = json.loads(text_of("trn3-16.json"))
    left = [one for one in records if one["neuron_device"] not in gone]
    for there in (left, records):  # gone, or there and sick
        found = accelerators.detect("neuron", node(json.dumps(there)))
        assert PLATFORM.shortfalls(found, hardware, {"device_memory_gib": 144}) == []
        assert list(preflight.missing_cores(entries, found)) == []
    found = accelerators.detect("neuron", node(json.dumps([one for one in left if one["neuron_device"] != 5])))
    (message,) = PLATFORM.shortfalls(found, hardware, {})
    assert "without 5." in message and "list 5 in fleet_hardware.exclude" in message
    (message,) = preflight.missing_cores(entries, found)
    assert "assigned cores 20-23" in message


def test_what_an_excluded_device_has_does_not_count(node):
    records = json.loads(text_of("trn3-16.json"))
    records[3].update(memory_size=0, nc_count=1)
    found = accelerators.detect("neuron", node(json.dumps(records)))
    hardware = {"count": 16, "cores": 8, "lnc": 2, "memory_gib": 144}
    assert len(PLATFORM.shortfalls(found, hardware, {})) == 2
    assert PLATFORM.shortfalls(found, {**hardware, "exclude": [3]}, {}) == []


TEXT = st.text(max_size=40)
VALUE = st.one_of(st.none(), st.booleans(), st.integers(-5, 1 << 40), TEXT, st.lists(st.integers(-3, 70), max_size=5))
FIELDS = ("nc_count", "logical_neuroncore_config", "memory_size", "neuroncore_ids", "numa_node", "cpu_affinity",
          "logical_nc")  # fmt: skip
PROCESSES = st.one_of(VALUE, st.lists(st.one_of(VALUE, st.fixed_dictionaries({"pid": VALUE, "command": VALUE}))))
RECORD = st.fixed_dictionaries(
    {"neuron_device": VALUE}, optional={**dict.fromkeys(FIELDS, VALUE), "neuron_processes": PROCESSES}
)


@given(records=st.lists(RECORD, max_size=4))
def test_whatever_neuron_ls_says_is_read_or_warned_of(records):
    """No field, however odd, ends the detection with anything but a ValueError for its device."""
    warnings = []
    for record in neuron_ls.parse_json(json.dumps(records), warnings.append):
        try:
            device, lnc = neuron_ls.device_of(record, None, "trainium3", warnings.append)
        except ValueError:
            continue
        assert len(device.core_ids) == device.cores
        assert lnc is None or isinstance(lnc, int)


@pytest.mark.parametrize("processes", [True, 7, "x", {"pid": 1}, [True], [{"pid": True}], [{"pid": "1"}]])
def test_processes_that_are_no_list_of_processes(processes):
    warnings = []
    record = {"neuron_device": 0, "nc_count": 8, "neuron_processes": processes}
    assert neuron_ls.device_of(record, None, "trainium3", warnings.append)[0].holders == []
    assert len(warnings) == 1 and "not understood: " in warnings[0]


@given(text=st.one_of(TEXT, st.text(alphabet="|+- \nab0123456789:", max_size=200)))
def test_no_text_breaks_the_parsers(text):
    warnings = []
    records, settings = neuron_ls.parse_table(text, warnings.append)
    assert isinstance(settings, dict) and isinstance(records, list)
    with contextlib.suppress(ValueError):
        neuron_ls.parse_json(text, warnings.append)


@given(
    number=st.integers(0, 15), gib=st.integers(1, 999), cores=st.sampled_from([1, 2, 4, 8]),
    pids=st.lists(st.integers(1, 99999), max_size=3),
)  # fmt: skip
def test_a_table_says_what_was_put_into_it(number, gib, cores, pids):
    head = "| NEURON | NEURON | NEURON | NEURON | PID | COMMAND |\n| DEVICE | CORES | CORE IDS | MEMORY | | |\n+--+\n"
    ids = "%d-%d" % (number * cores, number * cores + cores - 1)
    rows = ["| %d | %d | %s | %d GB | %s | %s |" % (number, cores, ids, gib, pids[0] if pids else "", "a b")]
    rows += ["| | | | | %d | a b |" % pid for pid in pids[1:]]
    warnings = []
    (record,), _settings = neuron_ls.parse_table("+--+\n" + head + "\n".join(rows) + "\n+--+\n", warnings.append)
    device, lnc = neuron_ls.device_of(record, "2", None, warnings.append)
    assert (device.id, device.cores, device.memory_mib, lnc) == (number, cores, gib * 1024, 2)
    assert device.core_ids == list(range(number * cores, (number + 1) * cores))
    assert [holder["pid"] for holder in device.holders] == pids
    assert warnings == []
