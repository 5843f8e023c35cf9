# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TensorRT-LLM: `trtllm-serve`."""

from __future__ import annotations

import posixpath

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import Mistakes, number
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import TRUE, show
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.base import (
    PARALLEL,
    SERVED,
    Engine,
    Version,
    cache_bytes_of,
    command_flags,
    read_degree,
    read_number,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.versioned_fields import Fields

FRACTION = "kv-cache-free-gpu-memory-fraction"
EXPERTS, TENSOR = "moe-expert-parallel-size", "tensor-parallel-size"
DEFAULT_FRACTION = 0.9
# Flags that stand in a block of the file.
NESTED = {FRACTION: ("kv_cache_config", "free_gpu_memory_fraction"), "kv-cache-dtype": ("kv_cache_config", "dtype")}
# Up to 1.1.0 a kv_cache_config block replaces the flags', from 1.2.1 on it is merged with them (llm_args.py of both).
MERGES = "1.2.1"
# Compute capabilities of MoE kernels that know gpt-oss's MXFP4: tensorrt_llm/_torch/modules/fused_moe/
# MOE_DEVELOPER_GUIDE.md. CUTLASS has kernels for each; AUTO chooses.
MOE_ON = {"TRTLLM": ("10.0", "10.3"), "TRITON": ("9.0",)}


class TensorRtLlm(Engine):
    """trtllm-serve. A key of its YAML wins over the same flag. It knows no API keys (TensorRT-LLM#9950).

    What its YAML and its flags may hold is data by version, trtllm_fields.json.
    """

    name, label = "trtllm", "TensorRT-LLM"
    port, bind, repeat_lists, config_wins = "port", "host", True, True
    aliases = {**PARALLEL, "free-gpu-memory-fraction": FRACTION, "ep-size": EXPERTS, "expert-parallel-size": EXPERTS}
    whole = (*Engine.whole, EXPERTS, "max-batch-size", "max-beam-width", "stream-interval")
    sizes = ("max-num-tokens", "max-seq-len", "max-input-len")
    lengths, shares = ("max-seq-len",), (FRACTION,)
    versions = r"(?:^tensorrt[-_]llm==|(?:^|/)tensorrt-llm/release:)([^@;\s]+)"
    knobs = ("max_batch_size", "max_seq_len", "kv_cache_free_gpu_memory_fraction", "tp_size")
    fields = Fields("trtllm_fields.json", label)

    # -- checks --------------------------------------------------------------------------------------------------------

    def check_command(self, where, server, version):
        """Flags that trtllm-serve has in this version, and the name that it serves a local checkpoint by."""
        given = {**command_flags(server.command), **server.values}
        self.fields.check_flags(where, given, version)
        model, expected = server.context["model"], server.context["model_id"]
        listed = posixpath.basename(model.rstrip("/"))
        if model in server.command and listed != expected and not server.arguments.get(SERVED):
            raise FleetError(
                "plan.model-id-not-folder",
                "%s: model.id is %s, but trtllm-serve names a checkpoint by its folder, %s (model.path). Set model.id "
                "to %s, or, where the release has it, arguments.served_model_name to ${model_id}.",
                (where, show(expected), show(listed), show(listed)),
            )

    def attention_whole(self, values):
        return _is_on(values.get("enable-attention-dp"))

    def check_config(self, where, server, version):
        """The YAML: keys and values of this version, said once, and fit for the devices."""
        mistakes = Mistakes()
        for check in (self.check_fields, self._check_said_once, self._check_parallel, self._check_moe):
            with mistakes.noted():
                check(where, server, version)
        mistakes.raise_any()

    def check_fields(self, where, server, version):
        """FleetError with the keys and values of the YAML that a version refuses."""
        self.fields.check(where, server.content, version)

    def _check_said_once(self, where, server, version):
        """A key of the YAML wins over the same flag, so a flag that says something else would be read in vain."""
        mistakes = Mistakes()
        in_file = self._in_file(server.content)
        for flag, value in {**command_flags(server.command), **server.values}.items():
            key, other = in_file.get(self.canonical_flag(flag), (None, None))
            place = "arguments.%s" % flag if flag in server.values else "command: --%s" % flag
            if value is None or value is False:
                continue
            if key and not _same(value, other):
                mistakes.add(
                    "plan.flag-overruled",
                    "%s: %s is %s, but config.content.%s is %s, which %s takes instead. Keep one of them; null takes "
                    "away the recipe's.",
                    (where, place, show(value), key, show(other), self.label),
                )
            elif self._is_lost(flag, value, server.content, in_file, version):
                mistakes.add(
                    "plan.flag-lost",
                    "%s: %s is %s, but %s %s takes all that config.content.%s leaves out as not set. Write "
                    "config.content.%s instead.",
                    (where, place, show(value), self.label, str(version), NESTED[FRACTION][0],
                     ".".join(NESTED[FRACTION])),
                )  # fmt: skip
        mistakes.raise_any()

    def _in_file(self, content):
        """{canonical flag: (key, value)} of what the YAML says."""
        found = {self.canonical_flag(str(key)): (str(key), value) for key, value in content.items()}
        for name, (block, key) in NESTED.items():
            if isinstance(content.get(block), dict) and key in content[block]:
                found[name] = ("%s.%s" % (block, key), content[block][key])
        return found

    def _is_lost(self, flag, value, content, in_file, version):
        """Whether the share of memory of a flag is replaced by the default, with a block that does not name it."""
        return (
            self.canonical_flag(flag) == FRACTION
            and FRACTION not in in_file
            and isinstance(content.get(NESTED[FRACTION][0]), dict)
            and not _same(value, DEFAULT_FRACTION)
            and version is not None
            and version < Version(MERGES)
        )

    def _check_parallel(self, where, server, version):
        tensor, experts = (number(server.arguments.get(name, 1)) for name in (TENSOR, EXPERTS))
        if tensor and experts and experts > 0 and tensor % experts:
            raise FleetError(
                "plan.experts-not-divided",
                "%s: moe_expert_parallel_size (ep_size) is %d, tensor_parallel_size (tp_size) %d; allowed: a divisor "
                "of the latter, as experts are split over these devices. Set it to %d or 1.",
                (where, experts, tensor, tensor),
            )
        if server.content.get("attention_dp_config") and not _is_on(server.arguments.get("enable-attention-dp")):
            raise FleetError(
                "plan.attention-dp-off",
                "%s: config.content.attention_dp_config is set, but enable_attention_dp is not true, so it says "
                "nothing. Set enable_attention_dp to true, or attention_dp_config to null.",
                (where,),
            )
        graphs = _block(server.content, "cuda_graph_config")
        if graphs.get("batch_sizes") and graphs.get("max_batch_size"):
            raise FleetError(
                "plan.graph-sizes-twice",
                "%s: config.content.cuda_graph_config has batch_sizes and max_batch_size; the list that %s makes of "
                "the latter is refused beside another one. Keep one of them.",
                (where, self.label),
            )

    def _check_moe(self, where, server, version):
        backend = _block(server.content, "moe_config").get("backend")
        has = server.hardware.compute_capability
        fitting = MOE_ON.get(backend) if isinstance(backend, str) else None
        if not has or not fitting or has in fitting:
            return
        better = next((name for name, on in MOE_ON.items() if has in on), "CUTLASS")
        if version is not None and better not in (self.fields.at("moe_config", "backend", version) or (better,)):
            better = "CUTLASS"
        raise FleetError(
            "plan.moe-backend-not-for-device",
            "%s: config.content.moe_config.backend is %s, which has kernels for compute capability %s; %s has %s. "
            "Write %s.",
            (where, show(backend), " and ".join(fitting), server.hardware.accelerator, has, better),
        )

    def notes(self, entry, version, hardware):
        """What the records leave open, and what works otherwise than people expect."""
        values, content = entry["arguments"], (entry["config"] or {}).get("content") or {}
        found = self.fields.check("", content, version) if content else []
        if version is None:
            found.append(
                "the version of %s is not known by the image's or the package's name, so its configuration is checked "
                "by types alone; container.version says it" % self.label
            )
        batch, tokens = (number(values.get(name)) for name in ("max-batch-size", "max-num-tokens"))
        graphs = _block(content, "cuda_graph_config")
        largest = number(graphs.get("max_batch_size") or max(graphs.get("batch_sizes") or [0]))
        if batch and largest and largest != batch:
            found.append(
                "cuda_graph_config goes up to %d, max_batch_size is %d: %s. Make them equal"
                % (largest, batch, "graphs beyond it only take memory" if largest > batch else
                   "larger batches run without graphs")
            )  # fmt: skip
        if batch and tokens and tokens < batch:
            found.append(
                "max_num_tokens is %d, max_batch_size %d, and each sequence of a batch takes a token in a step: the "
                "batch never gets as large. Raise max_num_tokens" % (tokens, batch)
            )
        speculates = _block(content, "speculative_config").get("decoding_type")
        if str(speculates).startswith("Eagle"):
            found.append(
                "speculation with %s drops tool calls silently (TensorRT-LLM#16377, seen in 1.3.0rc13). Where "
                "clients use tools set config.content.speculative_config to null" % speculates
            )
        if _is_on(values.get("enable-attention-dp")) and number(values.get(TENSOR, 1)) == 1:
            found.append("enable_attention_dp does nothing on one device (tensor_parallel_size 1)")
        return [text if text.endswith(".") else text + "." for text in found]

    # -- memory --------------------------------------------------------------------------------------------------------

    def takes(self, entry):
        """With attention data parallelism each GPU has a batch of its own."""
        found = super().takes(entry)
        if found["sequences"] and _is_on(entry["arguments"].get("enable-attention-dp")):
            found["sequences"] *= read_degree(entry["arguments"], TENSOR)
        return found

    def memory(self, entry, hardware, model):
        """As documented under "Memory usage".

        A kv_cache_config block in the file replaces the command line's fraction wholesale in some versions, also where
        it names none (then 0.9 holds); see MERGES. Sliding layers keep their window only where max_attention_window is
        set; versions that set it by themselves fit more than is counted here.
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
            "tensor": read_degree(values, TENSOR),
            "pipeline": read_degree(values, "pipeline-parallel-size"),
            "attention_dp": _is_on(values.get("enable-attention-dp")),
            "whole_experts": read_degree(values, EXPERTS) == read_degree(values, TENSOR),
            "fraction": read_number({FRACTION: fraction}, (FRACTION,), DEFAULT_FRACTION, float),
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


def _block(content, name):
    """A block of the YAML, {} where there is none."""
    return content[name] if isinstance(content.get(name), dict) else {}


def _is_on(value):
    return str(value).lower() in TRUE


def _same(one, other):
    """Whether a flag and a key say the same: 8 and "8", true and a bare flag."""
    numbers = [number(value, whole=False) for value in (one, other)]
    if None not in numbers:
        return numbers[0] == numbers[1]
    return str(one).lower() == str(other).lower()


ENGINE = TensorRtLlm()
