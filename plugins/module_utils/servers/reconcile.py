# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings the servers of a node to the plan: observe what is there, decide what differs, apply only that.

observe() reads, decide() is a pure function of what was read and what is wanted, apply() changes. What an earlier plan
made and this one does not hold (a stray) is stopped and removed, unless the caller names the servers that it means.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import hashlib
import inspect
import json
import os
import pwd
import shutil
import signal
import stat
import tempfile
import time

from ansible_collections.inference.fleet.plugins.module_utils.containers import engine as container_engine
from ansible_collections.inference.fleet.plugins.module_utils.engines import vllm_api_keys
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.launchers import get_launcher
from ansible_collections.inference.fleet.plugins.module_utils.launchers.container import our_containers, port_holder
from ansible_collections.inference.fleet.plugins.module_utils.node import processes
from ansible_collections.inference.fleet.plugins.module_utils.node import python as node_python
from ansible_collections.inference.fleet.plugins.module_utils.node.cpu_list import format_cpu_list, parse_cpu_list
from ansible_collections.inference.fleet.plugins.module_utils.node.directories import make_directory
from ansible_collections.inference.fleet.plugins.module_utils.node.files import read_json, read_text
from ansible_collections.inference.fleet.plugins.module_utils.node.os_errors import about, os_error
from ansible_collections.inference.fleet.plugins.module_utils.node.redact import Redactor
from ansible_collections.inference.fleet.plugins.module_utils.server_spec import (
    NAME,
    check_entries,
    current,
    hash_is_true,
)
from ansible_collections.inference.fleet.plugins.module_utils.servers import drift, healing
from ansible_collections.inference.fleet.plugins.module_utils.servers.api_keys import secret_value
from ansible_collections.inference.fleet.plugins.module_utils.servers.config_text import config_text
from ansible_collections.inference.fleet.plugins.module_utils.services import LOG_LIMITS
from ansible_collections.inference.fleet.plugins.module_utils.supervise import guard

STATES = ("started", "stopped", "restarted", "absent")
FAILED_LOG_LINES = 15
SETTLE_S = 2.0  # how long a start may take to show its first sign; nothing waits for an engine
PORT_FREE_S = 3.0
LOCK_S = 30


# ---- what is wanted and what is there


class Wanted:
    """One server as it shall be.

    entry: the plan entry; secrets: {ENV: value}, as far as they are known; user: name to run as, None for the module's
    own; definition: the service manager's text; config: text of the engine's config file, None where it has none;
    files: [(path, mode, uid or None)] of the server's files; secret_path: of that with its secrets, None without any;
    root: "" for the system's.
    """

    def __init__(self, entry, secrets=None, user=None, definition="", config=None, files=(), secret_path=None, root=""):
        self.entry = entry
        self.secrets = secrets or {}
        self.user = user
        self.definition = definition
        self.config = config
        self.files = list(files)
        self.secret_path = secret_path
        self.root = root


class Seen:
    """One server as it is.

    entry: as deployed, None where it is not; secrets: {ENV: value} in its file, {} without one; definition, config:
    texts on disk, None where they are missing; state: the guard's record ({} without one); fresh: whether that record
    is of the process that the manager runs now; service: services.Status or None; pids: all that runs of it, in its
    container as well; containers: [container_engine.Container] of it, in any state; files: what there is of it on disk,
    directories apart; folders: existing directories of it that a purge deletes; kept: existing directories of its
    artifact that a purge leaves; weights: {folder: guard.weights_note()} of its checkpoints, as they are on disk; unit:
    services.Unit, None for one without definition; running: drift.Running of what the manager runs; outside: those of
    pids that are not in its unit; modes: {path: (mode, uid)} of its files;
    bound: why only a restart gives it another definition, else None; ailment: the healing.Ailment of it, None without.
    """

    def __init__(self, name, entry=None, secrets=None, definition=None, config=None, state=None, fresh=False,
                 service=None, pids=(), files=(), folders=(), containers=(), kept=(), weights=None, unit=None,
                 running=None, outside=(), modes=None, bound=None, ailment=None):  # fmt: skip
        self.name = name
        self.entry = entry
        self.secrets = secrets or {}
        self.secrets_read = secrets is not None
        self.definition = definition
        self.config = config
        self.state = state or {}
        self.fresh = fresh
        self.service = service
        self.pids = list(pids)
        self.files = list(files)
        self.folders = list(folders)
        self.containers = list(containers)
        self.kept = list(kept)
        self.weights = weights or {}
        self.unit = unit
        self.running = running
        self.outside = list(outside)
        self.modes = modes or {}
        self.bound = bound
        self.ailment = ailment
        self.was_ready = False  # whether the process of the record was seen ready

    @property
    def is_there(self):
        """Whether anything of it is left on the node."""
        return bool(self.files or self.pids or self.service or self.containers)


class Condition:
    """What a server does.

    state: running, waiting, failed, stopped or missing; managed: whether a service manager holds it; reason, since
    (epoch seconds), pid, restarts, hash (of the entry that runs or waits): each None where it is not known.
    """

    def __init__(self, state, reason=None, since=None, pid=None, restarts=None, entry_hash=None, managed=True):
        self.state = state
        self.reason = reason
        self.since = since
        self.pid = pid
        self.restarts = restarts
        self.hash = entry_hash
        self.managed = managed


def condition(seen):
    """The Condition of a Seen server. Pure."""
    record = seen.state
    phase = record.get("phase")
    restarts = max(0, record["count"] - 1) if record.get("count") else None
    if seen.service and seen.service.state == "up":
        known = {"since": record.get("since"), "pid": seen.service.pid, "restarts": restarts,
                 "entry_hash": record.get("hash")}  # fmt: skip
        if not seen.fresh and seen.ailment is not None:
            return Condition("running", seen.ailment.reason, pid=seen.service.pid)
        if not seen.fresh:
            return Condition("waiting", "starting", pid=seen.service.pid, restarts=restarts)
        if phase == "running":
            known["entry_hash"] = _running_hash(seen)
            return Condition("running", **known)
        if phase == "failed":
            return Condition("failed", record.get("reason"), **known)
        reason = ": ".join(filter(None, (phase, record.get("reason"))))
        return Condition("waiting", reason, **known)
    if seen.service and seen.service.state == "restarting":
        return Condition("waiting", "restarting: %s" % seen.service.reason, restarts=restarts,
                         entry_hash=record.get("hash"))  # fmt: skip
    if seen.pids or any(one.running for one in seen.containers):
        pid = seen.pids[0] if seen.pids else None
        return Condition("running", "it runs without its service manager", record.get("since"), pid, restarts,
                         _running_hash(seen), managed=False)  # fmt: skip
    failed = seen.service is not None and seen.service.state == "failed"
    if failed or phase == "failed":
        reason = record.get("reason") if phase == "failed" else seen.service.reason
        return Condition("failed", reason, record.get("since"), None, restarts)
    if seen.entry is None:
        return Condition("missing", "it is not deployed on this node")
    if seen.definition is not None:
        return Condition("stopped", "its service manager does not run it")
    return Condition("stopped")


