# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that hold accelerators of stopped servers, by the devices: a process may have lost its environment and its
cgroup."""

from __future__ import annotations

import os
import re

from ..errors import FleetError
from ..host import paths as host_paths
from ..host import processes
from .host import System
from .registry import PLATFORMS

TERM_S, KILL_S = 5, 5
UNIT = re.compile(r"/%s([a-z0-9-]+)\.service(/|$)" % host_paths.PREFIX)


def holders(entries, system=None):
    """[{pid, command, user, devices: [ids]}] of the processes that hold cores of these entries ([plan entry]).

    A process whose cores of a device are unknown counts for all of them. Raises FleetError if the devices do not
    answer.
    """
    found = {}
    for name in sorted({entry["platform"] for entry in entries}):
        platform = PLATFORMS.get(name)
        if platform is None or not platform.holds:
            continue
        numbers = {number for entry in entries if entry["platform"] == name for number in entry["devices"]}
        for device in platform.detect(system or System("")).devices:
            ids = device.core_ids or [device.id]
            for holder in device.holders:
                if not numbers & set(platform.given(holder["pid"], ids) or ids):
                    continue
                one = {"pid": holder["pid"], "command": processes.command(holder["pid"]) or holder["command"],
                       "user": _user(holder["pid"]), "devices": []}  # fmt: skip
                found.setdefault(holder["pid"], one)["devices"].append(device.id)
    return [found[pid] for pid in sorted(found)]


def _user(pid):
    try:
        return processes.user_name(os.stat("/proc/%d" % pid).st_uid)
    except OSError:
        return None


def server_of(pid, root):
    """The server of this root that the process belongs to, by its environment or its unit, or None."""
    markers = processes.markers_of(pid)
    if markers is not None:
        return markers[1] if markers[0] == (root or "/") else None
    if root:
        return None
    try:
        with open("/proc/%d/cgroup" % pid, encoding="utf-8", errors="replace") as stream:
            found = UNIT.search(stream.read().replace("\n", "/"))
    except OSError:
        return None
    return found.group(1) if found else None


def release(entries, root, system=None):
    """End processes of these stopped servers that still hold their devices.

    Returns (holders() that do not belong to servers of this root, None), or (None, the reason why the devices do not
    answer), because a node with a broken driver is cleaned up as well. Raises FleetError if a process survives SIGKILL.
    """
    names = {entry["name"] for entry in entries}
    try:
        found = holders(entries, system)
    except FleetError as error:
        return None, error.message
    ours = [one for one in found if server_of(one["pid"], root) in names]
    if ours:
        left = processes.terminate([one["pid"] for one in ours], TERM_S, KILL_S)
        if left:
            raise FleetError(
                "devices.process-survived",
                "The servers are stopped, but processes survived SIGKILL and hold devices: %s. See what they wait for "
                "(state D in ps); only a reboot may free the devices.",
                ("; ".join(describe(one) for one in ours if one["pid"] in left),),
                details={"left": left},
            )
        try:
            found = holders(entries, system)
        except FleetError as error:
            return None, error.message
    return [one for one in found if server_of(one["pid"], root) is None], None


def describe(holder):
    """A holder in a message."""
    return "process %d of %s (%s) on device %s" % (
        holder["pid"],
        holder["user"] or "nobody known",
        (holder["command"] or "gone")[:120],
        ", ".join(str(number) for number in holder["devices"]),
    )
