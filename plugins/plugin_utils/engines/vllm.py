# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM and the plugins that run under its name: `vllm serve`."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.engines.vllm_api_keys import API_KEY
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.base import (
    Engine,
    cache_bytes_of,
    read_degree,
    read_number,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.words import FALSE, TRUE, show

LENGTH, SEQUENCES, BATCHED = "max-model-len", "max-num-seqs", "max-num-batched-tokens"
FRACTION, CACHE, HYBRID = "gpu-memory-utilization", "kv-cache-memory-bytes", "disable-hybrid-kv-cache-manager"
# What says that the model's own length does not hold.
LONGER_FLAGS = ("hf-overrides", "rope-scaling")
LONGER_VARIABLE = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


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

    def longer(self, names, environment):
        return bool(names & set(LONGER_FLAGS)) or environment.get(LONGER_VARIABLE) == "1"

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


ENGINE = Vllm()
