# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says in the reports which hosts a verdict is due of, before anything is asked: no node is touched."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import Hosts, inference_hosts
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_folder, run_id

ARGUMENTS = {"reports_dir": {"type": "path"}}


def run(action, given, task_vars):
    """Returns {run, reports_dir}."""
    result = {"run": None}
    folder = reports_folder(given["reports_dir"], task_vars, action._templar)
    if not folder or action._task.check_mode:
        return result
    hosts = task_vars["ansible_play_hosts_all"]

    def planned():
        others = Hosts.of_task(task_vars)
        every = list(dict.fromkeys([*inference_hosts(task_vars["groups"]["all"], others), *hosts]))
        items = run_plan.recalled(every, others, deploys=False) or plan_each(every, others)
        return {host: item and report.deployed(item["servers"], item["deployment"]) for host, item in items.items()
                if item is None or item["servers"]}  # fmt: skip

    try:
        result["run"] = report.begin_run(folder, run_id(), hosts, task_vars["ansible_play_hosts"], planned)
    except OSError as error:
        result["warnings"] = [report.not_written(folder, error)]
    else:
        result["reports_dir"] = folder
    return result


def plan_each(hosts, others):
    """fleet.plan_each(), imported where a host was not planned in this run."""
    from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet

    return fleet.plan_each(hosts, others, run_plan.RunPlan())
