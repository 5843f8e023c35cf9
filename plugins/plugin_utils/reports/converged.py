# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports the verdicts of converged hosts, which the operation check has verified in its call: all in one task."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import show

ARGUMENTS = {}


def run(action, _given, task_vars):
    """Returns {hosts}, the reported ones; the play Verify omits them.

    None are reported if the run has something to do on any host. A host whose verdict is not good is left to that play,
    which asks its servers again and fails.
    """
    good = {host: one for host, one in run_look.verdicts().items() if one["ok"] is not False}
    result = {"hosts": sorted(good)}
    if not good:
        return result
    if not action._task.check_mode:
        try:
            summaries = _written(good, task_vars["groups"]["all"])
        except OSError as error:  # the play Verify warns and goes on
            return {"hosts": [], "warnings": [report.not_written(error.filename, error)]}
        # for AWX and callbacks for machines
        result["ansible_stats"] = {"data": {"fleet_verdict": summaries}, "per_host": False, "aggregate": True}
        folder = next((one["folder"] for one in good.values() if one["folder"]), None)
        if folder:
            result["fleet_page"] = report.page_path(folder)
    run_look.note_reported(good)
    result["fleet_report"] = [report.table(host, one["verdicts"]) for host, one in good.items()]
    result["warnings"] = [line for one in good.values() for line in one.get("warnings", ())]
    show(result["fleet_report"])
    return result


def _written(good, inventory_hosts):
    """{host: summary} of the reports, written below each host's folder; without a folder nothing is written."""
    folders, reports = {}, {}
    for host, one in good.items():
        folders.setdefault(one["folder"], {})[host] = (one["mode"], one["verdicts"], one["what"], None)
    for folder, verified in folders.items():
        if folder:
            reports.update(report.write_all(folder, verified, inventory_hosts))
        else:
            for host, (mode, verdicts, what, problem) in verified.items():
                reports[host] = report.host_report(host, mode, verdicts, report.now(), None, what, problem)
    return {host: report.summary(one) for host, one in reports.items()}
