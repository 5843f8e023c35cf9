# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server on Trainium must agree on with itself: cores, LNC, directories, and the configuration of its engine.

Two engines run there, both as vLLM: NxD Inference, which reads override_neuron_config, and the vLLM Neuron plugin,
which reads neuron_config. Both take an unknown key without a word and go on as if it were not there, after a
compilation of half an hour; so every key is held against a list here.
"""

from __future__ import annotations

import difflib
import json

from ansible_collections.inference.fleet.plugins.module_utils.cpu_list import parse_cpu_list
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.artifacts import flag_name
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe_schema import show


def _words(text):
    return frozenset(text.split())


NXDI = "neuronx-distributed-inference"  # value of VLLM_NEURON_FRAMEWORK
# Keys that NeuronConfig, MoENeuronConfig and GptOssNeuronConfig of NxD Inference read (SDK 2.26 to 2.32).
NXDI_KEYS = _words("""
    activation_quantization_type allow_input_truncation apply_seq_ids_mask async_mode attention_dp_degree
    attention_dtype attn_block_cte_nki_kernel_enabled attn_block_tkg_nki_kernel_cache_update
    attn_block_tkg_nki_kernel_cascaded_attention attn_block_tkg_nki_kernel_disable_gpsimd_sb2sb
    attn_block_tkg_nki_kernel_enabled attn_block_tkg_nki_kernel_use_online_softmax attn_cls attn_kernel_enabled
    attn_tkg_builtin_kernel_enabled attn_tkg_nki_kernel_enabled batch_size blockwise_matmul_config
    bucket_n_active_tokens buckets capacity_factor cast_type cc_pipeline_tiling_factor chunked_prefill_config
    context_encoding_buckets cp_degree ctx_batch_size disable_argmax_kernel disable_kv_cache_tiling
    disable_normalize_top_k_affinities disable_numeric_cc_token dma_order_config draft_model_modules_to_not_convert
    eagle_rolling_buffer_kernel_enabled early_expert_affinity_modulation enable_bucketing enable_cte_modular_flow
    enable_eagle_draft_input_norm enable_eagle_speculation enable_fused_speculation
    enable_output_completion_notifications enable_spill_reload_dge enable_ve_data_parallel ep_degree
    ep_dispatch_cc_option expert_mlp_nki_kernel_enabled flash_decoding_enabled fused_qkv fused_rmsnorm_skip_gamma
    fused_shared_experts gate_clamp_lower_limit gate_clamp_upper_limit glu_mlp glu_type hidden_act_bias
    hidden_act_scaling_factor hybrid_sharding_config is_block_kv_layout is_continuous_batching is_eagle3
    is_eagle_draft is_full_model_shuffled is_medusa is_mxfp4_compute is_prefix_caching k_cache_transposed
    kv_cache_batch_size kv_cache_padding_size kv_cache_quant kv_quant_config layer_boundary_markers lm_head_pad
    lm_head_pad_alignment_size local_ranks_size logical_nc_config logical_neuron_cores lora_config max_batch_size
    max_context_length max_length max_new_tokens medusa_speculation_length medusa_tree mlp_cp_degree
    mlp_kernel_enabled mlp_kernel_fuse_residual_add mlp_tkg_nki_kernel_enabled modules_to_not_convert moe_ep_degree
    moe_fused_nki_kernel_enabled moe_mask_padded_tokens moe_tp_degree n_active_tokens n_positions num_medusa_heads
    on_cpu on_device_sampling_config out_proj_kernel_enabled output_logits overrides_torch_dtype pa_block_size
    pa_num_blocks padded_hidden_size padded_intermediate_size padding_side pp_degree pre_rope_rmsnorm prefix_buckets
    qk_layernorm qkv_cte_nki_kernel_fuse_rope qkv_kernel_enabled qkv_kernel_fuse_residual_add qkv_kernel_nbsd_layout
    qkv_nki_kernel_enabled quantization_block_axis quantization_block_size quantization_dtype
    quantization_scale_dtype quantization_type quantize_clamp_bound quantized quantized_checkpoints_path
    quantized_mlp_kernel_enabled return_expert_index return_router_logits rmsnorm_quantize_kernel_enabled
    router_config router_topk_nki_kernel_enabled rpl_reduce_dtype save_sharded_checkpoint scratchpad_page_size
    seq_len seq_len_threshold_for_cc_tiling sequence_parallel_enabled shared_experts_sequence_parallel_enabled
    shared_mlp_nki_kernel_enabled skip_sharding skip_warmup sliding_window_attention_dp_degree spec_batch_size
    speculation_length start_rank_id strided_context_parallel_kernel_enabled switch_cc target tensor_capture_config
    tensor_replacement_config tkg_batch_size token_generation_batches token_generation_buckets token_tree_config
    torch_dtype tp_degree transpose_shared_experts_weights up_clamp_lower_limit up_clamp_upper_limit
    use_index_calc_kernel vocab_parallel weight_gather_seq_len_threshold weights_to_skip_layout_optimization
    windowed_context_encoding_size world_size
    """)
# Keys of the vLLM Neuron plugin's neuron_config (0.21.0.1.0.0 to 0.24.0.1.1.0).
PLUGIN_KEYS = _words("""
    apply_prefill_dcp attention_dp_size debug_logits_dir decode_batch_buckets decode_context_length_buckets
    embedding_dp_size enable_structured_outputs ep_degree fp8_packed_kv kv_segment_size_buckets lm_head_dp_size
    max_logprobs mlp_dp_size num_batched_tokens_buckets num_seqs_buckets on_device_sampling_config
    prefill_sequence_buckets quantization tensor_capture tensor_replacement
    """)
NESTED = {
    "override_neuron_config": {
        "on_device_sampling_config": _words(
            "deterministic do_sample dynamic global_topk on_device_sampling_config sampling_dp_degree temperature "
            "top_k top_k_kernel_enabled top_p"
        ),
        "chunked_prefill_config": _words("kernel_kv_tile_size kernel_q_tile_size max_num_seqs tkg_model_enabled"),
        "hybrid_sharding_config": _words("moe_cte_ep_degree moe_cte_tp_degree moe_tkg_ep_degree moe_tkg_tp_degree"),
    },
    "neuron_config": {
        "on_device_sampling_config": _words(
            "all_greedy capture_topk deterministic max_top_k sampling_dp_degree temperature top_k top_p"
        ),
    },
}
KEYS = {"override_neuron_config": NXDI_KEYS, "neuron_config": PLUGIN_KEYS}
# What each engine reads at the top of additional-config.
TOP = {
    True: ("override_neuron_config",),
    False: ("neuron_config", "vision_neuron_config", "encoder_neuron_config", "mm_language_model_only"),
}
SEGMENTS = (512, 1024, 2048, 4096, 8192)  # sizes that the plugin's segmented attention kernel is built for
CORE_VARIABLES = ("NEURON_RT_VISIBLE_CORES", "NEURON_VISIBLE_DEVICES")
LNC_VARIABLES = ("NEURON_RT_VIRTUAL_CORE_SIZE", "NEURON_LOGICAL_NC_CONFIG")


def check_server(where, recipe, hardware, devices, arguments, environment, directories, key):
    """FleetError unless a server on Trainium is given what its engine will read, and says it only once.

    where: names the server in messages. devices: its logical cores. arguments: {flag: value}, environment: {name:
    text}, directories: {kind: path}, all resolved. key: its artifact key.
    """
    nxdi = environment.get("VLLM_NEURON_FRAMEWORK") == NXDI
    script = is_script(recipe)
    _check_cores(where, environment, devices, nxdi)
    for name in LNC_VARIABLES:
        if name in environment and environment[name] != str(hardware.lnc):
            _differs(where, "environment.%s" % name, environment[name], "fleet_hardware.lnc", hardware.lnc, "${lnc}")
    _check_directories(where, environment, directories, key, nxdi)
    values = {flag_name(flag): value for flag, value in arguments.items() if value is not None}
    additional = _additional_config(where, arguments, values)
    if not script:
        _check_keys(where, additional, nxdi, frozenset(recipe.get("allow_unknown_config", ())))
    if nxdi:
        _check_nxdi(where, recipe, hardware, values, additional.get("override_neuron_config") or {}, script)
    else:
        _check_plugin(where, hardware, values, additional.get("neuron_config") or {})


def is_script(recipe):
    """Whether the engine is started by a script of the machine image, which holds the arguments itself."""
    return any(word.endswith(".sh") for word in recipe["command"])


def _differs(where, what, value, other, expected, write):
    raise FleetError(
        "%s: %s is %s, but %s is %s; both must be the same. Write %s."
        % (where, what, show(value), other, expected, "%s there" % write if write.startswith("$") else write)
    )


def _check_cores(where, environment, devices, nxdi):
    wanted = CORE_VARIABLES[0 if nxdi else 1]
    if wanted not in environment:
        raise FleetError(
            "%s: environment.%s is not set; without it the server takes all cores of the node. Set it to "
            "${device_range}." % (where, wanted)
        )
    for name in CORE_VARIABLES:
        if name not in environment:
            continue
        try:
            cores = sorted(parse_cpu_list(environment[name]))
        except ValueError:
            cores = None
        if cores != list(devices):
            raise FleetError(
                "%s: environment.%s is %s, but the server's cores are %s; write ${device_range} there."
                % (where, name, show(environment[name]), ",".join(str(core) for core in devices))
            )


def _check_directories(where, environment, directories, key, nxdi):
    variables = [("NEURON_COMPILED_ARTIFACTS", "artifact", "the engine deletes what it compiled and does so again")]
    if nxdi:
        variables.append(("BASE_COMPILE_WORK_DIR", "compile", "all servers of a node compile in /tmp/nxd_model"))
    for name, kind, effect in variables:
        if not environment.get(name):
            raise FleetError(
                "%s: environment.%s is not set; without it %s. Set it to ${%s}." % (where, name, effect, kind)
            )
        if environment[name] != directories[kind]:
            _differs(
                where, "environment.%s" % name, environment[name], "directories.%s" % kind, directories[kind],
                "${%s}" % kind,
            )  # fmt: skip
    if key not in directories["artifact"]:
        raise FleetError(
            "%s: directories.artifact is %s; an artifact that was compiled for another configuration would be loaded "
            "from there without a word. Write ${artifact_key} into it." % (where, directories["artifact"])
        )


def _additional_config(where, arguments, values):
    """additional-config as a mapping: it may be JSON, and parts of it may be flags of their own with dots."""
    config = values.get("additional-config")
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError:
            config = 0
    if config is not None and not isinstance(config, dict):
        raise FleetError(
            "%s: arguments.additional-config is %s; allowed: a mapping." % (where, show(values["additional-config"]))
        )
    dotted = sorted(flag for flag in arguments if flag_name(flag).startswith("additional-config."))
    if dotted:
        raise FleetError(
            "%s: arguments.%s: write additional-config as one mapping, not as flags with dots; both together do not "
            "merge in every version of vLLM." % (where, dotted[0])
        )
    return config or {}


def _check_keys(where, additional, nxdi, allowed):
    top = TOP[nxdi]
    for key in additional:
        if key in top or key in allowed:
            continue
        place = "%s: arguments.additional-config.%s" % (where, key)
        if key.replace("-", "_") in top:
            raise FleetError(
                "%s is never read: the engine looks for %s, with underscores, and runs with its defaults where that is "
                "missing. Rename it." % (place, key.replace("-", "_"))
            )
        if key in KEYS:
            raise FleetError(
                "%s is read by %s only, and this server runs %s (environment.VLLM_NEURON_FRAMEWORK); allowed here: %s."
                % (place, *_names(not nxdi), ", ".join(top))
            )
        raise FleetError(
            "%s is unknown%s; allowed: %s. A key of a newer SDK is let through by allow_unknown_config: [%s]."
            % (place, _close(key, top), ", ".join(top), key)
        )
    for name, known in KEYS.items():
        if name not in additional:
            continue
        place = "%s: arguments.additional-config.%s" % (where, name)
        if not isinstance(additional[name], dict):
            raise FleetError("%s is %s; allowed: a mapping." % (place, show(additional[name])))
        _check_known(place, additional[name], known, allowed)
        for nested, keys in NESTED[name].items():
            if isinstance(additional[name].get(nested), dict):
                _check_known("%s.%s" % (place, nested), additional[name][nested], keys, allowed)


def _names(nxdi):
    names = ("NxD Inference", "the vLLM Neuron plugin")
    return names if nxdi else names[::-1]


def _check_known(place, config, known, allowed):
    for key in config:
        if key not in known and key not in allowed:
            raise FleetError(
                "%s.%s is unknown, and the engine would ignore it without a word%s A key of a newer SDK is let "
                "through by allow_unknown_config: [%s]." % (place, key, _close(key, known) or ".", key)
            )


def _close(key, known):
    close = difflib.get_close_matches(key.replace("-", "_").lower(), sorted(known), 1)
    return "; did you mean '%s'?" % close[0] if close else ""


def _whole(value):
    """A value as a whole number, None where it is none: the engine's own parser refuses that."""
    try:
        return None if isinstance(value, bool) else int(str(value))
    except ValueError:
        return None


