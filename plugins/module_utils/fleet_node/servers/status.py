# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The servers of a node and how they differ from the plan, for playbooks/status.yml."""

from __future__ import annotations

import contextlib

from ..containers.engine import silent_engine
from ..errors import FleetError, visible
from ..host import processes
from ..host import python as host_python
from ..host.server_spec import check_entries
from .apply import shared_changes
from .desired import desired_server
from .drift import Difference, compare, unit_notes
from .model import Observed, condition
from .observe import check_only, foreign_holders, given_redactor, log_tail, observe, row
from .readiness import doing, probe_all

WORDS = ("reason", "log_tail", "differences", "drift", "notes")  # of a row: from servers and their logs


def status(node, entries, only=None, log_lines=0, probes=False, timeout=10, secrets=None):
    """[row] of engine_servers_info: the state of each server, how it differs from the plan, its memory and the end of
    its log. Servers that are not in the plan are included.

    Without entries there is no plan, and drift is None. probes: whether each server is asked for a completion; ready is
    None otherwise. secrets: {variable: value}, as far as they are known.
    """
    planned = check_entries(entries)
    observed = observe(node.paths, node.manager, planned)
    known = [*planned, *sorted(name for name in observed if name not in planned and observed[name].is_there)]
    check_only(only, known, {})
    names = [name for name in known if only is None or name in only]
    lacks = {}
    if probes:
        running = [observed[name].entry for name in names if condition(observed[name]).state == "running"]
        lacks = probe_all([entry for entry in running if entry and "health" in entry], timeout, observed)
    found = _differences(node, planned, names, observed, secrets or {}) if planned else {}
    redactor = given_redactor(secrets)
    rows = []
    for name in names:
        one = observed.get(name) or Observed(name)
        result = row(node, one)
        result["memory_mib"] = processes.memory_mib(one.pids)
        result["port"] = (one.entry or planned.get(name) or {}).get("port")
        result["log_tail"] = log_tail(node, name, log_lines)
        if probes:
            lack = lacks.get(name)
            result["ready"] = name in lacks and lack is None
            if lack:
                loads = one.state.get("artifact") or one.was_ready
                result["reason"] = result["reason"] or visible("%s, %s" % (doing(one), lack) if loads else lack)
        mine = found.get(name, [])
        if result["ready"] is False and name in planned and condition(one).state in ("running", "waiting"):
            words = result["reason"] or "it was not asked, since its deployed entry cannot be read"
            mine.append(Difference("not ready", "it is not ready: %s" % words))
        lines = [{"kind": one.kind, "text": visible(one.text)} for one in mine]
        result["differences"] = lines if planned else None
        result["drift"] = "; ".join(one["text"] for one in lines) or None
        result["notes"] = [visible(note) for note in unit_notes(one.service)] if one.service else []
        rows.append({key: redactor.value(value) if key in WORDS else value for key, value in result.items()})
    return rows


def _differences(node, planned, names, observed, secrets):
    """{name: [Difference]} of servers, with those of files that all servers share."""
    users = {entry["user"] for entry in planned.values()} - {None}
    with contextlib.suppress(FleetError):  # the definitions raise it again
        node.manager.interpreter = host_python.choose(node.paths, sorted(users))
    shared = ["%s %s" % (path, fault) for path, (_text, fault) in sorted(shared_changes(node).items())]
    found = {}
    for name in names:
        if name not in planned:
            found[name] = [Difference("not planned", "it is not in the plan")]
            continue
        entry, one = planned[name], observed.get(name) or Observed(name)
        found[name] = compare(desired_server(node, entry, secrets), one)
        containers = {other: seen.containers for other, seen in observed.items()}
        held = foreign_holders(node.paths.root, [entry], containers)
        found[name] += [Difference("port", words) for _name, _holder, words in held]
        if one.entry is not None:
            found[name] += [Difference("shared file", words) for words in shared]
        silent = silent_engine(entry)
        if silent:
            found[name].insert(0, Difference("container engine", silent))
    return found
