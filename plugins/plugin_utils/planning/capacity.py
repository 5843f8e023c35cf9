# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Will it fit? Weights, KV cache and requests of each planned server against the memory of its devices.

Pure arithmetic on plan entries; docs/using/capacity.md has all formulas in one place. Two counts are kept apart. The
*certain* one has only what cannot be otherwise: the bytes of the tensors, the smallest possible KV cache of one
request. A refusal rests on it alone. The *expected* one adds what was measured or must be guessed (how an engine lays
weights out, peak activations); it decides about warnings and is what people are shown.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import re

from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron.framework import uses_nxdi
from ansible_collections.inference.fleet.plugins.plugin_utils.models.gpt_oss import BF16, MODELS, Model

GIB = 2**30
BLOCK = 16  # tokens of one block of vLLM's paged KV cache (its --block-size default)

# What PyTorch sees of a device's memory. NVIDIA: 79.19 of 79.65 GiB on an H100, 178.35 of 179.06 on a B200 (logs in
# vllm#23278 and unsloth#3411, nvidia-smi's memory.total). Ascend: "60.94 GiB total capacity" of 64 (vllm-ascend's
# out-of-memory messages).
USABLE = {"nvidia": 0.995, "ascend": 60.94 / 64}
# How much larger the MXFP4 tensors are once an NVIDIA engine has swizzled and padded them for its kernels: vLLM reports
# 64.38 GiB for the 60.77 GiB of gpt-oss-120b (vllm#33155, Triton kernels; 65.97 with Marlin, vllm#23278).
MXFP4_RESIDENT = 1.06
# CUDA context, cuBLAS and NCCL workspaces, CUDA graphs.
RUNTIME = {"nvidia": 1.0 * GIB, "neuron": 1.0 * GIB}
# Copies of the logits (float32, whole vocabulary, one row for each sequence) while a token is sampled. Sorting, softmax
# and cumulative sums for top-p hold about eight; calibrated on vllm#23278 (see activation_bytes).
LOGITS_COPIES = 8
# Share of its budget that vLLM Neuron's KV cache may take at most: VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION (AWS Neuron,
# "determine_available_memory design").
NEURON_KV_CAP = 0.30
# The sequence that batches are counted in where the recipe's benchmark names none: 1024 tokens in, 1024 out, the shape
# of the published TensorRT-LLM deployment guide.
SEQUENCE = 2048
# Less than this left beside TensorRT-LLM's KV cache is too little for peaks that its profiling did not see.
SPARE = 1.0 * GIB
NXDI_BUCKET = (
    128  # NxD Inference allocates the sliding layers in multiples of it, since its attention kernels want that
)

SIZES = ("memory_gib", "weights_gib", "kv_gib")  # of one device

TENSOR = ("tensor-parallel-size", "tp-size", "tp")
PIPELINE = ("pipeline-parallel-size", "pp-size", "pp")
DATA = ("data-parallel-size", "dp")
SEQUENCES = ("max-num-seqs", "max-batch-size")
LENGTH = ("max-model-len", "max-seq-len")
BATCHED = ("max-num-batched-tokens", "max-num-tokens")
UTILIZATION = ("gpu-memory-utilization",)
FREE_FRACTION = ("kv-cache-free-gpu-memory-fraction", "free-gpu-memory-fraction")
SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

# How each budget calls its knobs, for messages: sequences, length, fraction, tensor parallelism.
NAMES = {
    "utilization": ("max-num-seqs", "max-model-len", "gpu-memory-utilization", "tensor-parallel-size"),
    "capped": ("max-num-seqs", "max-model-len", "gpu-memory-utilization", "tensor-parallel-size"),
    "contiguous": ("max-num-seqs", "max-model-len", None, "tensor-parallel-size"),
    "bytes": ("max-num-seqs", "max-model-len", "kv-cache-memory-bytes", "tensor-parallel-size"),
    "free": ("max_batch_size", "max_seq_len", "kv_cache_free_gpu_memory_fraction", "tp_size"),
}


