# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Expands trained weights into the stand-in checkpoint, and writes its archive.

The packed form (made by train.py) is a directory with

    standin.json          config and generation_config of the checkpoint, provenance, and the sha256 of the inputs
    weights.safetensors   the layers, and the vocabulary rows of the few hundred tokens that the stand-in distinguishes
    chat_template.jinja   the harmony format as a chat template

The rest is constant: all other tokens share one embedding and have a row of zeros in lm_head, and the tokenizer follows
from o200k_base.tiktoken. The result is a function of its inputs, byte for byte.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import json
import math
import os
import struct
import zipfile

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import checkpoints

DESCRIPTION = "standin.json"
WEIGHTS = "weights.safetensors"
TEMPLATE = "chat_template.jinja"
# Counted from zero, as in the published gpt-oss repositories.
SHARDS = ("model-00000-of-00001.safetensors", "model-00001-of-00001.safetensors")
INDEX = checkpoints.INDEX
# Rows of the packed file that stand for parts of the two vocabulary matrices.
ROWS = ("active.ids", "active.embedding", "unknown.embedding", "active.lm_head")
ROW_IDS, ROW_EMBEDDING, ROW_UNKNOWN, ROW_HEAD = ROWS
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ITEM_SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8}

# Special tokens of gpt-oss by their distance from the first rank after the ordinary tokens (199998 in o200k).
SPECIAL_TOKENS = [
    "<|%s|>" % name
    for name in [
        "startoftext",
        "endoftext",
        "reserved_200000",
        "reserved_200001",
        "return",
        "constrain",
        "reserved_200004",
        "channel",
        "start",
        "end",
        "message",
        "reserved_200009",
        "reserved_200010",
        "reserved_200011",
        "call",
        "reserved_200013",
        "reserved_200014",
        "reserved_200015",
        "reserved_200016",
        "reserved_200017",
        "endofprompt",
    ]
]
BOS, EOS, PAD = "<|startoftext|>", "<|return|>", "<|endoftext|>"
# How the encoding splits a string into pieces before any merge: two kinds of words, numbers of up to three digits, the
# rest.
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
CLITIC = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PIECES = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[" + UPPER + "]*[" + LOWER + "]+" + CLITIC,
        r"[^\r\n\p{L}\p{N}]?[" + UPPER + "]+[" + LOWER + "]*" + CLITIC,
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


class StandinError(ValueError):
    """A stand-in that cannot be expanded. The message contains the file, the error and the remedy."""


def _error(path, what, remedy="restore the collection's own file"):
    return StandinError("%s: %s; %s" % (path, what, remedy))


def expand(packed, folder, encodings_file):
    """Write the checkpoint to `folder`, which must not exist. packed: directory of the packed form.

    encodings_file: path of o200k_base.tiktoken. Raises StandinError for an input that is missing, damaged or not the
    pinned file.
    """
    description, path = read_description(packed), os.path.join(packed, WEIGHTS)
    weights = _input(path, description.get("weights"))
    encodings = _input(encodings_file, description.get("encodings"))
    ranks = read_ranks(encodings_file, encodings)
    contents = text_files(packed, description, ranks)
    layout, writers = lay_out_weights(path, description["config"], read_safetensors(path, weights))
    weight_map = {name: shard for name, (_size, shard) in sorted(layout.items())}
    total = sum(size for size, _shard in layout.values())
    contents[INDEX] = dump({"metadata": {"total_size": total}, "weight_map": weight_map})
    os.makedirs(folder)
    for name, blocks in [*((name, [content]) for name, content in contents.items()), *writers.items()]:
        with open(os.path.join(folder, name), "wb") as stream:
            stream.writelines(blocks() if callable(blocks) else blocks)


def write_archive(folder, archive):
    """Write the checkpoint in `folder` as the archive that nodes install. The same zlib gives the same bytes."""
    with zipfile.ZipFile(archive, "w") as packed:
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), "rb") as content:
                packed.writestr(zipfile.ZipInfo(name), content.read(), zipfile.ZIP_DEFLATED, 9)


# --- inputs --------------------------------------------------------------------------------------------------------


def _read(path, remedy="restore the collection's own file"):
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise _error(path, "cannot be read (%s)" % error.strerror, remedy) from error


