# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An engine in a container of docker or podman. It is not in its unit's cgroup: what the service manager ends is the
engine's client, and that the container is gone is proven by the engine's own list and by the node's /proc."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time

from ..errors import FleetError
from ..host import processes
from ..host.files import read_text
from .engine import EngineError, check_architecture, container_name, engine_of_entry, pinned_reference

TERM_S = 15
KILL_S = 5
# CDI's qualified name: VENDOR/CLASS=NAME.
CDI_DEVICE = re.compile(r"^[A-Za-z][\w.-]*/[A-Za-z][\w-]*=.")
CDI_WANTS = {
    "docker": "Docker does from 25 on with container_engine_settings: {features: {cdi: true}}, which the step prepare "
              "brings into its daemon.json, and from 28.2 on by itself; where it is set already, restart docker",
    "podman": "Podman does from 4.1 on",
}  # fmt: skip
GONE_S = 15  # a container that ends is removed by its own --rm as well, in the engine's own time


def engine_problem(engine, error):
    """A sentence for a call of `engine` that ended with an EngineError: what is wrong and what to do."""
    name, label = engine.kind, engine.label
    if error.kind == "missing":
        return (
            "There is no %s on this node. The step prepare installs it (role container_engine); where the node has "
            "another engine, set fleet_container_engine." % name
        )
    if error.kind == "down":
        return "%s does not answer (%s). Start it: systemctl start %s. See its log: journalctl -u %s." % (
            label, error.words, name, name)  # fmt: skip
    if error.kind == "permission":
        return ("The user %s may not use %s (%s). Run the play with become, or put that user into the group %s."
                % (processes.user_name(os.geteuid()), label, error.words, name))  # fmt: skip
    if error.kind == "timeout":
        return "%s does not answer: %s. See what it is at: journalctl -u %s." % (label, error.words, name)
    return "%s failed: %s." % (label, error.words.rstrip("."))


def engine_failure(engine, error, where=""):
    """The FleetError for a call of `engine` that ended with an EngineError. where: a prefix of the message."""
    found = FleetError(
        "containers.engine-problem",
        "%s%s Correct what the engine reports and run the play again.",
        (where, engine_problem(engine, error)),
    )
    found.__cause__ = error
    return found


def silent_engine(entry):
    """Why the engine of an entry's container does not answer; None where it does, and without a container."""
    engine = engine_of_entry(entry)
    try:
        if engine is not None:
            engine.ping()
    except EngineError as error:
        return engine_problem(engine, error)
    return None


def our_containers(root, entries):
    """{server: [Container]} of this root with the engines that `entries` run in.

    An engine that does not answer shows nothing that it holds; what runs of its containers is found in /proc, and
    the launcher reports that to whoever wants to start or stop one.
    """
    engines = {}
    for entry in entries:
        engine = engine_of_entry(entry)
        if engine is not None:
            engines[engine.label] = engine
    found = {}
    for engine in engines.values():
        with contextlib.suppress(EngineError):
            for one in engine.containers(root):
                found.setdefault(one.server, []).append(one)
    return found


def port_holder(bind, port, root, containers):
    """processes.port_holder(), where a port that one of `containers` ({server: [Container]} of this root) publishes is
    its server's, though a process of the engine listens for it."""
    holder = processes.port_holder(bind, port)
    if holder is not None and holder["server"] is None:
        for server, ones in containers.items():
            if any(port in one.ports for one in ones):
                return dict(holder, server=server, root=root or "/")
    return holder


def _path_missing(where, path, keys):
    return FleetError(
        "launch.path-missing", "%s: %s is not on this node. Create it, or correct %s.", (where, path, keys)
    )


