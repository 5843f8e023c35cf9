# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import capacity, plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms.neuron import checks
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides

TRN3 = {"accelerator": "trainium3", "count": 16}
PLACE = "server 'server-0': arguments.additional-config"
OVERRIDE = PLACE + ".override_neuron_config"
PLUGIN = PLACE + ".neuron_config"
IGNORED = " is unknown, and the engine would ignore it silently"
NEWER = " A key of a newer SDK is let through by allow_unknown_config: [%s]."


def plan_of(name="trn3-eagle3", hardware=None, **layers):
    recipe = recipes.resolve_recipe(recipes.find_recipe(name, []), [("fleet_override", layers)] if layers else [])
    return plan.plan_host("node1", recipe, parse_hardware(hardware or TRN3, "inventory"), plan.Site())


def planned(name="trn3-eagle3", hardware=None, **layers):
    entries = plan_of(name, hardware, **layers)
    recipe = recipes.resolve_recipe(recipes.find_recipe(name, []), [("fleet_override", layers)] if layers else [])
    declared = parse_hardware(hardware or TRN3, "inventory")
    assert not capacity.refusals(capacity.check(entries, plan.deployment(recipe, plan.Site(), "node1"), declared))
    return entries


def refused(*args, **kwargs):
    with pytest.raises(FleetError) as caught:
        planned(*args, **kwargs)
    return caught.value.message


def nxdi(**config):
    return {"arguments": {"additional-config": {"override_neuron_config": config}}}


