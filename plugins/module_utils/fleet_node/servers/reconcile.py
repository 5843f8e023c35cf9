# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes the servers of a node to the plan: observes, decides what differs, and applies only that."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time

from ..errors import FleetError
from ..host import jobs
from ..host import python as host_python
from ..host.files import open_lock, readable_json
from ..host.os_errors import os_error
from ..host.server_spec import check_entries, check_order
from ..services import supervisord
from . import server_files
from .apply import apply, prove, put_back, settle, shared_changes
from .decide import DEPLOYS, WAVE, decide, describe
from .desired import check_deployable, check_secrets, desired_server
from .model import CLOSINGS, STARTS, Action, DesiredServer, Observed
from .observe import check_only, foreign_holders, observe, row, started_by_hand
from .readiness import find_hung

LOCK_S = 30
UNVERIFIED = "an earlier run changed it, and it was not verified since"
ROLLED_BACK = "its old definition was restored"


def run(node, params, check):
    """The result of engine_servers. params: its parameters; check: decide everything and change nothing.

    Raises FleetError. No server was stopped then unless the message reports it.
    """
    entries, state = params["servers"], params["state"]
    planned = check_entries(entries)
    try:
        with contextlib.nullcontext() if check else locked(node.paths, bool(entries) and state in DEPLOYS):
            if state in CLOSINGS:
                found = _close(node, planned, state, params["only"], check)
            else:
                found = _reconcile(node, planned, params, check)
            if params["only"] is None and state in (*DEPLOYS, "absent"):
                deploys = state != "absent" and entries
                _add(found, node.manager.ensure_watchdog(params["watchdog"] if deploys else None, check))
                _add(found, supervisord.ensure_start_on_boot(node, bool(params["start_on_boot"] and deploys), check))
    except OSError as error:
        raise os_error("The servers cannot be changed as planned", error,
                       "Run again then; what is done already is not done again.") from error  # fmt: skip
    result = {"repaired": {}, "pending": {}, "waves": [], "answering": False, **found}
    result["answering"] = result["answering"] and not result["changed"] and not result["waves"]
    result["kept"] = not entries or params["only"] is not None or state not in DEPLOYS or _is_kept(node.paths, entries)
    result["warnings"] = node.warnings + ["%s was repaired: %s" % repair for repair in result["repaired"].items()]
    return result


def _add(result, states):
    """Add what is no server to the result of a run, by its state (before, after)."""
    if states[0] != states[1]:
        result["changed"] = True
        for key, state in zip(("before", "after"), states):
            result["diff"][key] += state


def _is_kept(paths, entries):
    """Whether this plan is the last that the role serve has kept. It does so after all servers of the host answer, so
    a run that ended before has to be followed by another."""
    known = readable_json(paths.plans)
    digest = hashlib.sha256("".join(entry["hash"] for entry in entries).encode()).hexdigest()
    return isinstance(known, dict) and known.get("hash") == digest


