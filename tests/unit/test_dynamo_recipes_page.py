# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/using/dynamo-recipes.md shows NVIDIA's own lines for Dynamo next to what the recipes start, and examples work.

Sources: docs.nvidia.com/dynamo (v1.0.0), "GPT-OSS"; ai-dynamo/dynamo, recipes/gpt-oss-120b/*/deploy.yaml at 04521f47.
"""

from __future__ import annotations

import re
import shlex

import pytest
import yaml
from ansible_collections.inference.fleet.tests import doc_examples
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.guide_lines import by_key, variables

PAGE = doc_examples.USING / "dynamo-recipes.md"
TRT = (
    "CUDA_VISIBLE_DEVICES=%s python3 -m dynamo.trtllm --model-path /model --served-model-name openai/gpt-oss-120b "
    "--extra-engine-args examples/backends/trtllm/engine_configs/gpt-oss-120b/%s.yaml --dyn-reasoning-parser gpt_oss "
    "--dyn-tool-call-parser harmony --disaggregation-mode %s --max-num-tokens %d %s--free-gpu-memory-fraction 0.9 "
    "--tensor-parallel-size 4 --expert-parallel-size 4"
)
PREFILL_YAML = """
enable_attention_dp: false
enable_chunked_prefill: true
moe_config: {backend: CUTLASS}
cache_transceiver_config: {backend: ucx}
cuda_graph_config: {max_batch_size: 32}
"""
DECODE_YAML = """
enable_attention_dp: true
disable_overlap_scheduler: false
moe_config: {backend: CUTLASS}
cache_transceiver_config: {backend: ucx}
cuda_graph_config: {max_batch_size: 128}
"""
GB_TRT = (
    "python3 -m dynamo.trtllm --model-path openai/gpt-oss-120b --served-model-name openai/gpt-oss-120b "
    "--extra-engine-args /opt/dynamo/configs/%s.yaml --disaggregation-mode %s"
)
GB_BOTH = """
cache_transceiver_config: {backend: UCX, max_tokens_in_buffer: 9216}
disable_overlap_scheduler: %s
enable_attention_dp: false
kv_cache_config: {dtype: fp8, enable_block_reuse: false, free_gpu_memory_fraction: %s}
max_batch_size: %d
max_num_tokens: 20000
max_seq_len: %d
moe_config: {backend: TRTLLM}
moe_expert_parallel_size: 1
num_postprocess_workers: 4
pipeline_parallel_size: 1
print_iter_log: true
stream_interval: 20
tensor_parallel_size: %d
trust_remote_code: true
cuda_graph_config: {enable_padding: true, max_batch_size: %d}
"""
GB_PREFILL_YAML = GB_BOTH % ("true", 0.8, 64, 9000, 1, 30)
GB_DECODE_YAML = (
    GB_BOTH % ("false", 0.85, 1280, 11000, 4, 1280)
    + "allreduce_strategy: AUTO\nattention_dp_config: {enable_balance: true}\n"
)
GB_VARIABLES = {
    "TRTLLM_ENABLE_PDL": "1", "TRT_LLM_DISABLE_LOAD_WEIGHTS_IN_PARALLEL": "True",
    "OVERRIDE_QUANT_ALGO": "W4A8_MXFP4_MXFP8", "NCCL_GRAPH_REGISTER": "0", "OMPI_MCA_coll_ucc_enable": "0",
    "HF_HOME": "/opt/models",
}  # fmt: skip
KV = "python3 -m dynamo.frontend --router-mode kv --router-kv-events --kv-cache-block-size 64 "
VLLM = (
    "python3 -m dynamo.vllm --model openai/gpt-oss-120b --served-model-name openai/gpt-oss-120b --trust-remote-code "
    "--quantization mxfp4 %s--kv-cache-dtype fp8 --max-model-len 131072 --gpu-memory-utilization 0.9 %s"
    "--tensor-parallel-size 1 %s--enable-chunked-prefill --enable-prefix-caching --async-scheduling "
    "%s--enable-flashinfer-autotune --max-num-batched-tokens 32768 --dyn-reasoning-parser gpt_oss "
    "--dyn-tool-call-parser harmony --speculative-config "
    """'{"method":"eagle3","model":"nvidia/gpt-oss-120b-Eagle3-v3","num_speculative_tokens":3}' """
)
GRAPHS = (
    "--compilation-config "
    """'{"pass_config":{"fuse_allreduce_rms":true,"eliminate_noops":true},"max_cudagraph_capture_size":1024}' """
)
OFFLOAD = (
    """--kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both","""
    """"kv_connector_extra_config":{"cpu_bytes_to_use_per_rank":107374182400}}'"""
)
NIXL = """--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}' --disaggregation-mode """
CUTLASS = "--moe-backend flashinfer_cutlass "
SPLIT = ("", "--block-size 64 ", "", "--no-disable-hybrid-kv-cache-manager ")
WHOLE = ("", "", "--max-num-seqs 256 ", "")
CACHES = {"HF_HOME": "/model-cache"}
AGG = {**CACHES, "TRITON_CACHE_DIR": "/tmp/.triton-cache", "VLLM_CACHE_ROOT": "/tmp/vllm-cache",
       "HF_MODULES_CACHE": "/tmp/hf_modules", "PYTHONHASHSEED": "42"}  # fmt: skip
DIS = {
    **CACHES, "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "TRITON_CACHE_DIR": "/model-cache/.cache/triton", "VLLM_CACHE_ROOT": "/model-cache/.cache/vllm",
    "HF_MODULES_CACHE": "/model-cache/.cache/hfmods",
    "ETCD_ENDPOINTS": "dynamo-platform-etcd.dynamo-system.svc.cluster.local:2379",
    "NATS_SERVER": "nats://dynamo-platform-nats.dynamo-system.svc.cluster.local:4222", "DYN_DISCOVERY_BACKEND": "etcd",
    "DYN_HTTP_PORT": "8000", "NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": "none", "NCCL_P2P_LEVEL": "NVL",
}  # fmt: skip
B200 = {"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": "1", "TORCH_CUDA_ARCH_LIST": "10.0"}
H200 = {"TORCH_CUDA_ARCH_LIST": "9.0"}
ROUND = "python3 -m dynamo.frontend --router-mode round-robin --http-port 8000"


def _disaggregated(backend, card, prefill, decode):
    worker = "CUDA_VISIBLE_DEVICES=%s DYN_COMPONENT=%s DYN_SYSTEM_PORT=%d VLLM_NIXL_SIDE_CHANNEL_PORT=%d " + VLLM % (
        backend, *SPLIT[1:])  # fmt: skip
    gpus = {"prefill": (0, 9091, 5601), "decode": (prefill, 9091 + 2 * prefill, 5601 + 2 * prefill)}
    lines = {"frontend-0": ("DYN_SYSTEM_PORT=9090 " + KV + "--http-host 0.0.0.0 --http-port 8000", "")}
    for role, (gpu, system, channel) in gpus.items():
        others = [str(other) for other in range(prefill + decode) if other != gpu]
        lines[role + "-0"] = (worker % (",".join([str(gpu), *others]), role, system, channel) + NIXL + role, "")
    return {**DIS, **card, "DYN_NAMESPACE": "gptoss-disagg-" + ("h200" if backend else "b200")}, lines


# recipe: (variables of all its processes, {server: (its command, its YAML)}). The overlay of a server is its own.
GUIDES = {
    "b200-dynamo-disagg": (
        {"HF_TOKEN": "$HF_TOKEN", "TRTLLM_ENABLE_PDL": "1", "TRT_LLM_DISABLE_LOAD_WEIGHTS_IN_PARALLEL": "True"},
        {
            "frontend-0": (ROUND, ""),
            "prefill-0": (TRT % ("0,1,2,3", "prefill", "prefill", 20000, "--max-batch-size 32 "), PREFILL_YAML),
            "decode-0": (TRT % ("4,5,6,7", "decode", "decode", 16384, ""), DECODE_YAML),
        },
    ),
    "b200-dynamo-vllm": (
        {**AGG, **B200},
        {"frontend-0": (KV + "--trust-remote-code", ""), "worker-0": (VLLM % WHOLE + GRAPHS, "")},
    ),
    "b200-dynamo-vllm-disagg": _disaggregated("", B200, 2, 6),
    "h200-dynamo-vllm": (
        {**AGG, **H200},
        {
            "frontend-0": (KV + "--trust-remote-code", ""),
            "worker-0": (VLLM % (CUTLASS, *WHOLE[1:]) + GRAPHS + OFFLOAD, ""),
        },
    ),
    "h200-dynamo-vllm-disagg": _disaggregated(CUTLASS, H200, 4, 4),
    "gb200-dynamo-disagg": (
        GB_VARIABLES,
        {
            "frontend-0": (ROUND, ""),
            "prefill-0": (GB_TRT % ("prefill", "prefill"), GB_PREFILL_YAML),
            "decode-0": (GB_TRT % ("decode", "decode"), GB_DECODE_YAML),
        },
    ),
}
EACH = [(name, server) for name, (_shared, servers) in GUIDES.items() for server in servers]


def planned(name, overlays=(), layer=None):
    """{server: entry} of a recipe on a node of its own GPUs."""
    clustered = name[:2] == "gb"
    found = plans.planned(name, None, layer, overlays, clustered=clustered, endpoints=(("etcd", "http://etcd-1:2379"),))
    return {entry["name"]: entry for entry in found.entries}


def entry_of(name, server):
    own = ("prefill",) if name == "gb200-dynamo-disagg" and server == "prefill-0" else ()
    return planned(name, own)[server]


def lines_of(words, content):
    """{variable, flag or key of the YAML: its line}; "" is the program."""
    begin = next(number for number, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
    own = {word.partition("=")[0]: word for word in words[:begin]}
    return {**own, **by_key(words[begin:], content, 3)}


def started(name, server):
    """(the server's own lines, those of variables that all servers have) as we start it."""
    entry = entry_of(name, server)
    shared = plans.OWN[name]["environment"]
    own = variables({key: value for key, value in entry["environment"].items() if key not in shared})
    lines = lines_of([*own.values(), *entry["command"]], (entry["config"] or {}).get("content") or {})
    return lines, variables({key: entry["environment"][key] for key in shared})


def guides(name, server):
    command, content = GUIDES[name][1][server]
    return lines_of(shlex.split(command), yaml.safe_load(content) or {})


def check(heading, theirs, ours):
    rows = doc_examples.with_common(PAGE, heading, theirs.values(), ours.values())
    doc_examples.check_rows(rows, theirs, ours)


@pytest.mark.parametrize(("name", "server"), EACH)
def test_the_page_shows_nvidias_lines_beside_ours(name, server):
    check("%s: %s" % (name, server), guides(name, server), started(name, server)[0])


@pytest.mark.parametrize("name", GUIDES)
def test_the_page_shows_the_variables_of_all_processes(name):
    ours = started(name, next(iter(GUIDES[name][1])))[1]
    check("%s: variables" % name, variables(GUIDES[name][0]), ours)


def test_the_page_shows_how_the_containers_are_started():
    rows = doc_examples.guide_rows(PAGE, "The containers")
    launch = entry_of("b200-dynamo-disagg", "prefill-0")["launch"]
    shown = [row[1] for row in rows if row[1].startswith("--")]
    assert set(shown) <= set(launch), set(shown) - set(launch)
    image = launch.index("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.6.1")
    ours = {re.split("[= ]", word)[0] for word in launch[:image] if word.startswith("--")}
    assert ours == {re.split("[= ]", word)[0] for word in shown}


@pytest.mark.parametrize("name", GUIDES)
def test_the_page_lists_each_overlay(name):
    text = PAGE.read_text(encoding="utf-8").partition("| Overlay |")[2].partition("\n\n")[0]
    shown = set(re.findall(r"`([a-z-]+)`", "".join(row.split(" | ")[0] for row in text.splitlines())))
    assert set(plans.OWN[name]["overlays"]) <= shown


# -- the guide's section Troubleshooting, made in the recipe -----------------------------------------------------------
# Other tests produce the rest: the log of a worker without GPU memory (test_trtllm_logs.py, test_engine_ready.py), a
# service that is away (supervise/test_order.py), a port that is held, no toolkit and no space (test_preflight.py), an
# answer without end (verify/test_false_servers.py), GPUs of others (platforms/test_nvidia.py). Molecule's
# soak_dynamo_trtllm has a GPU that another process holds.


@pytest.mark.parametrize(
    ("content", "code", "key"),
    [
        # "Ensure that batch sizes in manual commands match those in configuration files"
        ({"max_batch_size": 64}, "plan.flags-conflict", "max_batch_size"),
        # what the workers must have in common to connect
        ({"kv_cache_config": {"tokens_per_block": 64}}, "plan.dynamo-servers-differ",
         "kv_cache_config.tokens_per_block"),
        ({"cache_transceiver_config": {"backend": "NIXL"}}, "plan.dynamo-servers-differ",
         "cache_transceiver_config.backend"),
    ],
)  # fmt: skip
def test_a_fault_of_the_section_troubleshooting_is_refused(content, code, key):
    layer = {"servers": {"decode": {"config": {"content": content}}}}
    problem = plans.problem(planned, "b200-dynamo-disagg", layer=layer)
    assert problem.code == code and "config.content." + key in problem.values