def plugin(**config):
    return {"name": "trn3-vllm-neuron", "arguments": {"additional-config": {"neuron_config": config}}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # Keys that the engine would ignore.
        (
            nxdi(is_eagel3=True),
            OVERRIDE + ".is_eagel3 is unknown, and the engine would ignore it silently; did you mean 'is_eagle3'?"
            + NEWER % "is_eagel3",
        ),
        (
            nxdi(**{"tp-degree": 8}),
            OVERRIDE + ".tp-degree is unknown, and the engine would ignore it silently; did you mean 'tp_degree'?"
            + NEWER % "tp-degree",
        ),
        (
            nxdi(zzz=1),
            OVERRIDE + ".zzz is unknown, and the engine would ignore it silently." + NEWER % "zzz",
        ),
        (
            nxdi(on_device_sampling_config={"global_top_k": 64}),
            OVERRIDE + ".on_device_sampling_config.global_top_k is unknown, and the engine would ignore it "
            "silently; did you mean 'global_topk'?" + NEWER % "global_top_k",
        ),
        (
            plugin(num_seq_buckets=[4]),
            PLUGIN + ".num_seq_buckets is unknown, and the engine would ignore it silently; did you mean "
            "'num_seqs_buckets'?" + NEWER % "num_seq_buckets",
        ),
        (
            plugin(on_device_sampling_config={"all_greedily": True}),
            PLUGIN + ".on_device_sampling_config.all_greedily is unknown, and the engine would ignore it "
            "silently; "
            "did you mean 'all_greedy'?" + NEWER % "all_greedily",
        ),
        # The same in the mappings within, of both engines; two of those fail instead, after the checkpoint is read.
        (
            nxdi(blockwise_matmul_config={"blok_size": 256}),
            OVERRIDE + ".blockwise_matmul_config.blok_size" + IGNORED + "; did you mean 'block_size'?"
            + NEWER % "blok_size",
        ),
        (
            nxdi(kv_quant_config={"dtype": "fp8"}),
            OVERRIDE + ".kv_quant_config.dtype" + IGNORED + "; did you mean 'quant_dtype'?" + NEWER % "dtype",
        ),
        (
            nxdi(tensor_capture_config={"modules": []}),
            OVERRIDE + ".tensor_capture_config.modules" + IGNORED + "." + NEWER % "modules",
        ),
        (
            nxdi(tensor_replacement_config={"tr_map": {}}),
            OVERRIDE + ".tensor_replacement_config.tr_map" + IGNORED + "; did you mean 'tf_map'?" + NEWER % "tr_map",
        ),
        (
            nxdi(router_config={"act_fnn": "softmax"}),
            OVERRIDE + ".router_config.act_fnn is unknown, and the engine would fail at it after minutes; did you mean "
            "'act_fn'?" + NEWER % "act_fnn",
        ),
        (
            nxdi(lora_config={"rank": 16}),
            OVERRIDE + ".lora_config.rank is unknown, and the engine would fail at it after minutes." + NEWER % "rank",
        ),
        (
            plugin(tensor_capture={"foo": 1}),
            PLUGIN + ".tensor_capture.foo" + IGNORED + "." + NEWER % "foo",
        ),
        (
            plugin(tensor_replacement={"tensor": []}),
            PLUGIN + ".tensor_replacement.tensor" + IGNORED + "; did you mean 'tensors'?" + NEWER % "tensor",
        ),
        (
            {"name": "trn3-vllm-neuron",
             "arguments": {"additional-config": {"vision_neuron_config": {"tp_degree": 2}}}},
            PLACE + ".vision_neuron_config.tp_degree" + IGNORED + "." + NEWER % "tp_degree",
        ),
        (
            nxdi(router_config='{"act_fn": "softmax"}'),
            OVERRIDE + '.router_config is "{\\"act_fn\\": \\"softmax\\"}"; allowed: a mapping.',
        ),
        # Wherever they are written.
        (
            {"name": "trn3-start-script", "arguments": {"additional-config": {"override-neuron-config": {"x": 1}}}},
            PLACE + ".override-neuron-config is never read: the engine looks for override_neuron_config, with "
            "underscores, and runs with its defaults where that is missing. Rename it.",
        ),
        (
            {"name": "trn3-start-script", **nxdi(is_eagel3=True)},
            OVERRIDE + ".is_eagel3" + IGNORED + "; did you mean 'is_eagle3'?" + NEWER % "is_eagel3",
        ),
        (
            {"config": {"format": "yaml", "content": {"additional-config": {"override-neuron-config": {"x": 1}}}},
             "arguments": {"config": "${config}"}},
            "server 'server-0': config has additional-config, which is not checked there. Write "
            "arguments.additional-config instead.",
        ),
        (
            {"config": {"format": "yaml", "content": {"speculative_config.method": "eagle"}}},
            "server 'server-0': config has speculative_config.method, which is not checked there. Write "
            "arguments.speculative-config instead.",
        ),
        (
            {"arguments": {"override-neuron-config": {"is_eagle3": True}}},
            "server 'server-0': arguments.override-neuron-config is no flag of the engine. Write "
            "arguments.additional-config.override_neuron_config.",
        ),
        (
            {"name": "trn3-vllm-neuron", "arguments": {"neuron_config.quantization": "mxfp4"}},
            "server 'server-0': arguments.neuron_config.quantization is no flag of the engine. Write "
            "arguments.additional-config.neuron_config.",
        ),
        (
            {"arguments": {"additional-config": {"override-neuron-config": {"tp_degree": 8}}}},
            PLACE + ".override-neuron-config is never read: the engine looks for override_neuron_config, with "
            "underscores, and runs with its defaults where that is missing. Rename it.",
        ),
        (
            {"name": "trn3-vllm-neuron", "arguments": {"additional-config": {"neuron-config": {}}}},
            PLACE + ".neuron-config is never read: the engine looks for neuron_config, with underscores, and runs with "
            "its defaults where that is missing. Rename it.",
        ),
        (
            {"arguments": {"additional-config": {"neuron_config": {}}}},
            PLACE + ".neuron_config is read by the vLLM Neuron plugin only, and this server runs NxD Inference "
            "(environment.VLLM_NEURON_FRAMEWORK); allowed here: override_neuron_config.",
        ),
        (
            {"name": "trn3-vllm-neuron", "arguments": {"additional-config": {"override_neuron_config": {}}}},
            PLACE + ".override_neuron_config is read by NxD Inference only, and this server runs the vLLM Neuron "
            "plugin "
            "(environment.VLLM_NEURON_FRAMEWORK); allowed here: neuron_config, vision_neuron_config, "
            "encoder_neuron_config, mm_language_model_only.",
        ),
        (
            {"arguments": {"additional-config": {"overide_neuron_config": {}}}},
            PLACE + ".overide_neuron_config is unknown; did you mean 'override_neuron_config'?; allowed: "
            "override_neuron_config." + NEWER % "overide_neuron_config",
        ),
        ({"arguments": {"additional-config": "{"}}, PLACE + ' is "{"; allowed: a mapping.'),
        ({"arguments": {"additional-config": [1]}}, PLACE + " is [1]; allowed: a mapping."),
        (
            {"arguments": {"additional-config": '{"override-neuron-config": {}}'}},
            PLACE + ".override-neuron-config is never read: the engine looks for override_neuron_config, with "
            "underscores, and runs with its defaults where that is missing. Rename it.",
        ),
        (
            {"arguments": {"additional-config": {"override_neuron_config": 3}}},
            OVERRIDE + " is 3; allowed: a mapping.",
        ),
        (
            {"arguments": {"additional-config.override_neuron_config": 3}},
            PLACE + ".override_neuron_config: write additional-config as one mapping, not as flags with dots; both "
            "together do not merge in every version of vLLM.",
        ),
        (
            {"arguments": {"speculative_config.method": "eagle"}},
            "server 'server-0': arguments.speculative_config.method: write speculative-config as one mapping, not as "
            "flags with dots; both together do not merge in every version of vLLM.",
        ),
        (
            {"arguments": {"speculative-config": "eagle3"}},
            "server 'server-0': arguments.speculative-config is \"eagle3\"; allowed: a mapping.",
        ),
        # The same thing said twice.
        (
            nxdi(tp_degree=4),
            "server 'server-0': arguments.additional-config.override_neuron_config.tp_degree is 4, but "
            "arguments.tensor-parallel-size is 8; both must be the same. Write the same value into both.",
        ),
        (
            nxdi(logical_nc_config=1),
            OVERRIDE + ".logical_nc_config is 1, but fleet_hardware.lnc is 2; both must be the same. Write the same "
            "value into both.",
        ),
        (
            nxdi(speculation_length=3),
            OVERRIDE + ".speculation_length is 3, but arguments.speculative-config.num_speculative_tokens is 5; both "
            "must be the same. Write the same value into both.",
        ),
        (
            {"arguments": {"speculative-config": {"num_speculative_tokens": 3},
                           "additional-config": {"override_neuron_config": {"speculation_length": 3}}}},
            "server 'server-0': arguments.speculative-config.num_speculative_tokens is 3, but model.draft.tokens is 5; "
            "both must be the same. Write ${draft_tokens} there.",
        ),
        (
            nxdi(batch_size=1),
            OVERRIDE + ".batch_size is 1, but arguments.max-num-seqs is 16; both must be the same. Write the same "
            "value "
            "into both.",
        ),
        (
            nxdi(seq_len=8192),
            OVERRIDE + ".seq_len is 8192, but arguments.max-model-len is 16384; both must be the same. Write the same "
            "value into both.",
        ),
        (
            {"arguments": {"num-gpu-blocks-override": 32}},
            "server 'server-0': arguments.num-gpu-blocks-override is 32, but arguments.max-num-seqs is 16; without "
            "prefix caching one block is one sequence, so both must be the same. Remove num-gpu-blocks-override, or "
            "set it to ${max_num_seqs}.",
        ),
        *(
            (
                {"arguments": {"no-%s" % paging: None, paging: True}},
                "server 'server-0': arguments.num-gpu-blocks-override is 16, one for each sequence, but with %s a "
                "block holds only a few tokens. Remove num-gpu-blocks-override (null), or set it to the number of "
                "blocks of the whole cache." % paging,
            )
            for paging in ("enable-prefix-caching", "enable-chunked-prefill")
        ),
        (
            {"environment": {"NEURON_RT_VIRTUAL_CORE_SIZE": 1}},
            "server 'server-0': environment.NEURON_RT_VIRTUAL_CORE_SIZE is \"1\", but fleet_hardware.lnc is 2; both "
            "must "
            "be the same. Write ${lnc} there.",
        ),
        (
            {"environment": {"NEURON_LOGICAL_NC_CONFIG": 3}},
            "server 'server-0': environment.NEURON_LOGICAL_NC_CONFIG is \"3\", but fleet_hardware.lnc is 2; both "
            "must be "
            "the same. Write ${lnc} there.",
        ),
        # Cores and directories.
        (
            {"environment": {"NEURON_RT_VISIBLE_CORES": "0-3"}},
            "server 'server-0': environment.NEURON_RT_VISIBLE_CORES is \"0-3\", but the server's cores are "
            "0,1,2,3,4,5,6,7; write ${device_range} there.",
        ),
        (
            {"environment": {"NEURON_RT_VISIBLE_CORES": None}},
            "server 'server-0': environment.NEURON_RT_VISIBLE_CORES is not set; without it the server takes all cores "
            "of the node. Set it to ${device_range}.",
        ),
        (
            {"name": "trn3-vllm-neuron", "environment": {"NEURON_VISIBLE_DEVICES": "all"}},
            "server 'server-0': environment.NEURON_VISIBLE_DEVICES is \"all\", but the server's cores are "
            "0,1,2,3,4,5,6,7; write ${device_range} there.",
        ),
        (
            {"environment": {"NEURON_COMPILED_ARTIFACTS": None}},
            "server 'server-0': environment.NEURON_COMPILED_ARTIFACTS is not set; without it the engine deletes what "
            "it "
            "compiled and does so again. Set it to ${artifact}.",
        ),
        (
            {"name": "trn3-vllm-neuron", "environment": {"NEURON_COMPILED_ARTIFACTS": None}},
            "server 'server-0': environment.NEURON_COMPILED_ARTIFACTS is not set; without it the node keeps no record "
            "of what is compiled, and exports nothing. Set it to ${artifact}.",
        ),
        (
            {"environment": {"BASE_COMPILE_WORK_DIR": ""}},
            "server 'server-0': environment.BASE_COMPILE_WORK_DIR is not set; without it all servers of a node compile "
            "in /tmp/nxd_model. Set it to ${compile}.",
        ),
        (
            {"environment": {"BASE_COMPILE_WORK_DIR": "/tmp/x"}},
            "server 'server-0': environment.BASE_COMPILE_WORK_DIR is \"/tmp/x\", but directories.compile is "
            "/var/lib/inference-fleet/servers/server-0/compile; both must be the same. Write ${compile} there.",
        ),
        # Speculation.
        (
            nxdi(is_eagle3=False),
            "server 'server-0': model.draft.method is eagle3, but "
            "arguments.additional-config.override_neuron_config.is_eagle3 is not true; the engine would take the draft "
            "for another kind of model. Set it.",
        ),
        (
            nxdi(enable_eagle_speculation=None),
            "server 'server-0': model.draft.method is eagle3, but "
            "arguments.additional-config.override_neuron_config.enable_eagle_speculation is not true; the engine would "
            "take the draft for another kind of model. Set it.",
        ),
        (
            {"arguments": {"speculative-config": None}},
            "server 'server-0': arguments.additional-config.override_neuron_config.is_eagle3 is set, but "
            "arguments.speculative-config is not; the engine would fail after it has compiled. Set both or neither.",
        ),
        (
            {"model": {"draft": None}, "arguments": {"speculative-config": {"model": "/d"}}},
            "server 'server-0': arguments.speculative-config is set, but model.draft is not. Set model.draft, or "
            "remove "
            "arguments.speculative-config (null).",
        ),
        # The plugin's own limits.
        (
            plugin(num_seqs_buckets=[1, 8]),
            "server 'server-0': the largest of arguments.additional-config.neuron_config.num_seqs_buckets [1, 8] must "
            "be arguments.max-num-seqs, which is 4.",
        ),
        (
            plugin(num_batched_tokens_buckets="8192"),
            "server 'server-0': arguments.additional-config.neuron_config.num_batched_tokens_buckets is \"8192\"; "
            "allowed: a list of whole numbers.",
        ),
        (
            plugin(kv_segment_size_buckets=[3000]),
            "server 'server-0': arguments.additional-config.neuron_config.kv_segment_size_buckets is [3000]; "
            "allowed: a "
            "list of 512, 1024, 2048, 4096, 8192.",
        ),
        # Shapes.
        (
            {"servers": {"server": {"devices": 5}}},
            "64 logical cores do not divide into servers of 5 with count auto; allowed: 1, 2, 4, 8, 16, 32, 64. "
            "Set servers.server.devices.",
        ),
        (
            {"servers": {"server": {"devices": 5, "count": 3}}},
            "server 'server-0': servers.server.devices is 5, so it would end in the middle of a chip, which has 4 "
            "logical cores; allowed: 1, 2 or a multiple of 4.",
        ),
        (
            {"name": "trn3-start-script", "servers": {"server": {"devices": 7, "count": 3}}},
            "server 'server-0': servers.server.devices is 7, so it would end in the middle of a chip, which has 4 "
            "logical cores; allowed: 1, 2 or a multiple of 4.",
        ),
        (
            {"hardware": {"accelerator": "trainium3", "count": 3}, "servers": {"server": {"devices": 3}}},
            "server 'server-0': servers.server.devices is 3, so it would end in the middle of a chip, which has 4 "
            "logical cores; allowed: 1, 2 or a multiple of 4.",
        ),
        (
            {"servers": {"server": {"devices": 12, "count": 3}}},
            "server 'server-0': arguments.tensor-parallel-size is 12, but the 64 logical cores of the node divide into "
            "groups of 1, 2, 4, 8, 16, 32, 64; take one of these.",
        ),
        (
            {"name": "trn3-start-script", "servers": {"server": {"devices": 12, "count": 3}}},
            "server 'server-0': servers.server.devices is 12, but the 64 logical cores of the node divide into "
            "groups of 1, 2, 4, 8, 16, 32, 64; take one of these.",
        ),
        (
            {"servers": {"server": {"devices": 12, "count": 1}},
             "arguments": {"tensor-parallel-size": 3, "data-parallel-size": 4}},
            "server 'server-0': arguments.tensor-parallel-size is 3, but the 64 logical cores of the node divide into "
            "groups of 1, 2, 4, 8, 16, 32, 64; take one of these.",
        ),
        (
            {"servers": [{"name": "small", "role": "server", "count": 1, "devices": 2, "port": 7000},
                         {"name": "large", "role": "server", "count": 2, "devices": 8, "port": 8000}]},
            "server 'large-0': its logical cores 2-9 begin in the middle of a chip, which has 4. List the groups that "
            "have whole chips before the others.",
        ),
        (
            {"hardware": {**TRN3, "lnc": 3}},
            "inventory: fleet_hardware.lnc is 3; allowed: 1 or 2. Correct the value.",
        ),
    ],
)  # fmt: skip
def test_bad_input_gets_one_sentence(arguments, message):
    assert refused(**arguments) == message


