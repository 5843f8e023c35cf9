# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shipped recipes planned for the benchmark of their guides."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.tests.unit.engines import plans

NAMES = [one for one in plans.OWN if "embedding" not in one]  # which nothing measures
SWEEP = [32, 64, 128, 256, 512]
FULL = [*SWEEP, 1024, 2048, 4096]
# {recipe: (tool of its profile guide, its numbers of concurrency)}
GUIDES = {
    "a100-vllm": ("vllm-bench", [1, 4, 16, 48]),
    "l40s-vllm": ("vllm-bench", [1, 4, 16, 64]),
    "rtx-pro-6000-vllm": ("vllm-bench", [1, 4, 16, 64, 128]),
    "ascend-a2": ("vllm-bench", [None]),
    "ascend-a3": ("vllm-bench", [None]),
    "ascend-qwen3-32b": ("vllm-bench", [None]),
    "b200-dynamo-disagg": ("aiperf", [256]),
    "b200-dynamo-vllm": ("aiperf", [256]),
    "b200-dynamo-vllm-disagg": ("aiperf", [256]),
    "b200-low-latency": ("trtllm-bench", [4, 8, 16]),
    "b200-max-throughput": ("trtllm-bench", [*FULL, 5120]),  # 640 on each of 8 GPUs
    "b200-vllm": ("vllm-bench", [1, 4, 16, 64, 256]),
    "blackwell-quickstart-low-latency": ("trtllm-bench", [*SWEEP, 720]),
    "blackwell-quickstart-max-throughput": ("trtllm-bench", [*FULL, 5760]),
    "cpu-dynamo": ("aiperf", [4]),
    "cpu-families": ("aiperf", [2, 8]),
    "cpu-tiny": ("aiperf", [2, 8]),  # its guide is none, and quick the default
    "deepseek-r1": ("aiperf", [1, 8]),
    "gb200-dynamo-disagg": ("aiperf", [256]),
    "gb200-low-latency": ("trtllm-bench", [4, 8, 16]),
    "gb200-max-throughput": ("trtllm-bench", [*SWEEP, 1024, 2048, 2560]),  # 640 on each of 4
    "h100-vllm": ("vllm-bench", [1, 4, 16, 48]),
    "h200-dynamo-vllm": ("aiperf", [256]),
    "h200-dynamo-vllm-disagg": ("aiperf", [256]),
    "h200-low-latency": ("trtllm-bench", [4, 8, 16]),
    "h200-max-throughput": ("trtllm-bench", [*FULL, 5120]),
    "h200-sglang": ("aiperf", [1, 8]),
    "mi300x-sglang": ("aiperf", [1, 8]),
    "h200-vllm": ("vllm-bench", [1, 4, 16, 64, 256]),
    "mi300x-vllm": ("vllm-bench", [1, 4, 16, 64, 256]),
    "llama-3.3-70b": ("aiperf", [1, 8]),
    "qwen3-32b": ("aiperf", [1, 8]),
    "trn3-eagle3": ("llmperf", [8]),  # 1 on each of 8 servers
    "trn3-start-script": ("llmperf", [8]),
    "trn3-vllm-neuron": ("llmperf", [8]),
}


def hardware_of(recipe):
    """Half a node of an Atlas A3, and two cores; for other recipes a node of the first kind that they are for."""
    kind = recipe["needs"]["accelerators"][0]
    count = {"ascend-a3": 8, "cpu": 2}.get(kind, plans.COUNTS.get(kind, 8))
    return parse_hardware({"accelerator": kind, "count": count}, "x")


def planned(name, overlay=None, layers=()):
    """(plan entries, the recipe as resolved)."""
    clustered = name == "gb200-dynamo-disagg" or overlay in ("frontend", "prefill", "decode")
    overlays = [one for one in ("etcd" if clustered and name == "cpu-dynamo" else None, overlay) if one]
    recipe = recipes.resolve_recipe(recipes.find_recipe(name, []), list(layers), overlays)
    site = plan.Site(endpoints=(("etcd", "http://192.0.2.1:2379"),), clustered=clustered)
    return plan.plan_host("node-1", recipe, hardware_of(recipe), site), plan.deployment(recipe, site, "node-1")
