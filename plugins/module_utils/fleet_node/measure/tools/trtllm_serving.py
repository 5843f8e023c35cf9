# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TensorRT-LLM's benchmark_serving, in the engine's own container; made from `vllm bench serve`, with its words.

It has no `failed`: that is num_prompts less completed. It ends with 0 whatever fails after its first request.
https://github.com/NVIDIA/TensorRT-LLM, tensorrt_llm/serve/scripts/benchmark_serving.py
"""

from __future__ import annotations

import urllib.parse

from . import vllm_bench
from .base import flags

NAME, SEVERAL = "trtllm-bench", False
NEEDS_CONCURRENCY, TAKES_RATE, TAKES_LIMITS, OWN_ENGINE = False, True, True, False
TAKES_WARMUP = False
SCRIPT = ("python3", "-m", "tensorrt_llm.serve.scripts.benchmark_serving")
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
BACKENDS = {"/v1/chat/completions": "openai-chat", "/v1/completions": "openai"}

variables, read, done = vllm_bench.variables, vllm_bench.read, vllm_bench.done


def command(point, program, folder):
    """argv of one run."""
    url = urllib.parse.urlsplit(point.urls[0])
    argv = [*program, "--backend", BACKENDS.get(point.endpoint, "openai"), "--endpoint", point.endpoint]
    argv += ["--host", url.hostname, "--port", str(url.port), "--model", point.tokenizer]
    argv += ["--served-model-name", point.model, "--random-prefix-len", "0"]
    argv += flags(**{name: point.sampling.get(name) for name in SAMPLING})
    return [*argv, *vllm_bench.workload(point, folder), *point.arguments]
