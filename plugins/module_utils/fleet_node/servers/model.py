# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node, and one server as planned (DesiredServer) and as found (Observed); what it does (Condition), what to do
(Action)."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..host.paths import NodePaths
from ..services import MANAGERS, get_manager

STATES = ("started", "stopped", "restarted", "absent")
CLOSINGS = ("verified", "rolled_back")  # what becomes of the definitions that a wave replaced
# kinds of Action
STARTS = frozenset(("create", "change", "start", "restart"))
STAY = frozenset(("redefine", "enable"))  # the server runs on
WRITES = STARTS | {"redefine"}

# The options that modules for a node's servers share; the fragment inference.fleet.node documents them.
NODE_ARGUMENTS = {
    "root": {"type": "path", "default": ""},
    "manager": {"type": "str", "default": "auto", "choices": list(MANAGERS)},
    "toolkit": {"type": "path"},
}
SERVERS_ARGUMENTS = {
    **NODE_ARGUMENTS,
    "servers": {"type": "list", "elements": "dict", "required": True},
    "only": {"type": "list", "elements": "str"},
}


@dataclasses.dataclass
class Node:
    """The paths and the service manager of a node's servers.

    user: account of servers whose entry names none (None: whoever runs this); deployer: the record of a run that
    deploys, {by, at, run, recipe}; accounts: names of the servers' accounts; acted: the actions that were begun;
    warnings: messages for people.
    """

    paths: Any  # NodePaths
    manager: Any  # services.ServiceManager
    user: str | None = None
    deployer: dict = dataclasses.field(default_factory=dict)
    accounts: frozenset = frozenset()
    acted: list = dataclasses.field(default_factory=list)
    warnings: list = dataclasses.field(default_factory=list)

    @classmethod
    def of_parameters(cls, params):
        """The Node that a module's parameters describe. Raises FleetError."""
        paths = NodePaths.of_parameter(params["root"])
        manager = get_manager(params["manager"], paths, params["toolkit"])
        user = params.get("user")
        accounts = {one.get("user") or user for one in params.get("servers") or () if isinstance(one, dict)}
        return cls(paths, manager, user, params.get("deployer") or {}, frozenset(accounts - {None}))


@dataclasses.dataclass
class DesiredServer:
    """One server as planned.

    entry: the plan entry; secrets: {ENV: value}, as far as they are known; user: name to run as, None for the module's
    user; definition: the service manager's file; config: content of the engine's config file, None without one; files:
    [(path, mode, uid or None, gid or None)] of the server's files; folders: [(path, (uid, gid) or None, whether it must
    exist)] of its directories; secret_path: the file with its secrets, None without any; problem: the FleetError that
    keeps it from being deployed, or None.
    """

    entry: dict
    secrets: dict = dataclasses.field(default_factory=dict)
    user: str | None = None
    definition: str | None = ""
    config: str | None = None
    files: list = dataclasses.field(default_factory=list)
    folders: list = dataclasses.field(default_factory=list)
    secret_path: str | None = None
    problem: Exception | None = None


@dataclasses.dataclass
class Fault:
    """What is wrong with a running server. reason: for a person; alone: whether it can be repaired while other servers
    keep the same fault."""

    reason: str
    alone: bool = True


@dataclasses.dataclass
class Observed:
    """One server as it is.

    entry: as deployed, None where it is not; secrets: {ENV: value} in its file, {} without one; secrets_read: whether
    this user may read that file; definition, config: texts on disk, None where they are missing; state: the record of
    its start ({} without one); fresh: whether that record is of the process that the manager runs now; service:
    services.Status or None; pids: all its processes, those in its container as well; containers:
    [container_engine.Container] of it, in any state; files: its files on disk; folders: existing directories of it that
    a purge deletes; kept: directories of its artifact that a purge leaves; weights: {folder: weights_note()} of
    its checkpoints as they are on disk; unit: services.Unit, None without a definition; strange: why its unit's process
    is not a server, or None; moved_image: why its container runs another image than planned, or None; modes: {path:
    (mode, uid, gid)} of its files and directories; fault: Fault or None; was_ready: whether the process of the record
    was seen ready.
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
    folders: list = dataclasses.field(default_factory=list)
    containers: list = dataclasses.field(default_factory=list)
    kept: list = dataclasses.field(default_factory=list)
    weights: dict = dataclasses.field(default_factory=dict)
    unit: Any = None
    strange: str | None = None
    moved_image: str | None = None
    modes: dict = dataclasses.field(default_factory=dict)
    fault: Fault | None = None
    secrets_read: bool = True
    was_ready: bool = False

    @property
    def is_there(self):
        """Whether anything of it is left on the node."""
        return bool(self.files or self.pids or self.service or self.containers)

    def runs_entry(self, entry):
        """Whether its process is the engine of this entry, as the record of its start says."""
        return self.fresh and self.state.get("phase") == "running" and self.state.get("hash") == entry["hash"]

    @property
    def runs(self):
        """Whether there is something to stop."""
        return bool(self.pids or self.containers or self.service)


@dataclasses.dataclass
class Action:
    """One thing to do with one server.

    kind: create (deploy and start), change (deploy and restart), start, restart, redefine (rewrite the service
    manager's file without a restart), enable (start it after a reboot too), stop, remove; reason: for a person;
    changes: [(field, before, after)]; repairs: whether it repairs a fault of a running server; alone: whether it may
    be restarted while others still wait for the same.
    """

    name: str
    kind: str
    reason: str
    changes: list = dataclasses.field(default_factory=list)
    repairs: bool = False
    alone: bool = True


UNTOLD = "nothing says why; see its log"


@dataclasses.dataclass
class Condition:
    """What a server does.

    state: running, waiting, failed, stopped or missing; hash: of the entry that runs or waits; managed: whether a
    service manager holds it. What is not known is None; since is in epoch seconds.
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
        if not observed.fresh and observed.fault is not None:
            return Condition("running", observed.fault.reason, pid=service.pid)
        if not observed.fresh:
            return Condition("waiting", "starting", pid=service.pid, restarts=restarts)
        now = Condition("waiting", None, record.get("since"), service.pid, restarts, record.get("hash"))
        if phase == "running":
            now.state, now.hash = "running", _running_hash(observed)
        elif phase == "failed":
            now.state, now.reason = "failed", record.get("reason") or UNTOLD
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
        return Condition("failed", reason or UNTOLD, record.get("since"), None, restarts)
    if observed.entry is None:
        return Condition("missing", "it is not deployed on this node")
    return Condition("stopped", None if observed.definition is None else "its service manager does not run it")


def _running_hash(observed):
    """Hash of the entry that runs, as its container says, or the record of its start."""
    return next((one.hash for one in observed.containers if one.running), observed.state.get("hash"))


def config_path(entry):
    """Where the entry's config file lies, None where it has none."""
    return ((entry or {}).get("config") or {}).get("path")