def _lost_link(mount, mounts):
    """(link, where it leads) of a link directly in the mounted directory that leads to nothing inside; else None.

    A hub's cache is such a directory: its snapshots are links to blobs beside them.
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
    """FleetError for a CDI device that the engine of this version, which looks into these folders, cannot give."""
    for device in filter(CDI_DEVICE.match, devices):
        if not folders:
            raise FleetError(
                "launch.cdi-unsupported",
                "%s: %s %s on this node does not accept CDI devices such as %s. %s, or name paths in "
                "container.devices.",
                (where, engine.kind, version, device, CDI_WANTS[engine.kind]),
            )
        kind, _equals, name = device.partition("=")
        texts = [_text(path) for folder in folders for path in glob.glob(glob.escape(folder) + "/*.*")
                 if path.endswith((".json", ".yaml"))]  # fmt: skip
        if not any(_has(text, "kind", kind) and _has(text, "name", name) for text in texts):
            raise FleetError(
                "launch.cdi-device-undescribed",
                "%s: no file in %s describes the CDI device %s. Run the vendor's tool that writes it "
                "(docs/using/containers.md), or correct container.devices or fleet_hardware.",
                (where, " or ".join(folders), device),
            )


def _text(path):
    try:
        return read_text(path) or ""
    except OSError:  # neither can an engine of this user
        return ""


def _has(text, key, value):
    """Whether a string of JSON or YAML, for which Python has no reader of its own, has this key with this value."""
    pattern = r"""(?m)(?:^|[\s{,"'-])%s["']?\s*:\s*["']?%s["']?\s*(?:[,}#]|$)"""
    return re.search(pattern % (key, re.escape(value)), text) is not None


class ContainerLauncher:
    """See the package's docstring for the three methods."""

    def __init__(self, root):
        self.root = root

    def prepare(self, entry):
        """FleetError unless the engine answers, the image is there, the name is free or ours, and what is mounted and
        given as a device exists."""
        where = "Server '%s'" % entry["name"]
        container = entry["container"]
        engine = engine_of_entry(entry)
        name = container_name(entry["name"], self.root)
        try:
            engine.ping()
            image = engine.find_image(container["image"], container["digest"])
            holder = engine.holder_of_name(name)
            ours = {one.id for one in engine.containers(self.root, entry["name"])}
            cdi = engine.cdi() if any(map(CDI_DEVICE.match, container["devices"])) else None
        except EngineError as error:
            raise engine_failure(engine, error, where + ": ") from error
        named = pinned_reference(container["image"], container["digest"])
        if image is None:
            raise FleetError(
                "launch.image-missing",
                "%s: the image %s is not on this node. Run the step prepare, or pull the image.",
                (where, named),
            )
        check_architecture(engine, named, image)
        if holder and holder[0] not in ours:
            raise FleetError(
                "launch.container-name-taken",
                "%s: the name %s belongs to another container of %s (%s). Rename or remove that container: %s rename "
                "%s NEW.",
                (where, name, engine.label, holder[0][:12], engine.kind, name),
            )
        self._check_paths(where, entry)
        if cdi:
            _check_cdi(where, engine, *cdi, container["devices"])

    def _check_paths(self, where, entry):
        container = entry["container"]
        # what the reconciler makes itself comes later
        own = {*entry["directories"].values(), (entry["config"] or {}).get("path")}
        for mount in container["mounts"]:
            if mount["source"] not in own and not os.path.exists(mount["source"]):
                raise _path_missing(where, mount["source"], "container.mounts")
            lost = _lost_link(mount, container["mounts"]) if mount["read_only"] else None
            if lost:
                raise FleetError(
                    "launch.mount-link-target-unmounted",
                    "%s: %s is a link to %s, which is not mounted into its container. Add its directory to "
                    "container.mounts, at the same path.",
                    (where, lost[0], lost[1]),
                )
        for device in container["devices"]:
            path = device.partition(":")[0]
            if path.startswith("/") and not os.path.exists(path):
                raise _path_missing(where, path, "container.devices or fleet_hardware")

    def _containers(self, entry):
        engine = engine_of_entry(entry)  # None where nothing but its name is known of it
        return engine, engine.containers(self.root, entry["name"]) if engine is not None else []

    def _processes(self, entry):
        return processes.processes_with_marker(self.root, entry["name"])

    def _untold(self, entry, error):
        pids = self._processes(entry)
        return FleetError(
            "launch.container-end-unknown",
            "Server '%s': the state of its container is unknown: %s Its processes %s. Check the container engine's log "
            "and run the play again.",
            (
                entry["name"],
                engine_problem(engine_of_entry(entry), error),
                "that run: " + ", ".join(map(str, pids)) if pids else "have ended",
            ),
        )

    def leftovers(self, entry):
        try:
            containers = self._containers(entry)[1]
        except EngineError as error:
            raise self._untold(entry, error) from error
        found = [{"id": one.id, "what": "container %s (%s)" % (one.name, one.id[:12])} for one in containers]
        return found + [
            {"id": pid, "what": "process %d: %s" % (pid, processes.command(pid) or "gone")}
            for pid in self._processes(entry)
        ]

    def stop_leftovers(self, entry):
        problem = None
        try:
            engine, found = self._containers(entry)
            if found:
                engine.stop(found, TERM_S)
                engine.remove(found)
        except EngineError as error:
            problem = error
        # whatever the engine says: one that hangs keeps no process alive
        processes.terminate_found(lambda: self._processes(entry), TERM_S, KILL_S)
        if problem is not None:
            raise self._untold(entry, problem) from problem
        end = time.monotonic() + GONE_S
        while True:
            left = self.leftovers(entry)
            if time.monotonic() > end or not any(isinstance(one["id"], str) for one in left):
                return left
            time.sleep(0.2)
