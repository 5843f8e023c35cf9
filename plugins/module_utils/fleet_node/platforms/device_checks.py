# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preflight checks of devices, equal for all vendors: missing, faulty and held ones."""

from __future__ import annotations

from ..host import processes
from ..host.cpu_list import format_cpu_list
from .base import used

COMMAND_SHOWN = 120


def users(context, device_ids, entries=None):
    """Names of the servers of this run, or of `entries`, that are assigned any of these devices or cores."""
    entries = context.chosen if entries is None else entries
    return [name for name, entry in entries.items() if set(entry["devices"]) & set(device_ids)]


def starting(context, device_ids):
    """Names of the servers that are assigned any of these devices or cores and do not run as planned."""
    return [name for name in users(context, device_ids) if name not in context.unchanged]


def faults(context, unit, of):
    """Messages about devices that the node lacks, and of(device): sentences about its faults.

    Faults of devices that no server about to start is assigned are warnings.
    """
    present = [device.id for device in context.found.devices]
    assigned = {number for entry in context.chosen.values() for number in entry["devices"]}
    for number in sorted(assigned - set(present)) if context.fits else ():
        yield (
            "%s: assigned %s %d, which this node does not have; it has %s. Correct fleet_hardware.count, or list the "
            "device in fleet_hardware.exclude."
            % (", ".join(users(context, [number])), unit, number, format_cpu_list(present))
        )
    for device in used(context.found, context.hardware):
        if starting(context, [device.id]):
            yield from of(device)
        else:
            context.warnings += of(device)


def held(context, unit, given=None):
    """Messages about processes, not servers of this root, on devices that servers about to start are assigned.

    given: Detector.given of a platform whose servers use parts of a device, such as cores.
    """
    own = {pid for pids in processes.marked_processes(context.root).values() for pid in pids}
    lnc = context.hardware.get("lnc") or context.needs.get("lnc")
    found = {}
    for device in context.found.devices:
        parts = device.core_ids if given else [device.id]
        if not parts and lnc:  # the node does not report its LNC; the plan's counts then
            parts = range(device.id * (device.cores // lnc), (device.id + 1) * (device.cores // lnc))
        for holder in device.holders:
            ids = given(holder["pid"], parts) if given else None
            names = starting(context, ids or parts)
            if names and holder["pid"] not in own:
                record = found.setdefault(holder["pid"], (holder, [], set(), {}))
                record[1].append(device.id)
                record[2].update(ids or parts)
                record[3].update(dict.fromkeys(names))
    for pid, (holder, devices, cores, names) in sorted(found.items()):
        markers = processes.markers_of(pid)
        command = processes.command(pid) or holder["command"] or "its command is gone"
        yield (
            "pid %d (%s%s) holds %s %s%s, assigned to %s. Stop the process; playbooks/stop.yml of another root stops "
            "its servers."
            % (
                pid,
                command[:COMMAND_SHOWN],
                ", server %s below the root %s" % (markers[1], markers[0]) if markers else "",
                unit,
                format_cpu_list(devices),
                " (cores %s)" % format_cpu_list(cores) if given else "",
                ", ".join(names),
            )
        )
