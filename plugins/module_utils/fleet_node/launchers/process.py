# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that are processes of the node, found by the markers that the guard adds to their environment."""

from __future__ import annotations

import os
import shutil

from ..errors import FleetError
from ..host import paths as host_paths
from ..host import processes

TERM_S = 15  # the time of service managers
KILL_S = 5


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
            raise FleetError(
                "launch.not-prepared",
                "Server '%s': its program '%s' is missing or cannot be executed. Nothing was changed. Run prepare.yml, "
                "which installs it.",
                (entry["name"], program),
            )

    def leftovers(self, entry):
        return [
            {"id": pid, "what": "process %d: %s" % (pid, processes.command(pid) or "gone")}
            for pid in processes.marked_processes(self.root).get(entry["name"], [])
        ]

    def stop_leftovers(self, entry):
        processes.terminate_found(lambda: processes.marked_processes(self.root).get(entry["name"], []), TERM_S, KILL_S)
        return self.leftovers(entry)
