# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What vLLM refuses as it starts is an error of the plan: batches, graph modes and the sizes that are captured."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import vllm
from ansible_collections.inference.fleet.tests.unit.engines import plans


def planned(**arguments):
    """The servers of h200-vllm with other arguments."""
    return plans.entries_of("h200-vllm", override={"arguments": arguments})


@pytest.mark.parametrize(
    ("arguments", "key", "allowed"),
    [
        ({"max-num-batched-tokens": 8, "max-num-seqs": 16}, "arguments.max-num-batched-tokens", "16"),
        ({"max-num-batched-tokens": "4K", "max-model-len": 8192, "no-enable-chunked-prefill": True},
         "arguments.max-num-batched-tokens", "8192"),
        ({"compilation-config": {"cudagraph_mode": "FULL_DECODE"}}, "compilation-config.cudagraph_mode", "PIECEWISE"),
        ({"compilation-config.cudagraph_mode": "half"}, "compilation-config.cudagraph_mode", "PIECEWISE"),
        ({"compilation-config": '{"cudagraph_capture_sizes": [1, 0]}'}, "compilation-config.cudagraph_capture_sizes",
         "above 0"),
        ({"compilation-config": {"cudagraph_capture_sizes": 4}}, "compilation-config.cudagraph_capture_sizes", "list"),
    ],
)  # fmt: skip
def test_what_the_engine_refuses_as_it_starts(arguments, key, allowed):
    problem = plans.problem(planned, **arguments)
    assert (problem.code, problem.values[0]) == ("input.value-invalid", "server 'server-0': " + key)
    assert allowed in problem.values[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        {"max-num-batched-tokens": 16, "max-num-seqs": 16},
        {"max-num-batched-tokens": 4096, "max-model-len": 8192},  # in two steps
        {"max-num-batched-tokens": 4096, "max-model-len": "auto", "no-enable-chunked-prefill": True},
        {"max-num-batched-tokens": 8192, "max-model-len": 8192, "no-enable-chunked-prefill": True},
        *({"compilation-config": {"cudagraph_mode": mode}} for mode in (*vllm.GRAPH_MODES, "piecewise", None)),
        {"compilation-config": {"cudagraph_capture_sizes": [1, 2, 4]}},
    ],
)
def test_what_it_takes(arguments):
    assert planned(**arguments)


@pytest.mark.parametrize(
    ("recipe", "version"),
    [
        ({"venv": {"version": "0.24.0.1.1.0, Neuron SDK 2.32.0"}}, "0.24.0"),
        ({"venv": {"version": "2.27 beta, vLLM 0.11.1"}}, "0.11.1"),
        ({"container": {"image": "127.0.0.1:5000/engine:1"}}, "None"),
        ({"container": {"image": "10.0.0.5:5000/neuron/pytorch-inference-vllm-neuronx:0.24.0.1.1.0-py313"}}, "0.24.0"),
        ({"container": {"image": "10.0.0.5:5000/vllm/vllm-openai:v0.32.0"}}, "0.32.0"),
    ],
)
def test_the_version_of_a_recipe(recipe, version):
    assert str(vllm.ENGINE.version({"platform": "neuron", **recipe})) == version
