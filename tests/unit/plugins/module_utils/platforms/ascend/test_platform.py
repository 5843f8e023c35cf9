# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Detection and preflight of Ascend nodes: each failure has an error of its own."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import registry
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.base import Context
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.host import System
from ansible_collections.inference.fleet.plugins.modules import accelerator_info
from ansible_collections.inference.fleet.tests.unit.detected_node import DetectedNode

FIXTURES = pathlib.Path(__file__).resolve().parents[4] / "fixtures" / "ascend"
SCRIPT = """#!/bin/sh
cd "$(dirname "$0")/../../answers" || exit 99
case "$*" in
  info) cat info ;;
  "info -m") cat map ;;
  "info -l") cat list ;;
  "info -t health -i "*) cat health-alarm ;;
  "-i 2 -link -g") echo "link status: DOWN" ;;
  *) echo "link status: UP" ;;
esac
"""


class Node(DetectedNode):
    vendor = "ascend"

    def __init__(self, root):
        super().__init__(root)
        (root / "answers").mkdir(parents=True)

    def has(self, generation="a3", version="24.1", change=lambda text: text):
        """A node of the fixtures. change: of the text of `npu-smi info`."""
        for name, file in (("info", "info-%s-%s.txt" % (generation, version)), ("map", "map-%s.txt" % generation),
                           ("list", "list-%s.txt" % generation), ("health-alarm", "health-alarm.txt")):  # fmt: skip
            text = (FIXTURES / file).read_text()
            self.write("/answers/" + name, change(text) if name == "info" else text)
        for name in ("npu-smi", "hccn"):
            self.write("/usr/bin/" + name, SCRIPT, 0o755)
        for number in range(8 if generation == "a2" else 16):
            self.write("/dev/davinci%d" % number)
        self.write("/dev/davinci_manager")
        for folder in ("driver", "firmware"):
            text = (FIXTURES / (folder + "-version.info")).read_text()
            self.write("/usr/local/Ascend/%s/version.info" % folder, text)
        self.write("/etc/ascend_install.info", (FIXTURES / "ascend_install.info").read_text())
        return self


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path / "sysroot")


def without(*npus):
    """Leave out the row pairs of these NPUs."""
    first = re.compile(r"^\| (?:%s) +(?:910|Ascend910).*OK .*\n.*\n" % "|".join(map(str, npus)), re.MULTILINE)
    return lambda text: first.sub("", text)


@pytest.mark.parametrize(
    ("generation", "version", "count"), [("a2", "24.1", 8), ("a2", "26.1", 8), ("a3", "24.1", 16), ("a3", "26.0", 16)]
)
def test_every_node(node, generation, version, count):
    found = node.has(generation, version).detect()
    assert (found.accelerator, found.vendor, found.driver) == ("ascend-" + generation, "Huawei", "25.0.rc1.1")
    assert (found.model, found.generation) == (("910B3", "Atlas A2") if count == 8 else ("Ascend910", "Atlas A3"))
    assert ([one.id for one in found.devices], found.warnings) == (list(range(count)), [])
    assert {(one.memory_mib, one.health) for one in found.devices} == {(65536, "ok")}
    held = {one.id: one.holders[0]["pid"] for one in found.devices if one.holders}
    assert held == ({3: 632268} if count == 8 else {5: 485946})


def test_a_gone_npu_keeps_the_numbers_of_the_others(node):
    found = node.has("a2", change=without(2)).detect()
    assert [one.id for one in found.devices] == [0, 1, 3, 4, 5, 6, 7]
    found = node.has("a3", change=without(2)).detect()
    assert [one.id for one in found.devices] == [n for n in range(16) if n not in (4, 5)]


def test_numbers_follow_the_device_files_where_the_npus_have_others(node):
    node.has("a2", change=lambda text: text.replace("| 7     910B3", "| 9     910B3"))
    node.write("/answers/map", (FIXTURES / "map-a2.txt").read_text().replace("\t7    ", "\t9    "))
    assert [one.id for one in node.detect().devices] == list(range(8))


