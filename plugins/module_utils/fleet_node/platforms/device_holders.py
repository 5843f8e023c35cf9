# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""That stopped servers hold no accelerator. The devices are asked who holds them: a process may have lost its
environment and its cgroup."""

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

    Where it is not known which cores of a device a process has, all of them count. FleetError where the devices cannot
    be asked.
    """
    found = {}
    for name in sorted({entry["platform"] for entry in entries}):
        platform = PLATFORMS.get(name)
        if platform is None or not platform.holds:
            continue
        numbers = {number for entry in entries if entry["platform"] == name for number in entry["devices"]}
        for device in platform.detect(system or System("")).devices:
            # a device that does not tell which parts it has may have any of them
            ids = device.core_ids or (numbers if platform.parts else [device.id])
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
    """The server of this root that the process belongs to, by its environment or its unit; None for a stranger's."""
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
    """End what is left of these stopped servers on their devices; the holders that are somebody else's.

    Returns (list of holders(), None), or (None, why the devices cannot be asked): a node is cleaned up where its driver
    is broken, unloaded or not there as well. A running server of ours that shares a device is none of the holders.
    FleetError where a process of ours survives SIGKILL.
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
                "The servers are stopped, but %s of theirs survived SIGKILL and %s devices: %s. See what they wait for "
                "(state D in ps); only a reboot may free the devices.",
                (
                    "a process" if len(left) == 1 else "processes",
                    "holds" if len(left) == 1 else "hold",
                    "; ".join(describe(one) for one in ours if one["pid"] in left),
                ),
                details={"left": left},
            )
        try:
            found = holders(entries, system)
        except FleetError as error:
            return None, error.message
    return [one for one in found if server_of(one["pid"], root) is None], None


def describe(holder):
    """A holder for a person."""
    return "process %d of %s (%s) on device %s" % (
        holder["pid"],
        holder["user"] or "nobody known",
        (holder["command"] or "gone")[:120],
        ", ".join(str(number) for number in holder["devices"]),
    )
