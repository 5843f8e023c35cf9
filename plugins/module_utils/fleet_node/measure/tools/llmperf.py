# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""LLMPerf: several URLs by round robin, a flat summary in seconds and one record per request.

Its inter_token_latency is the mean gap of a request, which is TPOT here; it has no ITL. Without llmperf_worker a
request that fails ends the thread that sent it: fewer are completed than were asked for while its error rate says 0.
https://github.com/ray-project/llmperf, and the Neuron SDK's patches for it
"""

from __future__ import annotations

import glob
import json
import os
import re

from ...node import files
from .. import result
from .base import Reading, counted, flags, scaled

NAME, SEVERAL = "llmperf", True
NEEDS_CONCURRENCY, TAKES_RATE, TAKES_LIMITS, OWN_ENGINE = True, False, False, False
TAKES_WARMUP = False
LATENCIES = {"ttft_ms": "ttft_s", "tpot_ms": "inter_token_latency_s", "e2e_ms": "end_to_end_latency_s"}
RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.*)$", re.MULTILINE)
MESSAGE = 300


def command(point, program, folder):
    """argv of one run."""
    body = {**({"ignore_eos": True} if point.ignore_eos else {}), **point.sampling}
    argv = [*program, "--model", point.model, "--tokenizer", point.tokenizer, "--llm-api", "openai"]
    argv += flags(
        mean_input_tokens=point.input_tokens,
        stddev_input_tokens=0,
        mean_output_tokens=point.output_tokens,
        stddev_output_tokens=0,
        num_concurrent_requests=point.concurrency,
        max_num_completed_requests=point.requests,
        timeout=point.timeout_s,
        results_dir=folder,
        additional_sampling_params=json.dumps(body),
    )
    return [*argv, *point.arguments]


def variables(point, folder):
    """Its addresses, with /v1; a home for what it and Ray write."""
    return {
        "OPENAI_API_BASE": ";".join(url + "/v1" for url in point.urls),
        "HF_HUB_OFFLINE": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def read(point, folder, log):
    """The Reading of a summary; without one nothing was answered."""
    found = _first(folder, "_summary.json")
    if not isinstance(found, dict):
        return Reading(errors=_raised(log))
    completed = int(found.get("results_num_completed_requests") or 0)
    failed = int(found.get("results_number_errors") or 0)
    reading = Reading(completed=completed, failed=failed, errors=_errors(folder) or _raised(log))
    if not reading.completed:
        return reading
    for key, name in LATENCIES.items():
        values = {"mean": found.get("results_%s_mean" % name)}
        values.update({one: found.get("results_%s_quantiles_%s" % (name, one)) for one in result.STATISTICS[1:]})
        reading.metrics[key] = {one: scaled(values[one], 1000) for one in result.STATISTICS}
    reading.metrics["output_tokens_per_s"] = scaled(found.get("results_mean_output_throughput_token_per_s"))
    per_minute = scaled(found.get("results_num_completed_requests_per_min"))
    reading.metrics["requests_per_s"] = per_minute / 60 if per_minute is not None else None
    reading.input_tokens = scaled(found.get("results_number_input_tokens_mean"))
    reading.output_tokens = scaled(found.get("results_number_output_tokens_mean"))
    rates = (reading.metrics["requests_per_s"], reading.input_tokens, reading.metrics["output_tokens_per_s"])
    if None not in rates:
        reading.metrics["total_tokens_per_s"] = rates[0] * rates[1] + rates[2]
    return reading


def done(point, folder, log):
    """By its progress bar."""
    return counted(log)


def _first(folder, ending):
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "*" + ending)))
    return files.read_json(paths[0]) if paths else None


def _errors(folder):
    counts = {}
    for one in _first(folder, "_individual_responses.json") or ():
        if one.get("error_code") is not None:
            text = ("%s: %s" % (one["error_code"], one.get("error_msg") or "")).strip(": ")[:MESSAGE]
            counts[text] = counts.get(text, 0) + 1
    return [{"message": text, "count": count} for text, count in sorted(counts.items(), key=lambda item: -item[1])]


def _raised(log):
    """What threads died of, by their tracebacks."""
    counts = {}
    for name, words in RAISED.findall(log):
        text = ("%s: %s" % (name, words))[:MESSAGE]
        counts[text] = counts.get(text, 0) + 1
    return [{"message": text, "count": count} for text, count in sorted(counts.items(), key=lambda item: -item[1])]
