# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import math

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import draft_heads
from ansible_collections.inference.fleet.tests.unit.node_helpers import safetensors

CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 32, "vocab_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48, "num_hidden_layers": 1,
    "draft_vocab_size": 96, "attention_bias": False,
}  # fmt: skip
OUTER = ("fc.weight", "norm.weight", "lm_head.weight", "embed_tokens.weight")
QUERY = "midlayer.self_attn.q_proj.weight"


def names(prefix="midlayer."):
    return {(name if name in OUTER else prefix + name): shape for name, shape in draft_heads.shapes(CONFIG).items()}


def write(folder, tensors=None, shards=1, **changes):
    """A draft model: its configuration with the changes (None removes a key) and its tensors in that many files."""
    folder.mkdir(exist_ok=True, parents=True)
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    items = list((names() if tensors is None else tensors).items())
    files = {"model.safetensors": items}
    if shards > 1:
        files = {"model-%05d-of-%05d.safetensors" % (one + 1, shards): items[one::shards] for one in range(shards)}
        weight_map = {name: file for file, part in files.items() for name, _shape in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for file, part in files.items():
        content = {name: ("BF16", shape, bytes(2 * math.prod(shape))) for name, shape in part}
        (folder / file).write_bytes(safetensors(content))
    return str(folder)


def error_of(draft):
    with pytest.raises(FleetError) as caught:
        draft_heads.check(draft)
    return caught.value


def refused(draft):
    """The faults of a draft."""
    error = error_of(draft)
    assert error.code == "neuron.draft-unsupported"
    return error.values[1]


@pytest.mark.parametrize("prefix", ["midlayer.", "layers.0.", "model.layers.0.", "model.midlayer."])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_head_that_runs(tmp_path, prefix, shards):
    draft_heads.check(write(tmp_path / "draft", names(prefix), shards))
    draft_heads.check(write(tmp_path, draft_vocab_size=None, num_hidden_layers=None, attention_bias=None))
    draft_heads.check(write(tmp_path, {**names(), "fc.bias": [32]}, fc_bias=True))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_type": "qwen3"}, "model_type is qwen3, not llama"),
        ({"architectures": ["Eagle3Speculator"]}, "architectures is ['Eagle3Speculator'], not a LlamaForCausalLM"),
        ({"architectures": None}, "architectures is None, not a LlamaForCausalLM"),
        ({"hidden_size": "32"}, "hidden_size is 32, no positive number"),
        ({"head_dim": 0}, "head_dim is 0, no positive number"),
        ({"num_local_experts": 8}, "num_local_experts is 8; the layer must be dense"),
        ({"attention_bias": True}, "attention_bias is true, Llama 3 has none"),
        (
            {"draft_vocab_size": 32},
            "draft_vocab_size is 32 of a vocab_size of 96; the head must draft from the complete vocabulary",
        ),
        ({"model_type": "x", "num_hidden_layers": 4}, "model_type is x, not llama; num_hidden_layers is 4, not 1"),
    ],
)
def test_configurations_that_are_refused(tmp_path, changes, fault):
    assert refused(write(tmp_path, **changes)) == fault


@pytest.mark.parametrize(
    ("tensor", "shape", "fault"),
    [
        ("d2t", [32], "d2t is unknown to it"),  # of another vocabulary
        ("layers.1.hidden_norm.weight", [32], "layers.1.hidden_norm.weight is unknown to it"),
        ("layers.0.hidden_norm.weight", [32], "midlayer.hidden_norm.weight is unknown to it"),
        ("midlayer.fc.weight", [32, 96], "midlayer.fc.weight is unknown to it"),
        ("fc.bias", [32], "fc.bias is unknown to it"),
        ("fc.weight", [32, 64], "fc.weight has the shape [32, 64], expected [32, 96]"),
        (QUERY, [64, 32], QUERY + " has the shape [64, 32], expected [64, 64]"),
    ],
)
def test_layers_of_another_architecture(tmp_path, tensor, shape, fault):
    assert refused(write(tmp_path, {**names(), tensor: shape})) == "layer " + fault


@pytest.mark.parametrize("maps", [["d2t"], ["t2d"], ["d2t", "t2d"]])
def test_a_head_with_the_whole_vocabulary_needs_no_maps(tmp_path, maps):
    tensors = {**names(), **{name: [96] for name in maps}}
    assert error_of(write(tmp_path, tensors)).message.endswith(draft_heads.WITHOUT_MAPS)
    assert error_of(write(tmp_path, {**tensors, "x": [1]})).message.endswith(draft_heads.INSTEAD)


def test_several_faults_are_named_and_many_are_cut(tmp_path):
    moved = {"midlayer.fc.weight" if name == "fc.weight" else name: shape for name, shape in names().items()}
    text = "layer fc.weight is missing; layer midlayer.fc.weight is unknown to it"
    assert refused(write(tmp_path, moved)) == text
    faults = refused(write(tmp_path, {"model.layers.%d.x" % number: [1] for number in range(40)}))
    assert faults.count("is missing") == 6 and faults.endswith("; and 48 layers more")


def test_a_damaged_file(tmp_path):
    draft, shard = write(tmp_path), tmp_path / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert error_of(draft).code == "checkpoint.damaged"
