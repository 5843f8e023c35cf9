# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What neuron-ls tells, as JSON or as its table."""

from __future__ import annotations

import json
import os
import re
import shutil

from ...host import commands
from ...host.cpu_list import format_cpu_list, parse_cpu_list
from ..base import Device
from .kinds import KINDS, kind_of_instance

TOOLS = "/opt/aws/neuron/bin"
MIB = 1 << 20
INSTANCE = re.compile(r'"instance_type"\s*:\s*"([^"]*)"')
RULE = re.compile(r"^[+\-]+$")
SETTING = re.compile(r"^([a-z][a-z -]*): *(.*)$")
SIZE = re.compile(r"^([0-9]+(?:\.[0-9]+)?) ?([KMGT])i?B$")
OWN_TOOLS = frozenset(("neuron-ls", "neuron-top", "neuron-monitor"))
# Columns of the table, by the words of its two header lines.
COLUMNS = {
    "NEURON DEVICE": "neuron_device",
    "NEURON CORES": "nc_count",
    "LOGICAL NC": "logical_nc",
    "NEURON CORE IDS": "neuroncore_ids",
    "NEURON MEMORY": "memory_size",
    "CONNECTED DEVICES": "connected_to",
    "PCI BDF": "bdf",
    "CPU AFFINITY": "cpu_affinity",
    "NUMA NODE": "numa_node",
    "PID": "pid",
    "COMMAND": "command",
    "RUNTIME VERSION": "neuron_runtime_version",
}


def parse_json(text, warn):
    """Records of `neuron-ls -j`: [{neuron_device, nc_count, …}] as the tool names them.

    ValueError where it is no JSON of devices. What stands before the array (a log line) goes to warn(text).
    """
    start = re.search(r"^\s*[\[{]", text, re.MULTILINE)
    if not start:
        raise ValueError("no JSON in it")
    for line in text[: start.start()].splitlines():
        if line.strip():
            warn("neuron-ls -j: this line is not understood: %s" % line.strip()[:120])
    value = json.loads(text[start.start() :])
    if isinstance(value, dict):
        # Nobody promises that the array stays bare.
        value = next((item for item in value.values() if _is_devices(item)), None)
    if not _is_devices(value):
        raise ValueError("no list of devices in it")
    return value


def _is_devices(value):
    return isinstance(value, list) and all(isinstance(item, dict) and "neuron_device" in item for item in value)


def parse_table(text, warn):
    """(records, {setting: text}) of `neuron-ls` as people see it: the same keys as parse_json, values as they mean.

    Older tables count physical cores and have a column of logical ones; newer ones count logical cores and have their
    ids. A device with several processes has a line for each. A line that is not understood goes to warn(text).
    """
    records, settings, columns, header = [], {}, None, []
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or RULE.match(stripped):
            if stripped and header and columns is None:
                columns = _columns(header, warn)
            continue
        match = SETTING.match(stripped)
        if match and not records:
            settings[match.group(1)] = match.group(2)
            continue
        cells = [cell.strip() for cell in stripped.strip("|").split("|")] if stripped.startswith("|") else None
        if cells is not None and columns is None:
            header.append(cells)
        elif cells is None or columns is None or not _record(records, dict(zip(columns, cells)), len(cells), columns):
            warn("neuron-ls: this line is not understood: %s" % stripped[:120])
    return records, settings


def _columns(header, warn):
    names = [" ".join(word for word in words if word) for words in zip(*header)]
    for name in names:
        if name not in COLUMNS:
            warn("neuron-ls: this column is not understood: %s" % name[:120])
    return [COLUMNS.get(name, name) for name in names]


def _record(records, row, cells, columns):
    """Add a line of the table to the records; False where it is none."""
    # A command may hold "|" itself; what stands before it can be read all the same.
    if cells < len(columns) or (cells > len(columns) and "command" not in columns):
        return False
    process = None
    if row.get("pid"):
        if not row["pid"].isdigit():
            return False
        process = {"pid": int(row["pid"]), "command": row.get("command", "")}
    if not row["neuron_device"]:
        if process is None or not records:
            return False
        records[-1]["neuron_processes"].append(process)
        return True
    if not row["neuron_device"].isdigit():
        return False
    record = {key: value for key, value in row.items() if key not in ("pid", "command", "neuron_runtime_version")}
    record["neuron_device"] = int(row["neuron_device"])
    record["neuron_processes"] = [process] if process else []
    size = SIZE.match(row.get("memory_size", ""))
    record["memory_size"] = (
        int(float(size.group(1)) * 1024 ** ("KMGT".index(size.group(2)) + 1)) if size else row.get("memory_size")
    )
    for key in ("nc_count", "logical_nc"):
        if row.get(key, "").isdigit():
            record[key] = int(row[key])
    try:
        if row.get("neuroncore_ids"):
            record["neuroncore_ids"] = sorted(parse_cpu_list(row["neuroncore_ids"].replace(" ", "")))
    except ValueError:
        return False
    records.append(record)
    return True


