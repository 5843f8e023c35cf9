# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Applies decisions: validates, writes to staging, drains and stops, installs the files, starts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import tempfile
import time

from .. import launchers, program
from ..engines import health_request as asking
from ..engines.registry import ENGINES, engine_of, module_texts
from ..errors import FleetError
from ..host import http_client, processes, trust
from ..host import python as host_python
from ..host.files import as_bytes, leads_to, place, put_link, read_bytes, read_text
from ..host.os_errors import about
from ..host.server_spec import health_port, read_entry, start_order
from . import by_hand, server_files
from .config_check import check_configs
from .desired import container_owner, owner_of
from .model import STARTS, STAY, WRITES, condition, config_path
from .observe import observe
from .server_files import Staging, forget_state, make_folder, remove, unlink

SETTLE_S = 2.0  # within which a start is recorded; nothing waits for an engine
DRAIN_POLL_S = 0.2
METRICS_S = 2.0
CLOSE_S = 2.0


def prove(node, actions, desired):
    """Raises FleetError if a server that these actions start cannot start. A later call may apply the actions."""
    starts = [action.name for action in actions if action.kind in STARTS]
    for name in starts:
        entry = desired[name].entry
        launchers.prepare(entry, node.paths.root)
        missing = [path for path in entry["weights"] if not os.path.isdir(path)]
        if missing:
            raise FleetError(
                "servers.not-prepared",
                name,
                "the directory %s of its weights is missing" % ", ".join(missing),
                "weights.yml",
            )
    for action in actions:
        if action.kind in WRITES:
            owner_of(action.name, desired[action.name].user)
    check_configs(node, [desired[name] for name in starts])
    problem = node.manager.problem() if starts else None
    if problem:
        raise FleetError("servers.cannot-start", problem)


def apply(node, actions, desired, observed, shared, drain_s=0, keeps=False):
    """Apply the proven actions: write all files to staging, stop, install the files, start.

    keeps: keep the replaced definitions until the new definitions are verified.
    """
    starts = [action.name for action in actions if action.kind in STARTS]
    writes = [action for action in actions if action.kind in WRITES]
    ends = [action.name for action in actions if action.kind in ("stop", "remove")]
    stop_first = [name for name in starts if observed.get(name) and observed[name].runs]

    with Staging() as staging:
        if writes or shared:
            _make_folders(node, desired, observed)
        if node.paths.guard in shared:
            program.make_current(node.paths.lib)
        for path, (text, _fault) in sorted(shared.items()):
            if text is not None:
                staging.add(path, text)
        for action in writes:
            _stage(node, staging, action, desired[action.name])
        _probe_folders(node, starts)
        node.acted = list(actions)
        if keeps:
            server_files.keep(node, actions, desired, observed)
        drain([_answering(observed[one.name], desired) for one in actions
               if one.name in (*stop_first, *ends) and not one.repairs], drain_s)  # fmt: skip
        stop(node, [*stop_first, *ends], observed)
        try:
            staging.commit()
        except OSError:
            # the old files are restored
            server_files.forget(node.paths, starts if keeps else ())
            node.manager.start(start_order({name: observed[name].entry for name in stop_first if observed[name].entry}))
            raise
        link = host_python.link(node.paths)
        if link in shared:
            make_folder(os.path.dirname(link))
            put_link(link, node.manager.interpreter)

    for action in actions:
        if action.kind in STARTS:
            _forget_old(node, observed.get(action.name), desired[action.name])
        elif action.kind == "stop":
            node.manager.drop([action.name])
            forget_state(node, action.name)
        elif action.kind == "remove":
            remove(node, observed[action.name], observed)
    stay = [action.name for action in actions if action.kind in STAY]
    if stay:
        node.manager.enable(stay)
    order = start_order({name: desired[name].entry for name in starts})
    if order:
        node.manager.start(order)
    elif ends:
        node.manager.finish()


