# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TensorRT-LLM's YAML and flags by version, and what of them fits together."""

from __future__ import annotations

import copy
import pathlib

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import trtllm
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import capacity, fleet, plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.schema import all_problems
from packaging.version import Version

ENGINE = trtllm.ENGINE
FIELDS = ENGINE.fields
RECORDED = FIELDS.data["recorded"]
RELEASE = "nvcr.io/nvidia/tensorrt-llm/release:"
PUBLISHED = yaml.safe_load(
    (pathlib.Path(__file__).parents[3] / "fixtures" / "trtllm" / "published.yml").read_text(encoding="utf-8")
)
WHERE = "server 'server-0'"


def recipe(content=None, image=RELEASE + "1.2.1", accelerator="b200", devices=8, model_id="gpt-oss-120b", **changes):
    made = {
        "schema": 1, "name": "mine", "platform": "nvidia", "engine": "trtllm", "launcher": "container",
        "needs": {"accelerators": [accelerator]},
        "model": {"repo": "openai/gpt-oss-120b", "format": "mxfp4", "source": "huggingface", "id": model_id,
                  "path": "${models}/gpt-oss-120b"},
        "container": image if isinstance(image, dict) else {"image": image},
        "command": ["trtllm-serve", "${model}"],
        "arguments": {"tp_size": "${device_count}", "extra_llm_api_options": "${config}"},
        "config": {"format": "yaml", "content": content or {}},
        "servers": [{"role": "server", "count": 1, "devices": devices, "port": 8000}],
    }  # fmt: skip
    arguments = {**made["arguments"], **changes.pop("arguments", {})}
    return {**made, **changes, "arguments": arguments}


def planned(declared):
    declared = copy.deepcopy(declared)
    assert all_problems(declared) == []
    hardware = parse_hardware({"accelerator": declared["needs"]["accelerators"][0], "count": 8}, "h")
    entries = plan.plan_host("h", declared, hardware, plan.Site())
    deployment = plan.deployment(declared, plan.Site(), "h")
    return entries, fleet.with_notes(capacity.check(entries, deployment, hardware), entries, deployment, hardware)


def error(declared):
    with pytest.raises(FleetError) as caught:
        planned(declared)
    return caught.value.code, caught.value.values


def text(declared):
    with pytest.raises(FleetError) as caught:
        planned(declared)
    return caught.value.message


def said(declared):
    """The engine's own notes; capacity's warnings name other things."""
    declared = copy.deepcopy(declared)
    entries, fits = planned(declared)
    hardware = parse_hardware({"accelerator": declared["needs"]["accelerators"][0], "count": 8}, "h")
    fit = capacity.check(entries, plan.deployment(declared, plan.Site(), "h"), hardware)
    return fits[0]["warnings"][len(fit[0]["warnings"]) :]


def refused_paths(content, version):
    try:
        FIELDS.check(WHERE, content, version and Version(version))
    except FleetError as found:
        problems = getattr(found, "errors", None) or [found]
        return [one.message for one in problems]
    return []


# -- what is published -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "version"), [(one, version) for one in PUBLISHED for version in one["versions"]],
    ids=lambda item: item["name"] if isinstance(item, dict) else str(item),
)  # fmt: skip
def test_published_configurations(one, version):
    refused = one.get("refused") or []
    messages = "\n".join(refused_paths(one["content"], version))
    assert len(messages.splitlines()) == len(refused)
    for key in refused:
        assert "config.content.%s" % key in messages


