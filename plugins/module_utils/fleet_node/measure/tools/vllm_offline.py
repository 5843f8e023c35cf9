# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`vllm bench latency` and `vllm bench throughput`: an engine of their own, with the arguments of a planned server, so
that the servers of the node stop for them. https://docs.vllm.ai/en/stable/cli/bench/latency.html

Latency is that of a whole batch: its requests begin and end together, and TTFT and TPOT are not told. Throughput tells
rates alone. Both answer every request or end with a traceback and without a file.
"""

from __future__ import annotations

import math
import os

from ...node import files
from .. import result
from .base import RESULT, Reading, counted, flags, scaled

# Of a server for clients, or of several engines, which these two have not.
SERVER_ONLY = {
    "model", "host", "port", "uds", "api-key", "served-model-name", "tool-call-parser", "enable-auto-tool-choice",
    "tool-server", "reasoning-parser", "chat-template", "chat-template-content-format", "response-role", "root-path",
    "uvicorn-log-level", "disable-uvicorn-access-log", "disable-fastapi-docs", "enable-log-requests",
    "enable-request-id-headers", "enable-prompt-tokens-details", "enable-force-include-usage", "middleware",
    "return-tokens-as-token-ids", "api-server-count", "headless", "data-parallel-size",
}  # fmt: skip
# Of Python, where a server is started as its module: the entry has those of the whole command.
PYTHON = {"m", "I", "E", "s", "S", "B", "u"}


def engine_arguments(entry, engine, model):
    """argv for an engine like that of a server's plan entry. engine: plugin_utils.engines'; model: the weights."""
    argv = ["--model", model]
    for name, value in entry["arguments"].items():
        plain = name[3:] if name.startswith("no-") else name
        if plain in SERVER_ONLY or plain in PYTHON or plain.startswith(("ssl-", "allowed-")):
            continue
        argv += ["--no-" + name] if value is False else engine.flag_argv(name, value)
    return argv


class Offline:
    """One of the two; an object in place of a tool's module."""

    SEVERAL = TAKES_RATE = TAKES_LIMITS = False
    OWN_ENGINE = True
    TAKES_WARMUP, SAMPLING = False, ()
    engine_arguments = staticmethod(engine_arguments)

    def __init__(self, action, needs_concurrency):
        self.ACTION, self.NAME, self.NEEDS_CONCURRENCY = action, "vllm-" + action, needs_concurrency

    def variables(self, point, folder):
        """Nothing is to be fetched."""
        return {"HF_HUB_OFFLINE": "1"}

    def command(self, point, program, folder):
        """argv of one run."""
        argv = [*program, *point.engine_arguments]
        argv += self.load(point)
        return [*argv, "--output-json", os.path.join(folder, RESULT), *point.arguments]

    def read(self, point, folder, log):
        """The Reading of a result file; without one nothing was answered."""
        found = files.read_json(os.path.join(folder, RESULT))
        if not isinstance(found, dict):
            return Reading()
        reading = Reading(input_tokens=float(point.input_tokens), output_tokens=float(point.output_tokens))
        self.measured(point, found, reading)
        return reading


class Latency(Offline):
    """A batch of `concurrency` requests, again and again."""

    TAKES_WARMUP = True

    def __init__(self):
        super().__init__("latency", True)

    def load(self, point):
        """Arguments of its batches."""
        return flags(
            input_len=point.input_tokens,
            output_len=point.output_tokens,
            batch_size=point.concurrency,
            num_iters_warmup=math.ceil(point.warmup_requests / point.concurrency),
            num_iters=math.ceil(point.requests / point.concurrency),
        )

    def measured(self, point, found, reading):
        """Fill the Reading."""
        times = sorted(one for one in found.get("latencies") or () if isinstance(one, (int, float)))
        reading.completed = min(len(times) * point.concurrency, point.requests)
        if not times:
            return
        mean = sum(times) / len(times)
        values = {"mean": mean, **{"p%d" % one: quantile(times, one / 100) for one in (50, 90, 95, 99)}}
        reading.metrics["e2e_ms"] = {name: values[name] * 1000 for name in result.STATISTICS}
        rate = point.concurrency / mean
        reading.metrics.update(
            requests_per_s=rate,
            output_tokens_per_s=rate * point.output_tokens,
            total_tokens_per_s=rate * (point.input_tokens + point.output_tokens),
            output_tokens_per_s_per_user=point.output_tokens / mean,
        )

    def done(self, point, folder, log):
        """By its second progress bar; the first is of the warm-up."""
        found = counted(log.partition("Profiling iterations")[2])
        return found and found * point.concurrency


class Throughput(Offline):
    """All requests at once."""

    def __init__(self):
        super().__init__("throughput", False)

    def load(self, point):
        """Arguments of its requests."""
        return ["--dataset-name", "random", *flags(
            random_input_len=point.input_tokens, random_output_len=point.output_tokens, num_prompts=point.requests,
            seed=point.seed,
        )]  # fmt: skip

    def measured(self, point, found, reading):
        """Fill the Reading."""
        reading.completed = int(found.get("num_requests") or 0)
        rate = scaled(found.get("requests_per_second"))
        if not reading.completed or not rate:
            return
        reading.metrics.update(
            requests_per_s=rate,
            output_tokens_per_s=rate * point.output_tokens,
            total_tokens_per_s=scaled(found.get("tokens_per_second")),
        )

    def done(self, point, folder, log):
        """By its progress bar."""
        return counted(log)


def quantile(values, share):
    """Of sorted numbers, between two of them in proportion."""
    at = share * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


LATENCY, THROUGHPUT = Latency(), Throughput()
