# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Platforms on a node: the found accelerators are compared with the declared and required accelerators."""

from __future__ import annotations

import dataclasses
import typing

from ..errors import FleetError
from ..host import processes
from ..host.packages import at_least
from ..host.values import format_cpu_list
from .host import PCI, whole_number

COMMAND_SHOWN = 120
# Properties that a recipe can require and that not every platform has, with the attribute of Accelerators or Device.
OPTIONAL_NEEDS = ("lnc", "driver", "compute_capability")


@dataclasses.dataclass
class Device:
    """A device of a node.

    id: the number in a plan entry's `devices`. memory_mib: MiB, or None if unknown. cores: usable cores. numa: the
    kernel's node number, or None. cpus: the CPUs near it, such as "0-3,8". health: "ok" or the vendor's word for a
    fault. holders: [{pid, command}] of the processes that use it. core_ids: the numbers in a plan entry's `devices` if
    servers are assigned parts of a device, such as logical cores.
    """

    id: int
    memory_mib: int | None
    cores: int = 1
    numa: int | None = None
    cpus: str = ""
    health: str = "ok"
    holders: list = dataclasses.field(default_factory=list)
    core_ids: list = dataclasses.field(default_factory=list)

    def locate(self, system, address):
        """Set `numa` and `cpus` by the kernel's entry of a PCI address."""
        folder = "%s/%s" % (PCI, address)
        self.numa = whole_number(system.value(folder + "/numa_node"))
        self.cpus = format_cpu_list(system.cpu_list(folder + "/local_cpulist") or ())


@dataclasses.dataclass
class Card(Device):
    """A device on the PCI bus. address: its address there. product: its name, None if unknown. faults: sentences on
    what prevents servers from using it."""

    address: str = ""
    product: str | None = None
    faults: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Accelerators:
    """The accelerators of a node.

    accelerator: the name in fleet_hardware.accelerator. generation: the vendor's name of the architecture. driver: its
    version, or None. flags: instruction sets and features, sorted. warnings: what is not readable, and what limits the
    hardware. lnc: physical cores in a logical core, runtime: version of the vendor's library; None without one.
    """

    accelerator: str
    vendor: str
    model: str
    generation: str
    driver: str | None
    devices: list
    flags: list = dataclasses.field(default_factory=list)
    warnings: list = dataclasses.field(default_factory=list)
    lnc: int | None = None
    runtime: str | None = None

    def as_dict(self):
        """The same, ready for JSON."""
        return dataclasses.asdict(self)


@dataclasses.dataclass
class Context:
    """A node and its plan, as preflight knows them.

    root: fleet_root. system: host.System. entries: {name: plan entry}; only: names that the run is limited to, empty
    for all. hardware: fleet_hardware, needs: the recipe's, or {}. models, venvs: of all groups of servers. installs:
    packages that the platform's role installs in this run. unchanged: names of the servers that run as planned. found:
    Accelerators, or None. adopted: {name: by_hand.recognise()} of servers that the run replaces. fits: they are as
    declared and required. warnings: not errors, and what this run repairs.
    """

    root: str
    system: object
    entries: dict
    only: tuple = ()
    hardware: dict = dataclasses.field(default_factory=dict)
    needs: dict = dataclasses.field(default_factory=dict)
    models: tuple = ()
    venvs: tuple = ()
    installs: dict = dataclasses.field(default_factory=dict)
    unchanged: tuple = ()
    found: Accelerators | None = None
    adopted: dict = dataclasses.field(default_factory=dict)
    fits: bool = False
    warnings: list = dataclasses.field(default_factory=list)

    @property
    def chosen(self):
        """{name: entry} of the servers of this run."""
        return {name: entry for name, entry in self.entries.items() if not self.only or name in self.only}


