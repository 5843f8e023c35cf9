# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`vllm bench serve`: one URL, a flat JSON file.

It ends with 0 when every request failed; means and percentiles are 0.0 then, and `failed` says how many. Tokens are
those of the server's `usage`. https://docs.vllm.ai/en/stable/cli/bench/serve.html
"""

from __future__ import annotations

import os

from ...node import files
from .. import result
from .base import RESULT, Reading, counted, flags, scaled

NAME, SEVERAL = "vllm-bench", False
NEEDS_CONCURRENCY, TAKES_RATE, TAKES_LIMITS, OWN_ENGINE = False, True, True, False
TAKES_WARMUP = True
READY_S = 3  # otherwise a dead server is measured as well
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
BACKENDS = {"/v1/chat/completions": "openai-chat", "/v1/completions": "openai"}
LATENCIES = {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms", "itl_ms": "itl_ms", "e2e_ms": "e2el_ms"}
RATES = {
    "requests_per_s": ("request_throughput",),
    "output_tokens_per_s": ("output_throughput",),
    "total_tokens_per_s": ("total_token_throughput",),
    "goodput_requests_per_s": ("request_goodput", "request_goodput:"),
}
GOODPUT = (("ttft_ms", "ttft"), ("tpot_ms", "tpot"))


def command(point, program, folder):
    """argv of one run."""
    argv = [*program, "--ready-check-timeout-sec", str(READY_S)]
    argv += ["--backend", BACKENDS.get(point.endpoint, "openai"), "--endpoint", point.endpoint]
    argv += ["--base-url", *point.urls, "--model", point.model, "--tokenizer", point.tokenizer]
    return [*argv, *workload(point, folder), *_sampling(point), *point.arguments]


def workload(point, folder):
    """The arguments that it shares with the tool that was made from it."""
    argv = ["--dataset-name", "random"]
    argv += flags(
        random_input_len=point.input_tokens,
        random_output_len=point.output_tokens,
        num_prompts=point.requests,
        max_concurrency=point.concurrency,
        request_rate=point.request_rate,
        seed=point.seed,
        ignore_eos=point.ignore_eos,
        percentile_metrics="ttft,tpot,itl,e2el",
        metric_percentiles="50,90,95,99",
    )
    limits = ["%s:%s" % (name, point.limits[key]) for key, name in GOODPUT if (point.limits or {}).get(key)]
    argv += ["--goodput", *limits] if limits else []
    return [*argv, "--save-result", "--result-dir", folder, "--result-filename", RESULT]


def _sampling(point):
    return flags(num_warmups=point.warmup_requests or None, **point.sampling)


def variables(point, folder):
    """The tokenizer is a folder; nothing is to be fetched."""
    return {"HF_HUB_OFFLINE": "1"}


def read(point, folder, log):
    """The Reading of a result file; without one nothing was answered."""
    found = files.read_json(os.path.join(folder, RESULT))
    if not isinstance(found, dict):
        return Reading()
    completed = int(found.get("completed") or 0)
    asked = int(found.get("num_prompts") or point.requests)
    failed = found.get("failed")  # older releases do not say
    reading = Reading(completed=completed, failed=asked - completed if failed is None else int(failed))
    if not completed:  # its zeros were not measured
        return reading
    for key, name in LATENCIES.items():
        reading.metrics[key] = {
            statistic: scaled(found.get("%s_%s" % (statistic, name))) for statistic in result.STATISTICS
        }
        if reading.metrics[key]["p50"] is None:
            reading.metrics[key]["p50"] = scaled(found.get("median_" + name))
    for key, names in RATES.items():
        reading.metrics[key] = next((scaled(found[name]) for name in names if name in found), None)
    reading.input_tokens = _mean(found.get("total_input_tokens"), completed)
    reading.output_tokens = _mean(found.get("total_output_tokens"), completed)
    return reading


def done(point, folder, log):
    """By its progress bar."""
    return counted(log)


def _mean(total, count):
    return total / count if isinstance(total, (int, float)) and count else None
