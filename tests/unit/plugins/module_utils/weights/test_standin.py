# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The expander of the stand-in checkpoint, on a small synthetic vocabulary and, where one is given, on o200k."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pathlib
import stat
import struct
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import sha256_file
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import encodings_worker, standin

PACKED = pathlib.Path(standin.__file__).resolve().parents[4] / "roles/model_weights/files/gpt-oss-tiny-standin"
WIDTH, ROWS, ACTIVE = 4, 300, (3, 97, 261)
# Tokens beyond the single bytes; "abc" can be made in two ways, "zq…" in none.
LONGER = (b"ab", b"bc", b"abc", b" a", b"zqzq")


def bf16(*values):
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def write_safetensors(path, tensors):
    header, body = {}, b""
    for name, (kind, shape, raw) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)


def read_shards(directory):
    """{tensor name: (dtype, shape, bytes)} of a checkpoint, found through its index; checks alignment on the way."""
    index = json.loads((directory / standin.INDEX).read_text())
    tensors = {}
    for name, shard in index["weight_map"].items():
        content = (directory / shard).read_bytes()
        (length,) = struct.unpack_from("<Q", content)
        entry = json.loads(content[8 : 8 + length])[name]
        low, high = entry["data_offsets"]
        assert length % 8 == 0
        tensors[name] = (entry["dtype"], entry["shape"], content[8 + length :][low:high])
    assert sum(len(raw) for _dtype, _shape, raw in tensors.values()) == index["metadata"]["total_size"]
    return tensors


@pytest.fixture
def encodings(tmp_path):
    path = tmp_path / "tiny.tiktoken"
    tokens = [bytes((value,)) for value in range(256)] + list(LONGER)
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
    return path


@pytest.fixture
def packed(tmp_path):
    directory = tmp_path / "packed"
    directory.mkdir()
    description = {
        "config": {"_name_or_path": "tiny", "model_type": "gpt_oss", "vocab_size": ROWS, "hidden_size": WIDTH},
        "generation_config": {"eos_token_id": [5, 2, 15], "top_k": 1},
    }
    (directory / standin.DESCRIPTION).write_text(json.dumps(description))
    (directory / standin.TEMPLATE).write_text("{{ messages }}\n")
    write_safetensors(
        directory / standin.WEIGHTS,
        {
            "active.ids": ("I32", [len(ACTIVE)], struct.pack("<3i", *ACTIVE)),
            "active.embedding": ("BF16", [len(ACTIVE), WIDTH], bf16(*range(1, 13))),
            "unknown.embedding": ("BF16", [WIDTH], bf16(0.5, 0.5, 0.5, 0.5)),
            "active.lm_head": ("BF16", [len(ACTIVE), WIDTH], bf16(*range(21, 33))),
            "model.norm.weight": ("BF16", [WIDTH], bf16(1, 1, 1, 1)),
            "model.layers.0.self_attn.sinks": ("BF16", [2], bf16(0, 1)),
        },
    )
    return directory


def test_a_packed_checkpoint_becomes_a_whole_one(packed, encodings, tmp_path):
    destination = tmp_path / "model"
    result = standin.expand(str(packed), str(destination), str(encodings))

    names = {path.name for path in destination.iterdir()}
    assert (
        names
        == set(result)
        == {
            "config.json",
            "generation_config.json",
            "special_tokens_map.json",
            "tokenizer_config.json",
            "tokenizer.json",
            "chat_template.jinja",
            standin.INDEX,
            *standin.SHARDS,
        }
    )
    for name, said in result.items():
        content = (destination / name).read_bytes()
        assert said == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert json.loads((destination / "generation_config.json").read_text())["top_k"] == 1


def test_rows_that_are_not_active_are_shared_or_zero(packed, encodings, tmp_path):
    destination = tmp_path / "model"
    standin.expand(str(packed), str(destination), str(encodings))
    tensors = read_shards(destination)

    stride = 2 * WIDTH
    embedding, head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    assert embedding[:2] == head[:2] == ("BF16", [ROWS, WIDTH])
    for token in range(ROWS):
        row, mine = embedding[2][token * stride :][:stride], head[2][token * stride :][:stride]
        if token in ACTIVE:
            at = ACTIVE.index(token) * WIDTH
            assert row == bf16(*range(at + 1, at + 1 + WIDTH))
            assert mine == bf16(*range(at + 21, at + 21 + WIDTH))
        else:
            assert row == bf16(0.5, 0.5, 0.5, 0.5)
            assert mine == bytes(stride)
    assert tensors["model.layers.0.self_attn.sinks"] == ("BF16", [2], bf16(0, 1))


def test_both_shards_are_needed(packed, encodings, tmp_path):
    destination = tmp_path / "model"
    standin.expand(str(packed), str(destination), str(encodings))
    index = json.loads((destination / standin.INDEX).read_text())
    assert set(index["weight_map"].values()) == set(standin.SHARDS)


