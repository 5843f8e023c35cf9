# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Output of `neuron-ls -j`."""

from __future__ import annotations

import json
import os
import re

from ...host import commands
from ...host.cpu_list import format_cpu_list, parse_cpu_list
from ..base import Device
from .kinds import KINDS

MIB = 1 << 20
TOOLS = frozenset(("neuron-ls", "neuron-top", "neuron-monitor"))  # these do not occupy a device
NOTHING = ("", "-1", "NA", "N/A", "None")


def run(program, warn):
    """The records of `neuron-ls -j`, [] if it gives no answer; warn(message) is called with the reason."""
    try:
        done = commands.run([program, "-j"])
    except OSError as error:
        warn("neuron-ls gives no answer: %s." % error.strerror)
        return []
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        warn("neuron-ls gives no answer: status %d%s." % (done.returncode, ": " + lines[-1][:120] if lines else ""))
        return []
    try:
        return parse(done.stdout)
    except ValueError as error:
        warn("neuron-ls gives no answer: not understood: %s." % error)
        return []


def parse(text):
    """The records [{neuron_device, nc_count, …}]; messages before the JSON are skipped. Raises ValueError."""
    start = re.search(r"^\s*\[\s*[{\]]", text, re.MULTILINE)
    records = json.loads(text[start.start() :]) if start else None
    if not isinstance(records, list) or not all(isinstance(item, dict) for item in records):
        raise ValueError("no list of devices in it")
    return records


def instance_type(records):
    """The instance type that the records name, or None."""
    return next((str(record["instance_type"]) for record in records if record.get("instance_type")), None)


def device_of(record, kind, warn):
    """(Device, LNC or None) of a record. Raises ValueError if its number or its cores are missing."""
    number, cores = _number(record, "neuron_device"), _number(record, "nc_count")
    physical = KINDS.get(kind, (0, 0))[0]
    lnc = record.get("logical_neuroncore_config")
    if not isinstance(lnc, int):
        lnc = physical // cores if physical and cores and physical % cores == 0 else None
    ids = record.get("neuroncore_ids")
    if not (isinstance(ids, list) and len(ids) == cores and all(isinstance(core, int) for core in ids)):
        ids = list(range(number * cores, (number + 1) * cores))
    numa, affinity, memory = (str(record.get(key)).strip() for key in ("numa_node", "cpu_affinity", "memory_size"))
    try:
        cpus = format_cpu_list(parse_cpu_list("" if affinity in NOTHING else affinity.replace(" ", "")))
    except ValueError as error:
        warn("neuron-ls: cpu_affinity of device %d is not understood: %s" % (number, error))
        cpus = ""
    device = Device(
        id=number,
        memory_mib=int(memory) // MIB if memory.isdecimal() else None,
        cores=cores,
        numa=int(numa) if numa.isdecimal() else None,
        cpus=cpus,
        holders=list(_holders(record.get("neuron_processes"))),
        core_ids=ids,
    )
    return device, lnc


def _number(record, key):
    value = record.get(key)
    if isinstance(value, bool) or not str(value).isdecimal():
        raise ValueError("%s is %s" % (key, json.dumps(value)[:80]))
    return int(value)


def _holders(processes):
    for process in processes if isinstance(processes, list) else ():
        pid = process.get("pid") if isinstance(process, dict) else None
        if isinstance(pid, int) and not isinstance(pid, bool):
            command = str(process.get("command") or "")
            if os.path.basename(command.partition(" ")[0]) not in TOOLS:
                yield {"pid": pid, "command": command}
