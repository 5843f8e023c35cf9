# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AWS Trainium: asked of neuron-ls, as JSON or as its table, and of the driver's files where the tools are missing.

What a node has is never concluded from its instance type: servers of one generation come with 4 and with 16 chips.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.cpu_list import format_cpu_list, parse_cpu_list
from ansible_collections.inference.fleet.plugins.module_utils.platforms.base import Accelerators, Detector, Device

TOOLS = "/opt/aws/neuron/bin"
DEVICES = "/sys/devices/virtual/neuron_device"
DRIVER = "/sys/module/neuron/version"
PCI = "/sys/bus/pci/devices"
PCI_VENDOR, PCI_DEVICE = "0x1d0f", re.compile(r"^0x7[0-9a-f]64$")  # 7064, 7164, 7264, 7364 … of the generations
DPKG = "/var/lib/dpkg/status"
TIMEOUT_S = 60  # neuron-ls of a server with 16 chips under load
MIB = 1 << 20
# Physical cores of a chip and its memory in GiB (Neuron architecture pages).
KINDS = {"trainium1": (2, 32), "inferentia2": (2, 32), "trainium2": (8, 96), "trainium3": (8, 144)}
GENERATIONS = {"trainium1": "v2", "inferentia2": "v2", "trainium2": "v3", "trainium3": "v4"}
LNC = 2  # what a Trainium2 or 3 runs at unless it is told otherwise
# (driver from, runtime at least): a newer driver speaks a protocol that an older runtime does not (release notes).
RUNTIME_FOR_DRIVER = (((2, 29), (2, 33)),)
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


def version_numbers(text):
    """(2, 34, 10, 0) of "2.34.10.0-abcdef"; () where it does not start with a number."""
    match = re.match(r"^[0-9]+(?:\.[0-9]+)*", text or "")
    return tuple(int(part) for part in match.group(0).split(".")) if match else ()


# ---- neuron-ls


def parse_json(text, warn):
    """Records of `neuron-ls -j`: [{neuron_device, nc_count, …}] as the tool names them.

    ValueError where it is no JSON of devices. What stands before the array (a log line) is told through warn(text).
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
    ids. A device with several processes has a line for each. A line that is not understood is told through warn(text).
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
        told = record.get("logical_neuroncore_config", lnc)
        lnc = int(told) if str(told).isdigit() else None
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


# ---- the driver's files


def sysfs_devices(system):
    """{number: folder} of the driver's devices, ascending; {} where it is not loaded."""
    try:
        names = os.listdir(system.sysroot + DEVICES)
    except OSError:
        names = []
    return {int(name[6:]): DEVICES + "/" + name for name in sorted(names, key=_number) if _number(name) >= 0}


def _number(name):
    return int(name[6:]) if re.match(r"^neuron[0-9]+$", name) else -1


def device_nodes(system):
    """Numbers of /dev/neuron*, ascending."""
    try:
        return sorted(number for number in map(_number, os.listdir(system.sysroot + "/dev")) if number >= 0)
    except OSError:
        return []


def _attribute(system, folder, name):
    """A value of a device: drivers from 2.31 on have moved files, so it is looked for by name below the device."""
    for path in ("/info/architecture/" + name, "/info/" + name, "/" + name):
        if os.path.isfile(system.sysroot + folder + path):
            return (system.read(folder + path) or "").strip() or None
    for base, folders, files in os.walk(system.sysroot + folder):
        folders[:] = sorted(
            one for one in folders if not one.startswith("neuron_core") and one not in ("power", "stats")
        )
        if name in files:
            return (system.read(os.path.join(base, name)[len(system.sysroot) :]) or "").strip() or None
    return None


def device_kind(system):
    """The kind by the driver's own name of the device ("trainium3"), None where it does not say."""
    for folder in sysfs_devices(system).values():
        name = _attribute(system, folder, "device_name") or _attribute(system, folder, "device_type")
        if name:
            return re.sub(r"[^a-z0-9]", "", name.lower())
    return None