def test_every_recorded_release_has_a_source():
    assert set(RECORDED) <= set(FIELDS.data["sources"])
    assert sorted(RECORDED, key=Version) == RECORDED


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "last", "first", "instead"),
    [
        ("enable_mixed_sampler", True, "1.0.0", "1.1.0", "Remove it"),
        ("enable_trtllm_sampler", True, "1.0.0", "1.1.0",
         "Write config.content.sampler_type where a release has it instead"),
        ("use_torch_sampler", True, "1.1.0rc0", "1.1.0", "Write config.content.sampler_type instead"),
        ("build_config", {}, "1.1.0", "1.2.1", "Write max_batch_size, max_num_tokens and the like themselves instead"),
        ("sampler_type", "auto", "1.2.1", "1.3.0rc27", "Remove it"),
        ("enable_sleep", True, "1.2.1", "1.3.0rc27", "Remove it"),
        ("disable_flashinfer_sampling", True, "1.2.1", "1.3.0rc27", "Remove it"),
        ("fail_fast_on_attention_window_too_large", True, "1.2.1", "1.3.0rc27", "Remove it"),
    ],
)  # fmt: skip
def test_keys_that_are_gone(key, value, last, first, instead):
    assert planned(recipe({key: value}, RELEASE + last))
    assert error(recipe({key: value}, RELEASE + first)) == (
        "plan.config-key-gone", (WHERE, "TensorRT-LLM", first, "config.content." + key, last, instead),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "key", "last", "first", "instead"),
    [
        ({"env_overrides": {"A": 1}}, "env_overrides", "1.1.0", "1.2.1", "Remove it, or take that release"),
        ({"sampler_type": "auto"}, "sampler_type", "1.0.0", "1.1.0", "Remove it, or take that release"),
        ({"kv_cache_config": {"tokens_per_block": 32}}, "kv_cache_config.tokens_per_block", "1.0.0", "1.1.0",
         "Remove it, or take that release"),
        ({"speculative_config": {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model": "/m"}},
         "speculative_config.speculative_model", "1.1.0", "1.2.1",
         "Write config.content.speculative_config.speculative_model_dir instead"),
        ({"cache_transceiver_config": {"kv_transfer_timeout_ms": 1}}, "cache_transceiver_config.kv_transfer_timeout_ms",
         "1.1.0", "1.2.1", "Remove it, or take that release"),
    ],
)  # fmt: skip
def test_keys_that_are_not_there_yet(content, key, last, first, instead):
    assert error(recipe(content, RELEASE + last)) == (
        "plan.config-key-too-new", (WHERE, "TensorRT-LLM", last, "config.content." + key, Version(first), instead),
    )  # fmt: skip
    assert planned(recipe(content, RELEASE + first))


@pytest.mark.parametrize("version", ["1.0.5", "1.2.0", "1.3.0rc14"])
def test_keys_that_both_neighbours_refuse_are_refused_in_between(version):
    key, given = "config.content.enable_teleport", {"enable_teleport": True}
    assert error(recipe(given, RELEASE + version)) == (
        "plan.config-key-unknown", (WHERE, "TensorRT-LLM", version, key, "", "Correct or remove it"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"cuda_graph_confg": {}},
         "server 'server-0': TensorRT-LLM 1.2.1 takes no config.content.cuda_graph_confg (did you mean "
         "cuda_graph_config?). Correct or remove it."),
        ({"kv_cache_config": {"free_gpu_memory_fractoin": 0.8}},
         "server 'server-0': TensorRT-LLM 1.2.1 takes no config.content.kv_cache_config.free_gpu_memory_fractoin (did "
         "you mean free_gpu_memory_fraction?). Correct or remove it."),
        ({"kv_cache_free_gpu_memory_fraction": 0.9},
         "server 'server-0': TensorRT-LLM 1.2.1 takes no config.content.kv_cache_free_gpu_memory_fraction. Write "
         "config.content.kv_cache_config.free_gpu_memory_fraction instead."),
        ({"moe_config": {"backend": "TRTLM"}},
         "server 'server-0': config.content.moe_config.backend is \"TRTLM\"; allowed in TensorRT-LLM 1.2.1: CUTLASS, "
         "CUTEDSL, WIDEEP, TRTLLM, DEEPGEMM, VANILLA, TRITON. Correct it."),
        ({"moe_config": [1]},
         "server 'server-0': config.content.moe_config is [1]; allowed in TensorRT-LLM 1.2.1: a mapping. Correct it."),
        ({"speculative_config": {"max_draft_len": 3}},
         "server 'server-0': config.content.speculative_config lacks decoding_type, without which TensorRT-LLM refuses "
         "it. Add it."),
        ({"speculative_config": {"decoding_type": "Eagle3", "speculative_model": "/m"}},
         "server 'server-0': config.content.speculative_config.decoding_type is \"Eagle3\"; allowed in TensorRT-LLM "
         "1.2.1: MTP, Medusa, Eagle, Lookahead, NGram, DraftTarget, SaveState, UserProvided, AUTO. Correct it."),
        ({"stream_interval": 0},
         "server 'server-0': config.content.stream_interval is 0; allowed: a whole number above 0. Correct the value."),
        ({"num_postprocess_workers": "many"},
         "server 'server-0': config.content.num_postprocess_workers is \"many\"; allowed in TensorRT-LLM 1.2.1: a "
         "whole number. Correct it."),
        ({"kv_cache_config": {"free_gpu_memory_fraction": 90}},
         "server 'server-0': config.content.kv_cache_config.free_gpu_memory_fraction is 90; allowed in TensorRT-LLM "
         "1.2.1: a number from 0 to 1, or null. Correct it."),
        ({"batch_wait_timeout_iters": -1, "load_format": "fast", "trust_remote_code": "perhaps"},
         "server 'server-0': config.content.batch_wait_timeout_iters is -1; allowed in TensorRT-LLM 1.2.1: a whole "
         "number from 0. Correct it.\n"
         "server 'server-0': config.content.load_format is \"fast\"; allowed in TensorRT-LLM 1.2.1: AUTO, DUMMY, "
         "VISION_ONLY. Correct it.\n"
         "server 'server-0': config.content.trust_remote_code is \"perhaps\"; allowed in TensorRT-LLM 1.2.1: true or "
         "false. Correct it."),
    ],
)  # fmt: skip
def test_what_is_said(content, message):
    assert text(recipe(content)) == message


