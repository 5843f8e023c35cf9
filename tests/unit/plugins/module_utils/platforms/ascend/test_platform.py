# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ascend nodes: the output of npu-smi, detection and preflight. Each failure has an error of its own."""

from __future__ import annotations

import os
import pathlib
import re

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import ascend, registry
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.base import Context
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.host import System
from ansible_collections.inference.fleet.tests.unit.detected_node import DetectedNode, mangled
from hypothesis import given

FIXTURES = pathlib.Path(__file__).resolve().parents[4] / "fixtures" / "ascend"
SCRIPT = """#!/bin/sh
cd "$(dirname "$0")/../../answers" || exit 99
case "$*" in
  info) cat info ;;
  "info -m") cat map ;;
  "info -t health -i "*) cat health-alarm ;;
esac
"""


class Node(DetectedNode):
    vendor = "ascend"

    def has(self, generation="a3", version="24.1", change=lambda text: text):
        """A node of the fixtures. change: of the text of `npu-smi info`."""
        for name, file in (
            ("info", "info-%s-%s.txt" % (generation, version)),
            ("map", "map-%s.txt" % generation),
            ("health-alarm", "health-alarm.txt"),
        ):
            text = (FIXTURES / file).read_text()
            self.write("/answers/" + name, change(text) if name == "info" else text)
        self.write("/usr/bin/npu-smi", SCRIPT, 0o755)
        for number in range(8 if generation == "a2" else 16):
            self.write("/dev/davinci%d" % number)
        self.write("/dev/davinci_manager")
        self.write("/usr/local/Ascend/driver/version.info", (FIXTURES / "driver-version.info").read_text())
        self.write("/etc/ascend_install.info", (FIXTURES / "ascend_install.info").read_text())
        return self


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path / "sysroot")


@pytest.mark.parametrize(
    ("generation", "version", "count"), [("a2", "24.1", 8), ("a2", "26.1", 8), ("a3", "24.1", 16), ("a3", "26.0", 16)]
)
def test_every_node(node, generation, version, count):
    found = node.has(generation, version).detect()
    assert (found.accelerator, found.vendor, found.driver) == ("ascend-" + generation, "Huawei", "25.0.rc1.1")
    assert (found.model, found.generation) == (("910B3", "Atlas A2") if count == 8 else ("Ascend910", "Atlas A3"))
    assert ([one.id for one in found.devices], found.warnings) == (list(range(count)), [])
    assert {(one.memory_mib, one.health) for one in found.devices} == {(65536, "ok")}
    assert all(re.fullmatch(r"0000:[0-9a-f]{2}:00\.0", one.address) for one in found.devices)
    held = {one.id: [tuple(holder.values()) for holder in one.holders] for one in found.devices if one.holders}
    assert held == ({3: [(632268, "python3.1")]} if count == 8 else {5: [(485946, "VLLMWorker_TP")]})


@pytest.mark.parametrize(("generation", "npu", "gone"), [("a2", 2, [2]), ("a3", 2, [4, 5])])
def test_a_gone_npu_keeps_the_numbers_of_the_others(node, generation, npu, gone):
    row = re.compile(r"^\| %d +(?:910|Ascend910).*OK .*\n.*\n" % npu, re.MULTILINE)
    found = node.has(generation, change=lambda text: row.sub("", text)).detect()
    assert [one.id for one in found.devices] == [n for n in range(8 if generation == "a2" else 16) if n not in gone]


def test_numbers_follow_the_device_files_where_the_npus_have_others(node):
    node.has("a2", change=lambda text: text.replace("| 7     910B3", "| 9     910B3"))
    node.write("/answers/map", read("map-a2.txt").replace("\t7    ", "\t9    "))
    assert [one.id for one in node.detect().devices] == list(range(8))


def test_another_generation_is_named(node):
    found = node.has("a2", change=lambda text: text.replace("910B3", "310P3")).detect()
    assert (found.accelerator, found.model, found.generation) == ("ascend-310p3", "310P3", "unknown")
    assert "The NPUs of this node are no Atlas A2 or A3: 310P3." in found.warnings


# ---- what npu-smi prints


def read(name):
    return (FIXTURES / name).read_text()


def parsed(text):
    warnings = []
    return ascend.parse_info(text, warnings.append), warnings


def test_the_table_of_the_950():
    """One chip a board, a column for the name, and in a virtual machine no place on the bus."""
    chips, warnings = parsed(read("info-950.txt"))
    assert warnings == []
    assert [(one.npu, one.chip, one.phy, one.product, one.health, one.address, one.memory_mib) for one in chips] == [
        (0, 0, None, "Ascend950PR", "Alarm", "0000:71:00.0", 114688),
        (1, 0, None, "Ascend950PR", "OK", "", 98304),
    ]
    assert [one.holders for one in chips] == [[{"pid": 2066378, "command": "pytest"}], []]


