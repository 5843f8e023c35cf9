# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports of verdicts and of the status."""

from __future__ import annotations

import json
import os

from ansible.errors import AnsibleActionFail

from ...module_utils.fleet_node.host.files import make_directory, write_atomic
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
    hosts = by_host(task_vars, given["registered"], "differs", "servers")
    differs = any(one["differs"] is not False for one in hosts.values())
    collected = {"schema": 1, "at": now(), "differs": differs, "hosts": hosts}
    if given["file"]:
        write("fleet_status_file ", given["file"], json.dumps(collected, indent=2, sort_keys=True) + "\n", 0o644)
    return {"status": collected, "ansible_stats": statistics("fleet_status", collected)}


def by_host(task_vars, name, verdict, rows):
    """Return {host: {reached, VERDICT, ROWS, problem}} of the hosts of the play, from the result that each has in the
    variable `name`, None for none. verdict, rows: keys of the result."""
    refused, hosts = run_plan.refused(), {}
    for host in task_vars["ansible_play_hosts_all"]:
        found = task_vars["hostvars"][host].get(name) if name else None
        one = {"reached": None, verdict: None, rows: [], "problem": refused.get(host) or run_look.NOT_ASKED}
        if isinstance(found, dict):
            found = clean(found, name)
            one["problem"] = found.get("msg")
            if found.get("unreachable"):
                one["reached"] = False
            elif rows in found:
                one.update({"reached": True, verdict: bool(found.get(verdict)), rows: found[rows], "problem": None})
        hosts[host] = one
    return hosts


def statistics(name, collected):
    """Return the statistics for AWX and callbacks that write data."""
    return {"data": {name: collected}, "per_host": False, "aggregate": False}


def write(what, path, data, mode):
    """Write a report to `path`. Raises AnsibleActionFail, which begins with `what`."""
    path = os.path.abspath(os.path.expanduser(path))
    try:
        make_directory(os.path.dirname(path))
        write_atomic(path, data, mode)
    except OSError as error:
        text = "%s%s cannot be written: %s. %s." % (what, path, error.strerror, remedy(error))
        raise AnsibleActionFail(text) from error


KINDS = {
    "converged": ({}, converged),
    "status": ({"file": {"type": "path"}, "registered": {"type": "str"}}, status),
    "verification": ({"reports_dir": {"type": "path"}}, verification),
}
