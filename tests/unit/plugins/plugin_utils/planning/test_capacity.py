# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory check against figures that others published, and against what must hold for any figures."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.points import load_of
from ansible_collections.inference.fleet.plugins.plugin_utils.models.gpt_oss import GPT_OSS_20B, GPT_OSS_120B, MODELS
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import capacity, fleet
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.capacity import (
    GIB,
    Server,
    assess,
    certain_weights,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import Hardware, parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.plans import plan_of
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[5]
STANDIN = ROOT / "tools" / "standin" / "standin.json"
H100 = Hardware("h100", "nvidia", count=1, cores=0, lnc=1, memory_gib=79.65)
NXDI = {"VLLM_NEURON_FRAMEWORK": "neuronx-distributed-inference"}
STAND_IN = {"repo": "inference-fleet/gpt-oss-tiny-standin", "weights_format": "bf16"}


def hardware(accelerator, **keys):
    return parse_hardware({"accelerator": accelerator, "count": 8, **keys}, "x")


def entry_of(command, platform="nvidia", config=None, environment=None, engine="vllm", backend=None, **changes):
    words, content = command.split() if isinstance(command, str) else command, {"content": config or {}}
    return {
        "name": "server-0", "role": "server", "devices": [0], "platform": platform, "command": words,
        "engine": engine, "arguments": ENGINES[engine].running(backend).effective(words, {}, content),
        "config": {"content": config} if config is not None else None, "environment": environment or {}, **changes,
    }  # fmt: skip


def recipe_of(engine, repo="openai/gpt-oss-120b", weights_format="mxfp4", draft=None, **more):
    return {"engine": engine, "model": {"repo": repo, "format": weights_format, "draft": draft}, **more}


def verdict(declared, engine, command, config=None, environment=None, role="server", **recipe):
    """assess() of one server given by its command line."""
    entry = entry_of(command, declared.platform, config, environment, engine, recipe.get("backend"), role=role)
    return assess(capacity.server_of(entry, recipe_of(engine, **recipe), declared))


def ascend(tensor, accelerator="ascend-a2"):
    """The vllm-ascend guide's command line with another tensor parallelism."""
    command = (
        "vllm serve /models/x --max-num-seqs 4 --gpu-memory-utilization 0.9 --tensor-parallel-size %d "
        "--max-model-len 4096 --max-num-batched-tokens 4096 --enable-expert-parallel" % tensor
    )
    return verdict(hardware(accelerator), "vllm", command, repo="unsloth/gpt-oss-120b-BF16", weights_format="bf16")


def cache_of_a_worker(**content):
    """The size of the KV cache of the Dynamo guide's decode worker, with a file of this content."""
    command = (
        "python3 -m dynamo.trtllm --tensor-parallel-size 4 --expert-parallel-size 4 --free-gpu-memory-fraction 0.9"
    )
    content = {"enable_attention_dp": True, **content}
    return verdict(hardware("b200"), "dynamo", command, content, role="decode", backend="trtllm")["kv_gib"]


def neuron(accelerator, more):
    command = "vllm serve --model /models/x --tensor-parallel-size 8 " + more
    return verdict(hardware(accelerator, count=16), "vllm", command, environment=NXDI)


# --- published figures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "weights_format", "total_size"),
    [
        (GPT_OSS_120B, "mxfp4", 65248815744),  # model.safetensors.index.json of openai/gpt-oss-120b
        (GPT_OSS_20B, "mxfp4", 13761264768),  # of openai/gpt-oss-20b
        (GPT_OSS_120B, "bf16", 233658313344),  # "about 234 GB"
    ],
)
def test_tensor_bytes_are_the_checkpoints(model, weights_format, total_size):
    assert capacity.weights_bytes(model, weights_format) == total_size


def test_dimensions_of_the_stand_in_are_its_config_s():
    config = json.loads(STANDIN.read_text())["config"]
    model = MODELS["inference-fleet/gpt-oss-tiny-standin"]
    names = {
        "layers": "num_hidden_layers", "experts": "num_local_experts", "hidden": "hidden_size",
        "intermediate": "intermediate_size", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim", "top_k": "num_experts_per_tok", "vocab": "vocab_size", "window": "sliding_window",
        "max_len": "max_position_embeddings",
    }  # fmt: skip
    assert dataclasses.asdict(model) == {key: config[name] for key, name in names.items()}
    assert config["layer_types"] == ["sliding_attention", "full_attention"]