def _running_hash(seen):
    """Hash of the entry that runs: a container says it of itself, of a process the guard's record does."""
    return next((one.hash for one in seen.containers if one.running), seen.state.get("hash"))


def changed_weights(seen):
    """[(folder, note at its start, note of now)] of the checkpoints that a running server read before they changed."""
    runs = seen.fresh and seen.state.get("phase") == "running"
    noted = (seen.state.get("weights") if runs else None) or {}
    pairs = [(folder, noted.get(folder), now) for folder, now in sorted(seen.weights.items())]
    return [pair for pair in pairs if pair[1] and pair[2] and pair[1] != pair[2]]


def changed_weights_words(changed):
    """Why changed_weights() are a reason to restart."""
    return "the weights in %s changed since it was started" % ", ".join(folder for folder, _old, _new in changed)


def observe(paths, manager, entries=(), purge=False, purge_artifacts=False):
    """{name: Seen} of all servers that this root knows of: deployed, defined, running, or in `entries` ({name: entry}).

    paths: NodePaths; manager: ServiceManager. purge: look for directories as well, purge_artifacts: also for those of
    artifacts outside the root's own folder. Changes nothing.
    """
    entries = dict(entries)
    deployed = {}
    for name in _names(paths.servers, ".json"):
        entry = read_json(paths.entry(name))
        deployed[name] = entry if isinstance(entry, dict) and entry.get("name") == name else {"name": name}
    statuses = manager.statuses()
    running = guard.marked_processes(paths.root)
    containers = our_containers(paths.root, [*deployed.values(), *entries.values()])
    seen, notes = {}, {}
    known = set(entries) | set(deployed) | set(manager.defined()) | set(statuses) | set(running) | set(containers)
    for name in sorted(known):
        if not NAME.match(name):
            continue
        entry = deployed.get(name)
        state = read_json(paths.server_state(name))
        state = state if isinstance(state, dict) else {}
        service = statuses.get(name)
        ailment = healing.lost_record(paths, name, entry, service, state)
        if ailment is not None:
            state = dict(ailment.record or {})
        entry = _by_content(entry, entries.get(name), state, containers.get(name, ()))
        fresh = False
        if service is not None and service.pid is not None and state.get("pid") == service.pid:
            process = guard.process(service.pid)
            fresh = process is not None and process.ticks == state.get("ticks")
        configs = {config_path(one) for one in (entry, entries.get(name)) if config_path(one)}
        definition = None if manager.masked(name) else manager.definition_path(name)
        own = [
            paths.entry(name),
            paths.deployer(name),
            paths.secret(name),
            *([definition] if definition else []),
            paths.server_state(name),
        ]
        files = [path for path in [*own, *sorted(configs)] if os.path.lexists(path)] + manager.log_files(name)
        secrets = read_secrets(paths, name)
        folders, kept = _purged(paths, (entry, entries.get(name)), purge_artifacts) if purge else ((), ())
        for folder in (entries.get(name) or entry or {}).get("weights", ()) if state.get("weights") else ():
            if folder not in notes:
                notes[folder] = guard.weights_note(folder)
        definition_text = read_text(definition) if definition else None
        seen[name] = Seen(
            name,
            entry=entry,
            secrets=secrets,
            definition=definition_text,
            bound=manager.restart_reason(definition_text or ""),
            config=read_text(config_path(entry)) if config_path(entry) else None,
            state=state,
            fresh=fresh,
            service=service,
            pids=running.get(name, ()),
            files=files,
            folders=folders,
            containers=containers.get(name, ()),
            kept=kept,
            weights={folder: notes[folder] for folder in state.get("weights") or () if folder in notes},
            unit=manager.unit(name, service) if definition and os.path.lexists(definition) else None,
            modes=_modes([*own, *configs]),
            ailment=ailment,
        )
        _look_at_process(seen[name])
        seen[name].was_ready = fresh and healing.was_ready(paths, name, state)
        if ailment is None and fresh and state.get("phase") == "running" and entry.get("environment") is not None:
            seen[name].ailment = healing.late_encodings(entry, state)
    return seen


def _look_at_process(one):
    """Add what /proc shows of what the service manager runs."""
    if one.service is not None and one.service.pid is not None:
        one.running = drift.look_at(one.service.pid)
    if one.running is not None and one.unit is not None and one.unit.name and one.running.unit == one.unit.name:
        # what is in a container is in no unit
        contained = (one.entry or {}).get("launcher") == "container"
        others = [pid for pid in one.pids if drift.unit_of_process(pid)[0] != one.unit.name] if not contained else []
        one.outside = [pid for pid in others if drift.lives(pid)]


