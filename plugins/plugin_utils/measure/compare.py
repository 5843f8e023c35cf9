# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares a benchmark with earlier runs: which metrics are worse, by how much, and whether that exceeds the noise.

The change of a metric is relative to the median of the earlier runs, in percent, positive if this run is worse. It is a
regression if it exceeds both

- the limit (LIMIT by default), and
- the noise: the spread of the earlier runs in percent of their median, and twice the standard error of the difference
  of two runs. The standard error of a median is 1.2533 sigma / sqrt(rounds), with sigma = (p90 - p50) / 1.2816 as of
  normal values; for a throughput it is that of the mean E2E latency, without the factor. rounds is requests /
  concurrency, because requests that run at the same time are slowed by the same causes.

The earlier runs are at most BEFORE runs of the same point, with the newest plan before this run.
"""

from __future__ import annotations

import math
import statistics

LIMIT = 15.0  # percent
BEFORE = 5
# Compared metrics: (metric, statistic or None, higher is better).
COMPARED = (
    ("output_tokens_per_s", None, True),
    ("ttft_ms", "p50", False),
    ("tpot_ms", "p50", False),
    ("e2e_ms", "p50", False),
)
WORSE, BETTER, SAME, UNCLEAR = "worse", "better", "same", "unclear"


def point(document):
    """Return the key of comparable runs."""
    workload = document["workload"]
    return (
        document["inventory"],
        document["recipe"],
        document["platform"],
        document["hardware"]["accelerator"],
        document["hardware"]["count"],
        document["scope"],
        "" if document["scope"] == "fleet" else document["host"],
        len(document["servers"]) if document["scope"] != "server" else tuple(document["servers"]),
        document["tool"]["name"],
        workload["load"],
        workload["concurrency"],
        workload["requests"],
    )


def counts(document):
    """Return whether a benchmark counts: complete, without a failed request, not void."""
    return document["kind"] == "benchmark" and document["ok"] and not document["void"]


def value_of(document, metric, statistic=None):
    """Return a metric of a benchmark, None if the tool does not report it."""
    found = document["metrics"][metric]
    return found if statistic is None else found[statistic]


def before(document, documents):
    """Return the earlier runs to compare `document` with, the newest last.

    documents: the history, of any kind and order. The result contains at most BEFORE runs of the same point that count,
    began earlier, and have the plan and versions of the newest such run.
    """
    earlier = [
        one for one in documents if counts(one) and _order(one) < _order(document) and point(one) == point(document)
    ]
    if not earlier:
        return []
    earlier.sort(key=_order)
    newest = earlier[-1]
    same = [one for one in earlier if (one["plan_hash"], one["versions"]) == (newest["plan_hash"], newest["versions"])]
    return same[-BEFORE:]


def _order(document):
    return document["began"], document["id"]


def compare(document, earlier, percent=LIMIT):
    """[{metric, statistic, now, before, change, noise, verdict}] of the metrics that both sides have; see above.

    earlier: before(). change and noise are percent; a positive change is for the worse. verdict: worse, better, same
    (within the limit), or unclear (more than the limit, but no more than noise).
    """
    rows = []
    for metric, statistic, higher in COMPARED:
        now = value_of(document, metric, statistic)
        values = [value_of(one, metric, statistic) for one in earlier]
        values = [value for value in values if value]
        if not now or not values:  # no divisor: not reported, or a rate of 0
            continue
        base = statistics.median(values)
        # relative to the better value, so that half the rate is as bad as twice the latency
        change = (base / now - 1) * 100 if higher else (now / base - 1) * 100
        errors = [_error(one, metric, statistic) for one in (document, earlier[-1])]
        noise = max((max(values) - min(values)) / base, 2 * math.hypot(*errors)) * 100
        gain = (now / base - 1) * 100 if higher else (base / now - 1) * 100
        far = max(change, gain)
        verdict = SAME if far <= percent else UNCLEAR if far <= noise else WORSE if change > 0 else BETTER
        rows.append(
            {
                "metric": metric, "statistic": statistic, "now": now, "before": base, "change": change, "noise": noise,
                "verdict": verdict,
            }
        )  # fmt: skip
    return rows


def _error(document, metric, statistic):
    """Return the relative standard error of a metric; 0 if the tool reports no p90."""
    values, completed = document["metrics"][metric if statistic else "e2e_ms"], document["counts"]["completed"]
    if not values["p50"] or not values["p90"] or not completed:
        return 0.0
    sigma = max(0.0, values["p90"] - values["p50"]) / 1.2816
    rounds = max(1.0, completed / (document["workload"]["concurrency"] or 1))
    return (1.2533 if statistic else 1) * sigma / math.sqrt(rounds) / values["p50"]