def test_kv_cache_of_one_request_is_what_vllm_asks_for():
    # "4.54 GiB KV cache is needed": 131072 tokens, --max-num-batched-tokens 1024 (vllm#27508)
    needs = capacity.request_of(Server(GPT_OSS_120B, "mxfp4", "nvidia", "utilization", None, batched=1024), 131072)
    assert "%.2f" % (needs / GIB) == "4.54"
    blocks = 131072 // 16 + (127 + 1024) // 16 + 1 + 1  # the window and the step's tokens, and one block for its edges
    assert needs == 18 * 16 * blocks * 2048


@pytest.mark.parametrize(
    ("tensor", "more", "experts"),
    [
        # 36 layers x 128 experts x (3 x 3072 x 2944 values x 17/32 + 2 x (2 x 2944 + 3072) bytes of biases): hidden
        # 2880 is padded to 3072, a multiple of 256, and intermediate to 2944, a multiple of 128
        (1, "", 4608 * (14_413_824 + 17_920)),
        # a slice of 720 is padded to 768; of whole experts each device has 32
        (4, "", 4608 * (3 * 3072 * 768 // 32 * 17 + 2 * (2 * 768 + 3072))),
        (4, "--enable-expert-parallel", 36 * 32 * (14_413_824 + 17_920)),
    ],
)
def test_kernels_of_blackwell_pad_mxfp4(tensor, more, experts):
    found = verdict(hardware("b200"), "vllm", "vllm serve x --tensor-parallel-size %d %s" % (tensor, more))
    rest = capacity.weights_bytes(GPT_OSS_120B, "mxfp4", tensor, 128, experts=0)
    assert found["weights_gib"] == pytest.approx((rest + experts) / GIB, abs=0.0001)
    if tensor == 1:
        assert "%.1f" % found["weights_gib"] == "65.9"
    # bf16 has no such kernels, and Hopper's do not pad
    assert verdict(hardware("b200"), "vllm", "vllm serve x", weights_format="bf16")["weights_gib"] < 217.7
    assert "%.1f" % verdict(hardware("h200"), "vllm", "vllm serve x")["weights_gib"] == "64.4"


def test_the_draft_s_layer_widens_both_groups_of_layers():
    # vLLM's groups of layers share one pool: 18 + 1 full layers, and 18 sliding ones padded to 19
    server = capacity.server_of(
        entry_of("vllm serve x --max-model-len 32768"), recipe_of("vllm", draft={"tokens": 3}), hardware("b200")
    )
    steady = capacity.request_of(server, 32000, steady=True)
    assert steady == 19 * 2048 * (32000 + 9 * 16)
    whole = capacity.request_of(dataclasses.replace(server, windowed=False), 32000, steady=True)
    assert whole == (36 + 1) * 2048 * 32000


def test_activations_are_about_what_vllm_measured():
    # 0.9 x 79.19 GiB - 65.97 GiB weights - activations = -2.14 GiB (vllm#23278; vLLM's defaults on an H100)
    measured = 0.9 * 79.19 - 65.97 + 2.14
    assert capacity.activation_bytes(GPT_OSS_120B, "nvidia", 1024, 8192) / GIB == pytest.approx(measured, abs=0.5)


# --- the guides' own settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "override", "bucket"),
    [
        (None, {"speculation_length": 5}, 128),
        (None, {"enable_fused_speculation": True, "speculation_length": 5}, 256),
        (2, {"speculation_length": 130}, 384),
        *((tokens, {}, bucket) for tokens, bucket in ((1, 128), (2, 256), (129, 256), (130, 384))),
    ],
)
def test_nxd_inference_allocates_sliding_layers_in_buckets(tokens, override, bucket):
    # gpt_oss_kv_cache_manager.py: window - 1, with fused speculation window + length - 2; the next multiple of 128
    command = ["vllm", "serve", "x", "--max-num-seqs", "1", "--max-model-len", "1024"]
    command += ["--additional-config", json.dumps({"override_neuron_config": override})]
    command += ["--speculative-config", json.dumps({"num_speculative_tokens": tokens})] * bool(tokens)
    entry = entry_of(command, "neuron", environment=NXDI)
    assert capacity.server_of(entry, recipe_of("vllm"), hardware("trainium3", count=1)).bucket == bucket


def test_the_kv_cache_that_nxd_inference_allocates_for_a_server_of_trn3_eagle3():
    planned = plan_of(TRN3)["node1"]
    recipe = recipes.load_recipe(str(ROOT / "recipes" / "trn3-eagle3.yml"))
    server = capacity.server_of(planned["servers"][0], recipe, parse_hardware(TRN3["fleet_hardware"], "x"))
    assert (server.budget, server.max_seqs, server.max_len, server.bucket) == ("contiguous", 16, 16384, 256)
    plain = dataclasses.replace(server, draft=False)
    each = capacity.request_of(plain, 16384)
    assert each == 18 * (16384 + 256) * 256  # 256 bytes: key and value of one head of 64 in bf16
    assert 16 * each / GIB == pytest.approx(1.14, abs=0.005)
    full = dataclasses.replace(plain, bucket=None, windowed=False)
    assert 16 * capacity.request_of(full, 16384) / GIB == 2.25
    draft = 16 * 16384 * 256  # the layer of the EAGLE3 head attends to everything
    assert 16 * capacity.request_of(server, 16384) == 16 * each + draft


@pytest.mark.parametrize("accelerator", ["ascend-a2", "ascend-a3"])
def test_ascend_on_four_chips_of_64_gib(accelerator):
    found = ascend(4, accelerator)
    # 0.9 x 60.94 - 54.42 - 0.09 GiB = 342 MiB for the KV cache; one request of 4096 tokens needs 36 layers x 4096 x
    # 2 KV heads x 2 x 64 x 2 bytes = 72 MiB of it, and 2 % of 60.94 GiB are 1.2 GiB
    assert found["kv_gib"] * 1024 == pytest.approx(342, abs=0.5)
    (warning,) = found["warnings"]
    assert found["verdict"] == "warning" and "270 MiB to spare, less than 2 %" in warning
    assert ascend(8, accelerator)["verdict"] == "ok"


# --- known bad -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "refused", "words"),
    [
        (lambda: ascend(2), True, ["108.8 GiB", "54.8 GiB of its 60.9 GiB", "raise tensor-parallel-size"]),
        (lambda: neuron("trainium2", "--max-num-seqs 1 --max-model-len 768"), True, ["27.2 GiB", "24.0 GiB"]),
        (lambda: neuron("trainium3", "--max-num-seqs 64 --max-model-len 131072"), True,
         ["max-num-seqs 64 x max-model-len 131072", "36.0 GiB", "28.4 GiB"]),
        (lambda: verdict(hardware("cpu", count=1, cores=2), "vllm",
                         "python -m vllm --max-model-len 130000 --kv-cache-memory-bytes 32M", **STAND_IN), True,
         ["64 MiB", "32 MiB", "kv-cache-memory-bytes"]),
        # TensorRT-LLM ran out of memory (PR #17470); it is no refusal, since paged sequences share what there is
        (lambda: verdict(H100, "trtllm", "trtllm-serve x --max_batch_size 720"), False,
         ["max_seq_len 131072", "9.0 GiB", "8.1 GiB"]),
        # "Available KV cache memory: -2.14 GiB" (vllm#23278)
        (lambda: verdict(H100, "vllm", "vllm serve openai/gpt-oss-120b"), False, ["64.4 GiB", "7.7 GiB", "79.3 GiB"]),
    ],
)  # fmt: skip
def test_what_cannot_fit_is_refused_and_what_may_not_is_a_warning(found, refused, words):
    found = found()
    (text,) = [found["refusal"]] if refused else found["warnings"]
    assert [word for word in words if word not in text] == []


