# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the deployed and running servers of a node. Changes nothing."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import time

from .. import program_check
from ..containers.engine import EngineError, engine_of_entry, our_containers, port_holder
from ..engines.registry import OTHER_API_KEYS
from ..errors import FleetError, visible
from ..host import files, processes
from ..host.files import make_directory, read_bytes, read_json, read_text
from ..host.redact import Redactor
from ..host.server_spec import NAME, entry_hash, read_entry, server_ports
from ..host.values import utc
from ..services.base import WATCHDOG
from ..supervise import state as guard_state
from . import by_hand
from .drift import entry_changes
from .model import Observed, condition, config_path

PHASES = ("running", "failed")  # others are descriptions
FAILED_LOG_LINES = 15
LONGEST_LINE = 4000  # characters of a log's line that are shown
GUARD_S = 30  # within which a process of a unit has become the guard, or the engine that the guard executes
BY_HAND = ", a server of %s that was started by hand (import.yml writes a recipe from it, and fleet_adopt replaces it)"
COMMAND_SHOWN = 200  # characters


def observe(paths, manager, entries=()):
    """{name: Observed} of all servers of this root: deployed, defined, running, or in `entries` ({name: entry}).

    paths: NodePaths; manager: ServiceManager. Changes nothing.
    """
    entries = dict(entries)
    deployed = {}
    for name in files.names_in(paths.servers, suffix=".json"):
        entry = read_entry(paths.entry(name))
        deployed[name] = entry if entry and entry.get("name") == name else {"name": name}
    statuses = manager.statuses()
    running = processes.marked_processes(paths.root)
    containers = our_containers(paths.root, [*deployed.values(), *entries.values()])
    readers = [functools.lru_cache(maxsize=None)(one) for one in (guard_state.weights_note, files.sha256_file)]
    observed = {}
    names = {*entries, *deployed, *manager.defined(), *statuses, *running, *containers}
    for name in sorted(filter(NAME.match, names - {WATCHDOG})):
        one = Observed(name, deployed.get(name), service=statuses.get(name))
        one.pids, one.containers = running.get(name, []), containers.get(name, [])
        secrets = read_secrets(paths, name)
        one.secrets, one.secrets_read = secrets or {}, secrets is not None
        _read_record(paths, one, entries.get(name))
        _read_files(paths, manager, one, entries.get(name))
        runs = one.fresh and one.state.get("phase") == "running"
        if runs and one.entry and one.entry.get("hash") == one.state.get("hash"):
            one.weights = guard_state.weights_read(one.entry, *readers)
        observed[name] = one
    return observed


def _read_record(paths, one, planned):
    """Add the record of its start, and what follows from it for the entry and for faults."""
    pid = one.service.pid if one.service is not None else None
    process = processes.process(pid) if pid else None
    unrecorded = _unrecorded(paths, one.name, pid) if process is not None else None  # read before the record
    record = guard_state.read_record(paths.server_state(one.name))
    words = {key: record[key] for key in ("phase", "reason") if record.get(key) and record[key] not in PHASES}
    one.state = {**record, **redactor_of(one.secrets).value(words)}
    one.entry = _by_content(one.entry, planned, one.state, one.containers)
    one.fresh = process is not None and (one.state.get("pid"), one.state.get("ticks")) == (pid, process.ticks)
    one.was_ready = one.fresh and was_ready(paths, one.name, one.state)
    if process is not None and not one.fresh and unrecorded:
        one.state, one.faults = {}, [unrecorded]
    elif one.fresh and one.state.get("phase") == "running" and (one.entry or {}).get("environment") is not None:
        one.faults = container_faults(one.entry, one.containers) if one.containers else []


def _unrecorded(paths, name, pid):
    """Why a process of a server's unit must have a record of its start, or is no server; None for a guard, which has
    not written the record yet, and for a process that may still become a guard."""
    environment, started, argv = processes.environment_of(pid), processes.started_at(pid), processes.argv(pid)
    if any(word.endswith(program_check.current("/")) for word in argv[:4]) or paths.entry(name) in argv:
        return None
    if processes.markers_of(pid) == (paths.root or "/", name):
        return "the record of its start is gone"
    if not environment or started is None or time.time() - started < GUARD_S:
        return None
    command = (processes.command(pid) or "gone")[:COMMAND_SHOWN]
    return "its unit's process %d is not a server of this collection (%s)" % (pid, command)


def container_faults(entry, containers):
    """[reason] why an entry's running container is not as planned: its image has another name by now; [] if it is, or
    if the container engine does not answer."""
    engine = engine_of_entry(entry)
    running = [one for one in containers if one.running]
    if engine is None or len(running) != 1:
        return []
    name = entry["container"]["image"]
    with contextlib.suppress(EngineError):
        found = (engine.container(running[0].id) or {}).get("Image")
        named = engine.find_image(name, entry["container"]["digest"])
        own = engine.image(found) if named and found else None
        if own and own["id"] != named["id"]:
            short = [one["id"].rpartition(":")[2][: guard_state.DIGITS] for one in (named, own)]
            return ["%s is another image by now (%s) than its container runs (%s)" % (name, *short)]
    return []


