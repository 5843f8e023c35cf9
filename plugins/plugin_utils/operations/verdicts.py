# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports of verdicts and of the status."""

from __future__ import annotations

import json
import os

from ansible.errors import AnsibleActionFail

from ...module_utils.fleet_node.host.files import write_atomic
from ...module_utils.fleet_node.host.os_errors import remedy
from ...module_utils.fleet_node.host.values import now
from ..base.checks import clean
from ..planning import run_look, run_plan
from ..planning.inventory import Hosts, inference_hosts
from ..reporting import report
from ..reporting.runs import reports_folder, run_id
from ..reporting.screen import show


def verification(action, given, task_vars):
    """Begin a run: verdicts of earlier runs become invalid. Return {run, reports_dir}."""
    result = {"run": None}
    folder = reports_folder(given["reports_dir"], task_vars, action._templar)
    if not folder or action._task.check_mode:
        return result
    hosts = task_vars["ansible_play_hosts_all"]

    def planned():
        others = Hosts.of_task(task_vars)
        every = list(dict.fromkeys([*inference_hosts(task_vars["groups"]["all"], others), *hosts]))
        items = run_plan.recalled(every, others, deploys=False)
        if not items:  # a host was not planned in this run
            from ..planning import fleet

            items = fleet.plan_each(every, others, run_plan.RunPlan())
        return {host: item and report.deployed(item["servers"], item["deployment"]) for host, item in items.items()
                if item is None or item["servers"]}  # fmt: skip

    try:
        sources = task_vars.get("ansible_inventory_sources") or ()
        result["run"] = report.begin_run(folder, run_id(), hosts, task_vars["ansible_play_hosts"], planned, sources)
    except OSError as error:
        result["warnings"] = [report.not_written(folder, error)]
    else:
        result["reports_dir"] = folder
    return result


def converged(action, _given, task_vars):
    """Report the verdicts of converged hosts, from the operation check.
    Return {hosts}; the play Verify omits these hosts.

    No verdict is reported if the run changes any host. A host without a good verdict is left to the play Verify, which
    asks its servers again and fails.
    """
    good = {host: one for host, one in run_look.verdicts().items() if one["ok"] is not False}
    result = {"hosts": sorted(good)}
    if not good:
        return result
    if not action._task.check_mode:
        try:
            summaries = _written(good, task_vars["groups"]["all"])
        except OSError as error:  # the play Verify warns and continues
            return {"hosts": [], "warnings": [report.not_written(error.filename, error)]}
        # for AWX and callbacks that write data
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
    """Return {host: summary} of the reports, which are written below each host's folder if it is set."""
    folders, reports = {}, {}
    for host, one in good.items():
        folders.setdefault(one["folder"], {})[host] = (one["mode"], one["verdicts"], one["what"], None)
    for folder, verified in folders.items():
        reports.update(report.write_all(folder, verified, inventory_hosts))
    return {host: report.summary(one) for host, one in reports.items()}


def status(action, given, task_vars):
    """Collect the status of all hosts of the play, as a file and as statistics. Return {status, ansible_stats}."""
    name = given["registered"]
    hosts, refused = {}, run_plan.refused()
    for host in task_vars["ansible_play_hosts_all"]:
        found = task_vars["hostvars"][host].get(name) if name else None
        hosts[host] = of_host(clean(found, name) if isinstance(found, dict) else None, refused.get(host))
    collected = {
        "schema": 1,
        "at": now(),
        "differs": any(one["differs"] is not False for one in hosts.values()),
        "hosts": hosts,
    }
    if given["file"]:
        path = os.path.abspath(os.path.expanduser(given["file"]))
        try:
            write_atomic(path, json.dumps(collected, indent=2, sort_keys=True) + "\n")
        except OSError as error:
            text = "fleet_status_file %s cannot be written: %s. %s." % (path, error.strerror, remedy(error))
            raise AnsibleActionFail(text) from error
    stats = {"data": {"fleet_status": collected}, "per_host": False, "aggregate": False}
    return {"status": collected, "ansible_stats": stats}


def of_host(found, refused=None):
    """Return {reached, differs, servers, problem} of a host. found: the result of engine_servers_info, or None.
    refused: the reason why the host could not be planned."""
    if found is None:
        found = {"msg": refused or run_look.NOT_ASKED}
    reached = True if "servers" in found else False if found.get("unreachable") else None
    return {
        "reached": reached,
        "differs": bool(found.get("differs")) if reached else None,
        "servers": found["servers"] if reached else [],
        "problem": None if reached else found.get("msg"),
    }


KINDS = {
    "converged": ({}, converged),
    "status": ({"file": {"type": "path"}, "registered": {"type": "str"}}, status),
    "verification": ({"reports_dir": {"type": "path"}}, verification),
}