@dataclasses.dataclass(frozen=True)
class Server:
    """All that decides about the memory of one server; equal servers are counted once.

    memory: bytes of one device as the engine sees it, None where nobody declared them. budget: how the engine sizes
    its KV cache, "utilization" (vLLM), "free" (TensorRT-LLM), "contiguous" (NxD Inference), "capped" (vLLM Neuron) or
    "bytes" (given, cache_bytes). max_len None: the engine chooses it. kv_bytes: of one element. windowed: whether
    sliding layers keep their window only. bucket: positions that they are allocated with for each request, whatever its
    length (NxD Inference). buffer_tokens: of Dynamo's KV transfer.
    """

    model: Model
    weights_format: str
    platform: str
    budget: str
    memory: float | None
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    attention_dp: bool = False
    fraction: float = 0.9
    cap: float = NEURON_KV_CAP
    cache_bytes: int | None = None
    max_seqs: int = 256
    max_seqs_given: bool = True
    max_len: int | None = 131072
    batched: int = 8192
    kv_bytes: int = BF16
    windowed: bool = True
    bucket: int | None = None
    draft: bool = False
    buffer_tokens: int = 0
    sequence: int = SEQUENCE

    @property
    def attention_degree(self):
        """Devices that attention, embedding and lm_head are split over: 1 under attention data parallelism."""
        return 1 if self.attention_dp else self.tensor

    @property
    def ranks(self):
        """Groups of devices that each hold KV caches of their own requests."""
        return self.data * (self.tensor if self.attention_dp else 1)


