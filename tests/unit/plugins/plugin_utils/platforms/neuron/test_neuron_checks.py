# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import capacity
from ansible_collections.inference.fleet.tests.unit.engines import plans

TRN2 = {"accelerator": "trainium2", "count": 16}
TRN2_NEEDS = {"needs": {"accelerators": ["trainium2"], "device_memory_gib": 0}}
SERVER = "server 'server-0'"
PLACE = SERVER + ": arguments.additional-config"
OVERRIDE = PLACE + ".override_neuron_config"
PLUGIN = PLACE + ".neuron_config"


def plan_of(name="trn3-eagle3", hardware=None, **layers):
    return plans.entries_of(name, hardware or plans.TRN3, layers)


def refused(**layers):
    error = plans.error(plan_of, **layers)
    return error.code, error.values


def nxdi(**config):
    return {"arguments": {"additional-config": {"override_neuron_config": config}}}


def plugin(**config):
    return {"name": "trn3-vllm-neuron", "arguments": {"additional-config": {"neuron_config": config}}}


INVALID, DIFFERS = "neuron.config-invalid", "neuron.value-not-as-planned"
CHIPS = "neuron.cores-not-whole-chips"
IGNORED, LATE = "the engine would ignore it silently", "the engine would fail at it after minutes"


def argument(**values):
    return {"arguments": {name.replace("_", "-"): value for name, value in values.items()}}


def additional(value, name="trn3-eagle3"):
    return {"name": name, "arguments": {"additional-config": value}}


@pytest.mark.parametrize(
    ("layers", "key", "effect", "close"),
    [
        (nxdi(is_eagel3=True), "is_eagel3", IGNORED, "is_eagle3"),
        (nxdi(zzz=1), "zzz", IGNORED, None),
        (plugin(num_seq_buckets=[4]), "num_seq_buckets", IGNORED, "num_seqs_buckets"),
        # mappings in both engines' configuration; two of them fail instead, after the checkpoint is read
        (nxdi(blockwise_matmul_config={"blok_size": 256}), "blok_size", IGNORED, "block_size"),
        (nxdi(router_config={"act_fnn": "softmax"}), "act_fnn", LATE, "act_fn"),
        (additional({"vision_neuron_config": {"tp_degree": 2}}, "trn3-vllm-neuron"), "tp_degree", IGNORED, None),
        ({**nxdi(is_eagel3=True), "name": "trn3-start-script"}, "is_eagel3", IGNORED, "is_eagle3"),
        ({**nxdi(one_key=1, other_key=1), "allow_unknown_config": ["one_key"]}, "other_key", IGNORED, None),
        # the top of additional-config
        (additional('{"override-neuron-config": {}}'), "override-neuron-config", IGNORED, "override_neuron_config"),
        (additional({"neuron_config": {}}), "neuron_config", "only the vLLM Neuron plugin reads it", None),
        (additional({"override_neuron_config": {}}, "trn3-vllm-neuron"), "override_neuron_config",
         "only NxD Inference reads it", None),
    ],
)  # fmt: skip
def test_a_key_that_the_engine_does_not_read_is_refused(layers, key, effect, close):
    code, (place, problem, write) = refused(**layers)
    assert code == INVALID
    assert place.startswith(PLACE) and place.endswith("." + key)
    assert effect in problem and write.startswith(close or "")


@pytest.mark.parametrize(
    ("layers", "place"),
    [
        # configuration in other places than one argument
        ({"config": {"format": "yaml", "content": {"additional-config": {"override-neuron-config": {"x": 1}}}},
          "arguments": {"config": "${config}"}}, SERVER + ": config.additional-config"),
        ({"config": {"format": "yaml", "content": {"speculative_config.method": "eagle"}}},
         SERVER + ": config.speculative_config.method"),
        (argument(override_neuron_config={"is_eagle3": True}), SERVER + ": arguments.override-neuron-config"),
        ({"name": "trn3-vllm-neuron", "arguments": {"neuron_config.quantization": "mxfp4"}},
         SERVER + ": arguments.neuron_config.quantization"),
        ({"arguments": {"speculative_config.method": "eagle"}}, SERVER + ": arguments.speculative_config.method"),
        # values
        (nxdi(router_config="{}"), OVERRIDE + ".router_config"),
        (additional("{"), PLACE),
        (additional({"override_neuron_config": 3}), OVERRIDE),
        (argument(speculative_config="eagle3"), SERVER + ": arguments.speculative-config"),
        (plugin(num_batched_tokens_buckets="8192"), PLUGIN + ".num_batched_tokens_buckets"),
        (plugin(kv_segment_size_buckets=[3000]), PLUGIN + ".kv_segment_size_buckets"),
    ],
)  # fmt: skip
def test_configuration_in_another_place_or_form_is_refused(layers, place):
    code, values = refused(**layers)
    assert (code, values[0]) == (INVALID, place)


