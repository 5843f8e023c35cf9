# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang: the causes behind its answers."""

from __future__ import annotations

from ..model import gpt_oss
from . import base
from .vllm import LOGS


class Sglang(base.Engine):
    name = "sglang"
    counted = ("sglang:num_running_reqs", "sglang:num_queue_reqs")  # with --enable-metrics
    programs = (("sglang.launch_server",), ("sglang", "serve"))
    streamed_call_ends = ("tool_calls",)
    batch, context_length = "max-running-requests", "context-length"
    context = "the server's context is too short for this request: raise --context-length"
    dropped_tool_call = "the server was started without `--tool-call-parser %s`" % gpt_oss.TOOL_CALL_PARSERS["sglang"]
    no_reasoning = "the server was started without `--reasoning-parser %s`" % gpt_oss.REASONING_PARSERS["sglang"]
    http = (
        (r"(?i)longer than the model's context length|maximum allowed length|context length", context),
        (r"(?i)tool_call_parser|tool-call-parser", dropped_tool_call),
    )
    # Messages of SGLang 0.5.21 (pool_configurator.py, model_runner.py, model_config.py, model_hook.py, the runners of
    # CUDA graphs) and PyTorch. An exception of a child is in the log before the message that ends the server.
    logs = (
        (r"Not enough memory\. Please try to increase --mem-fraction-static",
         "the KV cache has no room next to the weights: raise mem-fraction-static or tensor-parallel-size"),
        (r"The memory capacity is unbalanced",
         "another process uses the memory of one of its GPUs: end that process (preflight.yml names it)"),
        (r"(?i)(?:CUDA|HIP) out of memory|OutOfMemoryError",
         "a GPU ran out of memory: lower mem-fraction-static, chunked-prefill-size or max-running-requests, and look "
         "for other processes on the GPU"),
        (r"is greater than the derived context_length", "context-length is longer than the model's: lower it"),
        (r"requires one of .* attention backend", "attention-backend has no kernels for the model: leave it out"),
        (r"(?m)^\S*launch_server\S*: error: |^sglang(?: serve)?: error: |^usage: (?:sglang|launch_server)",
         "the engine refuses its arguments: correct the arguments in the recipe that its log names"),
        (r"Capture cuda graph failed",
         "CUDA graphs cannot be captured: see the exception in its log, lower mem-fraction-static or set "
         "disable-cuda-graph"),
        (r"NCCL error",
         "the GPUs of the server cannot communicate: see the NCCL error in its log, with NCCL_DEBUG=INFO"),
        *LOGS,
    )  # fmt: skip

    def adapter_model(self, entry, name):
        return "%s:%s" % (entry["model_id"], name)


ENGINE = Sglang()
