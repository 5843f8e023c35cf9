# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a checkpoint directory holds, and whether it is whole, without reading the weights themselves."""

from __future__ import annotations

import json
import os

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError

MODEL_TYPE = "gpt_oss"
FORMATS = ("mxfp4", "bf16")
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TOKENIZER = "tokenizer.json"
# The safetensors library refuses longer headers.
LONGEST_HEADER = 100_000_000


def inspect(path):
    """Look at the checkpoint in the directory `path`.

    Returns {model_type, format ("mxfp4"|"bf16"), hidden_size, vocab_size, num_layers, shards: [names], bytes: of all
    shards}. A checkpoint is whole when config.json says gpt_oss in a known format, tokenizer.json is there, and each
    shard that the index names is there, holds the tensors that the index puts into it, and is as long as its own
    header implies. Shards are counted by the index: gpt-oss-120b has 15 of them, named 00000 to 00014 "of-00014".
    Raises FleetError that names every file in question.
    """
    if not os.path.isdir(path):
        raise FleetError("There is no checkpoint directory %s on this node; check the path, or mount it." % path)
    config = _json(path, CONFIG)
    model_type = config.get("model_type")
    if model_type != MODEL_TYPE:
        raise FleetError(
            "%s: model_type is %s, allowed: %s. This collection serves gpt-oss checkpoints only."
            % (os.path.join(path, CONFIG), json.dumps(model_type), json.dumps(MODEL_TYPE))
        )
    result = {"model_type": model_type, "format": _format(path, config)}
    for name, key in (
        ("hidden_size", "hidden_size"),
        ("vocab_size", "vocab_size"),
        ("num_layers", "num_hidden_layers"),
    ):
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise FleetError(
                "%s: %s is %s, allowed: a positive whole number." % (os.path.join(path, CONFIG), key, json.dumps(value))
            )
        result[name] = value
    tensors = _tensors_by_shard(path)
    missing = [name for name in sorted(tensors) if not os.path.isfile(os.path.join(path, name))]
    missing += [] if os.path.isfile(os.path.join(path, TOKENIZER)) else [TOKENIZER]
    if missing:
        raise FleetError(
            "The checkpoint in %s is not whole, missing: %s. Fetch or copy it again." % (path, ", ".join(missing)),
            missing=missing,
        )
    damage = [text for text in (_damage(path, name, tensors[name]) for name in sorted(tensors)) if text]
    if damage:
        raise FleetError(
            "The checkpoint in %s is damaged: %s. Fetch or copy it again." % (path, "; ".join(damage)), damage=damage
        )
    result["shards"] = sorted(tensors)
    result["bytes"] = sum(os.path.getsize(os.path.join(path, name)) for name in tensors)
    return result


def check_format(path, found, wanted):
    """Raise FleetError unless the format that `inspect` found at `path` is the wanted one (None: any)."""
    if wanted is not None and found != wanted:
        raise FleetError(
            "The checkpoint in %s is in format %s, the recipe needs %s. Serve another checkpoint or choose a recipe "
            "that takes this one." % (path, found, wanted)
        )


def _json(path, name):
    """The JSON object in a file of the checkpoint."""
    file = os.path.join(path, name)
    try:
        with open(file, encoding="utf-8") as stream:
            value = json.load(stream)
    except FileNotFoundError:
        raise FleetError(
            "The checkpoint in %s is not whole, missing: %s. Fetch or copy it again." % (path, name), missing=[name]
        ) from None
    except OSError as error:
        raise FleetError("Cannot read %s: %s." % (file, error.strerror)) from error
    except ValueError as error:
        raise FleetError("%s is no JSON (%s). Fetch or copy it again." % (file, error)) from error
    if not isinstance(value, dict):
        raise FleetError("%s holds %s, allowed: an object." % (file, type(value).__name__))
    return value


def _format(path, config):
    """mxfp4 as openai publishes it; without a quantization_config the weights are plain, here called bf16."""
    quantization = config.get("quantization_config")
    if quantization is None:
        return "bf16"
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if method != "mxfp4":
        raise FleetError(
            '%s: quantization_config.quant_method is %s, allowed: "mxfp4", or no quantization_config for bf16.'
            % (os.path.join(path, CONFIG), json.dumps(method))
        )
    return "mxfp4"


def _tensors_by_shard(path):
    """{shard: set of the tensors it must hold}; a lone model.safetensors needs no index (None: whatever it holds)."""
    if not os.path.exists(os.path.join(path, INDEX)) and os.path.isfile(os.path.join(path, SINGLE)):
        return {SINGLE: None}
    weight_map = _json(path, INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FleetError("%s has no weight_map. Fetch or copy it again." % os.path.join(path, INDEX))
    tensors = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or os.path.basename(shard) != shard or shard in ("", ".", ".."):
            raise FleetError(
                "%s: weight_map puts %s into %s, allowed: the name of a file beside it."
                % (os.path.join(path, INDEX), tensor, json.dumps(shard))
            )
        tensors.setdefault(shard, set()).add(tensor)
    return tensors


def _damage(path, name, tensors):
    """What is wrong with a shard, by its header and its length; None where nothing is."""
    file = os.path.join(path, name)
    try:
        with open(file, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or not 2 <= length <= LONGEST_HEADER or 8 + length > size:
                return "%s has no safetensors header (%d bytes long)" % (name, size)
            header = json.loads(stream.read(length).decode("utf-8"))
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
        implied = 8 + length + max(ends, default=0)
    except OSError as error:
        return "%s cannot be read (%s)" % (name, error.strerror)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return "%s has a broken safetensors header" % name
    if implied != size:
        return "%s is %d bytes long, its header implies %d" % (name, size, implied)
    absent = sorted((tensors or set()) - set(header))
    if absent:
        return "%s lacks %d of the tensors that the index puts there, such as %s" % (name, len(absent), absent[0])
    return None
