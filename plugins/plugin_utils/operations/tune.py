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
from ..base.checks import clean
from ..base.words import some, visible
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
NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT"}
COLUMNS = ("candidate", "output tokens/s", "at once", "TTFT p95, ms", "TPOT p95, ms", "result")


def candidates(tune, recipe="the recipe"):
    """Return [(name, override)]: the current deployment, then each combination of the settings of a recipe's `tune`,
    those of `arguments` first. Raises FleetError."""
    arguments = {
        name: {str(value): {"arguments": {name: value}} for value in values or ()}
        for name, values in (tune.get("arguments") or {}).items()
    }
    given = [
        [("%s=%s" % (name, visible(word)), override or {}) for word, override in values.items()]
        for settings in (arguments, tune.get("variants") or {})
        for name, values in settings.items()
        if values
    ]
    count = math.prod(map(len, given)) if given else 0
    if not 0 < count <= MOST:
        raise _impossible(
            recipe, "tune has %d combinations; allowed: 1 to %d, each of which starts the servers" % (count, MOST)
        )
    found = [(AS_IT_IS, {})]
    for chosen in itertools.product(*given):
        layers = [("tune." + words, override) for words, override in chosen]
        found.append((" ".join(words for words, _override in chosen), overrides.combine(layers)[0]))
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
    newest = {_of(one): one for one in history if compare.counts(one)}
    recipe = results.recipe_hash(deployment)
    return [
        newest.get((
            results.plan_hash([*call["servers"], *call["elsewhere"]]), recipe, call["profile"], call["point"]["tool"],
            results.load_hash(call["point"]), *(call["point"][key] for key in ("concurrency", "requests")),
        ))
        for call in calls
    ]  # fmt: skip


def _of(document):
    asked = document["workload"]
    return (
        document["plan_hash"], document["recipe_hash"], document["profile"], document["tool"]["name"],
        *(asked[key] for key in ("load", "concurrency", "requests")),
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
    result is within the limits; None if a result is missing."""
    told = [one for one in documents if one and one["metrics"]["output_tokens_per_s"]]
    within = [one for one in told if not over(one, limits)]
    best = max(within or told, key=lambda one: one["metrics"]["output_tokens_per_s"], default=None)
    return None if None in documents else best


def choose(found, limits):
    """Return the name of the best candidate, None if no candidate is within the limits.

    found: {name: results of its points, None for a missing result}. Only candidates with all points count; the first of
    several equal candidates wins.
    """
    points_of = {name: best_point(documents, limits) for name, documents in found.items()}
    rates = {name: one["metrics"]["output_tokens_per_s"] for name, one in points_of.items()
             if one and not over(one, limits)}  # fmt: skip
    return max(rates, key=rates.get, default=None)


def rows(found, limits, failed=None):
    """Return the rows of the table, with COLUMNS. failed: {name: why it was not measured}."""
    best, table = choose(found, limits), []
    for name, documents in found.items():
        point = best_point(documents, limits)
        if point is None:
            why = str((failed or {}).get(name) or "").strip().partition("\n")[0]
            table.append([name, "", "", "", "", "failed: %s" % cut(why, LONGEST) if why else "not measured yet"])
            continue
        beyond = " and ".join(NAMES[one] for one in over(point, limits))
        verdict = "over the limit of " + beyond if beyond else "best" if name == best else "within the limits"
        numbers = [latency(point, metric) for metric in LIMITS]
        table.append(
            [
                name, "%.1f" % point["metrics"]["output_tokens_per_s"], point["workload"]["concurrency"] or "-",
                *("-" if one is None else "%.1f" % one for one in numbers), verdict,
            ]
        )  # fmt: skip
    return table


def words(limits):
    """Return the limits as a string."""
    found = ["%s of %g ms" % (name, limits[key]) for key, name in NAMES.items() if limits.get(key) is not None]
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
    tried, limits = planned(task_vars, given["limits"])
    history = results.history(folder, candidates=True)[0]
    found = {one["name"]: measured(one["calls"], one["deployment"], history) for one in tried}
    found.update({name: [None] for name in found if name in given["failed"]})
    table = {"title": "Tuning", "columns": list(COLUMNS), "rows": rows(found, limits, given["failed"])}
    if given["state"] == "planned":
        result = {
            "candidates": [{**one, "measured": None not in found[one["name"]]} for one in tried],
            "limits": limits,
        }
    else:
        file = os.path.abspath(given["file"] or os.path.join(folder, FILE))
        layers = {one["name"]: one["override"] for one in tried}
        result = _chosen(action, layers, limits, found, file)
    if given["state"] == "chosen" or action._task.check_mode:
        result["fleet_report"] = table
        show(table)
    return result


def _chosen(action, layers, limits, found, path):
    best = choose(found, limits)
    result = {"changed": False, "best": best, "limits": limits, "file": None}
    if best is None:
        result.update(failed=True, msg=NONE % (len(found), words(limits)))
        return result
    rate = best_point(found[best], limits)["metrics"]["output_tokens_per_s"]
    text = HEAD % (best, words(limits), rate, path) + yaml.safe_dump({LAYER: layers[best]}, sort_keys=False)
    before = read_text(path) or ""
    result.update(changed=before != text, file=path, msg=BEST % (best, rate, path))
    result["diff"] = {"before": before, "after": text, "before_header": path, "after_header": path}
    if not action._task.check_mode and before != text:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_atomic(path, text)
        except OSError as error:
            raise AnsibleActionFail("%s cannot be written: %s." % (path, error.strerror)) from error
    return result


def planned(task_vars, limits):
    """Return ([{name, override, servers, deployment, calls}], the limits) of the only host. Raises FleetError."""
    host, *others = task_vars["ansible_play_hosts_all"]
    if others:
        raise _refused(some([host, *others]), "these are several hosts, whose servers would stop in turn")
    variables, sources = task_vars["hostvars"][host], task_vars.get("ansible_inventory_sources") or []

    def plan(given):
        return plan_fleet(
            [host], lambda name: given if name == host else task_vars["hostvars"][name], sources, deploys=True
        )[host]

    base = plan(variables)
    deployment = base["deployment"]
    if not base["servers"]:
        raise _refused(host, "no server is planned there")
    if deployment.get("workers_elsewhere"):
        raise _refused(host, "it has workers on other hosts, which would have to change with it")
    tune, found = deployment.get("tune") or {}, []
    limits = limits_of(limits, tune)
    for name, override in candidates(tune, deployment["name"]):
        item = plan(collections.ChainMap({LAYER: override}, variables)) if override else base
        if override and item["servers"] == base["servers"]:
            found[0].update(name="%s (%s)" % (name, AS_IT_IS), override=override)
            continue
        calls = calls_of(item["servers"], item["deployment"], tune.get("profile") or points.QUICK)
        found.append(
            {
                "name": name, "override": override or clean(variables.get(LAYER), LAYER) or {},
                "servers": item["servers"], "deployment": item["deployment"], "calls": calls,
            }
        )  # fmt: skip
    return found, limits


def _refused(what, reason):
    return FleetError("tune.one-host", what, reason)


NONE = (
    "None of %d candidates keeps the limits (%s); no file was written. Raise fleet_tune_limits, or mark other values."
)
BEST = "Best: %s, %.1f output tokens/s. Written to %s. Use it with -e @FILE, or as a file of group_vars."
HEAD = """# Written by tune.yml: %s is the best within the limits (%s), with %.1f output tokens/s.
# ansible-playbook site.yml -i … -e @%s
"""
KINDS = {"tune": (ARGUMENTS, sweep_report)}