@pytest.mark.parametrize(
    ("content", "versions"),
    [
        ({"moe_config": {"backend": "TRITON"}}, {"1.0.0": False, "1.1.0rc0": True, "1.1.0": True, "1.3.0rc27": True}),
        ({"moe_config": {"backend": "AUTO"}}, {"1.2.1": False, "1.3.0rc27": True}),
        ({"moe_config": {"backend": "WIDEEP"}}, {"1.2.1": True, "1.3.0rc27": False}),
        ({"cache_transceiver_config": {"backend": "ucx"}}, {"1.0.0": False, "1.1.0rc5": False, "1.2.1": False}),
        ({"cache_transceiver_config": {"backend": "MOONCAKE"}}, {"1.1.0": False, "1.2.1": True}),
        ({"backend": "tensorrt"}, {"1.2.1": True, "1.3.0rc27": False}),
        ({"load_format": "dummy"}, {"1.0.0": True, "1.3.0rc27": True}),
        ({"cuda_graph_config": None}, {"1.0.0": True, "1.3.0rc27": True}),
        ({"moe_config": None}, {"1.0.0": False, "1.3.0rc27": False}),
        ({"max_batch_size": "8", "stream_interval": 10.0, "print_iter_log": "yes"}, {"1.2.1": True}),
    ],
)
def test_values_by_version(content, versions):
    assert {version: not refused_paths(content, version) for version in versions} == versions


# -- versions that nobody has on record --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "image", "note"),
    [
        ({"env_overrides": {"A": "1"}}, "1.2.0",
         "config.content.env_overrides is taken by some of the releases around it on record, so TensorRT-LLM 1.2.0 may "
         "refuse it."),
        ({"enable_teleport": True}, "1.4.0",
         "config.content.enable_teleport is not on record, so TensorRT-LLM 1.4.0 may refuse it."),
        ({"stream_intervall": 2}, "1.4.0",
         "config.content.stream_intervall is not on record (did you mean stream_interval?), so TensorRT-LLM 1.4.0 may "
         "refuse it."),
        ({"cache_transceiver_config": {"backend": "ucx"}}, "1.0.0rc6",
         'config.content.cache_transceiver_config.backend "ucx" is not on record, so TensorRT-LLM 1.0.0rc6 may refuse '
         "it."),
        ({"scheduler_config": {"shiny": 1}}, "1.3.0rc27",
         "config.content.scheduler_config.shiny is not on record, so TensorRT-LLM 1.3.0rc27 may refuse it."),
        ({"attn_backend": "SHINY"}, "1.3.0rc27",
         'config.content.attn_backend "SHINY" is not on record, so TensorRT-LLM 1.3.0rc27 may refuse it.'),
    ],
)  # fmt: skip
def test_what_is_not_on_record_is_a_warning(content, image, note):
    assert said(recipe(content, RELEASE + image)) == [note]


@pytest.mark.parametrize(
    ("content", "version"),
    [
        ({"enable_mixed_sampler": True}, "1.2.0"),
        ({"enable_mixed_sampler": True}, "1.4.0"),
        ({"sampler_type": "auto"}, "1.4.0"),
        ({"env_overrides": {}}, "1.0.1"),
        ({"stream_interval": "x"}, "1.4.0"),
        ({"stream_interval": "x"}, None),
    ],
)
def test_what_is_known_is_refused_on_other_versions_as_well(content, version):
    assert refused_paths(content, version)


NOT_KNOWN = (
    "the version of TensorRT-LLM is not known by the image's or the package's name, so its configuration is checked by "
    "types alone; container.version says it."
)


