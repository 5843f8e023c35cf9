# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server in a container: the rest of an earlier start, the command and variables of the engine's client, its end."""

from __future__ import annotations

import os
import time

from ..containers import engine as container_engine
from ..containers.engine import EngineError, engine_of_entry
from ..host.paths import NodePaths
from ..host.processes import MARKER_ROOT, MARKER_SERVER, marked_processes, terminate_found
from ..host.server_spec import read_entry
from .state import KILL_S, TERM_S, read_record, recorded_pid, say, take_back

STOP_S = 5
ENGINE_S = 120.0  # seconds within which a container engine must start again
ENGINE_POLL_S = 1.0


def sweep(entry, options, state):
    """Remove the containers of an earlier start. Returns why the server cannot start, or None.

    It waits for an engine that does not answer: after a reboot or a crash it may start later than its servers.
    """
    engine = engine_of_entry(entry)
    end = time.monotonic() + ENGINE_S
    while True:
        try:
            left = engine.containers(options.root, entry["name"])
            engine.stop(left, STOP_S)
            engine.remove(left)
            holder = engine.container(container_engine.container_name(entry["name"], options.root))
            break
        except EngineError as error:
            if time.monotonic() > end or error.kind not in ("down", "timeout"):
                return "%s: %s" % (engine.label, error.words)
            state.write("waiting for " + engine.label, error.words)
            time.sleep(ENGINE_POLL_S)
    if holder:
        words = "the name %s belongs to a container that is not of this server (%s)"
        return words % (container_engine.container_name(entry["name"], options.root), holder["Id"][:12])
    return None


def launch_command(entry, root):
    """The entry's launch with the hash as a label, and the image by a name that this node's engine has.

    The folder of our modules as PYTHONPATH is added to the image's PYTHONPATH: those of CANN need theirs.

    Raises FileNotFoundError if the image is missing, OSError if the engine fails.
    """
    container, launch = entry["container"], list(entry["launch"])
    try:
        found = engine_of_entry(entry).find_image(container["image"], container["digest"])
    except EngineError as error:
        raise OSError(error.words) from error
    if found is None:
        named = container_engine.pinned_reference(container["image"], container["digest"])
        raise FileNotFoundError("the image %s is not on this node; a run of the collection fetches it" % named)
    launch[len(launch) - len(entry["command"]) - 1] = found["reference"]
    ours, images = "--env=PYTHONPATH=" + NodePaths(root).engine_lib, found["environment"].get("PYTHONPATH")
    if images and ours in launch:
        launch[launch.index(ours)] = "%s:%s" % (ours, images)
    at = launch.index("run") + 1
    return [*launch[:at], "--label=%s=%s" % (container_engine.LABEL_HASH, entry["hash"]), *launch[at:]]


def client_environment(entry, secrets, root):
    """{str: str} for the client of a container engine.

    The entry's launch contains the variables of the container. Secrets are only named there, and the client reads them
    from its environment.
    """
    markers = {MARKER_SERVER: entry["name"], MARKER_ROOT: root or "/"}
    return {**engine_of_entry(entry).client_environment(), **secrets, **markers}


CALL_S = 6  # of each call of `end --remove`: three of them, TERM and KILL fit into the unit's TimeoutStopSec


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