FOUR = "vllm serve x --max-num-seqs 4 --tensor-parallel-size 4 --data-parallel-size 2"


def waiting(commands, concurrency, roles=None):
    """Numbers of requests that run at a time where others wait, and verdicts, of servers with these command lines."""
    entries = [
        entry_of(command, name="server-%d" % number, role=(roles or {}).get(number, "server"))
        for number, command in enumerate(commands)
    ]
    found = capacity.check(entries, recipe_of("vllm", benchmark={"concurrency": concurrency}), hardware("b200"))
    running = [[int(re.search(r"but (\d+) run", text)[1]) for text in one["warnings"]] for one in found]
    return running, [one["verdict"] for one in found]


def test_unequal_servers_of_a_host_share_its_clients():
    large = FOUR.replace("seqs 4", "seqs 20")
    # each of them alone is compared with nothing: 4 x 2 and 20 x 2 take 48 together
    assert waiting([FOUR, large], 48) == ([[], []], ["ok", "ok"])
    assert waiting([FOUR, large], 49) == ([[48], [48]], ["warning", "warning"])
    assert waiting([FOUR, large], 48, {1: "prefill"})[1] == ["warning", "ok"]  # a prefill worker answers nobody
    assert waiting([FOUR, "vllm serve x --max-num-seqs many"], 4096)[1] == ["ok", "not checked"]


