# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what is deployed on a node and what runs there. Changes nothing."""

from __future__ import annotations

import contextlib
import functools
import os
import stat

from ..containers.launcher import our_containers
from ..engines.registry import OTHER_API_KEYS
from ..errors import FleetError
from ..node import processes
from ..node.files import read_bytes, read_text
from ..node.redact import Redactor
from ..node.server_spec import NAME, entry_hash, read_entry
from ..supervise import state as guard_state
from . import faults, lost_record, running_container, running_process
from .diff import entry_changes
from .model import Observed, config_path
from .purge import purgeable

PHASES = ("running", "failed")  # those that mean something here; others are words for a person


def observe(paths, manager, entries=(), purge=False, purge_artifacts=False):
    """{name: Observed} of all servers of this root: deployed, defined, running, or in `entries` ({name: entry}).

    paths: NodePaths; manager: ServiceManager. purge: look for directories as well, purge_artifacts: also for those of
    artifacts outside the root's own folder. Changes nothing.
    """
    entries = dict(entries)
    deployed = {}
    for name in _names(paths.servers, ".json"):
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
        _look_at_process(one)
        observed[name] = one
    _note_weights(observed, entries)
    return observed


def _read_record(paths, one, planned):
    """Add the record of its start, and what follows from it for the entry and for faults."""
    record = guard_state.read_record(paths.server_state(one.name))
    words = {key: record[key] for key in ("phase", "reason") if record.get(key) and record[key] not in PHASES}
    one.state = {**record, **redactor_of(one.secrets).value(words)}
    one.fault = lost_record.lost_record(paths, one.name, one.entry, one.service, one.state)
    if one.fault is not None:
        one.state = dict(one.fault.record or {})
    one.entry = _by_content(one.entry, planned, one.state, one.containers)
    if one.service is not None and one.service.pid is not None and one.state.get("pid") == one.service.pid:
        process = processes.process(one.service.pid)
        one.fresh = process is not None and process.ticks == one.state.get("ticks")
    one.was_ready = one.fresh and faults.was_ready(paths, one.name, one.state)
    runs = one.fault is None and one.fresh and one.state.get("phase") == "running"
    if runs and (one.entry or {}).get("environment") is not None:
        one.fault = faults.late_encodings(one.entry, one.state) or faults.lost_folder(one.entry, one.state)


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


def _look_at_process(one):
    """Add what /proc shows of what the service manager runs."""
    if one.service is not None and one.service.pid is not None:
        one.running = running_process.look_at(one.service.pid)
    contained = (one.entry or {}).get("launcher") == "container"  # what is in a container is in no unit
    if contained and one.containers:
        one.container = running_container.look_at(one.entry, one.containers)
    unit = one.unit.name if one.unit is not None else None
    if one.running is not None and unit and one.running.unit == unit and not contained:
        others = [pid for pid in one.pids if running_process.unit_of_process(pid)[0] != unit]
        one.outside = [pid for pid in others if running_process.lives(pid)]


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
    if entry_changes(deployed, dict(planned, hash=deployed["hash"])):
        return deployed
    for one in containers:
        if one.hash == deployed["hash"]:
            one.hash = planned["hash"]
    if state.get("hash") == deployed["hash"]:
        state["hash"] = planned["hash"]
    return planned


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


def _names(folder, suffix):
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
            "only names %s, which %s not a server here; known: %s.",
            (", ".join(unknown), "is" if len(unknown) == 1 else "are", ", ".join(sorted(known)) or "none"),
        )
