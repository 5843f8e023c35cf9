# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The schema, where recipes are searched, recipes that extend others, and families."""

from __future__ import annotations

import os
import pathlib
import re
import sys

import jsonschema
import pytest
import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import schema as recipe_schema
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.overrides import extend
from ansible_collections.inference.fleet.tests.unit.engines import plans

CLONE = pathlib.Path(recipes.__file__).resolve().parents[3]
FAMILIES = recipes.available([os.path.join(recipes.OWN_RECIPES, recipes.FAMILIES)])


@pytest.fixture
def write(tmp_path):
    """Write a recipe; returns its path."""

    def make(name, **content):
        path = tmp_path / (name + ".yml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump({"name": path.stem, **content}, sort_keys=False))
        return str(path)

    return make


def error_of(path, folders=()):
    (error,) = plans.error(recipes.load_recipe, path, folders).problems
    return error


def test_schema_itself_is_valid():
    jsonschema.Draft202012Validator.check_schema(recipe_schema.recipe_schema())


def test_a_missing_jsonschema_is_named_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr(recipe_schema, "HAS_JSONSCHEMA", False)
    monkeypatch.setattr(recipe_schema, "_validator", recipe_schema._validator.__wrapped__)
    found = plans.error(recipe_schema.problems, {})
    assert (found.code, found.values) == ("recipe.jsonschema-missing", (sys.executable, recipe_schema.REQUIREMENT))


def test_first_folder_wins_and_own_recipes_come_last(write, tmp_path):
    path = write("cpu-tiny")
    assert recipes.find_recipe("cpu-tiny", [str(tmp_path)]) == path
    assert recipes.find_recipe("trn3-eagle3", [str(tmp_path)]) == os.path.join(recipes.OWN_RECIPES, "trn3-eagle3.yml")


@pytest.mark.parametrize("name", ["../cpu-tiny", "", 7])
def test_unknown_recipe_names_what_there_is(tmp_path, name):
    found = plans.error(recipes.find_recipe, name, [str(tmp_path)])
    assert (found.code, found.values[0]) == ("recipe.name-unknown", "fleet_recipe")
    assert found.values[3] == ", ".join(plans.OWN)


@pytest.mark.parametrize(
    ("text", "code"),
    [("{", "recipe.file-invalid"), ("[" * 10**5, "recipe.file-invalid"), ("[]", "recipe.model-config")],
)
def test_a_config_json_that_cannot_be_read(tmp_path, text, code):
    (tmp_path / "config.json").write_text(text)
    assert plans.codes(recipes.config_of, {"model": {"repo": "us/x"}}, str(tmp_path / "config.json")) == {code}


def test_a_recipe_that_is_gone_when_it_is_read(tmp_path):
    assert plans.error(recipes.load_recipe, str(tmp_path / "gone.yml")).code == "recipe.file-invalid"


# -- recipes that extend others ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "recipe", "result"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3, "d": 4}}, {"a": {"b": 1, "c": 3, "d": 4}}),
        ({"a": {"b": 1}, "c": 2}, {"a": None}, {"c": 2}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1}}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {"b": None, "c": {"d": None}}, {"a": 1, "b": None, "c": {"d": None}}),  # values
        ({"a": None}, {"a": None}, {"a": None}),
        ([{"role": "x", "n": 1}, {"name": "y"}], {"x": {"n": 2}, "y": None}, [{"role": "x", "n": 2}]),
        ({"container": {"image": "a", "digest": "d"}}, {"container": {"image": "b"}}, {"container": {"image": "b"}}),
    ],
)  # fmt: skip
def test_merge(base, recipe, result):
    assert extend(base, recipe) == result


@pytest.mark.parametrize(
    ("recipe", "order"),
    [
        (["x"], "abcx"),
        (["a", "x", "y"], "axybc"),
        (["x", "b"], "axbc"),
        (["a", "x", "c", "y"], "axbcy"),
        (["c"], "abc"),
    ],
)
def test_new_keys_have_their_place(recipe, order):
    assert "".join(extend(dict.fromkeys("abc", 1), dict.fromkeys(recipe, 2))) == order


def test_a_chain_of_a_site_and_the_collection(write, tmp_path):
    write("ours", extends="h100-vllm", arguments={"max-num-seqs": 8, "stream-interval": None})
    path = write("special", extends="ours", servers={"server": {"devices": 2}}, overlays={"eagle3": None})
    base, recipe = plans.OWN["h100-vllm"], recipes.load_recipe(path)
    assert (recipe["name"], recipe["arguments"]["max-num-seqs"]) == ("special", 8)
    assert "stream-interval" in base["arguments"]
    assert "stream-interval" not in recipe["arguments"]
    assert recipe["servers"] == [{**base["servers"][0], "devices": 2}]
    assert set(base["overlays"]) - set(recipe["overlays"]) == {"eagle3"}
    assert [os.path.basename(one) for one, _stamp in recipes.chain_of(path)] == [
        "special.yml", "ours.yml", "h100-vllm.yml", "h200-vllm.yml", "vllm.yml", "gpt-oss-120b.yml",
    ]  # fmt: skip