def with_the_guide_s_load(name):
    """Rows of guide-loads.md for a recipe: equal servers once."""
    entries, recipe, _capacity, _resolved, node = plans.each(name, "")
    load = load_of(recipe)
    before = {item["server"]: item for item in capacity.check(entries, {**recipe, "benchmark": None}, node)}
    at_once = ", %d at once" % load["concurrency"] if load["concurrency"] else ""
    for names, item in capacity.grouped(capacity.check(entries, recipe, node)):
        fits = [one["requests"] if one["ok"] is not None else "-" for one in (before[names[0]], item)]
        takes = "-"
        if item["ok"] is not None:
            takes = "%d%s" % (item["max_seqs"], "×%d" % item["ranks"] if item["ranks"] > 1 else "")
        each = " each" * bool(load["concurrency"] and (load["per_server"] or load["scope"] == "server"))
        cells = [
            "`%s`" % name, "%d×%s" % (node.count, node.accelerator), capacity.servers_text(names), takes,
            "%d+%d%s" % (load["input_tokens"], load["output_tokens"], at_once + each), *fits, item["verdict"],
        ]  # fmt: skip
        yield "| %s |" % " | ".join(map(str, cells))


def test_each_recipe_with_its_guide_s_load():
    """A changed plan changes docs/developing/guide-loads.md; capacity.md lists the warnings."""
    table = (ROOT / "docs/developing/guide-loads.md").read_text(encoding="utf-8")
    rows = [row for name in plans.OWN if "embedding" not in name for row in with_the_guide_s_load(name)]
    assert [line for line in table.splitlines() if line.startswith("| `")] == rows
    page = (ROOT / "docs" / "using" / "capacity.md").read_text(encoding="utf-8")
    listed = page.partition("## With the loads of the guides")[2].partition("\n## ")[0]
    warned = {row.split("`")[1] for row in rows if not row.endswith("| ok |")}
    assert set(re.findall(r"`([a-z0-9.-]+)`", listed)) == warned


def test_lengths_and_requests_at_once_are_those_of_the_profile_that_is_measured_by_default():
    profiles = {
        "quick": {"tool": "aiperf", "input_tokens": 64, "output_tokens": 32, "concurrency": [1, 9]},
        "guide": {"tool": "aiperf", "input_tokens": 32000, "output_tokens": 256, "concurrency": 256},
    }

    def found(benchmark, command="vllm serve x --max-num-seqs 8"):
        entries = [entry_of(command, name="server-%d" % number) for number in range(2)]
        item = capacity.check(entries, recipe_of("vllm", benchmark=benchmark), hardware("b200"))[0]
        numbers = [re.match(r"(\d+) .* but (\d+) run", text) for text in item["warnings"]]
        return item["sequence"], [(int(one[1]), int(one[2])) for one in numbers]

    assert found({"profiles": profiles}) == (32256, [(256, 16)])
    assert found({"profiles": {"quick": profiles["quick"]}}) == (96, [])
    # what the site specifies, or fleet_tuning for it, counts before a profile
    own = {"input_tokens": 1000, "output_tokens": 24, "concurrency": 17}
    assert found({**own, "profiles": profiles}) == (1024, [(17, 16)])
    # each server alone; then the number of each; then what the servers take, or a queue that is meant
    alone = {**profiles["guide"], "tool": "vllm-bench", "concurrency": 9}
    assert found({"profiles": {"guide": alone}}) == (32256, [(9, 8)])
    each = {**profiles["guide"], "concurrency": 9, "per_server": True}
    assert found({"profiles": {"guide": each}}) == (32256, [(18, 16)])
    for key in ("up_to_full", "queue"):
        assert found({"profiles": {"guide": {**each, key: True}}}) == (32256, [])
    # without max-num-seqs the KV cache decides: two B200s hold two times
    cache = {"profiles": {"guide": {**profiles["guide"], "concurrency": 1000}}}
    assert found(cache, "vllm serve x")[1] == [(1000, 156)]
    # of a fleet's load the share of a host is not known; a profile that cannot be measured is reported there
    assert found({"profiles": {"guide": {**profiles["guide"], "scope": "fleet"}}}) == (32256, [])
    assert found({"profiles": {"guide": {"tool": "aiperf"}}}) == (2048, [])


