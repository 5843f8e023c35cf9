# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory that one planned server takes: weights, KV cache, requests, activations. Pure arithmetic.

docs/using/capacity.md has all formulas in one place.
"""

from __future__ import annotations

import dataclasses

from ansible_collections.inference.fleet.plugins.plugin_utils.engines.base import Engine
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS

BF16 = 2  # bytes of a value
BLOCK = 16  # tokens of one block of a paged KV cache

# Copies of the logits (float32, whole vocabulary, one row for each sequence) while a token is sampled. Sorting, softmax
# and cumulative sums for top-p hold about eight; see activation_bytes.
LOGITS_COPIES = 8
# The sequence that batches are counted in where the recipe's benchmark names none: 1024 tokens in, 1024 out, the shape
# of the published deployment guides.
SEQUENCE = 2048


@dataclasses.dataclass(frozen=True)
class Server:
    """All that decides about the memory of one server; equal servers are counted once.

    model: its dimensions (plugin_utils/models). weights_format: as the recipe names it.
    memory: bytes of one device as the engine sees it, None where nobody declared them. budget: how the engine sizes
    its KV cache, "utilization", "free", "contiguous", "capped" or
    "bytes" (given, cache_bytes). whole_experts: whether each device has experts as a whole (expert parallelism), else a
    slice of each. aligned: multiples that kernels pad the experts' hidden and intermediate width to, or None. max_len
    None: the engine chooses it. kv_bytes: of one element. windowed: whether sliding layers keep their window only.
    bucket: positions that they are allocated with for each request, whatever its length. buffer_tokens: of the KV
    transfer between servers.
    """

    model: object
    weights_format: str
    platform: str
    budget: str
    memory: float | None
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    attention_dp: bool = False
    whole_experts: bool = False
    aligned: tuple | None = None
    fraction: float = 0.9
    cap: float = 1.0
    cache_bytes: int | None = None
    max_seqs: int = 256
    max_seqs_given: bool = True
    max_len: int | None = None
    batched: int = 8192
    kv_bytes: int = BF16
    windowed: bool = True
    bucket: int | None = None
    draft: bool = False
    buffer_tokens: int = 0
    sequence: int = SEQUENCE
    knobs: tuple = Engine.knobs

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


def weights_bytes(model, weights_format, attention_degree=1, expert_degree=1, pipeline=1, experts=None):
    """Bytes of the weights on one device.

    Attention, embedding and lm_head are split over ``attention_degree`` devices (1: replicated, attention data
    parallelism), KV heads over at most as many devices as there are heads; router and norms are replicated; experts are
    split over ``expert_degree`` devices, whether whole (expert parallelism) or sliced (tensor parallelism); layers over
    ``pipeline`` stages, of which the fullest has both ends. Expert layers form
    one group of data x tensor parallelism (docs/using/capacity.md has the sources). experts: bytes of the experts of
    one layer on the device, where they are not an even share.
    """
    layers = _split(model.layers, pipeline)
    layer = _split(model.query_bytes, attention_degree)
    layer += _split(model.key_value_bytes, min(attention_degree, model.kv_heads))
    layer += model.replicated_bytes
    layer += _split(model.experts * model.expert_bytes(weights_format), expert_degree) if experts is None else experts
    ends = 2 if pipeline == 1 else 1
    return layers * layer + ends * _split(model.embedding_bytes, attention_degree) + BF16 * model.hidden


def kv_layer_bytes(model, attention_degree=1, kv_bytes=BF16):
    """Bytes that one token takes in the KV cache of one layer on one device: key and value of the device's KV heads.

    KV heads are split by tensor parallelism and replicated where there are more devices than heads. 2,048 bytes for all
    8 heads of gpt-oss in bf16.
    """
    return 2 * _split(model.kv_heads, attention_degree) * model.head_dim * kv_bytes


def request_bytes(model, length, attention_degree=1, kv_bytes=BF16, windowed=True, batched=1, pipeline=1, bucket=None):
    """Bytes of KV cache that one request of ``length`` tokens takes on one device, at most.

    Full layers hold the whole sequence. Sliding layers hold it too where the engine does not tell them apart; windowed,
    they hold the window and the tokens of the step that is being computed, in blocks, and one block more because a
    window does not start at a block's edge. 4.54 GiB for gpt-oss-120b, 131072 tokens, 1024
    batched. With ``batched`` 1 it is what a request takes while it generates. With a bucket they hold as many tokens as
    that, whatever the request's length.
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
    8192 tokens it gives 7.7 GiB where 7.45 were measured. An estimate: warnings may rest on it, refusals do not.
    """
    logits = LOGITS_COPIES * max_seqs * model.vocab * 4
    experts = batched * model.top_k * (2 * model.intermediate + model.hidden) * BF16 / split
    return PLATFORMS[platform].runtime_bytes + logits + experts


def kv_budget(server, weights, activations=0.0):
    """Bytes that the engine gives its KV cache on one device; below 0 where not even the weights fit. None: unknown.

    utilization: gpu-memory-utilization x memory - weights - peak activations.
    free: kv_cache_free_gpu_memory_fraction of what is free after weights and profiled activations.
    capped: gpu-memory-utilization x memory - weights, at most cap x gpu-memory-utilization x memory.
    contiguous: what is left of the memory; max-num-seqs x max-model-len is allocated in it as a whole.
    bytes: as given (--kv-cache-memory-bytes).
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


def _padded(width, multiple):
    return _split(width, multiple) * multiple


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
    platform = PLATFORMS[server.platform]
    model, degree, experts = platform.layout(server.model), server.tensor * server.data, None
    aligned = server.aligned and server.weights_format in platform.resident
    if aligned:
        hidden, intermediate = server.aligned
        slices = 1 if server.whole_experts else degree
        padded = dataclasses.replace(
            model,
            hidden=_padded(model.hidden, hidden),
            intermediate=_padded(_split(model.intermediate, slices), intermediate),
        )
        experts = _split(model.experts, degree // slices) * padded.expert_bytes(server.weights_format)
    weights = weights_bytes(model, server.weights_format, server.attention_degree, degree, server.pipeline, experts)
    if not aligned:
        weights *= platform.resident.get(server.weights_format, 1)
    if server.draft:
        weights += model.draft_bytes() / server.attention_degree
    return weights


def request_of(server, length, certain=False, steady=False):
    """Bytes of KV cache of one request of ``length`` tokens on one device.

    As the engine reserves it when it starts, which counts the tokens of a step to each request; steady: as a request
    that generates takes it, which is what decides how many run at a time. certain: what cannot be less.
    """
    layers = {
        "attention_degree": server.attention_degree,
        "kv_bytes": server.kv_bytes,
        "windowed": True if certain else server.windowed,
        "batched": 1 if certain or steady else server.batched,
        "pipeline": server.pipeline,
        "bucket": server.bucket,
    }
    model = server.model
    if server.draft and not certain:  # one layer more, which attends to everything
        if server.windowed and not server.bucket:
            # both kinds of layers share one pool, so the smaller kind is padded to the layers of the larger
            return request_bytes(dataclasses.replace(model, layers=model.layers + 2), length, **layers)
        needs = length * kv_layer_bytes(model, server.attention_degree, server.kv_bytes)
        return needs + request_bytes(model, length, **layers)
    return request_bytes(model, length, **layers)