def _read_files(paths, manager, one, planned):
    """Add the files of the server."""
    name = one.name
    configs = {config_path(entry) for entry in (one.entry, planned)} - {None}
    definition = None if manager.masked(name) else manager.definition_path(name)
    own = [*filter(None, (paths.entry(name), paths.secret(name), definition, paths.server_state(name)))]
    one.files = [path for path in [*own, *sorted(configs)] if os.path.lexists(path)] + manager.log_files(name)
    one.definition = read_text(definition) if definition else None
    one.config = read_text(config_path(one.entry)) if config_path(one.entry) else None
    for path in [*own, *configs]:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            one.modes[path] = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def _by_content(deployed, planned, state, containers):
    """The deployed entry, or the planned entry if both differ in nothing that a process depends on.

    A new version may add a key that is null here, or read arguments in another way. `state` and `containers` get the
    planned hash then. Nothing is written on the node.
    """
    old = (deployed or {}).get("hash")
    if not planned or old in (None, planned["hash"]) or old != entry_hash(deployed):  # the last: it was edited
        return deployed
    if entry_changes(deployed, dict(planned, hash=old)):
        return deployed
    for one in containers:
        one.hash = planned["hash"] if one.hash == old else one.hash
    if state.get("hash") == old:
        state["hash"] = planned["hash"]
    return planned


def note_ready(paths, name, state, took_s=None):
    """Record that the process of this record was ready, and the seconds of its start, by default those of the start
    before. A record that cannot be written is no error."""
    if state.get("pid") and not was_ready(paths, name, state):
        path, took_s = paths.ready(name), last_start_s(paths, name) if took_s is None else round(took_s)
        with contextlib.suppress(OSError):
            make_directory(os.path.dirname(path))
            files.write_json(path, {"pid": state["pid"], "ticks": state.get("ticks"), "took_s": took_s}, 0o640)


def _readiness(paths, name):
    """What note_ready() recorded, {} without it."""
    return read_json(paths.ready(name)) or {}


def last_start_s(paths, name):
    """The seconds of the server's latest start that a run waited for; None if there was none since the node's boot."""
    return _readiness(paths, name).get("took_s")


def was_ready(paths, name, state):
    """Whether the process of this record is known to have been ready."""
    known = _readiness(paths, name)
    return bool(state.get("pid")) and all(known.get(key) == state.get(key) for key in ("pid", "ticks"))


def read_secrets(paths, name):
    """{ENV: value} of the server's file; {} without a file, None if this user may not read it."""
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


def check_only(only, entries, observed, deployed=False):
    """Raises FleetError if `only` names a server that is not in the plan, nor, with `deployed`, on the node."""
    known = set(entries)
    if deployed:
        known |= {name for name, one in observed.items() if one.is_there}
    unknown = sorted(set(only or ()) - known)
    if unknown:
        raise FleetError("servers.only-unknown", ", ".join(unknown), ", ".join(sorted(known)) or "none")


def row(node, observed, action=None, check=False):
    """The result's row of a server. action: its Action, or the Action that would follow (check)."""
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
        "log_tail": log_tail(node, observed.name, FAILED_LOG_LINES if now.state == "failed" else 0),
    }


def log_tail(node, name, lines):
    """[str], the last lines of the server's log without the values of its secrets; long lines are shortened."""
    text = "\n".join(node.manager.log_tail(name, lines)) if lines > 0 else ""
    if not text:
        return []
    half = LONGEST_LINE // 2
    shown = map(visible, redactor_of(read_secrets(node.paths, name)).text(text).split("\n"))
    return [line if len(line) <= LONGEST_LINE else "%s … %s" % (line[:half], line[-half:]) for line in shown]


def given_redactor(secrets):
    """A Redactor of the values {variable: value or list} that a run was given. Other redactors use the server's file of
    secrets, which its account may have emptied."""
    values = [value if isinstance(value, (list, tuple)) else [value] for value in (secrets or {}).values()]
    return Redactor(str(one) for each in values for one in each if one is not None)


# -- processes that use ports ------------------------------------------------------------------------------------------


def holder_words(holder, root):
    """A description of the process that uses a port. holder: processes.port_holder()'s."""
    if holder["pid"] is None:
        return "a process of %s that this user cannot see" % holder["user"]
    words = "process %d of %s (%s)" % (holder["pid"], holder["user"], (holder["command"] or "gone")[:COMMAND_SHOWN])
    if holder["server"] is None:
        return words
    whose = "our server '%s'" % holder["server"]
    return "%s%s, %s" % (whose, "" if holder["root"] == (root or "/") else " of the root %s" % holder["root"], words)


def foreign_holders(root, entries, containers, leaving=()):
    """[(name, holder, words)] of processes that use ports of these entries ([entry]) and are not the server itself.

    holder: processes.port_holder()'s, with by_hand.recognise() as by_hand. containers: {name: [Container]} of this
    root; leaving: names of servers of this root that release their ports.
    """
    found, sockets = [], processes.Sockets(functools.partial(processes.server_pids, root))
    for entry in entries:
        for port, what in server_ports(entry):
            holder = port_holder(entry["bind"], port, root, containers, sockets)
            own = (
                holder is not None and holder["root"] == (root or "/") and holder["server"] in (entry["name"], *leaving)
            )
            if holder is not None and not own:
                words = "its %s %d on %s is held by %s" % (what, port, entry["bind"], holder_words(holder, root))
                started = by_hand.recognise(holder) if holder["server"] is None else None
                words += BY_HAND % started["engine"] if started else ""
                found.append((entry["name"], {**holder, "by_hand": started}, words))
    return found


def started_by_hand(root, entries, containers):
    """{name: by_hand.recognise()} of servers of a known engine on the ports of these entries, which were started by
    hand. The arguments are those of foreign_holders()."""
    held = foreign_holders(root, entries, containers)
    return {name: holder["by_hand"] for name, holder, _words in held if holder["by_hand"]}