# --- what is read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "repo", "memory", "text"),
    [
        (
            "vllm serve x",
            "openai/gpt-oss-20b",
            0,
            "the memory of its devices is not declared (fleet_hardware.memory_gib)",
        ),
        ("vllm serve x", "mine/pruned", 180, "the dimensions of mine/pruned are not known"),
        ("vllm serve x --max-num-seqs many", "openai/gpt-oss-20b", 180, "max-num-seqs is many, which is no number"),
        ("vllm serve x --tensor-parallel-size 0", "openai/gpt-oss-20b", 180, "tensor-parallel-size is 0"),
    ],
)
def test_what_cannot_be_read_is_not_checked(command, repo, memory, text):
    node = dataclasses.replace(hardware("b200"), memory_gib=memory)  # of a platform whose devices differ: 0
    found = capacity.check([entry_of(command)], recipe_of("vllm", repo), node)
    assert [(one["server"], one["ok"], one["verdict"], one["text"]) for one in found] == [
        ("server-0", None, "not checked", text)
    ]


def test_a_worker_s_file_has_its_share_of_the_memory_and_the_buffers_of_the_kv_transfer():
    assert cache_of_a_worker(kv_cache_config={"free_gpu_memory_fraction": 0.8}) == pytest.approx(
        0.8 / 0.9 * cache_of_a_worker(), abs=0.001
    )
    transfer = {"backend": "UCX", "max_tokens_in_buffer": 65536}
    buffers = cache_of_a_worker() - cache_of_a_worker(cache_transceiver_config=transfer)
    assert buffers == pytest.approx(0.9 * 65536 * 36 * 2048 / GIB, abs=0.001)


def test_servers_on_a_cpu_share_the_host():
    declared = hardware("cpu", count=1, cores=2, memory_gib=100)
    entries = [
        entry_of("vllm --kv-cache-memory-bytes 1G --max-model-len 4096", "cpu", name="server-%d" % index)
        for index in range(2)
    ]
    refusal = capacity.refusals(capacity.check(entries, recipe_of("vllm"), declared))
    assert refusal.startswith("server-0, server-1: ") and "50.0 GiB" in refusal
    assert capacity.check(entries[:1], recipe_of("vllm"), declared)[0]["verdict"] == "ok"


def test_a_kv_cache_in_fp8_holds_twice_as_much():
    narrow = verdict(hardware("b200"), "vllm", "vllm serve x --kv-cache-dtype fp8")
    wide = verdict(hardware("b200"), "vllm", "vllm serve x")
    assert narrow["tokens"] == pytest.approx(2 * wide["tokens"], abs=2)
    block = {"kv_cache_config": {"dtype": "fp8"}}  # and with it 0.9: the block replaces the flag
    narrow, wide = (
        verdict(hardware("b200"), "trtllm", "trtllm-serve x --kv_cache_free_gpu_memory_fraction %g" % fraction, config)
        for fraction, config in ((0.5, block), (0.9, {}))
    )
    assert narrow["tokens"] == pytest.approx(2 * wide["tokens"], abs=2)


# --- in the plan ---------------------------------------------------------------------------------------------------

TRN3 = {"fleet_recipe": "trn3-eagle3", "fleet_hardware": {"accelerator": "trainium3", "count": 16}}
TOO_LARGE = {**TRN3, "fleet_override": {"arguments": {"max-num-seqs": 64, "max-model-len": 131072}}}


