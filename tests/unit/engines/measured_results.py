# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Results of measurements for tests, as module_utils/fleet_node/measure/result.py has them. The numbers are made up."""

from __future__ import annotations

import datetime
import itertools

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.values import TIME
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result

NUMBERS = itertools.count(1)
LATENCIES = {"ttft_ms": 40.0, "tpot_ms": 6.5, "itl_ms": 6.6, "e2e_ms": 240.0}
COMMAND = ["aiperf", "profile", "-m", "gpt-oss-120b", "--url", "http://127.0.0.1:8000", "--concurrency", "8"]


def plan(host="trn3-1"):
    """The plan entries of a host, as far as results have them."""
    return [{"host": host, "name": "server-%d" % number, "hash": "b" * 64} for number in range(8)]


def head(kind, day=1, host="trn3-1", servers=None, **_more):
    planned = [one for one in plan(host) if servers is None or one["name"] in servers]
    number = next(NUMBERS)
    began = datetime.datetime(2026, 1, day, 12) + datetime.timedelta(seconds=number % 40000)
    text = began.strftime(TIME)
    return {
        "schema": result.SCHEMA, "kind": kind, "began": text,
        "id": "%s-%08x" % (began.strftime("%Y%m%dT%H%M%SZ"), number),
        "ended": text, "inventory": "trn3", "recipe": "trn3-eagle3", "recipe_hash": "a" * 64,
        "plan_hash": result.plan_hash(planned),
        "platform": "neuron", "engine": "vllm",
        "versions": {"engine": "0.11.1", "tool": "0.13.0", "collection": "0.1.0"},
        "hardware": {"accelerator": "trainium3", "count": 16}, "scope": "node", "host": host,
        "servers": [one["name"] for one in planned],
        "tool": {"name": "aiperf", "version": "0.13.0", "command": COMMAND},
        "profile": "quick", "errors": [], "ok": True,
        "reason": None, "void": None,
    }  # fmt: skip


def benchmark(concurrency=8, slower=1.0, day=1, **more):
    """A point. slower: by what its latencies are multiplied and its rates divided."""
    busy = 1 + concurrency / 16
    metrics = result.no_metrics()
    for name, value in LATENCIES.items():
        middle = value * busy * slower
        metrics[name] = {
            "mean": middle * 1.02, "p50": middle, "p90": middle * 1.05, "p95": middle * 1.2, "p99": middle * 1.6,
        }  # fmt: skip
    rate = 140 * concurrency / busy / slower
    metrics.update(
        requests_per_s=rate / 32, output_tokens_per_s=rate, total_tokens_per_s=rate * 5,
        output_tokens_per_s_per_user=1000 / metrics["tpot_ms"]["mean"], output_tokens_per_s_per_accelerator=rate / 16,
    )  # fmt: skip
    requests = max(16, 3 * concurrency)
    return {
        **head("benchmark", day, **more),
        "workload": {
            "input_tokens_asked": 1024, "output_tokens_asked": 256, "input_tokens": 1091.0, "output_tokens": 256.0,
            "concurrency": concurrency, "request_rate": None, "requests": requests,
            "load": "e" * 64,
        },
        "counts": {"asked": requests, "completed": requests, "failed": 0},
        "metrics": metrics,
        "limits": None,
        **more,
    }  # fmt: skip


def evaluation(name="gpqa", effort="high", score=79.0, reference=80.1, verdict="agrees", day=1, **more):
    questions = 198
    interval = [max(0.0, score - 5.5), min(100.0, score + 5.5)]
    return {
        **head("evaluation", day, **more),
        "tool": {"name": "gpt_oss.evals", "version": "0.0.9", "command": ["python", "-m", "gpt_oss.evals"]},
        "eval": name, "effort": effort, "score": score, "questions": questions, "answered": questions,
        "correct": round(score / 100 * questions), "failed": 0, "interval": interval,
        "reference": None if reference is None else
        {"score": reference, "source": "gpt-oss model card", "model": "gpt-oss-120b", "effort": effort},
        "difference": None if reference is None else score - reference, "verdict": verdict, **more,
    }  # fmt: skip


def failed(one, asked=24, completed=17):
    """The same point, of which requests failed."""
    counts = {"asked": asked, "completed": completed, "failed": asked - completed}
    message = "Connection refused"
    return {
        **one, "counts": counts, "errors": [{"message": message, "count": asked - completed}], "ok": False,
        "reason": "%d of %d requests failed: %s" % (asked - completed, asked, message),
    }  # fmt: skip


def history():
    """A history as a page shows it: two runs of a curve, of one server too, and two evaluations."""
    curve = (1, 2, 4, 8, 16, 32)
    one = {"scope": "server", "servers": ["server-0"]}
    return [
        *(benchmark(number, day=1) for number in curve),
        *(benchmark(number, slower=1.25 if number == 32 else 0.97, day=2) for number in curve),
        *(benchmark(number, slower=1.9, day=2, **one) for number in curve[:4]),
        evaluation("gpqa", "low", 62.0, 65.5, day=2),
        evaluation("gpqa", "high", day=2),
        evaluation("aime25", "high", 83.0, 92.5, "below", day=2),
    ]
