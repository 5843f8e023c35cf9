# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launchers: how an engine runs. A service manager executes an entry's `launch`; a launcher finds what it leaves.

A launcher is a class `Launcher(root)`, root being "" for the system's own, with three methods. All of them are called
only while the service manager does not run the server.

    prepare(entry)         raises FleetError if a requirement of the start is missing that the reconciler does not make
                           (an image, a program, a device). Changes nothing.
    leftovers(entry)       [{id, what}] of the server's remaining processes and containers: id is an int pid or a
                           container's ID, what a description. Uses only the name of the entry.
    stop_leftovers(entry)  ends them, TERM then KILL, and returns leftovers(entry) afterwards: empty is the proof.
"""

from __future__ import annotations

from ..containers.launcher import ContainerLauncher
from .process import ProcessLauncher

LAUNCHERS = {"process": ProcessLauncher, "container": ContainerLauncher}


def get_launcher(entry, root):
    """The launcher of a plan entry; of {"name": …} alone, that of processes."""
    return LAUNCHERS[entry.get("launcher", "process")](root)
