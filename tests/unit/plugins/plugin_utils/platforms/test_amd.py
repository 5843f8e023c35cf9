# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers on AMD Instinct GPUs: devices, variables and memory; docs/using/amd.md shows the project's own lines."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.tests import doc_examples
from ansible_collections.inference.fleet.tests.unit.engines import plans

PAGE = (doc_examples.USING / "amd.md").read_text(encoding="utf-8")


def entries(layer=None, **more):
    return plans.entries_of("mi300x-vllm", override=layer, **more)


def test_containers_get_all_gpus_and_a_variable_selects_their_own():
    found = entries({"servers": {"server": {"devices": 2}}})
    assert [one["environment"]["HIP_VISIBLE_DEVICES"] for one in found] == ["0,1", "2,3", "4,5", "6,7"]
    for one in found:
        assert one["container"]["devices"] == ["/dev/kfd", "/dev/dri"]
        assert {"--group-add=video", "--security-opt=seccomp=unconfined", "--ipc=host"} <= set(one["launch"])


def test_a_process_is_given_its_gpus():
    process = {"launcher": "process", "container": None, "venv": {"path": "/v", "create": False}, "command": ["vllm"]}
    found = entries({**process, "environment": {"HIP_VISIBLE_DEVICES": None}})
    assert [one["environment"]["HIP_VISIBLE_DEVICES"] for one in found] == [str(number) for number in range(8)]


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"HIP_VISIBLE_DEVICES": None}, "HIP_VISIBLE_DEVICES"),
        ({"HIP_VISIBLE_DEVICES": "${container_devices}"}, "HIP_VISIBLE_DEVICES"),
        ({"CUDA_VISIBLE_DEVICES": "7"}, "CUDA_VISIBLE_DEVICES"),
        ({"ROCR_VISIBLE_DEVICES": "${devices}"}, "ROCR_VISIBLE_DEVICES"),
    ],
)
def test_other_gpus_than_the_server_s_own_are_refused(environment, name):
    problem = plans.problem(entries, {"environment": environment})
    assert (problem.code, problem.values[1]) == ("plan.visible-devices", name)


@pytest.mark.parametrize(
    ("layer", "code"),
    [
        ({"model": {"family": "chat", "format": "nvfp4", "repo": "x/unknown"}}, "input.value-invalid"),
        ({"model": {"format": "bf16", "repo": "unsloth/gpt-oss-120b-BF16"}}, "plan.does-not-fit-memory"),
        ({"arguments": {"attention-backend": "ROCM_AITER_UNIFIED"}}, "plan.config-value-invalid"),
    ],
)
def test_formats_and_weights_that_do_not_fit(layer, code):
    variables = {"fleet_recipe": "mi300x-vllm", "fleet_hardware": {"accelerator": "mi300x", "count": 8}}
    assert plans.problem(plans.plan_of, {**variables, "fleet_override": layer}, deploys=True).code == code


@pytest.mark.parametrize(
    ("accelerator", "overlays", "weights", "cache"),
    [("mi300x", (), 63.3, 101.8), ("mi355x", (), 68.6, 182.9), ("mi355x", ("tp8",), 11.3, 240.7)],
)
def test_memory(accelerator, overlays, weights, cache):
    """vLLM pads the experts to 128, and on a MI355X to 256; its defaults for large GPUs are 1024 sequences."""
    found = plans.planned("mi300x-vllm", accelerator, overlays=overlays).capacity[0]
    assert (found["verdict"], found["max_seqs"]) == ("ok", 1024)
    assert (found["weights_gib"], found["kv_gib"]) == (pytest.approx(weights, abs=0.1), pytest.approx(cache, abs=0.1))


def test_the_page_shows_what_is_started():
    entry = entries(overlays=("tp8",))[0]
    words = " ".join(entry["command"])
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `-")]
    lines = [*(row[1].strip("`") for row in rows), *doc_examples.listed(PAGE, "Unchanged")]
    assert len(lines) == 9
    for line in lines:
        if line.startswith("--"):
            flag, _space, value = line.partition(" ")
            assert flag in words and (value in words or json.dumps(json.loads(value)) in words), line
    for name, value in entry["environment"].items():
        if name.startswith(("VLLM_ROCM", "HSA", "AMDGCN", "HIP")):
            assert "`%s=%s`" % (name, value) in PAGE, name
