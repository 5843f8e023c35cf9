# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of a checkpoint directory, and whether it is complete, without reading the weights themselves."""

from __future__ import annotations

import json
import os

from ..errors import FleetError
from ..host.files import read_bytes
from ..model import gpt_oss
from ..model.formats import FORMATS, format_of

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TOKENIZER = "tokenizer.json"
# Of a LoRA adapter, as PEFT saves it.
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# The safetensors library refuses longer headers.
LONGEST_HEADER = 100_000_000


def inspect(path, family=gpt_oss.MODEL_TYPE, complete=True):
    """The content of the checkpoint in the directory `path`.

    family: of its model. Returns {model_type, format (of model.formats), hidden_size, vocab_size, num_layers, shards:
    [names], bytes: of all shards}; unless `complete`, only what config.json contains. A checkpoint is complete if
    config.json states a model of the family in a known format, tokenizer.json exists, and each shard that the index
    names exists, contains the tensors that the index puts into it, and is as long as its own header implies. Shards are
    counted by the index: gpt-oss-120b has 15 of them, named 00000 to 00014 "of-00014". Models with several parts
    describe their language model in text_config. Raises FleetError with the names of all files in question.
    """
    if not os.path.isdir(path):
        raise incomplete(path, ["the directory"])
    config = read(path)
    model_type = config.get("model_type")
    if (model_type == gpt_oss.MODEL_TYPE) != (family == gpt_oss.MODEL_TYPE):
        raise unfit(path, "model_type is %s, the recipe's model.family is %s" % (json.dumps(model_type), family))
    formats = gpt_oss.FORMATS if family == gpt_oss.MODEL_TYPE else FORMATS
    result = {"model_type": model_type, "format": _format(path, config, formats)}
    keys = {"hidden_size": "hidden_size", "vocab_size": "vocab_size", "num_layers": "num_hidden_layers"}
    inner = config.get("text_config")
    sizes = {**config, **(inner if isinstance(inner, dict) else {})}
    for name, key in keys.items():
        value = sizes.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            what = "%s: %s is %s, allowed: a positive integer" % (CONFIG, key, json.dumps(value))
            raise _damaged(path, [what])
        result[name] = value
    return {**result, **_complete(path, _tensors_by_shard(path), [TOKENIZER])} if complete else result


def inspect_draft(path, complete=True):
    """As `inspect`, for the draft model in the directory `path`: {hidden_size, vocab_size, shards, bytes}.

    A draft is a small model of another kind that reads the target's hidden states and proposes the target's tokens.
    Configurations of the speculators library have the sizes one level down. It needs no tokenizer, and may have its
    weights in the older form of PyTorch, whose files must exist and not be empty. Raises FleetError.
    """
    config = read(path)
    inner = config.get("transformer_layer_config")
    sizes = {**(inner if isinstance(inner, dict) else {}), **config}
    sizes = {key: sizes.get(key) for key in ("hidden_size", "vocab_size")}
    if not complete:
        return sizes
    if any(os.path.isfile(os.path.join(path, name)) for name in (INDEX, SINGLE)):
        return {**sizes, **_complete(path, _tensors_by_shard(path))}
    names = sorted(name for name in os.listdir(path) if name.endswith((".safetensors", ".bin", ".pt")))
    names = [name for name in names if os.path.isfile(os.path.join(path, name))]
    return {**sizes, **_complete(path, dict.fromkeys(names or [SINGLE]))}


def _complete(path, tensors, besides=()):
    """{shards, bytes} of {shard: tensors or None}. Raises FleetError unless all are complete."""
    names = sorted(tensors)
    missing = [name for name in (*names, *besides) if not os.path.isfile(os.path.join(path, name))]
    if missing:
        raise incomplete(path, missing)
    damage = [text for text in (_damage(path, name, tensors[name]) for name in names) if text]
    if damage:
        raise _damaged(path, damage)
    return {"shards": names, "bytes": sum(os.path.getsize(os.path.join(path, name)) for name in names)}


def incomplete(path, missing):
    """The FleetError for a checkpoint that lacks files."""
    return FleetError("checkpoint.incomplete", path, ", ".join(missing), details={"missing": missing})


def _damaged(path, damage):
    return FleetError("checkpoint.damaged", path, "; ".join(damage), details={"damage": damage})


def unfit(path, what):
    """The FleetError for a checkpoint that is not servable. what: the reason."""
    return FleetError("checkpoint.does-not-fit", path, what)


def check_draft_sizes(name, draft, target_name, target):
    """Raises FleetError if the sizes of a draft and of its target differ. None: it does not state them."""
    for key in ("hidden_size", "vocab_size"):
        if None not in (target.get(key), draft[key]) and draft[key] != target[key]:
            values = (key, json.dumps(draft[key]), target_name, target[key])
            raise unfit(name, "%s is %s, and that of its target %s is %s" % values)


