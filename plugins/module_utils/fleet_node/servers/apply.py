# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries out what was decided: check and write everything beside, stop, put the files in place, start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import time

from .. import program
from ..errors import FleetError
from ..launchers import get_launcher
from ..node import processes
from ..node import python as node_python
from ..node.files import place, read_text
from ..node.os_errors import about
from . import lost_record, previous
from .config_check import check_configs
from .desired import container_owner, owner_of
from .drain import drain
from .model import STARTS, STAY, WRITES, condition, config_path
from .observe import observe
from .ports import holder_words, server_ports
from .purge import forget_state, remove, unlink
from .shared_files import python_link_differs
from .staging import Staging, make_folder
from .start_order import start_order

SETTLE_S = 2.0  # how long a start may take to show its first sign; nothing waits for an engine
PORT_FREE_S = 3.0


def prove(node, actions, desired):
    """FleetError where what these actions start cannot start; they themselves may be for a later call."""
    starts = [action.name for action in actions if action.kind in STARTS]
    for name in starts:
        entry = desired[name].entry
        get_launcher(entry, node.paths.root).prepare(entry)
        missing = [path for path in entry["weights"] if not os.path.isdir(path)]
        if missing:
            raise FleetError(
                "servers.weights-missing",
                "Server '%s': its weights are not on this node, %s is missing. The step weights brings them. Nothing "
                "was changed.",
                (name, ", ".join(missing)),
            )
    for action in actions:
        if action.kind in WRITES:
            owner_of(action.name, desired[action.name].user)
    check_configs(node, [desired[name] for name in starts])
    problem = node.manager.problem() if starts else None
    if problem:
        raise FleetError("servers.cannot-start", "Servers cannot be started: %s Nothing was changed.", (problem,))


def apply(node, actions, desired, observed, shared, purge=False, drain_s=0, keeps=False):
    """Do what was decided and proven: write everything beside, stop, put the files in place, start. See reconcile().

    keeps: keep the definitions that are replaced until somebody says that the new ones are verified.
    """
    starts = [action.name for action in actions if action.kind in STARTS]
    writes = [action for action in actions if action.kind in WRITES]
    ends = [action.name for action in actions if action.kind in ("stop", "remove")]
    owners = {action.name: owner_of(action.name, desired[action.name].user) for action in writes}
    stop_first = [name for name in starts if observed.get(name) and observed[name].runs]

    with Staging() as staging:
        if writes or shared or python_link_differs(node):
            _make_folders(node, desired, observed)
        if node.paths.guard in shared:
            program.make_current(node.paths.lib)
        for path, text in sorted(shared.items()):
            if text is not None:
                staging.add(path, text)
        for action in writes:
            _stage(node, staging, action, desired[action.name], owners[action.name])
        _probe_folders(node, starts)
        node.acted = list(actions)
        if keeps:
            previous.keep(node, actions, desired, observed)
        drain([observed[one.name] for one in actions if one.name in (*stop_first, *ends) and not one.repairs], drain_s)
        stop(node, [*stop_first, *ends], observed)
        try:
            staging.commit()
        except OSError:
            # as it was: the old files are back
            previous.forget(node.paths, starts if keeps else ())
            node.manager.start(start_order({name: observed[name].entry for name in stop_first if observed[name].entry}))
            raise
        if python_link_differs(node):
            make_folder(os.path.dirname(node_python.link(node.paths)))
            node_python.put(node.paths, node.manager.interpreter)

    for action in actions:
        if action.kind in STARTS:
            _forget_old(node, observed.get(action.name), desired[action.name])
        elif action.kind == "record":
            lost_record.write_record(node.paths, observed[action.name].fault.record)
        elif action.kind == "stop":
            node.manager.drop([action.name])
            forget_state(node, action.name)
        elif action.kind == "remove":
            remove(node, observed[action.name], desired, observed, purge)
    stay = [action.name for action in actions if action.kind in STAY]
    if stay:
        node.manager.enable(stay)
    order = start_order({name: desired[name].entry for name in starts})
    if order:
        node.manager.start(order)
    elif ends:
        node.manager.finish()