@pytest.mark.parametrize(
    "layers",
    [
        nxdi(moe_tp_degree=8, sequence_parallel_enabled=True),
        {**nxdi(key_of_tomorrow=1), "allow_unknown_config": ["key_of_tomorrow"]},
        {**nxdi(on_device_sampling_config={"min_p": 0.1}), "allow_unknown_config": ["min_p"]},
        {"arguments": {"additional-config": {"quantum_config": {}}}, "allow_unknown_config": ["quantum_config"]},
        {"arguments": {"num-gpu-blocks-override": 16}},
        {"arguments": {"num-gpu-blocks-override": None}},
        {"arguments": {"max-num-seqs": 8}},  # num-gpu-blocks-override follows
        {"arguments": {"max-num-seqs": "8"}},
        {
            "arguments": {
                "enable-prefix-caching": True,
                "no-enable-prefix-caching": None,
                "num-gpu-blocks-override": 999,
            }
        },
        {"arguments": {"additional-config": {"override_neuron_config": {"is_full_model_shuffled": True}}}},
        {"arguments": {"max_num_seqs": 8, "max-num-seqs": None}},
        {"arguments": {"speculative-config": '{"method": "eagle3", "model": "${draft}", "num_speculative_tokens": 5}'}},
        nxdi(router_config={"act_fn": "softmax", "dtype": "float32"}, blockwise_matmul_config={"block_size": 256}),
        nxdi(router_act_fn="softmax", router_dtype="float32", lora_config=None),
        plugin(tensor_capture={"modules": ["lm_head"]}, tensor_replacement={"tensors_path": "/x"}),
        {
            "name": "trn3-vllm-neuron",
            "arguments": {
                "additional-config": {"vision_neuron_config": {"tp_size": 8}, "mm_language_model_only": True}
            },
        },
        {"name": "trn3-start-script", **nxdi(seq_len=8192)},
        {"name": "trn3-start-script", "arguments": {"speculative-config": {"num_speculative_tokens": 5}}},
        {"name": "trn3-vllm-neuron", "config": {"format": "yaml", "content": {"speculative-config": {}}}},
        {"environment": {"NEURON_RT_VISIBLE_CORES": "${devices}"}},
        {"environment": {"NEURON_LOGICAL_NC_CONFIG": "${lnc}"}},
    ],
)
def test_what_is_let_through(layers):
    assert len(planned(**layers)) == 8


