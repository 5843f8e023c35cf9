# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM and plugins of vLLM: `vllm serve`."""

from __future__ import annotations

import contextlib
import os.path

from ...module_utils.fleet_node.engines import vllm_drains
from ...module_utils.fleet_node.engines.vllm_api_keys import API_KEY
from ..base.checks import invalid, number, unknown_key
from ..base.words import FALSE, TRUE
from . import options
from .base import SHARE, WHOLE, Engine, Unreadable, mapping_of, read_degree, read_mapping, read_number

LENGTH, SEQUENCES, BATCHED = "max-model-len", "max-num-seqs", "max-num-batched-tokens"
FRACTION, CACHE, HYBRID = "gpu-memory-utilization", "kv-cache-memory-bytes", "disable-hybrid-kv-cache-manager"
LARGE_GIB = 70  # from this size of a device on, the defaults for sequences and tokens per step are larger
# Flags and variables that override the maximum length of the model.
LONGER_FLAGS = ("hf-overrides", "rope-scaling")
LONGER_VARIABLE = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
GRAPHS = "compilation-config"
GRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")  # vLLM, config/compilation.py
# Tables of vllm_flags.json: options of all programs that wrap the engine, and options of vLLM's own server only.
SHARED, SERVE = "--", "--serve"
MODULE = "vllm.entrypoints.openai.api_server"
DRAFT, TRANSFER = "speculative-config", "kv-transfer-config"
CONNECTOR = TRANSFER + ".kv_connector"


class Vllm(Engine):
    """vLLM. The command line wins over a configuration file.

    Its command line options are recorded by version in vllm_flags.json.
    """

    name, label = "vllm", "vLLM"
    parallel = (*Engine.parallel, "data-parallel-size", "prefill-context-parallel-size")
    versions = r"(?:^vllm(?:-cpu)?(?:\[[^\]]*\])?==|(?:^|/)vllm-openai(?:-cpu|-rocm)?:v?)(\d+\.\d+(?:\.\d+)?(?:rc\d+)?)"
    forks = {
        "ascend": r"(?:^|/)vllm-ascend:v?(\d+\.\d+\.\d+)",
        # an address has four numbers
        "neuron": r"vLLM (\d+\.\d+\.\d+)|(?:^|-vllm-neuronx:)(\d+\.\d+\.\d+)(?:\.\d+){2}",
    }
    # forks: {platform: {flag: values that the vendor adds}}; of connectors by vllm_ascend/distributed/kv_transfer/
    # __init__.py, and before 0.14 by vllm_ascend/distributed.
    flags = options.Options("vllm_flags.json", label)
    unserved = ()
    parsers = {"tool-call-parser": "tool", "reasoning-parser": "reasoning"}
    parser_plugins = ("tool-parser-plugin", "reasoning-parser-plugin")
    port, bind, api_key = "port", "host", API_KEY
    limits = {
        **Engine.limits,
        **dict.fromkeys((SEQUENCES, "block-size", "num-gpu-blocks-override", "api-server-count", "max-loras",
                         "max-lora-rank"), WHOLE),
        BATCHED: "size", CACHE: "size", LENGTH: "size auto", FRACTION: SHARE,
    }  # fmt: skip
    lengths = (LENGTH,)
    usual = (256, 0.9, (BATCHED, 2048))
    variables = {"VLLM_CPU_KVCACHE_SPACE": WHOLE, "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION": SHARE}

    def operations(self, host, venv):
        return [host.role("vllm", venv=venv).call("python_environment")]

    def adapter_arguments(self, adapters):
        return {"enable-lora": True, "lora-modules": ["%s=%s" % item for item in adapters.items()]}

    def lora_rank(self, arguments):
        return super().lora_rank(arguments) or 16

    def check_flag(self, where, name, flag, value):
        if flag in self.aliases:
            raise unknown_key(where + ": arguments", flag, value, [name])
        if isinstance(value, str) and value.strip().lower() in (TRUE | FALSE) - {"on", "off"}:
            raise invalid("%s: arguments.%s" % (where, flag), value, "true or false without quotes, with -e as JSON")

    def check_command(self, where, server, version):
        """Raises FleetError for settings that the scheduler or compiler rejects at the start,
        after the previous server stopped."""
        values = server.arguments
        with contextlib.suppress(Unreadable):  # check_options() reports what is no number, or no mapping
            _check_batches(where, values)
        with contextlib.suppress(Unreadable):
            _check_graphs(where, *graph_settings(values))
        with contextlib.suppress(Unreadable):
            _check_draft(where, read_mapping(values, DRAFT), read_degree(values, Engine.parallel[0]))

    def drain_arguments(self, server):
        if self.program(server.command, [server.context["model"]]) is None:  # a script need not pass these on
            return []
        return ["--middleware", "%s.%s" % (vllm_drains.MODULE, vllm_drains.Drains.__name__)]

    def given(self, server, program):
        in_file = [("config.content.%s" % key, str(key), value) for key, value in server.content.items()]
        return [*super().given(server, program), *in_file]

    def program(self, command, models=()):
        words = [os.path.basename(word) for word in command]
        if words[:1] and (command[0] in models or words[0].startswith("-")):
            return -1
        return (
            words.index(MODULE) if MODULE in words else words.index("serve") if {"vllm", "serve"} <= {*words} else None
        )

    def sources(self, platform, version, values, program, tables=(SHARED, SERVE)):
        further = dict(self.flags.data["forks"].get(platform, {}))
        plugged = set(values) & set(self.parser_plugins)
        further.update({flag: (values[flag],) for flag in self.parsers if plugged and flag in values})
        transfer = _transfer(values)
        if transfer.get("kv_connector_module_path"):  # vLLM imports the connector from there, whatever its name is
            further[CONNECTOR] = (*further.get(CONNECTOR, ()), transfer.get("kv_connector"))
        return [options.Program(self.flags, tables, version, further)]

    def longer(self, names, environment):
        return bool(names & set(LONGER_FLAGS)) or environment.get(LONGER_VARIABLE) == "1"

    def takes(self, entry):
        """Return the limits of a server. Each data-parallel rank has a separate scheduler."""
        found = super().takes(entry)
        if found["sequences"]:
            found["sequences"] *= read_degree(entry["arguments"], "data-parallel-size")
        return found

    def memory(self, entry, hardware, model):
        values = entry["arguments"]
        automatic = str(values.get(LENGTH)) in ("auto", "-1")
        settings = {
            **self.sizes({**values, LENGTH: None} if automatic else values, model),
            "data": read_degree(values, "data-parallel-size"),
            "whole_experts": values.get("enable-expert-parallel") is True,
            "budget": "utilization",
            "windowed": not values.get(HYBRID),
        }
        if automatic:  # the engine chooses it
            settings["max_len"] = None
        cache = read_number(values, CACHE)
        if cache is not None:
            settings.update(fixed_cache(cache))
        return settings


