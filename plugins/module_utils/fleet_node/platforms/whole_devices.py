# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preflight of whole devices, whoever made them: which server is given which, and who holds them."""

from __future__ import annotations

from ..node import processes
from ..node.cpu_list import format_cpu_list

COMMAND_SHOWN = 120


def given(context):
    """{number of a device: [names of the servers that the run is about]}."""
    found = {}
    for name, entry in context.chosen.items():
        for number in entry["devices"]:
            found.setdefault(number, []).append(name)
    return found


def verb(names, one, more):
    """Names with the verb that suits their number."""
    return "%s %s" % (", ".join(names), one if len(names) == 1 else more)


def used(found, hardware):
    """The devices without those that the inventory excludes, which may be there, sick or gone."""
    return [device for device in found.devices if device.id not in (hardware.get("exclude") or ())]


def unlisted(context, unit):
    """Servers that are given a device which the node does not have, where it is as declared."""
    names, there = given(context), [device.id for device in context.found.devices]
    for number in sorted(set(names) - set(there)) if context.fits else ():
        yield (
            "%s given %s %d, which this node does not have: it has %s. Correct fleet_hardware.count, or list it in "
            "fleet_hardware.exclude." % (verb(names[number], "is", "are"), unit, number, format_cpu_list(there))
        )


def faults(context, unit, of):
    """The same, and of(device): sentences on what stops servers, of the devices that servers about to start are given;
    those of others are warnings."""
    yield from unlisted(context, unit)
    names = given(context)
    for device in used(context.found, context.hardware):
        wrong, users = of(device), names.get(device.id, [])
        if users and not set(users) <= set(context.unchanged):
            yield from wrong
        else:
            context.warnings += wrong


def starting(context, device):
    """Names of the servers that are given a device and do not run as planned."""
    return [name for name in given(context).get(device.id, ()) if name not in context.unchanged]


def held(context, unit):
    """Devices that servers about to start are given and that a process which is none of this root's has."""
    own = {pid for pids in processes.marked_processes(context.root).values() for pid in pids}
    found = {}
    for device in context.found.devices:
        users = starting(context, device)
        for holder in device.holders if users else ():
            if holder["pid"] not in own:
                found.setdefault(holder["pid"], (holder, [], users))[1].append(device.id)
    for pid, (holder, numbers, users) in sorted(found.items()):
        markers = processes.markers_of(pid)
        command = processes.command(pid) or holder["command"] or "its command is gone"
        yield (
            "pid %d (%s%s) holds %s%s %s, which %s given. Stop it; a server of another root ends with its own "
            "playbooks/stop.yml."
            % (pid, command[:COMMAND_SHOWN],
               ", server %s below the root %s" % (markers[1], markers[0]) if markers else "",
               unit, "" if len(numbers) == 1 else "s", format_cpu_list(numbers), verb(users, "is", "are"))
        )  # fmt: skip