def test_merges_and_special_tokens_follow_from_the_ranks(packed, encodings, tmp_path):
    destination = tmp_path / "model"
    standin.expand(str(packed), str(destination), str(encodings))
    tokenizer = json.loads((destination / "tokenizer.json").read_text(encoding="utf-8"))

    # Both ways to make "abc", the one whose left half has the lower rank first; nothing makes "zqzq".
    assert tokenizer["model"]["merges"] == ["a b", "b c", "a bc", "ab c", "\u0120 a"]
    vocabulary = tokenizer["model"]["vocab"]
    assert vocabulary["\u0120a"] == 259
    assert sorted(vocabulary.values()) == list(range(256 + len(LONGER)))
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    first = 256 + len(LONGER)
    assert added["<|startoftext|>"] == first
    assert added["<|call|>"] == first + 14
    assert added["<|endofprompt|>"] == first + 20
    configuration = json.loads((destination / "tokenizer_config.json").read_text())
    assert configuration["eos_token"] == "<|return|>"
    assert configuration["pad_token"] == "<|endoftext|>"
    assert configuration["added_tokens_decoder"][str(first + 4)]["content"] == "<|return|>"


def test_the_same_input_gives_the_same_bytes(packed, encodings, tmp_path):
    once = standin.expand(str(packed), str(tmp_path / "one"), str(encodings))
    assert standin.expand(str(packed), str(tmp_path / "two"), str(encodings)) == once


def test_modes_do_not_depend_on_the_umask(packed, encodings, tmp_path):
    before = os.umask(0o077)
    try:
        standin.expand(str(packed), str(tmp_path / "model"), str(encodings))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()} == {0o644}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p, e: (p / "standin.json").unlink(), r"standin\.json: cannot be read"),
        (lambda p, e: (p / "standin.json").write_text("{"), r"standin\.json: is not JSON"),
        (lambda p, e: (p / "standin.json").write_text("{}"), "no object named config"),
        (lambda p, e: (p / "standin.json").write_text('{"config": {}, "generation_config": {}}'), "config.vocab_size"),
        (lambda p, e: (p / "weights.safetensors").unlink(), r"weights\.safetensors: cannot be read"),
        (lambda p, e: (p / "weights.safetensors").write_bytes(b"\1"), "not a complete safetensors file"),
        (
            lambda p, e: (p / "weights.safetensors").write_bytes((p / "weights.safetensors").read_bytes()[:-3]),
            "not a complete safetensors file",
        ),
        (lambda p, e: write_safetensors(p / "weights.safetensors", {"a": ("BF16", [1], b"ab")}), "lacks active.ids"),
        (lambda p, e: (p / "chat_template.jinja").unlink(), r"chat_template\.jinja: cannot be read"),
        (lambda p, e: e.unlink(), r"tiny\.tiktoken: cannot be read"),
        (lambda p, e: e.write_text("YQ== 1\n"), "line 1 is not `base64 rank` with rank 0"),
        (lambda p, e: e.write_text("YQ\n"), "line 1 is not"),
        (lambda p, e: e.write_text("YQ== 0\n"), "lacks single bytes"),
    ],
)
def test_errors_name_the_file_and_the_remedy(packed, encodings, tmp_path, damage, message):
    damage(packed, encodings)
    with pytest.raises(standin.StandinError, match=message) as caught:
        standin.expand(str(packed), str(tmp_path / "model"), str(encodings))
    assert ";" in str(caught.value)  # the remedy follows the fault
    assert not (tmp_path / "model").exists()


def test_rows_that_do_not_fit_the_config_are_refused(packed, encodings, tmp_path):
    description = json.loads((packed / "standin.json").read_text())
    description["config"]["vocab_size"] = 200  # the third active row is 261
    (packed / "standin.json").write_text(json.dumps(description))
    with pytest.raises(standin.StandinError, match="do not fit"):
        standin.expand(str(packed), str(tmp_path / "model"), str(encodings))


def pin(packed, **pins):
    description = json.loads((packed / "standin.json").read_text())
    (packed / "standin.json").write_text(json.dumps({**description, **pins}))


def test_pins_of_the_inputs_are_held(packed, encodings, tmp_path):
    pin(packed, encodings={"sha256": sha256_file(str(encodings))}, weights={"sha256": "0" * 64})
    with pytest.raises(standin.StandinError, match=r"weights\.safetensors: has sha256"):
        standin.expand(str(packed), str(tmp_path / "model"), str(encodings))
    pin(packed, weights=None, encodings={"sha256": "0" * 64})
    with pytest.raises(standin.StandinError, match=r"tiny\.tiktoken: has sha256"):
        standin.expand(str(packed), str(tmp_path / "model"), str(encodings))


