# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models of other families than gpt-oss: their sizes against published figures, and what their plans refuse."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.model.formats import format_of
from ansible_collections.inference.fleet.plugins.plugin_utils.models import base
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import capacity
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.tests.unit.engines import plans

LLAMA = {
    "model_type": "llama", "vocab_size": 128256, "max_position_embeddings": 131072, "num_key_value_heads": 8,
}  # fmt: skip
QWEN = {"model_type": "qwen3", "vocab_size": 151936, "max_position_embeddings": 40960, "head_dim": 128,
        "num_key_value_heads": 8}  # fmt: skip
MISTRAL = {**LLAMA, "model_type": "mistral", "vocab_size": 32000}
MOE = {**QWEN, "model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "num_key_value_heads": 4}
SLIDING = [*["sliding_attention"] * 3, "full_attention"] * 16


def config(*sizes, **more):
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return base.read({**dict(zip(names, sizes)), **more})


# (config.json, bytes of all tensors, bytes of a token in the KV cache in bf16). Twice the parameters of KerasHub's
# llama3_presets.py, mistral_presets.py, qwen3_presets.py and qwen3_moe_presets.py.
PUBLISHED = {
    "Llama-3.1-8B": (config(4096, 32, 32, 14336, **LLAMA), 16_060_522_496, 131_072),
    "Mistral-7B": (config(4096, 32, 32, 14336, **MISTRAL), 14_483_464_192, 131_072),
    "Qwen3-4B": (config(2560, 36, 32, 9728, **QWEN, tie_word_embeddings=True), 8_044_936_192, 147_456),
    "Qwen3-8B": (config(4096, 36, 32, 12288, **QWEN), 16_381_470_720, 147_456),
    "Qwen3-32B": (config(5120, 64, 64, 25600, **QWEN), 65_524_246_528, 262_144),
    "Qwen3-30B-A3B": (config(2048, 48, 32, 6144, **MOE, moe_intermediate_size=768), 61_064_245_248, 98_304),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_tensors_and_kv_cache_are_the_published_ones(name):
    found, total, token = PUBLISHED[name]
    model = base.dimensions(found, "bf16")
    assert capacity.kv_layer_bytes(model) * model.layers == token
    assert capacity.weights_bytes(model, "bf16") == pytest.approx(total, rel=1e-9)


def test_latent_attention_caches_one_vector_and_most_weights_are_of_one_byte():
    """671 B parameters (DeepSeek, README_WEIGHTS.md), 1.9 B of them in bf16, and 576 values of a token in each of 61
    layers."""
    found = read_of("DeepSeek-R1")
    model = base.dimensions(found, format_of(found))
    assert capacity.weights_bytes(model, format_of(found)) == pytest.approx(671e9 + 2 * 0.93e9, rel=0.001)
    assert [capacity.kv_layer_bytes(model, degree) for degree in (1, 8)] == [1152, 1152]
    assert model.heads % 8 == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sliding_window_pattern", "LLLG"), ("head_dim", 128.5), ("layer_types", [{}]), ("mlp_only_layers", 1),
        ("quantization_config", {"quant_method": "awq", "bits": "4"}), ("quantization_config", [1]),
        ("quantization_config", {"format": ["fp8"]}), ("model_type", ["qwen3_moe"]),
    ],
)  # fmt: skip
def test_a_key_that_is_no_number_is_named(key, value):
    found = {**PUBLISHED["Qwen3-30B-A3B"][0], "sliding_window": 4096, key: value}
    model = {"format": "awq" if key == "quantization_config" else "bf16"}
    problem = base.Family("chat", "", {}).problem(model, found)
    assert key in problem or problem == "bits is '4'; allowed: a whole number"


def read_of(name):
    with open("%s/models/%s.json" % (recipes.OWN_RECIPES, name), encoding="utf-8") as stream:
        return base.read(json.load(stream))


def test_sliding_layers_keep_their_window():
    model = base.dimensions(config(5120, 64, 40, 27648, **{**LLAMA, "model_type": "olmo3"}, layer_types=SLIDING,
                                   sliding_window=4096), "bf16")  # fmt: skip
    assert (model.full_layers, model.sliding_layers, model.window) == (16, 48, 4096)
    blocks = 65536 // 16 * 16 + 48 * (4096 // 16 + 1)
    server = capacity.Server(model, "bf16", "nvidia", "utilization", None, batched=1)
    assert capacity.request_of(server, 65536) == blocks * 16 * capacity.kv_layer_bytes(model)


@pytest.mark.parametrize(
    ("weights_format", "quantization", "share"),
    [
        ("fp8", {}, 1 / 2),
        ("nvfp4", {}, 9 / 32),
        ("awq", {"bits": 4, "group_size": 128}, (4 + 20 / 128) / 16),
        ("gptq", {"bits": 8, "group_size": -1}, 1 / 2),
    ],
)
def test_quantized_layers_have_the_bytes_of_their_format(weights_format, quantization, share):
    found = dict(PUBLISHED["Qwen3-32B"][0], quantization_config=quantization)
    sizes = [base.dimensions(found, one).key_value_bytes for one in (weights_format, "bf16")]
    assert sizes[0] == pytest.approx(share * sizes[1])


@pytest.mark.parametrize(
    ("quantization", "found"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    ],
)
def test_the_format_is_in_config_json(quantization, found):
    assert format_of({"quantization_config": quantization}) == found


# -- plans -------------------------------------------------------------------------------------------------------------