CORES = "the server's cores are 0,1,2,3,4,5,6,7"
RANGE, ARTIFACT = "${device_range}", "${artifact}"


@pytest.mark.parametrize(
    ("layers", "name", "value", "reason", "write"),
    [
        (nxdi(logical_nc_config=1), OVERRIDE + ".logical_nc_config", "1", "fleet_hardware.lnc is 2", None),
        # as JSON in a string
        (argument(speculative_config='{"method": "eagle3", "model": "${draft}", "num_speculative_tokens": 3}'),
         OVERRIDE + ".speculation_length", "5", "num_speculative_tokens is 3", None),
        ({"arguments": {"speculative-config": {"num_speculative_tokens": 3},
                        "additional-config": {"override_neuron_config": {"speculation_length": 3}}}},
         "arguments.speculative-config.num_speculative_tokens", "3", "model.draft.tokens is 5", "${draft_tokens}"),
        (argument(num_gpu_blocks_override=32), "arguments.num-gpu-blocks-override", "32",
         "arguments.max-num-seqs is 16", None),
        *(({"arguments": {"no-%s" % paging: None, paging: True}}, "arguments.num-gpu-blocks-override", '"16"',
           "a block has only a few tokens", None) for paging in ("enable-prefix-caching", "enable-chunked-prefill")),
        ({"environment": {"NEURON_RT_VIRTUAL_CORE_SIZE": 1}}, "environment.NEURON_RT_VIRTUAL_CORE_SIZE", '"1"',
         "fleet_hardware.lnc is 2", "${lnc}"),
        ({"name": "trn3-vllm-neuron", "hardware": {**plans.TRN3, "lnc": 1}, "needs": {"lnc": 1}},
         "environment.NEURON_LOGICAL_NC_CONFIG", "not set", "fleet_hardware.lnc is 1", "${lnc}"),
        # cores and directories
        ({"environment": {"NEURON_RT_VISIBLE_CORES": None}}, "environment.NEURON_RT_VISIBLE_CORES", "not set", CORES,
         RANGE),
        ({"name": "trn3-vllm-neuron", "environment": {"NEURON_VISIBLE_DEVICES": "all"}},
         "environment.NEURON_VISIBLE_DEVICES", '"all"', CORES, RANGE),
        ({"environment": {"NEURON_COMPILED_ARTIFACTS": None}}, "environment.NEURON_COMPILED_ARTIFACTS", "not set",
         "directories.artifact is", ARTIFACT),
        ({"environment": {"BASE_COMPILE_WORK_DIR": "/tmp/x"}}, "environment.BASE_COMPILE_WORK_DIR", '"/tmp/x"',
         "directories.compile is", "${compile}"),
        # speculation
        (nxdi(enable_eagle_speculation=None), OVERRIDE + ".enable_eagle_speculation", "not set",
         "model.draft.method is eagle3", "true"),
        (argument(speculative_config=None), OVERRIDE + ".is_eagle3", "true", "arguments.speculative-config is not set",
         None),
        ({"model": {"draft": None}, "arguments": {"speculative-config": {"model": "/d"}}}, "model.draft", "not set",
         "arguments.speculative-config is set", None),
        (plugin(num_seqs_buckets=[1, 8]), PLUGIN + ".num_seqs_buckets", "[1, 8]", "arguments.max-num-seqs is 4", None),
        # the plugin's caches
        ({"name": "trn3-vllm-neuron", "environment": {"VLLM_CACHE_ROOT": None}}, "environment.VLLM_CACHE_ROOT",
         "not set",
         "the engine's cache must be in directories.artifact", "${artifact}/cache"),
        *(({"name": "trn3-vllm-neuron", "environment": {"VLLM_CACHE_ROOT": value}}, "environment.VLLM_CACHE_ROOT", None,
           "the engine's cache must be in directories.artifact", "${artifact}/cache")
          for value in ("cache", "${artifact}s", "${artifact}/../x", "${artifact}//cache")),
        ({"name": "trn3-vllm-neuron", "environment": {"NEURON_LIBTORCH_CACHE_ROOT": "/tmp/x"}},
         "environment.NEURON_LIBTORCH_CACHE_ROOT", '"/tmp/x"', "environment.VLLM_CACHE_ROOT is", "${artifact}/cache"),
        # MXFP4
        ({"hardware": TRN2, **TRN2_NEEDS}, OVERRIDE + ".is_mxfp4_compute", "true",
         "fleet_hardware.accelerator is trainium2",
         "false"),
        ({"hardware": TRN2, **plugin(quantization="mxfp4")}, PLUGIN + ".quantization", '"mxfp4"',
         "fleet_hardware.accelerator is trainium2", "null"),
    ],
)  # fmt: skip
def test_a_value_that_contradicts_another_is_refused(layers, name, value, reason, write):
    code, values = refused(**layers)
    assert (code, values[0], values[1]) == (DIFFERS, SERVER, name.removeprefix(SERVER + ": "))
    assert value in (None, values[2]) and reason in values[3] and write in (None, values[4])


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ({"servers": {"server": {"devices": 5, "count": 3}}},
         "servers.server.devices is 5; allowed: 1, 2 or a multiple"),
        ({"hardware": {"accelerator": "trainium3", "count": 3}, "servers": {"server": {"devices": 3}}},
         "devices is 3;"),
        ({"servers": {"server": {"devices": 12, "count": 3}}},
         "arguments.tensor-parallel-size is 12; allowed: 1, 2, 4"),
        ({"name": "trn3-start-script", "servers": {"server": {"devices": 12, "count": 3}}},
         "servers.server.devices is 12"),
        ({"servers": {"server": {"devices": 12, "count": 1}},
          "arguments": {"tensor-parallel-size": 3, "data-parallel-size": 4}}, "arguments.tensor-parallel-size is 3"),
        ({"servers": [{"name": "small", "role": "server", "count": 1, "devices": 2, "port": 7000},
                      {"name": "large", "role": "server", "count": 2, "devices": 8, "port": 8000}]},
         "the cores 2-9 begin"),
    ],
)  # fmt: skip
def test_servers_that_do_not_have_whole_chips_are_refused(layers, words):
    code, values = refused(**layers)
    assert code == CHIPS and words in values[1] and values[2] == 4