def _split(number, parts):
    return -(-number // parts)


def weights_bytes(model, weights_format, attention_degree=1, expert_degree=1, pipeline=1):
    """Bytes of the weights on one device.

    Attention, embedding and lm_head are split over ``attention_degree`` devices (1: replicated, attention data
    parallelism), KV heads over at most as many devices as there are heads; router and norms are replicated; experts are
    split over ``expert_degree`` devices, whether whole (expert parallelism) or sliced (tensor parallelism); layers over
    ``pipeline`` stages, of which the fullest has both ends. Sources: TensorRT LLM "Parallelism", vLLM "Data parallel
    deployment" (expert layers form one group of DP x TP), vLLM Neuron "Tensor Parallelism".
    """
    layers = _split(model.layers, pipeline)
    layer = _split(model.query_bytes, attention_degree)
    layer += _split(model.key_value_bytes, min(attention_degree, model.kv_heads))
    layer += model.replicated_bytes
    layer += _split(model.experts * model.expert_bytes(weights_format), expert_degree)
    ends = 2 if pipeline == 1 else 1
    return layers * layer + ends * _split(model.embedding_bytes, attention_degree) + BF16 * model.hidden


def kv_layer_bytes(model, attention_degree=1, kv_bytes=BF16):
    """Bytes that one token takes in the KV cache of one layer on one device: key and value of the device's KV heads.

    KV heads are split by tensor parallelism and replicated where there are more devices than heads. 2,048 bytes for all
    8 heads of gpt-oss in bf16. Source: vLLM, AttentionSpec.page_size_bytes.
    """
    return 2 * _split(model.kv_heads, attention_degree) * model.head_dim * kv_bytes


def nxdi_bucket(window, speculation=None):
    """Positions that NxD Inference allocates for a sliding layer of gpt-oss, in each place of its batch.

    They hold the window without the token at hand; with fused speculation all drafted tokens but one as well. The next
    multiple of 128 above that: 128 without speculation, 256 for a draft of length 5. Source: NxD Inference (SDK 2.27),
    modules/kvcache/gpt_oss_kv_cache_manager.py and get_kernel_cache_size_bucket.
    """
    held = window - 1 if speculation is None else window + speculation - 2
    return (held // NXDI_BUCKET + 1) * NXDI_BUCKET


def request_bytes(model, length, attention_degree=1, kv_bytes=BF16, windowed=True, batched=1, pipeline=1, bucket=None):
    """Bytes of KV cache that one request of ``length`` tokens takes on one device, at most.

    Full layers hold the whole sequence. Sliding layers hold it too where the engine does not tell them apart; windowed,
    they hold the window and the tokens of the step that is being computed, in blocks, and one block more because a
    window does not start at a block's edge. Source: vLLM, FullAttentionSpec and SlidingWindowSpec
    .max_memory_usage_bytes; it reports 4.54 GiB for gpt-oss-120b, 131072 tokens, 1024 batched (vllm#27508). With a
    bucket they hold as many tokens as that, whatever the request's length (see nxdi_bucket).
    """
    blocks = _split(length, BLOCK)
    sliding = blocks
    if bucket:
        sliding = bucket // BLOCK
    elif windowed:
        sliding = min(blocks, _split(min(model.window - 1 + batched, length), BLOCK) + 1)
    tokens = BLOCK * (_split(model.full_layers, pipeline) * blocks + _split(model.sliding_layers, pipeline) * sliding)
    return tokens * kv_layer_bytes(model, attention_degree, kv_bytes)


def activation_bytes(model, platform, max_seqs, batched, split=1):
    """Peak of what is neither weights nor KV cache on one device, about.

    A constant of the runtime; the logits of ``max_seqs`` sequences while a token is sampled; the experts' inputs and
    outputs for ``batched`` tokens, of which a device computes its share ``1/split``. For one H100, 1024 sequences and
    8192 tokens it gives 7.7 GiB where vLLM measured 7.45 (vllm#23278: 0.9 x 79.19 GiB - 65.97 GiB weights + 2.14 GiB
    missing). An estimate: warnings may rest on it, refusals do not.
    """
    logits = LOGITS_COPIES * max_seqs * model.vocab * 4
    experts = batched * model.top_k * (2 * model.intermediate + model.hidden) * BF16 / split
    return RUNTIME.get(platform, 0.0) + logits + experts


def kv_budget(server, weights, activations=0.0):
    """Bytes that the engine gives its KV cache on one device; below 0 where not even the weights fit. None: unknown.

    utilization: gpu-memory-utilization x memory - weights - peak activations (vLLM, and the vLLM Ascend guide in these
      words).
    free: kv_cache_free_gpu_memory_fraction of what is free after weights and profiled activations (TensorRT-LLM,
      "Memory usage").
    capped: gpu-memory-utilization x memory - weights, at most cap x gpu-memory-utilization x memory (vLLM Neuron,
      "determine_available_memory design").
    contiguous: what is left of the memory; max-num-seqs x max-model-len is allocated in it as a whole (NxD Inference).
    bytes: as given (--kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE).
    """
    if server.budget == "bytes":
        return server.cache_bytes
    if server.memory is None:
        return None
    if server.budget == "utilization":
        return server.fraction * server.memory - weights - activations
    if server.budget == "free":
        free = server.memory - weights - activations
        return server.fraction * free if free > 0 else free
    if server.budget == "capped":
        budget = server.fraction * server.memory
        return min(budget - weights, server.cap * budget)
    return server.memory - weights - activations


def certain_weights(server):
    """Bytes of the tensors on one device; see weights_bytes."""
    return weights_bytes(
        server.model,
        server.weights_format,
        server.attention_degree,
        server.tensor * server.data,
        server.pipeline,
    )


def expected_weights(server):
    """certain_weights as the engine lays them out, and the draft model (split like attention)."""
    model = server.model.padded() if server.platform == "neuron" else server.model
    weights = weights_bytes(
        model, server.weights_format, server.attention_degree, server.tensor * server.data, server.pipeline
    )
    if server.platform == "nvidia" and server.weights_format == "mxfp4":
        weights *= MXFP4_RESIDENT
    if server.draft:
        weights += model.draft_bytes() / server.attention_degree
    return weights


def _request(server, length, certain=False):
    layers = {
        "attention_degree": server.attention_degree,
        "kv_bytes": server.kv_bytes,
        "windowed": True if certain else server.windowed,
        "batched": 1 if certain else server.batched,
        "pipeline": server.pipeline,
        "bucket": server.bucket,
    }
    needs = request_bytes(server.model, length, **layers)
    if server.draft and not certain:  # one layer more, which attends to everything
        needs += length * kv_layer_bytes(server.model, server.attention_degree, server.kv_bytes)
    return needs


def count(number, towards=math.floor):
    """A number of tokens for people: 1.9 M, 118 K, 4096. What fits is rounded down, what is needed up (math.ceil)."""
    if number >= 10**6:
        return "%.1f M" % (towards(number / 10**5) / 10)
    if number >= 10**4:
        return "%d K" % towards(number / 1000)
    return "%d" % number


def gib(number):
    """Bytes for people: 64.4 GiB, 64 MiB."""
    return "%.1f GiB" % (number / GIB) if number >= GIB else "%d MiB" % round(number / 2**20)


def _refusal(server, weights):
    """The sentence that says why this server cannot run, or None. Rests on certain numbers only."""
    sequences, length, fraction, tensor = NAMES[server.budget]
    raise_tensor = "raise %s" % tensor
    if server.budget in ("utilization", "capped", "free") and not 0 < server.fraction <= 1:
        return "%s is %g; allowed: above 0, at most 1." % (fraction, server.fraction)
    if server.memory is not None:
        limit, share = server.memory, ""
        if server.budget in ("utilization", "capped"):
            limit *= server.fraction
            share = ", of which %s %g allows %s" % (fraction, server.fraction, gib(limit))
        if server.budget == "bytes":
            limit -= server.cache_bytes
            share = ", of which the KV cache takes %s" % gib(server.cache_bytes)
        if weights > limit:
            return "the weights need %s of each device (%s, %s %d), but a device has %s%s. %s%s." % (
                gib(weights),
                server.weights_format,
                tensor,
                server.tensor,
                gib(server.memory),
                share,
                raise_tensor.capitalize() if server.platform != "cpu" else "Take a smaller checkpoint",
                " or %s" % fraction if server.budget == "utilization" and server.fraction < 0.9 else "",
            )
    budget = kv_budget(dataclasses.replace(server, cap=1.0), weights)  # the cap is a default of some versions
    if budget is None or server.max_len is None:
        return None
    if server.budget == "contiguous":
        needs = server.max_seqs * _request(server, server.max_len, certain=True)
        if needs > budget:
            return (
                "%s %d x %s %d is allocated as a whole and needs %s of KV cache on each device, but beside the weights "
                "(%s) %s are left of %s. Lower %s or %s, or %s."
                % (
                    sequences, server.max_seqs, length, server.max_len, gib(needs), gib(weights), gib(budget),
                    gib(server.memory), sequences, length, raise_tensor,
                )
            )  # fmt: skip
        return None
    needs = _request(server, server.max_len, certain=True)
    if needs > budget:
        mend = ["lower %s" % length]
        if server.budget != "free":  # a larger share of what is free buys little and ends in out-of-memory errors
            mend.append("raise %s" % fraction)
        if server.platform != "cpu":
            mend.append(raise_tensor)
        where = "" if server.budget == "bytes" else " beside the weights (%s)" % gib(weights)
        return "one request of %s %d needs %s of KV cache on each device, but %s are left for it%s. %s." % (
            length,
            server.max_len,
            gib(needs),
            gib(budget),
            where,
            _either(mend),
        )
    return None


def _either(mend):
    text = mend[0] if len(mend) == 1 else "%s or %s" % (", ".join(mend[:-1]), mend[-1])
    return text[0].upper() + text[1:]


def expect(server):
    """(weights, activations, budget) in bytes of one device, (tokens, requests) of one rank, as they are expected."""
    weights = expected_weights(server)
    activations = activation_bytes(
        server.model, server.platform, server.max_seqs, server.batched, 1 if server.attention_dp else server.tensor
    )
    activations += server.buffer_tokens * server.model.layers * kv_layer_bytes(
        server.model, server.attention_degree, server.kv_bytes
    )  # fmt: skip
    budget = kv_budget(server, weights, activations)
    each = _request(server, server.sequence)
    tokens = requests = None
    if budget is not None:
        requests = max(0, int(budget // each))
        tokens = max(0, int(budget * server.sequence / each))
        if server.budget == "contiguous" and server.max_len:
            requests = min(requests, server.max_seqs)
            tokens = min(tokens, server.max_seqs * server.max_len)
    return weights, activations, budget, tokens, requests


@functools.lru_cache(maxsize=1024)
def assess(server):
    """The verdict on a Server; equal ones are computed once, so treat the result as read-only.

    Returns {"ok", "verdict", "text", "warnings", "refusal", "memory_gib", "weights_gib", "kv_gib", "tokens",
    "requests", "sequence", "max_seqs", "max_len", "ranks"}. verdict: "ok", "warning", "error" (refusal
    says why) or "not checked". ok: true for ok, null for not checked, else false. Sizes are of one device, in GiB;
    tokens and requests (of ``sequence`` tokens) are of one rank.
    """
    weights, activations, budget, tokens, requests = expect(server)
    refusal = _refusal(server, certain_weights(server))
    warnings = [] if refusal else _warnings(server, weights, activations, budget, tokens, requests)
    verdict = "error" if refusal else "warning" if warnings else "not checked" if budget is None else "ok"
    return {
        "ok": {"ok": True, "not checked": None}.get(verdict, False),
        "verdict": verdict,
        "text": _text(server, tokens, requests),
        "warnings": warnings,
        "refusal": refusal,
        "memory_gib": None if server.memory is None else round(server.memory / GIB, 4),
        "weights_gib": round(weights / GIB, 4),
        "kv_gib": None if budget is None else round(max(0, budget) / GIB, 4),
        "tokens": tokens,
        "requests": requests,
        "sequence": server.sequence,
        "max_seqs": server.max_seqs,
        "max_len": server.max_len,
        "ranks": server.ranks,
    }


def _text(server, tokens, requests):
    if tokens is None:
        return "the memory of its devices is not declared (fleet_hardware.memory_gib)"
    ranks = " on each of %d ranks" % server.ranks if server.ranks > 1 else ""
    if server.max_seqs_given:
        needs = count(server.max_seqs * server.sequence, math.ceil)
        return "fits %s tokens%s; %d x %d needs %s" % (count(tokens), ranks, server.max_seqs, server.sequence, needs)
    return "fits %s tokens%s, %d requests of %d" % (count(tokens), ranks, requests, server.sequence)


def _warnings(server, weights, activations, budget, tokens, requests):
    sequences, length, fraction, tensor = NAMES[server.budget]
    found = []
    if budget is not None:
        mend = "Lower %s or %s, or raise %s" % (sequences, length, tensor)
        if server.budget == "free":
            mend += "; against out-of-memory errors lower max_num_tokens, or %s to 0.8 or 0.7" % fraction
        elif server.budget == "utilization":
            mend += " or %s" % fraction
        elif server.budget == "bytes":
            mend = "Lower %s or %s, or raise %s" % (sequences, length, fraction)
        most = budget / _request(server, server.max_len) if server.max_len else 1
        whole = server.max_seqs if server.budget == "contiguous" else 1
        if budget <= 0:
            found.append(
                "weights (%s) and activations (about %s) leave no room for a KV cache in the %s of a device. %s."
                % (gib(weights), gib(activations), gib(server.memory), mend)
            )
        elif most < whole:
            what = "%s %d x %s %d, allocated as a whole, need" % (sequences, whole, length, server.max_len)
            if server.budget != "contiguous":
                what = "one request of %s %d may need" % (length, server.max_len)
            needs = gib(whole * _request(server, server.max_len))
            found.append("%s %s of KV cache on a device, but about %s fit. %s." % (what, needs, gib(budget), mend))
        elif server.max_seqs_given and requests < server.max_seqs:
            found.append(
                "%s %d x %d tokens need %s, but about %s fit: %d requests run at a time, others wait. %s."
                % (
                    sequences, server.max_seqs, server.sequence, count(server.max_seqs * server.sequence, math.ceil),
                    count(tokens), requests, mend,
                )
            )  # fmt: skip
        elif server.budget == "free" and budget * (1 - server.fraction) / server.fraction < SPARE:
            found.append(
                "%s %g leaves %s of a device for peaks. Lower it to 0.8 or 0.7, or lower %s or %s."
                % (fraction, server.fraction, gib(budget * (1 - server.fraction) / server.fraction), sequences, length)
            )
    return found


class _Unreadable(ValueError):
    """An argument that this check cannot read; the engine may."""


def flag_values(command):
    """{flag without dashes, with - for _: its text, or True for a bare flag} of an engine's argv.

    The plan entry is what will run, so it is what is read, and not the recipe that it came from.
    """
    values, index = {}, 0
    while index < len(command):
        word = command[index]
        index += 1
        if not re.match(r"--?[A-Za-z]", word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            value = True
            if index < len(command) and not re.match(r"--?[A-Za-z]", command[index]):
                value = command[index]
                index += 1
        values[name.replace("_", "-")] = value
    return values


def _flat(content):
    """The scalars of an engine's configuration file, named like flags."""
    return {key.replace("_", "-"): value for key, value in content.items() if not isinstance(value, (dict, list))}


def _number(values, names, default=None, kind=int):
    for name in names:
        value = values.get(name)
        if value is None:
            continue
        match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kmgtKMGT]?)", str(value).strip())
        if not match or (kind is int and not match.group(2) and "." in match.group(1)):
            raise _Unreadable("%s is %s, which is no number" % (name, value))
        return kind(float(match.group(1)) * SUFFIXES.get(match.group(2), 1))
    return default


def _degree(values, names):
    number = _number(values, names, 1)
    if number < 1:
        raise _Unreadable("%s is %d" % (names[0], number))
    return number


def server_of(entry, deployment, hardware, on_host=1):
    """The Server of a plan entry, or None for one without devices (a frontend). _Unreadable says what is in the way.

    deployment: the resolved recipe. hardware: Hardware. on_host: all servers of this host.
    """
    if not entry["devices"]:
        return None
    model = MODELS.get(deployment["model"]["repo"])
    if model is None:
        raise _Unreadable("the dimensions of %s are not known" % deployment["model"]["repo"])
    values = flag_values(entry["command"])
    content = (entry["config"] or {}).get("content") or {}
    engine = deployment["engine"]
    if engine == "dynamo" and any("dynamo.vllm" in word for word in entry["command"]):
        engine = "vllm"
    read = _trtllm if engine in ("trtllm", "dynamo") else _vllm
    settings = read(values, content, entry, hardware, model)
    benchmark = deployment.get("benchmark") or {}
    longest = settings["max_len"] or model.max_len
    lengths = [benchmark.get(key) for key in ("input_tokens", "output_tokens")]
    sequence = sum(lengths) if all(isinstance(length, int) for length in lengths) else SEQUENCE
    weights_format = deployment["model"]["format"]
    if hardware.accelerator == "trainium2":
        weights_format = "bf16"  # Trainium2 computes no MXFP4; the engines unpack it (vLLM Neuron, gpt-oss recipe)
    return Server(
        model=model,
        weights_format=weights_format,
        platform=entry["platform"],
        memory=rank_memory(hardware, on_host),
        draft=bool(deployment["model"].get("draft")),
        sequence=max(1, min(sequence, longest)),
        **settings,
    )


def rank_memory(hardware, on_host=1):
    """Bytes that one rank of a server has, as the engine sees them; None where nobody declared them.

    A GPU or NPU: what PyTorch sees of it. A logical NeuronCore: its physical cores' share of the chip (24 GiB at LNC 2
    on Trainium2, 36 on Trainium3; a chip has four HBM stacks for eight cores). A CPU server: an equal share of the
    host, which has ``on_host`` servers.
    """
    if not hardware.memory_gib:
        return None
    if hardware.platform == "neuron":
        return hardware.memory_gib * GIB * hardware.lnc / hardware.cores
    if hardware.platform == "cpu":
        return hardware.memory_gib * GIB * hardware.count / on_host
    return hardware.memory_gib * GIB * USABLE[hardware.platform]


def _kv_bytes(dtype):
    return 1 if str(dtype).startswith(("fp8", "nvfp4", "int8")) else BF16


def _vllm(values, content, entry, hardware, model):
    """vLLM and its plugins. The command line wins over a configuration file."""
    values = {**_flat(content), **values}
    large = entry["platform"] == "nvidia" and hardware.memory_gib >= 70  # vLLM's defaults for large GPUs
    max_len = _number(values, LENGTH, model.max_len) if values.get(LENGTH[0]) != "auto" else None
    settings = {
        "tensor": _degree(values, TENSOR),
        "pipeline": _degree(values, PIPELINE),
        "data": _degree(values, DATA),
        "fraction": _number(values, UTILIZATION, 0.9, float),
        "max_seqs": _number(values, SEQUENCES, 1024 if large else 256),
        "max_seqs_given": SEQUENCES[0] in values,
        "max_len": max_len if max_len and max_len > 0 else None,
        "batched": _number(values, BATCHED, 8192 if large else 2048),
        "kv_bytes": _kv_bytes(values.get("kv-cache-dtype")),
        "budget": "utilization",
        "windowed": "disable-hybrid-kv-cache-manager" not in values,
    }
    environment = entry["environment"]
    cache = _number(values, ("kv-cache-memory-bytes",))
    if entry["platform"] == "cpu" and cache is None:
        space = _number(environment, ("VLLM_CPU_KVCACHE_SPACE",))
        if space is None:
            raise _Unreadable("neither kv-cache-memory-bytes nor VLLM_CPU_KVCACHE_SPACE is set")
        cache = space * GIB
    if cache is not None:
        settings.update(budget="bytes", cache_bytes=cache)
    if entry["platform"] == "ascend":
        settings["windowed"] = False  # whether the plugin tells the layers apart depends on its version
    if entry["platform"] == "neuron":
        settings["windowed"] = "no-disable-hybrid-kv-cache-manager" in values
        if uses_nxdi(environment):
            if not settings["max_seqs_given"] or settings["max_len"] is None:
                raise _Unreadable("max-num-seqs and max-model-len are not both set")
            settings.update(budget="contiguous", bucket=nxdi_bucket(model.window, _speculation(values)))
        else:
            cap = _number(environment, ("VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION",), NEURON_KV_CAP, float)
            settings.update(budget="capped", cap=cap)
    return settings


def _speculation(values):
    """Tokens that NxD Inference drafts in one graph with the model, None where it does not."""
    override = _json_mapping(values, "additional-config").get("override_neuron_config")
    override = override if isinstance(override, dict) else {}
    drafted = _number(_json_mapping(values, "speculative-config"), ("num_speculative_tokens",))
    if drafted is None and not override.get("enable_fused_speculation"):
        return None
    return _number(override, ("speculation_length",), drafted or 0)


def _json_mapping(values, name):
    try:
        value = json.loads(values.get(name) or "{}")
    except (TypeError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise _Unreadable("%s is %s, which is no mapping" % (name, values[name]))
    return value


def _trtllm(values, content, entry, hardware, model):
    """trtllm-serve and Dynamo's TensorRT-LLM worker. The configuration file wins over the command line.

    A kv_cache_config block in the file replaces the command line's fraction wholesale, also where it names none (then
    0.9 holds). Sliding layers keep their window only where max_attention_window is set; versions that set it by
    themselves fit more than is counted here.
    """
    values = {**values, **_flat(content)}
    cache = content.get("kv_cache_config")
    dtype = values.get("kv-cache-dtype")
    if isinstance(cache, dict):
        dtype = cache.get("dtype", dtype)
        values = {key: value for key, value in values.items() if key not in FREE_FRACTION}
        values.update(_flat(cache))
        if cache.get("max_attention_window"):
            values["max-attention-window"] = True
    transfer = content.get("cache_transceiver_config")
    attention_dp = str(values.get("enable-attention-dp", False)).lower() == "true"
    return {
        "tensor": _degree(values, TENSOR),
        "pipeline": _degree(values, PIPELINE),
        "attention_dp": attention_dp,
        "fraction": _number(values, FREE_FRACTION, 0.9, float),
        "max_seqs": _number(values, SEQUENCES, 2048),
        "max_seqs_given": SEQUENCES[1] in values,
        "max_len": _number(values, LENGTH, model.max_len),
        "batched": _number(values, BATCHED, 8192),
        "kv_bytes": _kv_bytes(dtype),
        "budget": "free",
        "windowed": "max-attention-window" in values,
        "buffer_tokens": _number(transfer, ("max_tokens_in_buffer",), 0) if isinstance(transfer, dict) else 0,
    }


def check(entries, deployment, hardware):
    """The capacity of a host's servers: [{"server", …}], assess() for each entry that has devices.

    Whether the host takes as many requests at once as are expected is told by a warning of each server that answers.
    """
    entries = [entry for entry in entries if entry["devices"]]
    result, answering = [], []
    for entry in entries:
        server = None
        try:
            server = server_of(entry, deployment, hardware, len(entries))
            found = _as_written({**assess(server)}, entry)
        except _Unreadable as error:
            found = {"ok": None, "verdict": "not checked", "text": str(error), "warnings": [], "refusal": None}
        result.append({"server": entry["name"], **found})
        if entry["role"] != "prefill":  # it hands each request on, so what it takes at once limits nobody
            answering.append((server, result[-1]))
    warning = _waiting(_concurrency(deployment), [server for server, _item in answering])
    for _server, item in answering if warning else ():
        item["warnings"] = [*item["warnings"], warning]
        if item["refusal"] is None:
            item.update(ok=False, verdict="warning")
    return result


def _as_written(found, entry):
    """What assess() says, with the flags named as the server's command or configuration file has them."""
    content = (entry["config"] or {}).get("content") or {}
    written = {re.sub("[-_]", "", flag): flag for flag in (*content, *_flags(entry["command"]))}
    if "kvcachememorybytes" not in written and "VLLM_CPU_KVCACHE_SPACE" in entry["environment"]:
        written["kvcachememorybytes"] = "VLLM_CPU_KVCACHE_SPACE"
    names = {name for names in NAMES.values() for name in names if name}
    spelled = {name: written[re.sub("[-_]", "", name)] for name in names if re.sub("[-_]", "", name) in written}
    if not any(name != flag for name, flag in spelled.items()):
        return found
    pattern = re.compile(r"(?<![\w-])(%s)(?![\w-])" % "|".join(map(re.escape, spelled)))

    def named(text):
        return text and pattern.sub(lambda match: spelled[match.group(1)], text)

    return {**found, "refusal": named(found["refusal"]), "warnings": [named(text) for text in found["warnings"]]}


def _flags(command):
    return [word.lstrip("-").partition("=")[0] for word in command if word.startswith("--")]


def refusals(found):
    """What cannot run of check()'s result, in sentences; "" where all can."""
    refused = {}
    for item in found:
        if item["refusal"]:
            refused.setdefault(item["refusal"], []).append(item["server"])
    return " ".join("%s: %s" % (servers_text(names), sentence) for sentence, names in refused.items())


def overruled(found):
    """check()'s result with refusals as warnings: somebody knows better (fleet_capacity: warn)."""
    return [
        {
            **item,
            "warnings": [*item["warnings"], item["refusal"] + " Tried all the same, as fleet_capacity is warn."],
            "verdict": "warning",
            "refusal": None,
        }
        if item["refusal"]
        else item
        for item in found
    ]


def _concurrency(deployment):
    """Requests at once that the recipe's benchmark sends to the servers of a host, at most; None where it has none."""
    concurrency = (deployment.get("benchmark") or {}).get("concurrency")
    if isinstance(concurrency, list):
        concurrency = max((one for one in concurrency if isinstance(one, int)), default=None)
    return concurrency if isinstance(concurrency, int) else None


def _waiting(expected, servers):
    """The sentence that says that fewer requests are taken at once than are expected, or None.

    servers: all that answer on a host; None among them is one that cannot be read, and then nothing is certain.
    """
    if not expected or not servers or None in servers:
        return None
    taken = sum(server.max_seqs * server.ranks for server in servers)
    if expected <= taken:
        return None
    kinds = collections.Counter((NAMES[server.budget][0], server.max_seqs, server.ranks) for server in servers)
    return (
        "%d requests at once are expected, but %s %s %d; the others wait, which counts as latency. "
        "Raise %s or lower the benchmark's concurrency."
        % (
            expected,
            " + ".join(
                "%s %d%s%s"
                % (
                    sequences,
                    number,
                    " x %d ranks" % ranks if ranks > 1 else "",
                    " x %d servers" % copies if copies > 1 else "",
                )
                for (sequences, number, ranks), copies in kinds.items()
            ),
            "takes" if len(kinds) == 1 else "take",
            taken,
            " and ".join(dict.fromkeys(sequences for sequences, _number, _ranks in kinds)),
        )
    )


def servers_text(names):
    """Names of servers for people: "server-0", "server-0 to server-7", "server-0, server-2"."""
    bases = {name.rpartition("-")[0] for name in names}
    numbers = [int(name.rpartition("-")[2]) for name in names]
    if len(names) > 2 and len(bases) == 1 and numbers == list(range(numbers[0], numbers[0] + len(names))):
        return "%s to %s" % (names[0], names[-1])
    return ", ".join(names)


def grouped(capacity):
    """``capacity`` of one host with equal servers as one: [(names, item)], in order."""
    found = {}
    for item in capacity:
        key = repr({name: value for name, value in item.items() if name != "server"})
        found.setdefault(key, ([], item))[0].append(item["server"])
    return list(found.values())