@pytest.mark.parametrize("image", [RELEASE + "gpt-oss-dev", "mirror.example:5000/mine:1.2.1"])
def test_an_image_of_unknown_version_is_said_once(image):
    content = {"enable_mixed_sampler": True, "moe_config": {"backend": "TRTLLM"}}
    assert said(recipe(content, image)) == [NOT_KNOWN]
    known = {"image": image, "version": "1.2.1"}
    assert error(recipe(content, known))[1][2] == "1.2.1"
    assert said(recipe({}, known)) == []


def test_the_name_of_an_image_says_more_than_the_recipe():
    image = {"image": "mirror.example:5000/nvidia/tensorrt-llm/release:1.0.0", "version": "1.2.1"}
    assert planned(recipe({"enable_mixed_sampler": True}, image))


def test_packages_say_the_version_where_there_is_no_container():
    venv = {"path": "${venvs}/trtllm", "packages": ["tensorrt-llm==1.2.1"]}
    outside = {"launcher": "process", "container": None, "venv": venv}
    assert error(recipe({"enable_mixed_sampler": True}, None, **outside))[1][2] == "1.2.1"
    older = {**outside, "venv": {**venv, "packages": ["tensorrt_llm==1.0.0", "other==2"]}}
    assert planned(recipe({"enable_mixed_sampler": True}, None, **older))


# -- flags -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "version", "code", "instead"),
    [
        ("moe_backend", "1.2.1", "plan.config-key-unknown", "Write config.content.moe_config.backend instead"),
        ("ep_sze", "1.2.1", "plan.config-key-unknown", "Correct or remove it"),
        ("free_gpu_memory_fraction", "1.1.0", "plan.config-key-too-new",
         "Write arguments.kv_cache_free_gpu_memory_fraction instead"),
        ("served_model_name", "1.2.1", "plan.config-key-too-new",
         "Write the name of the checkpoint's folder as model.id instead"),
        ("disagg_cluster_uri", "1.1.0", "plan.config-key-too-new", "Remove it, or take that release"),
    ],
)  # fmt: skip
def test_flags_that_a_version_does_not_have(flag, version, code, instead):
    value = "0.5" if "fraction" in flag else "${model_id}"
    found, values = error(recipe({}, RELEASE + version, arguments={flag: value}))
    assert (found, values[1:4], values[-1]) == (code, ("TensorRT-LLM", version, "arguments." + flag), instead)


def test_flags_of_newer_releases():
    declared = recipe({}, RELEASE + "1.3.0rc27", model_id="mine", arguments={"served_model_name": "${model_id}"})
    assert planned(declared)[0][0]["model_id"] == "mine"
    choice = recipe({}, arguments={"backend": "trt"})
    assert error(choice) == (
        "plan.config-value-invalid",
        (WHERE, "arguments.backend", '"trt"', "TensorRT-LLM", " 1.2.1", "pytorch, tensorrt, _autodeploy"),
    )


def test_a_checkpoint_is_served_by_its_folder():
    assert text(recipe(model_id="openai/gpt-oss-120b")) == (
        "server 'server-0': model.id is \"openai/gpt-oss-120b\", but trtllm-serve names a checkpoint by its folder, "
        '"gpt-oss-120b" (model.path). Set model.id to "gpt-oss-120b", or, where the release has it, '
        "arguments.served_model_name to ${model_id}."
    )


# -- the file over the flags -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "content", "key", "values"),
    [
        ({"max_batch_size": 8}, {"max_batch_size": 16}, "max_batch_size", ("8", "16")),
        ({"ep_size": 8}, {"moe_expert_parallel_size": 4}, "moe_expert_parallel_size", ("8", "4")),
        ({"kv_cache_free_gpu_memory_fraction": 0.9}, {"kv_cache_config": {"free_gpu_memory_fraction": 0.8}},
         "kv_cache_config.free_gpu_memory_fraction", ("0.9", "0.8")),
        ({"trust_remote_code": True}, {"trust_remote_code": False}, "trust_remote_code", ("true", "false")),
    ],
)  # fmt: skip
def test_a_flag_that_the_file_overrules(arguments, content, key, values):
    (flag,) = arguments
    assert error(recipe(content, arguments=arguments)) == (
        "plan.flag-overruled", (WHERE, "arguments." + flag, values[0], key, values[1], "TensorRT-LLM"),
    )  # fmt: skip
    same = {flag: content[key] if "." not in key else content["kv_cache_config"]["free_gpu_memory_fraction"]}
    assert planned(recipe(content, arguments=same))
    assert planned(recipe(content))


