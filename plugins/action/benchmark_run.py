# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inference.fleet.benchmark_run on the node, keeps its result here, and fails the task where that is not good."""

from __future__ import annotations

import os

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result as results
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import clean
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import head
from ansible_collections.inference.fleet.plugins.plugin_utils.node_program import NodeProgram
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import show
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.tables import of_candidate


class ActionModule(NodeProgram, ActionBase):
    """Action plugin of inference.fleet.benchmark_run."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        """Returns what the module returns, and path; see modules/benchmark_run.py."""
        result = super().run(tmp, task_vars)
        arguments = clean(dict(self._task.args), "benchmark_run")
        folder = arguments.pop("reports_dir", None)
        folder = os.path.abspath(os.path.expanduser(folder)) if folder else None
        arguments["head"] = head.head_of(arguments, task_vars["inventory_hostname"], folder)
        # the same for all tasks of a run, so that one may begin what another waits for: without the task's own number
        arguments["caller"] = self._task._uuid.rpartition("-")[0]
        for name in ("deployment", "hardware"):
            arguments.pop(name, None)
        result.update(self.call("benchmark_run", arguments, task_vars))
        if folder and result.get("restarted") and not self._task.check_mode:
            report.void_verdicts(
                folder, task_vars["inventory_hostname"], dict.fromkeys(result["restarted"], "restarted")
            )
        document = result.get("document")
        if not document or result.get("failed") or self._task.check_mode:
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
