# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang in the plan: flags by version, memory, no API keys."""

from __future__ import annotations

import types

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.sglang import ENGINE
from ansible_collections.inference.fleet.tests.unit.engines import plans


@pytest.mark.parametrize(("name", "accelerator", "cache"), [
    ("h200-sglang", "h200", 54.3), ("mi300x-sglang", "mi300x", 99.9),
])  # fmt: skip
def test_the_static_share_without_the_weights_is_the_cache(name, accelerator, cache):
    entries, _deployment, (found, *_others), *_given = plans.planned(name, accelerator)
    assert len(entries) == 8 and entries[1]["command"][:2] == ["sglang", "serve"]
    assert (found["verdict"], found["kv_gib"]) == ("ok", pytest.approx(cache, abs=0.1))
    assert entries[1]["arguments"]["tensor-parallel-size"] == "1"


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        ({"mem-fraction-statik": 0.8}, "plan.config-key-unknown", "mem-fraction-static"),
        ({"tool-call-parser": "openai"}, "plan.config-value-invalid", "openai"),
        ({"tool-call-parser": "qwen25"}, "input.value-invalid", "gpt-oss"),
        ({"tp-size": 2, "tensor-parallel-size": None}, "plan.parallel-not-devices", "tp-size"),
        ({"dp-size": 2}, "input.value-invalid", "data-parallel-size"),
        ({"mem-fraction-static": 0.3}, "plan.does-not-fit-memory", "mem-fraction-static"),
        ({"chunked-prefill-size": -2}, "input.value-invalid", "chunked-prefill-size"),
        ({"ep": 1, "ep-size": 1}, "plan.flags-conflict", "ep-size"),
        ({"page_size": 64}, "input.key-unknown", "page-size"),
    ],
)
def test_what_a_plan_refuses(arguments, code, value):
    variables = {"fleet_recipe": "h200-sglang", "fleet_hardware": {"accelerator": "h200", "count": 8},
                 "fleet_override": {"arguments": arguments}}  # fmt: skip
    problem = plans.problem(plans.plan_of, variables, deploys=True)
    assert problem.code == code and value in "%s %s" % (problem.values, problem.message)


def test_a_step_without_chunks_computes_a_longest_request():
    override = {"arguments": {"chunked-prefill-size": -1, "max-total-tokens": "1M"}}
    entry = plans.entries_of("h200-sglang", override=override)[0]
    assert ENGINE.memory(entry, None, types.SimpleNamespace(max_len=131072))["batched"] == 131072


@pytest.mark.parametrize(
    ("second", "fits"),
    [(8001, False), (8007, True), (8013, False), (8236, False)],
)
def test_ports_that_attention_of_data_parallel_ranks_takes(second, fits):
    override = {
        "servers": {"server": {"devices": 4}},
        "arguments": {"enable-dp-attention": True, "data-parallel-size": 4},
        "instances": {"server-1": {"port": second}},
    }
    if fits:
        assert len(plans.entries_of("h200-sglang", override=override)) == 2
    else:
        assert plans.codes(plans.entries_of, "h200-sglang", override=override) == {"input.value-invalid"}


def test_an_api_key_is_refused():
    assert plans.codes(plans.entries_of, "h200-sglang", api_key=True) == {"plan.engine-without-api-keys"}