def test_the_plan_says_for_each_server_whether_it_fits():
    planned = plan_of(TRN3)
    item = planned["node1"]
    assert [one["server"] for one in item["capacity"]] == [entry["name"] for entry in item["servers"]]
    assert {one["verdict"] for one in item["capacity"]} == {"ok"}
    assert fleet.capacity_warnings(planned) == []
    table = fleet.capacity_table(planned)
    assert table["columns"] == ["host", "server", "memory", "weights", "kv cache", "verdict", "details"]
    sizes = ["36.0 GiB", "9.0 GiB", "25.9 GiB"]
    assert table["rows"] == [
        # the guide's own load: 10000 tokens in, 3000 out
        ["node1", "server-0 to server-7", *sizes, "ok", "fits 262 K tokens; 16 x 13000 needs 208 K"],
    ]


def test_a_length_that_the_engine_chooses_needs_nothing_certain():
    arguments = {"kv-cache-memory-bytes": -1, "max-model-len": "auto"}
    hardware = {"accelerator": "h200", "count": 8}
    planned = plan_of(
        {"fleet_recipe": "h200-vllm", "fleet_hardware": hardware, "fleet_override": {"arguments": arguments}}
    )
    assert {one["verdict"] for one in planned["node1"]["capacity"]} == {"warning"}


def test_a_refusal_can_be_overruled():
    planned = plan_of({**TOO_LARGE, "fleet_capacity": "warn"}, deploys=True)
    (warning,) = fleet.capacity_warnings(planned)
    assert warning.startswith("node1: server-0 to server-7: max-num-seqs 64 x max-model-len 131072")
    assert {item["verdict"] for item in planned["node1"]["capacity"]} == {"warning"}


def test_warnings_of_many_hosts_are_told_once_and_name_the_servers():
    own = {"instances": {"server-2": {"arguments": {"max-num-seqs": 2}}}, "benchmark": {"concurrency": 500}}
    (warning,) = fleet.capacity_warnings(plan_of({**TRN3, "fleet_override": own}, ["a", "b"], deploys=True))
    assert warning.startswith("a, b: server-0 to server-7: 500 requests") and "114 run at a time" in warning


# --- what must hold for any figures --------------------------------------------------------------------------------

servers = st.builds(
    Server,
    model=st.sampled_from([GPT_OSS_120B, GPT_OSS_20B]),
    weights_format=st.sampled_from(["mxfp4", "bf16"]),
    platform=st.sampled_from(["nvidia", "ascend", "neuron"]),
    budget=st.sampled_from(["utilization", "free", "contiguous", "capped"]),
    memory=st.floats(1, 300).map(lambda size: size * GIB),
    tensor=st.sampled_from([1, 2, 4, 8, 16]),
    data=st.sampled_from([1, 2, 4]),
    attention_dp=st.booleans(),
    fraction=st.floats(0.1, 1),
    max_seqs=st.integers(1, 2048),
    max_len=st.integers(1, 131072),
    batched=st.integers(1, 32768),
    kv_bytes=st.sampled_from([1, 2]),
    windowed=st.booleans(),
    draft=st.booleans(),
    sequence=st.integers(1, 131072),
)


@given(servers, st.floats(1, 3), st.integers(1, 131072), st.floats(0, 1))
def test_what_never_fits_fewer_tokens(server, factor, more, share):
    tokens = assess(server)["tokens"]
    fraction = server.fraction + share * (1 - server.fraction)
    for keys in ({"tensor": server.tensor * 2}, {"memory": server.memory * factor}, {"fraction": fraction},
                 {"windowed": True, "draft": False}, {"kv_bytes": 1}):  # fmt: skip
        assert assess(dataclasses.replace(server, **keys))["tokens"] >= tokens
    longer = dataclasses.replace(server, sequence=server.sequence + more)
    assert assess(longer)["requests"] <= assess(server)["requests"]


@given(servers)
def test_what_is_certain_is_at_most_what_is_expected(server):
    assert certain_weights(server) <= capacity.expected_weights(server) * (1 + 1e-9)
    certain = capacity.request_of(server, server.max_len, certain=True)
    assert certain <= capacity.request_of(server, server.max_len)
