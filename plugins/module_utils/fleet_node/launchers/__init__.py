# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launchers: how an engine runs. A service manager executes an entry's `launch`; a launcher knows what that leaves.

A launcher is a class `Launcher(root)`, root being "" for the system's own, with three methods. All of them are called
only while the service manager does not run the server.

    prepare(entry)         what must be there before a start and is no file of the reconciler's (an image, a program).
                           Raises FleetError where it cannot be had. Changes nothing that runs.
    leftovers(entry)       [{id, what}] of all that still runs of the server: id is an int pid or a container's id,
                           what a line for a person. Needs no more of the entry than its name.
    stop_leftovers(entry)  ends them, TERM then KILL, and returns leftovers(entry) afterwards: empty is the proof.
"""

from __future__ import annotations

from ..containers import launcher as container
from ..errors import FleetError
from . import process

LAUNCHERS = {"process": process.ProcessLauncher, "container": container.ContainerLauncher}


def get_launcher(entry, root):
    """The launcher of a plan entry (of {"name": …} alone: a process). FleetError where this version has none."""
    kind = entry.get("launcher", "process")
    if kind not in LAUNCHERS:
        raise FleetError(
            "launch.launcher-unknown",
            "Server '%s': launcher '%s' is unknown to this version of inference.fleet; allowed: %s. Use the version "
            "that made the plan.",
            (entry["name"], kind, ", ".join(sorted(LAUNCHERS))),
        )
    return LAUNCHERS[kind](root)
