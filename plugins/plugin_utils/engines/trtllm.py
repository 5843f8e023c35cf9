# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TensorRT-LLM: `trtllm-serve`."""

from __future__ import annotations

import posixpath

from ..base.checks import Mistakes, invalid, number
from ..base.words import is_true
from . import options
from .base import (
    PARALLEL,
    SERVED,
    SHARE,
    WHOLE,
    Engine,
    block_of,
    conflict,
    content_of,
    not_as_planned,
    read_degree,
    read_number,
)
from .options import Version, command_flags

FRACTION = "kv-cache-free-gpu-memory-fraction"
EXPERTS, TENSOR = "moe-expert-parallel-size", "tensor-parallel-size"
DEFAULT_FRACTION = 0.9
# Flags that correspond to a key in a block of the file.
NESTED = {FRACTION: ("kv_cache_config", "free_gpu_memory_fraction"), "kv-cache-dtype": ("kv_cache_config", "dtype")}
# Up to 1.1.0 a kv_cache_config block replaces the flags, from 1.2.1 on it is merged with them (llm_args.py of both).
MERGES = "1.2.1"
# Compute capabilities of MoE kernels that support gpt-oss's MXFP4: tensorrt_llm/_torch/modules/fused_moe/
# MOE_DEVELOPER_GUIDE.md. CUTLASS has kernels for each; AUTO chooses.
MOE_ON = {"TRTLLM": ("10.0", "10.3"), "TRITON": ("9.0",)}
PROGRAMS = ("trtllm-serve", "tensorrt_llm.commands.serve")  # others are of programs and scripts that start it
HYPHENATED = ("generation-config", "no-telemetry")  # the other options of its parser, click, have underscores


