# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what is deployed on a node and what runs there. Changes nothing."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import stat

from ..containers.launcher import our_containers
from ..engines.registry import OTHER_API_KEYS, engine_of
from ..errors import FleetError
from ..host import files, processes
from ..host.directories import make_directory
from ..host.files import read_bytes, read_json, read_text
from ..host.redact import Redactor
from ..host.server_spec import NAME, entry_hash, read_entry
from ..model import gpt_oss
from ..supervise import state as guard_state
from ..supervise.run import shared_folder_mark
from ..visible import visible
from . import drift
from .model import Fault, Observed, condition, config_path
from .server_files import purgeable

PHASES = ("running", "failed")  # those that mean something here; others are words for a person
FAILED_LOG_LINES = 15
LONGEST_LINE = 4000  # characters of a log's line that are shown


def observe(paths, manager, entries=(), purge=False, purge_artifacts=False):
    """{name: Observed} of all servers of this root: deployed, defined, running, or in `entries` ({name: entry}).

    paths: NodePaths; manager: ServiceManager. purge: look for directories as well, purge_artifacts: also for those of
    artifacts outside the root's own folder. Changes nothing.
    """
    entries = dict(entries)
    deployed = {}
    for name in _files_with(paths.servers, ".json"):
        entry = read_entry(paths.entry(name))
        deployed[name] = entry if entry and entry.get("name") == name else {"name": name}
    statuses = manager.statuses()
    running = processes.marked_processes(paths.root)
    containers = our_containers(paths.root, [*deployed.values(), *entries.values()])
    names = {*entries, *deployed, *manager.defined(), *statuses, *running, *containers}
    observed = {}
    for name in sorted(filter(NAME.match, names)):
        one = Observed(name, deployed.get(name), service=statuses.get(name))
        one.pids, one.containers = running.get(name, []), containers.get(name, [])
        secrets = read_secrets(paths, name)
        one.secrets, one.secrets_read = secrets or {}, secrets is not None
        _read_record(paths, one, entries.get(name))
        _read_files(paths, manager, one, entries.get(name))
        if purge:
            one.folders, one.kept = purgeable(paths, (one.entry, entries.get(name)), purge_artifacts)
        _read_process(paths, one)
        observed[name] = one
    _note_weights(observed, entries)
    return observed


def _read_record(paths, one, planned):
    """Add the record of its start, and what follows from it for the entry and for faults."""
    record = guard_state.read_record(paths.server_state(one.name))
    words = {key: record[key] for key in ("phase", "reason") if record.get(key) and record[key] not in PHASES}
    one.state = {**record, **redactor_of(one.secrets).value(words)}
    if _record_is_lost(paths, one):
        one.state, one.fault = {}, Fault("the record of its start is gone")
    one.entry = _by_content(one.entry, planned, one.state, one.containers)
    if one.service is not None and one.service.pid is not None and one.state.get("pid") == one.service.pid:
        process = processes.process(one.service.pid)
        one.fresh = process is not None and process.ticks == one.state.get("ticks")
    one.was_ready = one.fresh and was_ready(paths, one.name, one.state)
    runs = one.fault is None and one.fresh and one.state.get("phase") == "running"
    if runs and (one.entry or {}).get("environment") is not None:
        one.fault = late_encodings(one.entry, one.state) or lost_folder(one.entry, one.state)


def _record_is_lost(paths, one):
    """Whether an engine runs without a record of its start.

    A guard, which has the entry among its arguments, writes the record before it becomes the engine: the record is read
    again once the process is known to be an engine.
    """
    pid = one.service.pid if one.service is not None else None
    found = processes.process(pid) if pid else None
    if found is None or _is_of(one.state, pid, found) or paths.entry(one.name) in processes.argv(pid):
        return False
    if processes.markers_of(pid) != (paths.root or "/", one.name):
        return False
    return not _is_of(guard_state.read_record(paths.server_state(one.name)), pid, found)


def _is_of(record, pid, found):
    """Whether a record is of this process."""
    return (record.get("pid"), record.get("ticks")) == (pid, found.ticks)


def _read_files(paths, manager, one, planned):
    """Add what there is of it on disk."""
    name = one.name
    configs = {config_path(entry) for entry in (one.entry, planned)} - {None}
    definition = None if manager.masked(name) else manager.definition_path(name)
    own = [paths.entry(name), paths.deployer(name), paths.secret(name), definition, paths.server_state(name)]
    own = [path for path in own if path]
    one.files = [path for path in [*own, *sorted(configs)] if os.path.lexists(path)] + manager.log_files(name)
    one.definition = read_text(definition) if definition else None
    one.config = read_text(config_path(one.entry)) if config_path(one.entry) else None
    one.unit = manager.unit(name, one.service) if definition and os.path.lexists(definition) else None
    folders = [path for entry in (one.entry, planned) for path in ((entry or {}).get("directories") or {}).values()]
    one.modes = _modes([*own, *configs, *folders])


def _note_weights(observed, entries):
    """Add what the manifests beside the checkpoints say now, of those that said something at a server's start."""
    notes = functools.lru_cache(maxsize=None)(guard_state.weights_note)
    for name, one in observed.items():
        folders = (entries.get(name) or one.entry or {}).get("weights", ())
        one.weights = {folder: notes(folder) for folder in one.state.get("weights") or () if folder in folders}


def _read_process(paths, one):
    """Add what is wrong with the process or container that the service manager runs."""
    if one.service is not None and one.service.pid is not None and not one.fresh:
        one.strange = drift.strange_process(one.service.pid, paths.root)
    if (one.entry or {}).get("launcher") == "container" and one.containers:
        one.moved_image = drift.moved_image(one.entry, one.containers)