def test_pins_of_the_result_are_held_and_nothing_is_left(packed, encodings, tmp_path):
    files = standin.expand(str(packed), str(tmp_path / "model"), str(encodings))
    pin(packed, files=files)
    assert standin.expand(str(packed), str(tmp_path / "again"), str(encodings)) == files
    pin(packed, files={**files, "config.json": {"size": 1, "sha256": "0" * 64}})
    with pytest.raises(standin.StandinError, match=r"config\.json came out otherwise"):
        standin.expand(str(packed), str(tmp_path / "other"), str(encodings))
    assert not (tmp_path / "other").exists()


def test_the_readme_says_how_large_the_stand_in_is():
    packed = sum(path.stat().st_size for path in PACKED.iterdir())
    expanded = sum(pinned["size"] for pinned in standin.read_description(str(PACKED))["files"].values())
    figures = "(%.2f MB, %.0f MB on the node)" % (packed / 1e6, expanded / 1e6)
    assert figures in (PACKED.parents[1] / "README.md").read_text()


def test_the_packed_stand_in_is_small_and_whole():
    description = standin.read_description(str(PACKED))
    assert sum(path.stat().st_size for path in PACKED.iterdir()) < 2 * 1024 * 1024
    assert sha256_file(str(PACKED / standin.WEIGHTS)) == description["weights"]["sha256"]
    assert description["config"]["_name_or_path"] == description["name"] == "gpt-oss-tiny-standin"
    assert description["config"]["model_type"] == "gpt_oss"
    assert description["generation_config"]["eos_token_id"] == [200002, 199999, 200012]
    assert description["generation_config"]["top_k"] == 1
    tensors = standin.read_safetensors(standin.WEIGHTS, (PACKED / standin.WEIGHTS).read_bytes())
    layout, _size = standin.lay_out_weights("weights.safetensors", description["config"], tensors)
    assert "lm_head.weight" in layout


def test_the_real_stand_in_comes_out_as_pinned(tmp_path):
    encodings = tmp_path / "o200k_base.tiktoken"
    done = run_worker("o200k_base", str(encodings))
    assert done.returncode == 0, done.stderr
    result = standin.expand(str(PACKED), str(tmp_path / "model"), str(encodings))
    assert result == standin.read_description(str(PACKED))["files"]
    tokenizer = json.loads((tmp_path / "model" / "tokenizer.json").read_text(encoding="utf-8"))
    assert len(tokenizer["model"]["vocab"]) == 199998
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    assert added["<|return|>"] == 200002
    assert added["<|call|>"] == 200012
    assert added["<|endofprompt|>"] == 200018


def run_worker(*arguments):
    return subprocess.run(
        [sys.executable, encodings_worker.__file__, *arguments], capture_output=True, text=True, check=False
    )


def test_the_worker_says_what_it_cannot_write(tmp_path):
    for name in ("cl100k_base", "p50k_base"):
        done = run_worker(name, str(tmp_path / "out"))
        assert done.returncode == 1
        assert name in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


class FakeHarmony:
    """Stands for oss-harmony's encoding, with the bytes of each token on an inner object."""

    def __init__(self, tokens):
        self._inner = self
        self.tokens = tokens

    def decode_bytes(self, ids):
        return list(b"".join(self.tokens[at] for at in ids))


def test_the_worker_writes_the_bytes_of_each_rank(tmp_path, monkeypatch):
    tokens = [b"a", b"\xff", b"ab"]
    monkeypatch.setattr(encodings_worker, "load_harmony_encoding", lambda name: FakeHarmony(tokens))
    monkeypatch.setattr(encodings_worker, "HarmonyEncodingName", type("Names", (), {"HARMONY_GPT_OSS": "x"}))
    monkeypatch.setattr(encodings_worker, "RANKS", len(tokens))
    encodings_worker.main("o200k_base", str(tmp_path / "o200k_base.tiktoken"))
    assert (tmp_path / "o200k_base.tiktoken").read_bytes() == b"YQ== 0\n/w== 1\nYWI= 2\n"


def test_the_worker_without_oss_harmony_says_so(monkeypatch):
    monkeypatch.setattr(encodings_worker, "load_harmony_encoding", None)
    with pytest.raises(SystemExit, match="oss-harmony is not installed"):
        encodings_worker.o200k_base()


def test_the_worker_names_an_oss_harmony_without_a_vocabulary(monkeypatch):
    def fail(name):
        raise RuntimeError("error downloading\nvocab file")

    monkeypatch.setattr(encodings_worker, "load_harmony_encoding", fail)
    monkeypatch.setattr(encodings_worker, "HarmonyEncodingName", type("Names", (), {"HARMONY_GPT_OSS": "x"}))
    with pytest.raises(SystemExit, match="error downloading vocab file"):
        encodings_worker.o200k_base()