def test_a_sites_files_come_first_for_a_site_and_never_for_the_collection(write, tmp_path):
    write("families/vllm", extends="gpt-oss-120b", description="ours")
    path = write("mine", extends="vllm")
    assert str(tmp_path / "families" / "vllm.yml") in dict(recipes.chain_of(path))
    shipped = recipes.chain_of(recipes.find_recipe("h200-vllm", []), [str(tmp_path)])
    assert all(one.startswith(recipes.OWN_RECIPES) for one, _stamp in shipped)


def test_files_of_all_folders_are_found(write, tmp_path):
    write("common/base", extends="cpu-tiny", container={"image": "ours"})
    (tmp_path / "common" / "images.yml").write_text("ours: {image: docker.io/x/y:1}\n")
    path = write("mine/special", extends="base")
    folders = [str(tmp_path / "mine"), str(tmp_path / "common")]
    assert recipes.resolve_recipe(path, [], folders=folders)["container"]["image"] == "docker.io/x/y:1"
    assert error_of(path).code == "recipe.name-unknown"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *((name, "recipe.name-unknown") for name in ("h200-vlm", "{{ base }}", "", "images", "/etc/passwd", "x" * 300)),
        *((name, "input.value-invalid") for name in (None, ["h200-vllm"])),
    ],
)
def test_an_unknown_name(write, name, code):
    error = error_of(write("mine", extends=name))
    assert (error.code, error.values[0]) == (code, "'extends'")
    assert "mine.yml: " in error.message
    assert ("did you mean 'h200-vllm'" in error.message) == (name == "h200-vlm")


@pytest.mark.parametrize("files", [{"mine": "mine"}, {"other": "mine", "mine": "other"}])
def test_cycles(write, files):
    paths = [write(name, extends=base) for name, base in files.items()]
    error = error_of(paths[-1])
    assert (error.code, error.values[1].count("mine.yml")) == ("recipe.extends-cycle", 2)


def test_a_family_is_neither_listed_nor_deployed():
    assert not set(FAMILIES) & set(plans.OWN)
    name = FAMILIES[0]
    variables = {"fleet_recipe": name, "fleet_hardware": {"accelerator": "h200", "count": 8}}
    (error,) = plans.error(plans.plan_of, variables).problems
    assert (error.code, error.values[0]) == ("recipe.family-not-deployable", name)


def test_each_family_is_extended():
    chains = [recipes.chain_of(recipes.find_recipe(name, [])) for name in plans.OWN]
    used = {recipes.label_of(path) for chain in chains for path, _stamp in chain}
    assert {"recipes/families/%s.yml" % name for name in FAMILIES} <= used


def test_errors_name_the_file_with_the_key(write, tmp_path):
    write("ours", extends="cpu-tiny", arguements={}, servers={"server": {"port": "http"}}, overlays={"o": {"start": 1}})
    path = write("mine", extends="ours", engine="vlm")
    error = plans.error(recipes.load_recipe, path)
    found = {re.search(r"'([^']*)'", one.message).group(1): one.message.split(": ")[0] for one in error.problems}
    ours = str(tmp_path / "ours.yml")
    assert found == {"arguements": ours, "servers[0].port": ours, "engine": path}
    write("ours", extends="cpu-tiny", overlays={"o": {"start": 1}})
    assert error_of(write("mine", extends="ours")).message.startswith(ours + ": overlays.o: 'start'")
    assert error_of(write("mine", extends="cpu-tiny", servers={"sever": {}})).message.startswith(path)
    assert error_of(write("mine", extends="cpu-tiny", arguments={"max-num-seq": None})).message.startswith(path)


def test_a_name_is_not_inherited(tmp_path):
    (tmp_path / "mine.yml").write_text("extends: cpu-tiny\n")
    assert "the recipe lacks 'name'" in error_of(str(tmp_path / "mine.yml")).message


def test_the_first_example_of_the_page_plans(tmp_path):
    page = (CLONE / "docs" / "using" / "recipes.md").read_text(encoding="utf-8")
    text = re.search(r"```yaml\n(.*?)```", page, re.DOTALL).group(1)
    assert len(text.splitlines()) == 6  # the first line names the file
    (tmp_path / "ours.yml").write_text(text)
    hardware = {"accelerator": "h200", "count": 8}
    variables = {"fleet_recipe": "ours", "fleet_recipe_paths": [str(tmp_path)], "fleet_hardware": hardware}
    entry = plans.plan_of(variables)["node1"]["servers"][0]
    assert entry["arguments"]["max-num-seqs"] == 256