def _modes(paths):
    """{path: (mode, uid)} of those that are there."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found[path] = (stat.S_IMODE(status.st_mode), status.st_uid)
    return found


def _by_content(deployed, planned, state, containers):
    """The deployed entry as a Seen server has it: the planned one where they differ in name only.

    An entry that was deployed under another name of the host, or when a hash was taken otherwise, says the same, and so
    does what runs of it: `state` and `containers` are given the planned hash. Nothing on the node is written for that.
    """
    if not planned or not deployed or deployed.get("hash") == planned["hash"] or not hash_is_true(deployed):
        return deployed
    if entry_changes(deployed, dict(planned, hash=deployed["hash"])):
        return deployed
    for one in containers:
        if one.hash == deployed["hash"]:
            one.hash = planned["hash"]
    if state.get("hash") == deployed["hash"]:
        state["hash"] = planned["hash"]
    return planned


def _purged(paths, entries, purge_artifacts):
    """(existing directories of these entries that a purge deletes, those of artifacts that it leaves), both sorted.

    An artifact outside the root's own folder, or on a file system of its own in it, may be a whole fleet's, which all
    its nodes mount.
    """
    folders, kept = set(), set()
    for entry in entries:
        for kind, path in ((entry or {}).get("directories") or {}).items():
            if os.path.isdir(path):
                own = _inside(path, paths.lib) and os.stat(path).st_dev == os.stat(paths.lib).st_dev
                if kind == "artifact" and not own and not purge_artifacts:
                    kept.add(os.path.realpath(path))
                else:
                    folders.add(path)
    folders = {path for path in folders if not any(_overlap(path, other) for other in kept)}
    return sorted(folders), sorted(kept)


def read_secrets(paths, name):
    """{ENV: value} of the server's file; {} where there is none, None where it is another user's (whose servers they
    are is told by the service manager)."""
    try:
        secrets = read_json(paths.secret(name))
    except PermissionError:
        return None
    return secrets if isinstance(secrets, dict) else {}


def _names(folder, suffix):
    try:
        files = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(file[: -len(suffix)] for file in files if file.endswith(suffix) and not file.startswith("."))


def config_path(entry):
    """Where the entry's config file lies, None where it has none."""
    return ((entry or {}).get("config") or {}).get("path")


# ---- decide


class Action:
    """One thing to do with one server.

    kind: create (deploy and start), change (deploy and restart), start, restart, redefine (rewrite the service
    manager's text without a restart), enable (have it started after a reboot too), record (make the record of its start
    anew), stop, remove; reason: for a person; changes: [(field, before, after)]; repairs: whether it is for what ails a
    running server.
    """

    def __init__(self, name, kind, reason, changes=(), repairs=False):
        self.name = name
        self.kind = kind
        self.reason = reason
        self.changes = list(changes)
        self.repairs = repairs

    def __repr__(self):
        return "Action(%r, %r, %r, %r)" % (self.name, self.kind, self.reason, [change[0] for change in self.changes])


NOT_ENABLED = "its unit is not enabled, so a reboot would not start it"
STARTS = frozenset(("create", "change", "start", "restart"))
STAY = frozenset(("redefine", "enable", "record"))  # the server runs on
WRITES = STARTS | {"redefine", "record"}


def decide(wanted, seen, state, only=None, purge=False, check=False):
    """[Action] that bring `seen` ({name: Seen}) to `wanted` ({name: Wanted}) and `state` (of STATES). Pure.

    Of servers that run and are restarted for what ails them, the first alone is, so that the others go on serving what
    they can until it is ready; check: all are, since nothing is done.

    only: names to act upon, and with them those that run and restart with one of them. Strays (seen, but not wanted)
    are left alone then, unless they are named and the state is stopped or absent. The actions come in the order of
    `wanted`, strays last, by name.
    """
    actions = []
    for name, want in wanted.items():
        if only is None or name in only:
            action = _decide_one(want, seen.get(name) or Seen(name), state, purge)
            if action is not None:
                actions.append(action)
    if not check:
        sick = [action for action in actions if action.repairs and action.kind == "restart"]
        actions = [action for action in actions if action not in sick[1:]]
    if state in ("started", "restarted"):
        actions = _with_followers(actions, wanted, seen)
    for name in sorted(set(seen) - set(wanted)):
        if only is None and seen[name].is_there:
            actions.append(Action(name, "remove", "it is not in the plan"))
        elif only is not None and name in only and state in ("stopped", "absent"):
            action = _decide_one(None, seen[name], state, purge)
            if action is not None:
                actions.append(action)
    return actions


def _with_followers(actions, wanted, seen):
    """`actions` with a restart for each running server that restarts with a leader which is among those started.

    A service manager restarts these with their leader, whether somebody named them or not.
    """
    by_name = {action.name: action for action in actions}
    order = start_order({name: one.entry for name, one in wanted.items()})
    for name in order:
        leader = next((one for one in leaders_to_follow(wanted[name].entry)
                       if one in by_name and by_name[one].kind in STARTS), None)  # fmt: skip
        done = name in by_name and by_name[name].kind in STARTS
        if leader is not None and not done and condition(seen.get(name) or Seen(name)).state in ("running", "waiting"):
            by_name[name] = Action(name, "restart", "it restarts with %s" % leader)
    return [by_name[name] for name in wanted if name in by_name]


def leaders_to_follow(entry):
    """Names of the servers with which this one restarts."""
    start = entry["start"]
    return start["after"] if start.get("restart_with_leader") else []


def _decide_one(want, seen, state, purge):
    now = condition(seen)
    if state == "absent":
        if seen.is_there or (purge and seen.folders):
            return Action(seen.name, "remove", "state is absent")
        return None
    if state == "stopped":
        if seen.pids or seen.containers or seen.service is not None or seen.definition is not None:
            return Action(seen.name, "stop", "state is stopped")
        return None
    changes = differences(seen, want)
    if seen.entry is None:
        return Action(seen.name, "create", "it is not deployed", changes)
    if changes:
        return Action(seen.name, "change", "changed: " + ", ".join(change[0] for change in changes), changes)
    if state == "restarted":
        return Action(seen.name, "restart", "state is restarted")
    if now.state == "failed":
        return Action(seen.name, "start", "failed: %s" % now.reason)
    if now.state in ("stopped", "missing"):
        return Action(seen.name, "start", now.reason or "it is stopped")
    if not now.managed:
        return Action(seen.name, "restart", now.reason)
    if now.hash is not None and now.hash != want.entry["hash"]:
        return Action(seen.name, "restart", "it runs an older entry than the deployed one")
    changed = changed_weights(seen)
    if changed:
        before = {folder: "digest " + old[: guard.DIGITS] for folder, old, _new in changed}
        after = {folder: "digest " + new[: guard.DIGITS] for folder, _old, new in changed}
        return Action(seen.name, "restart", changed_weights_words(changed), [("weights", before, after)])
    if want.user is not None and seen.fresh and seen.state.get("user") != want.user:
        return Action(seen.name, "restart", "it runs as %s instead of %s" % (seen.state.get("user"), want.user))
    found = drift.differences(want, seen)
    restarts = [one.text for one in found if one.heals == "restart"]
    if seen.bound is not None:
        restarts.insert(0, seen.bound)
    if seen.ailment is not None and not seen.ailment.record:
        restarts.insert(0, seen.ailment.reason)
    if restarts:
        lines = [one.text for one in found]
        changes = [("found", seen.ailment.reason, None)] if seen.ailment is not None else []
        changes += [("differs", lines, None)] if lines else []
        # what all start with, and a drop-in of several units, changes for all of them at once
        together = restarts == [seen.bound] or (seen.unit is not None and seen.unit.shares_drop_ins())
        return Action(seen.name, "restart", "; ".join(restarts), changes, repairs=not together)
    if seen.ailment is not None:
        return Action(seen.name, "record", seen.ailment.reason, [("found", seen.ailment.reason, None)], repairs=True)
    if seen.definition != want.definition:
        return Action(seen.name, "redefine", "its service definition differs")
    rewrites = [one.text for one in found if one.heals]
    if rewrites:
        return Action(seen.name, "redefine", "; ".join(rewrites), [("differs", rewrites, None)])
    if not seen.service.enabled:
        return Action(seen.name, "enable", NOT_ENABLED)
    return None


