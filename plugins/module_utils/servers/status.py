# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs on a node and how it differs from the plan, for playbooks/status.yml."""

from __future__ import annotations

import contextlib

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.launchers.process import program_problem
from ansible_collections.inference.fleet.plugins.module_utils.node import processes
from ansible_collections.inference.fleet.plugins.module_utils.node import python as node_python
from ansible_collections.inference.fleet.plugins.module_utils.server_spec import check_entries
from ansible_collections.inference.fleet.plugins.module_utils.servers import drift
from ansible_collections.inference.fleet.plugins.module_utils.servers.decide import NOT_ENABLED
from ansible_collections.inference.fleet.plugins.module_utils.servers.desired import desired_server
from ansible_collections.inference.fleet.plugins.module_utils.servers.diff import (
    changed_weights,
    changed_weights_words,
    entry_changes,
)
from ansible_collections.inference.fleet.plugins.module_utils.servers.model import Observed, condition, config_path
from ansible_collections.inference.fleet.plugins.module_utils.servers.observe import check_only, observe
from ansible_collections.inference.fleet.plugins.module_utils.servers.ports import port_holders
from ansible_collections.inference.fleet.plugins.module_utils.servers.readiness import doing, probe_all
from ansible_collections.inference.fleet.plugins.module_utils.servers.rows import log_tail, row
from ansible_collections.inference.fleet.plugins.module_utils.servers.shared_files import shared_changes


def differences(node, planned, name, observed, secrets, shared, holders):
    """[drift.Difference] of one server, the weightiest first.

    planned: {name: entry}; secrets: {variable: value}, as far as they are known; shared: paths of shared files that
    differ; holders: port_holders() of this server.
    """
    if name not in planned:
        return [drift.Difference("not planned", "not in the plan")]
    if observed.entry is None:
        return [drift.Difference("not deployed", "not deployed"), *_held(holders)]
    entry, found = planned[name], []
    now = condition(observed)
    if now.state == "failed":
        found.append(drift.Difference("failed", "it has failed: %s" % now.reason))
    elif now.state in ("stopped", "missing"):
        found.append(drift.Difference("stopped", "it is stopped"))
    elif not now.managed:
        found.append(drift.Difference("unmanaged", "%s (process %s)" % (now.reason, now.pid)))
    found += _held(holders)
    fields = [change[0] for change in entry_changes(observed.entry, entry)]
    if fields:
        found.append(drift.Difference("changed", "changed: " + ", ".join(fields)))
    elif now.hash is not None and now.hash != entry["hash"]:
        found.append(drift.Difference("changed", "changed: it runs an older entry than the deployed one"))
    changed = changed_weights(observed)
    if changed:
        found.append(drift.Difference("weights", "changed: " + changed_weights_words(changed)))
    desired = desired_server(node, entry, secrets)
    if desired.problem:
        found.append(drift.Difference("definition", desired.problem.message))
    if "config" not in fields and observed.config != desired.config:
        lost = "is missing" if observed.config is None else "differs"
        found.append(drift.Difference("config", "its configuration file %s (%s)" % (lost, config_path(entry))))
    if observed.secrets_read and any(observed.secrets.get(key) != value for key, value in desired.secrets.items()):
        keys = sorted(key for key, value in desired.secrets.items() if observed.secrets.get(key) not in (None, value))
        if keys:
            found.append(drift.Difference("secrets", "its file of secrets has another value of %s" % ", ".join(keys)))
    if now.state not in ("stopped", "missing"):
        if observed.definition is None and not observed.unit and not desired.problem and now.managed:
            found.append(drift.Difference("definition", "its service definition is missing"))
        if observed.service and not observed.service.enabled:
            found.append(drift.Difference("not enabled", NOT_ENABLED))
        gone = program_problem(entry)
        if gone:
            found.append(drift.Difference("program", gone))
    if observed.fault is not None:
        found.append(drift.Difference("ailing", observed.fault.reason))
    if observed.bound is not None and now.state in ("running", "waiting"):
        found.append(drift.Difference("definition", observed.bound))
    found += drift.differences(desired, observed)
    found += [drift.Difference("shared file", "%s differs from this collection's" % path) for path in shared]
    return found


def _held(holders):
    return [drift.Difference("port", words) for words in holders]


def status(node, entries, only=None, log_lines=0, probes=False, timeout=10, secrets=None):
    """[row] of engine_servers_info: what runs, how it differs from the plan, its memory and the end of its log.

    Orphaned servers are in it as well. Without entries nothing is known of a plan, and drift is None. probes: find out
    whether they are ready; ready stays None otherwise. secrets: {variable: value}, as far as they are known.
    """
    planned = check_entries(entries)
    observed = observe(node.paths, node.manager, planned)
    known = [*planned, *sorted(name for name in observed if name not in planned and observed[name].is_there)]
    check_only(only, known, {})
    names = [name for name in known if only is None or name in only]
    if planned:
        users = {entry["user"] or node.user for entry in planned.values()} - {None}
        with contextlib.suppress(FleetError):  # which the definitions raise again
            node.manager.interpreter = node_python.choose(node.paths, sorted(users))
    shared = sorted(shared_changes(node)) if planned else []
    holders = port_holders(node, {name: planned[name] for name in names if name in planned}, observed)
    lacks = {}
    if probes:
        running = [
            observed[name].entry
            for name in names
            if observed[name].entry and condition(observed[name]).state == "running"
        ]
        lacks = probe_all([entry for entry in running if "health" in entry], timeout, observed)
    rows = []
    for name in names:
        one = observed.get(name) or Observed(name)
        entry = planned.get(name) or one.entry or {}
        result = row(node, one)
        result["memory_mib"] = processes.memory_mib(one.pids)
        result["port"] = (one.entry or entry).get("port")
        result["log_tail"] = log_tail(node.paths, node.manager, name, log_lines)
        if probes:
            lack = lacks.get(name, "it does not run")
            result["ready"] = lack is None
            if name in lacks and lack and (one.state.get("artifact") or one.was_ready):
                lack = "%s, %s" % (doing(one), lack)
            result["reason"] = result["reason"] or (lack if name in lacks else None)
        found = differences(node, planned, name, one, secrets or {}, shared, holders.get(name, [])) if planned else []
        if planned and name in planned and result["ready"] is False and condition(one).state in ("running", "waiting"):
            found.append(drift.Difference("not ready", "it is not ready: %s" % result["reason"]))
        result["differences"] = [{"kind": one.kind, "text": one.text} for one in found] if planned else None
        result["drift"] = "; ".join(one.text for one in found) or None
        result["notes"] = drift.unit_notes(one.unit) if one.unit else []
        rows.append(result)
    return rows
