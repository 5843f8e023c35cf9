# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what is deployed on a node and what runs there. Changes nothing."""

from __future__ import annotations

import contextlib
import functools
import os
import stat

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.launchers.container import our_containers
from ansible_collections.inference.fleet.plugins.module_utils.node import processes
from ansible_collections.inference.fleet.plugins.module_utils.node.files import read_json, read_text
from ansible_collections.inference.fleet.plugins.module_utils.server_spec import NAME, hash_is_true
from ansible_collections.inference.fleet.plugins.module_utils.servers import faults, lost_record, running_process
from ansible_collections.inference.fleet.plugins.module_utils.servers.diff import entry_changes
from ansible_collections.inference.fleet.plugins.module_utils.servers.model import Observed, config_path
from ansible_collections.inference.fleet.plugins.module_utils.servers.purge import purgeable
from ansible_collections.inference.fleet.plugins.module_utils.supervise import state as guard_state


def observe(paths, manager, entries=(), purge=False, purge_artifacts=False):
    """{name: Observed} of all servers of this root: deployed, defined, running, or in `entries` ({name: entry}).

    paths: NodePaths; manager: ServiceManager. purge: look for directories as well, purge_artifacts: also for those of
    artifacts outside the root's own folder. Changes nothing.
    """
    entries = dict(entries)
    deployed = {}
    for name in _names(paths.servers, ".json"):
        entry = read_json(paths.entry(name))
        deployed[name] = entry if isinstance(entry, dict) and entry.get("name") == name else {"name": name}
    statuses = manager.statuses()
    running = processes.marked_processes(paths.root)
    containers = our_containers(paths.root, [*deployed.values(), *entries.values()])
    names = {*entries, *deployed, *manager.defined(), *statuses, *running, *containers}
    observed = {}
    for name in sorted(filter(NAME.match, names)):
        one = Observed(name, deployed.get(name), service=statuses.get(name))
        one.pids, one.containers = running.get(name, []), containers.get(name, [])
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
    state = read_json(paths.server_state(one.name))
    one.state = state if isinstance(state, dict) else {}
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
        one.fault = faults.late_encodings(one.entry, one.state)


def _read_files(paths, manager, one, planned):
    """Add what there is of it on disk."""
    name = one.name
    configs = {config_path(entry) for entry in (one.entry, planned)} - {None}
    definition = None if manager.masked(name) else manager.definition_path(name)
    own = [paths.entry(name), paths.deployer(name), paths.secret(name), definition, paths.server_state(name)]
    own = [path for path in own if path]
    one.files = [path for path in [*own, *sorted(configs)] if os.path.lexists(path)] + manager.log_files(name)
    secrets = read_secrets(paths, name)
    one.secrets, one.secrets_read = secrets or {}, secrets is not None
    one.definition = read_text(definition) if definition else None
    one.bound = manager.restart_reason(one.definition or "")
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
    unit = one.unit.name if one.unit is not None else None
    if one.running is not None and unit and one.running.unit == unit and not contained:
        others = [pid for pid in one.pids if running_process.unit_of_process(pid)[0] != unit]
        one.outside = [pid for pid in others if running_process.lives(pid)]


def _modes(paths):
    """{path: (mode, uid)} of those that are there."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found[path] = (stat.S_IMODE(status.st_mode), status.st_uid)
    return found


def _by_content(deployed, planned, state, containers):
    """The deployed entry as it is observed: the planned one where they differ in name only.

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


def read_secrets(paths, name):
    """{ENV: value} of the server's file; {} where there is none, None where this user may not read it."""
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


def check_only(only, entries, observed, state="started"):
    """FleetError where `only` names a server that neither the plan has nor, for stopping, the node."""
    known = set(entries)
    if state in ("stopped", "absent"):
        known |= {name for name, one in observed.items() if one.is_there}
    unknown = sorted(set(only or ()) - known)
    if unknown:
        raise FleetError(
            "servers.only-unknown",
            "only names %s, which %s not a server here; known: %s.",
            (", ".join(unknown), "is" if len(unknown) == 1 else "are", ", ".join(sorted(known)) or "none"),
        )