def fixed_cache(size):
    """Return the entries of memory()'s result for a KV cache of `size` bytes."""
    knobs = (SEQUENCES, LENGTH, CACHE, Vllm.knobs[3])
    return {"budget": "bytes", "cache_bytes": size, "knobs": knobs}


def larger_defaults(settings, entry, hardware):
    """Return memory()'s result with the defaults for GPUs with much memory (EngineArgs.get_batch_defaults)."""
    if entry["engine"] != Vllm.name or hardware.memory_gib < LARGE_GIB:
        return settings
    larger = {} if settings["max_seqs_given"] else {"max_seqs": 1024}
    if BATCHED not in entry["arguments"]:
        larger["batched"] = 8192
    return {**settings, **larger}


def graph_settings(values):
    """Return (mode, captured sizes), each None if the engine chooses. Raises Unreadable.
    values: {canonical flag: value}."""
    config = read_mapping(values, GRAPHS)
    mode = values.get(GRAPHS + ".cudagraph-mode", config.get("cudagraph_mode"))
    return mode, values.get("cudagraph-capture-sizes", config.get("cudagraph_capture_sizes"))


def _transfer(values):
    """Return the KV transfer settings in flags, which may be one mapping or use dots."""
    found = {}
    for flag, value in values.items():
        base, _dot, key = flag.partition(".")
        if base == TRANSFER:
            found.update({key.replace("-", "_"): value} if key else mapping_of(values, TRANSFER))
    return found


def _check_draft(where, draft, tensor):
    size = number(draft.get("draft_tensor_parallel_size"))
    if size is not None and size not in (1, tensor):
        raise invalid(
            "%s: %s.draft_tensor_parallel_size" % (where, DRAFT), size, "1, or tensor-parallel-size, %d" % tensor
        )
    tokens = draft.get("num_speculative_tokens")
    if tokens is not None and (number(tokens) or 0) < 1:
        raise invalid("%s: %s.num_speculative_tokens" % (where, DRAFT), tokens, "a whole number above 0")


def _check_batches(where, values):
    place = "%s: arguments.%s" % (where, BATCHED)
    batched, sequences = read_number(values, BATCHED), read_number(values, SEQUENCES)
    if batched and sequences and batched < sequences:
        raise invalid(place, batched, "at least %d, a token for each sequence (%s)" % (sequences, SEQUENCES))
    length = None if str(values.get(LENGTH)) in ("auto", "-1") else read_number(values, LENGTH)
    if batched and length and batched < length and values.get("enable-chunked-prefill") is False:
        allowed = "at least %d (%s) without chunked prefill, which computes a prompt in one step"
        raise invalid(place, batched, allowed % (length, LENGTH))


def _check_graphs(where, mode, sizes):
    if isinstance(mode, str) and mode.upper() not in GRAPH_MODES:
        raise invalid("%s: %s.cudagraph_mode" % (where, GRAPHS), mode, ", ".join(GRAPH_MODES))
    if sizes is not None and not (isinstance(sizes, list) and all((number(size) or 0) > 0 for size in sizes)):
        raise invalid("%s: %s.cudagraph_capture_sizes" % (where, GRAPHS), sizes, "a list of whole numbers above 0")


ENGINE = Vllm()