def put_back(node, observed):
    """Restore all definitions that were kept, and start them. Returns ([names with their old definition], [names that
    had none, which are removed]). Raises FleetError, OSError."""
    names = list(server_files.kept(node.paths))
    server_files.stage_restore(node.paths)
    stop(node, [name for name in names if name in observed], observed)
    absent = server_files.restore(node.paths)
    for name in names:
        forget_state(node, name)
    gone = [name for name in names if node.paths.entry(name) in absent]
    back = [name for name in names if name not in gone]
    if gone:
        node.manager.drop(gone)
    if back:
        entries = {name: read_entry(node.paths.entry(name)) for name in back}
        order = start_order({name: entry for name, entry in entries.items() if entry})
        node.manager.start([*order, *(name for name in back if not entries[name])])
    server_files.forget(node.paths, names)
    return back, gone


def stop(node, names, observed):
    """Stop servers. Raises FleetError if a process of theirs is left."""
    if not names:
        return
    for pid in [pid for name in names for pid in observed[name].pids]:
        if getattr(processes.process(pid), "state", None) == "T":  # else it would not see TERM, and KILL comes late
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
    node.manager.stop(names)
    for name in names:
        words = _still_there(node.paths.root, name, observed[name])
        if words:
            raise FleetError("servers.does-not-end", name, words, ", ".join(names[: names.index(name)]) or "none")


def _still_there(root, name, observed):
    """End what is left of a server that its service manager has stopped. Returns what does not end, None if nothing is
    left."""
    adopted = observed.by_hand
    if adopted and not by_hand.end(adopted):
        return "process %d, which was started by hand, survived SIGKILL" % adopted["pid"]
    left = launchers.stop_leftovers(dict(observed.entry or {}, name=name), root)
    return "%s survived SIGKILL" % "; ".join(left) if left else None


def settle(node, entries, started):
    """observe() again when each of the started servers has a record, at the latest after SETTLE_S."""
    end = time.monotonic() + SETTLE_S
    while True:
        observed = observe(node.paths, node.manager, entries)
        pending = [name for name in started if condition(observed[name]).reason == "starting"]
        if not pending or time.monotonic() > end:
            return observed
        time.sleep(0.05)