def _check_nxdi(where, recipe, hardware, values, config, script):
    place = "arguments.additional-config.override_neuron_config"
    speculation = values.get("speculative-config")
    speculation = speculation if isinstance(speculation, dict) else {}
    pairs = (
        ("tp_degree", "arguments.tensor-parallel-size", values.get("tensor-parallel-size")),
        ("logical_nc_config", "fleet_hardware.lnc", hardware.lnc),
        ("logical_neuron_cores", "fleet_hardware.lnc", hardware.lnc),
        ("batch_size", "arguments.max-num-seqs", values.get("max-num-seqs")),
        ("max_batch_size", "arguments.max-num-seqs", values.get("max-num-seqs")),
        ("tkg_batch_size", "arguments.max-num-seqs", values.get("max-num-seqs")),
        ("seq_len", "arguments.max-model-len", values.get("max-model-len")),
        ("pa_num_blocks", "arguments.num-gpu-blocks-override", values.get("num-gpu-blocks-override")),
        ("speculation_length", "arguments.speculative-config.num_speculative_tokens",
         speculation.get("num_speculative_tokens")),
    )  # fmt: skip
    for key, other, expected in pairs:
        if key in config and expected is not None and _whole(config[key]) != _whole(expected):
            _differs(where, "%s.%s" % (place, key), config[key], other, expected, "the same value into both")
    blocks = values.get("num-gpu-blocks-override")
    caching = values.get("enable-prefix-caching") is True and values.get("no-enable-prefix-caching") is not True
    if blocks is not None and not caching and _whole(blocks) != _whole(values.get("max-num-seqs")):
        raise FleetError(
            "%s: arguments.num-gpu-blocks-override is %s, but arguments.max-num-seqs is %s; without prefix caching one "
            "block is one sequence, so both must be the same. Remove num-gpu-blocks-override, or set it to %s."
            % (where, show(blocks), show(values.get("max-num-seqs")), show(values.get("max-num-seqs")))
        )
    if config.get("is_mxfp4_compute") and hardware.accelerator != "trainium3":
        raise FleetError(
            "%s: %s.is_mxfp4_compute is true, but fleet_hardware.accelerator is %s; only trainium3 computes MXFP4. "
            "Set it to false." % (where, place, hardware.accelerator)
        )
    if not script:
        _check_speculation(where, place, recipe, speculation, config)