@pytest.mark.parametrize(
    "layers",
    [
        nxdi(moe_tp_degree=8, sequence_parallel_enabled=True),
        {**nxdi(key_of_tomorrow=1), "allow_unknown_config": ["key_of_tomorrow"]},
        {**nxdi(on_device_sampling_config={"min_p": 0.1}), "allow_unknown_config": ["min_p"]},
        {"arguments": {"additional-config": {"quantum_config": {}}}, "allow_unknown_config": ["quantum_config"]},
        {"arguments": {"num-gpu-blocks-override": None}},
        {"arguments": {"max-num-seqs": "8"}},  # num-gpu-blocks-override follows
        argument(enable_prefix_caching=True, no_enable_prefix_caching=None, num_gpu_blocks_override=999),
        {"arguments": {"max_num_seqs": 8, "max-num-seqs": None}},
        {"arguments": {"speculative-config": '{"method": "eagle3", "model": "${draft}", "num_speculative_tokens": 5}'}},
        nxdi(router_config={"act_fn": "softmax", "dtype": "float32"}, blockwise_matmul_config={"block_size": 256}),
        nxdi(router_act_fn="softmax", router_dtype="float32", lora_config=None),
        plugin(tensor_capture={"modules": ["lm_head"]}, tensor_replacement={"tensors_path": "/x"}),
        additional({"vision_neuron_config": {"tp_size": 8}, "mm_language_model_only": True}, "trn3-vllm-neuron"),
        {"name": "trn3-start-script", **nxdi(seq_len=8192)},
        {"name": "trn3-start-script", "arguments": {"speculative-config": {"num_speculative_tokens": 5}}},
        {"name": "trn3-vllm-neuron", "config": {"format": "yaml", "content": {"speculative-config": {}}}},
        {"environment": {"NEURON_RT_VISIBLE_CORES": "${devices}"}},
        {"environment": {"NEURON_LOGICAL_NC_CONFIG": "${lnc}"}},
    ],
)
def test_what_is_let_through(layers):
    layers = dict(layers)
    found = plans.planned(layers.pop("name", "trn3-eagle3"), plans.TRN3, layers)
    assert len(found.entries) == 8 and not capacity.refusals(found.capacity)


@pytest.mark.parametrize(
    ("layers", "cores"),
    [
        # decode over twelve chips, its groups of 8 of two each; what is left is for others
        ({"name": "trn3-vllm-neuron", "servers": {"server": {"count": 1, "devices": 48}},
          "arguments": {"tensor-parallel-size": 8, "data-parallel-size": 6}}, [48]),
        ({"name": "trn3-vllm-neuron", "servers": [
            {"name": "large", "role": "server", "count": 1, "devices": 4, "port": 8000},
            {"name": "small", "role": "server", "count": 1, "devices": 2, "port": 9000}]}, [4, 2]),
        ({"name": "trn3-vllm-neuron", "hardware": {"accelerator": "trainium3", "count": 3},
          "servers": {"server": {"devices": 12}}, "arguments": {"tensor-parallel-size": 4, "data-parallel-size": 3}},
         [12]),
    ],
)  # fmt: skip
def test_servers_of_whole_chips_or_of_parts_of_one(layers, cores):
    assert [len(entry["devices"]) for entry in plan_of(**layers)] == cores
