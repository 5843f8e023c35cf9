# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A mistyped argument, or a value that no release takes, is an error of the plan; what the recipes say is none."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES, dynamo, options
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.plugins.plugin_utils.engines import bad_arguments

GUIDE = {
    "dynamo.frontend": "router-mode http-port",
    "dynamo.trtllm": "model-path served-model-name extra-engine-args dyn-reasoning-parser dyn-tool-call-parser "
    "disaggregation-mode max-num-tokens max-batch-size free-gpu-memory-fraction tensor-parallel-size "
    "expert-parallel-size",
}
OFFICIAL = "docker.io/vllm/vllm-openai:v%s"


def warnings(recipe, override=None):
    return [one for item in plans.planned(recipe, override=override).capacity for one in item["warnings"]]


def refused(recipe, override):
    return plans.problem(plans.entries_of, recipe, override=override)


def named(rows):
    return [pytest.param(*row, id="%d-%s" % (index, row[-1])) for index, row in enumerate(rows)]


@pytest.mark.parametrize(("recipe", "override", "code"), named(bad_arguments.VLLM))
def test_what_vllm_would_refuse(recipe, override, code):
    assert refused(recipe, override).code == code


@pytest.mark.parametrize(("override", "code"), named(bad_arguments.DYNAMO))
def test_what_dynamo_would_refuse_or_never_serve(override, code):
    assert refused("cpu-dynamo", override).code == code


@pytest.mark.parametrize(
    ("recipe", "override", "release", "place", "meant"),
    [
        ("h200-vllm", {"arguments": {"max-num-sequence": 4}}, "vLLM 0.33.0", "arguments.max-num-sequence",
         "max-num-seqs"),
        ("h200-vllm", {"arguments": {"compilation-config": {"cudagraph_moed": "FULL"}}}, "vLLM 0.33.0",
         "arguments.compilation-config.cudagraph_moed", "cudagraph_mode"),
        ("h200-vllm", {"command": ["vllm", "serve", "${model}", "--max-num-sequence", "4"]}, "vLLM 0.33.0",
         "command: --max-num-sequence", "max-num-seqs"),
        ("h200-vllm", {"config": {"format": "yaml", "content": {"max-num-sequence": 4}}}, "vLLM 0.33.0",
         "config.content.max-num-sequence", "max-num-seqs"),
        ("cpu-dynamo", bad_arguments.flag("decode", "dyn-reasoning-parsr", "gpt_oss"), "vLLM 0.31.0",
         "arguments.dyn-reasoning-parsr", "dyn-reasoning-parser"),
        ("cpu-dynamo", bad_arguments.flag("frontend", "router-moed", "kv"), "Dynamo 1.6.1",
         "arguments.router-moed", "router-mode"),
    ],
)  # fmt: skip
def test_what_was_meant(recipe, override, release, place, meant):
    values = (release, place, " (did you mean %s?)" % meant, "Correct or remove it")
    assert refused(recipe, override).values[1:] == values


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_num_seqs": 4}, {"max-model-len": "32k"}, {"max-model-len": "auto"}, {"max-num-batched-tokens": "8k"},
        {"no-enable-prefix-caching": True}, {"enable-prefix-caching": False}, {"seed": "7"}, {"seed": 7},
        {"quantization": "mxfp4"}, {"compilation-config": {"mode": "vllm_compile"}}, {"q": "mxfp4"},
        {"compilation-config": {"mode": 3, "pass_config": {"enable_qk_norm_rope_fusion": True}}},
        {"attention-backend": "flash_attn"},
        {"compilation-config.mode": 3}, {"compilation-config.pass_config.fuse_act_quant": True},
        {"hf-overrides": '{"max_position_embeddings": 8192}'}, {"additional-config": {"anything": {"goes": 1}}},
        {"kv-transfer-config": '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'},
        {"kv-transfer-config": {"kv_connector": "MyConnector", "kv_connector_module_path": "my.module"}},
        {"kv-transfer-config": '{"kv_connector": "MyConnector", "kv_connector_module_path": "my.module"}'},
        {"kv-transfer-config.kv_connector": "MyConnector", "kv_transfer_config.kv_connector_module_path": "my.module"},
        {"tool-call-parser": "mine", "tool-parser-plugin": "/srv/mine.py"}, {"hf-token": True},
        {"allowed-origins": '["https://a.example"]'}, {"middleware": ["a.b", "c.d"]}, {"middleware": "a.b"},
        {"reasoning-parser": "openai_gptoss"}, {"cudagraph-capture-sizes": [1, 2]}, {"load-format": "dummy"},
        {"max-num-sequence": None}, {"max-num-sequence": False},
    ],
)  # fmt: skip
def test_what_vllm_takes(arguments):
    assert warnings("h200-vllm", {"arguments": arguments}) == []