def test_a_block_takes_the_share_of_memory_away():
    """Up to 1.1.0 wholly; from 1.2.1 on they are merged."""
    cache, flag = {"kv_cache_config": {"enable_block_reuse": False}}, {"kv_cache_free_gpu_memory_fraction": 0.5}
    assert error(recipe(cache, RELEASE + "1.1.0", arguments=flag)) == (
        "plan.flag-lost",
        (WHERE, "arguments.kv_cache_free_gpu_memory_fraction", "0.5", "TensorRT-LLM", "1.1.0", "kv_cache_config",
         "kv_cache_config.free_gpu_memory_fraction"),
    )  # fmt: skip
    assert planned(recipe(cache, RELEASE + "1.1.0", arguments={"kv_cache_free_gpu_memory_fraction": 0.9}))
    half = planned(recipe(cache, arguments=flag))[1][0]["kv_gib"]
    assert half == pytest.approx(planned(recipe({}, arguments=flag))[1][0]["kv_gib"])


# -- what fits together ------------------------------------------------------------------------------------------------


def test_experts_are_split_over_the_devices():
    assert error(recipe(arguments={"ep_size": 3})) == ("plan.experts-not-divided", (WHERE, 3, 8, 8))
    for size in (1, 2, 8):
        assert planned(recipe(arguments={"ep_size": size}))


def test_settings_of_attention_dp_need_it():
    content = {"attention_dp_config": {"enable_balance": True}}
    assert error(recipe(content)) == ("plan.attention-dp-off", (WHERE,))
    assert said(recipe({**content, "enable_attention_dp": True})) == []


def test_sizes_of_graphs_are_given_once():
    content = {"cuda_graph_config": {"batch_sizes": [1, 2, 4], "max_batch_size": 4}}
    assert error(recipe(content)) == ("plan.graph-sizes-twice", (WHERE, "TensorRT-LLM"))
    content["cuda_graph_config"].pop("max_batch_size")
    assert planned(recipe(content))


@pytest.mark.parametrize(
    ("accelerator", "backend", "version", "instead"),
    [
        ("h200", "TRTLLM", "1.2.1", "TRITON"),
        ("h200", "TRTLLM", "1.0.0", "CUTLASS"),  # has no TRITON yet
        ("b200", "TRITON", "1.2.1", "TRTLLM"),
        ("gb200", "TRITON", "1.3.0rc27", "TRTLLM"),
        ("h200", "TRITON", "1.2.1", None),
        ("b200", "TRTLLM", "1.0.0", None),
        ("h200", "CUTLASS", "1.2.1", None),
        ("b200", "CUTLASS", "1.2.1", None),
        ("h200", "AUTO", "1.3.0rc27", None),
    ],
)
def test_kernels_of_experts_are_for_certain_devices(accelerator, backend, version, instead):

    declared = recipe({"moe_config": {"backend": backend}}, RELEASE + version, accelerator)
    if instead is None:
        assert planned(declared)
        return
    needs, has = ("10.0 and 10.3", "9.0") if backend == "TRTLLM" else ("9.0", "10.0")
    assert error(declared) == (
        "plan.moe-backend-not-for-device", (WHERE, '"%s"' % backend, needs, accelerator, has, instead),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ({"max_batch_size": 8, "cuda_graph_config": {"max_batch_size": 720}},
         "cuda_graph_config goes up to 720, max_batch_size is 8: graphs beyond it only take memory. Make them equal."),
        ({"max_batch_size": 720, "cuda_graph_config": {"batch_sizes": [1, 8]}},
         "cuda_graph_config goes up to 8, max_batch_size is 720: larger batches run without graphs. Make them equal."),
        ({"max_batch_size": 720, "max_num_tokens": 512},
         "max_num_tokens is 512, max_batch_size 720, and each sequence of a batch takes a token in a step: the batch "
         "never gets as large. Raise max_num_tokens."),
        ({"speculative_config": {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": "/m"}},
         "speculation with Eagle drops tool calls silently (TensorRT-LLM#16377, seen in 1.3.0rc13). Where "
         "clients use tools set config.content.speculative_config to null."),
        ({"max_batch_size": 8, "max_num_tokens": 512, "cuda_graph_config": {"max_batch_size": 8}}, None),
    ],
)  # fmt: skip
def test_what_works_otherwise_than_expected(content, note):
    assert said(recipe(content)) == ([note] if note else [])


def test_attention_dp_on_one_device():
    assert said(recipe({"enable_attention_dp": True}, devices=1)) == [
        "enable_attention_dp does nothing on one device (tensor_parallel_size 1)."
    ]


def test_longer_sequences_than_the_model_reads():
    assert error(recipe({"max_seq_len": 131073}))[0] == "input.value-invalid"
    assert planned(recipe({"max_seq_len": 131072}))
