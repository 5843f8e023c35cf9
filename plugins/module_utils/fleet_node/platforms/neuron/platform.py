# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AWS Trainium: devices by neuron-ls, or by the driver's files and the PCI bus if the tools are missing.

The instance type never decides how many chips a node has: servers of one generation have 4 or 16.
"""

from __future__ import annotations

import os
import re
import typing

from ...errors import FleetError
from ...host.cpu_list import format_cpu_list
from ...host.packages import package_versions
from ..base import Accelerators, Detector, Device
from ..vendor_tools import PCI, listed
from . import artifacts, neuron_ls, packages, preflight
from .kinds import DRIVER, GENERATIONS, KINDS, LNC, PCI_KINDS, RUNTIME, kind_of_instance, mismatch
from .neuron_ls import OWN_TOOLS

DEVICES = "/sys/devices/virtual/neuron_device"
DMI = ("/sys/class/dmi/id/product_name", "/sys/devices/virtual/dmi/id/product_name")
LOADED = "/sys/module/neuron/version"
PCI_VENDOR, PCI_DEVICE = "0x1d0f", re.compile(r"^0x7[0-9a-f]64$")  # 7064, 7164, 7264, 7364 … of the generations


def sysfs_devices(system):
    """{number: folder} of the driver's devices, ascending; {} where it is not loaded."""
    names = sorted(listed(system, DEVICES), key=_number)
    return {_number(name): DEVICES + "/" + name for name in names if _number(name) >= 0}


def _number(name):
    return int(name[6:]) if re.match(r"^neuron[0-9]+$", name) else -1


def device_nodes(system):
    """Numbers of /dev/neuron*, ascending."""
    return sorted(number for number in map(_number, listed(system, "/dev")) if number >= 0)


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
    """The kind by the driver's own name of the device ("trainium3"), by the instance's type, or by the PCI bus; None
    where none of them says it."""
    types = [(system.read(path) or "") for path in DMI]
    for folder in sysfs_devices(system).values():
        name = _attribute(system, folder, "device_name") or _attribute(system, folder, "device_type")
        if name:
            return re.sub(r"[^a-z0-9]", "", name.lower())
        types.append(_attribute(system, folder, "instance_type"))
    devices = {(system.read(folder + "/device") or "").strip() for folder in bus_folders(system)}
    kinds = [*map(kind_of_instance, types), *(PCI_KINDS.get(device) for device in sorted(devices))]
    return next(filter(None, kinds), None)


def driver_devices(system, kind):
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


def bus_folders(system):
    """Folders of the Neuron devices on the PCI bus, by address."""
    return [
        "%s/%s" % (PCI, name)
        for name in listed(system, PCI)
        if (system.read("%s/%s/vendor" % (PCI, name)) or "").strip() == PCI_VENDOR
        and PCI_DEVICE.match((system.read("%s/%s/device" % (PCI, name)) or "").strip())
    ]


def _beside(system):
    """(NUMA node or None, CPUs) of every Neuron device by the PCI bus.

    Nothing says which of the driver's devices has which address, and their numbers do not follow the addresses; so it
    is sure only where all are at the same place.
    """
    places = set()
    for folder in bus_folders(system):
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


def detect(system):
    """Accelerators with one Device for each chip. FleetError where there is none, or none that can be asked."""
    kind, program = device_kind(system), neuron_ls.tool(system, "neuron-ls")
    answer = neuron_ls.devices_of(system, program, kind) if program else None
    if answer and answer[0]:
        devices, lnc, kind = answer
        silent = sorted(set(device_nodes(system)) - {device.id for device in devices})
        if silent:
            system.warn(
                "/dev has Neuron device%s %s, which neuron-ls does not list; see dmesg."
                % ("" if len(silent) == 1 else "s", format_cpu_list(silent))
            )
    else:
        devices, lnc = driver_devices(system, kind)
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
    packages = package_versions(system, [DRIVER, RUNTIME])
    driver = (system.read(LOADED) or "").strip() or packages.get(DRIVER)
    if kind is None:
        sizes = {device.memory_mib for device in devices}
        likely = [name.capitalize() for name, (_cores, gib) in KINDS.items() if sizes == {gib * 1024}]
        system.warn("The kind of the Neuron devices is not known: neither the driver's files nor neuron-ls name it.")
    return Accelerators(
        accelerator=kind or "unknown",
        vendor="AWS",
        model=kind.capitalize() if kind else " or ".join(likely) or "Unknown Neuron device",
        generation=GENERATIONS.get(kind, "unknown"),
        driver=driver or None,
        devices=devices,
        warnings=system.warnings,
        lnc=lnc,
        runtime=packages.get(RUNTIME),
    )


class Platform(Detector):
    """A Device is a chip; its `cores` and `core_ids` are logical cores."""

    unit = "Neuron device"
    has = ("lnc", "driver")
    driver_package = DRIVER
    advice: typing.ClassVar = {
        "lnc": "Set NEURON_LOGICAL_NC_CONFIG on the node, or plan for its LNC: fleet_hardware.lnc, needs.lnc and the "
        "recipe's arguments (docs/using/trainium.md).",
        "driver": "Update aws-neuronx-dkms.",
    }
    visible = ("NEURON_RT_VISIBLE_CORES", "NEURON_VISIBLE_DEVICES")  # cores, whatever the second one's name says
    parts = True
    start_hooks: typing.ClassVar = {artifacts.NAME: artifacts}

    def present(self, system):
        return bool(sysfs_devices(system) or device_nodes(system) or bus_folders(system))

    def detect(self, system):
        return detect(system)

    def shortfalls(self, found, hardware, needs, installs=()):
        """As for every platform, and a driver and a runtime that do not work together."""
        unfit = None if {DRIVER, RUNTIME} <= set(installs) else mismatch(found.driver, found.runtime)
        return super().shortfalls(found, hardware, needs, installs) + ([unfit] if unfit else [])

    def driver_missing(self, context):
        system = context.system
        there = sysfs_devices(system) or device_nodes(system) or package_versions(system, [DRIVER])
        return DRIVER in context.installs and not there and bool(bus_folders(system))

    def preflight(self, context):
        return [("packages", packages.check(context)), *preflight.checks(context, self.given)]