@pytest.mark.parametrize(
    ("recipe", "taken", "refuses"),
    [
        ("trn3-vllm-neuron", "NeuronNixlConnector", "MooncakeConnectorV1"),
        ("trn3-vllm-neuron", "NixlConnector", "NeuronNixleConnector"),
        ("ascend-a2", "MooncakeConnectorV1", "NeuronNixlConnector"),
        ("ascend-a2", "AscendStoreConnector", "AscendStorConnector"),
        ("h200-vllm", "NixlConnector", "MooncakeConnectorV1"),
    ],
)
def test_connectors_of_a_vendor_s_build(recipe, taken, refuses):
    def override(connector):
        return {"arguments": {"kv-transfer-config": {"kv_connector": connector, "kv_role": "kv_both"}}}

    assert plans.entries_of(recipe, override=override(taken))
    assert refused(recipe, override(refuses)).code == bad_arguments.VALUE


def test_a_worker_of_dynamo_with_a_connector_of_a_module():
    """As its KV block manager is set up."""
    transfer = {"kv_connector": "DynamoConnector", "kv_role": "kv_both"}
    override = {"arguments": {"kv-transfer-config": transfer}}
    assert refused("h200-dynamo-vllm", override).code == bad_arguments.VALUE
    transfer["kv_connector_module_path"] = "kvbm.vllm_integration.connector"
    assert plans.entries_of("h200-dynamo-vllm", override=override)


@pytest.mark.parametrize(
    ("container", "arguments", "code"),
    [
        ({"image": OFFICIAL % "0.28.0"}, {"max-num-sequence": 4}, bad_arguments.UNKNOWN),
        ({"image": OFFICIAL % "latest"}, {"max-num-sequence": 4}, None),
        ({"image": "registry.example/own:1"}, {"max-num-sequence": 4}, None),
        ({"image": "registry.example/own:1", "version": "0.32.0"}, {"max-num-sequence": 4}, bad_arguments.UNKNOWN),
        ({"image": OFFICIAL % "0.34.0"}, {"seed": "x"}, None),
        ({"image": OFFICIAL % "0.34.0"}, {"quantization": "fp9"}, None),
        ({"image": OFFICIAL % "0.32.0-cu130"}, {"max-num-sequence": 4}, bad_arguments.UNKNOWN),
    ],
)
def test_a_release_that_is_not_on_record(container, arguments, code):
    """Its own parser on the node has the last word, and the plan says so."""
    override = {"container": container, "arguments": arguments}
    if code:
        assert refused("h200-vllm", override).code == code
        return
    found, (name,) = warnings("h200-vllm", override), arguments
    for words in ("is not on record: its options are checked", "arguments." + name):
        assert any(words in one for one in found)


def test_a_script_of_one_s_own_decides_what_it_takes():
    assert warnings("trn3-start-script", {"arguments": {"max-num-sequence": 4}}) == []


@pytest.mark.parametrize("program", GUIDE)
@pytest.mark.parametrize("version", dynamo.ENGINE.flags.data["recorded"])
def test_every_flag_of_the_guide_is_taken_by_all_releases(version, program):
    fields = dynamo.ENGINE.flags
    assert all(fields.at(program, name, options.Version(version)) for name in GUIDE[program].split())


@pytest.mark.parametrize(
    ("spec", "taken", "not_taken"),
    [
        ("switch", [True], ["true", 1, "x", [True]]),
        ("int", [1, "1", -1], [1.5, 256.0, "x", True, [1]]),
        ("float", [1, 0.5, 1.0, "0.5"], ["x", True, [0.5]]),
        ("size", [4, "4k", "1.5M"], ["4 k", "x", {}, True]),
        ("size auto", ["auto", -1, "4k"], ["automatic", True]),
        ("str", ["x", 1, 0.5, {"a": 1}], [True, ["x"]]),
        ("str=", ["x", True], [["x"]]),
        ("str...", ["x", ["x", "y"]], [True, []]),
        ("str or json", ["x", {"a": 1}, '{"a": 1}'], ["{a: 1}", True]),
        ("json", ["1", "[1]", {"a": 1}], ["{a", "word"]),
        ("dict", [{"a": 1}, '{"a": 1}', '{"a": 80m}'], ["[1]", "x", 3]),
        (["a", "b"], ["a"], ["A", "c", ["a"], True]),
        (["a", "b", "..."], ["a", ["a", "b"]], [["a", "c"]]),
        (["AUTO", "~"], ["auto", "AUTO"], ["other"]),
        ([1, 8], [1, "8"], [2]),
    ],
)  # fmt: skip
def test_what_an_option_takes(spec, taken, not_taken):
    assert [value for value in taken if not options.fits(spec, value)] == []
    assert [value for value in not_taken if options.fits(spec, value)] == []


def test_each_recorded_engine_has_the_releases_of_the_recipes():
    assert {"0.11.1", "0.20.2", "0.31.0", "0.32.0", "0.33.0"} <= set(ENGINES["vllm"].flags.data["recorded"])
    assert {"1.0.2", "1.3.1", "1.6.1"} <= set(ENGINES["dynamo"].flags.data["recorded"])
