# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark profiles of every shipped recipe plan, alone and with each of its overlays, and fit the servers."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.points import points
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes

NAMES = recipes.available([recipes.OWN_RECIPES])
COUNTS = {"gb200": 4, "trainium3": 16, "910c": 16, "cpu": 2, "910b": 8}
SWEEP = [32, 64, 128, 256, 512]
FULL = [*SWEEP, 1024, 2048, 4096]
# {recipe: (tool of its profile guide, its numbers of concurrency)}
GUIDES = {
    "ascend-a2": ("vllm-bench", [None]),
    "ascend-a3": ("vllm-bench", [None]),
    "b200-dynamo-disagg": ("aiperf", [256]),
    "b200-dynamo-vllm": ("aiperf", [256]),
    "b200-dynamo-vllm-disagg": ("aiperf", [256]),
    "b200-low-latency": ("trtllm-bench", [4, 8, 16]),
    "b200-max-throughput": ("trtllm-bench", [*FULL, 5120]),  # 640 on each of 8 GPUs
    "b200-vllm": ("vllm-bench", [1, 4, 16, 64, 256]),
    "blackwell-quickstart-low-latency": ("trtllm-bench", [*SWEEP, 720]),
    "blackwell-quickstart-max-throughput": ("trtllm-bench", [*FULL, 5760]),
    "cpu-dynamo": ("aiperf", [4]),
    "cpu-tiny": ("aiperf", [2, 8]),  # its guide is none, and quick the default
    "gb200-dynamo-disagg": ("aiperf", [256]),
    "gb200-low-latency": ("trtllm-bench", [4, 8, 16]),
    "gb200-max-throughput": ("trtllm-bench", [*SWEEP, 1024, 2048, 2560]),  # 640 on each of 4
    "h100-vllm": ("vllm-bench", [1, 4, 16, 48]),
    "h200-dynamo-vllm": ("aiperf", [256]),
    "h200-dynamo-vllm-disagg": ("aiperf", [256]),
    "h200-low-latency": ("trtllm-bench", [4, 8, 16]),
    "h200-max-throughput": ("trtllm-bench", [*FULL, 5120]),
    "h200-vllm": ("vllm-bench", [1, 4, 16, 64, 256]),
    "trn3-eagle3": ("llmperf", [8]),  # 1 on each of 8 servers
    "trn3-start-script": ("llmperf", [8]),
    "trn3-vllm-neuron": ("llmperf", [8]),
}


def planned(name, overlay=None, layers=()):
    """(plan entries, the recipe as resolved)."""
    clustered = name == "gb200-dynamo-disagg" or overlay in ("frontend", "prefill", "decode")
    overlays = [one for one in ("etcd" if clustered and name == "cpu-dynamo" else None, overlay) if one]
    recipe = recipes.resolve_recipe(recipes.find_recipe(name, []), list(layers), overlays)
    kind = recipe["needs"]["accelerators"][0]
    hardware = {"accelerator": kind, "count": COUNTS.get(kind, 8)}
    if kind == "trainium3":
        hardware["lnc"] = 2
    site = plan.Site(endpoints=(("etcd", "http://127.0.0.1:2379"),), clustered=clustered)
    return plan.plan_host("node-1", recipe, parse_hardware(hardware, "x"), site), plan.deployment(
        recipe, site, "node-1"
    )


def each_profile():
    for name in NAMES:
        own = recipes.load_recipe(recipes.find_recipe(name, []))
        for overlay in (None, *(own.get("overlays") or ())):
            yield name, overlay


@pytest.mark.parametrize(("name", "overlay"), list(each_profile()))
def test_all_profiles_of_a_recipe_fit_its_servers(name, overlay):
    entries, recipe = planned(name, overlay)
    if not any(entry["role"] in ("server", "frontend") for entry in entries):
        with pytest.raises(FleetError) as caught:  # a host of workers alone: their frontend is another's
            points(entries, recipe)
        assert caught.value.code == "measure.no-server"
        return
    for profile in recipe["benchmark"]["profiles"]:
        assert points(entries, recipe, profile)


@pytest.mark.parametrize("name", NAMES)
def test_the_guides_own_tool_is_the_default(name):
    entries, recipe = planned(name)
    found = [one for one in points(entries, recipe) if one["servers"][0] is found_first(entries)]
    assert (found[0]["point"]["tool"], [one["point"]["concurrency"] for one in found]) == GUIDES[name]


def found_first(entries):
    return next(entry for entry in entries if entry["role"] in ("server", "frontend"))


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("cpu-")])
def test_quick_is_the_same_on_all_accelerators(name):
    found = [one["point"] for one in points(*planned(name), "quick")]
    said = [(one["tool"], one["input_tokens"], one["output_tokens"], one["concurrency"], one["requests"])
            for one in found]  # fmt: skip
    assert said == [("aiperf", 1024, 128, 1, 8), ("aiperf", 1024, 128, 8, 64)]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("trn3-eagle3", {"output_tokens": 8000},
         "benchmark.profiles.guide: 10000 tokens of input, 8000 of output and up to 256 of the chat template are "
         "18256, and the servers' context is 16384. Lower input_tokens or output_tokens."),
        ("ascend-a2", {"concurrency": 5, "request_rate": None},
         "benchmark.profiles.guide: concurrency is 5, and the measured servers take 4 at once; the rest would wait in "
         "a queue. Lower it, or set queue: true where that is meant."),
        ("b200-dynamo-disagg", {"concurrency": 1024},
         "benchmark.profiles.guide: concurrency is 1024, and the measured servers take 512 at once; the rest would "
         "wait in a queue. Lower it, or set queue: true where that is meant."),
        ("gb200-dynamo-disagg", {"output_tokens": 3000},
         "benchmark.profiles.guide: 8000 tokens of input, 3000 of output and up to 256 of the chat template are 11256, "
         "and the servers' context is 11000. Lower input_tokens or output_tokens."),
        ("trn3-eagle3", {"request_rate": 2},
         "benchmark.profiles.guide.request_rate is 2, and the tool is llmperf; allowed: null: this tool's load is "
         "concurrency alone. Change it, or choose another tool."),
        ("trn3-eagle3", {"concurrency": None},
         "benchmark.profiles.guide.concurrency is null, and the tool is llmperf; allowed: a number: this tool has no "
         "other load. Change it, or choose another tool."),
        ("trn3-eagle3", {"limits": {"ttft_ms": 100}},
         "benchmark.profiles.guide.limits is {\"ttft_ms\": 100}, and the tool is llmperf; allowed: null: this tool "
         "counts no goodput. Change it, or choose another tool."),
    ],
)  # fmt: skip
def test_what_the_servers_of_a_recipe_do_not_take(name, change, words):
    entries, recipe = planned(name, None, [("fleet_override", {"benchmark": {"profiles": {"guide": change}}})])
    with pytest.raises(FleetError) as caught:
        points(entries, recipe)
    assert caught.value.message == words


def test_data_parallel_ranks_take_requests_each():
    entries, recipe = planned("ascend-a2", "data-parallel")
    assert [one["point"]["concurrency"] for one in points(entries, recipe, "quick")] == [1, 8]


def test_load_for_each_server():
    entries, recipe = planned("trn3-eagle3")
    point = points(entries, recipe)[0]["point"]
    assert (len(point["urls"]), point["concurrency"], point["requests"]) == (8, 8, 400)