def _check_speculation(where, place, recipe, speculation, config):
    """EAGLE3 is asked for in four places; with one of them missing the engine drafts in another way, or fails late."""
    draft = recipe["model"].get("draft")
    wanted = [key for key in ("is_eagle3", "enable_eagle_speculation", "enable_fused_speculation") if config.get(key)]
    if not speculation:
        if wanted:
            raise FleetError(
                "%s: %s.%s is set, but arguments.speculative-config is not; the engine would fail after it has "
                "compiled. Set both or neither." % (where, place, wanted[0])
            )
        return
    if draft is None:
        raise FleetError(
            "%s: arguments.speculative-config is set, but model.draft is not. Set model.draft, or remove "
            "arguments.speculative-config (null)." % where
        )
    tokens = speculation.get("num_speculative_tokens")
    if _whole(tokens) != draft["tokens"]:
        _differs(
            where, "arguments.speculative-config.num_speculative_tokens", tokens, "model.draft.tokens",
            draft["tokens"], "${draft_tokens}",
        )  # fmt: skip
    if draft["method"] == "eagle3":
        for key in ("is_eagle3", "enable_eagle_speculation"):
            if not config.get(key):
                raise FleetError(
                    "%s: model.draft.method is eagle3, but %s.%s is not true; the engine would take the draft for "
                    "another kind of model. Set it." % (where, place, key)
                )


