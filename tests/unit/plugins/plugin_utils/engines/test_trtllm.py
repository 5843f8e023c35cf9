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
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import capacity
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
    """The engine's own notes; capacity's warnings name other things."""
    found = plans.planned(declared)
    fits = capacity.check(found.entries, found.deployment, found.hardware)
    return found.capacity[0]["warnings"][len(fits[0]["warnings"]) :]


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


@pytest.mark.parametrize(
    ("content", "key", "version", "hint", "remedy"),
    [
        ({"build_config": {}}, "build_config", "1.2.1", " (releases with it: 1.0.0 to 1.1.0)",
         "Write max_batch_size, max_num_tokens and the like themselves instead"),
        ({"speculative_config": {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model": "/m"}},
         "speculative_config.speculative_model", "1.1.0", " (releases with it: 1.2.1 to 1.3.0rc27)",
         "Write config.content.speculative_config.speculative_model_dir instead"),
        ({"cuda_graph_confg": {}}, "cuda_graph_confg", "1.2.1", " (did you mean cuda_graph_config?)",
         "Correct or remove it"),
    ],
)  # fmt: skip
def test_keys_that_a_release_does_not_take(content, key, version, hint, remedy):
    assert error(recipe(content, RELEASE + version)) == (
        "plan.config-key-unknown", (WHERE, "TensorRT-LLM " + version, "config.content." + key, hint, remedy),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"speculative_config": {"max_draft_len": 3}}, "speculative_config"),  # without decoding_type
        ({"kv_cache_config": {"free_gpu_memory_fraction": 90}}, "kv_cache_config.free_gpu_memory_fraction"),
    ],
)
def test_values_that_a_release_does_not_take(content, key):
    code, values = error(recipe(content))
    assert (code, values[1], values[-2]) == (
        "plan.config-value-invalid", "config.content." + key, "TensorRT-LLM 1.2.1",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "image", "place"),
    [
        ({"cache_transceiver_config": {"backend": "ucx"}}, "1.0.0rc6", "cache_transceiver_config.backend"),
        ({"scheduler_config": {"shiny": 1}}, "1.3.0rc27", "config.content.scheduler_config.shiny"),
        ({"enable_mixed_sampler": True}, "gpt-oss-dev", "config.content.enable_mixed_sampler"),
    ],
)
def test_what_is_not_on_record_is_a_warning(content, image, place):
    *unknown, found = said(recipe(content, RELEASE + image))
    assert place in found and len(unknown) == (image == "gpt-oss-dev")


@pytest.mark.parametrize(
    ("flag", "version", "remedy"),
    [
        ("moe_backend", "1.2.1", "Write config.content.moe_config.backend instead"),
        ("ep_sze", "1.2.1", "Correct or remove it"),
        ("free_gpu_memory_fraction", "1.1.0", "Write arguments.kv_cache_free_gpu_memory_fraction instead"),
        ("served_model_name", "1.2.1", "Write the name of the checkpoint's folder as model.id instead"),
    ],
)
def test_flags_that_a_version_does_not_have(flag, version, remedy):
    value = "0.5" if "fraction" in flag else "${model_id}"
    code, values = error(recipe({}, RELEASE + version, arguments={flag: value}))
    assert (code, values[2], values[-1]) == ("plan.config-key-unknown", "arguments." + flag, remedy)


@pytest.mark.parametrize(
    ("changes", "version", "spelling"),
    [
        ({"arguments": {"max-batch-size": 8}}, "1.2.1", "max_batch_size"),
        ({"command": ["trtllm-serve", "${model}", "--max-batch-size", "8"]}, "1.2.1", "max_batch_size"),
        ({"arguments": {"generation_config": "auto"}}, "1.3.0rc27", "generation-config"),
        ({"arguments": {"generation-config": "auto", "telemetry": True}}, "1.3.0rc27", None),
        ({"arguments": {"custom_module_dirs": ["/a", "/b"]}}, "1.2.1", None),
        ({"command": ["mpirun", "-n", "1", "--allow-run-as-root", "trtllm-serve", "${model}"]}, "1.2.1", None),
        ({"command": ["start.sh", "--own-flag", "x"]}, "1.2.1", None),
    ],
)
def test_flags_have_one_spelling_and_those_of_other_programs_are_theirs(changes, version, spelling):
    declared = recipe({}, RELEASE + version, **changes)
    if spelling is None:
        assert planned(declared)
        return
    code, values = error(declared)
    assert (code, values[-1]) == ("input.key-unknown", spelling)


@pytest.mark.parametrize(
    ("flag", "value", "code", "place"),
    [
        ("trust_remote_code", "true", "plan.config-value-invalid", 1),
        ("gpus_per_node", "all", "plan.config-value-invalid", 1),
        ("max_num_tokens", "16k", "input.value-invalid", 0),  # of vLLM and SGLang alone
    ],
)
def test_values_that_click_refuses(flag, value, code, place):
    found, values = error(recipe({}, arguments={flag: value}))
    assert (found, values[place].rpartition(": ")[2]) == (code, "arguments." + flag)


def test_a_checkpoint_is_served_by_its_folder():
    code, values = error(recipe(model_id="openai/gpt-oss-120b"))
    assert (code, values[2]) == ("plan.argument-not-as-planned", '"gpt-oss-120b"')


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


@pytest.mark.parametrize(
    ("content", "arguments", "code"),
    [
        ({}, {"ep_size": 3}, "input.value-invalid"),
        ({"attention_dp_config": {"enable_balance": True}}, {}, "input.value-invalid"),
        ({"attention_dp_config": {"enable_balance": True}, "enable_attention_dp": True}, {}, None),
        ({"cuda_graph_config": {"batch_sizes": [1, 2, 4], "max_batch_size": 4}}, {}, "plan.flags-conflict"),
        ({"cuda_graph_config": {"batch_sizes": [1, 2, 4]}}, {}, None),
        ({"max_seq_len": 131073}, {}, "input.value-invalid"),
        ({"max_seq_len": 131072}, {}, None),
    ],
)
def test_what_fits_together(content, arguments, code):
    declared = recipe(content, arguments=arguments)
    assert error(declared)[0] == code if code else planned(declared)


@pytest.mark.parametrize(
    ("accelerator", "backend", "version", "instead"),
    [
        ("h200", "TRTLLM", "1.2.1", "TRITON"),
        ("h200", "TRTLLM", "1.0.0", "CUTLASS"),  # has no TRITON yet
        ("b200", "TRITON", "1.2.1", "TRTLLM"),
        ("h200", "CUTLASS", "1.2.1", None),
    ],
)
def test_kernels_of_experts_are_for_certain_devices(accelerator, backend, version, instead):
    declared = recipe({"moe_config": {"backend": backend}}, RELEASE + version, accelerator)
    if instead is None:
        assert planned(declared)
        return
    code, values = error(declared)
    assert (code, values[1], values[-1].split()[0]) == ("input.value-invalid", '"%s"' % backend, instead)


def test_speculation_with_eagle_is_a_warning():
    content = {"speculative_config": {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": "/m"}}
    (note,) = said(recipe(content))
    assert "TensorRT-LLM#16377" in note
