# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner's interface of a family of models, and the dimensions of a checkpoint by its config.json.

docs/using/capacity.md has the formulas, and compares them with published sizes.
"""

from __future__ import annotations

import dataclasses
import types

from ...module_utils.fleet_node.model.formats import format_of

BF16 = 2  # bytes
# Bytes of a value of a linear layer, with its scales. mxfp4 and nvfp4: 32 or 16 values of 4 bits share one scale of 8
# bits. fp8: the scales of channels or blocks are not counted. awq, gptq: see _value_bytes().
VALUE_BYTES = {"bf16": BF16, "fp8": 1, "mxfp4": 17 / 32, "nvfp4": 9 / 16}
GROUPED = ("awq", "gptq")
GROUPS = ("bits", "group_size")  # in the quantization_config of those
FORMATS = (*VALUE_BYTES, *GROUPED)
# Keys of a config.json that a plan depends on.
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
         "max_position_embeddings")  # fmt: skip
KEYS = (
    "model_type", *SIZES, "num_key_value_heads", "head_dim", "tie_word_embeddings", "attention_bias", "sliding_window",
    "use_sliding_window", "sliding_window_pattern", "layer_types", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim", "n_routed_experts", "num_experts", "num_local_experts", "num_experts_per_tok",
    "moe_intermediate_size", "n_shared_experts", "shared_expert_intermediate_size", "first_k_dense_replace",
    "mlp_only_layers", "decoder_sparse_step", "quantization_config",
)  # fmt: skip
# Types of the keys that are no whole numbers.
TYPES = {"model_type": str, "layer_types": list, "mlp_only_layers": list, **dict.fromkeys(
    ("tie_word_embeddings", "attention_bias", "use_sliding_window", "quantization_config"), object)}  # fmt: skip
WORDS = {int: "a whole number", str: "a string", list: "a list"}
# Types of models whose feed-forward has three matrices (gate, up, down). Others are counted with two, so that a size
# is never too large.
GATED = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3", "olmo3", "deepseek_v2",
         "deepseek_v3", "glm4_moe", "gemma3_text")  # fmt: skip
SLIDING, FULL = "sliding_attention", "full_attention"


class Sizes:
    """Sizes that are computed from a model's hidden, vocab, heads, kv_heads and head_dim."""

    known = True  # whether its formulas have been compared with published checkpoints
    tied = False  # whether lm_head is missing, or is the embedding

    @property
    def embedding_bytes(self):
        """Bytes of embed_tokens. lm_head has the same size, separately unless it is tied."""
        return self.vocab * self.hidden * BF16

    def draft_bytes(self):
        """Approximate bytes of an EAGLE3 head of this model:
        one dense Llama layer, with a separate embedding and lm_head, bf16.

        Published heads differ in the width of their feed-forward and in the size of their vocabulary. This estimate
        assumes a feed-forward of six times the hidden size and the complete vocabulary. Layout: fc, hidden_norm,
        input_layernorm, attention over [embedding, hidden], mlp, lm_head, embed_tokens (NxD Inference, EAGLE3).
        """
        width, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.hidden * (width + 2 * kv) + width * self.hidden
        feed_forward = 3 * self.hidden * 6 * self.hidden
        return 2 * self.embedding_bytes + BF16 * (3 * self.hidden * self.hidden + attention + feed_forward)


