# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Benchmarks and evaluations on the control node: results are judged, displayed and added to the history."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail

from ...module_utils.fleet_node.measure import result as history
from ..base.checks import clean
from ..measure import points, results
from ..reporting import report
from ..reporting.folder import reports_folder
from ..reporting.screen import of_candidate, show

HERE = ("reports_dir", "deployment", "hardware", "references", "telling")  # not sent to the node


def benchmark_run(action, given, task_vars):
    """Return the result of the operation, and path; see modules/benchmark_run.py."""
    return _measure(action, "benchmark_run", clean(dict(given), "benchmark_run"), task_vars)


def evaluation_run(action, given, task_vars):
    """Return the result of the operation, with evaluation and path; see modules/evaluation_run.py."""
    arguments = {"profile": "full", **clean(dict(given), "evaluation_run")}
    tool = points.evaluation_tool(arguments["eval"], arguments.get("command"))
    servers = points.answering(arguments["eval"], arguments["servers"])
    arguments.update(command=tool, servers=servers if tool.get("several") else servers[:1])
    result = _measure(action, "evaluation_run", arguments, task_vars)
    document = result.pop("document", None)
    return {**result, "evaluation": document} if document else result


def _measure(action, operation, arguments, task_vars):
    host = task_vars["inventory_hostname"]
    folder = reports_folder(arguments.get("reports_dir"), task_vars, action._templar)
    head = results.head_of(arguments, host, folder)
    # The caller is the same for all tasks of a run: a task may start a job that another task waits for.
    sent = {**arguments, "head": head, "caller": action._task._uuid.rpartition("-")[0]}
    result = action.call(operation, {name: sent[name] for name in sent if name not in HERE}, task_vars)
    if folder and result.get("restarted") and not action._task.check_mode:
        report.void_verdicts(folder, host, dict.fromkeys(result["restarted"], "restarted"))
    document = result.get("document")
    if not document or result.get("failed") or action._task.check_mode:
        return result
    if document["kind"] == "evaluation":
        references, telling = arguments.get("references") or [], float(arguments.get("telling") or 15)
        document = results.compared(document, references, arguments.get("deployment") or {}, telling)
        result["document"] = document
    result["fleet_report"] = of_candidate(results.table(document), task_vars)
    show(result["fleet_report"])
    if folder:
        try:
            result["path"] = history.keep(folder, document)
        except OSError as error:
            raise AnsibleActionFail("The result cannot be kept: %s" % error) from error
    if not document["ok"]:
        where = " The complete result: %s" % result["path"] if folder else ""
        result.update(failed=True, msg=results.failure(document) + where)
    return result
