# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import sys

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import schema as recipe_schema
from ansible_collections.inference.fleet.tests.unit.engines.plans import OWN, error, resolved


@pytest.fixture
def write(tmp_path):
    """Write a recipe made of cpu-tiny and changes; returns its path."""

    def make(text=None, file="mine", **changes):
        path = tmp_path / (file + ".yml")
        if text is None:
            content = dict(recipes.load_recipe(recipes.find_recipe("cpu-tiny", [])), name=file)
            for key, value in changes.items():
                content.pop(key, None)
                if value is not ...:
                    content[key] = value
            text = yaml.safe_dump(content, sort_keys=False)
        path.write_text(text)
        return str(path)

    return make


def error_of(path, layers=()):
    return error(recipes.resolve_recipe, path, list(layers)).message


def test_schema_itself_is_valid():
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(recipe_schema.recipe_schema())


def test_a_missing_jsonschema_is_named_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr(recipe_schema, "HAS_JSONSCHEMA", False)
    monkeypatch.setattr(recipe_schema, "_validator", recipe_schema._validator.__wrapped__)
    found = error(recipe_schema.problems, {})
    assert (found.code, found.values) == ("recipe.jsonschema-missing", (sys.executable, recipe_schema.REQUIREMENT))


def test_every_key_of_the_schema_is_described():
    def walk(schema, path):
        for name, item in schema.get("properties", {}).items():
            assert item.get("description"), "%s.%s" % (path, name)
            walk(item, "%s.%s" % (path, name))
        if isinstance(schema.get("items"), dict):
            walk(schema["items"], path)

    walk(recipe_schema.recipe_schema(), "recipe")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"engine": "vlm"}, "'engine' is \"vlm\"; allowed: dynamo, sglang, trtllm, vllm"),
        (
            {"servers": [{"role": "server", "count": 2, "devices": 1, "port": "http"}]},
            "'servers[0].port' is \"http\"; allowed: a whole number or null from 1 to 65535",
        ),
        (
            {"servers": [{"role": "server", "count": "all", "devices": 1, "port": 8000}]},
            '\'servers[0].count\' is "all"; allowed: a whole number from 0 to 1024 or "auto"',
        ),
        (
            {"arguements": {"x": 1}},
            "unknown key 'arguements' (value {\"x\": 1}); did you mean 'arguments'?; allowed here: "
            + ", ".join(sorted(recipe_schema.recipe_schema()["properties"])),
        ),
        (
            {"model": ...},
            "the recipe lacks 'model'; needed here: schema, name, platform, engine, needs, model, servers, command",
        ),
        (
            {"environment": {"A B": "1"}},
            "'environment' has the name \"A B\"; allowed: letters, digits and _, not beginning with a digit or with "
            "INFERENCE_FLEET_, which the collection sets, for example HF_HUB_OFFLINE",
        ),
        ({"schema": 2}, "'schema' is 2; allowed: 1"),
        ({"name": "other"}, "'name' is \"other\"; allowed: the file's own name, mine"),
    ],
)
def test_a_wrong_recipe_names_file_key_value_and_what_is_allowed(write, changes, text):
    path = write(**changes)
    assert error_of(path) == "%s: %s." % (path, text)


def test_all_mistakes_are_told_at_once(write):
    path = write(engine="vlm", platform="gpu")
    assert error_of(path).splitlines() == [
        "%s: 'engine' is \"vlm\"; allowed: dynamo, sglang, trtllm, vllm." % path,
        "%s: 'platform' is \"gpu\"; allowed: amd, ascend, cpu, neuron, nvidia." % path,
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema: 1\nname: mine\nname: yours\n", 'line 3 has the key "name" twice'),
        ("schema: 1\n7: mine\n", 'line 2 has a key that is not a string; put "7" into quotes'),
        ("schema: 010\n", 'line 1 has "010", which YAML reads as another number'),
        ("schema: [1\n", "line 2"),
        ("- 1\n", "it contains [1] and no mapping"),
    ],
)
def test_a_file_that_cannot_be_read(write, text, words):
    path = write(text)
    found = error(recipes.resolve_recipe, path, [])
    assert (found.code, found.values[0]) == ("recipe.file-invalid", path)
    assert words in found.values[1]


def test_override_at_fault_names_its_variable(write):
    path = write()
    layers = [("fleet_override_a", {"arguments": {"x": 1}}), ("fleet_override_b", {"start": {"budget": 3}})]
    assert error_of(path, layers) == (
        "fleet_override_b: unknown key 'start.budget' (value 3); did you mean 'budget_s'?; "
        "allowed here: budget_s, health_path, order, poll_s, restart_with_leader, units."
    )


def test_name_cannot_be_overridden():
    assert error(resolved, "cpu-tiny", {"name": "other"}).message == (
        "fleet_override: 'name' of a recipe cannot be overridden; write a recipe that extends recipes/cpu-tiny.yml."
    )


def test_texts_of_the_command_line_are_coerced():
    layer = {
        "servers": {"server": {"count": "3", "port": "9000"}},
        "start": {"budget_s": "2.5"},
        "verify": {"responses_api": "no"},
        "arguments": {"max-model-len": "8"},
        "needs": {"cpu_flags": '["avx2"]'},
    }
    recipe = resolved("cpu-tiny", layer)
    assert (recipe["servers"][0]["count"], recipe["servers"][0]["port"]) == (3, 9000)
    assert recipe["start"]["budget_s"] == 2.5
    assert recipe["verify"]["responses_api"] is False
    assert recipe["arguments"]["max-model-len"] == "8"
    assert recipe["needs"]["cpu_flags"] == ["avx2"]
    assert resolved("cpu-tiny", {"servers": {"server": {"count": "auto"}}})["servers"][0]["count"] == "auto"


def test_first_folder_wins_and_own_recipes_come_last(write, tmp_path):
    path = write(file="cpu-tiny")
    assert recipes.find_recipe("cpu-tiny", [str(tmp_path)]) == path
    assert recipes.find_recipe("trn3-eagle3", [str(tmp_path)]) == os.path.join(recipes.OWN_RECIPES, "trn3-eagle3.yml")


@pytest.mark.parametrize("name", ["cpu-tny", "../cpu-tiny", "", 7])
def test_unknown_recipe_names_what_there_is(tmp_path, name):
    found = error(recipes.find_recipe, name, [str(tmp_path)])
    assert (found.code, found.values[0]) == ("recipe.name-unknown", "fleet_recipe")
    assert found.values[3] == ", ".join(OWN)