def entry_changes(before, after):
    """[(field, before, after)] of two entries ({} for none). Secrets appear by name and version."""
    changes, before = [], current(before)
    for field in sorted(set(before) | set(after)):
        if field in ("hash", "host", "name", "schema", "secret_versions", "secrets"):
            continue
        if field in ("engine", "arguments"):
            continue  # they repeat what command and config say
        if field == "launch" and after.get("container") is None:
            continue  # a process is launched by its command; once is enough
        if before.get(field) != after.get(field):
            changes.append((field, before.get(field), after.get(field)))
    if len(changes) > 1 and after.get("container"):
        changes = [change for change in changes if change[0] != "launch"]  # made of all the others
    if secret_summary(before) != secret_summary(after):
        changes.append(("secrets", secret_summary(before), secret_summary(after)))
    if before and not changes and before.get("hash") != after["hash"]:
        changes.append(("hash", before.get("hash"), after["hash"]))
    return changes


def differences(seen, want):
    """[(field, before, after)] between the deployed server, its files included, and the wanted one. No secret in it."""
    changes = entry_changes(seen.entry or {}, want.entry)
    if seen.entry is None:
        return changes
    fields = [change[0] for change in changes]
    if "secrets" not in fields and seen.secrets != want.secrets:
        old, new = secret_summary(seen.entry), secret_summary(want.entry)
        for key in want.secrets:
            if seen.secrets.get(key) != want.secrets[key]:
                new[key] += ", another value"
        for key in set(seen.secrets) - set(want.secrets):
            old[key] = "left over"
        changes.append(("secrets", old, new))
    if "config" not in fields and seen.config != want.config:
        changes.append(("config", "no file" if seen.config is None else "a file that differs", "as planned"))
    return changes


def secret_summary(entry):
    """{ENV: "version 1"} of an entry's secrets."""
    versions = entry.get("secret_versions") or {}
    return {key: "version %s" % versions.get(key, "1") for key in entry.get("secrets") or {}}


def describe(actions, seen):
    """{"before": text, "after": text} for Ansible's diff: for each server its state and the fields that change."""
    before, after = [], []
    for action in actions:
        now = condition(seen.get(action.name) or Seen(action.name)).state
        becomes = {"stop": "stopped", "remove": "absent"}.get(action.kind, now if action.kind in STAY else "running")
        if action.kind in STARTS and now in ("running", "waiting"):
            becomes += " (restarted)"
        old, new = ["%s:" % action.name, "  state: %s" % now], ["%s:" % action.name, "  state: %s" % becomes]
        if action.kind == "redefine" and not action.changes:
            old.append("  service: another definition")
            new.append("  service: as planned, from its next start on")
        elif action.kind == "enable":
            old.append("  after a reboot: stopped")
            new.append("  after a reboot: started")
        for field, old_value, new_value in action.changes:
            old += _lines(field, old_value)
            new += _lines(field, new_value)
        before += [] if action.kind == "create" else old
        after += new
    return {"before": _joined(before), "after": _joined(after)}


def _lines(field, value):
    if value is None or value == {} or value == []:
        return []
    if isinstance(value, list):
        return ["  %s:" % field] + ["    %s" % _word(item) for item in value]
    if isinstance(value, dict):
        return ["  %s:" % field] + ["    %s: %s" % (key, _word(value[key])) for key in sorted(value)]
    return ["  %s: %s" % (field, _word(value))]


def _word(value):
    plain = isinstance(value, str) and value.isprintable() and value == value.strip() and value
    return value if plain else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _joined(lines):
    return "".join(line + "\n" for line in lines)


# ---- texts


def utc(epoch):
    """ISO 8601 in UTC, whole seconds; None for None."""
    if epoch is None:
        return None
    moment = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def log_tail(paths, manager, name, lines):
    """The last lines of the server's log without the values of its secrets, [str]."""
    redactor = redactor_of(read_secrets(paths, name))
    return [redactor.text(line) for line in manager.log_tail(name, lines)]


def redactor_of(secrets):
    """A Redactor of a server's secrets {ENV: value} or None, and of each API key in them."""
    secrets = secrets or {}
    values = [str(value) for value in secrets.values()]
    return Redactor({*values, *secrets.get(vllm_api_keys.OTHER_API_KEYS, "").split()})


# ---- reconcile


class Node:
    """Where and with what the servers of a node are kept: NodePaths, ServiceManager, and the user that servers run as
    whose entry names none (None: whoever runs this). deployer: what is written down of a run that deploys, {by, at,
    run, recipe}. acted: the actions that were begun, see apply()."""

    def __init__(self, paths, manager, user=None, deployer=None):
        self.paths = paths
        self.manager = manager
        self.user = user
        self.deployer = deployer or {}
        self.acted = []


