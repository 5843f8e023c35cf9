# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Expand the packed stand-in checkpoint into the directory that an engine loads.

The packed form (made by tools/standin/train.py) is a directory with

    standin.json          config and generation_config of the checkpoint, provenance, and the sha256 of all that is made
    weights.safetensors   the layers, and the vocabulary rows of the few hundred tokens that the stand-in tells apart
    chat_template.jinja   the harmony format as a chat template

What is missing is the same everywhere: every other token has one shared embedding and a row of zeros in lm_head, and
the tokenizer follows from o200k_base.tiktoken. So 0.8 MB become a full gpt_oss checkpoint of about 114 MB, in seconds,
with the standard library alone. The result is a function of its inputs, byte for byte, and is pinned by standin.json.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import shutil
import struct

DESCRIPTION = "standin.json"
WEIGHTS = "weights.safetensors"
TEMPLATE = "chat_template.jinja"
# Counted from zero, as in the published gpt-oss repositories.
SHARDS = ("model-00000-of-00001.safetensors", "model-00001-of-00001.safetensors")
INDEX = "model.safetensors.index.json"
PARTIAL = ".partial"
# Rows of the packed file that stand for parts of the two vocabulary matrices.
ROW_IDS, ROW_EMBEDDING, ROW_UNKNOWN, ROW_HEAD = (
    "active.ids",
    "active.embedding",
    "unknown.embedding",
    "active.lm_head",
)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ITEM_SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8}

