# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variants that a recipe offers: its overlays, and tables of measured settings. Requests that recipes share."""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import tuning
from ansible_collections.inference.fleet.tests.unit.engines import plans
from hypothesis import given
from hypothesis import strategies as st

OVERLAYS = {
    "short": {"arguments": {"max-model-len": 1024, "enforce-eager": None}},
    "one": {"servers": {"server": {"count": 1}}, "arguments": {"max-model-len": 2048}},
}
SET = {
    "accelerators": ["cpu"],
    "devices": [1],
    "lengths": [{"input": 512, "output": 512, "longest": 1024}, {"input": 2048, "output": 512, "longest": 2560}],
    "concurrency": [4, 16],
    "override": {"arguments": {"max-model-len": "${longest}", "max-num-seqs": "${concurrency}"}},
}
TABLE = {"source": "us", "sets": [SET]}


def write(folder, name="mine", **changes):
    """A recipe made of cpu-tiny in a folder. Returns its path."""
    content = {**plans.OWN["cpu-tiny"], "name": name, **changes}
    path = folder / (name + ".yml")
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(path)


def planned(folder, **variables):
    given = {"fleet_recipe": "mine", "fleet_recipe_paths": [str(folder)], "fleet_hardware": plans.CPU}
    return plans.plan_of({**given, **variables}, deploys=True)


@pytest.mark.parametrize(
    ("variables", "overlays", "length"),
    [
        ({}, [], 4096),
        ({"fleet_overlay": "short"}, ["short"], 1024),
        ({"fleet_overlay": "short", "fleet_override": {"arguments": {"max-model-len": 512}}}, ["short"], 512),
        ({"fleet_overlay": ["short", "one"]}, ["short", "one"], 2048),
        ({"fleet_overlay": "one, short"}, ["one", "short"], 1024),
    ],
)
def test_overlays_are_merged_in_their_order_before_the_overrides(tmp_path, variables, overlays, length):
    write(tmp_path, overlays=OVERLAYS)
    found = planned(tmp_path, **variables)
    entry, *others = found["node1"]["servers"]
    assert entry["arguments"]["max-model-len"] == length
    assert ("enforce-eager" in entry["arguments"], len(others)) == ("short" not in overlays, "one" not in overlays)
    assert found["node1"]["deployment"].get("overlays", []) == overlays
    assert fleet.plan_table(found)["rows"][0][6] == " + ".join(["mine", *overlays])


def test_the_nearest_measured_setting_is_taken(tmp_path):
    write(tmp_path, tuning=TABLE)
    found = planned(tmp_path, fleet_tuning={"input": 2000, "output": 700, "concurrency": "9"})
    arguments = found["node1"]["servers"][0]["arguments"]
    assert (arguments["max-model-len"], arguments["max-num-seqs"]) == (2560, 16)
    benchmark = found["node1"]["deployment"]["benchmark"]
    assert [benchmark[key] for key in ("input_tokens", "output_tokens", "concurrency")] == [2000, 700, 9]
    said = "measured on 1 cpu for 2048 tokens in, 512 out, 16 requests at once, nearest to 2000, 700, 9 (us)"
    assert found["node1"]["deployment"]["tuning"] == said
    assert fleet.tuning_tables(found) == [
        {"title": "Tuning", "columns": ["host", "setting"], "rows": [["node1", said]]}
    ]
    assert fleet.tuning_tables(planned(tmp_path)) == []


WANTED = {"input": 512, "output": 512, "concurrency": 4}
TABLES = {"overlays": OVERLAYS, "tuning": TABLE}
OTHERS = {"name": "x", "schema": 2, "extends": "h200-vllm", "overlays": {"other": {}}, "tuning": {"source": "them"}}
GROUPS = [{"name": name, "role": "server", "count": 1, "devices": size, "port": 8000 + size}
          for name, size in (("a", 1), ("b", 2))]  # fmt: skip
BAD_TABLES = [
    {"source": 1}, {"sets": []}, {"sets": [{}]}, {"more": 1},
    *({"sets": [{**SET, **changes}]}
      for changes in ({"devices": ["1"]}, {"lengths": [{"input": 1}]}, {"concurrency": [4, -1]})),
]  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "variables", "code", "words"),
    [
        (TABLES, {"fleet_overlay": "shrot"}, "recipe.name-unknown", "did you mean 'short'?; allowed: short, one."),
        *(({"overlays": {"bad": {key: {}}}}, {}, "recipe.key-invalid", "overlays.bad has the key '%s'" % key)
          for key in recipes.FIXED),
        *((TABLES, {"fleet_override": {key: OTHERS[key]}}, "recipe.key-invalid",
           "fleet_override: '%s' of a recipe cannot be overridden" % key) for key in recipes.FIXED),
        ({}, {"fleet_tuning": WANTED}, "recipe.name-unknown", "fleet_tuning"),
        (TABLES, {"fleet_tuning": WANTED, "fleet_override": {"servers": {"server": {"devices": 2, "count": 1}}}},
         "input.value-invalid", '"2 cpu"; allowed: 1 cpu.'),
        ({"tuning": TABLE, "servers": GROUPS}, {"fleet_tuning": WANTED, "fleet_hardware": {**plans.CPU, "cores": 4}},
         "input.value-invalid", "[1, 2]"),
        *(({"tuning": {**TABLE, **changes}}, {}, "recipe.key-invalid", "'tuning") for changes in BAD_TABLES),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path, recipe, variables, code, words):
    write(tmp_path, **recipe)
    error = plans.error(planned, tmp_path, **variables)
    assert error.problems[0].code == code and words in error.message


NUMBER = st.integers(1, 10**6)


@given(input=NUMBER, output=NUMBER, concurrency=NUMBER)
def test_some_point_is_nearest_and_each_is_nearest_to_itself(**wanted):
    found = tuning.nearest(TABLE, wanted, "cpu", 1)
    assert found in tuning.points(TABLE)
    assert tuning.nearest(TABLE, {key: found[key] for key in tuning.WANTED}, "cpu", 1) == found


WITH_TABLES = [name for name, own in plans.OWN.items() if own.get("tuning")]


@pytest.mark.parametrize("name", WITH_TABLES)
def test_the_recipes_tables_have_points_for_their_servers(name):
    path, own = recipes.find_recipe(name, []), plans.OWN[name]
    seen = tuning.points(own["tuning"])
    keys = [tuple(one[key] for key in ("accelerator", "devices", *tuning.WANTED)) for one in seen]
    assert len(set(keys)) == len(keys)
    size = own["servers"][0]["devices"]
    mine = [one for one in seen if one["accelerator"] in own["needs"]["accelerators"] and one["devices"] == size]
    for point in (mine[0], mine[-1]):
        wanted = {key: point[key] for key in tuning.WANTED}
        found = recipes.resolve_recipe(path, [], (), wanted, point["accelerator"])
        assert found["arguments"]["max_seq_len"] == point["longest"]
        measured = tuning.override_of(point, wanted)["config"]["content"]
        assert found["config"]["content"]["cuda_graph_config"] == measured["cuda_graph_config"]
        assert "$" not in repr(measured)