def reconcile(node, entries, state="started", only=None, secrets=None, purge=False, check=False,
              purge_artifacts=False):  # fmt: skip
    """Bring the node to `entries` (list of plan entries) and return the module's result.

    secrets: {variable: value}. check: decide everything, do nothing. Result: {changed, diff: {before, after},
    servers: [row()], removed: [names], kept: [paths]}. Raises FleetError; then nothing was stopped unless the message
    says so.
    """
    wanted_entries = check_entries(entries)
    for entry in wanted_entries.values():
        get_launcher(entry, node.paths.root)
    try:
        if check:
            return _reconcile(node, wanted_entries, state, only, secrets or {}, purge, purge_artifacts, True)
        with _locked(node.paths, bool(entries) and state in ("started", "restarted")):
            return _reconcile(node, wanted_entries, state, only, secrets or {}, purge, purge_artifacts, False)
    except OSError as error:
        raise os_error("The servers cannot be brought to the plan", error,
                       "Run again then; what is done already is not done again.") from error  # fmt: skip


def _reconcile(node, entries, state, only, secrets, purge, purge_artifacts, check):
    seen = observe(node.paths, node.manager, entries, purge, purge_artifacts)
    check_only(only, entries, seen, state)
    deploys = state in ("started", "restarted")
    if deploys:
        check_secrets([entries[name] for name in entries if only is None or name in only], secrets)
    if deploys and entries:
        users = {entry["user"] or node.user for entry in entries.values()} - {None}
        node.manager.interpreter = node_python.choose(node.paths, sorted(users))
    wanted = {
        name: want(node, entry, secrets)
        if deploys and (only is None or name in only)
        else Wanted(entry, user=entry["user"] or node.user)
        for name, entry in entries.items()
    }
    if deploys:
        _check_order(wanted)
    if state == "started":
        _find_hung(node, wanted, seen, only, check)
    actions = decide(wanted, seen, state, only, purge, check)
    followers = sorted({action.name for action in actions} - set(only)) if only is not None and deploys else []
    if followers:  # they start as the plan has them now
        only = [*only, *followers]
        check_secrets([entries[name] for name in followers], secrets)
        wanted.update((name, want(node, entries[name], secrets)) for name in followers)
        actions = decide(wanted, seen, state, only, purge, check)
    names_acted = {action.name for action in actions}
    due = decide(wanted, seen, state, only, purge, True) if state == "started" else []
    pending = {action.name: action.reason for action in due if action.repairs and action.name not in names_acted}
    kept = sorted({path for name in seen if only is None or name in only for path in seen[name].kept})
    diff = describe(actions, seen)
    shared = shared_changes(node) if deploys and wanted else {}
    for path in sorted(shared):
        diff["before"] += "%s: %s\n" % (path, "another version" if os.path.exists(path) else "missing")
        diff["after"] += "%s: as this collection has it\n" % path
    repoints = _repoints(node)
    if repoints:
        link = node_python.link(node.paths)
        diff["before"] += "%s: %s\n" % (link, "to another Python" if os.path.lexists(link) else "missing")
        diff["after"] += "%s: to %s\n" % (link, node.manager.interpreter)
    _check_ports(node, actions, wanted, seen)
    if not check:
        apply(node, actions, wanted, seen, shared, purge)
        seen = settle(node, entries, [action.name for action in actions if action.kind in STARTS])
    planned = {action.name: action for action in actions} if check else {}
    repaired = {} if check else {action.name: action for action in actions if action.repairs}
    shown = [name for name in entries if only is None or name in only]
    shown += sorted(name for name in only or () if name not in entries)
    rows = [row(node, name, seen.get(name) or Seen(name), planned.get(name)) for name in shown]
    for one in rows:
        if one["name"] in repaired:
            done = repaired[one["name"]]
            one["reason"] = done.reason if done.kind == "record" else "restarted: " + done.reason
    return {
        "changed": bool(actions or shared or repoints),
        "diff": diff,
        "servers": rows,
        "repaired": {name: action.reason for name, action in repaired.items()},
        "pending": pending,
        "removed": [action.name for action in actions if action.kind == "remove"],
        "actions": acted(actions),
        "kept": kept if state == "absent" else [],
    }


def _find_hung(node, wanted, seen, only, check):
    """Give an Ailment to the servers that run as planned and hang."""
    running = {}
    for name, want in wanted.items():
        one = seen.get(name)
        if one is None or one.ailment is not None or not one.fresh or (only is not None and name not in only):
            continue
        now = condition(one)
        if now.state == "running" and now.managed and now.hash == want.entry["hash"]:
            running[name] = (want.entry, one)
    for name, ailment in healing.find_hung(node.paths, running, note=not check).items():
        seen[name].ailment = ailment


def _repoints(node):
    """Whether this run chose a Python that the node's link does not lead to."""
    return node.manager.interpreter is not None and not node_python.leads_to(node.paths, node.manager.interpreter)


def acted(actions):
    """[{name, kind, reason}] of actions, as a module returns them."""
    return [{"name": action.name, "kind": action.kind, "reason": action.reason} for action in actions]


def row(node, name, seen, planned=None):
    """The result's line for one server. planned: the Action that check mode leaves undone."""
    now = condition(seen)
    reason = now.reason
    if planned is not None:
        reason = "would %s: %s" % (planned.kind, planned.reason)
    return {
        "name": name,
        "state": now.state,
        "ready": None,
        "since": utc(now.since),
        "restarts": now.restarts,
        "pid": now.pid,
        "hash": now.hash or (seen.entry or {}).get("hash"),
        "reason": reason,
        "log_tail": log_tail(node.paths, node.manager, name, FAILED_LOG_LINES) if now.state == "failed" else [],
    }


def check_only(only, entries, seen, state="started"):
    """FleetError where `only` names a server that neither the plan has nor, for stopping, the node."""
    known = set(entries)
    if state in ("stopped", "absent"):
        known |= {name for name, one in seen.items() if one.is_there}
    unknown = sorted(set(only or ()) - known)
    if unknown:
        raise FleetError(
            "servers.only-unknown",
            "only names %s, which %s not a server here; known: %s.",
            (", ".join(unknown), "is" if len(unknown) == 1 else "are", ", ".join(sorted(known)) or "none"),
        )


