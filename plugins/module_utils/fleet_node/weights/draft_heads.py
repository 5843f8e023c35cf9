# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether NxD Inference runs an EAGLE3 head, by its config.json and the names and shapes of its tensors.

It supports one architecture: a dense Llama 3 layer that attends to [embedding, hidden state], with its own embedding
and output layer, as wide as the target and with the target's vocabulary. Other drafts fail after the target has been
compiled for half an hour; so they are refused before, without reading their weights.
"""

from __future__ import annotations

import os
import re

from ..errors import FleetError
from . import checkpoints

LAYERS = "fc, hidden_norm, input_layernorm, attention, mlp, lm_head, embed_tokens"
# Trainers call the layer midlayer, others layers.0.
LAYER = re.compile(r"^(?:model\.)?(?:midlayer|layers\.0)\.(.*)$")
SIZES = ("hidden_size", "vocab_size", "num_attention_heads", "intermediate_size")
OTHER_SIZES = ("num_key_value_heads", "head_dim", "draft_vocab_size")
EXPERTS = ("num_local_experts", "num_experts")
SHOWN = 6  # names of layers in a message
# Trainers save these with every head; they translate between the draft's vocabulary and the target's.
VOCABULARY_MAPS = ("d2t", "t2d")
WITHOUT_MAPS = (
    "write its safetensors again without these tensors, which only map each token to itself in a head with the "
    "complete vocabulary."
)
INSTEAD = (
    "serve without a draft: in fleet_override set model.draft and arguments.speculative-config to null and the eagle "
    "keys of additional-config to false."
)


def check(draft, complete=True):
    """Raises FleetError unless NxD Inference runs the EAGLE3 head in the directory `draft`. The message names every
    layer that is at fault. Its sizes are compared with the target's by checkpoints.check_draft_sizes().

    complete: otherwise only config.json is read.
    """
    config = checkpoints.read(draft)
    faults = _config_faults(config)
    if faults:
        raise _unsupported(os.path.join(draft, checkpoints.CONFIG), faults, INSTEAD)
    tensors = checkpoints.tensors(draft) if complete else {}
    faults = _layer_faults(tensors, config) if complete else []
    if faults:
        maps = [name for name in VOCABULARY_MAPS if tensors.get(name, {}).get("shape") == [config["vocab_size"]]]
        raise _unsupported(draft, faults, WITHOUT_MAPS if faults == list(map(_unknown, maps)) else INSTEAD)


def _unsupported(where, faults, remedy):
    return FleetError("neuron.draft-unsupported", where, "; ".join(faults), LAYERS, remedy, details={"faults": faults})


def _config_faults(config):
    names, drafted = config.get("architectures"), config.get("draft_vocab_size")
    names = names if isinstance(names, list) else [names]
    llama = all(isinstance(name, str) and name.startswith("Llama") and "ForCausalLM" in name for name in names)
    sizes = [key for key in SIZES if not _positive(config.get(key))]
    sizes += [key for key in OTHER_SIZES if config.get(key) is not None and not _positive(config[key])]
    rows = [
        (config.get("model_type") != "llama", "model_type is %s, not llama" % config.get("model_type")),
        (not llama, "architectures is %s, not a LlamaForCausalLM" % config.get("architectures")),
        *((True, "%s is %s, no positive number" % (key, config.get(key))) for key in sizes),
        (config.get("num_hidden_layers", 1) != 1, "num_hidden_layers is %s, not 1" % config.get("num_hidden_layers")),
        *((config.get(key), "%s is %s; the layer must be dense" % (key, config.get(key))) for key in EXPERTS),
        *((config.get(key), "%s is true, Llama 3 has none" % key) for key in ("attention_bias", "mlp_bias")),
        (drafted not in (None, config.get("vocab_size")), "draft_vocab_size is %s of a vocab_size of %s; the head must "
         "draft from the complete vocabulary" % (drafted, config.get("vocab_size"))),
    ]  # fmt: skip
    return [words for wrong, words in rows if wrong]


def _positive(value):
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def shapes(config):
    """{name of a layer, without its prefix: shape} that the head of this configuration has."""
    hidden, vocabulary, inner = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    queries, keys = heads * head, (config.get("num_key_value_heads") or heads) * head
    return {
        "fc.weight": [hidden, 3 * hidden],
        "hidden_norm.weight": [hidden],
        "input_layernorm.weight": [hidden],
        "self_attn.q_proj.weight": [queries, 2 * hidden],
        "self_attn.k_proj.weight": [keys, 2 * hidden],
        "self_attn.v_proj.weight": [keys, 2 * hidden],
        "self_attn.o_proj.weight": [hidden, queries],
        "post_attention_layernorm.weight": [hidden],
        "mlp.gate_proj.weight": [inner, hidden],
        "mlp.up_proj.weight": [inner, hidden],
        "mlp.down_proj.weight": [hidden, inner],
        "norm.weight": [hidden],
        "lm_head.weight": [vocabulary, hidden],
        "embed_tokens.weight": [vocabulary, hidden],
    }


def _unknown(name):
    return "layer %s is unknown to it" % name


def _layer_faults(tensors, config):
    expected, found, unknown = shapes(config), {}, []
    outer = ("fc.weight", "norm.weight", "lm_head.weight", "embed_tokens.weight")
    for name, entry in sorted(tensors.items()):
        inside = LAYER.match(name)
        short = inside.group(1) if inside else name[6:] if name.startswith("model.") else name
        if short in expected and bool(inside) != (short in outer) and short not in found:
            found[short] = (name, entry.get("shape"))
        elif short != "fc.bias" or not config.get("fc_bias"):
            unknown.append(name)
    faults = ["layer %s is missing" % name for name in sorted(set(expected) - set(found))]
    faults += [
        "layer %s has the shape %s, expected %s" % (name, shape, expected[short])
        for short, (name, shape) in sorted(found.items())
        if shape != expected[short]
    ]
    faults += map(_unknown, unknown)
    if len(faults) > SHOWN:
        faults = [*faults[:SHOWN], "and %d layers more" % (len(faults) - SHOWN)]
    return faults
