# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What makes a checkpoint directory whole."""

from __future__ import annotations

import json
import shutil

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import checkpoints
from ansible_collections.inference.fleet.tests.unit.node_helpers import build_checkpoint, safetensors

LAST = "model-00002-of-00002.safetensors"


@pytest.fixture
def model(tmp_path):
    return build_checkpoint(tmp_path / "model")


def failure(path):
    with pytest.raises(FleetError) as error:
        checkpoints.inspect(str(path))
    return error.value.message


def edit(path, **changes):
    value = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: item for key, item in value.items() if item is not None}))


def test_a_whole_one(model):
    found = checkpoints.inspect(str(model))
    shards = ["model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors", LAST]
    assert found == {
        "model_type": "gpt_oss",
        "format": "mxfp4",
        "hidden_size": 16,
        "vocab_size": 100,
        "num_layers": 3,
        "shards": shards,
        "bytes": sum((model / name).stat().st_size for name in shards),
    }


def test_as_openai_names_its_shards(tmp_path):
    """15 files, the last of which is called 00014-of-00014."""
    model = build_checkpoint(tmp_path / "model", shards=15)
    assert len(checkpoints.inspect(str(model))["shards"]) == 15
    (model / "model-00000-of-00014.safetensors").unlink()
    assert failure(model) == (
        "The checkpoint in %s is incomplete, missing: model-00000-of-00014.safetensors. Fetch or copy it again." % model
    )


def test_without_quantization_it_is_bf16(tmp_path):
    model = build_checkpoint(tmp_path / "model", quantization_config=None)
    assert checkpoints.inspect(str(model))["format"] == "bf16"
    with pytest.raises(FleetError) as error:
        checkpoints.check_format(str(model), "bf16", "mxfp4")
    assert error.value.message == (
        "The checkpoint in %s is in format bf16, the recipe needs mxfp4. Serve another checkpoint or choose a recipe "
        "that takes this one." % model
    )
    checkpoints.check_format(str(model), "bf16", None)


def test_one_file_needs_no_index(tmp_path):
    model = build_checkpoint(tmp_path / "model", shards=1)
    (model / "model.safetensors.index.json").unlink()
    (model / "model-00000-of-00000.safetensors").rename(model / "model.safetensors")
    assert checkpoints.inspect(str(model))["shards"] == ["model.safetensors"]


def test_an_index_counts_before_one_file(model):
    (model / "model.safetensors").write_text("")
    assert len(checkpoints.inspect(str(model))["shards"]) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "llama"},
            '{path}/config.json: model_type is "llama", allowed: "gpt_oss". '
            "This collection serves gpt-oss checkpoints only.",
        ),
        (
            {"model_type": None},
            '{path}/config.json: model_type is null, allowed: "gpt_oss". '
            "This collection serves gpt-oss checkpoints only.",
        ),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            '{path}/config.json: quantization_config.quant_method is "fp8", allowed: "mxfp4", '
            "or no quantization_config for bf16.",
        ),
        (
            {"hidden_size": "16"},
            '{path}/config.json: hidden_size is "16", allowed: a positive whole number.',
        ),
        (
            {"num_hidden_layers": None},
            "{path}/config.json: num_hidden_layers is null, allowed: a positive whole number.",
        ),
    ],
)
def test_a_config_that_does_not_fit(model, changes, message):
    edit(model / "config.json", **changes)
    assert failure(model).startswith(message.format(path=model))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "tokenizer.json", LAST])
def test_each_file_is_missed(model, name):
    (model / name).unlink()
    assert failure(model) == (
        "The checkpoint in %s is incomplete, missing: %s. Fetch or copy it again." % (model, name)
    )


def test_all_missing_files_are_named(model):
    for name in ("model-00001-of-00002.safetensors", LAST, "tokenizer.json"):
        (model / name).unlink()
    with pytest.raises(FleetError) as error:
        checkpoints.inspect(str(model))
    assert error.value.details["missing"] == ["model-00001-of-00002.safetensors", LAST, "tokenizer.json"]


def test_no_directory(tmp_path):
    assert failure(tmp_path / "absent") == (
        "There is no checkpoint directory %s/absent on this node; check the path, or mount it." % tmp_path
    )


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_json_file(model, text):
    (model / "config.json").write_text(text)
    assert failure(model).startswith("%s/config.json " % model)


@pytest.mark.parametrize("weight_map", [None, {}, []])
def test_an_index_without_a_map(model, weight_map):
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert failure(model) == "%s/model.safetensors.index.json has no weight_map. Fetch or copy it again." % model


@pytest.mark.parametrize("shard", ["../other.safetensors", "", "..", 3])
def test_an_index_that_points_elsewhere(model, shard):
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    assert "weight_map puts a into %s" % json.dumps(shard) in failure(model)


def cut(path, by):
    content = path.read_bytes()
    path.write_bytes(content[:by])
    return len(content)


def test_a_truncated_shard(model):
    whole = cut(model / LAST, -1)
    assert failure(model) == (
        "The checkpoint in %s is damaged: %s is %d bytes long, its header implies %d. Fetch or copy it again."
        % (model, LAST, whole - 1, whole)
    )
    with (model / LAST).open("ab") as stream:
        stream.write(b"xx")
    assert "is %d bytes long, its header implies %d." % (whole + 1, whole) in failure(model)


def test_a_shard_without_a_header(model):
    first = "model-00000-of-00002.safetensors"
    cut(model / first, 4)
    (model / LAST).write_bytes(b"\xff" * 64)
    assert failure(model) == (
        "The checkpoint in %s is damaged: %s has no safetensors header (4 bytes long); "
        "%s has no safetensors header (64 bytes long). Fetch or copy it again." % (model, first, LAST)
    )


@pytest.mark.parametrize("header", [b"[]", b"{]", b'{"a": {}}', b'{"a": {"data_offsets": [0]}}', b'{"a": 3}'])
def test_a_shard_with_a_broken_header(model, header):
    (model / LAST).write_bytes(len(header).to_bytes(8, "little") + header)
    assert failure(model) == (
        "The checkpoint in %s is damaged: %s has a broken safetensors header. Fetch or copy it again." % (model, LAST)
    )


def test_a_shard_that_is_another_one(model):
    shutil.copy(model / "model-00000-of-00002.safetensors", model / LAST)
    assert failure(model) == (
        "The checkpoint in %s is damaged: %s lacks 1 of the tensors that the index puts there, such as "
        "model.layers.2.weight. Fetch or copy it again." % (model, LAST)
    )


def test_metadata_is_no_tensor(model):
    content = safetensors({"model.layers.2.weight": ("BF16", [50], b"x" * 100)})
    header = json.loads(content[8:-100])
    header["__metadata__"] = {"format": "pt"}
    text = json.dumps(header).encode()
    (model / LAST).write_bytes(len(text).to_bytes(8, "little") + text + b"x" * 100)
    assert checkpoints.inspect(str(model))["num_layers"] == 3
