# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated nvidia-smi: the recorded output of a node, changed by what /etc/simulated-nvidia.json says.

    {"node": "b200-8",            a folder of tests/unit/fixtures/nvidia
     "gpus": [0, 1],              these alone, by index
     "dead": [3]}                 GPUs that do not answer: "Unable to determine the device handle", as the driver says

In a container it shows the GPUs whose device files are there.
"""

from __future__ import annotations

import json
import os
import re
import sys
from xml.etree import ElementTree

STATE = "/etc/simulated-nvidia.json"
RECORDED = "/opt/nvidia-recorded"
LOST = "Unable to determine the device handle for GPU%d: %s: Unknown Error"


def state():
    """What is simulated."""
    with open(STATE, encoding="utf-8") as stream:
        return json.load(stream)


def recorded(name):
    """The text of a file of the recordings."""
    with open("%s/%s" % (RECORDED, name), encoding="utf-8") as stream:
        return stream.read()


def gpus(wanted):
    """[(index, element)] of the recorded GPUs that are there, dead ones included."""
    root = ElementTree.fromstring(recorded(wanted["node"] + "/q-x.xml"))
    chosen = wanted.get("gpus")
    found = [(index, gpu) for index, gpu in enumerate(root.iter("gpu")) if chosen is None or index in chosen]
    return root, [(index, gpu) for index, gpu in found if os.path.exists("/dev/nvidia%d" % index)]


def document(wanted, only=None):
    """The answer to -q -x, after the lines that tell of dead GPUs."""
    root, shown = gpus(wanted)
    dead = [(index, gpu) for index, gpu in shown if index in wanted.get("dead", ())]
    alive = [(index, gpu) for index, gpu in shown if (index, gpu) not in dead and only in (None, gpu.get("id"))]
    for gpu in list(root.iter("gpu")):
        root.remove(gpu)
    for _index, gpu in alive:
        root.append(gpu)
    root.find("attached_gpus").text = str(len(alive))
    lines = [LOST % (index, gpu.get("id")) for index, gpu in dead]
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'
    return "\n".join([*lines, head + ElementTree.tostring(root, encoding="unicode")])


def table(wanted, fields, only=None):
    """The answer to --query-gpu, of the fields that are recorded and of the driver's version."""
    rows = [line.split(", ") for line in recorded(wanted["node"] + "/query-gpu.csv").splitlines()]
    driver = re.search(r"<(?:driver|kmd)_version>(.*?)<", document(wanted)).group(1)
    lines = []
    for index, gpu in gpus(wanted)[1]:
        row = next(row for row in rows if row[0] == str(index))
        if index in wanted.get("dead", ()):
            lines.append(LOST % (index, gpu.get("id")))
        elif only in (None, gpu.get("id")):
            known = dict(zip(("index", "pci.bus_id", "name", "memory.total", "compute_cap"), row))
            known.update({"driver_version": driver, "uuid": gpu.findtext("uuid")})
            lines.append(", ".join(known.get(field, "[N/A]") for field in fields))
    return "\n".join(lines)


def main(arguments):
    wanted = state()
    only = next((arguments[place + 1] for place, one in enumerate(arguments) if one == "-i"), None)
    query = next((one.partition("=")[2] for one in arguments if one.startswith("--query-gpu=")), None)
    if query:
        print(table(wanted, query.split(","), only))
    elif "-x" in arguments:
        print(document(wanted, only))
    elif "-L" in arguments:
        for index, gpu in gpus(wanted)[1]:
            if index not in wanted.get("dead", ()):
                print("GPU %d: %s (UUID: %s)" % (index, gpu.findtext("product_name"), gpu.findtext("uuid")))
    else:
        print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
