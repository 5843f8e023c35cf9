# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plain CPU cores."""

from __future__ import annotations

from ..engines.base import Unreadable, read_number
from ..engines.vllm import fixed_cache
from .base import GIB, Accelerator, Platform

SPACE = "VLLM_CPU_KVCACHE_SPACE"


class Cpu(Platform):
    """Cores of the host. memory_gib is the host's memory, of which each server has an equal share."""

    name, label, unit, splits = "cpu", "CPU", "core", False
    accelerators = {"cpu": Accelerator(cores=1)}

    def lacks(self, hardware):
        return ("fp8", "nvfp4")

    def operations(self, host):
        return [host.role("cpu").call("shared_libraries")]

    def rank_memory(self, hardware, on_host):
        return hardware.memory_gib * GIB * hardware.count / on_host

    def memory(self, settings, entry, hardware, model):
        if settings["budget"] == "bytes":
            return settings
        space = read_number(entry["environment"], SPACE)
        if space is None:
            raise Unreadable("neither kv-cache-memory-bytes nor %s is set" % SPACE)
        knobs = (*settings["knobs"][:2], SPACE, settings["knobs"][3])
        return {**settings, **fixed_cache(space * GIB), "knobs": knobs}


PLATFORM = Cpu()