def inspect_adapter(path, planned, complete=True):
    """As `inspect`, for the LoRA adapter in the directory `path`: {rank, shards, bytes}; unless `complete`, only the
    rank, of its adapter_config.json.

    planned: {base: name of its base model, max_rank: of its servers, None for any}. Engines fail for other adapters
    after they have loaded the model. Raises FleetError unless the adapter is LoRA for this base model with at most that
    rank. A trainer may have read the base model from a directory, so only the last part of its name counts.
    """
    config, (base, most) = read(path, ADAPTER_CONFIG), (planned["base"], planned["max_rank"])
    found, patterns = config.get("base_model_name_or_path"), config.get("rank_pattern")
    ranks = [config.get("r"), *(patterns.values() if isinstance(patterns, dict) else ())]
    if config.get("peft_type") != "LORA" or config.get("use_dora"):
        kind = "DoRA" if config.get("use_dora") else config.get("peft_type")
        raise unfit(path, "it is an adapter of type %s, allowed: LoRA" % kind)
    if not all(isinstance(rank, int) and rank > 0 for rank in ranks):
        raise _damaged(path, ["%s: r is %s, allowed: a positive integer" % (ADAPTER_CONFIG, json.dumps(ranks[0]))])
    if os.path.basename(str(found).rstrip("/")).lower() != os.path.basename(base).lower():
        raise unfit(path, "it is an adapter of %s, the recipe's model is %s (model.adapters.base)" % (found, base))
    if most and max(ranks) > most:
        raise unfit(path, "its rank is %d, the server's max-lora-rank is %d" % (max(ranks), most))
    result = {"rank": max(ranks)}
    if not complete:
        return result
    names = [name for name in ADAPTER_WEIGHTS if os.path.isfile(os.path.join(path, name))]
    return {**result, **_complete(path, dict.fromkeys(names[:1] or ADAPTER_WEIGHTS[:1]))}


def check_format(path, found, wanted):
    """Raises FleetError unless the format that `inspect` found at `path` is the wanted one (None: any)."""
    if wanted is not None and found != wanted:
        raise unfit(path, "its format is %s, the recipe needs %s" % (found, wanted))


def read(path, name=CONFIG):
    """The JSON object in a file of the checkpoint in the directory `path`. Raises FleetError."""
    try:
        data = read_bytes(os.path.join(path, name))
        value = None if data is None else json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, ["%s cannot be read (%s)" % (name, getattr(error, "strerror", None) or error)]) from error
    if data is None:
        raise incomplete(path, [name])
    if not isinstance(value, dict):
        raise _damaged(path, ["%s is not an object" % name])
    return value


def _format(path, config, formats):
    """The weights' format. Raises FleetError if it is not one of these."""
    try:
        found = format_of(config)
    except ValueError as error:
        raise unfit(path, str(error)) from None
    if found not in formats:
        raise unfit(path, "its format is %s, allowed: %s" % (found, ", ".join(formats)))
    return found


def _tensors_by_shard(path):
    """{shard: set of the tensors it must contain}; a lone model.safetensors needs no index (None: any)."""
    if not os.path.exists(os.path.join(path, INDEX)) and os.path.isfile(os.path.join(path, SINGLE)):
        return {SINGLE: None}
    weight_map = read(path, INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _damaged(path, ["%s has no weight_map" % INDEX])
    tensors = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or os.path.basename(shard) != shard or shard in ("", ".", ".."):
            raise _damaged(path, ["%s: weight_map puts %s into %s" % (INDEX, tensor, json.dumps(shard))])
        tensors.setdefault(shard, set()).add(tensor)
    return tensors


def read_header(file):
    """({tensor: {dtype, shape, data_offsets}} of a safetensors file, bytes that the file must have, and has).

    Only the header is read, never the data. Raises ValueError if it is missing or broken, OSError.
    """
    with open(file, "rb") as stream:
        size, length = os.fstat(stream.fileno()).st_size, int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= LONGEST_HEADER or 8 + length > size:
            raise ValueError("has no safetensors header (%d bytes long)" % size)
        text = stream.read(length)
    try:
        found = {key: entry for key, entry in json.loads(text.decode("utf-8")).items() if key != "__metadata__"}
        ends = [entry["data_offsets"][1] for entry in found.values()]
        return found, 8 + length + max(ends, default=0), size
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise ValueError("has a broken safetensors header") from None


def _damage(path, name, tensors):
    """What is wrong with a shard, by its header and its length; None if nothing is."""
    if not name.endswith(".safetensors"):
        return None if os.path.getsize(os.path.join(path, name)) else "%s is empty" % name
    try:
        header, implied, size = read_header(os.path.join(path, name))
    except OSError as error:
        return "%s cannot be read (%s)" % (name, error.strerror)
    except ValueError as error:
        return "%s %s" % (name, error)
    if implied != size:
        return "%s is %d bytes long, its header implies %d" % (name, size, implied)
    absent = sorted((tensors or set()) - set(header))
    if absent:
        return "%s lacks %d of the tensors that the index puts there, such as %s" % (name, len(absent), absent[0])
    return None


def tensors(path):
    """{tensor: {dtype, shape, data_offsets}} of all shards of the checkpoint in the directory `path`.

    Only headers are read. Raises FleetError if a shard is missing or damaged.
    """
    found = {}
    for name, wanted in sorted(_tensors_by_shard(path).items()):
        problem = _damage(path, name, wanted)
        if problem:
            raise _damaged(path, [problem])
        found.update(read_header(os.path.join(path, name))[0])
    return found