def _modes(paths):
    """{path: (mode, uid, gid)} of those that are there."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found[path] = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
    return found


def _by_content(deployed, planned, state, containers):
    """The deployed entry as it is observed: the planned one where they differ in nothing that a process depends on.

    A commit may add a key that is null here, or read arguments in another way. What runs of the entry is as planned
    then: `state` and `containers` are given the planned hash. Nothing on the node is written for that.
    """
    if not planned or not deployed or deployed.get("hash") in (None, planned["hash"]):
        return deployed
    if deployed["hash"] != entry_hash(deployed):
        return deployed  # edited
    if drift.entry_changes(deployed, dict(planned, hash=deployed["hash"])):
        return deployed
    for one in containers:
        if one.hash == deployed["hash"]:
            one.hash = planned["hash"]
    if state.get("hash") == deployed["hash"]:
        state["hash"] = planned["hash"]
    return planned


def late_encodings(entry, state):
    """The Fault of a server whose vocabulary came, or got other bytes, after it was started."""
    noted = state.get("encodings")
    now = guard_state.encodings_note(entry, noted)
    if not isinstance(noted, dict) or now is None:
        return None
    late = sorted(name for name in now if not _same(noted.get(name), now[name]))
    if not late:
        return None
    folder = entry["environment"][gpt_oss.VOCABULARY_VARIABLE]
    return Fault("the encodings in %s came or changed after its start (%s)" % (folder, ", ".join(late)))


def lost_folder(entry, state):
    """The Fault of a server that was started with another folder than the one by which the others find each other."""
    if not state.get("folder") or shared_folder_mark(entry) == state["folder"]:
        return None
    folder = engine_of(entry).shared_folder(entry)
    return Fault("%s, by which servers find each other, was removed or replaced after its start" % folder, alone=False)


def _same(noted, now):
    """Whether two notes of a file are of the same bytes: the checksum is their last."""
    return isinstance(noted, list) and noted[-1:] == now[-1:]


def note_ready(paths, name, state, took_s=None):
    """Remember that the process of this record was ready, and how long its start took, or else the one before; it does
    no harm where that cannot be written."""
    path = paths.ready(name)
    if state.get("pid") and not was_ready(paths, name, state):
        took_s = last_start_s(paths, name) if took_s is None else round(took_s)
        observed = {"pid": state["pid"], "ticks": state.get("ticks"), "took_s": took_s}
        with contextlib.suppress(OSError):
            make_directory(os.path.dirname(path))
            files.write_json(path, observed, 0o640)


def was_ready(paths, name, state):
    """Whether the process of this record is known to have been ready."""
    known = read_json(paths.ready(name))
    same = isinstance(known, dict) and (known.get("pid"), known.get("ticks")) == (state.get("pid"), state.get("ticks"))
    return bool(state.get("pid")) and same


def last_start_s(paths, name):
    """Seconds that the server's latest start took that a run waited for, None where none did since the node's boot."""
    known = read_json(paths.ready(name))
    took = known.get("took_s") if isinstance(known, dict) else None
    return took if isinstance(took, int) and not isinstance(took, bool) and took >= 0 else None


def read_secrets(paths, name):
    """{ENV: value} of the server's file; {} where there is none, None where this user may not read it."""
    try:
        read_bytes(paths.secret(name), 0, follow=False)
    except PermissionError:
        return None
    return guard_state.read_secrets(paths.secret(name))


def redactor_of(secrets):
    """A Redactor of a server's secrets {ENV: value} or None, and of each API key in them."""
    secrets = secrets or {}
    others = [key for name in OTHER_API_KEYS for key in secrets.get(name, "").split()]
    return Redactor({*map(str, secrets.values()), *others})


def _files_with(folder, suffix):
    try:
        files = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(file[: -len(suffix)] for file in files if file.endswith(suffix) and not file.startswith("."))


def check_only(only, entries, observed, deployed=False):
    """FleetError where `only` names a server that neither the plan has nor, with `deployed`, the node."""
    known = set(entries)
    if deployed:
        known |= {name for name, one in observed.items() if one.is_there}
    unknown = sorted(set(only or ()) - known)
    if unknown:
        raise FleetError(
            "servers.only-unknown",
            "This host has no server %s; known: %s. Correct the names that the run is limited to.",
            (", ".join(unknown), ", ".join(sorted(known)) or "none"),
        )


def row(node, observed, action=None, check=False):
    """The result's line for one server. action: what was done with it, or would be (check)."""
    now = condition(observed)
    reason = now.reason
    if action is not None and check:
        reason = "would %s: %s" % (action.kind, action.reason)
    elif action is not None and action.repairs:
        reason = "restarted: " + action.reason
    return {
        "name": observed.name,
        "state": now.state,
        "ready": None,
        "since": utc(now.since),
        "restarts": now.restarts,
        "pid": now.pid,
        "hash": now.hash or (observed.entry or {}).get("hash"),
        "reason": reason and visible(reason),
        "log_tail": log_tail(node.paths, node.manager, observed.name, FAILED_LOG_LINES)
        if now.state == "failed"
        else [],
    }


def utc(epoch):
    """ISO 8601 in UTC, whole seconds; None for None."""
    if epoch is None:
        return None
    moment = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def log_tail(paths, manager, name, lines):
    """The last lines of the server's log without the values of its secrets, [str], what is unseen shown; of a very long
    line both ends."""
    text = "\n".join(manager.log_tail(name, lines))
    if not text:
        return []
    return [_shortened(visible(line)) for line in redactor_of(read_secrets(paths, name)).text(text).split("\n")]


def _shortened(line):
    half = LONGEST_LINE // 2
    return line if len(line) <= LONGEST_LINE else "%s … %s" % (line[:half], line[-half:])
