# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans the candidates of a sweep, and chooses the best measured candidate. It runs on the control node only."""

from __future__ import annotations

import collections
import os

import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import read_text, write_atomic
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result as results
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import some
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import points, tune
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.fleet import plan_fleet
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_folder
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import show

FILE = "tuned.yml"
ARGUMENTS = {
    "failed": {"type": "dict", "default": {}},
    "file": {"type": "path"},
    "limits": {"type": "raw"},
    "reports_dir": {"type": "path"},
    "state": {"type": "str", "default": "planned", "choices": ["planned", "chosen"]},
}


def sweep_report(action, given, task_vars):
    """Return {candidates, limits, best, file, fleet_report, msg}."""
    folder = reports_folder(given["reports_dir"], task_vars, action._templar)
    if not folder:
        raise AnsibleActionFail("A sweep is kept in reports: set fleet_reports_dir to a folder for them.")
    sweep = Sweep(task_vars, given["limits"])
    history = results.history(folder)[0]
    found = {one["name"]: tune.measured(one["calls"], one["deployment"], history) for one in sweep.candidates}
    found.update({name: [None] for name in found if name in given["failed"]})
    rows = tune.rows(found, sweep.limits, given["failed"])
    table = {"title": "Tuning", "columns": list(tune.COLUMNS), "rows": rows}
    if given["state"] == "planned":
        for one in sweep.candidates:
            one["measured"] = None not in found[one["name"]]
        result = {"candidates": sweep.candidates, "limits": sweep.limits}
    else:
        file = os.path.abspath(given["file"] or os.path.join(folder, FILE))
        result = _chosen(action, sweep, found, file)
    if given["state"] == "chosen" or action._task.check_mode:
        result["fleet_report"] = table
        show(table)
    return result


def _chosen(action, sweep, found, path):
    best = tune.choose(found, sweep.limits)
    result = {"changed": False, "best": best, "limits": sweep.limits, "file": None}
    if best is None:
        result.update(failed=True, msg=NONE % (len(found), tune.words(sweep.limits)))
        return result
    one = next(item for item in sweep.candidates if item["name"] == best)
    point = tune.best_point(found[best], sweep.limits)
    text = HEAD % (best, tune.words(sweep.limits), point["metrics"]["output_tokens_per_s"], path)
    text += yaml.safe_dump({tune.LAYER: one["override"]}, sort_keys=False)
    before = read_text(path) or ""
    result.update(changed=before != text, file=path, msg=BEST % (best, point["metrics"]["output_tokens_per_s"], path))
    result["diff"] = {"before": before, "after": text, "before_header": path, "after_header": path}
    if not action._task.check_mode and before != text:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_atomic(path, text)
        except OSError as error:
            raise AnsibleActionFail("%s cannot be written: %s." % (path, error.strerror)) from error
    return result


class Sweep:
    """The candidates of the play's only host: [{name, override, servers, deployment, calls, planned}]."""

    def __init__(self, task_vars, limits):
        hosts = task_vars["ansible_play_hosts_all"]
        if len(hosts) != 1:
            _refuse(some(hosts), "these are several hosts, whose servers would stop in turn")
        self.task_vars, self.host = task_vars, hosts[0]
        base = self.plan(None)
        deployment = base["deployment"]
        if not base["servers"]:
            _refuse(self.host, "no server is planned there")
        if deployment.get("workers_elsewhere"):
            _refuse(self.host, "it has workers on other hosts, which would have to change with it")
        wanted = deployment.get("tune") or {}
        self.limits = tune.limits_of(limits, wanted)
        self.candidates = []
        given = task_vars["hostvars"][self.host].get(tune.LAYER) or {}
        for name, override in tune.candidates(wanted, deployment["name"]):
            item = self.plan(override) if override else base
            if override and item["servers"] == base["servers"]:
                self.candidates[0]["name"] = "%s (%s)" % (name, tune.AS_IT_IS)
                self.candidates[0]["override"] = override
                continue
            calls = tune.calls_of(item["servers"], item["deployment"], wanted.get("profile") or points.QUICK)
            self.candidates.append(
                {
                    "name": name, "override": override or given, "servers": item["servers"],
                    "deployment": item["deployment"], "calls": calls,
                }
            )  # fmt: skip

    def plan(self, override):
        """Return the plan of the host with the layer of the sweep; for None, the plan of the inventory."""
        hostvars = self.task_vars["hostvars"]

        def variables(host):
            if override is None or host != self.host:
                return hostvars[host]
            return collections.ChainMap({tune.LAYER: override}, hostvars[host])

        sources = self.task_vars.get("ansible_inventory_sources") or []
        return plan_fleet([self.host], variables, sources, deploys=True)[self.host]


def _refuse(what, reason):
    raise FleetError(
        "tune.not-possible",
        "tune.yml cannot tune %s: %s. Choose one host with --limit.",
        (what, reason),
    )


NONE = (
    "None of %d candidates keeps the limits (%s); no file was written. Raise fleet_tune_limits, or mark other values."
)
BEST = "Best: %s, %.1f output tokens/s. Written to %s. Use it with -e @FILE, or as a file of group_vars."
HEAD = """# Written by tune.yml: %s is the best within the limits (%s), with %.1f output tokens/s.
# ansible-playbook site.yml -i … -e @%s
"""
KINDS = {"tune": (ARGUMENTS, sweep_report)}
