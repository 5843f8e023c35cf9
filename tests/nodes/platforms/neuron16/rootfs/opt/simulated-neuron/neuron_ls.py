# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated neuron-ls: the table, or with -j (--json-output) the bare JSON array, of the simulated devices."""

from __future__ import annotations

import argparse
import json
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import simulated_neuron  # noqa: E402 - found by the path above

HEAD = (
    ("NEURON", "DEVICE"),
    ("NEURON", "CORES"),
    ("NEURON", "CORE IDS"),
    ("NEURON", "MEMORY"),
    ("CONNECTED", "DEVICES"),
    ("PCI", "BDF"),
    ("CPU", "AFFINITY"),
    ("NUMA", "NODE"),
)
PROCESSES = (("", "PID"), ("", "COMMAND"), ("RUNTIME", "VERSION"))


def rows(devices, with_processes):
    for device in devices:
        cores = device["neuroncore_ids"]
        row = [
            str(device["neuron_device"]),
            str(device["nc_count"]),
            "%d-%d" % (cores[0], cores[-1]),
            "%d GB" % (device["memory_size"] // 1024**3),
            ", ".join(map(str, device["connected_to"])),
            "0000:" + device["bdf"],
            device["cpu_affinity"],
            device["numa_node"],
        ]
        if not with_processes:
            yield row
            continue
        found = device["neuron_processes"] or [{"pid": "", "command": "", "neuron_runtime_version": ""}]
        for number, one in enumerate(found):
            words = [str(one["pid"]), one["command"], one["neuron_runtime_version"]]
            yield (row if number == 0 else [""] * len(row)) + words


def table(devices):
    with_processes = any(device["neuron_processes"] for device in devices)
    head = HEAD + (PROCESSES if with_processes else ())
    body = list(rows(devices, with_processes))
    widths = [max(len(word) for word in (*title, *(row[at] for row in body))) for at, title in enumerate(head)]
    line = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    yield line
    for part in (0, 1):
        yield "|" + "|".join(" %s " % title[part].center(width) for title, width in zip(head, widths)) + "|"
    yield line
    for row in body:
        yield "|" + "|".join(" %s " % word.ljust(width) for word, width in zip(row, widths)) + "|"
    yield line


parser = argparse.ArgumentParser(prog="neuron-ls", allow_abbrev=False)
parser.add_argument("-j", "--json-output", action="store_true")
parser.add_argument("-w", "--wide", action="store_true")
parser.add_argument("-a", "--show-all-procs", action="store_true")
parser.add_argument("-t", "--topology", action="store_true")
options = parser.parse_args()
found = simulated_neuron.devices()
if options.json_output:
    print(json.dumps(found, indent=4))
else:
    shape = simulated_neuron.hardware()
    print("instance-type: trn3.simulated")
    print("instance-id: i-simulated")
    print("logical-neuroncore-config: %d" % shape["lnc"])
    print("\n".join(table(found)))
