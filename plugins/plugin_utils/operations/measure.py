# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measurements: their head before, and their results in the reports after a call."""

from __future__ import annotations

import os

from ansible.errors import AnsibleActionFail
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result as results
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import clean
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import evaluations, head
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_folder
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import show
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.tables import of_candidate

OWN = ("reports_dir", "deployment", "hardware", "references", "profile", "telling")


def caller_of(action):
    """A name of the run, the same for all its tasks: one may start a job that another waits for."""
    return action._task._uuid.rpartition("-")[0]


def benchmark_run(action, given, task_vars):
    """Returns the result of the operation, and path; see modules/benchmark_run.py."""
    arguments = clean(dict(given), "benchmark_run")
    folder = arguments.pop("reports_dir", None)
    folder = os.path.abspath(os.path.expanduser(folder)) if folder else None
    arguments["head"] = head.head_of(arguments, task_vars["inventory_hostname"], folder)
    arguments["caller"] = caller_of(action)
    for name in ("deployment", "hardware"):
        arguments.pop(name, None)
    result = action.call("benchmark_run", arguments, task_vars)
    if folder and result.get("restarted") and not action._task.check_mode:
        report.void_verdicts(folder, task_vars["inventory_hostname"], dict.fromkeys(result["restarted"], "restarted"))
    document = result.get("document")
    if not document or result.get("failed") or action._task.check_mode:
        return result
    table = {"title": "Benchmark", "columns": list(head.COLUMNS), "rows": [head.row(document)]}
    result["fleet_report"] = of_candidate(table, task_vars)
    show(result["fleet_report"])
    if folder:
        try:
            result["path"] = results.keep(folder, document)
        except (FleetError, OSError) as error:
            raise AnsibleActionFail("The result cannot be kept: %s" % error) from error
    if not document["ok"]:
        where = " The whole result: %s" % result["path"] if folder else ""
        result.update(failed=True, msg=head.failure(document) + where)
    return result


def evaluation_run(action, given, task_vars):
    """Returns the result of the operation, with evaluation and path; see modules/evaluation_run.py."""
    own = {name: clean(given.get(name), name) for name in OWN}
    arguments = {name: value for name, value in given.items() if name not in OWN}
    arguments["caller"] = caller_of(action)
    result = action.call("evaluation_run", arguments, task_vars)
    if result.get("failed") or not result.get("measured"):
        return result
    host = task_vars["inventory_hostname"]
    entries = clean(arguments["servers"], "servers")
    asked = [entry for entry in entries if entry["name"] in result["measured"]["servers"]]
    folder = reports_folder(own["reports_dir"], task_vars, action._templar)
    deployment = own["deployment"] or {}
    known = {
        "deployment": deployment, "servers": asked, "hardware": own["hardware"],
        "tool_version": arguments.get("tool_version"), "profile": own["profile"] or "full",
        "scope": "server" if len(asked) == 1 else "node",
    }  # fmt: skip
    described = head.head_of(known, host, folder)
    try:
        telling = float(own["telling"] if own["telling"] is not None else evaluations.verdict.TELLING)
        found = evaluations.document(result.pop("measured"), described, deployment, own["references"] or [], telling)
        result["evaluation"] = found
        if folder and not action._task.check_mode:
            result["path"] = results.keep(folder, found)
    except (FleetError, ValueError) as error:
        raise AnsibleActionFail(getattr(error, "message", str(error))) from error
    except OSError as error:
        result.setdefault("warnings", []).append("The result could not be kept in %s: %s." % (folder, error.strerror))
    result["fleet_report"] = {
        "title": "Evaluation", "columns": list(evaluations.COLUMNS), "rows": [evaluations.row(found)],
    }  # fmt: skip
    show(result["fleet_report"])
    if not found["ok"]:
        result.update(failed=True, msg="%s, effort %s: %s" % (found["eval"], found["effort"], found["reason"]))
    return result
