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
    """(code, details) of the error."""
    with pytest.raises(FleetError) as error:
        checkpoints.inspect(str(path))
    return error.value.code, error.value.details.get("missing") or error.value.details.get("damage")


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
    assert failure(model) == ("checkpoint.incomplete", ["model-00000-of-00014.safetensors"])


def test_without_quantization_it_is_bf16(tmp_path):
    model = build_checkpoint(tmp_path / "model", quantization_config=None)
    assert checkpoints.inspect(str(model))["format"] == "bf16"
    with pytest.raises(FleetError) as error:
        checkpoints.check_format(str(model), "bf16", "mxfp4")
    assert error.value.code == "checkpoint.does-not-fit"
    checkpoints.check_format(str(model), "bf16", None)


def test_models_of_other_families(tmp_path):
    parts = {
        "model_type": "qwen3_vl",
        "text_config": {"hidden_size": 32},
        "quantization_config": {"quant_method": "fp8"},
    }
    model = str(build_checkpoint(tmp_path / "model", **parts))
    found = checkpoints.inspect(model, "chat")
    assert (found["model_type"], found["format"], found["hidden_size"]) == ("qwen3_vl", "fp8", 32)
    own = str(build_checkpoint(tmp_path / "own"))
    for path, family in ((model, "gpt_oss"), (own, "chat")):
        with pytest.raises(FleetError) as error:
            checkpoints.inspect(path, family)
        assert error.value.code == "checkpoint.does-not-fit"


def test_one_file_needs_no_index(tmp_path):
    model = build_checkpoint(tmp_path / "model", shards=1)
    (model / "model.safetensors.index.json").unlink()
    (model / "model-00000-of-00000.safetensors").rename(model / "model.safetensors")
    assert checkpoints.inspect(str(model))["shards"] == ["model.safetensors"]


def test_an_index_counts_before_one_file(model):
    (model / "model.safetensors").write_text("")
    assert len(checkpoints.inspect(str(model))["shards"]) == 3


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model_type": "llama"}, "checkpoint.does-not-fit"),
        ({"model_type": None}, "checkpoint.does-not-fit"),
        ({"quantization_config": {"quant_method": "fp8"}}, "checkpoint.does-not-fit"),
        ({"hidden_size": "16"}, "checkpoint.damaged"),
        ({"num_hidden_layers": None}, "checkpoint.damaged"),
    ],
)
def test_a_config_that_does_not_fit(model, changes, code):
    edit(model / "config.json", **changes)
    assert failure(model)[0] == code


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "tokenizer.json", LAST])
def test_each_file_is_missed(model, name):
    (model / name).unlink()
    assert failure(model) == ("checkpoint.incomplete", [name])


def test_all_missing_files_are_named(model):
    names = ["model-00001-of-00002.safetensors", LAST, "tokenizer.json"]
    for name in names:
        (model / name).unlink()
    assert failure(model) == ("checkpoint.incomplete", names)


def test_no_directory(tmp_path):
    assert failure(tmp_path / "absent")[0] == "checkpoint.incomplete"


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_json_file(model, text):
    (model / "config.json").write_text(text)
    assert failure(model)[0] == "checkpoint.damaged"


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": "../other.safetensors"}, {"a": ""}, {"a": ".."}, {"a": 3}])
def test_an_index_that_cannot_be_used(model, weight_map):
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert failure(model)[0] == "checkpoint.damaged"


def cut(path, by):
    content = path.read_bytes()
    path.write_bytes(content[:by])
    return len(content)


def test_a_shard_of_another_length(model):
    whole = cut(model / LAST, -1)
    assert failure(model)[1] == ["%s is %d bytes long, its header implies %d" % (LAST, whole - 1, whole)]
    with (model / LAST).open("ab") as stream:
        stream.write(b"xx")
    assert failure(model)[1] == ["%s is %d bytes long, its header implies %d" % (LAST, whole + 1, whole)]


def test_shards_without_a_header(model):
    cut(model / "model-00000-of-00002.safetensors", 4)
    (model / LAST).write_bytes(b"\xff" * 64)
    code, damage = failure(model)
    assert code == "checkpoint.damaged" and len(damage) == 2


@pytest.mark.parametrize("header", [b"[]", b"{]", b'{"a": {}}', b'{"a": {"data_offsets": [0]}}', b'{"a": 3}'])
def test_a_shard_with_a_broken_header(model, header):
    (model / LAST).write_bytes(len(header).to_bytes(8, "little") + header)
    assert failure(model)[0] == "checkpoint.damaged"


def test_a_shard_that_is_another_one(model):
    shutil.copy(model / "model-00000-of-00002.safetensors", model / LAST)
    assert "model.layers.2.weight" in failure(model)[1][0]


def test_metadata_is_no_tensor(model):
    content = safetensors({"model.layers.2.weight": ("BF16", [50], b"x" * 100)})
    header = json.loads(content[8:-100])
    header["__metadata__"] = {"format": "pt"}
    text = json.dumps(header).encode()
    (model / LAST).write_bytes(len(text).to_bytes(8, "little") + text + b"x" * 100)
    assert checkpoints.inspect(str(model))["num_layers"] == 3
