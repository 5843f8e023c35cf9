# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sweep over the tunable settings of a recipe: candidates, their results, and the best candidate. Pure functions."""

from __future__ import annotations

import itertools
import math

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.http_client import cut
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import show
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import compare, points
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides

LAYER = "fleet_override_tuned"
LONGEST = 160  # characters of a failure in the table
MOST = 24  # candidates; each candidate starts the servers
LIMITS = ("ttft_ms", "tpot_ms")
STATISTICS = ("p95", "p90")  # of a latency with a limit: the first that the tool reports
AS_IT_IS = "as it is"
COLUMNS = ("candidate", "output tokens/s", "at once", "TTFT p95, ms", "TPOT p95, ms", "result")


def limits_of(given, tune, name="fleet_tune_limits"):
    """Return {ttft_ms, tpot_ms}, None without a limit: `given`, or the recipe's limits. Raises FleetError."""
    if given is None:
        return {key: (tune.get("limits") or {}).get(key) for key in LIMITS}
    if not isinstance(given, dict) or set(given) - set(LIMITS) or not given:
        raise _invalid(name, given, "a mapping with %s, such as {ttft_ms: 2000}" % " or ".join(LIMITS))
    return {key: _milliseconds(given.get(key), "%s.%s" % (name, key)) for key in LIMITS}


def _milliseconds(value, name):
    try:
        number = None if value is None else float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if number is not None and not 0 < number < math.inf:
        raise _invalid(name, value, "a number of milliseconds, more than 0")
    return number


def _invalid(name, value, allowed):
    return FleetError(
        "measure.limit-invalid",
        "%s is %s; allowed: %s. Correct it, or leave it out.",
        (name, show(value), allowed),
    )


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
    return FleetError(
        "tune.not-possible",
        "%s: %s. Correct tune in fleet_override, for example {tune: {arguments: {max-num-seqs: [4, 8]}}}.",
        (name, why),
    )


def measured(calls, deployment, history):
    """Return the newest result that counts, or None, for each point.

    calls: calls_of(); history: results of this inventory, the oldest first.
    """
    found = []
    recipe = result.recipe_hash(deployment)
    for call in calls:
        plan = result.plan_hash([*call["servers"], *call["elsewhere"]])
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
