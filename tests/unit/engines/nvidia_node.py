# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's root with an nvidia-smi that prints what tests/unit/fixtures/nvidia has, changed as a test says."""

from __future__ import annotations

import pathlib
from xml.etree import ElementTree

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.nvidia import smi
from ansible_collections.inference.fleet.tests.unit.detected_node import DetectedNode

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "nvidia"
# Each answer is a file whose first line is the exit status.
SCRIPT = """#!/bin/sh
cd "$(dirname "$0")/../../answers" || exit 99
case "$*" in
  "-q -x") f=q-x ;;
  "-q -x -i "*) f="q-x-$4" ;;
  --query-gpu=*" -i "*) f="csv-$4" ;;
  --query-gpu=*) f=csv ;;
esac
{ read -r status; cat; } < "$f"
exit "$status"
"""


class NvidiaNode(DetectedNode):
    vendor = "nvidia"

    def program(self, name, script):
        self.write("/usr/bin/" + name, script, 0o755)

    def answer(self, name, text, status=0):
        self.write("/answers/" + name, "%d\n%s" % (status, text))

    @staticmethod
    def set(root, number, path, value):
        """Set an element of a GPU; None removes it."""
        place = root.findall("gpu")[number]
        *above, last = path.split("/")
        for tag in above:
            found = place.find(tag)
            place = found if found is not None else ElementTree.SubElement(place, tag)
        found = place.find(last)
        if value is None:
            place.remove(found)
        else:
            (found if found is not None else ElementTree.SubElement(place, last)).text = value

    def has(self, name, change=lambda root: None, csv=lambda text: text, before="", text=None, dead=None,
            failure=None):  # fmt: skip
        """The node `name` of the fixtures. change: of its XML's root; text: instead of its XML. before: printed before
        it. csv: of the CSV. dead: address of a GPU whose `failure` keeps nvidia-smi from answering for all."""
        root = smi.parse_xml((FIXTURES / name / "q-x.xml").read_text())
        change(root)
        gpus = {smi.bus_of(one.get("id")): one for one in root.findall("gpu")}
        rows = (FIXTURES / name / "query-gpu.csv").read_text().splitlines()
        rows = {bus: row for bus, row in ((smi.bus_of(one.split(",")[1]), one) for one in rows) if bus in gpus}
        if len(rows) < 8 and not before:  # numbers follow the bus
            rows = {bus: "%d,%s" % (place, row.split(",", 1)[1]) for place, (bus, row) in enumerate(rows.items())}
        self.program("nvidia-smi", SCRIPT)
        if dead:
            status, _line, words = (FIXTURES / "failures" / (failure + ".txt")).read_text().partition("\n")
            for bus, gpu in gpus.items():
                self.write("/proc/driver/nvidia/gpus/%s/information" % bus, "")
                alone = ElementTree.Element("nvidia_smi_log")
                alone.extend([*(one for one in root if one.tag != "gpu"), gpu])
                self.answer("q-x-" + bus, words if bus == dead else ElementTree.tostring(alone, "unicode"),
                            int(status) if bus == dead else 0)  # fmt: skip
                self.answer("csv-" + bus, words if bus == dead else rows[bus] + "\n", int(status) if bus == dead else 0)
            self.answer("q-x", words, int(status))
            self.answer("csv", words, int(status))
            return self
        self.answer("q-x", before + (text or ElementTree.tostring(root, "unicode")))
        self.answer("csv", csv("".join(row + "\n" for row in rows.values())))
        return self

    def fails(self, failure):
        status, _line, words = (FIXTURES / "failures" / (failure + ".txt")).read_text().partition("\n")
        self.program("nvidia-smi", SCRIPT)
        for name in ("q-x", "csv"):
            self.answer(name, words, int(status))
        return self
