# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guide for Trainium3 on a simulated node of four chips: the image's script and the public plugin are measured."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.tests.nodes import guide_node, measuring_tools
from ansible_collections.inference.fleet.tests.unit.engines.tiny_datasets import tiny_datasets
from ansible_collections.inference.fleet.tools import hardware_check

# The checkpoint of the image, because no hub is available.
MODEL = {"source": "path", "revision": None, "path": "/mnt/inference/models/gpt-oss-120b"}
SMALL = {
    "guide": {"input_tokens": 64, "output_tokens": 16, "requests": 2},
    "quick": {"input_tokens": 64, "output_tokens": 16, "concurrency": 2, "requests_per_user": 2},
}
HARDWARE = {"accelerator": "trainium3", "count": 4, "cores": 8, "lnc": 2, "memory_gib": 144}


@pytest.fixture(scope="module")
def image(make_guide_node):
    """A node of the machine image."""
    return make_guide_node("neuron4", fleet_hardware=HARDWARE)


@pytest.fixture(scope="module", params=["trn3-start-script", pytest.param("trn3-vllm-neuron", marks=pytest.mark.soak)])
def deployed(request, image):
    """The node with two servers of a recipe."""
    override = {"start": {"budget_s": 90, "poll_s": 1}, "benchmark": {"profiles": SMALL}}
    if request.param == "trn3-vllm-neuron":
        override["model"] = MODEL
    image.variables.update(fleet_recipe=request.param, fleet_override=override)
    image.play("site.yml").ok()
    return image


def test_llmperf_measures_the_endpoints(deployed, tmp_path):
    given = measuring_tools.make_llmperf(tmp_path)
    (found,) = deployed.measure("benchmark.yml", **given)
    assert (found["profile"], found["tool"]["name"], len(found["servers"])) == ("guide", "llmperf", 2)
    assert found["counts"] == {"asked": 4, "completed": 4, "failed": 0}  # two for each endpoint


def test_the_evaluation_profile(deployed, tmp_path):
    data = {"evaluate_datasets": str(tiny_datasets(tmp_path / "data")), "evaluate_gpt_oss_python": "3.11"}
    found = deployed.measure("evaluate.yml", **data, evaluate_evals=["gpqa", "aime25"], evaluate_examples=2,
                             evaluate_max_tokens=256)  # fmt: skip
    assert sorted((one["eval"], one["tool"]["name"], one["ok"], one["failed"]) for one in found) == [
        ("aime25", "gpt_oss.evals", True, 0),
        ("gpqa", "gpt_oss.evals", True, 0),
    ]


def test_the_hardware_check(deployed, tmp_path):
    """The folder that users send is complete, and contains neither the node's name nor its address."""
    variables = {**deployed.variables, "benchmark_find_links": [guide_node.WHEELS], "benchmark_poll_s": 1}
    variables["benchmark_environment"] = guide_node.NO_INDEX
    del variables["fleet_reports_dir"]  # the check's own
    folder = tmp_path / "found"
    words = ["-i", str(deployed.inventory), "--output", str(folder), "-e", json.dumps(variables)]
    assert hardware_check.main(words) == 0, "\n".join(log.read_text() for log in folder.glob("*.log"))
    assert "NEURON" in (folder / "hosts" / "host-1" / "neuron-ls.txt").read_text()
    verdict = json.loads((folder / "reports" / "verdict.json").read_text())
    assert [host["ok"] for host in verdict["hosts"].values()] == [True]
    (measured,) = result.history(str(folder / "reports"))[0]
    assert (measured["profile"], measured["tool"]["name"], measured["ok"]) == ("quick", "aiperf", True)
    written = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert not [content for content in written if deployed.node.name in content or deployed.node.address in content]