class Detector:
    """Detects and checks one kind of accelerator. `system` is a host.System; nothing on the node is changed.

    unit: what messages call a device. has: the names of OPTIONAL_NEEDS that the platform has. shared: a declared device
    is a share of the machine, so sums are compared. tolerance: share of a device's memory by which it may be smaller.
    driver_package: the package of `installs` with the driver. advice: {lnc, driver: last sentence of that message,
    missing: a sentence in the message about missing devices}. start_hooks: {name in a plan entry's `hooks`: module with
    the supervisor's actions around a start}.
    lost_by_reload: a device file of nodes on which a daemon-reload of systemd may remove devices from containers, or
    None. setuid_helper: its driver starts setuid programs from within servers, so their units must permit that.
    kernel_faults: patterns of lines of the kernel's log that report a fault of such hardware. kinds: {accelerator:
    (architecture, MiB of memory, …)} of those with recipes.
    """

    unit = "device"
    has = ()
    shared = False
    tolerance = 0.01
    driver_package = None
    advice: typing.ClassVar = {}
    lost_by_reload = None
    setuid_helper = False
    kernel_faults = ()
    start_hooks: typing.ClassVar = {}
    kinds: typing.ClassVar = {}

    def present(self, system):
        """Whether the node has such hardware, without a query of each device."""
        raise NotImplementedError

    def detect(self, system):
        """Accelerators of the node. Raises FleetError if the hardware does not answer."""
        raise NotImplementedError

    def shortfalls(self, found, hardware, needs, installs=()):
        """[FleetError] for what `found` lacks of the declared and required hardware.

        hardware: fleet_hardware {accelerator, count, cores, lnc, memory_gib, exclude}, or {}; excluded devices may be
        missing. needs: the recipe's. An absent key and None are equal. installs: packages that the platform's role
        installs in this run.
        """
        return [one for one in compare(self, found, hardware, needs, installs) if isinstance(one, FleetError)]

    def unchecked(self, found, hardware, needs):
        """Sentences on what shortfalls() could not check because the node does not report it."""
        unknown = [one for one in compare(self, found, hardware, needs) if not isinstance(one, FleetError)]
        return ["Not checked: %s; the node does not report it." % what for what in unknown]

    def driver_missing(self, context):
        """Whether the devices appear only after the platform's role has installed the driver in this run."""
        return False

    def preflight(self, context):
        """[(check, [FleetError or message])] of further problems of its servers; may add to context.warnings.

        By default faults of the vendor's devices, and processes that use them.
        """
        if not context.found or self.shared:
            return []
        found = {"%ss" % self.unit.lower(): faults(context), "holders": held(context, self.unit)}
        return [(check, list(messages)) for check, messages in found.items()]


# ---- detection, equal for vendors of GPUs


def accelerators_of(system, devices, on_the_bus, log, **facts):
    """Accelerators of a vendor's GPUs, each a Card with a `kind`, which is None without recipes.

    on_the_bus: addresses of the GPUs on the PCI bus. log: word for the driver in the kernel's log. facts: vendor,
    generation, driver, runtime.
    """
    for device in devices:
        device.locate(system, device.address)
    for address in sorted(set(on_the_bus) - {device.address for device in devices}):
        words = "The PCI bus has the GPU %s, which the driver does not list; look for %s in dmesg."
        system.warn(words % (address, log))
    known = [device.kind for device in devices if device.kind]
    products = sorted({device.product for device in devices if device.product})
    if len({device.kind for device in devices if device.product}) > 1:
        system.warn("The GPUs of this node are of several kinds: %s." % ", ".join(products))
    elif not known:
        system.warn("There are no recipes for the GPUs of this node: %s." % (", ".join(products) or "unknown"))
    kind = max(known, key=known.count) if known else "unknown"
    of_kind = sorted(devices, key=lambda device: device.kind != kind)
    model = next((device.product for device in of_kind if device.product), "unknown")
    return Accelerators(accelerator=kind, model=model, devices=devices, warnings=system.warnings, **facts)


# ---- comparison of found with declared and required hardware


def used(found, hardware):
    """The devices without those that the inventory excludes, which may be present, faulty or missing."""
    return [device for device in found.devices if device.id not in (hardware.get("exclude") or ())]


def compare(platform, found, hardware, needs, installs=()):
    """Yields the names of properties that the node does not report, and a FleetError for each that `found` lacks.

    `platform.advice` has the last sentences of a vendor.
    """
    unit, has, advice = platform.unit, platform.has, platform.advice
    devices = found.devices if platform.shared else used(found, hardware)
    planned = max((hardware.get("count") or 1) - len(set(hardware.get("exclude") or ())), 1)
    notes = "".join(" " + warning for warning in found.warnings)
    if not platform.shared:
        yield from _missing_devices(platform, found, hardware, notes)
    lnc = (hardware.get("lnc") or needs.get("lnc")) if "lnc" in has else None
    if lnc and found.lnc != lnc:
        unknown = "LNC and logical cores (fleet_hardware.lnc and cores, needs.lnc)"
        yield FleetError("platform.lnc-differs", lnc, found.lnc, advice["lnc"]) if found.lnc else unknown
    else:
        yield from _too_few_cores(platform, found, hardware, devices, planned, notes)
    yield from _too_little_memory(platform, found, hardware, needs, devices, planned, notes)
    least = needs.get("driver") if "driver" in has and platform.driver_package not in installs else None
    if least and not at_least(found.driver, str(least)):
        if found.driver or platform.driver_package:
            yield FleetError("platform.driver-too-old", least, found.driver or "none", advice["driver"])
        else:
            yield "the driver (needs.driver)"
    wanted = [str(one) for one in needs.get("compute_capability") or ()] if "compute_capability" in has else []
    unfit = {device.compute_capability for device in devices if wanted} - set(wanted)
    if None in unfit:
        yield "the compute capability of each %s (needs.compute_capability)" % unit
    if unfit - {None}:
        capabilities = " or ".join(wanted), found.model, ", ".join(sorted(unfit - {None}))
        yield FleetError("platform.compute-capability-unfit", *capabilities, unit)
    for key in OPTIONAL_NEEDS:
        if needs.get(key) and key not in has:
            yield FleetError("platform.need-unsupported", key, unit)