def test_an_unknown_key_is_let_through_by_its_own_name_only():
    layers = {**nxdi(one_key=1, other_key=1), "allow_unknown_config": ["one_key"]}
    assert refused(**layers).startswith(OVERRIDE + ".other_key is unknown")


def test_mxfp4_is_trainium3_s():
    layers = {"needs": {"accelerators": ["trainium2"], "device_memory_gib": 0}}
    trn2 = {"accelerator": "trainium2", "count": 16}
    assert refused(hardware=trn2, **layers) == (
        "server 'server-0': arguments.additional-config.override_neuron_config.is_mxfp4_compute is true, but "
        "fleet_hardware.accelerator is trainium2; only trainium3 computes MXFP4. Set it to false."
    )
    assert refused(hardware=trn2, **plugin(quantization="mxfp4")) == (
        "server 'server-0': arguments.additional-config.neuron_config.quantization is mxfp4, but "
        "fleet_hardware.accelerator is trainium2; only trainium3 computes MXFP4. Remove it."
    )


GPT_OSS_20B = {"model": {"repo": "openai/gpt-oss-20b", "revision": None}}
WITHOUT_DRAFT = {
    "model": {"draft": None},
    "arguments": {
        "speculative-config": None,
        "additional-config": {
            "override_neuron_config": dict.fromkeys(
                ("enable_fused_speculation", "enable_eagle_speculation", "is_eagle3", "speculation_length")
            )
        },
    },
}


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("trn3-eagle3", WITHOUT_DRAFT),
        ("trn3-start-script", {"model": {"draft": None}}),
        ("trn3-vllm-neuron", {"model": {"id": "openai/gpt-oss-20b", "path": "${models}/gpt-oss-20b"}}),
    ],
)
def test_each_recipe_also_serves_the_small_model(name, layers):
    layers = overrides.apply(GPT_OSS_20B, layers)
    layers["model"].setdefault("draft", None)
    entries = planned(name, **layers)
    assert len(entries) == 8
    assert not any("--speculative-config" in entry["command"] for entry in entries)
    assert len({entry["directories"]["artifact"] for entry in entries}) == 1


