# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dynamo: a frontend, and workers that are one of other engines (`python3 -m dynamo.trtllm`, `dynamo.vllm`)."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.plugin_utils.engines import trtllm, vllm
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.base import Engine

WORKERS = {one.name: one for one in (trtllm.ENGINE, vllm.ENGINE)}


class Dynamo(Engine):
    """Dynamo. Its frontend knows no API keys (dynamo#8605). What holds for a worker is what its engine says."""

    name, label = "dynamo", "Dynamo"
    port, bind = "http-port", "http-host"
    wraps = tuple(WORKERS)

    def running(self, backend):
        return Worker(WORKERS[backend]) if backend else self


class Worker(Dynamo):
    """Dynamo around another engine."""

    TAKEN = ("parallel", "aliases", "config_wins", "whole", "sizes", "shares", "lengths", "variables", "automatic",
             "knobs", "longer", "memory")  # fmt: skip

    def __init__(self, engine):
        for name in self.TAKEN:
            setattr(self, name, getattr(engine, name))


ENGINE = Dynamo()
