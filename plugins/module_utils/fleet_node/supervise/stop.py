# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of a server on request of its service manager."""

from __future__ import annotations

import os

from ..containers.engine import EngineError, engine_of_entry
from ..host.processes import marked_processes, terminate_found
from ..host.server_spec import read_entry
from .state import KILL_S, TERM_S, read_record, recorded_pid, say, take_back

CALL_S = 8  # of each call of `end --remove`: two of them, TERM and KILL fit into the unit's TimeoutStopSec


def end(options):
    """Stop the container of an entry, or remove it with --remove. Returns the exit status.

    With --state, a start that is ended on request does not count. With --remove, or if the engine does not answer, the
    processes in the node's /proc are ended. Its time is shorter than the service manager's limit.
    """
    if options.state:
        take_back_if_asked(options.state)
    entry = read_entry(options.entry) or {}
    if entry.get("launcher") != "container":
        return 0
    engine = engine_of_entry(entry, CALL_S)
    problem = None
    if engine is not None:
        try:
            left = engine.containers(options.root, entry["name"])
            if options.remove:
                engine.remove(left)
            else:
                engine.stop(left)
        except EngineError as error:
            problem = error.words
    survivors = []
    if entry.get("name") and (options.remove or problem):
        survivors = terminate_found(lambda: marked_processes(options.root).get(entry["name"], ()), TERM_S, KILL_S)
    if survivors:
        say("processes that cannot be killed: %s" % ", ".join(map(str, survivors)))
    if problem:
        say("%s: %s; the container may be left there" % (engine.label, problem))
    return 1 if problem or survivors else 0


def take_back_if_asked(state_path):
    """In an ExecStop of systemd: do not count the start if the stop was requested.

    systemd runs ExecStop also after an engine that ended by itself, so the engine must still run. SERVICE_RESULT
    differs if systemd ends it because a worker ran out of memory.
    """
    pid = recorded_pid(read_record(state_path))
    if pid is not None and os.environ.get("SERVICE_RESULT", "success") == "success":
        try:
            take_back(state_path, pid)
        except OSError as error:
            say("this stop will count as a failed start: %s" % error)