def test_another_generation_is_named(node):
    found = node.has("a2", change=lambda text: text.replace("910B3", "310P3")).detect()
    assert (found.accelerator, found.model, found.generation) == ("ascend-310p3", "310P3", "unknown")
    assert "The NPUs of this node are no Atlas A2 or A3: 310P3." in found.warnings


# ---- no answer


def test_no_driver(node):
    node.write("/sys/bus/pci/devices/0000:c1:00.0/vendor", "0x19e5\n")
    node.write("/sys/bus/pci/devices/0000:c1:00.0/class", "0x120000\n")
    error = node.refused()
    assert (error.code, error.values) == ("ascend.driver-missing", (1,))
    assert registry.PLATFORMS["ascend"].present(System(node.root))


@pytest.mark.parametrize(
    ("text", "uid", "manager", "words"),
    [
        ("dcmi-failed", 0, True, "DCMI"),
        ("dcmi-failed", 0, False, "not loaded"),
        ("dcmi-failed", 1000, True, "HwHiAiUser"),
        ("dcmi-used", 0, True, "-8020"),
        ("Permission denied", 0, True, "with become"),
        ("", 0, True, "dmesg"),
    ],
)
def test_each_failure_has_its_cause(node, monkeypatch, text, uid, manager, words):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    path = FIXTURES / (text + ".txt")
    node.has("a2", change=lambda _text: path.read_text() if path.exists() else text)
    if not manager:
        (node.path / "dev/davinci_manager").unlink()
    error = node.refused()
    assert error.code == "ascend.no-answer"
    assert words in error.values[1]


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


def test_a_node_that_is_well(whole):
    assert look(whole.has("a3")) == ({}, [])


def test_a_sick_npu_stops_its_server_alone(whole):
    sick = "| 1     Ascend910           | OK   "
    whole.has("a3", change=lambda text: text.replace(sick, sick.replace("OK   ", "Alarm"), 1))
    (message,) = look(whole)[0]["npus"]
    assert message.startswith(
        "NPU 2 (0000:99:00.0) is not OK: its health is Alarm (error 80E01801: node type=SOC, sensor type=Temperature). "
        "Look at `npu-smi info -t health -i 1 -c 0`"
    )
    assert look(whole, unchanged=("server-1",)) == ({}, [message])


def test_who_holds_a_chip_is_told(whole):
    other = subprocess.Popen(["sleep", "60"])
    try:
        whole.has("a2", change=lambda text: text.replace("632268", str(other.pid)))
        (message,) = look(whole)[0]["holders"]
        assert message.startswith("pid %d (sleep 60) holds NPU 3, assigned to server-1." % other.pid)
        assert look(whole, unchanged=("server-1",))[0] == {}
    finally:
        other.kill()
        other.wait()


def test_what_the_driver_lacks_is_named(whole):
    whole.has("a3")
    (whole.path / "dev/hisi_hdc").unlink()
    (whole.path / "dev/davinci3").unlink()
    (whole.path / "usr/local/dcmi/x").unlink()
    (whole.path / "usr/local/dcmi").rmdir()
    found, _warnings = look(whole, unchanged=("server-0",))
    assert [one.split(". ")[0] for one in found["driver files"]] == [
        "server-1: its container uses files of the driver that this node lacks: /usr/local/dcmi, /dev/davinci3, "
        "/dev/hisi_hdc"
    ]


def test_what_accelerator_info_returns_of_an_npu_is_documented(node):
    contains = yaml.safe_load(accelerator_info.RETURN)["devices"]["contains"]
    (first, *_others) = node.has("a3").detect().as_dict()["devices"]
    assert set(first) == {name for name in contains if "GPU" not in contains[name].get("returned", "") or name in first}
    assert {"npu", "chip", "address", "product", "faults"} <= set(first)
