# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Complete checkpoints, and those that are incomplete, damaged or of another kind."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import checkpoints
from ansible_collections.inference.fleet.tests.unit.node_helpers import build_checkpoint

INDEX, TOKENIZER = "model.safetensors.index.json", "tokenizer.json"
SHARDS = ["model-%05d-of-00002.safetensors" % number for number in range(3)]
FIRST, SECOND, LAST = SHARDS
INCOMPLETE, DAMAGED, UNFIT = "checkpoint.incomplete", "checkpoint.damaged", "checkpoint.does-not-fit"


@pytest.fixture
def model(tmp_path):
    return build_checkpoint(tmp_path / "model")


def failure(path, *family):
    """(code, details) of the error."""
    with pytest.raises(FleetError) as error:
        checkpoints.inspect(str(path), *family)
    return error.value.code, error.value.details.get("missing") or error.value.details.get("damage")


def test_what_is_found(model, tmp_path):
    assert checkpoints.inspect(str(model)) == {
        "model_type": "gpt_oss", "format": "mxfp4", "hidden_size": 16, "vocab_size": 100, "num_layers": 3,
        "shards": SHARDS, "bytes": sum((model / name).stat().st_size for name in SHARDS),
    }  # fmt: skip
    (model / "model.safetensors").write_text("")  # the index counts
    assert checkpoints.inspect(str(model))["shards"] == SHARDS
    single = build_checkpoint(tmp_path / "single", shards=1)
    (single / INDEX).unlink()
    (single / "model-00000-of-00000.safetensors").rename(single / "model.safetensors")
    assert checkpoints.inspect(str(single))["shards"] == ["model.safetensors"]


def test_models_of_other_families(model, tmp_path):
    fp8 = {"quantization_config": {"quant_method": "fp8"}}
    other = build_checkpoint(tmp_path / "other", model_type="qwen3_vl", text_config={"hidden_size": 32}, **fp8)
    found = checkpoints.inspect(str(other), "chat")
    assert (found["model_type"], found["format"], found["hidden_size"]) == ("qwen3_vl", "fp8", 32)
    assert failure(other)[0] == failure(model, "chat")[0] == UNFIT


def edit(name, **changes):
    def change(model):
        value = {**json.loads((model / name).read_text()), **changes}
        (model / name).write_text(json.dumps({key: item for key, item in value.items() if item is not None}))

    return change


def write(name, content):
    return lambda model: (model / name).write_bytes(content)


def header(text):
    return write(LAST, len(text).to_bytes(8, "little") + text)


def resize(difference):
    return lambda model: os.truncate(model / LAST, (model / LAST).stat().st_size + difference)


def remove(*names):
    return lambda model: [(model / name).unlink() for name in names]


@pytest.mark.parametrize(
    ("change", "code", "details"),
    [
        (edit("config.json", model_type="llama"), UNFIT, None),
        (edit("config.json", quantization_config={"quant_method": "fp8"}), UNFIT, None),
        (edit("config.json", hidden_size="16"), DAMAGED, None),
        (write("config.json", b"{"), DAMAGED, None),
        (write("config.json", b"[]"), DAMAGED, None),
        (write("config.json", b"[" * 100_000), DAMAGED, None),
        (lambda model: (remove(INDEX)(model), os.mkfifo(model / INDEX)), INCOMPLETE, [INDEX]),  # is not waited for
        *((remove(name), INCOMPLETE, [name]) for name in ("config.json", INDEX, TOKENIZER, LAST)),
        (remove(SECOND, LAST, TOKENIZER), INCOMPLETE, [SECOND, LAST, TOKENIZER]),
        (shutil.rmtree, INCOMPLETE, ["the directory"]),
        *(
            (edit(INDEX, weight_map=value), DAMAGED, None)
            for value in (None, [], {"a": "../other.safetensors"}, {"a": ".."}, {"a": 3})
        ),
        *((header(text), DAMAGED, None) for text in (b"[]", b"{]", b'{"a": {}}', b'{"a": 3}')),
        (header(b'{"a": {"data_offsets": [0]}}'), DAMAGED, ["%s has a broken safetensors header" % LAST]),
        *((resize(difference), DAMAGED, None) for difference in (-1, 1)),
        (write(LAST, b"\xff" * 64), DAMAGED, ["%s has no safetensors header (64 bytes long)" % LAST]),
        (
            lambda model: shutil.copy(model / FIRST, model / LAST),
            DAMAGED,
            ["%s lacks 1 of the tensors that the index puts there, such as model.layers.2.weight" % LAST],
        ),
    ],
)
def test_checkpoints_that_are_refused(model, change, code, details):
    change(model)
    found = failure(model)
    assert (found[0], details or found[1]) == (code, found[1])