def check_secrets(entries, secrets):
    """FleetError that names every secret of the entries ([entry]) whose variable is missing, empty, or no string."""
    problems = []
    for entry in entries:
        for key, variable in sorted(entry["secrets"].items()):
            if key == vllm_api_keys.OTHER_API_KEYS:
                continue  # from the variable of the first key
            try:
                lacking = "is not set, or empty" if secret_value(key, variable, secrets.get(variable)) == "" else ""
            except FleetError as error:
                lacking = "cannot be used: " + error.message.rstrip(".")
            if lacking:
                problems.append("Server '%s': its secret %s comes from the variable '%s', which %s."
                                % (entry["name"], key, variable, lacking))  # fmt: skip
    if problems:
        raise FleetError(
            "servers.secret-missing",
            "%s Set the variable for this host, best in a vault. Nothing was changed.",
            (" ".join(problems),),
        )


def want(node, entry, secrets):
    """The Wanted of an entry whose secrets are checked. FleetError where the right to change users is missing."""
    name = entry["name"]
    values = {key: secret_value(key, variable, secrets[variable]) for key, variable in sorted(entry["secrets"].items())}
    values = {key: value for key, value in values.items() if value is not None}
    user = entry["user"] or node.user
    own = processes.user_name(os.getuid())
    if user is not None and user != own and os.getuid() != 0:
        raise FleetError(
            "servers.cannot-change-user",
            "Server '%s' runs as %s, but this runs as %s, who cannot change users. Use become.",
            (name, user, own),
        )
    _check_cpus(entry)
    return _wanted(node, entry, values, user, node.manager.definition(entry, user))


def _wanted(node, entry, secrets, user, definition):
    path, name = config_path(entry), entry["name"]
    # what everybody may read belongs to whoever deploys; root's files are root's
    uid = 0 if os.geteuid() == 0 else None
    files = [(one, 0o644, uid) for one in (node.paths.entry(name), node.manager.definition_path(name), path) if one]
    if entry["secrets"]:
        with contextlib.suppress(FleetError):
            owner = _owner(name, user)
            files.append((node.paths.secret(name), 0o600, owner[0] if owner else os.geteuid()))
    return Wanted(entry, secrets, user, definition, config_text(entry["config"]), files,
                  node.paths.secret(name) if entry["secrets"] else None, node.paths.root)  # fmt: skip


def compared(node, entry, secrets):
    """The Wanted of an entry for a comparison alone, and why it could not be deployed now, None where it could.

    secrets: {variable: value}, as far as they are known."""
    user = entry["user"] or node.user
    known = {}
    for key, name in entry["secrets"].items():
        if secrets.get(name) is not None:
            with contextlib.suppress(FleetError):  # preflight says it of a value that cannot be used
                known[key] = secret_value(key, name, secrets[name])
    known = {key: value for key, value in known.items() if value is not None}
    try:
        return _wanted(node, entry, known, user, node.manager.definition(entry, user)), None
    except FleetError as error:
        return _wanted(node, entry, known, user, None), error.message


def _check_cpus(entry):
    missing = missing_cpus(entry)
    if missing:
        raise FleetError(
            "servers.cpus-missing",
            "Server '%s': its cpus %s are not all among this node's, %s are not. Correct cpus of the server, or "
            "fleet_hardware.cpu_affinity. Nothing was changed.",
            (entry["name"], entry["cpus"], missing),
        )


def missing_cpus(entry, sysroot=""):
    """Those of an entry's CPUs that this node does not have, as text; empty where all are there or it names none."""
    online = read_text(sysroot + "/sys/devices/system/cpu/online")
    if not entry["cpus"] or not online:
        return ""
    return format_cpu_list(parse_cpu_list(entry["cpus"]) - parse_cpu_list(online))


def _check_order(wanted):
    for name, want_one in wanted.items():
        for leader in want_one.entry["start"]["after"]:
            if leader not in wanted:
                raise FleetError(
                    "servers.leader-unknown",
                    "Server '%s' starts after '%s', which is not among the servers: %s.",
                    (name, leader, ", ".join(wanted)),
                )
    start_order({name: one.entry for name, one in wanted.items()})


def start_order(entries):
    """Names of `entries` ({name: entry}), leaders first, otherwise in their order. FleetError for a circle."""
    order = []
    waiting = list(entries)
    while waiting:
        ready = [
            name
            for name in waiting
            if all(one in order or one not in entries for one in entries[name]["start"]["after"])
        ]
        if not ready:
            raise FleetError(
                "servers.start-order-circular",
                "The servers %s wait for each other: start.after goes in a circle.",
                (", ".join(waiting),),
            )
        order += ready
        waiting = [name for name in waiting if name not in ready]
    return order


def server_ports(entry):
    """[(port, what it is)] of an entry."""
    ports = [(entry["port"], "port")] if entry.get("port") else []
    return ports + [(port, "%s port" % kind) for kind, port in sorted((entry.get("ports") or {}).items()) if port]


def _check_ports(node, actions, wanted, seen):
    """FleetError where a port that a start needs is held by something that this run does not stop."""
    ending = {action.name for action in actions if action.kind not in STAY}
    root = node.paths.root or "/"
    containers = {name: one.containers for name, one in seen.items()}
    for action in actions:
        if action.kind not in STARTS:
            continue
        entry = wanted[action.name].entry
        for port, what in server_ports(entry):
            holder = port_holder(entry["bind"], port, node.paths.root, containers)
            if holder is None or (holder["root"] == root and holder["server"] in ending):
                continue
            raise FleetError(
                "servers.port-held",
                "Server '%s': its %s %d on %s is held by %s. Nothing was changed; end that process or plan another "
                "port.",
                (action.name, what, port, entry["bind"], drift.holder_words(holder, root)),
                details={"port": port, "holder": holder},
            )


# ---- apply


def shared_changes(node):
    """{path: text} of the files that all servers share and that differ from what they should be: the guard's copy and
    the service manager's own."""
    texts = {"%s/lib/%s.py" % (node.paths.lib, name): inspect.getsource(module)
             for name, module in (("container_engine", container_engine), ("guard", guard))}  # fmt: skip
    texts["%s/%s.py" % (node.paths.engine_lib, vllm_api_keys.MODULE)] = inspect.getsource(vllm_api_keys)
    texts.update(node.manager.shared_files())
    limits, limits_path = node.manager.log_limits(), node.manager.log_limits_path()
    if limits != LOG_LIMITS or os.path.exists(limits_path):
        texts[limits_path] = json.dumps(limits, sort_keys=True) + "\n"
    return {path: text for path, text in texts.items() if _digest(read_text(path)) != _digest(text)}


