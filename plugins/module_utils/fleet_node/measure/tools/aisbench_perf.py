# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AISBench's performance mode: one address, results as strings with units. https://github.com/AISBench/benchmark

What it runs is a configuration file in Python, which lies in the folder of a point with its values as JSON beside it.
It ends with 0 when half of the requests failed, and with 1 and without a file when all did.
"""

from __future__ import annotations

import csv
import os
import urllib.parse

from ...node import files
from .. import aisbench
from .base import Reading, counted

NAME, SEVERAL = "aisbench", False
NEEDS_CONCURRENCY, TAKES_RATE, TAKES_LIMITS, OWN_ENGINE = True, True, False, False
TAKES_WARMUP = True
CONFIG, VALUES, DATASET = "config.py", "values.json", "synthetic"
ROWS = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "ITL": "itl_ms", "E2EL": "e2e_ms"}
STATISTICS = {"Average": "mean", "Median": "p50", "P90": "p90", "P95": "p95", "P99": "p99"}
# The tool gives stand-ins for what such a file imports, so these are no imports.
TEXT = """from ais_bench.benchmark.calculators import DefaultPerfMetricCalculator
from ais_bench.benchmark.datasets import MATHEvaluator, SyntheticDataset
from ais_bench.benchmark.models import VLLMCustomAPIChat
from ais_bench.benchmark.openicl.icl_inferencer import GenInferencer
from ais_bench.benchmark.openicl.icl_prompt_template import PromptTemplate
from ais_bench.benchmark.openicl.icl_retriever import ZeroRetriever
from ais_bench.benchmark.summarizers import DefaultPerfSummarizer

environ = dict(__import__("os").environ)
given = __import__("json").loads(__import__("pathlib").Path(environ["FLEET_AISBENCH"]).read_text(encoding="utf-8"))
work_dir = given["work_dir"]
models = [
    {
        **given["model"], "attr": "service", "type": VLLMCustomAPIChat, "abbr": "fleet", "stream": True,
        "use_timestamp": False, "retry": 1, "url": "", "trust_remote_code": False,
        "api_key": environ.get("OPENAI_API_KEY", ""),
    }
]
datasets = [
    {
        "abbr": "synthetic",
        "type": SyntheticDataset,
        "config": given["dataset"],
        "reader_cfg": {"input_columns": ["question"], "output_column": "answer"},
        "infer_cfg": {
            "prompt_template": {"type": PromptTemplate, "template": "{question}"},
            "retriever": {"type": ZeroRetriever},
            "inferencer": {"type": GenInferencer},
        },
        "eval_cfg": {"evaluator": {"type": MATHEvaluator}},
    }
]
summarizer = {
    "attr": "performance",
    "type": DefaultPerfSummarizer,
    "calculator": {
        "type": DefaultPerfMetricCalculator,
        "stats_list": ["Average", "Min", "Max", "Median", "P75", "P90", "P95", "P99"],
    },
}
del environ
"""
# It writes the key into files, below its own folder and where it is started: nobody else reads them, and they go again.
WITH_KEY = (
    'umask 077; cd "$HOME" || exit; "$@"; status=$?; rm -rf -- "$HOME"/*/configs "$HOME"/tmp "$HOME"/*/*/configs; '
    "exit $status"
)


def with_key(program):
    """The program where servers ask for an API key."""
    return ["/bin/sh", "-c", WITH_KEY, "sh", *program]


def command(point, program, folder):
    """argv of one run, whose configuration is written into the folder. OSError."""
    files.write_atomic(os.path.join(folder, CONFIG), TEXT)
    files.write_json(os.path.join(folder, VALUES), values(point, folder))
    # one request before, which it does not count; it ends the run where that is refused
    argv = [
        *program,
        os.path.join(folder, CONFIG),
        "--mode",
        "perf",
        "--num-warmups",
        str(max(1, point.warmup_requests)),
    ]
    return [*argv, *point.arguments]


def values(point, folder):
    """What the configuration reads."""
    url = urllib.parse.urlsplit(point.urls[0])
    return {
        "work_dir": folder,
        "model": {
            "path": point.tokenizer, "model": point.model, "host_ip": url.hostname, "host_port": url.port,
            "request_rate": point.request_rate or 0, "max_out_len": point.output_tokens,
            "batch_size": point.concurrency,
            "generation_kwargs": {"ignore_eos": point.ignore_eos, **point.sampling},
        },
        "dataset": {
            "Type": "tokenid", "RequestCount": point.requests, "TrustRemoteCode": False,
            "TokenIdConfig": {"RequestSize": point.input_tokens, "PrefixLen": 0},
        },
    }  # fmt: skip


def variables(point, folder):
    """Where its values are; nothing is to be fetched."""
    return {"FLEET_AISBENCH": os.path.join(folder, VALUES), "HF_HUB_OFFLINE": "1"}


def read(point, folder, log):
    """The Reading of a run; without its files nothing was answered."""
    at = "%s/performances/%s/%s" % (aisbench.latest(folder), aisbench.MODEL, DATASET)
    reading = Reading(errors=aisbench.failures(at + "_details.jsonl"))
    try:
        totals = {key: one["total"] for key, one in (files.read_json(at + ".json") or {}).items()}
        with open(at + ".csv", encoding="utf-8", newline="") as stream:
            rows = {row["Performance Parameters"]: row for row in csv.DictReader(stream)}
        reading.completed = int(aisbench.quantity(totals["Success Requests"]))
        reading.failed = int(aisbench.quantity(totals["Failed Requests"]))
        if not reading.completed:
            return reading
        for name, key in ROWS.items():
            for column, statistic in STATISTICS.items():
                if column in rows[name]:
                    reading.metrics[key][statistic] = aisbench.quantity(rows[name][column])
        reading.metrics.update(
            requests_per_s=aisbench.quantity(totals["Request Throughput"]),
            output_tokens_per_s=aisbench.quantity(totals["Output Token Throughput"]),
            total_tokens_per_s=aisbench.quantity(totals["Total Token Throughput"]),
        )
        reading.input_tokens = aisbench.quantity(rows["InputTokens"]["Average"])
        reading.output_tokens = aisbench.quantity(rows["OutputTokens"]["Average"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Reading(errors=[{"message": "its files cannot be read: %r" % error, "count": point.requests}]
                       if os.path.exists(at + ".csv") else reading.errors)  # fmt: skip
    return reading


def done(point, folder, log):
    """By its progress bar."""
    return counted(log)