def _stage(node, staging, action, one):
    entry = one.entry
    name = entry["name"]
    owner = owner_of(name, one.user)
    for path in entry["directories"].values():
        make_folder(path, container_owner(entry) or owner)
    path = node.manager.definition_path(name)
    if read_text(path) != one.definition:  # a new file of the same text would make systemd read all units again
        staging.add(path, one.definition)
    if action.kind in STAY:
        for path, mode, uid, gid in one.files:
            if os.path.exists(path):
                place(path, mode, uid, gid)
        return
    text = json.dumps(entry, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    for path, mode, uid, gid in one.files:
        if path == node.paths.entry(name):
            staging.add(path, text, mode, None if uid is None else (uid, gid))
    if one.secrets:
        staging.add(node.paths.secret(name), json.dumps(one.secrets), 0o600, owner)
    if one.config is not None:
        staging.add(config_path(entry), one.config)


def _probe_folders(node, starts):
    """Raises OSError if a directory that a start changes without staged files cannot be written."""
    folders = {node.paths.state, *(os.path.dirname(node.manager.definition_path(name)) for name in starts)}
    for folder in sorted(folders) if starts else ():
        with about(folder):
            handle, path = tempfile.mkstemp(prefix=".probe.", dir=folder)
            os.close(handle)
            os.unlink(path)


def _forget_old(node, observed, one):
    """Delete the record of the last start, and files of secrets and configuration that the entry no longer has."""
    name = one.entry["name"]
    forget_state(node, name)
    if not one.secrets:
        unlink(node.paths.secret(name))
    old = config_path(observed.entry) if observed else None
    if old and old != config_path(one.entry):
        unlink(old)


def _make_folders(node, desired, observed):
    paths = node.paths
    for path in (paths.etc, paths.servers, paths.secrets, paths.lib, paths.run, paths.state):
        make_folder(path)
    make_folder(paths.log, mode=0o750)
    # the guard, which runs as the server's user, puts its record there
    kept = [one.entry for name, one in observed.items() if one.entry and name not in desired]
    users = sorted({*(one.user for one in desired.values()), *(entry.get("user") for entry in kept)} - {None})
    os.chmod(paths.state, 0o1777 if len(users) > 1 else 0o755)
    if len(users) == 1:
        make_folder(paths.state, owner_of("*", users[0]))


# -- requests of servers that stop -------------------------------------------------------------------------------------


def _answering(one, desired):
    """The server, with the planned port and key if it is adopted."""
    target = desired.get(one.name)
    return dataclasses.replace(one, entry=target.entry, secrets=target.secrets) if one.by_hand else one


def drain(servers, seconds):
    """Return when none of these ([Observed]) has a request, at the latest after so many seconds.

    A server keeps its port meanwhile. An engine that can refuse new requests does so, and clients ask another server.
    """
    busy = [one for one in servers if condition(one).state == "running" and one.entry and one.entry.get("engine")]
    end, running = time.monotonic() + seconds, list(busy)
    while busy and seconds > 0:
        for one in running:
            _signal(one, engine_of(one.entry).drain_signal)
        busy = [one for one in busy if _requests(one)]
        if not busy or time.monotonic() > end:
            break
        time.sleep(DRAIN_POLL_S)
    if seconds > 0:
        _close(running)


def _requests(one):
    """The number of requests of a server by its engine's metrics, or the number of connections without them."""
    entry = one.entry
    port = health_port(entry)
    if port is None:
        return 0
    base = http_client.base_url(entry.get("bind") or "127.0.0.1", port)
    answer = http_client.request("GET", base + "/metrics", timeout=METRICS_S, headers=asking.headers(one.secrets))
    counted = engine_of(entry).requests(answer.text or "") if answer.ok else None
    return processes.connections(port) if counted is None else counted


def _close(servers):
    """Close the ports of engines that can do so: connections that no process accepts would be reset at the end.

    A port that a container engine publishes stays open: its proxy would reset connections instead.
    """
    own = [one for one in servers if not any(
        word.startswith("--publish=") for word in (one.entry.get("container") or {}).get("flags", ()))]  # fmt: skip
    ports = [health_port(one.entry) for one in own if _signal(one, engine_of(one.entry).close_signal)]
    end = time.monotonic() + CLOSE_S
    while any(one[1] in ports for one in processes.listening_sockets()) and time.monotonic() < end:
        time.sleep(DRAIN_POLL_S / 4)


def _signal(one, sign):
    """Send a signal to an engine that handles it. Returns whether it was sent."""
    engine = engine_of(one.entry)
    pids = [one.service.pid] if one.service is not None and one.service.pid else []
    if one.entry.get("launcher") == "container":  # its client passes signals on to the container's init
        pids = [pid for pid in one.pids if processes.contained(pid)]
    for pid in pids:
        if sign and all(processes.catches(pid, each) for each in (engine.drain_signal, engine.close_signal)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sign)
                return True
    return False


# -- files that all servers of a root share ----------------------------------------------------------------------------


def shared_changes(node):
    """{path: (content, how it differs from this collection's file)} of the shared files that differ, with those of the
    service manager. The program and the link to Python have no content.

    Service managers execute these files at every boot, in part as root, so owners and modes count.
    """
    paths, manager = node.paths, node.manager
    texts = {"%s/%s" % (paths.engine_lib, name): text for name, text in module_texts(ENGINES.values()).items()}
    texts.update(manager.shared_files())
    found = {paths.guard: (None, program.current_fault(paths.lib))}
    for path, text in texts.items():
        wrong = trust.misplaced(path)
        same = wrong is None and read_bytes(path) == as_bytes(text)
        found[path] = text, None if same else wrong or "differs from this collection's"
    link = host_python.link(paths)
    if manager.interpreter is not None and not leads_to(link, manager.interpreter):
        found[link] = None, "leads to another Python" if os.path.lexists(link) else "is missing"
    return {path: one for path, one in found.items() if one[1]}
