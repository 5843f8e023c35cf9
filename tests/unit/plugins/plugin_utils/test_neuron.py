# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils import capacity, neuron, overrides, plan, recipes
from ansible_collections.inference.fleet.plugins.plugin_utils.hardware import parse_hardware

TRN3 = {"accelerator": "trainium3", "count": 16}
PLACE = "server 'server-0': arguments.additional-config"
OVERRIDE = PLACE + ".override_neuron_config"
PLUGIN = PLACE + ".neuron_config"
NEWER = " A key of a newer SDK is let through by allow_unknown_config: [%s]."


def planned(name="trn3-eagle3", hardware=None, **layers):
    recipe = recipes.resolve_recipe(recipes.find_recipe(name, []), [("fleet_override", layers)] if layers else [])
    declared = parse_hardware(hardware or TRN3, "inventory")
    entries = plan.plan_host("node1", recipe, declared, plan.Site())
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
            OVERRIDE + ".is_eagel3 is unknown, and the engine would ignore it without a word; did you mean 'is_eagle3'?"
            + NEWER % "is_eagel3",
        ),
        (
            nxdi(**{"tp-degree": 8}),
            OVERRIDE + ".tp-degree is unknown, and the engine would ignore it without a word; did you mean 'tp_degree'?"
            + NEWER % "tp-degree",
        ),
        (
            nxdi(zzz=1),
            OVERRIDE + ".zzz is unknown, and the engine would ignore it without a word." + NEWER % "zzz",
        ),
        (
            nxdi(on_device_sampling_config={"global_top_k": 64}),
            OVERRIDE + ".on_device_sampling_config.global_top_k is unknown, and the engine would ignore it without a "
            "word; did you mean 'global_topk'?" + NEWER % "global_top_k",
        ),
        (
            plugin(num_seq_buckets=[4]),
            PLUGIN + ".num_seq_buckets is unknown, and the engine would ignore it without a word; did you mean "
            "'num_seqs_buckets'?" + NEWER % "num_seq_buckets",
        ),
        (
            plugin(on_device_sampling_config={"all_greedily": True}),
            PLUGIN + ".on_device_sampling_config.all_greedily is unknown, and the engine would ignore it without a "
            "word; "
            "did you mean 'all_greedy'?" + NEWER % "all_greedily",
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
            "set "
            "it to 16.",
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
            "64 logical cores do not divide into servers of 5 (group 'server'); allowed devices: 1, 2, 4, 8, 16, 32, "
            "64.",
        ),
        (
            {"hardware": {**TRN3, "lnc": 3}},
            "inventory: fleet_hardware.lnc is 3; allowed for trainium3: 1, 2.",
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
        {"arguments": {"max_num_seqs": 8, "max-num-seqs": None}},
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
        ("trn3-eagle3", "override_neuron_config", neuron.NXDI_KEYS),
        ("trn3-vllm-neuron", "neuron_config", neuron.PLUGIN_KEYS),
    ):
        recipe = recipes.load_recipe(recipes.find_recipe(name, []))
        assert set(recipe["arguments"]["additional-config"][key]) <= known
        assert "allow_unknown_config" not in recipe
