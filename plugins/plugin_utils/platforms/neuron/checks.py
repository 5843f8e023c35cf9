# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of a server on Trainium: cores, LNC, directories, and the configuration of its engine.

Two engines run as vLLM: NxD Inference, which reads override_neuron_config, and the vLLM Neuron plugin, which reads
neuron_config. Both ignore most unknown keys silently, after a compilation of half an hour, so every key is compared
with a list.
"""

from __future__ import annotations

import json
import posixpath

from ....module_utils.fleet_node.errors import FleetError
from ....module_utils.fleet_node.host.values import format_cpu_list, parse_cpu_list
from ....module_utils.fleet_node.platforms.neuron.kinds import FRAMEWORK, uses_nxdi
from ...base.checks import number
from ...base.words import close_to, show
from .artifacts import DATA, flag_name, is_within

KEYS = {name: dict.fromkeys(keys) for name, keys in DATA["keys"].items()}
for _name, _nested in DATA["nested"].items():
    KEYS[_name].update({key: dict.fromkeys(keys) for key, keys in _nested.items()})
RAISES = frozenset(DATA["raises"])
# Keys of additional-config that each engine reads ({key: keys of a mapping, or None}).
TOP = {
    True: {"override_neuron_config": KEYS["override_neuron_config"]},
    False: {"neuron_config": KEYS["neuron_config"], "vision_neuron_config": KEYS["vision_neuron_config"],
            "encoder_neuron_config": None, "mm_language_model_only": None},
}  # fmt: skip
SEGMENTS = (512, 1024, 2048, 4096, 8192)  # sizes that the plugin's segmented attention kernel is built for
CORE_VARIABLES = ("NEURON_RT_VISIBLE_CORES", "NEURON_VISIBLE_DEVICES")
LNC = 2  # of the runtime, unless a variable sets it
LNC_VARIABLES = ("NEURON_RT_VIRTUAL_CORE_SIZE", "NEURON_LOGICAL_NC_CONFIG")
ARTIFACTS, COMPILE = "NEURON_COMPILED_ARTIFACTS", "BASE_COMPILE_WORK_DIR"
# Where the plugin stores compiled graphs; the second takes precedence (libtorch_neuronx_lite of 0.24.0.1.1.0).
CACHE_ROOT, LIBRARY_CACHE_ROOT = "VLLM_CACHE_ROOT", "NEURON_LIBTORCH_CACHE_ROOT"
MAPPINGS = ("additional-config", "speculative-config")  # flags that are read here


def check_server(where, server):
    """Raises FleetError if the settings of a server on Trainium contradict each other.

    where: names the server in messages. server: planning.plan.Draft, all of it resolved.
    """
    for name, found, reason, write in _differences(where, server):
        value = "not set" if found is None else show(found)
        raise FleetError("neuron.value-not-as-planned", where, name, value, reason, write)


def _differences(where, server):
    """Yields (name, value, reason, correction) of values that contradict others or are missing (None). Raises
    FleetError for a configuration that the engine does not read."""
    environment, recipe, hardware = server.environment, server.recipe, server.hardware
    nxdi, values = uses_nxdi(environment), _by_name(server.values)
    yield from _core_differences(environment, server.devices, nxdi)
    for name in LNC_VARIABLES:
        if environment.get(name, str(hardware.lnc)) != str(hardware.lnc):
            yield "environment." + name, environment[name], "fleet_hardware.lnc is %d" % hardware.lnc, "${lnc}"
    if hardware.lnc != LNC and not any(name in environment for name in LNC_VARIABLES):  # units read no /etc/environment
        yield "environment." + LNC_VARIABLES[1], None, "fleet_hardware.lnc is %d" % hardware.lnc, "${lnc}"
    yield from _directory_differences(environment, server.directories, server.key, nxdi)
    _check_places(where, server.values, server.content, nxdi)
    additional, speculation = (_mapping(where, flag, values) for flag in MAPPINGS)
    _check_keys(where, additional, nxdi, frozenset(recipe.get("allow_unknown_config", ())))
    config = additional.get("override_neuron_config" if nxdi else "neuron_config") or {}
    if not nxdi:
        yield from _plugin_differences(where, hardware, values, config)
        return
    yield from _nxdi_differences(hardware, values, speculation, config)
    if not is_script(recipe):
        yield from _speculation_differences(recipe, speculation, config)


def is_script(recipe):
    """Whether the engine is started by a script of the machine image, which contains the arguments."""
    return any(word.endswith(".sh") for word in recipe["command"])


def _by_name(arguments):
    """Return {flag in argparse's spelling: value} of the flags that are set."""
    return {flag_name(flag): value for flag, value in arguments.items() if value is not None}


def check_shape(where, server):
    """Raises FleetError if a server, and so each tensor parallel group,
    has neither complete chips nor a part of a chip."""
    hardware, devices, group = server.hardware, server.devices, server.context["group"]
    chip, first, last = hardware.chip, devices[0], devices[-1]
    tensor = number(_by_name(server.values).get("tensor-parallel-size"))
    size, what = (len(devices), "servers.%s.devices" % group) if tensor is None else (
        tensor, "arguments.tensor-parallel-size")  # fmt: skip
    parts = ", ".join(str(one) for one in range(1, chip) if chip % one == 0)
    groups = [one for one in range(1, hardware.units + 1) if hardware.units % one == 0 and hardware.fits_chips(one)]
    if not hardware.fits_chips(len(devices)):
        problem = "servers.%s.devices is %d; allowed: %s or a multiple of %d" % (group, len(devices), parts, chip)
    elif devices != list(range(first, last + 1)):
        problem = "the cores %s do not follow each other" % ",".join(str(core) for core in devices)
    elif first // chip != last // chip and first % chip:
        problem = "the cores %s begin inside a chip; groups with complete chips come first" % format_cpu_list(devices)
    elif size not in groups:
        problem = "%s is %d; allowed: %s" % (what, size, ", ".join(str(one) for one in groups))
    else:
        return
    raise FleetError("neuron.cores-not-whole-chips", where, problem, chip)


def _core_differences(environment, devices, nxdi):
    own, required = "the server's cores are %s" % ",".join(map(str, devices)), CORE_VARIABLES[0 if nxdi else 1]
    for name in CORE_VARIABLES:
        value = environment.get(name)
        try:
            cores = list(devices) if value is None and name != required else sorted(parse_cpu_list(value or ""))
        except ValueError:
            cores = None
        if cores != list(devices):
            yield "environment." + name, value, own, "${device_range}"


def _directory_differences(environment, directories, key, nxdi):
    artifact, required = directories["artifact"], {ARTIFACTS: "artifact"}
    if nxdi:
        required[COMPILE] = "compile"
    else:
        root = environment.get(CACHE_ROOT) or None
        # the node compares the strings
        if root is None or not is_within(root, artifact) or posixpath.normpath(root) != root:
            reason = "the engine's cache must be in directories.artifact, %s, to be loaded and exported" % artifact
            yield "environment." + CACHE_ROOT, root, reason, "${artifact}/cache"
        other = environment.get(LIBRARY_CACHE_ROOT, root)
        if other != root:
            reason = "environment.%s is %s" % (CACHE_ROOT, root)
            yield "environment." + LIBRARY_CACHE_ROOT, other, reason, "${artifact}/cache"
    for name, kind in required.items():
        if environment.get(name) != directories[kind]:
            reason = "directories.%s is %s" % (kind, directories[kind])
            yield "environment." + name, environment.get(name) or None, reason, "${%s}" % kind
    if key not in artifact:
        reason = "without the artifact's key an artifact of another configuration would be loaded silently"
        yield "directories.artifact", artifact, reason, "a path that contains ${artifact_key}"


def _check_places(where, arguments, content, nxdi):
    """Raises FleetError if the engine's configuration is not written where it is checked: in one argument.

    content: of the configuration file that is rendered for the engine (vLLM's --config), {} if there is none.
    """
    for flag in arguments:
        name, dot, _rest = flag_name(flag).partition(".")
        key = name.replace("-", "_")
        if dot and name in MAPPINGS:
            _misplaced(where, "arguments." + flag, name)
        if key in KEYS:
            _misplaced(where, "arguments." + flag, "additional-config.%s" % key)
    for flag in content:
        name = flag_name(str(flag)).partition(".")[0]
        if name in (MAPPINGS if nxdi else MAPPINGS[:1]):
            _misplaced(where, "config.%s" % flag, name)


def _config_invalid(place, problem, write):
    raise FleetError("neuron.config-invalid", place, problem, write)


def _misplaced(where, found, place):
    write = "arguments.%s, as one mapping," % place
    _config_invalid("%s: %s" % (where, found), "is not read or not checked there", write)


def _invalid(place, value, allowed):
    _config_invalid(place, "is %s" % show(value), allowed)


def _mapping(where, flag, values):
    """Return the value of a flag as a mapping, {} if it is not set. The value may be JSON."""
    value = values.get(flag)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = 0
    if value is not None and not isinstance(value, dict):
        _invalid("%s: arguments.%s" % (where, flag), values[flag], "a mapping")
    return value or {}


def _check_keys(where, additional, nxdi, allowed):
    place, top = "%s: arguments.additional-config" % where, TOP[nxdi]
    for key in additional:
        if key in TOP[not nxdi]:
            engines = ("the vLLM Neuron plugin", "NxD Inference")
            reads, runs = engines if nxdi else engines[::-1]
            effect = "only %s reads it, and this server runs %s (environment.%s)" % (reads, runs, FRAMEWORK)
            _unknown_key(place, key, top, effect)
        if top.get(key) and additional[key] is None:
            _invalid("%s.%s" % (place, key), None, "a mapping")
    _check_known(place, additional, top, allowed)


def _check_known(place, config, known, allowed, raises=False):
    """Raises FleetError for a key of a mapping that the engine does not know. known: see TOP."""
    if not isinstance(config, dict):
        _invalid(place, config, "a mapping")
    for key in config:
        if key not in known and key not in allowed:
            effect = "the engine would fail at it after minutes" if raises else "the engine would ignore it silently"
            _unknown_key(place, key, known, effect)
    for key, inner in known.items():
        if inner and config.get(key) is not None:
            _check_known("%s.%s" % (place, key), config[key], inner, allowed, key in RAISES)


def _unknown_key(place, key, known, effect):
    few = ", ".join(known) if len(known) < 9 else "a key of the engine's documentation"
    few = close_to(key.replace("-", "_").lower(), known, 0.6) or few
    permit = "%s, or permit a key of a newer SDK with allow_unknown_config: [%s]," % (few, key)
    _config_invalid("%s.%s" % (place, key), "is unknown: %s" % effect, permit)


def _nxdi_differences(hardware, values, speculation, config):
    place = "arguments.additional-config.override_neuron_config."
    sequences = ("arguments.max-num-seqs", values.get("max-num-seqs"))
    lnc = ("fleet_hardware.lnc", hardware.lnc)
    pairs = {
        "tp_degree": ("arguments.tensor-parallel-size", values.get("tensor-parallel-size")),
        "logical_nc_config": lnc,
        "logical_neuron_cores": lnc,
        "batch_size": sequences,
        "max_batch_size": sequences,
        "tkg_batch_size": sequences,
        "seq_len": ("arguments.max-model-len", values.get("max-model-len")),
        "pa_num_blocks": ("arguments.num-gpu-blocks-override", values.get("num-gpu-blocks-override")),
        "speculation_length": ("arguments.speculative-config.num_speculative_tokens",
                               speculation.get("num_speculative_tokens")),
    }  # fmt: skip
    for key, (other, expected) in pairs.items():
        if key in config and expected is not None and number(config[key]) != number(expected):
            yield place + key, config[key], "%s is %s" % (other, expected), "the same value"
    yield from _block_differences(values)
    if config.get("is_mxfp4_compute"):
        yield from _mxfp4_differences(hardware, place + "is_mxfp4_compute", True, "false")


def _mxfp4_differences(hardware, name, value, write):
    if hardware.accelerator != "trainium3":
        reason = "fleet_hardware.accelerator is %s, and only trainium3 computes MXFP4" % hardware.accelerator
        yield name, value, reason, write


def _block_differences(values):
    """Yields num-gpu-blocks-override if it does not match the KV cache: one block for each sequence, or pages."""
    blocks, sequences = values.get("num-gpu-blocks-override"), values.get("max-num-seqs")
    paging = any(
        values.get(name) is True and values.get("no-" + name) is not True
        for name in ("enable-prefix-caching", "enable-chunked-prefill")
    )
    if blocks is None or paging != (number(blocks) == number(sequences)):
        return
    reason = "a block is a sequence without prefix caching, and arguments.max-num-seqs is %s" % sequences
    write = "null, or to ${max_num_seqs}"
    if paging:
        reason = "a block has only a few tokens with prefix caching or chunked prefill, not a sequence"
        write = "null, or to the number of blocks of the complete cache"
    yield "arguments.num-gpu-blocks-override", blocks, reason, write


def _speculation_differences(recipe, speculation, config):
    """Yields what differs unless EAGLE3 is declared in four places; without one of them, the engine drafts differently
    or fails late."""
    place, draft = "arguments.additional-config.override_neuron_config.", recipe["model"].get("draft")
    if not speculation:
        for key in ("is_eagle3", "enable_eagle_speculation", "enable_fused_speculation"):
            if config.get(key):
                yield place + key, config[key], "arguments.speculative-config is not set", "null, or set both"
        return
    if draft is None:
        yield "model.draft", None, "arguments.speculative-config is set", "a draft, or remove both"
    tokens, planned = speculation.get("num_speculative_tokens"), draft["tokens"]
    if number(tokens) != planned:
        name = "arguments.speculative-config.num_speculative_tokens"
        yield name, tokens, "model.draft.tokens is %s" % planned, "${draft_tokens}"
    for key in ("is_eagle3", "enable_eagle_speculation") if draft["method"] == "eagle3" else ():
        if not config.get(key):
            yield place + key, config.get(key), "model.draft.method is eagle3", "true"


def _plugin_differences(where, hardware, values, config):
    place = "arguments.additional-config.neuron_config."
    if config.get("quantization") == "mxfp4":
        yield from _mxfp4_differences(hardware, place + "quantization", "mxfp4", "null")
    for key, flag in (("num_seqs_buckets", "max-num-seqs"), ("num_batched_tokens_buckets", "max-num-batched-tokens")):
        buckets, most = config.get(key), number(values.get(flag))
        if buckets is None:
            continue
        if not isinstance(buckets, list) or not buckets or any(number(one) is None for one in buckets):
            _invalid("%s: %s" % (where, place + key), buckets, "a list of whole numbers")
        if most is not None and max(map(number, buckets)) != most:
            yield place + key, buckets, "arguments.%s is %d" % (flag, most), "a list whose largest number is that"
    segments = config.get("kv_segment_size_buckets")
    if segments is not None and (not isinstance(segments, list) or set(segments) - set(SEGMENTS)):
        allowed = "a list of %s" % ", ".join(map(str, SEGMENTS))
        _invalid("%s: %skv_segment_size_buckets" % (where, place), segments, allowed)
