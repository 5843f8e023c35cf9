# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dynamo: a frontend, and workers that are one of two other engines (`python3 -m dynamo.trtllm`, `dynamo.vllm`)."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.plugin_utils.engines import trtllm, vllm
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.base import Engine


def _worker(command):
    return vllm.ENGINE if any("dynamo.vllm" in word for word in command) else trtllm.ENGINE


class Dynamo(Engine):
    """Dynamo. Its frontend knows no API keys (dynamo#8605). What holds for a worker is what its engine says."""

    name, label = "dynamo", "Dynamo"
    parallel = ("tensor-parallel-size",)
    port, bind = "http-port", "http-host"
    aliases = trtllm.ENGINE.aliases
    whole = tuple(dict.fromkeys((*vllm.ENGINE.whole, *trtllm.ENGINE.whole)))
    sizes = tuple(dict.fromkeys((*vllm.ENGINE.sizes, *trtllm.ENGINE.sizes)))
    shares = tuple(dict.fromkeys((*vllm.ENGINE.shares, *trtllm.ENGINE.shares)))
    lengths = (*vllm.ENGINE.lengths, *trtllm.ENGINE.lengths)
    variables, automatic = vllm.ENGINE.variables, vllm.ENGINE.automatic

    def reads_config_last(self, command):
        return _worker(command).config_wins

    def longer(self, names, environment):
        return vllm.ENGINE.longer(names, environment)

    def memory(self, entry, hardware, model):
        return _worker(entry["command"]).memory(entry, hardware, model)


ENGINE = Dynamo()
