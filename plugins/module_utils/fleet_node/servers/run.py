# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of engine_servers: the servers, the watchdog, their start at boot, and the devices of what was stopped."""

from __future__ import annotations

from ..errors import FleetError
from ..platforms import device_holders
from ..services import boot, watchdog
from .readiness import all_answer
from .reconcile import reconcile

HEALTH_S = 5
LOG_LEAST = {"rate": 0, "file_mb": 1, "files": 1}


def run(node, params, check):
    """(the result of engine_servers, its warnings). params: the module's parameters. Raises FleetError."""
    entries, state = params["servers"], params["state"]
    node.manager.new_log_limits = _log_limits(params["logs"])
    settings = watchdog.Settings(**params["watchdog"]) if params["watchdog"] else None
    names = ("state", "only", "secrets", "purge", "purge_artifacts", "changes", "drain_s")
    options = {key: params[key] for key in names}
    result, warnings = reconcile(node, entries, check=check, **options), list(node.warnings)
    if params["only"] is None and state in ("started", "restarted", "absent"):
        deploys = state != "absent" and entries
        _add(result, watchdog.ensure(node, settings if deploys else None, check))
        started = boot.ensure(node, bool(params["start_on_boot"] and deploys), check)
        _add(result, started)
        warnings += started["warnings"]
    rows = {row["name"]: row["state"] for row in result["servers"]}
    shown = [entry for entry in entries if entry["name"] in rows]
    if state in ("stopped", "absent") and not check:
        result["held"] = _held(node, shown, result, warnings)
    running = all(rows[entry["name"]] == "running" for entry in shown)
    result["answering"] = (
        not result["changed"] and not result["waves"] and running and all_answer(shown, HEALTH_S, node.paths)
    )
    return result, warnings + ["%s was repaired: %s" % repair for repair in result["repaired"].items()]


def _log_limits(given):
    """The limits of logs, None where none are given. FleetError for one that cannot be."""
    for name, least in LOG_LEAST.items() if given else ():
        if given[name] < least:
            raise FleetError(
                "servers.log-limit-too-small", "logs: %s is %d; allowed: %d or more.", (name, given[name], least)
            )
    return given


def _add(result, step):
    """Add what a further step changed to the result."""
    if step["changed"]:
        result["changed"] = True
        result["diff"] = {key: result["diff"][key] + step["diff"][key] for key in ("before", "after")}


def _held(node, entries, result, warnings):
    """Processes of others that hold a device of the stopped servers, None where the devices could not be asked.

    FleetError, with the result so far, where one of the servers' own still does.
    """
    try:
        held, unknown = device_holders.release(entries, node.paths.root)
    except FleetError as error:
        error.details = {**result, **error.details}
        raise
    if unknown:
        warnings.append(
            "The servers are stopped and none of their processes is left; the devices could not be asked whether "
            "somebody holds them: %s" % unknown
        )
    warnings += [
        "The servers are stopped, and yet %s holds what was theirs; it is none of ours. End it, or leave it the device."
        % device_holders.describe(holder)
        for holder in held or ()
    ]
    return held
