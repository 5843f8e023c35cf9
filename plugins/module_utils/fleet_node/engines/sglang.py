# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang: the causes behind its answers."""

from __future__ import annotations

from ..model import gpt_oss
from . import base


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
        (None, r"(?i)longer than the model's context length|maximum allowed length|context length", context),
        (None, r"(?i)tool_call_parser|tool-call-parser", dropped_tool_call),
    )
    # Messages of SGLang 0.5.21 (pool_configurator.py, model_hook.py, http_server.py), PyTorch and uvicorn.
    logs = (
        (r"Not enough memory\. Please try to increase --mem-fraction-static",
         "the KV cache has no room next to the weights: raise mem-fraction-static or tensor-parallel-size"),
        (r"(?i)(?:CUDA|HIP) out of memory|OutOfMemoryError",
         "a GPU ran out of memory: lower mem-fraction-static, chunked-prefill-size or max-running-requests, and look "
         "for other processes on the GPU"),
        (r"requires one of .* attention backend", "attention-backend has no kernels for the model: leave it out"),
        (r"(?i)address already in use|\[Errno 98\]", "another process has its port"),
    )  # fmt: skip


ENGINE = Sglang()
