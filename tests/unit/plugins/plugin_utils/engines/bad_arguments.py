# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people write wrongly in a recipe's arguments, and the code that the plan refuses it with.

Rows are (recipe, number of devices, override, code).
"""

from __future__ import annotations

UNKNOWN, VALUE, NEW, GONE = (
    "plan.config-key-unknown", "plan.config-value-invalid", "plan.config-key-too-new", "plan.config-key-gone",
)  # fmt: skip
PARSER, HEADS = "plan.parser-not-for-model", "plan.heads-not-divided"
RECIPES = {"h200-vllm": 8, "cpu-tiny": 1, "ascend-a2": 8, "trn3-vllm-neuron": 16, "trn3-eagle3": 16}


def given(recipe, code, *rows):
    """Rows of arguments: {flag: value} each, or the name of a flag that is switched on."""
    return [(recipe, {"arguments": row if isinstance(row, dict) else {row: True}}, code) for row in rows]


VLLM = [
    *given(
        "h200-vllm", UNKNOWN,
        {"max-num-sequence": 4}, {"tensor-paralel-size": 8}, {"max_model_length": 4096},
        {"gpu-memory-utilisation": 0.9},
        {"max-batched-tokens": 4096}, {"served-model-names": "x"}, {"kv-cache-dtyp": "fp8"}, {"quantisation": "mxfp4"},
        {"tool-parser": "openai"}, {"reasonning-parser": "openai_gptoss"}, {"block_sizes": 16}, {"hf-override": {}},
        {"speculative-configs": {}}, {"kv-transfer-confg": {}}, {"compilation_conf": {}}, {"max-loras-rank": 8},
        {"pipeline-paralel-size": 1}, {"data-parallel-sizes": 1}, {"tensor-parallel": 4}, {"swap-spaces": 4},
        {"load-formats": "auto"}, {"d-type": "auto"}, {"stream-intervall": 2}, {"middlewares": "x"},
        {"api-server-counts": 1}, {"additional-configs": {}},
        {"compilation-config": {"cudagraph_moed": "FULL"}}, {"compilation-config": {"cudagraph_capture_size": [1]}},
        {"compilation-config": {"pass_config": {"fuse_norms": True}}}, {"compilation-config.cudagraph_moed": "FULL"},
        {"compilation-config.pass_config.fuse_norms": True},
        {"speculative-config": {"metod": "eagle3", "num_speculative_tokens": 3}},
        {"speculative-config": '{"method": "eagle3", "num_speculativ_tokens": 3}'},
        {"kv-transfer-config": {"kv_conector": "NixlConnector"}}, {"kv-events-config": {"publsher": "zmq"}},
        "enable-prefix-cache", "no-enable-prefix-cache", "enable-chunked-prefil", "trust-remote-codes",
        "enable-expert-paralell", "enforce-eager-mode", "enable-auto-tool-choices", "async-schedulings",
        "no-trust-remote-codes", "disable-log-request-stats", "disable_hybrid_kv_cache_managers", "no-max-num-seqs",
    ),
    *given(
        "h200-vllm", VALUE,
        {"quantization": "fp9"}, {"quantization": "mxfp5"}, {"kv-cache-dtype": "fp9"}, {"kv-cache-dtype": "FP8"},
        {"dtype": "bf16"}, {"dtype": "float8"}, {"load-format": "safetensor"}, {"load-format": "ggufs"},
        {"tool-call-parser": "hermess"}, {"tool-call-parser": "OpenAI"}, {"reasoning-parser": "gptoss"},
        {"attention-backend": "FLASH_ATTENTION"}, {"attention-backend": "FLASHINFERR"}, {"runner": "generation"},
        {"scheduling-policy": "lifo"}, {"all2all-backend": "deepep"},
        {"expert-placement-strategy": "random"}, {"uvicorn-log-level": "verbose"}, {"convert": "embedding"},
        {"enable-prefix-caching": 1}, {"enable-prefix-caching": "enabled"}, {"trust-remote-code": [True]},
        {"enforce-eager": {"on": True}}, {"seed": "x"}, {"seed": 1.5}, {"seed": True},
        {"max-logprobs": "twenty"}, {"cpu-offload-gb": "4GB"}, {"stream-interval": "2s"},
        {"cudagraph-capture-sizes": []},
        {"speculative-config": "{not json"}, {"speculative-config": "eagle3"}, {"speculative-config": [1]},
        {"speculative-config": {"method": "eagle4", "num_speculative_tokens": 3}},
        {"kv-transfer-config": '{"kv_connector": NixlConnector}'}, {"kv-transfer-config": "NixlConnector"},
        {"kv-transfer-config": {"kv_connector": "NixlConnector", "kv_role": "both"}},
        {"kv-transfer-config": {"kv_connector": "NixleConnector", "kv_role": "kv_both"}},
        {"compilation-config": "3"}, {"compilation-config": '{"cudagraph_mode": FULL}'},
        {"compilation-config": {"mode": 9}}, {"compilation-config": {"mode": "VLLM_COMPIL"}},
        {"compilation-config": {"use_inductor_graph_partition": "perhaps"}},
        {"compilation-config.mode": "fast"}, {"hf-overrides": '{"x": 1'},
        {"chat-template-content-format": "json"}, {"response-role": []},
        {"data-parallel-size": 1, "data-parallel-rpc-port": "http"},
    ),
    *given(
        "h200-vllm", PARSER,
        {"tool-call-parser": "hermes"}, {"tool-call-parser": "llama3_json"}, {"tool-call-parser": "qwen3_coder"},
        {"reasoning-parser": "deepseek_r1"}, {"reasoning-parser": "qwen3"},
    ),
    *given("h200-vllm", "input.value-invalid", {"compilation-config": {"cudagraph_mode": "FULLL"}},
           {"compilation-config.cudagraph_mode": "FULLL"}),
    *given("h200-vllm", GONE, {"swap-space": 4}, {"compilation-config": {"level": 3}}),
    *given("h200-vllm", "input.value-invalid", {"max-num-seqs": "many"}, {"max-num-seqs": True},
           {"max-num-seqs": 0}, {"max-num-seqs": 4.5},
           {"speculative-config": {"method": "eagle3", "num_speculative_tokens": 0}}),
    *given("h200-vllm", "input.value-invalid", {"gpu-memory-utilization": 9}, {"gpu-memory-utilization": "90%"}),
    *given("h200-vllm", "input.value-invalid", {"max-model-len": "long"}, {"max-num-batched-tokens": "8 k"}),
    *given("h200-vllm", "input.value-invalid",
           {"speculative-config": {"method": "eagle3", "draft_tensor_parallel_size": 3}}),
    *[("h200-vllm", {"servers": {"server": {"devices": size, "count": 1}}}, HEADS) for size in (3, 5, 6, 7)],
    ("h200-vllm", {"servers": {"server": {"devices": 6, "count": 1}}, "arguments": {"tensor-parallel-size": 3,
                   "data-parallel-size": 2}}, HEADS),
    ("h200-vllm", {"servers": {"server": {"devices": 6, "count": 1}}, "arguments": {"tensor-parallel-size": 6}}, HEADS),
    *[("h200-vllm", {"servers": {"server": {"devices": 4, "count": 1}}, "arguments": row}, "plan.parallel-not-devices")
      for row in ({"data-parallel-size": 2}, {"pipeline-parallel-size": 2}, {"tensor-parallel-size": 8},
                  {"prefill-context-parallel-size": 2})],
    # other releases, and those of vendors
    *given("cpu-tiny", UNKNOWN, {"max-num-sequence": 4}, "enable-prefix-cache", {"dyn-reasoning-parser": "gpt_oss"}),
    *given("cpu-tiny", VALUE, {"dtype": "bf16"}, {"quantization": "fp9"}),
    *given("trn3-eagle3", UNKNOWN, {"max-num-sequence": 4}, {"tensor-paralel-size": 4}),
    *given("trn3-eagle3", NEW, {"attention-backend": "CUSTOM"}, {"optimization-level": 2}),
    *given("trn3-eagle3", VALUE, {"block-size": 7}, {"kv-cache-dtype": "nvfp4"}),
    *given("trn3-vllm-neuron", UNKNOWN, {"max-num-sequence": 4}, "enable-prefix-cachng"),
    *given("trn3-vllm-neuron", "neuron.config-invalid", {"override-neuron-config": {}}),
    *given("trn3-vllm-neuron", PARSER, {"tool-call-parser": "hermes"}),
    *given("ascend-a2", UNKNOWN, {"max-num-sequence": 4}, {"compilation-config": {"cudagraph_moed": "FULL"}}),
    *given("ascend-a2", VALUE, {"quantization": "fp9"}, {"load-format": "netloadr"}),
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
    (flag("frontend", "router-mode", "kvv"), VALUE),
    (flag("frontend", "router-mode", "KV"), VALUE),
    (flag("frontend", "migration-limit", "abc"), VALUE),
    (flag("frontend", "migration-limit", 2.5), VALUE),
    (flag("frontend", "migration-limit", -1), "plan.dynamo-number-too-low"),
    (flag("frontend", "router-temperature", -0.5), "plan.dynamo-number-too-low"),
    (flag("frontend", "router-temperature", "warm"), VALUE),
    (flag("frontend", "kv-cache-block-size", "big"), VALUE),
    (flag("frontend", "router-moed", "kv"), UNKNOWN),
    (flag("frontend", "migration-limits", 3), UNKNOWN),
    (flag("frontend", "max-num-seqs", 4), UNKNOWN),
    (flag("frontend", "http-prot", 8000), UNKNOWN),
    (flag("frontend", "router-kv-event"), UNKNOWN),
    (flag("frontend", "event-plane", "zmqq"), VALUE),
    (flag("frontend", "request-plane", "http"), VALUE),
    (flag("frontend", "discovery-backend", "etcdd"), VALUE),
    (flag("decode", "dyn-reasoning-parsr", "gpt_oss"), UNKNOWN),
    (flag("decode", "dyn-tool-call-parsers", "harmony"), UNKNOWN),
    (flag("decode", "max-num-sequence", 4), UNKNOWN),
    (flag("decode", "tool-call-parser", "openai"), UNKNOWN),
    (flag("decode", "enable-auto-tool-choice"), UNKNOWN),
    (flag("decode", "disagregation-mode", "decode"), UNKNOWN),
    (flag("decode", "dyn-tool-call-parser", "harmonyy"), VALUE),
    (flag("decode", "dyn-reasoning-parser", "openai_gptoss"), VALUE),
    (flag("decode", "dyn-tool-call-parser", "hermes"), PARSER),
    (flag("prefill", "dyn-reasoning-parser", "deepseek_r1"), PARSER),
    (flag("decode", "disaggregation-mode", "both"), VALUE),
    (flag("decode", "quantization", "fp9"), VALUE),
    (flag("prefill", "kv-cache-dtype", "fp9"), VALUE),
    (flag("decode", "connector", ["nixl"]), "plan.dynamo-connector"),
    (flag("decode", "kv-events-config", '{"publisher": zmq}'), VALUE),
    (flag("decode", "kv-events-config", {"publishr": "zmq"}), UNKNOWN),
    (flag("decode", "kv-events-config", {"publisher": "kafka"}), VALUE),
    (flag("decode", "kv-transfer-config", None), "plan.dynamo-no-transfer"),
    (flag("prefill", "kv-transfer-config", None), "plan.dynamo-no-transfer"),
    (flag("prefill", "kv-transfer-config", "{}"), "plan.dynamo-no-transfer"),
    (flag("decode", "kv-transfer-config", "NixlConnector"), VALUE),
    (flag("decode", "kv-transfer-config", '{"kv_connector": "NixlConnector"'), VALUE),
    (transfer("decode", kv_connector="OffloadingConnector"), "plan.dynamo-no-transfer"),
    (transfer("decode", kv_connector="NixleConnector"), VALUE),
    (transfer("decode", kv_connector="LMCacheConnectorV1"), "plan.dynamo-transfer-differs"),
    (transfer("prefill", kv_connector="MultiConnector"), "plan.dynamo-transfer-differs"),
    (transfer("decode", kv_buffer_device="cuda"), "plan.dynamo-transfer-differs"),
    (transfer("decode", kv_buffer_device=None), "plan.dynamo-transfer-differs"),
    (transfer("prefill", kv_connector_extra_config={"x": 1}), "plan.dynamo-transfer-differs"),
    (transfer("prefill", kv_role="kv_consumer"), "plan.dynamo-transfer-role"),
    (transfer("decode", kv_role="kv_producer"), "plan.dynamo-transfer-role"),
    (transfer("decode", kv_role=None), "plan.dynamo-transfer-role"),
    (transfer("decode", kv_role="both"), VALUE),
    (transfer("decode", kv_rolle="kv_both"), UNKNOWN),
    (flag("decode", "block-size", 64), "plan.dynamo-block-size"),
    (flag("frontend", "kv-cache-block-size", 64), "plan.dynamo-block-size"),
    (flag("decode", "kv-cache-dtype", "fp8"), "plan.dynamo-servers-differ"),
    (flag("prefill", "dtype", "float32"), "plan.dynamo-servers-differ"),
    (flag("decode", "max-model-len", 1024), "plan.dynamo-servers-differ"),
    (of("decode", model={"path": "/srv/models/other"}), "plan.dynamo-servers-differ"),
    (flag("decode", "speculative-config", {"method": "eagle3", "num_speculative_tokens": 3}),
     "plan.dynamo-speculation-differs"),
    (flag("prefill", "disaggregation-mode", "decode"), "plan.dynamo-mode-not-role"),
    ({"environment": {"DYN_REQUEST_PLANE": "nats"}}, "plan.dynamo-plane-incomplete"),
    ({"environment": {"DYN_EVENT_PLANE": "nats"}}, "plan.dynamo-plane-incomplete"),
    ({"environment": {"DYN_REQUEST_PLANE": "grpc"}}, VALUE),
    ({"environment": {"DYN_EVENT_PLANE": "kafka"}}, VALUE),
    ({"environment": {"DYN_DISCOVERY_BACKEND": "consul"}}, VALUE),
    ({"environment": {"DYN_DISCOVERY_BACKEND": "mem"}}, "plan.dynamo-discovery-unusable"),
    ({"environment": {"DYN_DISCOVERY_BACKEND": "kubernetes"}}, "plan.dynamo-discovery-unusable"),
    ({"environment": {**ETCD, "ETCD_ENDPOINTS": "10.0.0.1"}}, "plan.dynamo-address-invalid"),
    ({"environment": {**ETCD, "ETCD_ENDPOINTS": "http//10.0.0.1:2379"}}, "plan.dynamo-address-invalid"),
    ({"environment": {"DYN_REQUEST_PLANE": "nats", "NATS_SERVER": "http://10.0.0.1:4222"}},
     "plan.dynamo-address-invalid"),
    ({"environment": {**ETCD, "ETCD_ENDPOINTS": None}}, "plan.dynamo-discovery-incomplete"),
    ({"environment": {"DYN_FILE_KV": None}}, "plan.dynamo-discovery-incomplete"),
    (of("decode", environment={"DYN_EVENT_PLANE": "nats", "NATS_SERVER": "nats://10.0.0.1:4222"}),
     "plan.dynamo-discovery-differs"),
    (of("decode", environment={"DYN_REQUEST_PLANE": "nats", "NATS_SERVER": "nats://10.0.0.1:4222"}),
     "plan.dynamo-discovery-differs"),
    (of("decode", environment={"DYN_FILE_KV": "/elsewhere"}), "plan.dynamo-discovery-differs"),
    (of("decode", environment={"DYN_NAMESPACE": "other"}), "plan.dynamo-servers-differ"),
    (of("decode", environment={"DYN_TOOL_CALL_PARSER": "harmonyy"}), VALUE),
    (of("frontend", environment={"DYN_ROUTER_MODE": "kvv"}), VALUE),
    (of("decode", count=0), "plan.dynamo-half"),
    (of("frontend", count=0), "plan.dynamo-no-frontend"),
]  # fmt: skip
