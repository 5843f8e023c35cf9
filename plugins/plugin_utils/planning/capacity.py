# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The capacity check: compares the weights, KV cache and requests of each server with the memory of its devices.

Pure arithmetic on plan entries; docs/using/capacity.md has all formulas in one place. Two counts are kept apart. The
*certain* count includes only what every engine needs: the bytes of the tensors, and the smallest possible KV cache of a
request. A refusal depends on this count alone. The *expected* count adds measured and estimated values (the layout of
weights in an engine, peak activations). It decides about warnings and is displayed.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from ..base.words import by_text
from ..engines import ENGINES
from ..engines.base import Engine, Unreadable
from ..measure.points import load_of
from ..models import family_of, model_of
from ..platforms import PLATFORMS
from ..platforms.base import GIB
from ..recipe.overrides import group_name

BF16 = 2  # bytes of a value
BLOCK = 16  # tokens of one block of a paged KV cache

# Copies of the logits (float32, complete vocabulary, one row for each sequence) while a token is sampled. Sorting,
# softmax and cumulative sums for top-p use about eight; see activation_bytes.
LOGITS_COPIES = 8
# The sequence that batches are counted in if the recipe's benchmark specifies none: 1024 tokens in, 1024 out, the shape
# of the published deployment guides.
SEQUENCE = 2048