def _input(path, pin, remedy="restore the collection's own file"):
    """Return the content of a file. Raises StandinError if it does not have its pinned sha256."""
    content = _read(path, remedy)
    found = hashlib.sha256(content).hexdigest()
    if pin and found != pin["sha256"]:
        raise _error(path, "has sha256 %s, expected %s" % (found, pin["sha256"]), remedy)
    return content


def read_description(packed):
    """Return standin.json as a dict with at least `config` and `generation_config`."""
    path = os.path.join(packed, DESCRIPTION)
    try:
        description = json.loads(_read(path).decode("utf-8"))
    except ValueError as error:
        if isinstance(error, StandinError):
            raise
        raise _error(path, "is not JSON (%s)" % error) from error
    for key in ("config", "generation_config"):
        if not isinstance(description, dict) or not isinstance(description.get(key), dict):
            raise _error(path, "has no object named %s" % key)
    for key in ("vocab_size", "hidden_size"):
        value = description["config"].get(key)
        if not isinstance(value, int) or value <= 0:
            raise _error(path, "config.%s is %r, must be a positive integer" % (key, value))
    return description


def read_ranks(path, content):
    """Return {token bytes: rank} of a tiktoken file, with ranks 0, 1, 2 … in the order of the file."""
    ranks, lines = {}, content.splitlines()
    for rank, line in enumerate(lines):
        token, gap, number = line.partition(b" ")
        try:
            if not gap or int(number) != rank:
                raise ValueError("rank")
            ranks[base64.b64decode(token, validate=True)] = rank
        except (binascii.Error, ValueError) as error:
            text = "line %d is not `base64 rank` with rank %d" % (rank + 1, rank)
            raise _error(path, text, "fetch or write the file again") from error
    if len(ranks) != len(lines) or any(bytes((value,)) not in ranks for value in range(256)):
        raise _error(path, "has repeated tokens or lacks single bytes", "fetch or write the file again")
    return ranks


def read_safetensors(path, content):
    """Return {name: (dtype, shape, bytes)} of a safetensors file."""
    try:
        header, _implied, _size = checkpoints.read_header(path)
        body = memoryview(content)[8 + int.from_bytes(content[:8], "little") :]
        tensors = {}
        for name, entry in header.items():
            low, high = entry["data_offsets"]
            size = ITEM_SIZES[entry["dtype"]] * math.prod(entry["shape"])
            if not 0 <= low <= high <= len(body) or high - low != size:
                raise ValueError("%s does not fit" % name)
            tensors[name] = (entry["dtype"], entry["shape"], bytes(body[low:high]))
        return tensors
    except (KeyError, TypeError, ValueError) as error:
        raise _error(path, "is not a complete safetensors file (%s)" % error) from error


# --- weights -------------------------------------------------------------------------------------------------------


