# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TensorRT-LLM's YAML and flags by version, and what of them fits together."""

from __future__ import annotations

import pathlib

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import trtllm
from ansible_collections.inference.fleet.tests.unit.engines import plans
from packaging.version import Version

ENGINE = trtllm.ENGINE
FIELDS = ENGINE.fields
RELEASE = "nvcr.io/nvidia/tensorrt-llm/release:"
PUBLISHED = yaml.safe_load(
    (pathlib.Path(__file__).parents[3] / "fixtures" / "trtllm" / "published.yml").read_text(encoding="utf-8")
)
WHERE = "server 'server-0'"


def recipe(content=None, image=RELEASE + "1.2.1", accelerator="b200", model_id="gpt-oss-120b", **changes):
    arguments = {"tp_size": "${device_count}", "extra_llm_api_options": "${config}", **changes.pop("arguments", {})}
    made = {
        "engine": "trtllm", "needs": {"accelerators": [accelerator]},
        "model": {**plans.written()["model"], "id": model_id},
        "container": {"image": image},
        "command": ["trtllm-serve", "${model}"], "arguments": arguments,
        "config": {"format": "yaml", "content": content or {}},
        "servers": [{"role": "server", "count": 1, "devices": 8, "port": 8000}],
    }  # fmt: skip
    return plans.written(**{**made, **changes})


def planned(declared):
    found = plans.planned(declared)
    return found.entries, found.capacity


def error(declared):
    found = plans.error(planned, declared)
    return found.code, found.values


def said(declared):
    """The engine's notes."""
    found = plans.planned(declared)
    return ENGINE.notes(found.entries[0], ENGINE.version(found.recipe), found.hardware)


def refused_paths(content, version):
    try:
        FIELDS.check_file(WHERE, content, version and Version(version))
    except FleetError as found:
        return [one.values[1] if one.code.endswith("invalid") else one.values[2] for one in found.problems]
    return []


# -- what is published -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "version"), [(one, version) for one in PUBLISHED for version in one["versions"]],
    ids=lambda item: item["name"] if isinstance(item, dict) else str(item),
)  # fmt: skip
def test_published_configurations(one, version):
    refused = one.get("refused") or []
    assert sorted(refused_paths(one["content"], version)) == sorted("config.content." + key for key in refused)


UNKNOWN, VALUE, INVALID = "plan.config-key-unknown", "plan.config-value-invalid", "input.value-invalid"
CORRECT = "Correct or remove it"
DRAFT = {"decoding_type": "Eagle", "max_draft_len": 3}


def moe(backend, accelerator, version="1.2.1"):
    return {"content": {"moe_config": {"backend": backend}}, "accelerator": accelerator, "image": RELEASE + version}


def flag(name, value, version="1.2.1"):
    return {"arguments": {name: value}, "image": RELEASE + version}


def command(*words):
    return {"command": [*words]}


# (what is in the recipe, the code of the error, the ends of some of its values)
REFUSED = [
    ({"content": {"build_config": {}}}, UNKNOWN, WHERE, "TensorRT-LLM 1.2.1", "config.content.build_config",
     " (releases with it: 1.0.0 to 1.1.0)", "Write max_batch_size, max_num_tokens and the like themselves instead"),
    ({"content": {"speculative_config": {**DRAFT, "speculative_model": "/m"}}, "image": RELEASE + "1.1.0"}, UNKNOWN,
     "config.content.speculative_config.speculative_model", " (releases with it: 1.2.1 to 1.3.0rc27)",
     "Write config.content.speculative_config.speculative_model_dir instead"),
    ({"content": {"cuda_graph_confg": {}}}, UNKNOWN, " (did you mean cuda_graph_config?)", CORRECT),
    ({"content": {"speculative_config": {"max_draft_len": 3}}}, VALUE, "config.content.speculative_config",
     "TensorRT-LLM 1.2.1"),  # without decoding_type
    ({"content": {"kv_cache_config": {"free_gpu_memory_fraction": 90}}}, VALUE,
     "config.content.kv_cache_config.free_gpu_memory_fraction"),
    (flag("moe_backend", "x"), UNKNOWN, "arguments.moe_backend", "Write config.content.moe_config.backend instead"),
    (flag("ep_sze", "1"), UNKNOWN, "arguments.ep_sze", CORRECT),
    (flag("free_gpu_memory_fraction", "0.5", "1.1.0"), UNKNOWN,
     "Write arguments.kv_cache_free_gpu_memory_fraction instead"),
    (flag("served_model_name", "${model_id}"), UNKNOWN,
     "Write the name of the checkpoint's folder as model.id instead"),
    # flags have one spelling
    (flag("max-batch-size", 8), "input.key-unknown", "max_batch_size"),
    (command("trtllm-serve", "${model}", "--max-batch-size", "8"), "input.key-unknown", "max_batch_size"),
    (flag("generation_config", "auto", "1.3.0rc27"), "input.key-unknown", "generation-config"),
    # values that click refuses
    (flag("trust_remote_code", "true"), VALUE, "arguments.trust_remote_code"),
    (flag("gpus_per_node", "all"), VALUE, "arguments.gpus_per_node"),
    (flag("max_num_tokens", "16k"), INVALID, "arguments.max_num_tokens"),  # of vLLM and SGLang alone
    # a checkpoint is served by its folder
    ({"model_id": "openai/gpt-oss-120b"}, "plan.argument-not-as-planned", '"gpt-oss-120b"'),
    # what fits together
    (flag("ep_size", 3), INVALID),
    ({"content": {"attention_dp_config": {"enable_balance": True}}}, INVALID),
    ({"content": {"cuda_graph_config": {"batch_sizes": [1, 2, 4], "max_batch_size": 4}}}, "plan.flags-conflict"),
    ({"content": {"max_seq_len": 131073}}, INVALID),
    # kernels of experts are for certain devices; 1.0.0 has no TRITON yet
    (moe("TRTLLM", "h200"), INVALID, '"TRTLLM"', "TRITON on h200 (compute capability 9.0)"),
    (moe("TRTLLM", "h200", "1.0.0"), INVALID, '"TRTLLM"', "CUTLASS on h200 (compute capability 9.0)"),
    (moe("TRITON", "b200"), INVALID, '"TRITON"', "TRTLLM on b200 (compute capability 10.0)"),
]  # fmt: skip
TAKEN = [
    {"arguments": {"generation-config": "auto", "telemetry": True}, "image": RELEASE + "1.3.0rc27"},
    flag("custom_module_dirs", ["/a", "/b"]),
    command("mpirun", "-n", "1", "--allow-run-as-root", "trtllm-serve", "${model}"),
    command("start.sh", "--own-flag", "x"),
    {"content": {"attention_dp_config": {"enable_balance": True}, "enable_attention_dp": True}},
    {"content": {"cuda_graph_config": {"batch_sizes": [1, 2, 4]}}},
    {"content": {"max_seq_len": 131072}},
    moe("CUTLASS", "h200"),
]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[1])
def test_what_a_plan_refuses(row):
    given, code, *ends = row
    found, values = error(recipe(**given))
    assert found == code
    assert [end for end in ends if not any(str(value).endswith(end) for value in values)] == []