def test_every_key_of_the_recipes_is_on_the_lists():
    for name, key, known in (
        ("trn3-eagle3", "override_neuron_config", checks.KEYS["override_neuron_config"]),
        ("trn3-vllm-neuron", "neuron_config", checks.KEYS["neuron_config"]),
    ):
        recipe = recipes.load_recipe(recipes.find_recipe(name, []))
        assert set(recipe["arguments"]["additional-config"][key]) <= known
        assert "allow_unknown_config" not in recipe


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


def test_arguments_say_the_same_as_json():
    """What is checked in a mapping is checked in its text."""
    text = '{"method": "eagle3", "model": "${draft}", "num_speculative_tokens": 3}'
    assert refused(arguments={"speculative-config": text}) == (
        "server 'server-0': arguments.additional-config.override_neuron_config.speculation_length is 5, but "
        "arguments.speculative-config.num_speculative_tokens is 3; both must be the same. Write the same value into "
        "both."
    )


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"VLLM_CACHE_ROOT": None},
            "VLLM_CACHE_ROOT is not set; without it the plugin compiles into the home of its user, and no artifact is "
            "loaded, kept or exported. Set it to ${artifact}/cache.",
        ),
        *(
            (
                {"VLLM_CACHE_ROOT": value},
                'VLLM_CACHE_ROOT is "%s", but directories.artifact is %%s; what the plugin compiles outside of it is '
                "not loaded by other servers, kept or exported. Write ${artifact}/cache there."
                % value.replace("${artifact}", "%s"),
            )
            for value in ("/home/x/.cache/vllm", "cache", "${artifact}s", "${artifact}/../x", "${artifact}//cache")
        ),
        (
            {"NEURON_LIBTORCH_CACHE_ROOT": "/tmp/x"},
            'NEURON_LIBTORCH_CACHE_ROOT is "/tmp/x", but environment.VLLM_CACHE_ROOT is %s/cache; both must be the '
            "same. Write ${artifact}/cache there.",
        ),
    ],
)
def test_the_plugin_compiles_into_its_artifact(environment, message):
    artifact = planned("trn3-vllm-neuron")[0]["directories"]["artifact"]
    message = "server 'server-0': environment." + message.replace("%s", artifact)
    assert refused("trn3-vllm-neuron", environment=environment) == message


@pytest.mark.parametrize("place", ["${artifact}", "${artifact}/c"])
def test_where_the_plugin_compiles_is_not_part_of_the_key(place):
    key = planned("trn3-vllm-neuron")[0]["hooks"]["compile_cache"]["key"]
    for name in ("VLLM_CACHE_ROOT", "NEURON_LIBTORCH_CACHE_ROOT"):
        (found,) = {
            entry["hooks"]["compile_cache"]["key"]
            for entry in planned("trn3-vllm-neuron", environment={"VLLM_CACHE_ROOT": place, name: place})
        }
        assert found == key