def _reconcile(node, planned, params, check):
    state, only, secrets, changes = params["state"], params["only"], params["secrets"] or {}, params["changes"]
    deploys = state in DEPLOYS
    named = [name for name in planned if only is None or name in only]
    observed = observe(node.paths, node.manager, planned)
    check_only(only, planned, observed, not deploys or changes == WAVE)
    if params["adopt"]:
        containers = {name: one.containers for name, one in observed.items()}
        for name, found in started_by_hand(node.paths.root, planned.values(), containers).items():
            if not observed[name].runs:  # it counts as this server, which runs without its service manager
                observed[name].by_hand, observed[name].pids = found, [found["pid"]]
    desired = {name: DesiredServer(entry, user=entry["user"]) for name, entry in planned.items()}
    shared = {}
    if deploys and planned:
        check_secrets([planned[name] for name in named], secrets, check)
        node.manager.interpreter = host_python.choose(
            node.paths, sorted({one.user for one in desired.values()} - {None})
        )
        desired = {name: desired_server(node, entry, secrets) for name, entry in planned.items()}
        check_deployable(desired[name] for name in named)
        check_order(planned)
        shared = shared_changes(node)
    if state == "started":
        find_hung([planned[name] for name in named], observed)
    unverified = server_files.unverified(node.paths)
    decision = decide(desired, observed, state, only, check, changes, unverified)
    actions = decision.actions
    if deploys:  # a server that restarts with a named server starts with the current plan
        acting = [*actions, *decision.postponed]
        followers = sorted({action.name for action in acting if action.name in planned} - set(named))
        check_secrets([planned[name] for name in followers], secrets, check)
        check_deployable(desired[name] for name in followers)
        named = [name for name in planned if name in {*named, *followers}]
    diff = _add_shared(node, describe(actions, observed), shared)
    _check_ports(node, actions, desired, observed)
    if deploys and not check:
        prove(node, [*actions, *decision.postponed], desired)
    removed = [action.name for action in actions if action.kind == "remove"]
    if not check:
        apply(node, actions, desired, observed, shared, params["drain_s"], keeps=changes == WAVE)
        if changes != WAVE:
            gone = server_files.kept(node.paths) if state == "absent" and only is None else removed
            server_files.forget(node.paths, gone)
        observed = settle(node, planned, [action.name for action in actions if action.kind in STARTS])
    named += sorted(set(only or ()) - set(planned))
    by_name = {action.name: action for action in actions}
    return {
        "changed": bool(diff["after"]),
        "diff": diff,
        "servers": [row(node, observed.get(name) or Observed(name), by_name.get(name), check) for name in named],
        "repaired": {action.name: action.reason for action in actions if action.repairs and not check},
        "answering": all(observed[name].was_ready for name in named if name in planned),
        "pending": {
            **{name: UNVERIFIED for wave in decision.waves for name in wave},
            **{action.name: action.reason for action in decision.postponed},
        },
        "waves": decision.waves,
        "removed": removed,
        "actions": acted(actions),
    }


def _check_ports(node, actions, desired, observed):
    """Raises FleetError if a process that this run does not stop uses a port that a start needs."""
    ending = [action.name for action in actions if action.kind in STARTS or action.kind in ("stop", "remove")]
    starts = [desired[action.name].entry for action in actions if action.kind in STARTS]
    containers = {name: one.containers for name, one in observed.items()}
    adopted = [one.by_hand for one in observed.values() if one.by_hand]
    for name, holder, words in foreign_holders(node.paths.root, starts, containers, ending):
        if holder["by_hand"] and holder["by_hand"] in adopted:
            continue
        raise FleetError("servers.port-held", name, words, details={"holder": holder})


def _close(node, planned, state, only, check):
    """End a wave: forget the definitions that it replaced, or restore and start them."""
    names = sorted(server_files.kept(node.paths))
    back, gone = [], []
    if not check and state == "verified":
        server_files.forget(node.paths, only or names)
    elif not check and names:
        observed = observe(node.paths, node.manager, planned)
        node.acted = [Action(name, "restart", ROLLED_BACK) for name in names]
        back, gone = put_back(node, observed)
    observed = settle(node, planned, back) if back else observe(node.paths, node.manager, planned)
    changed = state == "rolled_back" and bool(names)
    shown = [*planned, *(name for name in back if name not in planned)]
    return {
        "changed": changed,
        "diff": {"before": "", "after": "".join("%s: %s\n" % (name, ROLLED_BACK) for name in names if changed)},
        "servers": [row(node, observed.get(name) or Observed(name)) for name in shown],
        "removed": gone,
        "actions": acted(node.acted),
        "back": back,
    }


def _add_shared(node, diff, shared):
    """The diff with the changes that concern all servers."""
    link = host_python.link(node.paths)
    for path, (_text, fault) in sorted(shared.items()):
        diff["before"] += "%s: %s\n" % (path, fault)
        becomes = "to %s" % node.manager.interpreter if path == link else "as this collection has it"
        diff["after"] += "%s: %s\n" % (path, becomes)
    return diff


def acted(actions):
    """[{name, kind, reason}] of actions, for a result."""
    return [{"name": action.name, "kind": action.kind, "reason": action.reason} for action in actions]


@contextlib.contextmanager
def locked(paths, create=False, wait_s=LOCK_S):
    """Lock a root, so that only one run changes its servers. A root that does not exist is not locked, unless
    `create` is set. Raises FleetError."""
    if not create and not os.path.isdir(paths.run):
        yield
        return
    server_files.make_folder(paths.run)
    with open_lock(paths.servers_lock) as stream:
        end = time.monotonic() + wait_s
        while not jobs.locked(stream):
            if time.monotonic() >= end:
                raise FleetError("servers.locked", paths.root or "this node", wait_s)
            time.sleep(0.2)
        yield