def _missing_devices(platform, found, hardware, notes):
    present = {device.id for device in found.devices}
    missing = set(range(hardware.get("count") or 0)) - present - set(hardware.get("exclude") or ())
    if not missing:
        return
    last = max(present, default=-1)
    remedy = "list %s in fleet_hardware.exclude" % format_cpu_list(missing)
    if min(missing) > last:  # a lower count helps only if the last devices are missing
        remedy = "set fleet_hardware.count to %d" % (last + 1)
    numbers = len(present), format_cpu_list(present) or "none", format_cpu_list(missing)
    advice = platform.advice.get("missing", "")
    yield FleetError("platform.devices-missing", hardware["count"], platform.unit, *numbers, notes, advice, remedy)


def _too_few_cores(platform, found, hardware, devices, planned, notes):
    cores, lnc = hardware.get("cores") or 1, found.lnc or 1
    if platform.shared:
        compared = bool(hardware)
    else:
        compared = found.lnc and hardware.get("count") and hardware.get("cores") and len(devices) >= planned
        devices = devices[:planned]
    present, declared = sum(device.cores for device in devices), planned * cores // lnc
    if compared and present < declared:
        parts = "count %d × cores %d%s" % (planned, cores, " / lnc %d" % lnc if found.lnc else "")
        yield FleetError("platform.cores-too-few", declared, parts, present, found.model, notes)


def _too_little_memory(platform, found, hardware, needs, devices, planned, notes):
    """Compares the smallest device, or on a shared platform one share of the sum."""
    usual_mib = platform.kinds.get(found.accelerator, ("", 0))[1]
    planned_gib = hardware.get("memory_gib") or usual_mib / 1024
    amounts = (
        (planned_gib, "The plan assumes", "fleet_hardware.memory_gib"),
        (needs.get("device_memory_gib"), "The recipe requires", "needs.device_memory_gib"),
    )
    known = [device.memory_mib for device in devices if device.memory_mib is not None]
    smallest = (sum(known) / planned if platform.shared else min(known, default=0)) / 1024
    wanted = [one for one in amounts if one[0]]
    if wanted and len(known) < len(devices):
        yield "the memory of each %s (fleet_hardware.memory_gib, needs.device_memory_gib)" % platform.unit
    lacking = [one for one in wanted if known and smallest < one[0] * (1 - platform.tolerance)]
    for amount, who, key in lacking[:1]:
        yield FleetError("platform.memory-too-small", who, amount, platform.unit, key, found.model, smallest, notes)


# ---- checks of devices before servers start, equal for all vendors


def starting(context, device_ids):
    """Names of this run's servers that are assigned any of these devices or cores and do not run as planned."""
    return [name for name, entry in context.chosen.items()
            if name not in context.unchanged and set(entry["devices"]) & set(device_ids)]  # fmt: skip


def faults(context):
    """Yields faults of devices of servers that are about to start. Faults of other devices are warnings."""
    for device in used(context.found, context.hardware):
        if starting(context, [device.id]):
            yield from device.faults
        else:
            context.warnings += device.faults


def held(context, unit, given=None):
    """Yields a FleetError for each process, no server of this root, on devices of servers that are about to start.

    given(pid, parts): those of a device's parts that a process uses, None if unknown; None for a platform whose servers
    use complete devices.
    """
    own = set(processes.server_pids(context.root))
    own |= processes.with_children(one["pid"] for one in context.adopted.values())
    found = {}
    for device in context.found.devices:
        parts = device.core_ids if given else [device.id]
        for holder in device.holders:
            ids = (given(holder["pid"], parts) if given else None) or parts
            names = starting(context, ids)
            if names and holder["pid"] not in own:
                record = found.setdefault(holder["pid"], {"holder": holder, "devices": [], "cores": set(), "names": []})
                record["devices"].append(device.id)
                record["cores"].update(ids)
                record["names"] += names
    for pid, record in sorted(found.items()):
        markers = processes.markers_of(pid)
        command = processes.command(pid) or record["holder"]["command"] or "its command is gone"
        yield FleetError(
            "platform.device-held",
            pid,
            command[:COMMAND_SHOWN] + (", server %s below the root %s" % (markers[1], markers[0]) if markers else ""),
            "%s %s" % (unit, format_cpu_list(record["devices"])),
            " (cores %s)" % format_cpu_list(record["cores"]) if given else "",
            ", ".join(dict.fromkeys(record["names"])),
        )
