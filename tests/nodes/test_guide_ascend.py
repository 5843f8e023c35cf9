# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The measurements of the guide for Ascend on a simulated Atlas 800 A2, which has no route to the internet."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.tests.unit.engines.tiny_datasets import tiny_datasets

IMAGE = "127.0.0.1:5000/ascend/vllm-ascend:v0.20.2rc1"
SMALL = {
    "guide": {"requests": 4},
    "latency": {"requests": 8, "warmup_requests": 4},
    "throughput": {"requests": 4},
    "aisbench": {"concurrency": 2, "requests": 4},
}


@pytest.fixture(scope="module")
def atlas(make_guide_node):
    """The node with the recipe's two servers."""
    override = {
        "container": {"image": IMAGE}, "model": {"source": "standin"},
        "needs": {"driver": "25.0"}, "start": {"budget_s": 120, "poll_s": 1},
        "benchmark": {"profiles": SMALL},
    }  # fmt: skip
    made = make_guide_node(
        "ascend-a2", fleet_recipe="ascend-a2", fleet_hardware={"accelerator": "ascend-a2", "count": 8},
        fleet_override=override,
    )  # fmt: skip
    made.play("molecule/ascend/prepare.yml", ascend_tag="v0.20.2rc1", ascend_soc="a2").ok()
    made.play("site.yml").ok()
    return made


@pytest.mark.parametrize(
    ("profile", "tool", "counts"),
    [
        ("guide", "vllm-bench", [4, 4]),  # of each server
        ("latency", "vllm-latency", [8]),
        ("throughput", "vllm-throughput", [4]),
    ],
)
def test_vllm_bench(atlas, profile, tool, counts):
    found = atlas.measure("benchmark.yml", benchmark_profile=profile)
    assert [one["tool"]["name"] for one in found] == [tool] * len(counts)
    assert [one["counts"]["completed"] for one in found] == counts
    if profile == "latency":  # servers that stopped for the tool's engine are back
        assert atlas.play("site.yml").ok().count("changed") == 0


def test_aisbench(atlas, tmp_path):
    found = atlas.measure("benchmark.yml", benchmark_profile="aisbench")
    assert [one["counts"] for one in found] == [{"asked": 4, "completed": 4, "failed": 0}] * 2
    data = {"evaluate_datasets": str(tiny_datasets(tmp_path / "data"))}
    (document,) = atlas.measure("evaluate.yml", **data, evaluate_examples=2)
    assert (document["eval"], document["tool"]["name"], document["ok"]) == ("mmlu", "AISBench", True)
    assert (document["questions"], document["failed"], document["score"]) == (4, 0, 100.0)