def stop(node, names, observed):
    """Stop servers and prove it: no process of theirs is left and their ports are free of them. FleetError if not."""
    if not names:
        return
    for pid in [pid for name in names for pid in observed[name].pids]:
        if getattr(processes.process(pid), "state", None) == "T":  # else it would not see TERM, and KILL comes late
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
    node.manager.stop(names)
    root = node.paths.root
    for name in names:
        entry = dict(observed[name].entry or {}, name=name)
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
                        (name, what, port, holder_words(holder, root)),
                    )
                time.sleep(0.1)


def settle(node, entries, started):
    """observe() again once each of the started servers shows a first sign, at the latest after SETTLE_S."""
    end = time.monotonic() + SETTLE_S
    while True:
        observed = observe(node.paths, node.manager, entries)
        pending = [name for name in started if condition(observed[name]).reason == "starting"]
        if not pending or time.monotonic() > end:
            return observed
        time.sleep(0.05)


def _stage(node, staging, action, one, owner):
    entry = one.entry
    name = entry["name"]
    path = node.manager.definition_path(name)
    if read_text(path) != one.definition:  # a new file of the same text would make systemd read all units again
        staging.add(path, one.definition)
    if action.kind in STAY:
        for path, mode, uid, gid in one.files:
            if os.path.exists(path):
                place(path, mode, uid, gid)
        for path, folder_owner, _needed in one.folders:
            make_folder(path, folder_owner)
        return
    texts = {
        node.paths.entry(name): json.dumps(entry, indent=1, sort_keys=True, ensure_ascii=False) + "\n",
        node.paths.deployer(name): json.dumps({**node.deployer, "hash": entry["hash"]}, sort_keys=True) + "\n",
    }
    for path, mode, uid, gid in one.files:
        if path in texts:
            staging.add(path, texts[path], mode, None if uid is None else (uid, gid))
    if one.secrets:
        staging.add(node.paths.secret(name), json.dumps(one.secrets), 0o600, owner)
    if one.config is not None:
        staging.add(config_path(entry), one.config)
    for path in entry["directories"].values():
        make_folder(path, container_owner(entry) or owner)


def _probe_folders(node, starts):
    """OSError where one of the folders that a start changes without staged files cannot be written to."""
    folders = {node.paths.state, *(os.path.dirname(node.manager.definition_path(name)) for name in starts)}
    for folder in sorted(folders) if starts else ():
        with about(folder):
            handle, path = tempfile.mkstemp(prefix=".probe.", dir=folder)
            os.close(handle)
            os.unlink(path)


def _forget_old(node, observed, one):
    """What a deployment leaves over: the last start's record, a secret or config file that the entry no longer has."""
    name = one.entry["name"]
    forget_state(node, name)
    gone = []
    if not one.secrets:
        gone.append(node.paths.secret(name))
    old = config_path(observed.entry) if observed else None
    if old and old != config_path(one.entry):
        gone.append(old)
    for path in gone:
        unlink(path)


def _make_folders(node, desired, observed):
    paths = node.paths
    for path in (paths.etc, paths.servers, paths.secrets, paths.lib, paths.run, paths.state):
        make_folder(path)
    make_folder(paths.log, mode=0o750)
    # the guard, which runs as the server's user, puts its record there
    kept = [one.entry for name, one in observed.items() if one.entry and name not in desired]
    users = {one.user for one in desired.values()} | {entry.get("user") or node.user for entry in kept}
    users = sorted(users - {None})
    os.chmod(paths.state, 0o1777 if len(users) > 1 else 0o755)
    if len(users) == 1:
        make_folder(paths.state, owner_of("*", users[0]))
