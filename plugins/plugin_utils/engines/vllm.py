# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM and the plugins that run under its name: `vllm serve`."""

from __future__ import annotations

import contextlib

from ansible_collections.inference.fleet.plugins.module_utils.engines.vllm_api_keys import API_KEY
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.base import (
    Engine,
    Unreadable,
    cache_bytes_of,
    read_degree,
    read_mapping,
    read_number,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.checks import number
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.words import FALSE, TRUE, show

LENGTH, SEQUENCES, BATCHED = "max-model-len", "max-num-seqs", "max-num-batched-tokens"
FRACTION, CACHE, HYBRID = "gpu-memory-utilization", "kv-cache-memory-bytes", "disable-hybrid-kv-cache-manager"
# What says that the model's own length does not hold.
LONGER_FLAGS = ("hf-overrides", "rope-scaling")
LONGER_VARIABLE = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
GRAPHS = "compilation-config"
GRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")  # vLLM, config/compilation.py


class Vllm(Engine):
    """vLLM. The command line wins over a configuration file."""

    name, label = "vllm", "vLLM"
    parallel = (*Engine.parallel, "data-parallel-size")
    port, bind, api_key = "port", "host", API_KEY
    whole = (
        *Engine.whole, SEQUENCES, "block-size", "num-gpu-blocks-override", "api-server-count", "max-loras",
        "max-lora-rank",
    )  # fmt: skip
    automatic = {LENGTH: ("auto", "-1")}
    sizes, lengths, shares = (BATCHED, LENGTH, CACHE), (LENGTH,), (FRACTION,)
    variables = {"VLLM_CPU_KVCACHE_SPACE": "whole", "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION": "share"}

    def check_flag(self, where, name, flag, value):
        if flag in self.aliases:
            raise FleetError(
                "recipe.flag-unknown",
                "%s: arguments.%s is no flag of %s; allowed: %s. Use that name.",
                (where, flag, self.label, name),
            )
        if isinstance(value, str) and value.strip().lower() in (TRUE | FALSE) - {"on", "off"}:
            raise FleetError(
                "recipe.flag-quoted-boolean",
                "%s: arguments.%s is the string %s, which the engine would get as a word; allowed: true or false "
                "without quotes. Remove the quotes, or give it as JSON with -e.",
                (where, flag, show(value)),
            )

    def check_command(self, where, server, version):
        """What its scheduler and its compiler refuse as they start, long after the server before was stopped."""
        values = server.arguments
        batched, sequences = read_number(values, (BATCHED,)), read_number(values, (SEQUENCES,))
        if batched and sequences and batched < sequences:
            raise FleetError(
                "plan.batched-below-sequences",
                "%s: arguments.%s is %d, but arguments.%s is %d, and a step has a token of each sequence; allowed: at "
                "least as many tokens. Raise the one or lower the other.",
                (where, BATCHED, batched, SEQUENCES, sequences),
            )
        length = None if str(values.get(LENGTH)) in self.automatic[LENGTH] else read_number(values, (LENGTH,))
        if batched and length and batched < length and values.get("enable-chunked-prefill") is False:
            raise FleetError(
                "plan.batched-below-length",
                "%s: arguments.%s is %d, but a prompt may have %d tokens (arguments.%s) and is computed in one step "
                "without chunked prefill; allowed: at least as many. Raise the one, lower the other, or remove "
                "no-enable-chunked-prefill.",
                (where, BATCHED, batched, length, LENGTH),
            )
        with contextlib.suppress(Unreadable):  # no mapping: the engine's own parser says so
            _check_graphs(where, *graph_settings(values))

    def longer(self, names, environment):
        return bool(names & set(LONGER_FLAGS)) or environment.get(LONGER_VARIABLE) == "1"

    def takes(self, entry):
        """Each data-parallel rank has a scheduler of its own."""
        found = super().takes(entry)
        if found["sequences"]:
            found["sequences"] *= read_degree(entry["arguments"], "data-parallel-size")
        return found

    def memory(self, entry, hardware, model):
        values = entry["arguments"]
        max_len = read_number(values, (LENGTH,), model.max_len) if values.get(LENGTH) != "auto" else None
        settings = {
            "tensor": read_degree(values, "tensor-parallel-size"),
            "pipeline": read_degree(values, "pipeline-parallel-size"),
            "data": read_degree(values, "data-parallel-size"),
            "fraction": read_number(values, (FRACTION,), 0.9, float),
            "max_seqs": read_number(values, (SEQUENCES,), 256),
            "max_seqs_given": SEQUENCES in values,
            "max_len": max_len if max_len and max_len > 0 else None,
            "batched": read_number(values, (BATCHED,), 2048),
            "kv_bytes": cache_bytes_of(values.get("kv-cache-dtype")),
            "budget": "utilization",
            "windowed": not values.get(HYBRID),
            "knobs": self.knobs,
        }
        cache = read_number(values, (CACHE,))
        if cache is not None:
            settings.update(fixed_cache(cache))
        return settings


def fixed_cache(size):
    """What a KV cache of `size` bytes changes in memory()'s result."""
    knobs = (SEQUENCES, LENGTH, CACHE, Vllm.knobs[3])
    return {"budget": "bytes", "cache_bytes": size, "knobs": knobs}


def graph_settings(values):
    """(mode, sizes that are captured), each None where the engine chooses. Unreadable. values: {canonical flag: it}."""
    config = read_mapping(values, GRAPHS)
    mode = values.get(GRAPHS + ".cudagraph-mode", config.get("cudagraph_mode"))
    return mode, values.get("cudagraph-capture-sizes", config.get("cudagraph_capture_sizes"))


def _check_graphs(where, mode, sizes):
    if isinstance(mode, str) and mode.upper() not in GRAPH_MODES:
        raise FleetError(
            "recipe.graph-mode-unknown",
            "%s: %s.cudagraph_mode is %s; allowed: %s. Write one of these, or remove it.",
            (where, GRAPHS, show(mode), ", ".join(GRAPH_MODES)),
        )
    if sizes is not None and not (isinstance(sizes, list) and all((number(size) or 0) > 0 for size in sizes)):
        raise FleetError(
            "recipe.graph-sizes-invalid",
            "%s: %s.cudagraph_capture_sizes is %s; allowed: a list of whole numbers above 0. Correct it, or remove it, "
            "and the engine takes those that suit %s.",
            (where, GRAPHS, show(sizes), SEQUENCES),
        )


ENGINE = Vllm()
