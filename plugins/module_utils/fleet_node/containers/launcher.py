# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers in containers of docker or podman.

A container is not in its unit's cgroup: the service manager ends the engine's client. The engine's list
and the node's /proc prove that a container is gone.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time

from ..errors import FleetError
from ..host import processes
from ..host.files import read_text
from ..host.paths import NodePaths
from .engine import EngineError, check_architecture, container_name, engine_of_entry, pinned_reference

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
PROBLEMS = {  # kind of an EngineError: sentences with the engine's name, its label, its message and the user
    "missing": "There is no {name} on this node. The step prepare installs it (role container_engine); where the node "
               "has another engine, set fleet_container_engine.",
    "down": "{label} does not answer ({words}). Start it: systemctl start {name}. See its log: journalctl -u {name}.",
    "permission": "The user {user} may not use {label} ({words}). Run the play with become, or put that user into the "
                  "group {name}.",
    "timeout": "{label} does not answer: {words}. See its log: journalctl -u {name}.",
}  # fmt: skip


def engine_problem(engine, error):
    """Sentences on a call of `engine` that ended with an EngineError: the problem and the remedy."""
    sentences = PROBLEMS.get(error.kind, "{label} failed: {words}.")
    user = processes.user_name(os.geteuid())
    return sentences.format(name=engine.kind, label=engine.label, words=error.words.rstrip("."), user=user)


def engine_failure(engine, error, where=""):
    """The FleetError for a call of `engine` that ended with an EngineError. where: a prefix of the message."""
    found = FleetError("containers.engine-problem", where, engine_problem(engine, error))
    found.__cause__ = error
    return found


def silent_engine(entry):
    """Why the engine of an entry's container does not answer; None if it does, and without a container."""
    engine = engine_of_entry(entry)
    try:
        if engine is not None:
            engine.ping()
    except EngineError as error:
        return engine_problem(engine, error)
    return None


def our_containers(root, entries):
    """{server: [Container]} of this root with the engines of `entries`.

    An engine that does not answer lists nothing; the processes of its containers are found in /proc, and the launcher
    reports that when a server is started or stopped.
    """
    engines = {engine.label: engine for engine in map(engine_of_entry, entries) if engine is not None}
    found = {}
    for engine in engines.values():
        with contextlib.suppress(EngineError):
            for one in engine.containers(root):
                found.setdefault(one.server, []).append(one)
    return found


def port_holder(bind, port, root, containers, sockets=None):
    """processes.port_holder(). A port that one of `containers` ({server: [Container]} of this root) publishes belongs
    to its server, although a process of the engine listens on it."""
    holder = processes.port_holder(bind, port, sockets)
    if holder is not None and holder["server"] is None:
        for server, ones in containers.items():
            if any(port in one.ports for one in ones):
                return dict(holder, server=server, root=root or "/")
    return holder


def _path_missing(where, path, reason, keys):
    return FleetError("launch.path-missing", where, path, reason, keys)


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


def process_leftovers(root, entry):
    """[{id, what}] of the processes of an entry's server."""
    pids = processes.marked_processes(root).get(entry["name"], [])
    return [{"id": pid, "what": "process %d: %s" % (pid, processes.command(pid) or "gone")} for pid in pids]


def end_processes(root, entry):
    """End the processes of an entry's server: TERM, then KILL."""
    processes.terminate_found(lambda: processes.marked_processes(root).get(entry["name"], []), TERM_S, KILL_S)


class ContainerLauncher:
    """See launchers/__init__.py for the three methods."""

    def __init__(self, root):
        self.root = root

    def prepare(self, entry):
        where = "Server '%s'" % entry["name"]
        container = entry["container"]
        engine = engine_of_entry(entry)
        name = container_name(entry["name"], self.root)
        try:
            engine.ping()
            image = engine.find_image(container["image"], container["digest"])
            holder = engine.container(name)
            ours = {one.id for one in engine.containers(self.root, entry["name"])}
            cdi = engine.cdi() if any(map(CDI_DEVICE.match, container["devices"])) else None
        except EngineError as error:
            raise engine_failure(engine, error, where + ": ") from error
        named = pinned_reference(container["image"], container["digest"])
        if image is None:
            raise FleetError("launch.image-missing", where, named)
        check_architecture(engine, named, image)
        if holder and holder["Id"] not in ours:
            raise FleetError("launch.container-name-taken", where, name, engine.label, holder["Id"][:12], engine.kind)
        self._check_paths(where, entry)
        if cdi:
            _check_cdi(where, engine, *cdi, container["devices"])

    def _check_paths(self, where, entry):
        container = entry["container"]
        # the reconciler makes these later
        own = {*entry["directories"].values(), (entry["config"] or {}).get("path"), NodePaths(self.root).engine_lib}
        for mount in container["mounts"]:
            if mount["source"] not in own and not os.path.exists(mount["source"]):
                raise _path_missing(where, mount["source"], "is not on this node", "container.mounts")
            lost = _lost_link(mount, container["mounts"]) if mount["read_only"] else None
            if lost:
                reason = "is a link to %s, which is not mounted into the container" % lost[1]
                raise _path_missing(where, lost[0], reason, "container.mounts")
        for device in container["devices"]:
            path = device.partition(":")[0]
            if path.startswith("/") and not os.path.exists(path):
                raise _path_missing(where, path, "is not on this node", "container.devices or fleet_hardware")

    def _containers(self, entry):
        engine = engine_of_entry(entry)  # None if only its name is known
        return engine, engine.containers(self.root, entry["name"]) if engine is not None else []

    def _unknown_end(self, entry, error):
        pids = processes.marked_processes(self.root).get(entry["name"], [])
        return FleetError(
            "launch.container-end-unknown",
            entry["name"],
            engine_problem(engine_of_entry(entry), error),
            "that run: " + ", ".join(map(str, pids)) if pids else "have ended",
        )

    def leftovers(self, entry):
        try:
            containers = self._containers(entry)[1]
        except EngineError as error:
            raise self._unknown_end(entry, error) from error
        found = [{"id": one.id, "what": "container %s (%s)" % (one.name, one.id[:12])} for one in containers]
        return found + process_leftovers(self.root, entry)

    def stop_leftovers(self, entry):
        problem = None
        try:
            engine, found = self._containers(entry)
            if found:
                engine.stop(found, TERM_S)
                engine.remove(found)
        except EngineError as error:
            problem = error
        # an engine that hangs keeps no process alive
        end_processes(self.root, entry)
        if problem is not None:
            raise self._unknown_end(entry, problem) from problem
        end = time.monotonic() + GONE_S
        while True:
            left = self.leftovers(entry)
            if time.monotonic() > end or not any(isinstance(one["id"], str) for one in left):
                return left
            time.sleep(0.2)
