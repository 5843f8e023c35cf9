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
from ansible_collections.inference.fleet.tests.unit.engines.plans import OWN, error

SERVER = {"role": "server", "count": 2, "devices": 1, "port": 8000}


@pytest.fixture
def write(tmp_path):
    """Write a recipe made of cpu-tiny and changes; returns its path."""

    def make(file="mine", **changes):
        path = tmp_path / (file + ".yml")
        content = {**OWN["cpu-tiny"], "name": file, **changes}
        path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not ...}))
        return str(path)

    return make


def test_schema_itself_is_valid():
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(recipe_schema.recipe_schema())


def test_a_missing_jsonschema_is_named_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr(recipe_schema, "jsonschema", None)
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
    ("changes", "parts"),
    [
        ({"engine": "vlm"}, ("'engine'", '"vlm"', "dynamo, sglang, trtllm, vllm")),
        ({"servers": [{**SERVER, "port": "http"}]}, ("'servers[0].port'", '"http"', "or null from 1 to 65535")),
        ({"servers": [{**SERVER, "count": "all"}]}, ("'servers[0].count'", '"all"', 'from 0 to 1024 or "auto"')),
        ({"arguements": {"x": 1}}, ("'arguements'", '{"x": 1}', "'arguments'?", "arguments, backend")),
        ({"model": ...}, ("'model'", "schema, name, platform, engine, needs, model, servers, command")),
        ({"environment": {"A B": "1"}}, ("'environment'", '"A B"', "letters, digits and _", "HF_HUB_OFFLINE")),
        ({"schema": 2}, ("'schema'", "2", "1")),
        ({"name": "other"}, ("'name'", '"other"', "mine")),
    ],
)
def test_a_wrong_recipe_names_file_key_value_and_what_is_allowed(write, changes, parts):
    path = write(**changes)
    found = error(recipes.resolve_recipe, path, [])
    assert found.code == "recipe.key-invalid" and found.message.startswith(path)
    assert all(part in found.message for part in parts)


def test_first_folder_wins_and_own_recipes_come_last(write, tmp_path):
    path = write(file="cpu-tiny")
    assert recipes.find_recipe("cpu-tiny", [str(tmp_path)]) == path
    assert recipes.find_recipe("trn3-eagle3", [str(tmp_path)]) == os.path.join(recipes.OWN_RECIPES, "trn3-eagle3.yml")


@pytest.mark.parametrize("name", ["cpu-tny", "../cpu-tiny", "", 7])
def test_unknown_recipe_names_what_there_is(tmp_path, name):
    found = error(recipes.find_recipe, name, [str(tmp_path)])
    assert (found.code, found.values[0]) == ("recipe.name-unknown", "fleet_recipe")
    assert found.values[3] == ", ".join(OWN)
