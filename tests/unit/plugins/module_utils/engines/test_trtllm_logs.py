# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the log of a server that does not get ready points at.

The lines are those of the engines' sources and of reports.
"""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import (
    dynamo,
    registry,
    sglang,
    trtllm,
    vllm,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.model import gpt_oss
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import causes
from ansible_collections.inference.fleet.tests.nodes import trtllm_llmapi

TRTLLM = [
    (trtllm_llmapi.report("1.2.1", {"enable_mixed_sampler": True}), "its configuration is none of this release's"),
    ("ValueError: Invalid decoding type: Eagle3", "its configuration is none of this release's"),
    # NVIDIA/dgx-spark-playbooks#17
    ("openai_harmony.HarmonyError: error downloading or loading vocab file: failed to download or load vocab file",
     gpt_oss.ENCODINGS),
    # tensorrt_llm/_torch/modules/fused_moe/fused_moe_trtllm_gen.py, and the later check; TensorRT-LLM#6717
    ("NotImplementedError: TRTLLMGenFusedMoE only supports SM in {100, 103} and W4A16_MXFP4",
     "moe_config.backend has no kernels for this GPU"),
    ("RuntimeError: TRTLLM MoE backend requires the SM100 family, got SM90",
     "moe_config.backend has no kernels for this GPU"),
    ("WFP4A16 MoE is unsupported on SM89", "moe_config.backend has no kernels for this GPU"),
    # PyTorch and CUDA
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.81 GiB.", "a GPU ran out of memory"),
    ("torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
     "another process uses the GPU"),
    ("RuntimeError: The NVIDIA driver on your system is too old: no NVIDIA driver",
     "the node's driver does not fit"),
    ("RuntimeError: Insufficient memory for the KV cache", "the KV cache has no room"),
    # NCCL's result codes
    ("RuntimeError: NCCL error in: cpp/tensorrt_llm/common/opUtils.cpp, ncclSystemError",
     "NCCL, by which the GPUs"),
    # uvicorn and asyncio
    ("OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use",
     "another process has its port"),
]  # fmt: skip
VLLM = [
    # vllm/v1/core/kv_cache_utils.py
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
     "the KV cache has no room"),
    ("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB", "an accelerator ran out of memory"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
     "a file of the checkpoint is incomplete"),
    ("ValueError: Model architectures ['X'] are not supported for now.", "this release cannot load"),
    # vLLM 0.26.0 on an H200
    ("(EngineCore pid=3875) ValueError: Free memory on device cuda:0 (12.19/139.8 GiB) on startup is less than "
     "desired GPU memory utilization (0.9, 125.82 GiB).", "another process uses the memory"),
    ("(EngineCore pid=3868) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 40.00 GiB.",
     "an accelerator ran out of memory"),
    ("(EngineCore pid=4270) ValueError: To serve at least one request with the model's max seq len (131072), (0.07 "
     "GiB KV cache is needed, which is larger than the available KV cache memory (0.0 GiB).",
     "the KV cache has no room"),
    ("(APIServer pid=3474) OSError: [Errno 98] Address already in use", "another process has its port"),
    ("(APIServer pid=3475) pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig\n"
     "(APIServer pid=3475)   Value error, World size (2) is larger than the number of available GPUs (1)",
     "the engine refuses its arguments"),
    ("main.py serve: error: argument --max-num-seqs: invalid int value: 'many'",
     "the engine refuses its arguments"),
    ("(APIServer pid=1058) huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'",
     "the checkpoint's folder is missing"),
    ("(EngineCore pid=2394) ModuleNotFoundError: No module named 'flashinfer'",
     "its engine process ended with ModuleNotFoundError: correct what it reports (No module named 'flashinfer')"),
]  # fmt: skip
SGLANG = [
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value",
     "the KV cache has no room next to the weights: raise mem-"),
    ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1 GiB", "a GPU ran out of memory: lower mem-"),
    ("GptOssForCausalLM requires one of ['fa3', 'triton'] attention backend", "attention-backend has no kernels"),
    ("RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
     "another process uses the memory of one of its GPUs"),
    ("ValueError: Warning: User-specified context_length (9) is greater than the derived context_length (8).",
     "context-length is longer"),
    ("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 1 GiB", "a GPU ran out of memory"),
    ("Exception: Capture cuda graph failed: FlashAttention only supports fp16", "CUDA graphs cannot be captured"),
    ("RuntimeError: NCCL error: unhandled system error", "the GPUs of the server cannot communicate"),
    ("launch_server.py: error: unrecognized arguments: --x", "the engine refuses its arguments"),
    ("safetensors_rust.SafetensorError: Error while deserializing header",
     "a file of the checkpoint is incomplete or corrupt"),
]  # fmt: skip
EACH = [(one.ENGINE, *row) for one, rows in ((trtllm, TRTLLM), (vllm, VLLM), (sglang, SGLANG)) for row in rows]


@pytest.mark.parametrize(("engine", "line", "words"), EACH)
def test_causes_in_the_log(engine, line, words):
    last = "(APIServer pid=3468) RuntimeError: Engine core initialization failed. See root cause above."
    lines = ["INFO starting", *line.splitlines(), "Traceback (most recent call last):", last]
    assert causes.log_cause(lines, engine).startswith(words)
    # What it says names the engine's own settings; the vocabulary is the model's.
    others = words if words == gpt_oss.ENCODINGS else None
    assert causes.log_cause(lines, registry.engine_of({"engine": "unheard-of"})) == others
    assert "kv_cache_config" not in (causes.log_cause(lines, vllm.ENGINE) or "")


@pytest.mark.parametrize(
    ("program", "inner"), [("trtllm", trtllm.ENGINE), ("vllm", vllm.ENGINE), ("frontend", dynamo.ENGINE)]
)
def test_the_log_of_a_dynamo_worker_is_that_of_its_engine(program, inner):
    assert dynamo.ENGINE.inner({"command": ["python3", "-m", "dynamo." + program]}) is inner


def test_the_requests_of_sglang_are_counted():
    metrics = 'sglang:num_running_reqs{model_name="x"} 3.0\nsglang:num_queue_reqs{model_name="x"} 2.0\n'
    assert sglang.ENGINE.requests(metrics) == 5
