# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang: `sglang serve`."""

from __future__ import annotations

from ..base.checks import invalid, number
from . import options
from .base import PARALLEL, SHARE, WHOLE, Engine, read_number
from .vllm import Vllm

TENSOR, DATA = Engine.parallel[0], "data-parallel-size"
FRACTION, SEQUENCES, LENGTH = "mem-fraction-static", "max-running-requests", "context-length"
CHUNK, PREFILL, EXPERTS = "chunked-prefill-size", "max-prefill-tokens", "expert-parallel-size"
ATTENTION = "enable-dp-attention"
# Distances of further ports from a server's port with ATTENTION (PortArgs.init_new, data_parallel_controller.py).
DERIVED = (13, *range(233, 240))
PROGRAMS = ("serve", "sglang.launch_server")  # words that start the server; others are of scripts that wrap it


class Sglang(Engine):
    """sglang serve. The command line wins over a configuration file, which its flag --config names.

    It does not support API keys here: it reads them from its command line or its file only, and writes all its settings
    into its log. Its options are recorded by version in sglang_flags.json.
    """

    name, label = "sglang", "SGLang"
    port, bind = "port", "host"
    versions = r"(?:^sglang(?:\[[^\]]*\])?==|(?:^|/)sglang:v?)(\d+\.\d+\.\d+(?:\.?(?:rc|post)\d+)*)"
    aliases = {**PARALLEL, "dp-size": DATA, "ep-size": EXPERTS, "ep": EXPERTS, "model": "model-path"}
    limits = {
        **Engine.limits,
        **dict.fromkeys((SEQUENCES, "page-size"), WHOLE),
        **dict.fromkeys((LENGTH, "max-total-tokens"), "size"),
        CHUNK: "int >=-1", FRACTION: SHARE,
    }  # fmt: skip
    lengths = (LENGTH,)
    knobs = (SEQUENCES, LENGTH, FRACTION, TENSOR)
    usual = (256, 0.85, (CHUNK, 8192))
    flags = options.Options("sglang_flags.json", label)
    parsers = Vllm.parsers

    def adapter_arguments(self, adapters):
        return {"lora-paths": ["%s=%s" % item for item in adapters.items()]}

    def attention_whole(self, values):
        return values.get(ATTENTION) is True and number(values.get(DATA)) == number(values.get(TENSOR))

    def check_command(self, where, server, version):
        """Raises FleetError for data parallelism that starts a copy of the model on further devices."""
        values = server.arguments
        if (number(values.get(DATA)) or 1) > 1 and values.get(ATTENTION) is not True:
            allowed = "1 without %s; servers.*.count makes more servers" % ATTENTION
            raise invalid("%s: arguments.%s" % (where, DATA), values[DATA], allowed)

    def check_host(self, entries, clustered, mistakes):
        """Note servers whose derived ports another server of the host has."""
        ports = {entry["name"]: {entry["port"], *entry["ports"].values()} for entry in entries}
        for entry in entries:
            values, flags = entry["arguments"], (entry["container"] or {}).get("flags", ())
            published = any(flag.startswith("--publish=") for flag in flags)  # the others are the container's own
            if values.get(ATTENTION) is not True or "dist-init-addr" in values or published:
                continue
            derived = {entry["port"] + step for step in DERIVED}
            other = next((name for name, taken in ports.items() if derived & taken), None)
            if other:
                allowed = "an instances.%s.port 7 or more from that of '%s': %s also uses port + 13 and + 233 to + 239"
                where = "server '%s': port" % entry["name"]
                mistakes.keep(invalid(where, entry["port"], allowed % (entry["name"], other, ATTENTION)))
            ports[entry["name"]] |= derived

    def spelling(self, name):
        return name

    def program(self, command, models=()):
        return next((place for place, word in enumerate(command) if word in PROGRAMS), None)

    def memory(self, entry, hardware, model):
        """mem-fraction-static is the share of weights and KV cache, and the rest is for activations and graphs (SGLang,
        memory_hook.py). Its default leaves 10 GiB or more. Layers with a window have 0.8 of the tokens of others."""
        values = entry["arguments"]
        sizes = self.sizes(values, model)
        if sizes["batched"] <= 0:  # without chunks "the real bound will be the maximum" of both (help of PREFILL)
            sizes["batched"] = max(sizes["max_len"], read_number(values, PREFILL, 16384))
        return {
            **sizes,
            "attention_dp": self.attention_whole(values),
            "whole_experts": (number(values.get(EXPERTS)) or 1) > 1,
            "budget": "capped",
            "windowed": False,
        }


ENGINE = Sglang()
