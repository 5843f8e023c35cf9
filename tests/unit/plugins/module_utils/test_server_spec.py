# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Entries that an earlier release deployed: fixtures/entries/schema_1.json holds what it planned for two recipes."""

from __future__ import annotations

import copy
import json
import pathlib

import pytest
from ansible_collections.inference.fleet.plugins.module_utils import server_spec
from ansible_collections.inference.fleet.plugins.module_utils.containers.engine import Container
from ansible_collections.inference.fleet.plugins.module_utils.servers.diff import entry_changes
from ansible_collections.inference.fleet.plugins.module_utils.servers.observe import _by_content
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "entries"
HARDWARE = {"cpu-tiny": {"accelerator": "cpu", "count": 1, "cores": 2},
            "trn3-eagle3": {"accelerator": "trainium3", "count": 4}}  # fmt: skip
PAIRS = [(name, index) for name in HARDWARE for index in range(2)]


def deployed(name, index):
    return json.loads((FIXTURES / "schema_1.json").read_text())[name][index]


def planned(name, index):
    recipe = load.resolve_recipe(load.find_recipe(name, []), [])
    return plan.plan_host("node1", recipe, parse_hardware(HARDWARE[name], "inventory"), plan.Site())[index]


@pytest.mark.parametrize(("name", "index"), PAIRS)
def test_a_server_that_the_previous_schema_deployed_is_the_planned_one(name, index):
    old, new = deployed(name, index), planned(name, index)
    assert (old["schema"], new["schema"]) == (1, 2)
    assert server_spec.hash_is_true(old)
    state, container = {"hash": old["hash"]}, Container("id", "fleet-server-0", True, "server-0", "/", old["hash"])
    assert _by_content(copy.deepcopy(old), new, state, [container]) == new
    assert (state["hash"], container.hash) == (new["hash"], new["hash"])  # nothing restarts


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("command", ["other"]), ("environment", {}), ("devices", [7]), ("cpus", "0"), ("user", "other"),
        ("directories", {}), ("config", {"path": "/c", "format": "json", "content": {}}), ("weights", []),
        ("health", {"path": "/other", "budget_s": 1, "poll_s": 1}), ("secrets", {"A": "b"}),
        ("start", {"after": ["other"], "artifact_leaders": [], "restart_with_leader": False}),
        ("artifact_key", "0" * 16),
    ],
)  # fmt: skip
def test_one_that_differs_in_what_its_process_depends_on_is_not(key, value):
    old, new = deployed("trn3-eagle3", 1), planned("trn3-eagle3", 1)
    old[key] = value
    old["hash"] = server_spec.entry_hash(old)
    state = {"hash": old["hash"]}
    assert _by_content(old, new, state, []) == old
    assert state["hash"] == old["hash"]
    assert entry_changes(old, new)


@pytest.mark.parametrize(("name", "index"), PAIRS)
def test_what_compiles_is_read_from_both_schemas(name, index):
    old, new = deployed(name, index), planned(name, index)
    assert server_spec.current(old)["hooks"] == new["hooks"]
    assert server_spec.artifact_key(old) == server_spec.artifact_key(new) == old["artifact_key"]
    assert list(server_spec.artifact_leaders(old)) == old["start"]["artifact_leaders"]
    assert list(server_spec.artifact_leaders(new)) == old["start"]["artifact_leaders"]
    assert server_spec.artifact_directory(old) == server_spec.artifact_directory(new)
    assert (server_spec.artifact_directory(old) is None) == (name == "cpu-tiny")


def test_arguments_that_are_read_in_another_way_restart_nothing():
    new = planned("cpu-tiny", 0)
    old = dict(new, arguments={"tp": 1}, engine="other")
    old["hash"] = server_spec.entry_hash(old)
    assert _by_content(old, new, {}, []) == new
