# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sweep over the tunable settings of a recipe: plans the candidates, and chooses the best measured candidate."""

from __future__ import annotations

import collections
import itertools
import math
import os

import yaml
from ansible.errors import AnsibleActionFail

from ...module_utils.fleet_node.errors import FleetError, cut
from ...module_utils.fleet_node.host.files import read_text, write_atomic
from ...module_utils.fleet_node.measure import result as results
from ..base.words import some
from ..measure import compare, points
from ..planning.fleet import plan_fleet
from ..planning.variables import LIMITS, limits_of
from ..recipe import overrides
from ..reporting.runs import reports_folder
from ..reporting.screen import show

LAYER = "fleet_override_tuned"
LONGEST = 160  # characters of a failure in the table
MOST = 24  # candidates; each candidate starts the servers
STATISTICS = ("p95", "p90")  # of a latency with a limit: the first that the tool reports
AS_IT_IS = "as it is"
COLUMNS = ("candidate", "output tokens/s", "at once", "TTFT p95, ms", "TPOT p95, ms", "result")


def settings(tune):
    """Return [(setting, [(word, override)])] of a recipe's `tune`, those of `arguments` first."""
    found = [
        (name, [(str(value), {"arguments": {name: value}}) for value in values])
        for name, values in (tune.get("arguments") or {}).items()
        if values
    ]
    for name, variants in (tune.get("variants") or {}).items():
        found += [(name, [(word, override or {}) for word, override in variants.items()])] if variants else []
    return found


def candidates(tune, recipe="the recipe"):
    """Return [(name, override)]: the current deployment, then each combination of the settings. Raises FleetError."""
    given = settings(tune)
    count = math.prod(len(values) for _name, values in given)
    if not given or count > MOST:
        raise _impossible(
            recipe,
            "tune has %d combinations; allowed: 1 to %d, each of which starts the servers"
            % (count if given else 0, MOST),
        )
    found = [(AS_IT_IS, {})]
    for chosen in itertools.product(*(values for _name, values in given)):
        words = ["%s=%s" % (name, word) for (name, _values), (word, _override) in zip(given, chosen)]
        layers = list(zip(("tune." + word for word in words), (override for _word, override in chosen)))
        found.append((" ".join(words), overrides.combine(layers)[0]))
    return found


def calls_of(servers, deployment, profile):
    """Return the points of a candidate, in which requests may wait in its queue.

    Raises FleetError if servers would be measured one by one, because that does not measure the node.
    """
    name, wanted = points.profile_of(deployment, profile)
    benchmark = deployment.get("benchmark") or {}
    profiles = {**benchmark["profiles"], name: {**wanted, "queue": True}}
    calls = points.points(servers, {**deployment, "benchmark": {**benchmark, "profiles": profiles}}, name)
    if calls[0]["scope"] == "server" and len({call["servers"][0]["name"] for call in calls}) > 1:
        raise _impossible(
            name, "the profile measures one server at a time, and there are several; tune.profile needs scope node"
        )
    return calls


def _impossible(name, why):
    return FleetError("tune.not-possible", name, why)


def measured(calls, deployment, history):
    """Return the newest result that counts, or None, for each point.

    calls: calls_of(); history: results of this inventory, the oldest first.
    """
    found = []
    recipe = results.recipe_hash(deployment)
    for call in calls:
        plan = results.plan_hash([*call["servers"], *call["elsewhere"]])
        wanted = (plan, recipe, call["profile"], call["point"]["tool"], *(call["point"][key] for key in WORKLOAD))
        same = [one for one in history if compare.counts(one) and _of(one) == wanted]
        found.append(same[-1] if same else None)
    return found


WORKLOAD = ("input_tokens", "output_tokens", "concurrency", "request_rate", "requests")


def _of(document):
    asked = document["workload"]
    return (
        document["plan_hash"], document["recipe_hash"], document["profile"], document["tool"]["name"],
        asked["input_tokens_asked"], asked["output_tokens_asked"], asked["concurrency"], asked["request_rate"],
        asked["requests"],
    )  # fmt: skip


def latency(document, metric):
    """Return the value that is compared with a limit, None if the tool reports neither statistic."""
    values = document["metrics"][metric]
    return next((values[name] for name in STATISTICS if values[name] is not None), None)


