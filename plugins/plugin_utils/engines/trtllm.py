# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TensorRT-LLM: `trtllm-serve`."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.plugin_utils.engines.base import (
    PARALLEL,
    Engine,
    cache_bytes_of,
    read_degree,
    read_number,
)

FRACTION = "kv-cache-free-gpu-memory-fraction"


class TensorRtLlm(Engine):
    """trtllm-serve. A key of its YAML wins over the same flag. It knows no API keys (TensorRT-LLM#9950)."""

    name, label = "trtllm", "TensorRT-LLM"
    port, bind, repeat_lists, config_wins = "port", "host", True, True
    aliases = {**PARALLEL, "free-gpu-memory-fraction": FRACTION, "ep-size": "moe-expert-parallel-size"}
    whole = (*Engine.whole, "max-batch-size", "max-beam-width")
    sizes = ("max-num-tokens", "max-seq-len", "max-input-len")
    lengths, shares = ("max-seq-len",), (FRACTION,)
    versions = r"(?:^tensorrt[-_]llm==|(?:^|/)tensorrt-llm/release:)([^@;\s]+)"
    # Fields of TorchLlmArgs, which refuses unknown ones: in the page of the release before, not in that of this one
    # (NVIDIA/TensorRT-LLM gh-pages: VERSION/_modules/tensorrt_llm/llmapi/llm_args.html; 1.3.0rc27:
    # llm-api/reference/TorchLlmArgs.html). Between 1.1.0 and 1.2.1, and 1.2.1 and 1.3.0rc27, no release was read.
    removed = {
        "enable-mixed-sampler": ("1.1.0", "Remove it"),
        "enable-trtllm-sampler": ("1.1.0", "Remove it; up to 1.2.1 sampler_type chooses the sampler"),
        "build-config": ("1.2.1", "Remove it, and set max_batch_size, max_num_tokens and the like themselves"),
        "sampler-type": ("1.3.0rc27", "Remove it"),
        "enable-sleep": ("1.3.0rc27", "Remove it"),
        "disable-flashinfer-sampling": ("1.3.0rc27", "Remove it"),
    }
    knobs = ("max_batch_size", "max_seq_len", "kv_cache_free_gpu_memory_fraction", "tp_size")

    def memory(self, entry, hardware, model):
        """As documented under "Memory usage".

        A kv_cache_config block in the file replaces the command line's fraction wholesale, also where it names none
        (then 0.9 holds). Sliding layers keep their window only where max_attention_window is set; versions that set it
        by themselves fit more than is counted here.
        """
        values = entry["arguments"]
        cache, transfer = (values.get(name) for name in ("kv-cache-config", "cache-transceiver-config"))
        dtype, fraction, window = values.get("kv-cache-dtype"), values.get(FRACTION), values.get("max-attention-window")
        if isinstance(cache, dict):
            dtype = cache.get("dtype", dtype)
            fraction = cache.get("free_gpu_memory_fraction")
            window = cache.get("max_attention_window") or window
        return {
            "tensor": read_degree(values, "tensor-parallel-size"),
            "pipeline": read_degree(values, "pipeline-parallel-size"),
            "attention_dp": str(values.get("enable-attention-dp", False)).lower() == "true",
            "fraction": read_number({FRACTION: fraction}, (FRACTION,), 0.9, float),
            "max_seqs": read_number(values, ("max-batch-size",), 2048),
            "max_seqs_given": "max-batch-size" in values,
            "max_len": read_number(values, ("max-seq-len",), model.max_len),
            "batched": read_number(values, ("max-num-tokens",), 8192),
            "kv_bytes": cache_bytes_of(dtype),
            "budget": "free",
            "knobs": self.knobs,
            "windowed": bool(window),
            "buffer_tokens": read_number(transfer, ("max_tokens_in_buffer",), 0) if isinstance(transfer, dict) else 0,
        }


ENGINE = TensorRtLlm()