def _check_plugin(where, hardware, values, config):
    place = "arguments.additional-config.neuron_config"
    if config.get("quantization") == "mxfp4" and hardware.accelerator != "trainium3":
        raise FleetError(
            "%s: %s.quantization is mxfp4, but fleet_hardware.accelerator is %s; only trainium3 computes MXFP4. "
            "Remove it." % (where, place, hardware.accelerator)
        )
    for key, flag in (("num_seqs_buckets", "max-num-seqs"), ("num_batched_tokens_buckets", "max-num-batched-tokens")):
        buckets, most = config.get(key), _whole(values.get(flag))
        if buckets is None:
            continue
        if not isinstance(buckets, list) or not buckets or any(_whole(one) is None for one in buckets):
            raise FleetError("%s: %s.%s is %s; allowed: a list of whole numbers." % (where, place, key, show(buckets)))
        if most is not None and max(_whole(one) for one in buckets) != most:
            raise FleetError(
                "%s: the largest of %s.%s %s must be arguments.%s, which is %d."
                % (where, place, key, show(buckets), flag, most)
            )
    segments = config.get("kv_segment_size_buckets")
    if segments is not None and (not isinstance(segments, list) or set(segments) - set(SEGMENTS)):
        raise FleetError(
            "%s: %s.kv_segment_size_buckets is %s; allowed: a list of %s."
            % (where, place, show(segments), ", ".join(str(one) for one in SEGMENTS))
        )