@dataclasses.dataclass(frozen=True)
class Server:
    """All values that determine the memory of a server. Equal servers are counted once.

    model: its dimensions (plugin_utils/models). weights_format: as the recipe names it. memory: bytes of a device as
    the engine sees it; None if they are not declared, which only the budget "bytes" permits. budget: how the engine
    sizes its KV cache, "utilization", "free", "contiguous", "capped" or "bytes" (given, cache_bytes). whole_experts:
    whether each device has complete experts (expert parallelism), else a slice of each. aligned: multiples that kernels
    pad the experts' hidden and intermediate width to, or None. max_len None: the engine chooses it. kv_bytes: of one
    element. windowed: whether sliding layers keep their window only. bucket: positions that they are allocated with for
    each request, whatever its length. buffer_tokens: of the KV transfer between servers.
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
        """Number of devices that attention, embedding and lm_head are split over:
        1 under attention data parallelism."""
        return 1 if self.attention_dp else self.tensor

    @property
    def ranks(self):
        """Number of groups of devices with separate KV caches for separate requests."""
        return self.data * (self.tensor if self.attention_dp else 1)

    @property
    def layer_bytes(self):
        """Bytes of a token in the KV cache of one layer on one device."""
        return kv_layer_bytes(self.model, self.attention_degree, self.kv_bytes)


def _split(number, parts):
    return -(-number // parts)


def weights_bytes(model, weights_format, attention_degree=1, expert_degree=1, pipeline=1, experts=None):
    """Return the bytes of the weights on one device.

    Attention, embedding and lm_head are split over ``attention_degree`` devices (1: replicated, attention data
    parallelism), KV heads over at most as many devices as there are heads. Router and norms are replicated. Experts are
    split over ``expert_degree`` devices, either complete (expert parallelism) or sliced (tensor parallelism). Layers
    are split over ``pipeline`` stages, of which the largest has both ends. Expert layers form one group of data x
    tensor parallelism (docs/using/capacity.md has the sources). experts: bytes of the experts of one layer on the
    device, if they are not an even share.
    """
    layers = _split(model.layers, pipeline)
    layer = _split(model.query_bytes, attention_degree)
    layer += _split(model.key_value_bytes, min(attention_degree, model.kv_heads))
    layer += model.replicated_bytes
    layer += _split(model.experts * model.expert_bytes(weights_format), expert_degree) if experts is None else experts
    ends = 2 if pipeline == 1 and not model.tied else 1
    return layers * layer + ends * _split(model.embedding_bytes, attention_degree) + BF16 * model.hidden


def kv_layer_bytes(model, attention_degree=1, kv_bytes=BF16):
    """Return the bytes of a token in the KV cache of one layer on one device: key and value of the device's KV heads.

    KV heads are split by tensor parallelism, and replicated if there are more devices than heads. 2,048 bytes for all 8
    heads of gpt-oss in bf16.
    """
    return 2 * _split(model.kv_heads, attention_degree) * model.head_dim * kv_bytes


def activation_bytes(model, platform, max_seqs, batched, split=1):
    """Return the approximate peak of memory on one device that is neither weights nor KV cache.

    It consists of a constant of the runtime; the logits of ``max_seqs`` sequences while a token is sampled; and the
    experts' inputs and outputs for ``batched`` tokens, of which a device computes its share ``1/split``. For one H100,
    1024 sequences and 8192 tokens the result is 7.7 GiB; the measured value was 7.45 GiB. An estimate: warnings may
    depend on it, refusals do not.
    """
    logits = LOGITS_COPIES * max_seqs * model.vocab * 4
    experts = batched * model.top_k * (2 * model.intermediate + model.hidden) * BF16 / split
    return PLATFORMS[platform].runtime_bytes + logits + experts


def kv_budget(server, weights, activations=0.0):
    """Return the bytes of the engine's KV cache on one device; below 0 if not even the weights fit.

    utilization: gpu-memory-utilization x memory - weights - peak activations.
    free: kv_cache_free_gpu_memory_fraction of the free memory after weights and profiled activations.
    capped: gpu-memory-utilization x memory - weights, at most cap x gpu-memory-utilization x memory.
    contiguous: the remaining memory, in which max-num-seqs x max-model-len is allocated as one block.
    bytes: as given (--kv-cache-memory-bytes).
    """
    if server.budget == "bytes":
        return server.cache_bytes
    free, share = server.memory - weights - activations, server.fraction * server.memory
    if server.budget == "utilization":
        return share - weights - activations
    if server.budget == "capped":
        return min(share - weights, server.cap * share)
    return server.fraction * free if server.budget == "free" and free > 0 else free


def certain_weights(server):
    """Return the bytes of the tensors on one device; see weights_bytes."""
    degree = server.tensor * server.data
    return weights_bytes(server.model, server.weights_format, server.attention_degree, degree, server.pipeline)


def expected_weights(server):
    """Return certain_weights in the engine's layout, and the draft model (split like attention)."""
    platform = PLATFORMS[server.platform]
    model, degree, experts = platform.layout(server.model), server.tensor * server.data, None
    aligned = server.aligned and server.weights_format in platform.resident
    if aligned:
        slices = 1 if server.whole_experts else degree
        widths = zip((model.hidden, _split(model.intermediate, slices)), server.aligned)
        hidden, intermediate = (_split(width, multiple) * multiple for width, multiple in widths)
        padded = dataclasses.replace(model, hidden=hidden, intermediate=intermediate)
        experts = _split(model.experts, degree // slices) * padded.expert_bytes(server.weights_format)
    weights = weights_bytes(model, server.weights_format, server.attention_degree, degree, server.pipeline, experts)
    weights *= 1 if aligned else platform.resident.get(server.weights_format, 1)
    return weights + (model.draft_bytes() / server.attention_degree if server.draft else 0)


def request_of(server, length, certain=False, steady=False):
    """Return the bytes of KV cache of a request of ``length`` tokens on one device.

    By default, the bytes that the engine reserves at the start of the request, which include the tokens of a step.
    steady: the bytes of a request that generates, which limit the number of concurrent requests. certain: the minimum.

    Full layers cache the complete sequence, and so do sliding layers if the engine does not distinguish them. Windowed
    sliding layers cache the window and the tokens of the current step, in blocks, and one more block because a window
    does not start at the edge of a block. 4.54 GiB for gpt-oss-120b, 131072 tokens, 1024 batched. With a bucket,
    sliding layers cache that number of tokens, whatever the length of the request.
    """
    model, further = server.model, 0
    if server.draft and not certain:  # one additional layer, which attends to everything
        if server.windowed and not server.bucket and model.sliding_layers:
            # both kinds of layers share a pool, so the smaller kind is padded to the number of layers of the larger
            model = dataclasses.replace(model, layers=model.layers + 2)
        else:
            further = length * server.layer_bytes
    step, blocks = 1 if certain or steady else server.batched, _split(length, BLOCK)
    sliding = blocks
    if server.bucket:
        sliding = server.bucket // BLOCK
    elif certain or server.windowed:
        sliding = min(blocks, _split(min(model.window - 1 + step, length), BLOCK) + 1)
    full, windows = (_split(layers, server.pipeline) for layers in (model.full_layers, model.sliding_layers))
    return further + BLOCK * (full * blocks + windows * sliding) * server.layer_bytes


# Weights and activations are estimates, which may be wrong by this share of a device's memory.
SPARE = 0.02
UNCHECKED = "the formulas have not been compared with models of this model_type; the weights may be larger."
SIZES = ("memory_gib", "weights_gib", "kv_gib")  # of one device


def count(number, towards=math.floor):
    """Return a number of tokens for people: 1.9 M, 118 K, 4096.
    It is rounded down by default, required numbers up (math.ceil)."""
    if number >= 10**6:
        return "%.1f M" % (towards(number / 10**5) / 10)
    if number >= 10**4:
        return "%d K" % towards(number / 1000)
    return "%d" % number


def gib(number):
    """Return bytes for people: 64.4 GiB, 64 MiB."""
    return "%.1f GiB" % (number / GIB) if number >= GIB else "%d MiB" % round(number / 2**20)


def _remedy(server):
    sequences, length, fraction, tensor = server.knobs
    raised = [tensor] if PLATFORMS[server.platform].splits else []
    # a larger share of the free memory gains little and leads to out-of-memory errors
    raised += [fraction] if fraction and server.budget != "free" else []
    more = ", or raise %s" % " or ".join(raised) if raised else ", or use a smaller checkpoint"
    more += "; against out-of-memory errors lower %s to 0.8 or 0.7" % fraction if server.budget == "free" else ""
    return "Lower %s or %s%s." % (sequences, length, more)


def _refusal(server, weights):
    """Return the reason why this server cannot run, as a sentence, or None. It depends on certain numbers only."""
    if server.memory is not None:
        limit = server.memory * (server.fraction if server.budget in ("utilization", "capped") else 1)
        limit -= server.cache_bytes if server.budget == "bytes" else 0
        if weights > limit:
            sizes = (gib(weights), server.weights_format, server.knobs[3], server.tensor, gib(max(0, limit)))
            words = "the weights need %s of each device (%s, %s %d), but %s of its %s are available. %s"
            return words % (*sizes, gib(server.memory), _remedy(server))
    budget = kv_budget(dataclasses.replace(server, cap=1.0), weights)  # the cap is a default of some versions
    needs = _needs(server, certain=True)
    return _too_large(server, needs, budget, weights) if needs > budget and needs else None


def _needs(server, certain=False):
    """Return the minimum bytes of the KV cache: of all requests if they are allocated as one block, else of one.
    0 if the engine chooses their length."""
    if server.max_len is None:
        return 0
    return (server.max_seqs if server.budget == "contiguous" else 1) * request_of(server, server.max_len, certain)


def _too_large(server, needs, budget, weights):
    sequences, length = server.knobs[:2]
    what = "one request of %s %d needs" % (length, server.max_len)
    if server.budget == "contiguous":
        what = "%s %d x %s %d need" % (sequences, server.max_seqs, length, server.max_len)
    words = "%s %s of KV cache on each device, but %s are left with weights of %s. %s"
    return words % (what, gib(needs), gib(max(0, budget)), gib(weights), _remedy(server))


@functools.lru_cache(maxsize=1024)
def assess(server):
    """Return the verdict on a Server. Equal servers are computed once, so the result must not be changed.

    The result is {"ok", "verdict", "text", "warnings", "refusal", "memory_gib", "weights_gib", "kv_gib", "tokens",
    "requests", "sequence", "max_seqs", "max_len", "ranks"}. verdict: "ok", "warning" or "error" (with the reason in
    refusal); ok: whether it is "ok". Sizes are of one device, in GiB; tokens and requests (of ``sequence`` tokens) are
    of one rank.
    """
    weights = expected_weights(server)
    activations = server.buffer_tokens * server.model.layers * server.layer_bytes + activation_bytes(
        server.model, server.platform, server.max_seqs, server.batched, server.attention_degree
    )
    budget = kv_budget(server, weights, activations)
    each = request_of(server, server.sequence, steady=True)
    requests, tokens = max(0, int(budget // each)), max(0, int(budget * server.sequence / each))
    if server.budget == "contiguous" and server.max_len:
        requests, tokens = min(requests, server.max_seqs), min(tokens, server.max_seqs * server.max_len)
    refusal = _refusal(server, certain_weights(server))
    warning = None if refusal else _warning(server, weights, activations, budget, tokens, requests)
    warnings = list(filter(None, (warning, None if server.model.known else UNCHECKED)))
    verdict = "error" if refusal else "warning" if warnings else "ok"
    return {
        "ok": verdict == "ok",
        "verdict": verdict,
        "text": _text(server, tokens, requests),
        "warnings": warnings,
        "refusal": refusal,
        "memory_gib": None if server.memory is None else round(server.memory / GIB, 4),
        "weights_gib": round(weights / GIB, 4),
        "kv_gib": round(max(0, budget) / GIB, 4),
        "tokens": tokens,
        "requests": requests,
        **{key: getattr(server, key) for key in ("sequence", "max_seqs", "max_len", "ranks")},
    }


def _text(server, tokens, requests):
    fits = "fits %s tokens%s" % (count(tokens), " on each of %d ranks" % server.ranks if server.ranks > 1 else "")
    if server.max_seqs_given:
        return "%s; %d x %d needs %s" % (fits, server.max_seqs, server.sequence, _wanted(server))
    return "%s, %d requests of %d" % (fits, requests, server.sequence)


def _wanted(server):
    return count(server.max_seqs * server.sequence, math.ceil)


def _warning(server, weights, activations, budget, tokens, requests):
    """Return a sentence if the server may run out of memory or make requests wait, or None."""
    if budget <= 0:
        words = "weights (%s) and activations (about %s) leave no room for a KV cache in the %s of a device. %s"
        return words % (gib(weights), gib(activations), gib(server.memory), _remedy(server))
    needs = _needs(server)
    if needs > budget:
        return _too_large(server, needs, budget, weights)
    if server.max_seqs_given and requests < server.max_seqs:
        sizes = (server.knobs[0], server.max_seqs, server.sequence, _wanted(server), count(tokens), requests)
        words = "%s %d x %d tokens need %s, but about %s fit: %d requests run at a time, others wait. %s"
        return words % (*sizes, _remedy(server))
    if server.memory is None:
        return None
    spare = budget - (needs or request_of(server, server.sequence))
    if server.budget == "free":  # the rest of the free memory is for peaks
        spare = min(spare, budget / server.fraction - budget)
    elif server.budget == "bytes":
        spare = server.memory - weights - activations - budget
    words = (
        "weights (%s), activations (about %s) and KV cache fit with %s to spare, less than %g %% of a device's %s, "
        "but these sizes are estimates. %s"
    )
    sizes = (gib(weights), gib(activations), gib(max(0, spare)), 100 * SPARE, gib(server.memory))
    return words % (*sizes, _remedy(server)) if spare < SPARE * server.memory else None


def server_of(entry, deployment, hardware, on_host=1):
    """Return the Server of a plan entry with devices. Raises Unreadable, with the reason.

    deployment: the resolved recipe. hardware: Hardware. on_host: all servers of this host.
    """
    group = group_of(entry, deployment)
    own, backend = (group.get(key) or deployment.get(key) for key in ("model", "backend"))
    model = model_of({"model": own})
    if model is None:
        where = "" if family_of({"model": own}).models else "; put its config.json into models/ next to the recipe"
        raise Unreadable("the dimensions of %s are not known%s" % (own["repo"], where))
    platform = PLATFORMS[entry["platform"]]
    settings = ENGINES[entry["engine"]].running(backend).memory(entry, hardware, model)
    settings = platform.memory(settings, {**entry, "engine": backend or entry["engine"]}, hardware, model)
    if not hardware.memory_gib and settings["budget"] != "bytes":
        raise Unreadable("the memory of its devices is not declared (fleet_hardware.memory_gib)")
    longest = settings["max_len"] or model.max_len
    lengths = [load_of(deployment).get(key) for key in ("input_tokens", "output_tokens")]
    sequence = sum(lengths) if all(isinstance(length, int) for length in lengths) else SEQUENCE
    return Server(
        model=model,
        weights_format=platform.weights_format(own["format"], hardware),
        platform=entry["platform"],
        memory=platform.rank_memory(hardware, on_host) if hardware.memory_gib else None,
        draft=bool(own.get("draft")),
        sequence=max(1, min(sequence, longest)),
        **settings,
    )


def check(entries, deployment, hardware):
    """Return the capacity of a host's servers: [{"server", …}], assess() for each entry that has devices.

    A host that supports fewer concurrent requests than expected gets a warning for each server that answers.
    """
    load = load_of(deployment)
    alone = load["scope"] == "server" and not any(entry["role"] == "frontend" for entry in entries)
    entries = [entry for entry in entries if entry["devices"]]
    result, answering = [], []
    for entry in entries:
        server = None
        try:
            server = server_of(entry, deployment, hardware, len(entries))
            found = assess(server)
        except Unreadable as error:
            found = {"ok": None, "verdict": "not checked", "text": str(error), "warnings": [], "refusal": None}
        result.append({"server": entry["name"], **found})
        if entry["role"] != "prefill":  # forwards requests, so its limit does not matter
            answering.append((server, result[-1]))
    groups = [[one] for one in answering] if alone else [answering]
    for group in groups if load["scope"] != "fleet" and not deployment.get("workers_elsewhere") else ():
        expected = load["concurrency"] and load["concurrency"] * (len(group) if load["per_server"] else 1)
        warning = _waiting(expected, group)
        for _server, item in group if warning else ():
            item["warnings"] = [*item["warnings"], warning]
            if item["refusal"] is None:
                item.update(ok=False, verdict="warning")
    return result


def group_of(entry, deployment):
    """Return the group of a server, {} if the recipe does not contain it."""
    name = entry["name"].rpartition("-")[0]
    return next((one for one in deployment.get("servers", ()) if group_name(one) == name), {})


def refusals(found):
    """Return the refusals in check()'s result as sentences; "" if all servers can run."""
    refused = by_text((item["refusal"], item["server"]) for item in found if item["refusal"])
    return " ".join("%s: %s" % (servers_text(names), sentence) for sentence, names in refused.items())


def overruled(found):
    """Return check()'s result with refusals as warnings, because the user overrides them (fleet_capacity: warn)."""
    for item in found:
        if item["refusal"]:
            words = item["refusal"] + " Tried all the same, as fleet_capacity is warn."
            item.update(warnings=[*item["warnings"], words], verdict="warning", refusal=None)
    return found


def _waiting(expected, group):
    """Return a sentence if fewer requests run at once than are expected, or None.

    group: [(server, its item)] of all servers that answer on a host. The result is None if the limits of a server are
    not known.
    """
    if not expected or not group or any(server is None for server, _item in group):
        return None
    taken = 0
    for server, item in group:
        held = None if server.max_seqs_given else item["requests"]  # a given number was compared with the cache
        taken += server.ranks * min(server.max_seqs, server.max_seqs if held is None else held)
    first = group[0][0]
    words = (
        "%d requests of %d tokens at once are expected, but %d run at a time; the others wait. Raise %s, or lower the "
        "benchmark's concurrency."
    )
    knobs = " or ".join(filter(None, (first.knobs[0], *first.knobs[2:])))
    return words % (expected, first.sequence, taken, knobs) if expected > taken else None


def servers_text(names):
    """Return names of servers for people: "server-0", "server-0 to server-7", "server-0, server-2"."""
    bases = {name.rpartition("-")[0] for name in names}
    numbers = [int(name.rpartition("-")[2]) for name in names]
    if len(names) > 2 and len(bases) == 1 and numbers == list(range(numbers[0], numbers[0] + len(names))):
        return "%s to %s" % (names[0], names[-1])
    return ", ".join(names)


def grouped(capacity):
    """Return ``capacity`` of a host with equal servers merged: [(names, item)], in order."""
    found = by_text((repr({**item, "server": None}), item) for item in capacity)
    return [([one["server"] for one in items], items[0]) for items in found.values()]