def over(document, limits):
    """Return the metrics of a result that exceed their limit or are unknown."""
    return [
        metric
        for metric in LIMITS
        if limits.get(metric) is not None and not (latency(document, metric) or math.inf) <= limits[metric]
    ]


def best_point(documents, limits):
    """Return the candidate's result with the highest throughput within the limits, or the highest throughput if no
    result is within the limits."""
    told = [one for one in documents if one and one["metrics"]["output_tokens_per_s"]]
    within = [one for one in told if not over(one, limits)]
    return max(within or told, key=lambda one: one["metrics"]["output_tokens_per_s"], default=None)


def choose(found, limits):
    """Return the name of the best candidate, None if no candidate is within the limits.

    found: {name: results of its points, None for a missing result}. Only candidates with all points count; the first of
    several equal candidates wins.
    """
    rates = {}
    for name, documents in found.items():
        point = best_point(documents, limits) if None not in documents else None
        if point and not over(point, limits):
            rates[name] = point["metrics"]["output_tokens_per_s"]
    return max(rates, key=rates.get, default=None)


def rows(found, limits, failed=None):
    """Return the rows of the table, with COLUMNS. failed: {name: why it was not measured}."""
    best, table = choose(found, limits), []
    for name, documents in found.items():
        point = best_point(documents, limits)
        if point is None or None in documents:
            why = str((failed or {}).get(name) or "").strip().partition("\n")[0]
            table.append([name, "", "", "", "", "failed: %s" % cut(why, LONGEST) if why else "not measured yet"])
            continue
        beyond = over(point, limits)
        words = {"ttft_ms": "TTFT", "tpot_ms": "TPOT"}
        verdict = "over the limit of " + " and ".join(words[one] for one in beyond) if beyond else "within the limits"
        table.append(
            [
                name, "%.1f" % point["metrics"]["output_tokens_per_s"], point["workload"]["concurrency"] or "-",
                *(_number(latency(point, metric)) for metric in LIMITS), "best" if name == best else verdict,
            ]
        )  # fmt: skip
    return table


def _number(value):
    return "-" if value is None else "%.1f" % value


def words(limits):
    """Return the limits as a string."""
    found = ["%s of %g ms" % (name, limits[key]) for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"))
             if limits.get(key) is not None]  # fmt: skip
    return " and ".join(found) if found else "no limit"


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
    found = {one["name"]: measured(one["calls"], one["deployment"], history) for one in sweep.candidates}
    found.update({name: [None] for name in found if name in given["failed"]})
    table = rows(found, sweep.limits, given["failed"])
    table = {"title": "Tuning", "columns": list(COLUMNS), "rows": table}
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
    best = choose(found, sweep.limits)
    result = {"changed": False, "best": best, "limits": sweep.limits, "file": None}
    if best is None:
        result.update(failed=True, msg=NONE % (len(found), words(sweep.limits)))
        return result
    one = next(item for item in sweep.candidates if item["name"] == best)
    point = best_point(found[best], sweep.limits)
    text = HEAD % (best, words(sweep.limits), point["metrics"]["output_tokens_per_s"], path)
    text += yaml.safe_dump({LAYER: one["override"]}, sort_keys=False)
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
        self.limits = limits_of(limits, wanted)
        self.candidates = []
        given = task_vars["hostvars"][self.host].get(LAYER) or {}
        for name, override in candidates(wanted, deployment["name"]):
            item = self.plan(override) if override else base
            if override and item["servers"] == base["servers"]:
                self.candidates[0]["name"] = "%s (%s)" % (name, AS_IT_IS)
                self.candidates[0]["override"] = override
                continue
            calls = calls_of(item["servers"], item["deployment"], wanted.get("profile") or points.QUICK)
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
            return collections.ChainMap({LAYER: override}, hostvars[host])

        sources = self.task_vars.get("ansible_inventory_sources") or []
        return plan_fleet([self.host], variables, sources, deploys=True)[self.host]


def _refuse(what, reason):
    raise FleetError("tune.one-host", what, reason)


NONE = (
    "None of %d candidates keeps the limits (%s); no file was written. Raise fleet_tune_limits, or mark other values."
)
BEST = "Best: %s, %.1f output tokens/s. Written to %s. Use it with -e @FILE, or as a file of group_vars."
HEAD = """# Written by tune.yml: %s is the best within the limits (%s), with %.1f output tokens/s.
# ansible-playbook site.yml -i … -e @%s
"""
KINDS = {"tune": (ARGUMENTS, sweep_report)}