def _digest(text):
    return None if text is None else hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def apply(node, actions, wanted, seen, shared, purge=False):
    """Do what was decided: check and write everything beside, stop, put the files in place, start. See reconcile()."""
    starts = [action.name for action in actions if action.kind in STARTS]
    writes = [action for action in actions if action.kind in WRITES]
    ends = [action.name for action in actions if action.kind in ("stop", "remove")]
    owners = {}
    for action in writes:
        entry = wanted[action.name].entry
        if action.kind in STARTS:
            get_launcher(entry, node.paths.root).prepare(entry)
        owners[action.name] = _owner(action.name, wanted[action.name].user)
    if starts:
        problem = node.manager.problem()
        if problem:
            raise FleetError("servers.cannot-start", "Servers cannot be started: %s Nothing was changed.", (problem,))
    stop_first = [name for name in starts if seen.get(name) and _runs(seen[name])]

    with _Staging() as staging:
        if writes or shared or _repoints(node):
            _make_folders(node, wanted, seen)
        for path, text in sorted(shared.items()):
            staging.add(path, text)
        for action in writes:
            _stage(node, staging, action, wanted[action.name], owners[action.name])
        _probe_folders(node, starts)
        node.acted = list(actions)
        for action in actions:
            if seen.get(action.name) and seen[action.name].unit and action.kind in WRITES:
                node.manager.remove_drop_ins(seen[action.name].unit)
        stop(node, [*stop_first, *ends], seen)
        try:
            staging.commit()
        except OSError:
            # as it was: the old files are back
            node.manager.start(start_order({name: seen[name].entry for name in stop_first if seen[name].entry}))
            raise
        if _repoints(node):
            _make_folder(os.path.dirname(node_python.link(node.paths)))
            node_python.put(node.paths, node.manager.interpreter)

    for action in actions:
        if action.kind in STARTS:
            _forget_old(node, seen.get(action.name), wanted[action.name])
        elif action.kind == "record":
            healing.write_record(node.paths, seen[action.name].ailment.record)
        elif action.kind == "stop":
            node.manager.drop([action.name])
            _forget_state(node, action.name)
        elif action.kind == "remove":
            _remove(node, seen[action.name], wanted, seen, purge)
    stay = [action.name for action in actions if action.kind in STAY]
    if stay:
        node.manager.enable(stay)
    order = start_order({name: wanted[name].entry for name in starts})
    if order:
        node.manager.start(order)
    elif ends:
        node.manager.finish()


def _runs(seen):
    return bool(seen.pids or seen.containers or seen.service)


def stop(node, names, seen):
    """Stop servers and prove it: no process of theirs is left and their ports are free of them. FleetError if not."""
    if not names:
        return
    for pid in [pid for name in names for pid in seen[name].pids]:
        if getattr(guard.process(pid), "state", None) == "T":  # else it would not see TERM, and KILL comes late
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
    node.manager.stop(names)
    root = node.paths.root
    for name in names:
        entry = dict(seen[name].entry or {}, name=name)
        left = get_launcher(entry, root).stop_leftovers(entry)
        if left:
            raise FleetError(
                "servers.does-not-end",
                "Server '%s' does not end: %s survived SIGKILL. See what they wait for (state D in ps), end them and "
                "run again; stopped before it: %s.",
                (name, "; ".join(one["what"] for one in left), ", ".join(names[: names.index(name)]) or "none"),
                details={"left": [one["id"] for one in left]},
            )
        end = time.monotonic() + PORT_FREE_S
        for port, what in server_ports(entry):
            while True:
                holder = processes.port_holder(entry.get("bind") or "", port)
                if holder is None or holder["server"] != name or holder["root"] != (root or "/"):
                    break
                if time.monotonic() > end:
                    raise FleetError(
                        "servers.port-still-held",
                        "Server '%s' was stopped, but its %s %d is still held by %s.",
                        (name, what, port, drift.holder_words(holder, root)),
                    )
                time.sleep(0.1)


def settle(node, entries, started):
    """observe() again once each of the started servers shows a first sign, at the latest after SETTLE_S."""
    end = time.monotonic() + SETTLE_S
    while True:
        seen = observe(node.paths, node.manager, entries)
        pending = [name for name in started if condition(seen[name]).reason == "starting"]
        if not pending or time.monotonic() > end:
            return seen
        time.sleep(0.05)


class _Staging:
    """Files written beside their places; commit() renames them all, leaving without it deletes them."""

    def __init__(self):
        self.files = []

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for temporary, _place in self.files:
            for path in (temporary, temporary + ".old"):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def add(self, path, text, mode=0o644, owner=None):
        folder = os.path.dirname(path)
        _make_folder(folder)
        with about(path):
            handle, temporary = tempfile.mkstemp(prefix=".%s." % os.path.basename(path), dir=folder)
        self.files.append((temporary, path))
        with about(path), os.fdopen(handle, "wb") as stream:
            stream.write(text.encode("utf-8", "surrogateescape"))
            os.fchmod(stream.fileno(), mode)
            if owner is not None:
                os.fchown(stream.fileno(), owner[0], owner[1])
            stream.flush()
            os.fsync(stream.fileno())

    def commit(self):
        """Put all files in their places; where one fails, those before it are as they were. Raises OSError."""
        kept = []
        try:
            for temporary, place in self.files:
                old = None
                with about(place):
                    if os.path.lexists(place):
                        old = temporary + ".old"
                        _keep(place, old)
                    kept.append((place, old))
                    os.rename(temporary, place)
        except OSError:
            for place, old in reversed(kept):
                with contextlib.suppress(OSError):
                    os.rename(old, place) if old else os.unlink(place)
            raise
        for _place, old in kept:
            if old:
                os.unlink(old)
        self.files = []