def planned(name, accelerator="h100", **changes):
    found = plans.planned(name, accelerator, changes)
    return found.entries, found.capacity


def servers(devices):
    return {"server": {"devices": devices}}


def formatted(weights_format, accelerator):
    return {"needs": {"accelerators": [accelerator]}, "servers": servers(1),
            "model": {"format": weights_format, "repo": "x/unknown"}}  # fmt: skip


def kernels(name):
    return {"arguments": {"moe-backend": name}}


@pytest.mark.parametrize(
    ("name", "accelerator", "changes", "code", "values"),
    [
        ("deepseek-r1", "h200", {"servers": servers(8), "model": {"format": "nvfp4"}}, "recipe.model-config", "fp8"),
        ("qwen3-32b", "h100", {"model": {"format": "awq"}}, "recipe.model-config", "bf16"),
        ("qwen3-32b", "h100", {"model": {"config": "gone"}}, "recipe.name-unknown", "gone"),
        ("qwen3-32b", "h100", {"model": {"family": "gpt_oss"}}, "input.value-invalid", "openai"),
        ("qwen3-32b", "h100", {"arguments": {"tool-call-parser": "openai"}}, "input.value-invalid", "hermes"),
        ("qwen3-embedding-8b", "h100", {"arguments": {"reasoning-parser": "qwen3"}}, "input.value-invalid", "none"),
        ("cpu-dynamo", "cpu", {"model": {"family": "embedding"}}, "input.value-invalid", "embedding"),
        ("trn3-eagle3", "trainium3", {"model": {"family": "chat"}}, "input.value-invalid", "chat"),
        ("ascend-qwen3-32b", "ascend-a2", {"model": {"format": "awq", "config": None, "repo": "x/unknown"}},
         "input.value-invalid", "awq"),
        ("cpu-tiny", "cpu", {"model": {"format": "fp8"}}, "recipe.key-invalid", "fp8"),
        # hardware that does not compute a format, kernels for other GPUs
        ("qwen3-32b", "a100", formatted("fp8", "a100"), "input.value-invalid", "fp8"),
        ("qwen3-32b", "h200", formatted("nvfp4", "h200"), "input.value-invalid", "nvfp4"),
        ("a100-vllm", "a100", kernels("triton"), "input.value-invalid", "marlin"),
        ("rtx-pro-6000-vllm", "rtx-pro-6000", kernels("triton"), "input.value-invalid", "marlin"),
        ("h200-dynamo-vllm", "h200", kernels("flashinfer_trtllm"), "input.value-invalid", "marlin"),
    ],
)  # fmt: skip
def test_what_a_plan_refuses(name, accelerator, changes, code, values):
    error = plans.error(planned, name, accelerator, **changes)
    assert error.code == code
    assert values in "%s %s" % (error.values, error.message)


@pytest.mark.parametrize(
    ("name", "accelerator", "changes", "verdict"),
    [
        ("qwen3-32b", "l40s", formatted("fp8", "l40s"), "not checked"),
        ("qwen3-32b", "b200", formatted("nvfp4", "b200"), "not checked"),
        ("a100-vllm", "a100", kernels("marlin"), "ok"), ("h100-vllm", "h100", kernels("triton"), "ok"),
        ("b200-vllm", "b300", kernels("flashinfer_trtllm"), "ok"),
        ("llama-3.3-70b", "h100", {"servers": servers(1)}, "error"),
    ],
)  # fmt: skip
def test_what_is_planned(name, accelerator, changes, verdict):
    _entries, found = planned(name, accelerator, **changes)
    assert {item["verdict"] for item in found} == {verdict}
    assert verdict != "error" or "131.4 GiB" in found[0]["refusal"]


def test_each_server_has_the_family_of_its_model():
    (first, second), _found = planned("cpu-families", "cpu")
    assert "family" not in first
    assert (second["family"], second["reasoning_field"], second["weights"]) == (
        "chat", None, ["/var/lib/inference-fleet/models/qwen3-tiny-standin"],
    )  # fmt: skip
    assert planned("qwen3-32b")[0][0]["reasoning_field"] == "reasoning"


H100 = {"accelerator": "h100", "count": 1}


def test_a_site_s_recipe_has_its_config_next_to_it(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "mine.yml").write_text(
        "schema: 1\nname: mine\nextends: vllm-chat\nneeds: {accelerators: [h100]}\n"
        "model: {repo: us/mine, id: mine, path: /srv/mine}\n"
    )
    found = plans.planned(recipe_in(tmp_path), H100)
    assert found.capacity[0]["verdict"] == "not checked"
    assert found.entries[0]["command"][:3] == ["vllm", "serve", "/srv/mine"]
    assert recipe_in(tmp_path)["model"]["config"] is None
    inner = dict(PUBLISHED["Qwen3-8B"][0], architectures=["X"])
    (tmp_path / "models" / "mine.json").write_text(json.dumps({"text_config": inner, "model_type": "qwen3_vl"}))
    recipes._resolved.clear()
    assert recipe_in(tmp_path)["model"]["config"] == PUBLISHED["Qwen3-8B"][0]
    (tmp_path / "models" / "mine.json").write_text(json.dumps({**inner, "model_type": "new"}))
    recipes._resolved.clear()
    (item,) = plans.planned(recipe_in(tmp_path), H100).capacity
    assert (item["verdict"], item["warnings"]) == ("warning", [capacity.UNCHECKED])


def recipe_in(folder):
    return recipes.resolve_recipe(str(folder / "mine.yml"), [])
