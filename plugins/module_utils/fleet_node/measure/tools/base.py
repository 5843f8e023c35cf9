# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every benchmark tool is asked for, and the words in which it answers.

A tool is a module with:
  NAME; SEVERAL, whether one call takes several URLs
  NEEDS_CONCURRENCY, TAKES_RATE, TAKES_LIMITS, TAKES_WARMUP: what its load can be
  SAMPLING, where it takes some keys of `sampling` alone
  OWN_ENGINE, whether it starts an engine of its own, for which the servers of the node stop. Such a tool has also
    engine_arguments(entry, engine, model) -> argv for an engine like that of the entry
  command(point, program, folder) -> argv. No secret is in it: an API key is in the environment, as OPENAI_API_KEY
  with_key(program) -> program for a server that asks for a key, where the tool's own does not take it from there
  variables(point, folder) -> environment of its process, besides what all get.
  read(point, folder, log) -> a Reading; it never looks at an exit code. What it raises is a run without a result, and
    so is a Reading without output_tokens_per_s: a tool that counts no token has seen no answer.
  done(point, folder, log) -> how many requests have ended, while it runs; None where it does not tell.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from .. import result

PROGRESS = re.compile(r"(\d+)/(\d+) \[")  # of tqdm
RESULT = "result.json"


@dataclass(frozen=True)
class Point:
    """One call of a tool. urls: http://host:port, without a path. concurrency: None for no limit. limits: {ttft_ms,
    tpot_ms} or None. server_token_count: whether tokens are those of the server's `usage`. arguments: more of the
    tool's own. sampling: what goes into each request's body. engine_arguments: of a tool's own engine."""

    tool: str
    model: str
    tokenizer: str
    urls: tuple
    input_tokens: int
    output_tokens: int
    requests: int
    concurrency: int | None = None
    request_rate: float | None = None
    warmup_requests: int = 0
    seed: int = 0
    endpoint: str = "/v1/chat/completions"
    ignore_eos: bool = True
    server_token_count: bool = True
    sampling: dict = field(default_factory=dict)
    arguments: tuple = ()
    limits: dict | None = None
    engine_arguments: tuple = ()
    timeout_s: int = 3600


@dataclass
class Reading:
    """What a tool says of one call. completed, failed: as it counts them; run.py counts the rest of what was asked as
    failed. errors: [{message, count}]. metrics: as in a result, without what is computed from the others."""

    completed: int = 0
    failed: int = 0
    errors: list = field(default_factory=list)
    input_tokens: float | None = None
    output_tokens: float | None = None
    metrics: dict = field(default_factory=result.no_metrics)


def milliseconds(values, factor=1):
    """{mean, p50, …} of a mapping with these keys; what is missing is null. factor: 1000 for seconds."""
    return {name: scaled(values.get(name), factor) for name in result.STATISTICS}


def scaled(value, factor=1):
    """The number times the factor, None for what is no finite number."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value * factor if number else None


def counted(log):
    """How many of how many, by the last progress bar in a log; None without one."""
    found = PROGRESS.findall(log.replace("\r", "\n"))
    return int(found[-1][0]) if found else None


def flags(**values):
    """argv of flags: {request_count: 8} is --request-count 8; None is left out, True is the bare flag."""
    argv = []
    for name, value in values.items():
        if value is not None and value is not False:
            argv += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
    return argv