class TensorRtLlm(Engine):
    """trtllm-serve. A key of its YAML wins over the same flag. It does not support API keys (TensorRT-LLM#9950).

    The allowed keys and flags are recorded by version in trtllm_fields.json.
    """

    name, label = "trtllm", "TensorRT-LLM"
    port, bind, repeat_lists, config_wins, any_model_name = "port", "host", True, True, True
    metrics_path = "/prometheus/metrics"
    aliases = {**PARALLEL, "free-gpu-memory-fraction": FRACTION, "ep-size": EXPERTS, "expert-parallel-size": EXPERTS}
    limits = {
        **Engine.limits,
        **dict.fromkeys((EXPERTS, "max-batch-size", "max-beam-width", "max-num-tokens", "max-seq-len", "max-input-len",
                         "stream-interval"), WHOLE),
        FRACTION: SHARE,
    }  # fmt: skip
    lengths = ("max-seq-len",)
    versions = r"(?:^tensorrt[-_]llm==|(?:^|/)tensorrt-llm/release:)([^@;\s]+)"
    knobs = ("max_batch_size", "max_seq_len", "kv_cache_free_gpu_memory_fraction", "tp_size")
    usual = (2048, DEFAULT_FRACTION, ("max-num-tokens", 8192))
    fields = flags = options.Options("trtllm_fields.json", label)

    # -- checks --------------------------------------------------------------------------------------------------------

    def check_command(self, where, server, version):
        """Check the name of a local checkpoint."""
        model, expected = server.context["model"], server.context["model_id"]
        folder = posixpath.basename(model.rstrip("/"))
        if model in server.command and folder != expected and not server.arguments.get(SERVED):
            raise not_as_planned(where, "the folder of model.path, by which it is served,", folder, "model.id",
                                 expected, "model_id")  # fmt: skip

    def spelling(self, name):
        return name if name in HYPHENATED else name.replace("-", "_")

    def program(self, command, models=()):
        if command and (command[0] in models or command[0].startswith("-")):
            return -1
        return next((place for place, word in enumerate(command) if posixpath.basename(word) in PROGRAMS), None)

    def attention_whole(self, values):
        return is_true(values.get("enable-attention-dp"))

    def check_config(self, where, server, version):
        """Check the YAML: keys and values of this version, set once, and suitable for the devices."""
        mistakes = Mistakes()
        with mistakes.noted():
            self.fields.check_file(where, server.content, version)
        for check in (self._check_once, self._check_parallel, self._check_moe):
            with mistakes.noted():
                check(where, server, version)
        mistakes.raise_any()

    def _check_once(self, where, server, version):
        """Raises FleetError if a flag and a key of the YAML differ, because the key wins."""
        mistakes = Mistakes()
        in_file, block = self._in_file(server.content), NESTED[FRACTION][0]
        replaced = isinstance(server.content.get(block), dict) and version is not None and version < Version(MERGES)
        for flag, value in {**command_flags(server.command), **server.values}.items():
            name = self.canonical_flag(flag)
            key, other = in_file.get(name, (None, None))
            if name == FRACTION and not key and replaced:
                key, other = ".".join(NESTED[FRACTION]), DEFAULT_FRACTION  # default of a block without this key
            place = "arguments.%s" % flag if flag in server.values else "command: --%s" % flag
            if key and value is not None and value is not False and not _same(value, other):
                mistakes.keep(conflict(where, place, "config.content." + key))
        mistakes.raise_any()

    def _in_file(self, content):
        """Return {canonical flag: (key, value)} of the keys in the YAML."""
        found = {self.canonical_flag(str(key)): (str(key), value) for key, value in content.items()}
        for name, (block, key) in NESTED.items():
            if isinstance(content.get(block), dict) and key in content[block]:
                found[name] = ("%s.%s" % (block, key), content[block][key])
        return found

    def _check_parallel(self, where, server, version):
        place = where + ": config.content."
        tensor, experts = (number(server.arguments.get(name, 1)) for name in (TENSOR, EXPERTS))
        if tensor and experts and experts > 0 and tensor % experts:
            raise invalid("%s: %s" % (where, EXPERTS), experts, "a divisor of %s, %d" % (TENSOR, tensor))
        if server.content.get("attention_dp_config") and not is_true(server.arguments.get("enable-attention-dp")):
            value = server.content["attention_dp_config"]
            raise invalid(place + "attention_dp_config", value, "null, unless enable_attention_dp is true")
        graphs = block_of(server.content, "cuda_graph_config")
        if graphs.get("batch_sizes") and graphs.get("max_batch_size"):
            keys = ("config.content.cuda_graph_config." + key for key in ("batch_sizes", "max_batch_size"))
            raise conflict(where, *keys)

    def _check_moe(self, where, server, version):
        backend = block_of(server.content, "moe_config").get("backend")
        has = server.hardware.compute_capability
        fitting = MOE_ON.get(backend) if isinstance(backend, str) else None
        if not has or not fitting or has in fitting:
            return
        better = next((name for name, on in MOE_ON.items() if has in on), "CUTLASS")
        if version is not None and better not in (self.fields.at("moe_config", "backend", version) or (better,)):
            better = "CUTLASS"
        allowed = "%s on %s (compute capability %s)" % (better, server.hardware.accelerator, has)
        raise invalid(where + ": config.content.moe_config.backend", backend, allowed)

    def notes(self, entry, version, hardware):
        """Return warnings about options that are not recorded, and about a known defect."""
        found = self.fields.not_recorded(None) if version is None else []
        content = content_of(entry)
        found += self.fields.check_file("", content, version)
        speculates = block_of(content, "speculative_config").get("decoding_type")
        if str(speculates).startswith("Eagle"):
            found.append(
                "speculation with %s drops tool calls silently (TensorRT-LLM#16377, seen in 1.3.0rc13). Where "
                "clients use tools set config.content.speculative_config to null." % speculates
            )
        return found

    # -- memory --------------------------------------------------------------------------------------------------------

    def takes(self, entry):
        """Return the limits of a server; with attention data parallelism each GPU has a separate batch."""
        found = super().takes(entry)
        if found["sequences"] and is_true(entry["arguments"].get("enable-attention-dp")):
            found["sequences"] *= read_degree(entry["arguments"], TENSOR)
        return found

    def memory(self, entry, hardware, model):
        """Return the values as documented under "Memory usage".

        In some versions a kv_cache_config block in the file replaces the command line's fraction, even if the block
        does not contain a fraction (0.9 then applies); see MERGES. Sliding layers keep only their window if
        max_attention_window is set; versions that set it by default fit more than is counted here.
        """
        values = entry["arguments"]
        cache, transfer = (values.get(name) for name in ("kv-cache-config", "cache-transceiver-config"))
        dtype, fraction, window = values.get("kv-cache-dtype"), values.get(FRACTION), values.get("max-attention-window")
        if isinstance(cache, dict):
            version = self.version({"container": entry["container"]}) if entry.get("container") else None
            merges = version is not None and version >= Version(MERGES)
            dtype = cache.get("dtype", dtype)
            fraction = cache.get("free_gpu_memory_fraction") or (fraction if merges else None)
            window = cache.get("max_attention_window") or window
        return {
            **self.sizes({**values, FRACTION: fraction, "kv-cache-dtype": dtype}, model),
            "attention_dp": is_true(values.get("enable-attention-dp")),
            "whole_experts": read_degree(values, EXPERTS) == read_degree(values, TENSOR),
            "budget": "free",
            "windowed": bool(window),
            "buffer_tokens": read_number(transfer, "max_tokens_in_buffer", 0) if isinstance(transfer, dict) else 0,
        }


def _same(one, other):
    """Return whether a flag and a key have the same value: 8 and "8", true and a bare flag."""
    numbers = [number(value, whole=False) for value in (one, other)]
    if None not in numbers:
        return numbers[0] == numbers[1]
    return str(one).lower() == str(other).lower()


ENGINE = TensorRtLlm()
