# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server in a container: the rest of an earlier start, and the command and variables of the engine's client."""

from __future__ import annotations

import time

from ..containers import engine as container_engine
from ..host.processes import MARKER_ROOT, MARKER_SERVER

STOP_S = 5
ENGINE_S = 120.0  # seconds within which a container engine must start again
ENGINE_POLL_S = 1.0


def sweep(entry, options, state):
    """Remove the containers of an earlier start. Returns why the server cannot start, or None.

    It waits for an engine that does not answer: after a reboot or a crash it may start later than its servers.
    """
    engine = container_engine.engine_of_entry(entry)
    end = time.monotonic() + ENGINE_S
    while True:
        try:
            left = engine.containers(options.root, entry["name"])
            engine.stop(left, STOP_S)
            engine.remove(left)
            holder = engine.container(container_engine.container_name(entry["name"], options.root))
            break
        except container_engine.EngineError as error:
            if time.monotonic() > end or error.kind not in ("down", "timeout"):
                return "%s: %s" % (engine.label, error.words)
            state.write("waiting for " + engine.label, error.words)
            time.sleep(ENGINE_POLL_S)
    if holder:
        words = "the name %s belongs to a container that is not of this server (%s)"
        return words % (container_engine.container_name(entry["name"], options.root), holder["Id"][:12])
    return None


def launch_command(entry):
    """The entry's launch with the hash as a label, and the image by a name that this node's engine has.

    Raises FileNotFoundError if the image is missing, OSError if the engine fails.
    """
    container, launch = entry["container"], list(entry["launch"])
    try:
        found = container_engine.engine_of_entry(entry).find_image(container["image"], container["digest"])
    except container_engine.EngineError as error:
        raise OSError(error.words) from error
    if found is None:
        named = container_engine.pinned_reference(container["image"], container["digest"])
        raise FileNotFoundError("the image %s is not on this node; a run of the collection fetches it" % named)
    launch[len(launch) - len(entry["command"]) - 1] = found["reference"]
    at = launch.index("run") + 1
    return [*launch[:at], "--label=%s=%s" % (container_engine.LABEL_HASH, entry["hash"]), *launch[at:]]


def client_environment(entry, secrets, root):
    """{str: str} for the client of a container engine.

    The entry's launch contains the variables of the container. Secrets, and values that podman would change, are only
    named there, and the client reads them from its environment.
    """
    environment = container_engine.engine_of_entry(entry).client_environment()
    named = {name: value for name, value in entry["environment"].items() if "--env=" + name in entry["launch"]}
    environment.update(named)
    environment.update(secrets)
    environment[MARKER_SERVER] = entry["name"]
    environment[MARKER_ROOT] = root or "/"
    return environment