def _from_sysfs(system, kind):
    """(devices, LNC or None) from the driver's files: memory by the kind, NUMA node and CPUs by the PCI bus, holders by
    their open files. Without an LNC nobody knows which logical cores are whose: core_ids are empty then."""
    physical, gib = KINDS.get(kind, (0, 0))
    devices, seen = [], set()
    folders, beside = sysfs_devices(system), _beside(system)
    for number in sorted(set(folders) | set(device_nodes(system))):
        count = _attribute(system, folders[number], "core_count") if number in folders else None
        if not count or not count.isdigit():
            system.warn(
                "%s/neuron%d/core_count is not there or not understood%s; device %d is not counted."
                % (DEVICES, number, ": %s" % count[:80] if count else "", number)
            )
            continue
        cores = int(count)
        # All physical cores of a chip that could run at LNC 2 as well: the driver counts the same at both.
        known = physical > 0 < cores and physical % cores == 0 and (cores < physical or physical <= LNC)
        seen.add(physical // cores if known else None)
        numa, cpus = beside
        devices.append(
            Device(
                id=number,
                memory_mib=gib * 1024 if gib else None,
                cores=cores,
                numa=numa,
                cpus=cpus,
                core_ids=list(range(number * cores, (number + 1) * cores)) if known else [],
            )
        )
    holders = _open_files(system)
    for device in devices:
        device.holders = holders.get(device.id, [])
    lnc = seen.pop() if len(seen) == 1 else None
    if devices and lnc is None:
        system.warn(
            "The driver's files do not tell the logical NeuronCore configuration. Install aws-neuronx-tools for an "
            "answer."
        )
    return devices, lnc


def _pci_folders(system):
    """Folders of the Neuron devices on the PCI bus, by address."""
    try:
        names = sorted(os.listdir(system.sysroot + PCI))
    except OSError:
        return []
    return [
        "%s/%s" % (PCI, name)
        for name in names
        if (system.read("%s/%s/vendor" % (PCI, name)) or "").strip() == PCI_VENDOR
        and PCI_DEVICE.match((system.read("%s/%s/device" % (PCI, name)) or "").strip())
    ]


def _beside(system):
    """(NUMA node or None, CPUs) of every Neuron device by the PCI bus.

    Nothing says which of the driver's devices has which address, and their numbers do not follow the addresses; so it
    is sure only where all are at the same place.
    """
    places = set()
    for folder in _pci_folders(system):
        numa = (system.read(folder + "/numa_node") or "").strip()
        cpus = system.cpu_list(folder + "/local_cpulist")
        places.add((int(numa) if numa.isdigit() else None, format_cpu_list(cpus or ())))
    if len(places) == 1:
        return places.pop()
    if places:
        system.warn(
            "The driver's files do not tell which Neuron device is beside which CPUs. Install aws-neuronx-tools for an "
            "answer."
        )
    return None, ""


def _open_files(system):
    """{device number: [{pid, command}]} by the device files that processes have open."""
    holders = {}
    try:
        pids = sorted(int(name) for name in os.listdir(system.sysroot + "/proc") if name.isdigit())
    except OSError:
        return holders
    for pid in pids:
        folder = "%s/proc/%d" % (system.sysroot, pid)
        try:
            targets = {os.readlink(folder + "/fd/" + name) for name in os.listdir(folder + "/fd")}
            with open(folder + "/cmdline", "rb") as stream:
                command = stream.read().rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:  # it is gone, or not ours to see
            continue
        for number in sorted(_number(os.path.basename(one)) for one in targets if one.startswith("/dev/neuron")):
            if number >= 0 and os.path.basename(command.partition(" ")[0]) not in OWN_TOOLS:
                holders.setdefault(number, []).append({"pid": pid, "command": command})
    return holders


# ---- versions


def package_version(system, package):
    """The version of an installed Debian or RPM package, None where it is not installed."""
    for block in (system.read(DPKG) or "").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] not in " \t")
        if fields.get("Package") == package and fields.get("Status", "").endswith(" installed"):
            return fields.get("Version")
    rpm = None if system.sysroot else shutil.which("rpm")
    if rpm is None:
        return None
    status, text = _run([rpm, "-q", "--qf", "%{VERSION}", package])
    return text.strip() if status == 0 and version_numbers(text.strip()) else None


