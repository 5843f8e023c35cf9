# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many servers a host has, what they are called, and which devices and CPUs each is given."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.cpu_list import (
    format_cpu_list,
    parse_cpu_list,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.server_spec import NAME
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.overrides import group_name

MAX_SERVERS = 1024  # of a host


def group_counts(recipe, hardware):
    """How many servers each group gets: [int]. FleetError where they do not fit or do not divide."""
    groups = recipe["servers"]
    automatic = [group for group in groups if group["count"] == "auto"]
    if len(automatic) > 1:
        raise FleetError(
            "plan.count-auto-twice",
            "%s are 'auto'; allowed for one group only. Give the others a number.",
            (" and ".join("servers.%s.count" % group_name(group) for group in automatic),),
        )
    numbered = [group for group in groups if group["count"] != "auto"]
    fixed = sum(group["count"] * group["devices"] for group in numbered)
    left = hardware.units - fixed
    if automatic and not automatic[0].get("device_list"):
        left -= sum(max(0, len(group["device_list"]) - group["count"] * group["devices"])
                    for group in numbered if group.get("device_list"))  # fmt: skip
    if left < 0:
        taking = [group for group in numbered if group["count"] and group["devices"]]
        raise FleetError(
            "plan.devices-too-few",
            "the servers need %d %ss (%s), but %s has %d. Lower %s or devices there, or correct fleet_hardware.",
            (
                fixed,
                hardware.unit,
                " + ".join("%s: %d x %d" % (group_name(group), group["count"], group["devices"]) for group in taking),
                hardware.accelerator,
                hardware.units,
                " or ".join("servers.%s.count" % group_name(group) for group in taking),
            ),
        )
    free = [len(group["device_list"]) if group.get("device_list") else left for group in groups]
    counts = [
        group["count"] if group in numbered else _automatic(group, count, hardware)
        for group, count in zip(groups, free)
    ]
    if not 0 < sum(counts) <= MAX_SERVERS:
        raise FleetError(
            "plan.servers-too-many",
            "%s %d servers on the host; allowed: 1 to %d. Change the count%s.",
            (
                " + ".join("servers.%s.count" % group_name(group) for group in groups) + " is",
                sum(counts),
                MAX_SERVERS,
                "" if sum(counts) else ", or remove fleet_recipe from a host that is to have none",
            ),
        )
    return counts


def _automatic(group, left, hardware):
    """How many servers of ``group``, whose count is auto, ``left`` devices make."""
    name, size = group_name(group), group["devices"]
    if not size:
        raise FleetError(
            "plan.count-auto-without-devices",
            "servers.%s.count is auto, but servers.%s.devices is 0; set the count to a number.",
            (name, name),
        )
    if left < size or left % size:
        fits = [str(part) for part in range(1, left + 1) if left % part == 0 and hardware.fits_chips(part)]
        raise FleetError(
            "plan.devices-do-not-divide",
            "%d %ss do not divide into servers of %d (servers.%s.devices, with count auto); allowed devices: %s.",
            (left, hardware.unit, size, name, ", ".join(fits) or "none, all are taken"),
        )
    return left // size


def server_names(recipe, counts):
    """{group name: [server names]}; FleetError where two are equal or too long."""
    names = {}
    for group, count in zip(recipe["servers"], counts):
        base = group_name(group)
        if base in names:
            raise FleetError(
                "plan.group-twice", "two groups of servers are named '%s'; give each its own name.", (base,)
            )
        names[base] = ["%s-%d" % (base, index) for index in range(count)]
        for name in names[base][-1:]:
            if not NAME.match(name):
                raise FleetError("plan.name-too-long", "server name '%s' is too long; allowed: 40 characters.", (name,))
    every = [name for group in names.values() for name in group]
    double = sorted({name for name in every if every.count(name) > 1})
    if double:
        raise FleetError("plan.name-twice", "two servers are named '%s'; rename one of the groups.", (double[0],))
    return names


def assign(recipe, hardware, names):
    """{server: its devices}, without the servers that an excluded device belongs to: the others keep theirs.

    names: {group: [server]}. A server takes the devices of its instance's device_list, else those of its group's, else
    the next ones that no list names.
    """
    instances = recipe.get("instances") or {}
    given, taken = {}, {}
    for group in recipe["servers"]:
        size, listed = group["devices"], group.get("device_list")
        for index, name in enumerate(names[group_name(group)]):
            own = (instances.get(name) or {}).get("device_list")
            if own is None and listed is None:
                continue
            key = "instances.%s.device_list" % name if own is not None else "servers.%s.device_list" % group_name(group)
            given[name] = own if own is not None else listed[index * size : (index + 1) * size]
            _check_list(key, name, given[name], size, hardware, taken, own is not None)
            taken.update(dict.fromkeys(given[name], key))
        for device in listed or ():
            taken.setdefault(device, "servers.%s.device_list" % group_name(group))
    free = (device for device in range(hardware.units) if device not in taken)
    found = {}
    for group in recipe["servers"]:
        for name in names[group_name(group)]:
            devices = given[name] if name in given else [next(free, None) for _piece in range(group["devices"])]
            if None in devices:
                raise FleetError(
                    "plan.devices-too-few-left",
                    "server '%s' needs %d %ss, but the lists of devices leave too few of the %d. Shorten them, or "
                    "lower servers.%s.count.",
                    (name, group["devices"], hardware.unit, hardware.units, group_name(group)),
                )
            found[name] = list(devices)
    kept = {name: devices for name, devices in found.items() if not hardware.excluded & set(devices)}
    if not any(kept.values()) and any(found.values()):
        raise FleetError(
            "plan.devices-all-excluded",
            "fleet_hardware.exclude is %s, which leaves no server its devices. Remove some, or fleet_recipe from the "
            "host.",
            (list(hardware.exclude),),
        )
    return kept


def _check_list(key, name, devices, size, hardware, taken, own):
    if len(devices) != size:
        raise FleetError(
            "plan.device-list-length",
            "%s gives server '%s' %d %ss, but it takes %d. Give as many.",
            (key, name, len(devices), hardware.unit, size),
        )
    for device in devices:
        if device >= hardware.units:
            raise FleetError(
                "plan.device-unknown",
                "%s has the %s %d; allowed: 0 to %d. Use one of these.",
                (key, hardware.unit, device, hardware.units - 1),
            )
        if device in taken or devices.count(device) > 1:
            raise FleetError(
                "plan.device-twice",
                "%s has the %s %d, which %s has as well. Remove it from one of them.",
                (key, hardware.unit, device, taken.get(device, "the same list")),
            )
        if own and device in hardware.excluded:
            raise FleetError(
                "plan.device-excluded",
                "%s has the %s %d, which fleet_hardware.exclude takes out. Use another one.",
                (key, hardware.unit, device),
            )


def cpus(group, own, devices, hardware, where):
    """CPUs of one server as text, None for all: the instance's own, else the group's, else those of its devices."""
    for layer in (own, group):
        if layer.get("cpus"):
            try:
                return format_cpu_list(parse_cpu_list(layer["cpus"]))
            except ValueError as error:
                raise FleetError("plan.cpus-invalid", "%s: cpus: %s.", (where, error)) from None
    near = dict(hardware.cpu_affinity)
    lacking = [device for device in devices if device not in near]
    if not near or len(lacking) == len(devices):
        return None
    if lacking:
        raise FleetError(
            "plan.affinity-incomplete",
            "%s: fleet_hardware.cpu_affinity lacks the device %d, but has others of the same server; give all or none.",
            (where, lacking[0]),
        )
    return format_cpu_list({number for device in devices for number in parse_cpu_list(near[device])})
