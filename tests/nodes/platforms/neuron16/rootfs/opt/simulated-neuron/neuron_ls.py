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

ROW = "| %-6s | %-6s | %-12s |"

parser = argparse.ArgumentParser(prog="neuron-ls", allow_abbrev=False)
parser.add_argument("-j", "--json-output", action="store_true")
options = parser.parse_args()
found = simulated_neuron.devices()
if options.json_output:
    print(json.dumps(found, indent=4))
else:
    print(ROW % ("NEURON", "NEURON", "PCI"))
    print(ROW % ("DEVICE", "CORES", "BDF"))
    for device in found:
        print(ROW % (device["neuron_device"], device["nc_count"], "0000:" + device["bdf"]))
