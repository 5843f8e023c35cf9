# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node, and a server as planned (DesiredServer) and as found (Observed), with its Condition and its Action."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..discover import options, required
from ..host.paths import NodePaths
from ..services import MANAGERS, get_manager

STATES = ("started", "stopped", "restarted", "absent")
CLOSINGS = ("verified", "rolled_back")  # what happens to the definitions that a wave replaced
# kinds of Action
STARTS = frozenset(("create", "change", "start", "restart"))
STAY = frozenset(("redefine", "enable"))  # the server continues to run
WRITES = STARTS | {"redefine"}
KINDS = ("create", "change", "start", "restart", "redefine", "enable")  # an earlier kind includes the later kinds

# The options that modules for a node's servers share; the fragment inference.fleet.node documents them.
NODE_ARGUMENTS = {
    "manager": {"type": "str", "default": "auto", "choices": list(MANAGERS)},
    **options("path", "toolkit", root=""),
}
SERVERS_ARGUMENTS = {
    **NODE_ARGUMENTS,
    **required("list", "servers", elements="dict"),
    "only": {"type": "list", "elements": "str"},
}


def servers_elsewhere(**more):
    """The argument for servers of other hosts: host, name and these further options of each server."""
    return {"type": "list", "elements": "dict", "default": [], "options": {**required("str", "host", "name"), **more}}


@dataclasses.dataclass
class Node:
    """The paths and the service manager of a node's servers.

    accounts: names of the servers' accounts; acted: the actions that were begun; warnings: messages for the user.
    """

    paths: Any  # NodePaths
    manager: Any  # services.ServiceManager
    accounts: frozenset = frozenset()
    acted: list = dataclasses.field(default_factory=list)
    warnings: list = dataclasses.field(default_factory=list)

    @classmethod
    def of_parameters(cls, params):
        """The Node that a module's parameters describe. Raises FleetError."""
        paths = NodePaths.of_parameter(params["root"])
        manager = get_manager(params["manager"], paths, params["toolkit"])
        accounts = {one.get("user") for one in params.get("servers") or () if isinstance(one, dict)}
        return cls(paths, manager, frozenset(accounts - {None}))


@dataclasses.dataclass
class DesiredServer:
    """One server as planned.

    entry: the plan entry; secrets: {ENV: value}, as far as they are known; user: name to run as, None for the module's
    user; definition, definition_path: the service manager's file; config: content of the engine's config file, None
    without one; files: [(path, mode, uid or None, gid or None)] of the server's files; problem: the FleetError that
    keeps it from being deployed, or None.
    """

    entry: dict
    secrets: dict = dataclasses.field(default_factory=dict)
    user: str | None = None
    definition: str | None = ""
    config: str | None = None
    files: list = dataclasses.field(default_factory=list)
    definition_path: str = ""
    problem: Exception | None = None


@dataclasses.dataclass
class Observed:
    """One server on the node.

    entry: as deployed, None if it is not deployed; secrets: {ENV: value} in its file, {} without a file; secrets_read:
    whether this user may read that file; definition, config: contents on disk, None if they are missing; state: the
    record of its start ({} without it); fresh: whether that record is of the process that the manager runs now;
    service: services.Status or None; pids: all its processes, those in its container as well; containers:
    [container_engine.Container] of it, in any state; files: its files on disk; weights: what weights_read() returns
    now; modes: {path: (mode, uid, gid)} of its files; by_hand: by_hand.recognise() of a server on its ports that the
    run replaces, or None; faults: reasons to restart its process; was_ready: whether the recorded process was seen
    ready.
    """

    name: str
    entry: dict | None = None
    secrets: dict = dataclasses.field(default_factory=dict)
    definition: str | None = None
    config: str | None = None
    state: dict = dataclasses.field(default_factory=dict)
    fresh: bool = False
    service: Any = None
    pids: list = dataclasses.field(default_factory=list)
    files: list = dataclasses.field(default_factory=list)
    containers: list = dataclasses.field(default_factory=list)
    weights: dict = dataclasses.field(default_factory=dict)
    modes: dict = dataclasses.field(default_factory=dict)
    faults: list = dataclasses.field(default_factory=list)
    secrets_read: bool = True
    was_ready: bool = False
    by_hand: dict | None = None

    @property
    def is_there(self):
        """Whether it has files, processes or containers on the node."""
        return bool(self.files or self.pids or self.service or self.containers)

    @property
    def runs(self):
        """Whether there is something to stop."""
        return bool(self.pids or self.containers or self.service)


@dataclasses.dataclass
class Action:
    """An action on a server.

    kind: create (deploy and start), change (deploy and restart), start, restart, redefine (rewrite the service
    manager's file without a restart), enable (start it after a reboot too), stop, remove; reason: for a person;
    changes: [(field, before, after)]; repairs: whether it repairs a fault of a running server.
    """

    name: str
    kind: str
    reason: str
    changes: list = dataclasses.field(default_factory=list)
    repairs: bool = False


UNKNOWN = "the reason is not known; see its log"


@dataclasses.dataclass
class Condition:
    """The condition of a server.

    state: running, waiting, failed, stopped or missing; since: epoch seconds; hash: of the entry that runs or waits;
    managed: whether a service manager runs it. Unknown values are None.
    """

    state: str
    reason: str | None = None
    since: float | None = None
    pid: int | None = None
    restarts: int | None = None
    hash: str | None = None
    managed: bool = True


def condition(observed):
    """The Condition of an Observed server. Pure."""
    record, service = observed.state, observed.service
    phase = record.get("phase")
    restarts = max(0, record["count"] - 1) if record.get("count") else None
    if service and service.state == "up":
        if not observed.fresh and observed.faults:
            return Condition("running", observed.faults[0], pid=service.pid)
        if not observed.fresh:
            return Condition("waiting", service.reason or "starting", pid=service.pid, restarts=restarts)
        now = Condition("waiting", None, record.get("since"), service.pid, restarts, record.get("hash"))
        if phase == "running":
            now.state, now.hash = "running", _running_hash(observed)
        elif phase == "failed":
            now.state, now.reason = "failed", record.get("reason") or UNKNOWN
        else:
            now.reason = ": ".join(filter(None, (phase, record.get("reason")))) or "starting"
        return now
    if service and service.state == "restarting":
        reason = ": ".join(filter(None, ("restarting", service.reason)))
        return Condition("waiting", reason, restarts=restarts, hash=record.get("hash"))
    if observed.pids or any(one.running for one in observed.containers):
        return Condition(
            "running", "it runs without its service manager", record.get("since"),
            observed.pids[0] if observed.pids else None, restarts, _running_hash(observed), managed=False,
        )  # fmt: skip
    if phase == "failed" or (service is not None and service.state == "failed"):
        reason = record.get("reason") if phase == "failed" else service.reason
        return Condition("failed", reason or UNKNOWN, record.get("since"), None, restarts)
    if observed.entry is None:
        return Condition("missing", "it is not deployed on this node")
    return Condition("stopped", None if observed.definition is None else "its service manager does not run it")


def _running_hash(observed):
    """Hash of the entry that runs, from its container or the record of its start."""
    return next((one.hash for one in observed.containers if one.running), observed.state.get("hash"))


def config_path(entry):
    """The path of the entry's config file, None without one."""
    return ((entry or {}).get("config") or {}).get("path")
