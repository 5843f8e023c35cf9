# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command lines of engines, and their versions."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES


@pytest.mark.parametrize(
    ("engine", "flag", "value", "argv"),
    [
        ("vllm", "enforce-eager", True, ["--enforce-eager"]),
        ("vllm", "enforce-eager", False, []),
        ("vllm", "O", 3, ["-O", "3"]),
        ("vllm", "gpu-memory-utilization", 0.9, ["--gpu-memory-utilization", "0.9"]),
        # argparse takes several values after one flag, click the flag several times.
        ("vllm", "served-model-name", ["a", "b"], ["--served-model-name", "a", "b"]),
        ("trtllm", "custom_module_dirs", ["a", "b"], ["--custom_module_dirs", "a", "--custom_module_dirs", "b"]),
        ("vllm", "compilation-config", {"sizes": [1, 2]}, ["--compilation-config", '{"sizes": [1, 2]}']),
    ],
)  # fmt: skip
def test_flags(engine, flag, value, argv):
    assert ENGINES[engine].flag_argv(flag, value) == argv


@pytest.mark.parametrize(
    ("engine", "command", "arguments", "content", "expected"),
    [
        ("vllm", ["vllm", "--tp=2"], {"max_num_seqs": 4}, {}, {"max-num-seqs": 4, "tensor-parallel-size": "2"}),
        ("vllm", ["x"], {"max-num-seqs": 4}, {"max_num_seqs": 8}, {"max-num-seqs": 4}),
        ("vllm", ["x"], {"no-async": True, "eager": False, "gone": None}, {}, {"async": False}),
        ("trtllm", ["x"], {"tp_size": 4}, {"tensor_parallel_size": 8}, {"tensor-parallel-size": 8}),
        ("dynamo.trtllm", ["-m", "mine"], {"tp": 4}, {"tensor_parallel_size": 8},
         {"m": "mine", "tensor-parallel-size": 8}),
        ("dynamo.vllm", ["-m", "mine"], {"tp": 4}, {"tensor_parallel_size": 8},
         {"m": "mine", "tensor-parallel-size": 4}),
    ],
)  # fmt: skip
def test_what_an_engine_runs_with(engine, command, arguments, content, expected):
    name, _dot, backend = engine.partition(".")
    assert ENGINES[name].running(backend).effective(command, arguments, {"content": content}) == expected


def of_image(image, **more):
    return {"container": {"image": image, **more}}


@pytest.mark.parametrize(
    ("engine", "recipe", "version"),
    [
        ("vllm", {"venv": {"version": "0.24.0.1.1.0, Neuron SDK 2.32.0"}}, "0.24.0"),
        ("vllm", {"venv": {"version": "2.27 beta, vLLM 0.11.1"}}, "0.11.1"),
        ("vllm", of_image("127.0.0.1:5000/engine:1"), "None"),
        ("vllm", of_image("10.0.0.5:5000/neuron/pytorch-inference-vllm-neuronx:0.24.0.1.1.0-py313"), "0.24.0"),
        ("vllm", of_image("10.0.0.5:5000/vllm/vllm-openai:v0.32.0"), "0.32.0"),
        ("trtllm", {"venv": {"packages": ["other==2", "tensorrt_llm==1.0.0"]}}, "1.0.0"),
        ("trtllm", of_image("mirror.example:5000/mine:1", version="1.2.1"), "1.2.1"),
        ("trtllm", of_image("mirror:5000/tensorrt-llm/release:1.0.0", version="1.2.1"), "1.0.0"),
        ("dynamo", of_image("mirror:5000/ai-dynamo/tensorrtllm-runtime:1.0.0@sha256:" + "0" * 64), "1.0.0"),
        ("dynamo", of_image("nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.3.1"), "None"),
        ("sglang", of_image("docker.io/lmsysorg/sglang:v0.5.21-rocm10-mi30x"), "0.5.21"),
        ("sglang", of_image("lmsysorg/sglang:v0.5.21.post1-cu130"), "0.5.21.post1"),
    ],
)
def test_the_version_of_a_recipe(engine, recipe, version):
    assert str(ENGINES[engine].version({"platform": "neuron", **recipe})) == version