def device_of(record, lnc, kind, warn):
    """(Device, LNC or None) of a record of neuron-ls. ValueError names the field without which there is no device."""
    number = _whole(record, "neuron_device")
    cores = _whole(record, "nc_count")
    where = "neuron-ls: device %d" % number
    physical = KINDS.get(kind, (0, 0))[0]
    if record.get("logical_nc") is not None:
        # The old table: physical cores beside logical ones.
        logical = _whole(record, "logical_nc")
        lnc, cores = (cores // logical if logical and cores % logical == 0 else None), logical
    else:
        given = record.get("logical_neuroncore_config", lnc)
        lnc = int(given) if str(given).isdigit() else None
        if lnc is None and physical and cores and physical % cores == 0:
            lnc = physical // cores
    ids = record.get("neuroncore_ids")
    if not (isinstance(ids, list) and len(ids) == cores and all(isinstance(one, int) for one in ids)):
        if ids is not None:
            warn("%s: neuroncore_ids is %s, but it has %d cores." % (where, json.dumps(ids)[:80], cores))
        ids = list(range(number * cores, (number + 1) * cores))
    memory = record.get("memory_size")
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < 0:
        if memory is not None:
            warn("%s: memory_size is not understood: %s" % (where, str(memory)[:80]))
        memory = None
    numa = str(record.get("numa_node", "-1")).strip()
    if not re.match(r"^(-1|[0-9]+|NA|N/A|)$", numa):
        warn("%s: numa_node is not understood: %s" % (where, numa[:80]))
    affinity = str(record.get("cpu_affinity") or "").strip()
    try:
        cpus = format_cpu_list(parse_cpu_list("" if affinity in ("NA", "N/A") else affinity.replace(" ", "")))
    except ValueError as error:
        warn("%s: cpu_affinity is not understood: %s" % (where, error))
        cpus = ""
    return (
        Device(
            id=number,
            memory_mib=None if memory is None else memory // MIB,
            cores=cores,
            numa=int(numa) if numa.isdigit() else None,
            cpus=cpus,
            holders=_holders(record.get("neuron_processes"), where, warn),
            core_ids=ids,
        ),
        lnc,
    )


def _whole(record, key):
    value = record.get(key)
    if isinstance(value, bool) or not str(value).isdigit():
        raise ValueError("%s is %s, no number" % (key, json.dumps(value)[:80]))
    return int(value)


def _holders(processes, where, warn):
    holders = []
    if processes is not None and not isinstance(processes, list):
        warn("%s: its processes are not understood: %s" % (where, json.dumps(processes)[:80]))
        processes = None
    for process in processes or ():
        pid = process.get("pid") if isinstance(process, dict) else None
        if not isinstance(pid, int) or isinstance(pid, bool):
            warn("%s: this process is not understood: %s" % (where, json.dumps(process)[:80]))
            continue
        command = str(process.get("command") or "")
        if os.path.basename(command.partition(" ")[0]) not in OWN_TOOLS:
            holders.append({"pid": pid, "command": command})
    return holders


def tool(system, name):
    """Path of a Neuron tool, None where it is not installed."""
    return shutil.which(name, path=system.sysroot + TOOLS) or (None if system.sysroot else shutil.which(name))


def run(argv):
    """(exit status or the reason why there is none, standard output). Raises TimedOut."""
    try:
        done = commands.run(argv)
    except OSError as error:
        return str(error.strerror), ""
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        return "status %d%s" % (done.returncode, ": " + lines[-1][:120] if lines else ""), done.stdout
    return 0, done.stdout


def devices_of(system, program, kind):
    """(devices, LNC or None, kind), or None where neuron-ls gives no answer; warnings say why."""
    records, lnc, instance = None, None, None
    status, text = run([program, "-j"])
    if status == 0:
        try:
            records = parse_json(text, system.warn)
            instance = next(iter(INSTANCE.findall(text)), None)
        except ValueError as error:
            status = "not understood: %s" % error
    if records is None:
        reason, (status, text) = status, run([program])
        if status != 0:
            system.warn("neuron-ls gives no answer: %s; with -j: %s." % (status, reason))
            return None
        records, settings = parse_table(text, system.warn)
        lnc, instance = settings.get("logical-neuroncore-config"), settings.get("instance-type")
        if not records:
            system.warn("neuron-ls lists no device; with -j: %s." % reason)
    kind = kind or kind_of_instance(instance)
    if kind is None:
        sizes = {record.get("memory_size") for record in records}
        kind = next((name for name, (_cores, gib) in KINDS.items() if sizes == {gib << 30} and gib != 32), None)
    devices, seen = [], set()
    for record in records:
        try:
            device, found = device_of(record, lnc, kind, system.warn)
        except ValueError as error:
            system.warn("neuron-ls: this device is not understood (%s): %s" % (error, json.dumps(record)[:120]))
            continue
        devices.append(device)
        seen.add(found)
    if len(seen) > 1:
        system.warn("neuron-ls: the devices differ in their logical NeuronCore configuration: %s."
                    % ", ".join(sorted(str(one) for one in seen)))  # fmt: skip
    return sorted(devices, key=lambda device: device.id), seen.pop() if len(seen) == 1 else None, kind
