# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TensorRT-LLM: the causes behind the answers of trtllm-serve."""

from __future__ import annotations

import json
import re

from ..model import gpt_oss
from . import base, vllm

ADAPTER_OFF = gpt_oss.ADAPTER_OFF["trtllm"]
# Runs in the image: the code with which trtllm-serve turns the YAML into its arguments. pydantic's ValidationError is a
# ValueError; any other exception is a fault of the image or of this program.
CHECK = """
import json, os, sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")


def end(verdict, words=""):
    print("\\n" + sys.argv[1] + json.dumps({"verdict": verdict, "words": str(words)}), flush=True)
    os._exit(0)


try:
    import yaml
    from tensorrt_llm.llmapi.llm_args import TorchLlmArgs, update_llm_args_with_extra_dict
except BaseException as error:
    end("unknown", "%s: %s" % (type(error).__name__, error))
try:
    given = yaml.safe_load(sys.stdin) or {}
    TorchLlmArgs(**update_llm_args_with_extra_dict(json.loads(sys.argv[2]), given))
except (ValueError, yaml.YAMLError) as error:
    end("refused", error)
except BaseException as error:
    end("unknown", "%s: %s" % (type(error).__name__, error))
end("taken")
"""
# It runs without devices: an error about missing devices is no verdict on the file.
NO_DEVICE = re.compile(
    r"(?i)libcuda|libnvidia|nvidia driver|cuda (?:error|driver|init|device|is not available)|no (?:cuda )?gpus?\b"
)
SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "moe_expert_parallel_size")


class Trtllm(base.Engine):
    name = "trtllm"
    programs = (("trtllm-serve", "serve"), ("trtllm-serve",))
    batch = "max-batch-size"
    context = "the server's context is too short for this request: raise max_seq_len"
    output_parser = (
        "the engine's %s parser cannot read what the model wrote (seen with missing stop tokens, "
        "TensorRT-LLM#10651): update the engine, and check the checkpoint's checksums" % gpt_oss.FORMAT
    )
    residue = (
        "%s tokens reach the client: the release has the %s leak bug (TensorRT-LLM#9256, #10651), or %s is set"
        % (gpt_oss.FORMAT, gpt_oss.FORMAT, ADAPTER_OFF)
    )
    exclamation = (
        "the model writes only '!': a safetensors file is corrupt (verify the checkpoint's checksums), or Eagle3 "
        "speculation loops (TensorRT-LLM#8713)"
    )
    dropped_tool_call = (
        "trtllm-serve lost the tool call: %s is set, or the release drops calls under Eagle3 speculation "
        "(TensorRT-LLM#16377)" % ADAPTER_OFF
    )
    no_reasoning = "trtllm-serve runs without its %s adapter: %s is set" % (gpt_oss.FORMAT, ADAPTER_OFF)
    http = (
        (r"(?i)max_seq_len|max_num_tokens", context),
        (r"(?i)LLM is unavailable", base.ENGINE_DEAD),
        (
            r"does not currently support these cacheState",
            "prefill and decode workers have different KV caches: make kv_cache_config and the parallel sizes of both "
            "fit, then site.yml",
        ),
    )

    # Messages of pydantic, PyTorch, NCCL and CUDA, and of tensorrt_llm/_torch/modules/fused_moe.
    logs = (
        (r"Extra inputs are not permitted|validation errors? for \w*LlmArgs|Invalid decoding type",
         "its configuration is none of this release's: the log names the key before the words; docs/using/nvidia.md"),
        (r"(?i)only supports SM|requires the SM\d+ family|unsupported on SM\s?\d+",
         "moe_config.backend has no kernels for this GPU: TRTLLM is for compute capability 10.0 and 10.3, TRITON for "
         "9.0, CUTLASS for each"),
        (r"(?i)cudaErrorDevicesUnavailable|CUDA-capable device\(?s?\)? (?:is/are|is|are) busy",
         "another process uses the GPU: nvidia-smi names it; end it"),
        (r"(?i)(?:not enough|insufficient|no free) memory.*kv.?cache|kv.?cache.*(?:not enough|insufficient|too small)",
         "the KV cache has no room: raise kv_cache_config.free_gpu_memory_fraction, or lower max_batch_size, "
         "max_num_tokens or max_seq_len"),
        (r"(?i)CUDA out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|CUDA error: out of memory",
         "a GPU ran out of memory: lower max_batch_size, max_num_tokens, max_seq_len or "
         "kv_cache_config.free_gpu_memory_fraction, and see by nvidia-smi whether others use it"),
        (r"NCCL error|nccl(?:SystemError|UnhandledCudaError|InternalError|RemoteError)",
         "NCCL, by which the GPUs of a server talk, failed: its NVLink fabric may not be up (nvidia-smi -q, Fabric "
         "Manager), or the container lacks ipc: host or the limit memlock; NCCL_DEBUG=INFO in environment logs more"),
        *vllm.LOGS,
    )  # fmt: skip

    def config_check(self, entry):
        sizes = {name: entry["arguments"].get(name.replace("_", "-")) for name in SIZES}
        given = {name: int(size) for name, size in sizes.items() if re.fullmatch(r"[1-9][0-9]*", str(size))}
        given.update(model=entry["model_id"], gpus_per_node=max(1, len(entry["devices"])))
        return CHECK, [json.dumps(given, sort_keys=True)]

    def config_verdict(self, verdict, words):
        if verdict == "refused" and NO_DEVICE.search(words):
            verdict = "unknown"
        return verdict, validation_words(words)

    def model_cause(self, expected, listed):
        if listed == expected.rstrip("/").rsplit("/", 1)[-1]:
            return (
                "the server lists the basename %s instead of %s: trtllm-serve names a local checkpoint by its folder; "
                "make that the recipe's model id, or pass a served model name" % (listed, expected)
            )
        return super().model_cause(expected, listed)


def validation_words(words):
    """pydantic's message in one line, "enable_mixed_sampler: Extra inputs are not permitted"; else the last line."""
    found = re.findall(r"(?m)^(\S.*)\n  (\S.*?)(?: \[type=.*)?$", words)
    if found:
        return "; ".join("%s: %s" % one for one in found)
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


ENGINE = Trtllm()
