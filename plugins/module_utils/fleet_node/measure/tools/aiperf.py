# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AIPerf: several URLs by round robin, a profile as JSON.

Its inter_token_latency is (last token - first token) / (tokens - 1) of a request, which is TPOT here; its
inter_chunk_latency is each gap between two parts of a stream, which is ITL. It ends with 0 when half of the requests
failed, leaves error_request_count out when it is 0, and writes no profile when all failed: the records have the errors
then. https://github.com/ai-dynamo/aiperf, docs/metrics-reference.md
"""

from __future__ import annotations

import collections
import json
import os

from ...node import files
from .base import Reading, flags, milliseconds, scaled

NAME, SEVERAL = "aiperf", True
NEEDS_CONCURRENCY, TAKES_RATE, TAKES_LIMITS, OWN_ENGINE = False, True, True, False
TAKES_WARMUP = True
# It takes a key in its arguments alone, which others on the node can read; so they are made in its process.
WITH_KEY = (
    "import os, sys; sys.argv = ['aiperf', *sys.argv[1:], '--api-key', os.environ['OPENAI_API_KEY']]; "
    "from aiperf.cli import app; sys.exit(app())"
)
PROFILE, RECORDS = "profile_export_aiperf.json", "profile_export.jsonl"
LATENCIES = {
    "ttft_ms": "time_to_first_token",
    "tpot_ms": "inter_token_latency",
    "itl_ms": "inter_chunk_latency",
    "e2e_ms": "request_latency",
}
RATES = {
    "requests_per_s": "request_throughput",
    "output_tokens_per_s": "output_token_throughput",
    "total_tokens_per_s": "total_token_throughput",
    "goodput_requests_per_s": "goodput",
}
GOODPUT = (("ttft_ms", "time_to_first_token"), ("tpot_ms", "inter_token_latency"))
MESSAGE = 300  # characters of an error


def command(point, program, folder):
    """argv of one profile."""
    inputs = {"max_tokens": point.output_tokens, **point.sampling}
    if point.ignore_eos:
        inputs.update(min_tokens=point.output_tokens, ignore_eos=True)
    argv = [*program, "profile", "--model", point.model, "--tokenizer", point.tokenizer]
    argv += ["--endpoint-type", "chat" if "chat" in point.endpoint else "completions", "--endpoint", point.endpoint]
    argv += ["--streaming"]
    for url in point.urls:
        argv += ["--url", url]
    argv += flags(
        url_strategy="round_robin" if len(point.urls) > 1 else None,
        synthetic_input_tokens_mean=point.input_tokens,
        synthetic_input_tokens_stddev=0,
        output_tokens_mean=point.output_tokens,
        output_tokens_stddev=0,
    )
    for name, value in inputs.items():
        text = "%s:%s" % (name, json.dumps(value))
        argv += ["--extra-inputs", json.dumps({name: value}) if isinstance(value, dict) else text]
    argv += flags(
        concurrency=point.concurrency,
        request_rate=point.request_rate,
        request_count=point.requests,
        warmup_request_count=point.warmup_requests or None,
        random_seed=point.seed,
        use_server_token_count=point.server_token_count,
    )
    limits = ["%s:%s" % (name, point.limits[key]) for key, name in GOODPUT if (point.limits or {}).get(key)]
    argv += ["--goodput", " ".join(limits)] if limits else []
    argv += ["--no-gpu-telemetry", "--no-server-metrics", "--ui-type", "none", "--artifact-dir", folder]
    return [*argv, *point.arguments]


def with_key(program):
    """The program where servers ask for an API key."""
    return [os.path.join(os.path.dirname(program[0]), "python"), "-c", WITH_KEY]


def variables(point, folder):
    """It refuses a tokenizer in a folder where the hub is said to be offline."""
    return {"HF_HUB_OFFLINE": None, "TRANSFORMERS_OFFLINE": None}


def read(point, folder, log):
    """The Reading of a profile; without one it has what the records say of each request, and no metrics."""
    profile = files.read_json(os.path.join(folder, PROFILE))
    if not isinstance(profile, dict):
        failures = [record.get("error") for record in _records(folder)]
        causes = collections.Counter(_message(error) for error in failures if error)
        errors = [{"message": text, "count": count} for text, count in causes.most_common()]
        return Reading(completed=failures.count(None), failed=len(failures) - failures.count(None), errors=errors)
    value = {name: _average(profile, name) for name in profile}
    metrics = {key: milliseconds(_statistics(profile.get(name))) for key, name in LATENCIES.items()}
    metrics.update({key: value.get(name) for key, name in RATES.items()})
    metrics["output_tokens_per_s_per_accelerator"] = None
    return Reading(
        completed=int(value.get("request_count") or 0),
        failed=int(value.get("error_request_count") or 0),
        errors=[
            {"message": _message(one.get("error_details")), "count": int(one.get("count") or 0)}
            for one in profile.get("error_summary") or ()
        ],
        input_tokens=value.get("input_sequence_length"),
        output_tokens=value.get("output_sequence_length"),
        metrics=metrics,
    )


def done(point, folder, log):
    """Records that it has written, without those of the warm-up."""
    return len(_records(folder))


def _records(folder):
    """The records of requests that were measured; a line that was not written to its end is none."""
    found = []
    for line in (files.read_text(os.path.join(folder, RECORDS)) or "").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        metadata = record.get("metadata") if isinstance(record, dict) else None
        if isinstance(metadata, dict) and metadata.get("benchmark_phase") == "profiling":
            found.append(record)
    return found


def _average(profile, name):
    metric = profile[name]
    return scaled(metric.get("avg")) if isinstance(metric, dict) else None


def _statistics(metric):
    metric = metric if isinstance(metric, dict) else {}
    return {"mean": metric.get("avg"), **{name: metric.get(name) for name in ("p50", "p90", "p95", "p99")}}


def _message(details):
    details = details if isinstance(details, dict) else {}
    text = str(details.get("cause") or details.get("message") or details.get("type") or "not said")
    return text if len(text) <= MESSAGE else text[: MESSAGE - 1] + "…"
