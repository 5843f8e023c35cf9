# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Declared hardware (fleet_hardware): the accelerators of a node and their assignment to servers."""

from __future__ import annotations

import dataclasses

from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.host.values import format_cpu_list, parse_cpu_list
from ..base.checks import Mistakes, check_number, invalid, number, taken_twice, unknown_key
from ..platforms import PLATFORMS
from ..recipe.overrides import group_name

ACCELERATORS = {
    name: (platform, kind) for platform in PLATFORMS.values() for name, kind in platform.accelerators.items()
}
RANKED = ("kv_events", "side_channel")  # kinds of ports to which an engine adds the data-parallel rank
KEYS = ("accelerator", "count", "cores", "lnc", "memory_gib", "cpu_affinity", "exclude")
MAX_COUNT, MAX_CORES, MAX_MEMORY = 1024, 8192, 65536  # of a node; of a device; GiB of a device


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The hardware that the inventory declares for a node:
    ``count`` devices of ``cores`` physical cores each, at ``lnc``.

    cpu_affinity: (number of a device, nearby CPUs as a string) for each declared affinity. exclude: devices that are
    not assigned to servers.
    """

    accelerator: str
    platform: str
    count: int
    cores: int
    lnc: int
    memory_gib: float
    cpu_affinity: tuple = ()
    exclude: tuple = ()

    @property
    def units(self):
        """Number of units that servers are assigned: logical cores, or complete devices if they have no cores."""
        return self.count * self.cores // self.lnc if self.cores else self.count

    @property
    def chip(self):
        """Number of units of a device."""
        return self.cores // self.lnc if self.cores else 1

    @property
    def excluded(self):
        """Units that are not assigned to servers."""
        return frozenset(device * self.chip + piece for device in self.exclude for piece in range(self.chip))

    def fits_chips(self, size):
        """Return whether a server of ``size`` units has complete devices or an equal part of a device,
        if that matters."""
        return PLATFORMS[self.platform].fits_chips(self, size)

    @property
    def compute_capability(self):
        """Compute capability of the declared accelerator, such as "9.0"; "" if it has none."""
        return PLATFORMS[self.platform].accelerators[self.accelerator].compute_capability

    @property
    def unit(self):
        """Name of a unit in messages."""
        return PLATFORMS[self.platform].unit


def parse_hardware(declared, where):
    """Return the Hardware of the variable fleet_hardware.
    ``where`` names the host in errors (FleetError, a line for each)."""
    where += ": fleet_hardware"
    if not isinstance(declared, dict):
        example = next(iter(ACCELERATORS))
        raise invalid(where, declared, "a mapping, for example {accelerator: %s, count: 1}" % example)
    mistakes = Mistakes()
    for key in sorted(set(declared) - set(KEYS)):
        mistakes.keep(unknown_key(where, key, declared[key], KEYS))
    name = declared.get("accelerator")
    platform, kind = ACCELERATORS.get(name, (None, None)) if isinstance(name, str) else (None, None)
    if kind is None:
        mistakes.keep(invalid(where + ".accelerator", name, ", ".join(ACCELERATORS)))
    mistakes.raise_any()
    given = {key: value for key, value in declared.items() if value is not None}

    def read(key, default, high, whole=True):
        return mistakes.result_of(check_number, "%s.%s" % (where, key), given.get(key, default), high, whole) or 0

    count = read("count", None, MAX_COUNT)
    cores = read("cores", kind.cores, MAX_CORES) if kind.cores else 0
    if "cores" in given and not kind.cores:
        mistakes.keep(invalid(where + ".cores", given["cores"], "null for %s, whose devices have no cores" % name))
    lnc = read("lnc", kind.lnc, 64)
    if lnc not in kind.lnc_allowed and not mistakes.errors:
        mistakes.keep(invalid(where + ".lnc", lnc, " or ".join(map(str, kind.lnc_allowed))))
    elif cores and lnc and cores % lnc:
        mistakes.keep(invalid(where + ".cores", cores, "a multiple of fleet_hardware.lnc, %d" % lnc))
    memory = read("memory_gib", None, MAX_MEMORY, whole=False) if "memory_gib" in given else kind.memory_gib
    exclude = given.get("exclude") or []
    if not isinstance(exclude, list) or any(
        isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < count for one in exclude
    ):
        mistakes.keep(invalid(where + ".exclude", exclude, "a list of device numbers from 0 to %d" % (count - 1)))
    affinity = mistakes.result_of(_affinity, where + ".cpu_affinity", given.get("cpu_affinity"))
    mistakes.raise_any()
    hardware = Hardware(name, platform.name, count, cores, lnc, float(memory), affinity, tuple(sorted(set(exclude))))
    if any(device >= count for device, _cpus in affinity):
        raise invalid(where + ".cpu_affinity", given["cpu_affinity"], "devices from 0 to %d" % (count - 1))
    return hardware


def _affinity(where, declared):
    """Return ((device, CPUs as a string), …) of {"0-3": "0-47,96-143"}: keys are devices, or ranges of them."""
    found = {}
    try:
        for devices, cpus in ({} if declared is None else declared).items():
            numbers, near = parse_cpu_list(str(devices)), parse_cpu_list(str(cpus))
            if max(near, default=-1) not in range(MAX_CORES) or found.keys() & numbers:
                raise ValueError
            found.update(dict.fromkeys(numbers, str(cpus)))
    except (AttributeError, ValueError):
        allowed = "a mapping of devices, each once, to the CPUs near them, for example {0-3: 0-47, 4-7: 48-95}"
        raise invalid(where, declared, allowed) from None
    return tuple(sorted(found.items()))


MAX_SERVERS = 1000  # of a host; their names are a group's of up to 36 characters, and a number


def _group_counts(recipe, hardware):
    """Return the number of servers of each group: [int].
    Raises FleetError if they do not fit or do not divide evenly."""
    groups = recipe["servers"]
    automatic = [group for group in groups if group["count"] == "auto"]
    numbered = [group for group in groups if group["count"] != "auto"]
    if len(automatic) > 1 or (automatic and not automatic[0]["devices"]):
        raise invalid(_counts(automatic), "auto", "a number; auto for one group of servers whose devices are not 0")
    fixed = sum(group["count"] * group["devices"] for group in numbered)
    left = hardware.units - fixed
    if automatic and not automatic[0].get("device_list"):
        left -= sum(max(0, len(group["device_list"]) - group["count"] * group["devices"])
                    for group in numbered if group.get("device_list"))  # fmt: skip
    if left < 0:
        taking = [group for group in numbered if group["count"] and group["devices"]]
        needs = " + ".join("%s: %d x %d" % (group_name(one), one["count"], one["devices"]) for one in taking)
        raise FleetError("plan.devices-too-few", fixed, hardware.unit, needs, hardware.units, _counts(taking))
    counts = [_automatic(group, left, hardware) if group in automatic else group["count"] for group in groups]
    if not 0 < sum(counts) <= MAX_SERVERS:
        allowed = "1 to %d servers of a host; or no fleet_recipe" % MAX_SERVERS
        raise invalid("the sum of " + _counts(groups), sum(counts), allowed)
    return counts


def _counts(groups):
    return " and ".join("servers.%s.count" % group_name(group) for group in groups)


def _automatic(group, left, hardware):
    """Return how many servers of ``group``, whose count is auto, fit on its device_list, else on ``left`` devices."""
    size, left = group["devices"], len(group.get("device_list") or ()) or left
    if left < size or left % size:
        fits = [str(part) for part in range(1, left + 1) if left % part == 0 and hardware.fits_chips(part)]
        allowed = "%s, as count is auto and the host has %d %ss left"
        where = "servers.%s.devices" % group_name(group)
        raise invalid(where, size, allowed % (", ".join(fits) or "none", left, hardware.unit))
    return left // size


def server_names(recipe, hardware):
    """Return {group name: [server names]}. Raises FleetError if the servers do not fit."""
    counts = zip(map(group_name, recipe["servers"]), _group_counts(recipe, hardware))
    return {base: ["%s-%d" % (base, index) for index in range(count)] for base, count in counts}


def ranks_of(arguments):
    """Return the number of data-parallel ranks of an engine with these arguments."""
    given = {flag.replace("_", "-"): value for flag, value in arguments.items()}
    return number(given.get("data-parallel-size", given.get("dp"))) or 1


def ports_of(recipe, group, name):
    """Return {kind: port} of a server's ports, except the port for requests. recipe: with the group's own settings.
    Servers are one port apart, with data parallelism one for each rank."""
    index = int(name.rpartition("-")[2])
    ranks = ranks_of(recipe.get("arguments", {}))
    return {kind: port + index * (ranks if kind in RANKED else 1)
            for kind, port in group.get("ports", {}).items() if port is not None}  # fmt: skip


def port_ranges(entry):
    """Return {kind: range of ports} that a server listens on; the kind of the port for requests is None."""
    ranks = min(ranks_of(entry["arguments"]), MAX_COUNT)  # another check reports more ranks than devices
    ports = {None: entry["port"], **entry["ports"]}
    return {kind: range(port, port + (ranks if kind in RANKED else 1)) for kind, port in ports.items() if port}


def assign(recipe, hardware, names):
    """Return {group: {server: its devices}}. Servers with an excluded device are left out; the other servers keep their
    devices.

    names: {group: [server]}. A server gets the devices of its instance's device_list, else of its group's device_list,
    else the next devices that no list contains.
    """
    instances = recipe.get("instances") or {}
    given, taken = {}, {}
    for group in recipe["servers"]:
        size, listed, key = group["devices"], group.get("device_list"), "servers.%s.device_list" % group_name(group)
        for index, name in enumerate(names[group_name(group)]):
            own = (instances.get(name) or {}).get("device_list")
            if own is not None or listed is not None:
                place = key if own is None else "instances.%s.device_list" % name
                given[name] = listed[index * size : (index + 1) * size] if own is None else list(own)
                _check_list(place, name, given[name], size, hardware, taken, own is not None)
                taken.update(dict.fromkeys(given[name], place))
        taken = {**dict.fromkeys(listed or (), key), **taken}
    free = (device for device in range(hardware.units) if device not in taken)
    found = {}
    for group in recipe["servers"]:
        base, size = group_name(group), group["devices"]
        found[base] = {name: given.get(name) or [next(free, None) for _piece in range(size)] for name in names[base]}
        for name, devices in found[base].items():
            if None in devices:
                lacks = (hardware.unit, hardware.units, base)
                raise FleetError("plan.device-list-too-short", name, size, *lacks)
    kept = {
        base: {name: devices for name, devices in group.items() if not hardware.excluded & set(devices)}
        for base, group in found.items()
    }
    used, every = ([devices for group in one.values() for devices in group.values()] for one in (kept, found))
    if not any(used) and any(every):
        raise invalid("fleet_hardware.exclude", list(hardware.exclude), "devices that leave some servers theirs")
    return kept


def _check_list(key, name, devices, size, hardware, taken, own):
    if len(devices) != size:
        raise invalid(key, devices, "%d %ss for server '%s'" % (size, hardware.unit, name))
    for device in devices:
        if device >= hardware.units:
            raise invalid(key, device, "%ss from 0 to %d" % (hardware.unit, hardware.units - 1))
        if device in taken or devices.count(device) > 1 or (own and device in hardware.excluded):
            by = "fleet_hardware.exclude" if device in hardware.excluded else taken.get(device, "the same list")
            raise taken_twice(key, "the %s %d" % (hardware.unit, device), by)


def cpus(group, own, devices, hardware, where):
    """Return the CPUs of a server as a string, None for all:
    those of the instance, else of the group, else of its devices."""
    declared = own.get("cpus") or group.get("cpus")
    if declared:
        try:
            return format_cpu_list(parse_cpu_list(declared))
        except ValueError:
            raise invalid(where + ": cpus", declared, "numbers and ranges such as 0-47,96-143") from None
    near, devices = dict(hardware.cpu_affinity), sorted({unit // hardware.chip for unit in devices})
    lacking = [device for device in devices if device not in near]
    if not near or len(lacking) == len(devices):
        return None
    if lacking:
        key = "fleet_hardware.cpu_affinity of device %d" % lacking[0]
        raise invalid(key, None, "CPUs, as the server's others have")
    return format_cpu_list({number for device in devices for number in parse_cpu_list(near[device])})