@dataclasses.dataclass(frozen=True)
class Dimensions(Sizes):
    """A checkpoint by its config.json. Bytes of layers are means of all layers, because some have no experts.

    kv_heads and head_dim are those of the KV cache: multi-head latent attention caches one vector for all heads, which
    counts as a key and a value of half its width. query_bytes: what tensor parallelism splits by heads or columns.
    """

    layers: int
    hidden: int
    heads: int
    vocab: int
    max_len: int
    intermediate: int
    kv_heads: int
    head_dim: float
    query_bytes: float
    key_value_bytes: float
    replicated_bytes: float
    experts: int = 0
    top_k: int = 1
    expert_layer_bytes: float = 0
    sliding_layers: int = 0
    window: int = 0
    tied: bool = False
    known: bool = True

    @property
    def full_layers(self):
        """Number of layers that attend to the complete sequence."""
        return self.layers - self.sliding_layers

    def expert_bytes(self, weights_format):
        """Bytes of an expert of a layer."""
        return self.expert_layer_bytes


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models.

    name: in recipes. label: in messages. parsers: {"tool" or "reasoning": {engine: names}}, where names are one name,
    or {beginning of the checkpoint's model_type: names}. formats: of weights. reasoning_fields: names of the reasoning
    in answers, the first by default; without a reasoning parser there is none. models: {repository: dimensions} of
    those that need no config.json. model_types: of its checkpoints, () for all that no other family has. headless:
    whether engines drop lm_head. adapters: whether its servers load LoRA adapters.
    """

    name: str
    label: str
    parsers: types.MappingProxyType
    formats: tuple = FORMATS
    effort_parameters: tuple = ()
    reasoning_fields: tuple = ()
    models: types.MappingProxyType = dataclasses.field(default_factory=dict)
    model_types: tuple = ()
    headless: bool = False
    adapters: bool = True

    def has(self, repo):
        """Return whether a repository is of this family by its name."""
        return repo in self.models

    def fitting(self, kind, engine, model):
        """Return the parsers of an engine for a recipe's model, () if there are none, None if they are not known."""
        names = self.parsers[kind].get(engine, ())
        if isinstance(names, str):
            return (names,)
        if not isinstance(names, dict):
            return tuple(names)
        model_type = (model.get("config") or {}).get("model_type")
        found = [one for one in names if (model_type or "").startswith(one)]
        return names[max(found, key=len)] if found else None

    def problem(self, model, config):
        """Return what contradicts a recipe's model in its config.json, as a clause, or None."""
        kind = config.get("model_type")
        if self.model_types and kind not in self.model_types:
            return "model_type is %s, and the family %s has %s" % (kind, self.name, ", ".join(self.model_types))
        try:
            found = format_of(config)
            dimensions(read(config), found)
        except ValueError as error:
            return str(error)
        if found != model["format"]:
            return "the weights are %s, and model.format is %s" % (found, model["format"])
        return None


def read(config):
    """Return the keys of a config.json that a plan depends on. Models with several parts describe their language model
    in text_config."""
    inner = config.get("text_config")
    config = {**config, **inner, "model_type": inner.get("model_type")} if isinstance(inner, dict) else config
    return {key: config.get(key) for key in KEYS}


def dimensions(config, weights_format, headless=False):
    """Return the Dimensions of a checkpoint. config: of read(). Raises ValueError, with the key that is not usable."""
    for key in SIZES:
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError("%s is %s; allowed: a positive integer" % (key, value))
    quantization = config.get("quantization_config")
    inner = [(key, quantization.get(key)) for key in GROUPS] if isinstance(quantization, dict) else []
    for key, value in (*config.items(), *inner):
        kind = TYPES.get(key, int)
        if value is not None and not isinstance(value, kind):
            raise ValueError("%s is %r; allowed: %s" % (key, value, WORDS[kind]))

    def get(key):
        return config.get(key) or 0

    value = _value_bytes(config, weights_format)
    hidden, layers, heads = (config[key] for key in SIZES[:3])
    kv_heads, head_dim = get("num_key_value_heads") or heads, get("head_dim") or hidden // heads
    query, key_value = 2 * heads * head_dim * hidden, 2 * kv_heads * head_dim * hidden
    copied, small = 0, 2 * hidden  # matrices, and values in bf16, that each device has completely: two norms
    if get("kv_lora_rank"):
        rank, rope, nope, wide = (
            get(key) for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        )
        query = heads * ((nope + rope) * (get("q_lora_rank") or hidden) + wide * hidden + rank * (nope + wide))
        copied, key_value = hidden * (rank + rope + get("q_lora_rank")), 0
        small += rank + get("q_lora_rank")
        kv_heads, head_dim = 1, (rank + rope) / 2
    elif get("model_type") in ("qwen3", "qwen3_moe"):
        small += 2 * head_dim  # norms of queries and keys
    biases = 0
    if get("attention_bias") or str(config.get("model_type")).startswith("qwen2"):
        biases = (heads + 2 * kv_heads) * head_dim
    matrices = 3 if config.get("model_type") in GATED else 2
    experts = get("n_routed_experts") or get("num_experts") or get("num_local_experts")
    dense = get("first_k_dense_replace") or len(config.get("mlp_only_layers") or ()) if experts else layers
    if get("decoder_sparse_step") > 1:
        raise ValueError("decoder_sparse_step is %s; allowed: 1" % config["decoder_sparse_step"])
    width = get("moe_intermediate_size") or config["intermediate_size"]
    shared = get("shared_expert_intermediate_size") or get("n_shared_experts") * width
    split = dense * matrices * hidden * config["intermediate_size"]
    split += (layers - dense) * matrices * hidden * shared
    sliding = _sliding_layers(config, layers)
    return Dimensions(
        layers, hidden, heads, config["vocab_size"], config["max_position_embeddings"],
        width if experts else config["intermediate_size"], kv_heads, head_dim,
        value * (query + split / layers) + BF16 * biases,
        value * key_value,
        value * copied + BF16 * (small + experts * hidden * (layers - dense) / layers),
        experts, get("num_experts_per_tok") or 1, value * matrices * hidden * width * (layers - dense) / layers,
        sliding, get("sliding_window") if sliding else 0,
        bool(config.get("tie_word_embeddings")) or headless, config.get("model_type") in GATED,
    )  # fmt: skip


def _value_bytes(config, weights_format):
    """Return the bytes of a value in a linear layer. awq and gptq have groups of values with a scale of 16 bits and a
    zero of as many bits as a value."""
    if weights_format not in GROUPED:
        return VALUE_BYTES[weights_format]
    quantization = config.get("quantization_config")
    given = quantization if isinstance(quantization, dict) else {}
    bits, group = (given.get(key) or usual for key, usual in zip(GROUPS, (4, 128)))
    return (bits * group + 16 + bits) / 8 / group if group > 0 else bits / 8


def _sliding_layers(config, layers):
    """Return the number of layers that attend to a window. Raises ValueError for further kinds of attention."""
    kinds = config.get("layer_types") or ()
    other = sorted({str(one) for one in kinds} - {SLIDING, FULL})
    if other:
        raise ValueError("layer_types contains %s; allowed: %s, %s" % (", ".join(other), FULL, SLIDING))
    if kinds:
        return list(kinds).count(SLIDING)
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return 0
    pattern = config.get("sliding_window_pattern")
    return layers - layers // pattern if pattern else layers
