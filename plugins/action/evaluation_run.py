# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inference.fleet.evaluation_run on the node, keeps the result here, and fails the task where it is not good."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result as results
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import clean
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import evaluations
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.head import head_of
from ansible_collections.inference.fleet.plugins.plugin_utils.node_program import NodeProgram
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_folder
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import show

OWN = ("reports_dir", "deployment", "hardware", "references", "profile", "telling")


class ActionModule(NodeProgram, ActionBase):
    """Action plugin of inference.fleet.evaluation_run."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        """Returns what the module returns, with evaluation and path; see modules/evaluation_run.py."""
        result = super().run(tmp, task_vars)
        own = {name: clean(self._task.args.get(name), name) for name in OWN}
        arguments = {name: value for name, value in self._task.args.items() if name not in OWN}
        # the same for all tasks of a run, so that one may begin what another waits for: without the task's own number
        arguments["caller"] = self._task._uuid.rpartition("-")[0]
        result.update(self.call("evaluation_run", arguments, task_vars))
        if result.get("failed") or not result.get("measured"):
            return result
        host = task_vars["inventory_hostname"]
        entries = clean(arguments["servers"], "servers")
        asked = [entry for entry in entries if entry["name"] in result["measured"]["servers"]]
        folder = reports_folder(own["reports_dir"], task_vars, self._templar)
        deployment = own["deployment"] or {}
        known = {
            "deployment": deployment, "servers": asked, "hardware": own["hardware"],
            "tool_version": arguments.get("tool_version"), "profile": own["profile"] or "full",
            "scope": "server" if len(asked) == 1 else "node",
        }  # fmt: skip
        head = head_of(known, host, folder)
        try:
            telling = float(own["telling"] if own["telling"] is not None else evaluations.verdict.TELLING)
            found = evaluations.document(result.pop("measured"), head, deployment, own["references"] or [], telling)
            result["evaluation"] = found
            if folder and not self._task.check_mode:
                result["path"] = results.keep(folder, found)
        except (FleetError, ValueError) as error:
            raise AnsibleActionFail(getattr(error, "message", str(error))) from error
        except OSError as error:
            result.setdefault("warnings", []).append(
                "The result could not be kept in %s: %s." % (folder, error.strerror)
            )
        result["fleet_report"] = {
            "title": "Evaluation", "columns": list(evaluations.COLUMNS), "rows": [evaluations.row(found)],
        }  # fmt: skip
        show(result["fleet_report"])
        if not found["ok"]:
            result.update(failed=True, msg="%s, effort %s: %s" % (found["eval"], found["effort"], found["reason"]))
        return result
