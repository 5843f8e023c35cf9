# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many servers a host has, what they are called, and which devices and CPUs each is given."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.cpu_list import parse_cpu_list
from ansible_collections.inference.fleet.plugins.module_utils.server_spec import NAME
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.placeholders import ranges
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
    counts = [group["count"] if group in numbered else _automatic(group, left, hardware) for group in groups]
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


def cpus(group, own, devices, hardware, where):
    """CPUs of one server as text, None for all: the instance's own, else the group's, else those of its devices."""
    for layer in (own, group):
        if layer.get("cpus"):
            try:
                return ranges(parse_cpu_list(layer["cpus"]))
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
    return ranges({number for device in devices for number in parse_cpu_list(near[device])})
