# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server on Trainium must agree on with itself: cores, LNC, directories, and the configuration of its engine.

Two engines run there, both as vLLM: NxD Inference, which reads override_neuron_config, and the vLLM Neuron plugin,
which reads neuron_config. Most keys that they do not know they take silently and go on as if those were not
there, after a compilation of half an hour; so every key is held against a list here.
"""

from __future__ import annotations

import difflib
import json
import os
import posixpath

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.cpu_list import (
    format_cpu_list,
    parse_cpu_list,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron.kinds import (
    FRAMEWORK,
    uses_nxdi,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import show
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms.neuron.artifacts import flag_name, is_within

with open(os.path.join(os.path.dirname(__file__), "keys.json"), encoding="utf-8") as _stream:
    _DATA = json.load(_stream)
KEYS = {name: frozenset(keys) for name, keys in _DATA["keys"].items()}
NESTED = {name: {key: frozenset(keys) for key, keys in nested.items()} for name, nested in _DATA["nested"].items()}
RAISES = frozenset(_DATA["raises"])
# What each engine reads at the top of additional-config.
TOP = {
    True: ("override_neuron_config",),
    False: ("neuron_config", "vision_neuron_config", "encoder_neuron_config", "mm_language_model_only"),
}
SEGMENTS = (512, 1024, 2048, 4096, 8192)  # sizes that the plugin's segmented attention kernel is built for
CORE_VARIABLES = ("NEURON_RT_VISIBLE_CORES", "NEURON_VISIBLE_DEVICES")
LNC_VARIABLES = ("NEURON_RT_VIRTUAL_CORE_SIZE", "NEURON_LOGICAL_NC_CONFIG")
ARTIFACTS, COMPILE = "NEURON_COMPILED_ARTIFACTS", "BASE_COMPILE_WORK_DIR"
# Where the plugin keeps compiled graphs; the second overrules the first (libtorch_neuronx_lite of 0.24.0.1.1.0).
CACHE_ROOT, LIBRARY_CACHE_ROOT = "VLLM_CACHE_ROOT", "NEURON_LIBTORCH_CACHE_ROOT"
MAPPINGS = ("additional-config", "speculative-config")  # flags that are read here


def check_server(where, server):
    """FleetError unless a server on Trainium is given what its engine will read, and says it only once.

    where: names the server in messages. server: planning.plan.Draft, all of it resolved.
    """
    arguments, environment, directories = server.values, server.environment, server.directories
    recipe, hardware, devices, key = server.recipe, server.hardware, server.devices, server.key
    nxdi = uses_nxdi(environment)
    script = is_script(recipe)
    values = _by_name(arguments)
    _check_cores(where, environment, devices, nxdi)
    for name in LNC_VARIABLES:
        if name in environment and environment[name] != str(hardware.lnc):
            _differs(where, "environment.%s" % name, environment[name], "fleet_hardware.lnc", hardware.lnc, "${lnc}")
    _check_directories(where, environment, directories, key, nxdi)
    _check_places(where, arguments, server.content, nxdi)
    additional, speculation = (_mapping(where, flag, values) for flag in MAPPINGS)
    _check_keys(where, additional, nxdi, frozenset(recipe.get("allow_unknown_config", ())))
    if nxdi:
        override = additional.get("override_neuron_config") or {}
        _check_nxdi(where, recipe, hardware, values, speculation, override, script)
    else:
        _check_plugin(where, hardware, values, additional.get("neuron_config") or {})


def is_script(recipe):
    """Whether the engine is started by a script of the machine image, which holds the arguments itself."""
    return any(word.endswith(".sh") for word in recipe["command"])


def _differs(where, what, value, other, expected, write):
    raise FleetError(
        "neuron.value-not-as-planned",
        "%s: %s is %s, but %s is %s; both must be the same. Write %s.",
        (where, what, show(value), other, expected, "%s there" % write if write.startswith("$") else write),
    )


def _by_name(arguments):
    """{flag as argparse knows it: value} of those that are set."""
    return {flag_name(flag): value for flag, value in arguments.items() if value is not None}


def check_shape(where, server):
    """FleetError unless a server has whole chips or a part of one, and so its tensor parallel groups."""
    hardware, devices, arguments, group = server.hardware, server.devices, server.values, server.context["group"]
    chip = hardware.chip
    if not hardware.fits_chips(len(devices)):
        parts = [str(size) for size in range(1, chip) if chip % size == 0]
        raise FleetError(
            "neuron.server-splits-chip",
            "%s: servers.%s.devices is %d, so it would end in the middle of a chip, which has %d logical cores; "
            "allowed: %s or a multiple of %d.",
            (where, group, len(devices), chip, ", ".join(parts), chip),
        )
    first, last = devices[0], devices[-1]
    if devices != list(range(first, last + 1)):
        raise FleetError(
            "neuron.cores-not-adjacent",
            "%s: its logical cores are %s; allowed: cores that follow each other. Change its device_list.",
            (where, ",".join(str(core) for core in devices)),
        )
    if first // chip != last // chip and first % chip:
        raise FleetError(
            "neuron.server-begins-inside-chip",
            "%s: its logical cores %s begin in the middle of a chip, which has %d. List the groups that have whole "
            "chips before the others.",
            (where, format_cpu_list(devices), chip),
        )
    tensor = _whole(_by_name(arguments).get("tensor-parallel-size"))
    size, what = (len(devices), "servers.%s.devices" % group) if tensor is None else (
        tensor, "arguments.tensor-parallel-size")  # fmt: skip
    allowed = [one for one in range(1, hardware.units + 1) if hardware.units % one == 0 and hardware.fits_chips(one)]
    if size not in allowed:
        raise FleetError(
            "neuron.size-does-not-divide",
            "%s: %s is %d, but the %d logical cores of the node divide into groups of %s; take one of these.",
            (where, what, size, hardware.units, ", ".join(str(one) for one in allowed)),
        )


def _check_cores(where, environment, devices, nxdi):
    wanted = CORE_VARIABLES[0 if nxdi else 1]
    if wanted not in environment:
        raise FleetError(
            "neuron.cores-unset",
            "%s: environment.%s is not set; without it the server takes all cores of the node. Set it to "
            "${device_range}.",
            (where, wanted),
        )
    for name in CORE_VARIABLES:
        if name not in environment:
            continue
        try:
            cores = sorted(parse_cpu_list(environment[name]))
        except ValueError:
            cores = None
        if cores != list(devices):
            raise FleetError(
                "neuron.cores-differ",
                "%s: environment.%s is %s, but the server's cores are %s; write ${device_range} there.",
                (where, name, show(environment[name]), ",".join(str(core) for core in devices)),
            )


def _check_directories(where, environment, directories, key, nxdi):
    if nxdi:
        variables = [(ARTIFACTS, "artifact", "the engine deletes what it compiled and does so again"),
                     (COMPILE, "compile", "all servers of a node compile in /tmp/nxd_model")]  # fmt: skip
    else:
        _check_cache_root(where, environment, directories["artifact"])
        # The plugin does not read it; the node's guard does.
        variables = [(ARTIFACTS, "artifact", "the node keeps no record of what is compiled, and exports nothing")]
    for name, kind, effect in variables:
        if not environment.get(name):
            raise FleetError(
                "neuron.directory-unset",
                "%s: environment.%s is not set; without it %s. Set it to ${%s}.",
                (where, name, effect, kind),
            )
        if environment[name] != directories[kind]:
            _differs(
                where, "environment.%s" % name, environment[name], "directories.%s" % kind, directories[kind],
                "${%s}" % kind,
            )  # fmt: skip
    if key not in directories["artifact"]:
        raise FleetError(
            "neuron.artifact-without-key",
            "%s: directories.artifact is %s; an artifact that was compiled for another configuration would be loaded "
            "from there silently. Write ${artifact_key} into it.",
            (where, directories["artifact"]),
        )


def _check_cache_root(where, environment, artifact):
    value = environment.get(CACHE_ROOT)
    if not value:
        raise FleetError(
            "neuron.cache-unset",
            "%s: environment.%s is not set; without it the plugin compiles into the home of its user, and no artifact "
            "is loaded, kept or exported. Set it to ${artifact}/cache.",
            (where, CACHE_ROOT),
        )
    if not is_within(value, artifact) or posixpath.normpath(value) != value:  # the node compares the strings
        raise FleetError(
            "neuron.cache-outside-artifact",
            "%s: environment.%s is %s, but directories.artifact is %s; what the plugin compiles outside of it is not "
            "loaded by other servers, kept or exported. Write ${artifact}/cache there.",
            (where, CACHE_ROOT, show(value), artifact),
        )
    other = environment.get(LIBRARY_CACHE_ROOT, value)
    if other != value:
        _differs(
            where, "environment.%s" % LIBRARY_CACHE_ROOT, other, "environment.%s" % CACHE_ROOT, value,
            "${artifact}/cache",
        )  # fmt: skip


def _check_places(where, arguments, content, nxdi):
    """What is checked here stands in arguments, under the flag that the engine has for it.

    content: of the configuration file that is rendered for the engine (vLLM's --config), {} where there is none.
    """
    for flag in arguments:
        name, dot, _rest = flag_name(flag).partition(".")
        if dot and name in MAPPINGS:
            raise FleetError(
                "neuron.config-as-dotted-flags",
                "%s: arguments.%s: write %s as one mapping, not as flags with dots; both together do not merge in "
                "every version of vLLM.",
                (where, flag, name),
            )
        if name.replace("-", "_") in KEYS:
            raise FleetError(
                "neuron.config-is-no-flag",
                "%s: arguments.%s is no flag of the engine. Write arguments.additional-config.%s.",
                (where, flag, name.replace("-", "_")),
            )
    for flag in content:
        name = flag_name(str(flag)).partition(".")[0]
        if name in (MAPPINGS if nxdi else MAPPINGS[:1]):
            raise FleetError(
                "neuron.config-unchecked",
                "%s: config has %s, which is not checked there. Write arguments.%s instead.",
                (where, flag, name),
            )


def _mapping(where, flag, values):
    """The value of a flag as a mapping, {} where it is not set; it may be written as JSON."""
    value = values.get(flag)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = 0
    if value is not None and not isinstance(value, dict):
        raise FleetError(
            "neuron.config-not-a-mapping",
            "%s: arguments.%s is %s; allowed: a mapping.",
            (where, flag, show(values[flag])),
        )
    return value or {}


def _check_keys(where, additional, nxdi, allowed):
    top = TOP[nxdi]
    for key in additional:
        if key in top or key in allowed:
            continue
        place = "%s: arguments.additional-config.%s" % (where, key)
        if key.replace("-", "_") in top:
            raise FleetError(
                "neuron.config-key-with-hyphens",
                "%s is never read: the engine looks for %s, with underscores, and runs with its defaults where that is "
                "missing. Rename it.",
                (place, key.replace("-", "_")),
            )
        if key in KEYS:
            raise FleetError(
                "neuron.config-key-of-other-framework",
                "%s is read by %s only, and this server runs %s (environment.%s); allowed here: %s.",
                (place, *_names(not nxdi), FRAMEWORK, ", ".join(top)),
            )
        raise FleetError(
            "neuron.config-key-unknown",
            "%s is unknown%s; allowed: %s. A key of a newer SDK is let through by allow_unknown_config: [%s].",
            (place, _close(key, top), ", ".join(top), key),
        )
    for name, known in KEYS.items():
        if name not in additional:
            continue
        place = "%s: arguments.additional-config.%s" % (where, name)
        if not isinstance(additional[name], dict):
            raise FleetError(
                "neuron.config-not-a-mapping", "%s is %s; allowed: a mapping.", (place, show(additional[name]))
            )
        _check_known(place, additional[name], known, allowed)
        for nested, keys in NESTED.get(name, {}).items():
            value = additional[name].get(nested)
            if value is None:
                continue
            if not isinstance(value, dict):
                raise FleetError(
                    "neuron.config-not-a-mapping", "%s.%s is %s; allowed: a mapping.", (place, nested, show(value))
                )
            _check_known("%s.%s" % (place, nested), value, keys, allowed, nested in RAISES)


def _names(nxdi):
    names = ("NxD Inference", "the vLLM Neuron plugin")
    return names if nxdi else names[::-1]


def _check_known(place, config, known, allowed, raises=False):
    for key in config:
        if key not in known and key not in allowed:
            raise FleetError(
                "neuron.config-key-unknown",
                "%s.%s is unknown, and the engine would %s%s A key of a newer SDK is let through by "
                "allow_unknown_config: [%s].",
                (
                    place,
                    key,
                    "fail at it after minutes" if raises else "ignore it silently",
                    _close(key, known) or ".",
                    key,
                ),
            )


def _close(key, known):
    close = difflib.get_close_matches(key.replace("-", "_").lower(), sorted(known), 1)
    return "; did you mean '%s'?" % close[0] if close else ""


def _whole(value):
    """A value as a whole number, None where it is none: the engine's own parser refuses that."""
    try:
        return None if isinstance(value, bool) else int(str(value))
    except ValueError:
        return None


def _check_nxdi(where, recipe, hardware, values, speculation, config, script):
    place = "arguments.additional-config.override_neuron_config"
    pairs = (
        ("tp_degree", "arguments.tensor-parallel-size", values.get("tensor-parallel-size")),
        ("logical_nc_config", "fleet_hardware.lnc", hardware.lnc),
        ("logical_neuron_cores", "fleet_hardware.lnc", hardware.lnc),
        ("batch_size", "arguments.max-num-seqs", values.get("max-num-seqs")),
        ("max_batch_size", "arguments.max-num-seqs", values.get("max-num-seqs")),
        ("tkg_batch_size", "arguments.max-num-seqs", values.get("max-num-seqs")),
        ("seq_len", "arguments.max-model-len", values.get("max-model-len")),
        ("pa_num_blocks", "arguments.num-gpu-blocks-override", values.get("num-gpu-blocks-override")),
        ("speculation_length", "arguments.speculative-config.num_speculative_tokens",
         speculation.get("num_speculative_tokens")),
    )  # fmt: skip
    for key, other, expected in pairs:
        if key in config and expected is not None and _whole(config[key]) != _whole(expected):
            _differs(where, "%s.%s" % (place, key), config[key], other, expected, "the same value into both")
    _check_blocks(where, values)
    if config.get("is_mxfp4_compute") and hardware.accelerator != "trainium3":
        raise FleetError(
            "neuron.mxfp4-unsupported",
            "%s: %s.is_mxfp4_compute is true, but fleet_hardware.accelerator is %s; only trainium3 computes MXFP4. "
            "Set it to false.",
            (where, place, hardware.accelerator),
        )
    if not script:
        _check_speculation(where, place, recipe, speculation, config)


def _check_blocks(where, values):
    """FleetError unless num-gpu-blocks-override fits the KV cache: one block for each sequence, or pages."""
    blocks, sequences = values.get("num-gpu-blocks-override"), values.get("max-num-seqs")
    if blocks is None:
        return
    paging = [
        name
        for name in ("enable-prefix-caching", "enable-chunked-prefill")
        if values.get(name) is True and values.get("no-" + name) is not True
    ]
    same = _whole(blocks) == _whole(sequences)
    if not paging and not same:
        raise FleetError(
            "neuron.blocks-not-sequences",
            "%s: arguments.num-gpu-blocks-override is %s, but arguments.max-num-seqs is %s; without prefix caching one "
            "block is one sequence, so both must be the same. Remove num-gpu-blocks-override, or set it to "
            "${max_num_seqs}.",
            (where, show(blocks), show(sequences)),
        )
    if paging and same:
        raise FleetError(
            "neuron.blocks-too-few",
            "%s: arguments.num-gpu-blocks-override is %d, one for each sequence, but with %s a block holds only a few "
            "tokens. Remove num-gpu-blocks-override (null), or set it to the number of blocks of the whole cache.",
            (where, _whole(blocks), paging[0]),
        )


def _check_speculation(where, place, recipe, speculation, config):
    """EAGLE3 is asked for in four places; with one of them missing the engine drafts in another way, or fails late."""
    draft = recipe["model"].get("draft")
    wanted = [key for key in ("is_eagle3", "enable_eagle_speculation", "enable_fused_speculation") if config.get(key)]
    if not speculation:
        if wanted:
            raise FleetError(
                "neuron.speculation-half-set",
                "%s: %s.%s is set, but arguments.speculative-config is not; the engine would fail after it has "
                "compiled. Set both or neither.",
                (where, place, wanted[0]),
            )
        return
    if draft is None:
        raise FleetError(
            "neuron.draft-missing",
            "%s: arguments.speculative-config is set, but model.draft is not. Set model.draft, or remove "
            "arguments.speculative-config (null).",
            (where,),
        )
    tokens = speculation.get("num_speculative_tokens")
    if _whole(tokens) != draft["tokens"]:
        _differs(
            where, "arguments.speculative-config.num_speculative_tokens", tokens, "model.draft.tokens",
            draft["tokens"], "${draft_tokens}",
        )  # fmt: skip
    if draft["method"] == "eagle3":
        for key in ("is_eagle3", "enable_eagle_speculation"):
            if not config.get(key):
                raise FleetError(
                    "neuron.eagle3-unset",
                    "%s: model.draft.method is eagle3, but %s.%s is not true; the engine would take the draft for "
                    "another kind of model. Set it.",
                    (where, place, key),
                )


def _check_plugin(where, hardware, values, config):
    place = "arguments.additional-config.neuron_config"
    if config.get("quantization") == "mxfp4" and hardware.accelerator != "trainium3":
        raise FleetError(
            "neuron.mxfp4-unsupported",
            "%s: %s.quantization is mxfp4, but fleet_hardware.accelerator is %s; only trainium3 computes MXFP4. "
            "Remove it.",
            (where, place, hardware.accelerator),
        )
    for key, flag in (("num_seqs_buckets", "max-num-seqs"), ("num_batched_tokens_buckets", "max-num-batched-tokens")):
        buckets, most = config.get(key), _whole(values.get(flag))
        if buckets is None:
            continue
        if not isinstance(buckets, list) or not buckets or any(_whole(one) is None for one in buckets):
            raise FleetError(
                "neuron.buckets-invalid",
                "%s: %s.%s is %s; allowed: a list of whole numbers.",
                (where, place, key, show(buckets)),
            )
        if most is not None and max(_whole(one) for one in buckets) != most:
            raise FleetError(
                "neuron.bucket-not-the-largest",
                "%s: the largest of %s.%s %s must be arguments.%s, which is %d.",
                (where, place, key, show(buckets), flag, most),
            )
    segments = config.get("kv_segment_size_buckets")
    if segments is not None and (not isinstance(segments, list) or set(segments) - set(SEGMENTS)):
        raise FleetError(
            "neuron.segments-invalid",
            "%s: %s.kv_segment_size_buckets is %s; allowed: a list of %s.",
            (where, place, show(segments), ", ".join(str(one) for one in SEGMENTS)),
        )
