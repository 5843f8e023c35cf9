# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inference.fleet.endpoint_verify on the node, writes the reports here, and fails the task on a bad verdict."""

from __future__ import annotations

import os

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import readable_json
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import clean
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import of_candidate, show

HERE = ("deployment", "problem", "reports_dir", "simulated")  # not needed on the node


def endpoint_verify(action, arguments, task_vars):
    """Return the verdicts, and fleet_report; see modules/endpoint_verify.py."""
    host = task_vars["inventory_hostname"]
    folder = arguments.get("reports_dir")
    folder = os.path.abspath(os.path.expanduser(folder)) if folder else None
    asked = sent(arguments, host, folder, run_look.unchanged(host))
    result = action.call("endpoint_verify", asked, task_vars)
    if result.get("failed") or "verdicts" not in result:
        return result
    problems = [report.failure_message(host, result["verdicts"])] if result["ok"] is False else []
    if problems and arguments.get("problem"):  # the reason for the servers' answers
        problems.insert(0, arguments["problem"])
    if not action._task.check_mode:
        plan = [clean(arguments.get(name), name) for name in ("servers", "deployment")]
        what = report.deployed(*plan, arguments.get("simulated"))
        written = (result["mode"], result["verdicts"], task_vars["groups"]["all"], what, arguments.get("problem"))
        verdict, warning = _report(folder, host, *written)
        result["verdict"] = report.summary(verdict[host])
        # For AWX and callbacks that write data. Ansible discards the statistics of a failed task; the role sets them
        # then.
        data = {"fleet_verdict": {host: result["verdict"]}}
        result["ansible_stats"] = {"data": data, "per_host": False, "aggregate": True}
        if warning:
            result.setdefault("warnings", []).append(warning)
        elif folder:
            result["fleet_page"] = report.page_path(folder)
            problems += _where(folder, host) if problems else []
    result["fleet_report"] = of_candidate(report.table(host, result["verdicts"]), task_vars)
    show(result["fleet_report"])
    if problems:
        result.update(failed=True, msg="\n".join(problems))
    return result


def sent(arguments, host, folder, unchanged):
    """Return the arguments for the managed node. folder: of the reports, or None.
    unchanged: the run changes nothing."""
    found = {name: value for name, value in arguments.items() if name not in HERE}
    if unchanged:
        found["servers_changed"] = False
    if folder and found.get("mode", "auto") == "auto":
        changed = found.get("servers_changed")
        changed = None if changed is None else boolean(changed, strict=False)
        found["mode"] = report.settle_auto(changed, found["servers"], readable_json(report.host_path(folder, host)))
    return found


def _report(folder, host, mode, verdicts, inventory_hosts, what, problem):
    """Return ({host: report}, warning or None). The report is written below `folder`, if it is set and writable."""
    verified = {host: (mode, verdicts, what, problem)}
    try:
        return report.write_all(folder, verified, inventory_hosts), None
    except OSError as error:
        return report.write_all(None, verified, inventory_hosts), report.not_written(folder, error)


def _where(folder, host):
    """Return lines with the paths of the report, for a failure message."""
    return [
        "The complete report: " + report.host_path(folder, host),
        "The same as a page: " + report.page_path(folder),
    ]