def _keep(path, copy):
    """Make `copy` what `path` is now, also on a file system without links. Raises OSError."""
    try:
        os.link(path, copy, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        with open(path, "rb") as source, os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as target:
            shutil.copyfileobj(source, target)
        shutil.copystat(path, copy)
        with contextlib.suppress(PermissionError):
            os.chown(copy, os.stat(path).st_uid, os.stat(path).st_gid)


def _stage(node, staging, action, one, owner):
    entry = one.entry
    name = entry["name"]
    path = node.manager.definition_path(name)
    if read_text(path) != one.definition:  # a new file of the same text would make systemd read all units again
        staging.add(path, one.definition)
    if action.kind in STAY:
        for path, mode, uid in one.files:
            if os.path.exists(path):
                with about(path):
                    os.chmod(path, mode)
                    if uid is not None and os.stat(path).st_uid != uid:
                        os.chown(path, uid, owner[1] if owner and mode == 0o600 else 0)
        return
    staging.add(node.paths.entry(name), json.dumps(entry, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    staging.add(node.paths.deployer(name), json.dumps({**node.deployer, "hash": entry["hash"]}, sort_keys=True) + "\n")
    if one.secrets:
        staging.add(node.paths.secret(name), json.dumps(one.secrets), 0o600, owner)
    if one.config is not None:
        staging.add(config_path(entry), one.config)
    for path in entry["directories"].values():
        _make_folder(path, _container_owner(entry) or owner)


def _probe_folders(node, starts):
    """OSError where one of the folders that a start changes without staged files cannot be written to."""
    folders = {node.paths.state, *(os.path.dirname(node.manager.definition_path(name)) for name in starts)}
    for folder in sorted(folders) if starts else ():
        with about(folder):
            handle, path = tempfile.mkstemp(prefix=".probe.", dir=folder)
            os.close(handle)
            os.unlink(path)


def _forget_old(node, seen, one):
    """What a deployment leaves over: the last start's record, a secret or config file that the entry no longer has."""
    name = one.entry["name"]
    _forget_state(node, name)
    gone = []
    if not one.secrets:
        gone.append(node.paths.secret(name))
    old = config_path(seen.entry) if seen else None
    if old and old != config_path(one.entry):
        gone.append(old)
    for path in gone:
        _unlink(path)


def _remove(node, seen, wanted, all_seen, purge):
    node.manager.drop([seen.name])
    if seen.unit is not None:
        node.manager.remove_drop_ins(seen.unit, seen.unit.own_drop_ins())
    _forget_state(node, seen.name)
    # a config of the plan's that is there though the entry is not may be another server's
    kept = {config_path(one.entry) for name, one in all_seen.items() if name != seen.name and one.entry}
    for path in [*seen.files, *node.manager.log_files(seen.name)]:
        if path not in kept:
            _unlink(path)
    if not purge:
        return
    shared = set()
    for name, one in [*all_seen.items(), *wanted.items()]:
        if name != seen.name and one.entry and os.path.exists(node.paths.entry(name)):
            shared.update((one.entry.get("directories") or {}).values())
    for path in seen.folders:
        # one that several shared is gone with the first of them, where none was deployed any more
        if os.path.isdir(path) and not any(_overlap(path, other) for other in shared):
            _purge(path)
    with contextlib.suppress(OSError):
        os.rmdir("%s/servers/%s" % (node.paths.lib, seen.name))  # only where nothing else is in it


def _forget_state(node, name):
    """Delete the record of a server's last start, not while somebody reads it and writes it anew (guard.take_back)."""
    _unlink(node.paths.ready(name))
    path = node.paths.server_state(name)
    if os.path.lexists(path):
        with guard.folder_lock(os.path.dirname(path)):
            _unlink(path)


def _unlink(path):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _inside(path, folder):
    return os.path.commonpath([os.path.realpath(path), os.path.realpath(folder)]) == os.path.realpath(folder)


def _overlap(path, other):
    return _inside(path, other) or _inside(other, path)


def _purge(path):
    """Delete a server's directory; FleetError for one that cannot be a server's own."""
    real = os.path.realpath(path)
    homes = {os.path.realpath(user.pw_dir) for user in pwd.getpwall() if user.pw_dir}
    if real.count("/") < 3 or real in homes or os.path.ismount(real):
        raise FleetError(
            "servers.purge-path-shared",
            "%s is not purged: it looks like more than one server's directory. Delete it yourself.",
            (path,),
        )
    shutil.rmtree(real, ignore_errors=False)


def _container_owner(entry):
    """(uid, gid) of the numbers that an entry's container runs as, None where it says nothing."""
    user = (entry["container"] or {}).get("user")
    if not user:
        return None
    uid, _colon, gid = user.partition(":")
    return int(uid), int(gid or 0)


def _owner(name, user):
    """(uid, gid) of the user, None for the one who runs this. FleetError where the user is not on this node."""
    if user is None:
        return None
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise FleetError(
            "servers.user-missing",
            "Server '%s' runs as the user '%s', who is not on this node. The engine's role creates it; run it before "
            "the servers are started. Nothing was changed.",
            (name, user),
        ) from None
    return found.pw_uid, found.pw_gid


def _make_folder(path, owner=None):
    """Create `path` and what is missing above it with mode 0755, whatever the umask; the owner is that of `path` alone.

    Raises FleetError.
    """
    try:
        make_directory(path)
        if owner is not None and (os.stat(path).st_uid, os.stat(path).st_gid) != owner:
            os.chown(path, owner[0], owner[1])
    except OSError as error:
        raise os_error("The directory %s cannot be made" % path, error) from error


def _make_folders(node, wanted, seen):
    paths = node.paths
    for path in (paths.etc, paths.servers, paths.secrets, paths.lib, paths.log, paths.run, paths.state):
        _make_folder(path)
    # the guard, which runs as the server's user, puts its record there
    kept = [one.entry for name, one in seen.items() if one.entry and name not in wanted]
    users = {one.user for one in wanted.values()} | {entry.get("user") or node.user for entry in kept}
    users = sorted(users - {None})
    os.chmod(paths.state, 0o1777 if len(users) > 1 else 0o755)
    if len(users) == 1:
        _make_folder(paths.state, _owner("*", users[0]))


@contextlib.contextmanager
def _locked(paths, create):
    """One reconciliation of a root at a time. Without `create` a root that is not there is not locked."""
    if not create and not os.path.isdir(paths.run):
        yield
        return
    _make_folder(paths.run)
    with open(paths.run + "/engine_servers.lock", "w", encoding="ascii") as stream:
        end = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise FleetError(
                        "servers.locked",
                        "Another run changes the servers of %s since %d s; run again when it is done.",
                        (paths.root or "this node", LOCK_S),
                    ) from None
                time.sleep(0.2)
        yield
