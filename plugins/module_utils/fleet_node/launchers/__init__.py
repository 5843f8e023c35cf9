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

import os
import shutil

from ..containers.launcher import ContainerLauncher, end_processes, process_leftovers
from ..errors import FleetError
from ..host import paths as host_paths


def program_problem(entry):
    """Why the program of an entry's process cannot be executed; None if it can, and for other launchers."""
    if entry["launcher"] != "process":
        return None
    program = entry["launch"][0] if entry["launch"] else ""
    path = entry["environment"].get("PATH", host_paths.PATH)
    found = program if "/" in program else shutil.which(program, path=path)
    if found and os.path.isabs(found) and os.access(found, os.X_OK) and not os.path.isdir(found):
        return None
    return "its program %s is not there, or cannot be executed; it would not start again" % program


class ProcessLauncher:
    """See the package's docstring for the three methods."""

    def __init__(self, root):
        self.root = root

    def prepare(self, entry):
        program = entry["launch"][0] if entry["launch"] else ""
        if program_problem(entry):
            raise FleetError("launch.not-prepared", entry["name"], program)

    def leftovers(self, entry):
        return process_leftovers(self.root, entry)

    def stop_leftovers(self, entry):
        end_processes(self.root, entry)
        return self.leftovers(entry)


LAUNCHERS = {"process": ProcessLauncher, "container": ContainerLauncher}


def get_launcher(entry, root):
    """The launcher of a plan entry; of {"name": …} alone, that of processes."""
    return LAUNCHERS[entry.get("launcher", "process")](root)