# Special tokens of gpt-oss by their distance from the first rank after the ordinary ones (199998 in o200k).
SPECIAL_TOKENS = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|reserved_200000|>",
    "<|reserved_200001|>",
    "<|return|>",
    "<|constrain|>",
    "<|reserved_200004|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|reserved_200009|>",
    "<|reserved_200010|>",
    "<|reserved_200011|>",
    "<|call|>",
    "<|reserved_200013|>",
    "<|reserved_200014|>",
    "<|reserved_200015|>",
    "<|reserved_200016|>",
    "<|reserved_200017|>",
    "<|endofprompt|>",
)
BOS, EOS, PAD = "<|startoftext|>", "<|return|>", "<|endoftext|>"
# How o200k cuts text into pieces before any merge: two kinds of words, numbers of up to three digits, the rest.
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
CLITIC = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K_PATTERN = "|".join(
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
    """A stand-in that cannot be expanded; the message names the file, what is wrong, and what to do."""


def expand(packed: str, destination: str, encodings_file: str) -> dict:
    """Write the full checkpoint to the directory `destination` and return {"files": {name: {"size", "sha256"}}}.

    packed: directory of the packed form. encodings_file: path of o200k_base.tiktoken. An earlier stand-in at
    `destination` is replaced, anything else there is an error; nothing is to be seen there until all of it is written
    (it grows in `destination`.partial). Files get mode 0644 and directories 0755 whatever the umask, since engines run
    as another user. Raises StandinError for an input that is missing, damaged or not the pinned one, and where the
    result is not what standin.json promises; OSError where the disk refuses.
    """
    description = read_description(packed)
    check_destination(destination, description["config"])
    check_input(os.path.join(packed, WEIGHTS), description.get("weights"), "take the collection's own file again")
    check_input(encodings_file, description.get("encodings"), "fetch or write o200k_base.tiktoken again")
    ranks = read_ranks(encodings_file)
    tensors = read_safetensors(os.path.join(packed, WEIGHTS))
    contents = text_files(packed, description, ranks)
    layout, writers = lay_out_weights(os.path.join(packed, WEIGHTS), description["config"], tensors)
    contents[INDEX] = dump(
        {
            "metadata": {"total_size": sum(size for size, shard in layout.values())},
            "weight_map": {name: shard for name, (size, shard) in sorted(layout.items())},
        }
    )

    partial = destination.rstrip("/") + PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    os.chmod(partial, 0o755)
    files = {}
    for name in sorted(contents):
        files[name] = write_file(os.path.join(partial, name), [contents[name]])
    for name in SHARDS:
        files[name] = write_file(os.path.join(partial, name), writers[name]())
    compare_with_pins(destination, description.get("files"), files, partial)
    replace_directory(partial, destination)
    return {"files": dict(sorted(files.items()))}


# --- inputs --------------------------------------------------------------------------------------------------------


def read_description(packed: str) -> dict:
    """standin.json as a dict with at least `config` and `generation_config`."""
    path = os.path.join(packed, DESCRIPTION)
    try:
        with open(path, encoding="utf-8") as stream:
            description = json.load(stream)
    except OSError as exc:
        raise StandinError(
            "{}: cannot be read ({}); point at the directory of the packed stand-in".format(path, exc.strerror)
        ) from exc
    except ValueError as exc:
        raise StandinError("{}: is not JSON ({}); take the collection's own file again".format(path, exc)) from exc
    for key in ("config", "generation_config"):
        if not isinstance(description, dict) or not isinstance(description.get(key), dict):
            raise StandinError("{}: has no object named {}; take the collection's own file again".format(path, key))
    for key in ("vocab_size", "hidden_size"):
        value = description["config"].get(key)
        if not isinstance(value, int) or value <= 0:
            raise StandinError(
                "{}: config.{} is {!r}, must be a positive integer; take the collection's own file again".format(
                    path, key, value
                )
            )
    return description


def sha256_of(path: str) -> str:
    """Hex sha256 of a file; StandinError where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
    except OSError as exc:
        raise StandinError(
            "{}: cannot be read ({}); check the path and its permissions".format(path, exc.strerror)
        ) from exc
    return digest.hexdigest()


def check_input(path: str, pin: dict | None, remedy: str) -> None:
    """Compare a file with its pinned sha256; a description without a pin accepts any."""
    if not pin:
        return
    found = sha256_of(path)
    if found != pin["sha256"]:
        raise StandinError("{}: has sha256 {}, expected {}; {}".format(path, found, pin["sha256"], remedy))


def read_ranks(path: str) -> dict:
    """{token bytes: rank} of a tiktoken file, ranks being 0, 1, 2 … in the order of the file."""
    ranks = {}
    try:
        with open(path, "rb") as stream:
            lines = stream.read().splitlines()
    except OSError as exc:
        raise StandinError(
            "{}: cannot be read ({}); provide o200k_base.tiktoken there".format(path, exc.strerror)
        ) from exc
    for number, line in enumerate(lines, 1):
        token, gap, rank = line.partition(b" ")
        try:
            if not gap or int(rank) != number - 1:
                raise ValueError("rank")
            ranks[base64.b64decode(token, validate=True)] = number - 1
        except (binascii.Error, ValueError) as exc:
            raise StandinError(
                "{}: line {} is not `base64 rank` with rank {}; fetch or write the file again".format(
                    path, number, number - 1
                )
            ) from exc
    if len(ranks) != len(lines) or any(bytes((value,)) not in ranks for value in range(256)):
        raise StandinError("{}: has repeated tokens or lacks single bytes; fetch or write the file again".format(path))
    return ranks


def read_safetensors(path: str) -> dict:
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    try:
        with open(path, "rb") as stream:
            content = stream.read()
    except OSError as exc:
        raise StandinError(
            "{}: cannot be read ({}); take the collection's own file again".format(path, exc.strerror)
        ) from exc
    tensors = {}
    try:
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + length].decode("utf-8"))
        body = memoryview(content)[8 + length :]
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            low, high = entry["data_offsets"]
            size = ITEM_SIZES[entry["dtype"]]
            for axis in entry["shape"]:
                size *= axis
            if not 0 <= low <= high <= len(body) or high - low != size:
                raise ValueError("{} does not fit".format(name))
            tensors[name] = (entry["dtype"], entry["shape"], bytes(body[low:high]))
    except (struct.error, KeyError, TypeError, ValueError) as exc:
        raise StandinError(
            "{}: is not a whole safetensors file ({}); take the collection's own file again".format(path, exc)
        ) from exc
    return tensors


# --- weights -------------------------------------------------------------------------------------------------------


def lay_out_weights(path: str, config: dict, tensors: dict) -> tuple:
    """({tensor name: (bytes, shard)}, {shard: function that yields the shard's bytes}).

    The first shard holds the embedding and the layers, the second lm_head and the last norm: both are needed, so that
    a check for missing shards has something to miss.
    """
    rows, width = config["vocab_size"], config["hidden_size"]
    missing = [name for name in (ROW_IDS, ROW_EMBEDDING, ROW_UNKNOWN, ROW_HEAD) if name not in tensors]
    if missing:
        raise StandinError("{}: lacks {}; take the collection's own file again".format(path, ", ".join(missing)))
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
        raise StandinError(
            "{}: the rows of the vocabulary do not fit config.vocab_size {} and config.hidden_size "
            "{}; take the collection's own files again".format(path, rows, width)
        )

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
        size = ITEM_SIZES[kind]
        for axis in shape:
            size *= axis
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
            head += b" " * (-len(head) % 8)  # readers map the file and want the numbers aligned
            yield struct.pack("<Q", len(head)) + head
            for name in names:
                yield made[name]() if name in made else tensors[name][2]

        return write

    return layout, {shard: shard_writer(shard) for shard in SHARDS}


# --- tokenizer and texts -------------------------------------------------------------------------------------------


def byte_characters() -> list:
    """The printable character that stands for each byte value in a byte-level tokenizer.json."""
    plain = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    characters, spare = [], 256
    for value in range(256):
        if value in plain:
            characters.append(chr(value))
        else:
            characters.append(chr(spare))
            spare += 1
    return characters


def merges_of(ranks: dict) -> list:
    """[(left, right)] as bytes: every way to make a token of two others, in the order in which they are to be tried.

    A tiktoken file has no list of merges, only ranks: two neighbours are joined where their concatenation has the
    lowest rank. All ways to split each token into two tokens, ordered by the token's rank, say the same.
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


def tokenizer(ranks: dict) -> dict:
    """The contents of tokenizer.json."""
    # latin-1 turns bytes into characters of the same number, translate puts the printable ones in their place.
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
                {"type": "Split", "pattern": {"Regex": O200K_PATTERN}, "behavior": "Isolated", "invert": False},
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


def added_token(text: str) -> dict:
    return {
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def text_files(packed: str, description: dict, ranks: dict) -> dict:
    """{file name: bytes} of all that is not weights, the index of the weights excepted."""
    path = os.path.join(packed, TEMPLATE)
    try:
        with open(path, "rb") as stream:
            template = stream.read()
    except OSError as exc:
        raise StandinError(
            "{}: cannot be read ({}); take the collection's own file again".format(path, exc.strerror)
        ) from exc
    specials = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    return {
        "config.json": dump(description["config"]),
        "generation_config.json": dump(description["generation_config"]),
        "special_tokens_map.json": dump(specials),
        "tokenizer_config.json": dump(
            {
                "added_tokens_decoder": {
                    str(len(ranks) + at): added_token(text) for at, text in enumerate(SPECIAL_TOKENS)
                },
                "clean_up_tokenization_spaces": False,
                "extra_special_tokens": {},
                "model_input_names": ["input_ids", "attention_mask"],
                "model_max_length": 10**30,
                "tokenizer_class": "PreTrainedTokenizerFast",
                **specials,
            }
        ),
        "tokenizer.json": json.dumps(tokenizer(ranks), separators=(",", ":"), ensure_ascii=False).encode("utf-8"),
        TEMPLATE: template,
    }


def dump(value: dict) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=True) + "\n").encode("ascii")


# --- writing -------------------------------------------------------------------------------------------------------


def write_file(path: str, blocks) -> dict:
    """Write the blocks to a new file of mode 0644; return {"size", "sha256"}."""
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as stream:
        for block in blocks:
            stream.write(block)
            digest.update(block)
            size += len(block)
    os.chmod(path, 0o644)
    return {"size": size, "sha256": digest.hexdigest()}


def compare_with_pins(destination: str, pins: dict | None, files: dict, partial: str) -> None:
    """Refuse a result that standin.json does not promise, and leave nothing of it behind."""
    if not pins:
        return
    wrong = sorted(name for name in set(pins) | set(files) if pins.get(name) != files.get(name))
    if wrong:
        shutil.rmtree(partial, ignore_errors=True)
        raise StandinError(
            "{}: {} came out otherwise than standin.json promises; the packed stand-in and the expander are of "
            "different versions: take both from the same release of the collection".format(
                destination, ", ".join(wrong)
            )
        )


def check_destination(destination: str, config: dict) -> None:
    """Refuse to replace what is not an earlier stand-in: weights of a real model may have taken hours to fetch."""
    if not os.path.lexists(destination):
        return
    try:
        with open(os.path.join(destination, "config.json"), encoding="utf-8") as stream:
            own = json.load(stream).get("_name_or_path") == config.get("_name_or_path")
        own = own and not os.path.islink(destination.rstrip("/"))
    except (OSError, ValueError, AttributeError):
        own = os.path.isdir(destination) and not os.listdir(destination)
    if not own:
        raise StandinError(
            "{}: holds something else than the stand-in, which is not replaced; remove it or choose "
            "another directory".format(destination)
        )


def replace_directory(partial: str, destination: str) -> None:
    """Put the finished directory in place; an older one is moved aside first and removed last."""
    destination = destination.rstrip("/")
    old = destination + ".old"
    shutil.rmtree(old, ignore_errors=True)
    if os.path.lexists(destination):
        os.rename(destination, old)
    os.rename(partial, destination)
    shutil.rmtree(old, ignore_errors=True)
