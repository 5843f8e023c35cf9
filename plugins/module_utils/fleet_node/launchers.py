# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How an engine runs: as a process of the node, or in a container. A service manager executes an entry's `launch`.

A container is not in its unit's cgroup: the service manager ends the engine's client. The engine's list and the node's
/proc prove that a container is gone. prepare() and stop_leftovers() are called only while the service manager does not
run the server.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import time

from .containers.engine import (
    EngineError,
    check_architecture,
    container_name,
    engine_failure,
    engine_of_entry,
    engine_problem,
    pinned_reference,
)
from .errors import FleetError
from .host import paths as host_paths
from .host import processes
from .host.files import read_text
from .host.paths import NodePaths

TERM_S = 15  # the time of service managers
KILL_S = 5
GONE_S = 15  # a container that ends is removed by its own --rm as well, in the engine's own time
# CDI's qualified name: VENDOR/CLASS=NAME.
CDI_DEVICE = re.compile(r"^[A-Za-z][\w.-]*/[A-Za-z][\w-]*=.")
CDI_SINCE = {
    "docker": "docker does since 28.2, and since 25 with container_engine_settings: {features: {cdi: true}}, which "
              "the step prepare adds to daemon.json",
    "podman": "podman does since 4.1",
}  # fmt: skip


def prepare(entry, root):
    """Raises FleetError if a requirement of the start is missing that the reconciler does not make: an image, a
    program, a device. Changes nothing. root: "" for the system's own."""
    if entry["launcher"] == "container":
        _prepare_container(entry, root)
        return
    program = entry["launch"][0] if entry["launch"] else ""
    found = program if "/" in program else shutil.which(program, path=entry["environment"].get("PATH", host_paths.PATH))
    if not (found and os.path.isabs(found) and os.access(found, os.X_OK) and not os.path.isdir(found)):
        raise FleetError("launch.not-prepared", entry["name"], program)


def stop_leftovers(entry, root):
    """End the remaining processes and containers of a server: TERM, then KILL. Returns descriptions of those that are
    left. entry: the plan entry, or {name} if nothing else is known."""
    name, engine, problem = entry["name"], engine_of_entry(entry), None

    def pids():
        return processes.marked_processes(root).get(name, [])

    def containers():
        return engine.containers(root, name) if engine is not None else []

    try:
        found = containers()
        if found:
            engine.stop(found, TERM_S)
            engine.remove(found)
        processes.terminate_found(pids, TERM_S, KILL_S)
        end = time.monotonic() + GONE_S
        while found and time.monotonic() < end:
            time.sleep(0.1)
            found = containers()
    except EngineError as error:
        problem = error
        processes.terminate_found(pids, TERM_S, KILL_S)  # an engine that hangs keeps no process alive
    left = pids()
    if problem is not None:
        raise FleetError(
            "launch.container-end-unknown",
            name,
            engine_problem(engine, problem),
            "that run: " + ", ".join(map(str, left)) if left else "have ended",
        ) from problem
    return [
        *("container %s (%s)" % (one.name, one.id[:12]) for one in found),
        *("process %d: %s" % (pid, processes.command(pid) or "gone") for pid in left),
    ]


# -- requirements of a container ---------------------------------------------------------------------------------------


def _prepare_container(entry, root):
    where = "Server '%s'" % entry["name"]
    container = entry["container"]
    engine = engine_of_entry(entry)
    name = container_name(entry["name"], root)
    try:
        engine.ping()
        image = engine.find_image(container["image"], container["digest"])
        holder = engine.container(name)
        ours = {one.id for one in engine.containers(root, entry["name"])}
        cdi = engine.cdi() if any(map(CDI_DEVICE.match, container["devices"])) else None
    except EngineError as error:
        raise engine_failure(engine, error, where + ": ") from error
    named = pinned_reference(container["image"], container["digest"])
    if image is None:
        raise FleetError("launch.image-missing", where, named)
    check_architecture(engine, named, image)
    if holder and holder["Id"] not in ours:
        raise FleetError("launch.container-name-taken", where, name, engine.label, holder["Id"][:12], engine.kind)
    _check_paths(where, entry, root)
    if cdi:
        _check_cdi(where, engine, *cdi, container["devices"])


def _check_paths(where, entry, root):
    container = entry["container"]
    # the reconciler makes these later
    own = {*entry["directories"].values(), (entry["config"] or {}).get("path"), NodePaths(root).engine_lib}
    for mount in container["mounts"]:
        if mount["source"] not in own and not os.path.exists(mount["source"]):
            raise FleetError("launch.path-missing", where, mount["source"], "is not on this node", "container.mounts")
        lost = _lost_link(mount, container["mounts"]) if mount["read_only"] else None
        if lost:
            reason = "is a link to %s, which is not mounted into the container" % lost[1]
            raise FleetError("launch.path-missing", where, lost[0], reason, "container.mounts")
    for device in container["devices"]:
        path = device.partition(":")[0]
        if path.startswith("/") and not os.path.exists(path):
            keys = "container.devices or fleet_hardware"
            raise FleetError("launch.path-missing", where, path, "is not on this node", keys)


def _lost_link(mount, mounts):
    """(link, its target) of a link directly in the mounted directory that leads to nothing inside; else None.

    The snapshots of a hub's cache are links to blobs in another directory.
    """
    targets = [os.path.normpath(one["target"]) for one in mounts]
    for name in sorted(os.listdir(mount["source"])) if os.path.isdir(mount["source"]) else ():
        path = os.path.join(mount["source"], name)
        if os.path.islink(path):
            inside = os.path.normpath(os.path.join(mount["target"], os.readlink(path)))
            if not any(os.path.commonpath([inside, target]) == target for target in targets):
                return path, os.path.realpath(path)
    return None


def _check_cdi(where, engine, version, folders, devices):
    """Raises FleetError for a CDI device that the engine of this version, which reads these folders, cannot give."""
    for device in filter(CDI_DEVICE.match, devices):
        kind, _equals, name = device.partition("=")
        texts = [_text(path) for folder in folders for path in glob.glob(glob.escape(folder) + "/*.*")
                 if path.endswith((".json", ".yaml"))]  # fmt: skip
        if any(_has(text, "kind", kind) and _has(text, "name", name) for text in texts):
            continue
        reason = (
            "no file in %s describes it (docs/using/containers.md)" % " or ".join(folders)
            if folders
            else "%s %s does not accept CDI devices (%s)" % (engine.kind, version, CDI_SINCE[engine.kind])
        )
        raise FleetError("launch.cdi-device-missing", where, device, reason)


def _text(path):
    try:
        return read_text(path) or ""
    except OSError:  # the engine of this user cannot read it either
        return ""


def _has(text, key, value):
    """Whether a string of JSON or YAML, for which Python has no parser, has this key with this value."""
    pattern = r"""(?m)(?:^|[\s{,"'-])%s["']?\s*:\s*["']?%s["']?\s*(?:[,}#]|$)"""
    return re.search(pattern % (key, re.escape(value)), text) is not None
