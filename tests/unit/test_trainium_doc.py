# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/using/trainium-recipes.md says what the recipes start, and its examples work."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes

CLONE = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("trainium_doc", CLONE / "tools" / "trainium_doc.py")
trainium_doc = importlib.util.module_from_spec(spec)
spec.loader.exec_module(trainium_doc)


def test_the_rendered_part_is_current():
    text = trainium_doc.PAGE.read_text()
    assert trainium_doc.render(text) == text, "run: .venv/bin/python tools/run.py python tools/trainium_doc.py"
    assert text.count("<!-- rendered: ") == len(trainium_doc.LINES)


def test_every_recipe_for_trainium_is_on_the_page():
    own = [recipes.load_recipe(recipes.find_recipe(name, [])) for name in recipes.available([recipes.OWN_RECIPES])]
    named = {recipe["name"] for recipe in own if recipe["platform"] == "neuron"}
    assert named | {"container"} == set(trainium_doc.LINES)


def test_a_flag_without_a_line_is_refused(monkeypatch):
    monkeypatch.setitem(trainium_doc.LINES, "trn3-start-script", trainium_doc.LINES["trn3-start-script"][1:])
    with pytest.raises(ValueError) as caught:
        trainium_doc.render(trainium_doc.PAGE.read_text())
    assert str(caught.value) == (
        "tools/trainium_doc.py: trn3-start-script: without a line: ['PATH']; not rendered: []"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "recipe", "servers"),
    [
        ("gpt-oss-20b", "trn3-vllm-neuron", ["server-%d" % number for number in range(8)]),
        ("without-draft", "trn3-eagle3", ["server-%d" % number for number in range(8)]),
        ("lnc-1", "trn3-eagle3", ["server-%d" % number for number in range(16)]),
        ("prefill", "trn3-vllm-neuron", ["prefill-%d" % number for number in range(16)]),
        ("decode", "trn3-vllm-neuron", ["decode-0"]),
    ],
)
def test_the_examples_plan(name, recipe, servers):
    example = yaml.safe_load(trainium_doc.example(name))
    resolved = recipes.resolve_recipe(recipes.find_recipe(recipe, []), [("fleet_override", example["fleet_override"])])
    hardware = parse_hardware(example.get("fleet_hardware", {"accelerator": "trainium3", "count": 16}), "x")
    entries = plan.plan_host("node1", resolved, hardware, plan.Site(bind="10.0.0.5"))
    assert [entry["name"] for entry in entries] == servers
    if name == "lnc-1":
        assert entries[15]["environment"]["NEURON_RT_VIRTUAL_CORE_SIZE"] == "1"
        assert entries[15]["environment"]["NEURON_LOGICAL_NC_CONFIG"] == "1"
        assert entries[15]["environment"]["NEURON_RT_VISIBLE_CORES"] == "120-127"
    if name == "prefill":
        assert entries[15]["environment"]["NEURON_VISIBLE_DEVICES"] == "60-63"
        assert entries[15]["environment"]["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5574"
        assert len({entry["directories"]["artifact"] for entry in entries}) == 1
    if name == "decode":
        assert entries[0]["environment"]["NEURON_VISIBLE_DEVICES"] == "0-63"


def test_the_example_with_the_vendors_index():
    variables = yaml.safe_load(trainium_doc.example("environment", trainium_doc.NODE_PAGE))
    layers = [("fleet_override_venv", variables["fleet_override_venv"])]
    resolved = recipes.resolve_recipe(recipes.find_recipe(variables["fleet_recipe"], []), layers)
    hardware = parse_hardware({"accelerator": "trainium3", "count": 16}, "x")
    entries = plan.plan_host("node1", resolved, hardware, plan.Site())
    assert len(entries) == 8
    assert resolved["venv"]["create"] is True
    assert all("==" in package for package in resolved["venv"]["packages"])
    assert {entry["command"][0] for entry in entries} == {"/var/lib/inference-fleet/venvs/vllm-neuron/bin/vllm"}
    options = yaml.safe_load((CLONE / "roles/vllm/meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    assert set(variables) - {"fleet_recipe", "fleet_override_venv"} <= set(options["options"])


def test_the_example_with_the_vendors_image():
    entries = trainium_doc.entries("container")
    assert len(entries) == 8
    for entry in entries:
        assert entry["container"]["devices"] == ["/dev/neuron%d" % number for number in range(16)]
        assert entry["directories"]["artifact"] in [mount["source"] for mount in entry["container"]["mounts"]]
        assert entry["command"][:2] == ["vllm", "serve"]
    assert len({entry["directories"]["artifact"] for entry in entries}) == 1


@pytest.mark.parametrize("recipe", ["trn3-vllm-neuron", "trn3-start-script"])
def test_the_example_of_lnc_1_without_arguments_is_for_the_others(recipe):
    example = yaml.safe_load(trainium_doc.example("lnc-1"))
    del example["fleet_override"]["arguments"]
    resolved = recipes.resolve_recipe(recipes.find_recipe(recipe, []), [("fleet_override", example["fleet_override"])])
    entries = plan.plan_host("node1", resolved, parse_hardware(example["fleet_hardware"], "x"), plan.Site())
    assert [entry["environment"]["NEURON_LOGICAL_NC_CONFIG"] for entry in entries] == ["1"] * 16