def mismatch(driver, runtime):
    """A sentence where this driver and this runtime (texts or None) do not work together, else None."""
    for newer, least in RUNTIME_FOR_DRIVER:
        if driver and runtime and version_numbers(driver) >= newer and version_numbers(runtime) < least:
            return (
                "The Neuron driver %s needs a runtime of %s or later, this node has aws-neuronx-runtime-lib %s. "
                "Install driver and runtime of the same SDK release."
                % (driver, ".".join(str(part) for part in least), runtime)
            )
    return None


def lacks_driver(system):
    """Whether the node has Neuron devices on its PCI bus and no driver, neither loaded nor installed."""
    if sysfs_devices(system) or device_nodes(system) or package_version(system, "aws-neuronx-dkms"):
        return False
    return bool(_pci_folders(system))


# ---- asking


def tool(system, name):
    """Path of a Neuron tool, None where it is not installed."""
    return shutil.which(name, path=system.sysroot + TOOLS) or (None if system.sysroot else shutil.which(name))


def _run(argv):
    """(exit status or a text that says why there is none, standard output)."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return "no answer within %d s" % TIMEOUT_S, ""
    except OSError as error:
        return str(error.strerror), ""
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        lines = (done.stderr.decode("utf-8", "replace") or text).strip().splitlines()
        return "status %d%s" % (done.returncode, ": " + lines[-1][:120] if lines else ""), text
    return 0, text


def _from_neuron_ls(system, program, kind):
    """(devices, LNC or None, kind), or None where neuron-ls gives no answer; warnings say why."""
    records, lnc = None, None
    status, text = _run([program, "-j"])
    if status == 0:
        try:
            records = parse_json(text, system.warn)
        except ValueError as error:
            status = "not understood: %s" % error
    if records is None:
        reason, (status, text) = status, _run([program])
        if status != 0:
            system.warn("neuron-ls gives no answer: %s; with -j: %s." % (status, reason))
            return None
        records, settings = parse_table(text, system.warn)
        lnc = settings.get("logical-neuroncore-config")
        if not records:
            system.warn("neuron-ls lists no device; with -j: %s." % reason)
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


class NeuronDetector(Detector):
    """Trainium. A Device is a chip; its `cores` and `core_ids` are logical cores."""

    def present(self, system):
        return bool(sysfs_devices(system) or device_nodes(system))

    def detect(self, system):
        """Accelerators with one Device for each chip. FleetError where there is none, or none that can be asked."""
        kind, program = device_kind(system), tool(system, "neuron-ls")
        answer = _from_neuron_ls(system, program, kind) if program else None
        if answer and answer[0]:
            devices, lnc, kind = answer
            silent = sorted(set(device_nodes(system)) - {device.id for device in devices})
            if silent:
                system.warn(
                    "/dev has Neuron device%s %s, which neuron-ls does not list; see dmesg."
                    % ("" if len(silent) == 1 else "s", format_cpu_list(silent))
                )
        else:
            devices, lnc = _from_sysfs(system, kind)
        if not devices:
            raise FleetError(
                "neuron.no-device",
                "This node shows no Neuron device: %s, and neither %s nor /dev/neuron* is there. Install and load the "
                "driver (aws-neuronx-dkms), or take the node out of this group.%s",
                (
                    "neuron-ls lists none" if program else "neuron-ls is not installed",
                    DEVICES,
                    "".join(" " + warning for warning in system.warnings),
                ),
            )
        driver = (system.read(DRIVER) or "").strip() or package_version(system, "aws-neuronx-dkms")
        if kind is None:
            system.warn("The kind of the Neuron devices is not known: the driver's files do not name it.")
        return Accelerators(
            accelerator=kind or "unknown",
            vendor="AWS",
            model=(kind or "unknown Neuron device").capitalize(),
            generation=GENERATIONS.get(kind, "unknown"),
            driver=driver or None,
            devices=devices,
            warnings=system.warnings,
            lnc=lnc,
            runtime=package_version(system, "aws-neuronx-runtime-lib"),
        )

    def shortfalls(self, found, hardware, needs):
        """Chips, LNC, logical cores, memory and driver against what is declared and needed."""
        messages = []
        declared, count = hardware.get("count"), len(found.devices)
        notes = "".join(" " + warning for warning in found.warnings)
        if declared and count < declared:
            messages.append(
                "The inventory declares %d devices (fleet_hardware.count), this node has %d (%s).%s %s"
                % (declared, count, found.model, notes, _advice(found.devices))
            )
        lnc = hardware.get("lnc") or needs.get("lnc")
        if lnc and found.lnc and found.lnc != lnc:
            messages.append(
                "%s LNC %d (%s), this node runs at LNC %d. Run the node at LNC %d (NEURON_LOGICAL_NC_CONFIG), or plan "
                "for LNC %d: fleet_hardware.lnc, and needs.lnc and what else the recipe says of it; see "
                "docs/using/trainium-recipes.md."
                % (*(("The inventory declares", lnc, "fleet_hardware.lnc") if hardware.get("lnc")
                     else ("The recipe needs", lnc, "needs.lnc")), found.lnc, lnc, found.lnc)
            )  # fmt: skip
        elif declared and count >= declared and hardware.get("cores") and lnc and found.lnc:
            cores = sum(device.cores for device in found.devices[:declared])
            wanted = declared * hardware["cores"] // lnc
            if cores < wanted:
                messages.append(
                    "The inventory declares %d logical cores (fleet_hardware: count %d × cores %d / lnc %d), these %d "
                    "devices have %d. Set fleet_hardware.cores to what a device has."
                    % (wanted, declared, hardware["cores"], lnc, declared, cores)
                )
        least = [device.memory_mib for device in found.devices if device.memory_mib is not None]
        for amount, who, key in (
            (hardware.get("memory_gib"), "inventory declares", "fleet_hardware.memory_gib"),
            (needs.get("device_memory_gib"), "recipe needs", "needs.device_memory_gib"),
        ):
            if amount and least and min(least) < amount * 1024 * 0.99:
                messages.append(
                    "The %s %g GiB of memory for a device (%s), this node has %.1f GiB. Correct the inventory, or take "
                    "another node or recipe." % (who, amount, key, min(least) / 1024)
                )
        if needs.get("driver") and version_numbers(found.driver) < version_numbers(needs["driver"]):
            messages.append(
                "The recipe needs driver %s or later (needs.driver), this node has %s. Update aws-neuronx-dkms."
                % (needs["driver"], found.driver or "none")
            )
        unfit = mismatch(found.driver, found.runtime)
        if unfit:
            messages.append(unfit)
        if needs.get("compute_capability"):
            messages.append(
                "The recipe needs compute_capability (needs.compute_capability), which Trainium does not have. Take a "
                "recipe for this platform."
            )
        return messages

    def unchecked(self, found, hardware, needs):
        """What shortfalls() could not hold against the node, since the node does not tell it."""
        messages = []
        if (hardware.get("lnc") or needs.get("lnc")) and found.lnc is None:
            messages.append("LNC and logical cores (fleet_hardware.lnc and cores, needs.lnc)")
        if (hardware.get("memory_gib") or needs.get("device_memory_gib")) and any(
            device.memory_mib is None for device in found.devices
        ):
            messages.append("the memory of each device (fleet_hardware.memory_gib, needs.device_memory_gib)")
        return ["Not checked: %s; this node does not tell. Install aws-neuronx-tools." % one for one in messages]


def _advice(devices):
    """What to do where devices are missing. A plan counts its cores from device 0 on, so a gap cannot be declared."""
    ids = sorted(device.id for device in devices)
    gap = next((number for number, one in enumerate(ids) if number != one), None)
    if gap is None:
        return "Set fleet_hardware.count to %d, or repair the node." % len(ids)
    lacking = set(range(ids[-1])) - set(ids)
    missing = "device%s missing" % (" %d is" % gap if len(lacking) == 1 else "s %s are" % format_cpu_list(lacking))
    if gap == 0:
        return "Repair the node: %s, and a plan begins with device 0." % missing
    return "Repair the node: %s; or set fleet_hardware.count to %d for the devices before it." % (missing, gap)
