# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs on a node and how it differs from the plan, for playbooks/status.yml."""

from __future__ import annotations

import contextlib

from ..containers.launcher import silent_engine
from ..errors import FleetError
from ..host import processes
from ..host import python as host_python
from ..host.redact import Redactor
from ..host.server_spec import check_entries
from ..launchers.process import program_problem
from ..services.base import ManagerSilent
from ..visible import visible
from . import drift
from .apply import shared_changes, shared_fault
from .decide import NOT_ENABLED
from .desired import desired_server
from .drift import changed_weights, changed_weights_words, entry_changes
from .model import Observed, condition, config_path
from .observe import check_only, log_tail, observe, row
from .ports import port_holders
from .readiness import doing, probe_all

WORDS = ("reason", "log_tail", "differences", "drift", "notes")  # of a row: of servers and their logs


def differences(node, planned, name, observed, secrets, shared, holders):
    """[drift.Difference] of one server, the weightiest first.

    planned: {name: entry}; secrets: {variable: value}, as far as they are known; shared: sentences on shared files
    that differ; holders: port_holders() of this server.
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
    found += drift.differences(desired, observed)
    found += [drift.Difference("shared file", words) for words in shared]
    return found


def _held(holders):
    return [drift.Difference("port", words) for words in holders]


def status(node, entries, only=None, log_lines=0, probes=False, timeout=10, secrets=None):
    """[row] of engine_servers_info: what runs, how it differs from the plan, its memory and the end of its log.

    Orphaned servers are in it as well. Without entries nothing is known of a plan, and drift is None. probes: find out
    whether they are ready; ready stays None otherwise. secrets: {variable: value}, as far as they are known.
    """
    planned = check_entries(entries)
    # a server's account may have emptied its file of secrets, by which all else is masked
    given = [value if isinstance(value, (list, tuple)) else [value] for value in (secrets or {}).values()]
    known_secrets = Redactor(str(one) for values in given for one in values)
    silence = None
    try:
        observed = observe(node.paths, node.manager, planned)
    except ManagerSilent as error:  # whatever runs is to be seen all the same
        silence, node.manager.statuses = error.message, dict
        observed = observe(node.paths, node.manager, planned)
    known = [*planned, *sorted(name for name in observed if name not in planned and observed[name].is_there)]
    check_only(only, known, {})
    names = [name for name in known if only is None or name in only]
    if planned:
        users = {entry["user"] or node.user for entry in planned.values()} - {None}
        with contextlib.suppress(FleetError):  # which the definitions raise again
            node.manager.interpreter = host_python.choose(node.paths, sorted(users))
    changed = sorted(shared_changes(node).items()) if planned else []
    shared = ["%s %s" % (path, shared_fault(node.paths, path, text)) for path, text in changed]
    holders = port_holders(node, {name: planned[name] for name in names if name in planned}, observed)
    lacks = {}
    if probes:
        running = [
            observed[name].entry
            for name in names
            if observed[name].entry and condition(observed[name]).state == "running"
        ]
        lacks = probe_all([entry for entry in running if "health" in entry], timeout, observed)
    engines = {}  # each is asked once
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
            result["reason"] = result["reason"] or (visible(lack) if lack and name in lacks else None)
        if silence and not result["ready"]:
            result["reason"] = silence
        found = differences(node, planned, name, one, secrets or {}, shared, holders.get(name, [])) if planned else []
        if planned and name in planned and result["ready"] is False and condition(one).state in ("running", "waiting"):
            words = result["reason"] or "it was not asked, since its deployed entry cannot be read"
            found.append(drift.Difference("not ready", "it is not ready: %s" % words))
        container = entry.get("container") if planned else None
        if container:
            label = (container["engine"], container["address"])
            if label not in engines:
                engines[label] = silent_engine(entry)
            if engines[label]:
                found.insert(0, drift.Difference("container engine", engines[label]))
        if silence:  # the one that is there and does not answer is what is wrong
            found = [one for one in found if one.kind not in ("unmanaged", "stopped", "not ready")]
            found.insert(0, drift.Difference("service manager", silence))
        lines = [{"kind": one.kind, "text": visible(one.text)} for one in found]
        result["differences"] = lines if planned else None
        result["drift"] = "; ".join(one["text"] for one in lines) or None
        result["notes"] = [visible(note) for note in drift.unit_notes(one.unit)] if one.unit else []
        rows.append({key: known_secrets.value(value) if key in WORDS else value for key, value in result.items()})
    return rows
