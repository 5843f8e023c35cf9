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
    print("instance-type: trn3.simulated")
    print("instance-id: i-simulated")
    print("logical-neuroncore-config: %d" % simulated_neuron.hardware()["lnc"])
    print("| NEURON DEVICE | CORE IDS | MEMORY | PCI BDF | PIDS |")
    for one in found:
        cores, pids = one["neuroncore_ids"], [process["pid"] for process in one["neuron_processes"]]
        where = (one["neuron_device"], cores[0], cores[-1], one["memory_size"] >> 30, one["bdf"])
        print("| %d | %d-%d | %d GB | 0000:%s | %s |" % (*where, " ".join(map(str, pids))))