@pytest.mark.parametrize("given", TAKEN, ids=str)
def test_what_a_plan_takes(given):
    assert planned(recipe(**given))


@pytest.mark.parametrize(
    ("content", "image", "place"),
    [
        ({"speculative_config": {**DRAFT, "speculative_model_dir": "/m"}}, "1.2.1", "TensorRT-LLM#16377"),
        ({"cache_transceiver_config": {"backend": "ucx"}}, "1.0.0rc6", "cache_transceiver_config.backend"),
        ({"scheduler_config": {"shiny": 1}}, "1.3.0rc27", "config.content.scheduler_config.shiny"),
        ({"enable_mixed_sampler": True}, "gpt-oss-dev", "config.content.enable_mixed_sampler"),
        ({"sampler_type": "Mine"}, "1.2.1", 'config.content.sampler_type "Mine" is not on record'),
    ],
)
def test_what_is_not_on_record_and_a_known_defect_are_warnings(content, image, place):
    *unknown, found = said(recipe(content, RELEASE + image))
    assert place in found and len(unknown) == (image == "gpt-oss-dev")


@pytest.mark.parametrize(
    ("arguments", "content", "key"),
    [
        ({"max_batch_size": 8}, {"max_batch_size": 16}, "max_batch_size"),
        ({"ep_size": 8}, {"moe_expert_parallel_size": 4}, "moe_expert_parallel_size"),
        ({"kv_cache_free_gpu_memory_fraction": 0.9}, {"kv_cache_config": {"free_gpu_memory_fraction": 0.8}},
         "kv_cache_config.free_gpu_memory_fraction"),
        ({"trust_remote_code": True}, {"trust_remote_code": False}, "trust_remote_code"),
    ],
)  # fmt: skip
def test_a_flag_that_the_file_overrules(arguments, content, key):
    (flag,) = arguments
    assert error(recipe(content, arguments=arguments)) == (
        "plan.flags-conflict", (WHERE, "arguments." + flag, "config.content." + key),
    )  # fmt: skip
    same = {flag: content[key] if "." not in key else content["kv_cache_config"]["free_gpu_memory_fraction"]}
    assert planned(recipe(content, arguments=same))
    assert planned(recipe(content))


def test_a_block_takes_the_share_of_memory_away():
    """Up to 1.1.0 completely; from 1.2.1 on they are merged."""
    cache, flag = {"kv_cache_config": {"enable_block_reuse": False}}, {"kv_cache_free_gpu_memory_fraction": 0.5}
    assert error(recipe(cache, RELEASE + "1.1.0", arguments=flag))[0] == "plan.flags-conflict"
    assert planned(recipe(cache, RELEASE + "1.1.0", arguments={"kv_cache_free_gpu_memory_fraction": 0.9}))
    half = planned(recipe(cache, arguments=flag))[1][0]["kv_gib"]
    assert half == pytest.approx(planned(recipe({}, arguments=flag))[1][0]["kv_gib"])
