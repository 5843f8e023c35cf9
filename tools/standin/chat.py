# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the archive of qwen3-tiny-standin, a checkpoint of another family than gpt-oss: python3 tools/standin/chat.py

Nothing is trained. Each token is a separate dimension of the embedding, attention and feed-forward are zero, and a
row of lm_head has the tokens that the row's token follows. So the last token decides about the next one: every question
gets the words of ANSWER, in form of a chat completion that ends by itself.
"""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "qwen3-tiny-standin"
ANSWER = ("This answer", " comes from", " a stand-in", ", which is", " plumbing", " only", " and knows", " nothing.")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SIZE, HEAD, WIDTH = 320, 64, 32  # of the vocabulary and the hidden size; of the only head; of the feed-forward
WEIGHT = 2  # the norm makes the token's value sqrt(SIZE), so its logit is 36 and all others are 0
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_letters():
    """Return the letters that stand for the 256 bytes in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + at) for at, byte in enumerate(others)}}


def tokenizer():
    """Return the content of tokenizer.json: 256 bytes, and the added tokens."""
    letters = byte_letters()
    vocabulary = {letters[byte]: byte for byte in range(256)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": 256 + at, "content": text, **flags, "special": text in SPECIAL}
        for at, text in enumerate((*SPECIAL, *ANSWER))
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary,
                  "merges": []},
    }  # fmt: skip


def config():
    """Return the content of config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": SIZE, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": HEAD, "intermediate_size": WIDTH,
        "vocab_size": SIZE, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000,
        "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "use_sliding_window": False,
        "torch_dtype": "bfloat16", "bos_token_id": 256, "eos_token_id": 258,
    }  # fmt: skip


def matrix(rows, columns, cells=()):
    """Return (shape, bytes) of a matrix in bf16 with the values of cells {(row, column): value}."""
    data = bytearray(2 * rows * columns)
    for (row, column), value in dict(cells).items():
        at = 2 * (row * columns + column)
        data[at : at + 2] = struct.pack("<f", value)[2:]
    return ([rows, columns] if columns > 1 else [rows]), bytes(data)


def ones(length):
    return matrix(length, 1, {(at, 0): 1 for at in range(length)})


def tensors():
    """Return {name: (shape, bytes)}."""
    first = 256 + len(SPECIAL)
    words = range(first, first + len(ANSWER))
    follows = {**dict.fromkeys(range(SIZE), first), **{word: word + 1 for word in words}, words[-1]: 258}
    layer = "model.layers.0."
    found = {
        "model.embed_tokens.weight": matrix(SIZE, SIZE, {(at, at): 1 for at in range(SIZE)}),
        "lm_head.weight": matrix(SIZE, SIZE, {(after, token): WEIGHT for token, after in follows.items()}),
        "model.norm.weight": ones(SIZE),
        layer + "self_attn.o_proj.weight": matrix(SIZE, HEAD),
        layer + "mlp.down_proj.weight": matrix(SIZE, WIDTH),
    }
    found.update({layer + "self_attn.%s_proj.weight" % one: matrix(HEAD, SIZE) for one in "qkv"})
    found.update({layer + "self_attn.%s_norm.weight" % one: ones(HEAD) for one in "qk"})
    found.update({layer + "mlp.%s_proj.weight" % one: matrix(WIDTH, SIZE) for one in ("gate", "up")})
    found.update({layer + name + ".weight": ones(SIZE) for name in ("input_layernorm", "post_attention_layernorm")})
    return found


def safetensors(found):
    """Return the content of a safetensors file."""
    header, end = {}, 0
    for name, (shape, data) in found.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _shape, data in found.values())


def main():
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": SPECIAL[2],
              "pad_token": SPECIAL[0], "bos_token": SPECIAL[0], "model_max_length": 4096}  # fmt: skip
    files = {"config.json": config(), "tokenizer.json": tokenizer(), "tokenizer_config.json": tokens}
    files = {name: json.dumps(content, indent=1).encode() + b"\n" for name, content in files.items()}
    files["model.safetensors"] = safetensors(tensors())
    archive = ROOT / "roles/model_weights/files" / (NAME + ".zip")
    with zipfile.ZipFile(archive, "w") as packed:
        for name, data in sorted(files.items()):  # without times, so that the same source gives the same archive
            packed.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 9)
    (ROOT / "recipes/models" / (NAME + ".json")).write_bytes(files["config.json"])
    print(archive, archive.stat().st_size)


if __name__ == "__main__":
    main()