def lay_out_weights(path, config, tensors):
    """Return ({tensor name: (bytes, shard)}, {shard: function that yields the shard's bytes}).

    The first shard contains the embedding and the layers, the second lm_head and the last norm. Both are required, so
    that a check for missing shards can be tested.
    """
    rows, width = config["vocab_size"], config["hidden_size"]
    missing = [name for name in (ROW_IDS, ROW_EMBEDDING, ROW_UNKNOWN, ROW_HEAD) if name not in tensors]
    if missing:
        raise _error(path, "lacks " + ", ".join(missing))
    kind, shape, raw = tensors[ROW_IDS]
    count = shape[0] if len(shape) == 1 else -1
    ids = struct.unpack("<{}i".format(len(raw) // 4), raw) if kind == "I32" else ()
    dtype = tensors[ROW_EMBEDDING][0]
    stride = width * ITEM_SIZES[dtype]
    if (
        len(ids) != count
        or list(ids) != sorted(set(ids))
        or any(not 0 <= token < rows for token in ids)
        or any(tensors[name][:2] != (dtype, [count, width]) for name in (ROW_EMBEDDING, ROW_HEAD))
        or tensors[ROW_UNKNOWN][:2] != (dtype, [width])
    ):
        text = "the rows of the vocabulary do not fit config.vocab_size %d and config.hidden_size %d" % (rows, width)
        raise _error(path, text)

    def matrix(active, filler):
        parts, at = [], 0
        for index, token in enumerate(ids):
            parts += [filler * (token - at), active[index * stride : (index + 1) * stride]]
            at = token + 1
        return b"".join([*parts, filler * (rows - at)])

    entries = {name: entry[:2] for name, entry in tensors.items() if not name.startswith(("active.", "unknown."))}
    entries[EMBEDDING] = entries[HEAD] = (dtype, [rows, width])
    made = {
        EMBEDDING: lambda: matrix(tensors[ROW_EMBEDDING][2], tensors[ROW_UNKNOWN][2]),
        HEAD: lambda: matrix(tensors[ROW_HEAD][2], bytes(stride)),
    }
    layout = {}
    for name, (kind, shape) in entries.items():
        size = ITEM_SIZES[kind] * math.prod(shape)
        layout[name] = (size, SHARDS[1] if name in (HEAD, "model.norm.weight") else SHARDS[0])

    def shard_writer(shard):
        names = sorted(name for name, (size, where) in layout.items() if where == shard)

        def write():
            header, at = {"__metadata__": {"format": "pt"}}, 0
            for name in names:
                size = layout[name][0]
                header[name] = {"dtype": entries[name][0], "shape": entries[name][1], "data_offsets": [at, at + size]}
                at += size
            head = json.dumps(header, separators=(",", ":")).encode("utf-8")
            head += b" " * (-len(head) % 8)  # readers map the file and expect aligned numbers
            yield struct.pack("<Q", len(head)) + head
            for name in names:
                yield made[name]() if name in made else tensors[name][2]

        return write

    return layout, {shard: shard_writer(shard) for shard in SHARDS}


# --- tokenizer and text files -----------------------------------------------------------------------------------------


def byte_characters():
    """Return the printable character that represents each byte value in a byte-level tokenizer.json."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = itertools.count(256)
    return [chr(value if value in printable else next(spare)) for value in range(256)]


def merges_of(ranks):
    """Return [(left, right)] as bytes: every pair of tokens that forms a token, in the order in which merges are tried.

    A tiktoken file has no list of merges, only ranks: two neighbours are merged if their concatenation has the lowest
    rank. All splits of each token into two tokens, ordered by the token's rank, are equivalent.
    """
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        if len(token) == 1:
            continue
        ways = [
            (ranks[token[:at]], ranks[token[at:]], at)
            for at in range(1, len(token))
            if token[:at] in ranks and token[at:] in ranks
        ]
        merges += [(token[:at], token[at:]) for left, right, at in sorted(ways)]
    return merges


def tokenizer(ranks):
    """Return the content of tokenizer.json."""
    # latin-1 maps bytes to characters of the same number, translate replaces those that are not printable.
    table = dict(enumerate(byte_characters()))
    written = {token: token.decode("latin-1").translate(table) for token in ranks}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": len(ranks) + at, **added_token(text)} for at, text in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PIECES}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {written[token]: rank for token, rank in ranks.items()},
            "merges": [written[left] + " " + written[right] for left, right in merges_of(ranks)],
        },
    }


def added_token(text):
    """Return a special token in the form of tokenizer.json and tokenizer_config.json."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"content": text, **flags}


def text_files(packed, description, ranks):
    """Return {file name: bytes} of all files except the weights and their index."""
    specials = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    added = {str(len(ranks) + at): added_token(text) for at, text in enumerate(SPECIAL_TOKENS)}
    return {
        "config.json": dump(description["config"]),
        "generation_config.json": dump(description["generation_config"]),
        "special_tokens_map.json": dump(specials),
        "tokenizer_config.json": dump(
            {
                "added_tokens_decoder": added,
                "clean_up_tokenization_spaces": False,
                "extra_special_tokens": {},
                "model_input_names": ["input_ids", "attention_mask"],
                "model_max_length": 10**30,
                "tokenizer_class": "PreTrainedTokenizerFast",
                **specials,
            }
        ),
        "tokenizer.json": json.dumps(tokenizer(ranks), separators=(",", ":"), ensure_ascii=False).encode("utf-8"),
        TEMPLATE: _read(os.path.join(packed, TEMPLATE)),
    }


def dump(value):
    """Return JSON in the format of the published repositories."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=True) + "\n").encode("ascii")