def test_npus_with_numbers_of_five_digits():
    chips, warnings = parsed(read("info-310p.txt"))
    assert warnings == []
    assert [(one.npu, one.chip, one.phy, one.product, one.memory_mib) for one in chips] == [
        (32768, 0, 0, "310P3", 44280),
        (32768, 1, 1, "310P3", 43693),
    ]
    assert chips[1].holders == [{"pid": 4711, "command": "python3"}]
    table = "NPU ID  Chip ID  Chip Logic ID  Chip Name\n32768   0        0              310P3\n"
    assert ascend.parse_map(table, pytest.fail) == {(32768, 0): (0, None)}
    newer = "NPU ID  Slot ID  Chip Logic ID  Chip Phy-ID  Chip Name\n3  7  2  2  Ascend950PR\n"
    assert ascend.parse_map(newer, pytest.fail) == {(3, 0): (2, 2)}


@pytest.mark.parametrize(("text", "npus", "warning"), [
    (read("info-310p.txt").replace("| 32768   1  ", "| 5       1  "), [32768, 32768],
     "this process is not understood: | 5  "),
    (read("info-a2-24.1.txt").replace("0000:81:00.0  ", "not an address"), [0, 1, 3, 4, 5, 6, 7], "not an address"),
    ("| NPU ID | Name        | Health | Power(W) |\n| 3      | Ascend950DT | OK     | 100.0    |\n", [],
     "NPU 3 has no second row."),
], ids=["process", "row", "layout"])  # fmt: skip
def test_lines_that_are_not_understood_are_warned_of_and_others_are_read(text, npus, warning):
    chips, warnings = parsed(text)
    assert [one.npu for one in chips] == npus
    assert any(warning in one for one in warnings), warnings


TEXTS = {path.name: path.read_text() for path in FIXTURES.iterdir() if path.suffix in (".txt", ".info")}


@given(mangled(TEXTS))
def test_changed_text_never_raises_and_no_chip_has_no_memory(text):
    chips, _warnings = parsed(text)
    assert all(chip.memory_mib is None or chip.memory_mib > 0 for chip in chips)
    ascend.parse_map(text, lambda message: None)
    ascend.error_codes(text)
    ascend.parse_settings(text)


# ---- no answer


@pytest.mark.parametrize(("text", "uid", "manager", "code"), [
    ("dcmi-failed", 0, True, "dcmi-failed"), ("dcmi-failed", 0, False, "driver-not-loaded"),
    ("dcmi-failed", 1000, True, "no-permission"), ("dcmi-used", 0, True, "npus-in-use"),
    ("Permission denied", 0, True, "no-permission"), ("", 0, True, "no-answer"),
])  # fmt: skip
def test_each_failure_has_its_code(node, monkeypatch, text, uid, manager, code):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    path = FIXTURES / (text + ".txt")
    node.has("a2", change=lambda _text: path.read_text() if path.exists() else text)
    if not manager:
        (node.path / "dev/davinci_manager").unlink()
    assert node.refused().code == "ascend." + code


def test_two_chips_of_one_number_are_refused(node):
    node.has("a3", change=lambda text: text.replace("| 1     1   ", "| 1     0   "))
    assert node.refused().code == "ascend.no-answer"


# ---- preflight


def entry(devices, flags=()):
    mounts = [{"source": "/etc/ascend_install.info", "target": "/x", "read_only": True},
              {"source": "/usr/local/dcmi", "target": "/y", "read_only": True}]  # fmt: skip
    given = ["/dev/davinci%d" % number for number in devices] + ["/dev/davinci_manager", "/dev/hisi_hdc"]
    return {"devices": devices, "container": {"mounts": mounts, "devices": given, "flags": flags}}


def look(node, unchanged=()):
    system = System(node.root)
    context = Context(
        root="", system=system, entries={"server-0": entry([0, 1]), "server-1": entry([2, 3])}, unchanged=unchanged,
        found=registry.PLATFORMS["ascend"].detect(system), fits=True,
    )  # fmt: skip
    found = registry.PLATFORMS["ascend"].preflight(context)
    return {check: messages for check, messages in found if messages}, context.warnings


@pytest.fixture
def whole(node):
    for path in ("/usr/local/dcmi/x", "/dev/hisi_hdc"):
        node.write(path)
    return node


def test_a_sick_npu_stops_its_server_alone(whole):
    assert look(whole.has("a3")) == ({}, [])
    sick = "| 1     Ascend910           | OK   "
    whole.has("a3", change=lambda text: text.replace(sick, sick.replace("OK   ", "Alarm"), 1))
    (message,) = look(whole)[0]["npus"]
    assert message.startswith("NPU 2 (0000:99:00.0) is not OK: its health is Alarm (error 80E01801: node type=SOC, ")
    assert look(whole, unchanged=("server-1",)) == ({}, [message])


def test_what_the_driver_lacks_is_named(whole):
    whole.has("a3")
    (whole.path / "dev/hisi_hdc").unlink()
    (whole.path / "dev/davinci3").unlink()
    (whole.path / "usr/local/dcmi/x").unlink()
    (whole.path / "usr/local/dcmi").rmdir()
    found, _warnings = look(whole, unchanged=("server-0",))
    (problem,) = found["driver files"]
    assert problem.code == "ascend.driver-files-missing"
    assert problem.values == ("server-1", "/usr/local/dcmi, /dev/davinci3, /dev/hisi_hdc")
