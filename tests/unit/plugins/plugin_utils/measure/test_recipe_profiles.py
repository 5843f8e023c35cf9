# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark profiles of every shipped recipe plan, alone and with each of its overlays, and fit the servers."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.points import points
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.tests.unit.engines.recipe_profiles import GUIDES, NAMES, planned


def each_profile():
    for name in NAMES:
        own = recipes.load_recipe(recipes.find_recipe(name, []))
        for overlay in (None, *(own.get("overlays") or ())):
            yield name, overlay


@pytest.mark.parametrize(("name", "overlay"), list(each_profile()))
def test_all_profiles_of_a_recipe_fit_its_servers(name, overlay):
    entries, recipe = planned(name, overlay)
    if not any(entry["role"] in ("server", "frontend") for entry in entries):
        with pytest.raises(FleetError) as caught:  # a host of workers alone: their frontend is another's
            points(entries, recipe)
        assert caught.value.code == "measure.no-server"
        return
    for profile in recipe["benchmark"]["profiles"]:
        assert points(entries, recipe, profile)


@pytest.mark.parametrize("name", NAMES)
def test_the_guides_own_tool_is_the_default(name):
    entries, recipe = planned(name)
    found = [one for one in points(entries, recipe) if one["servers"][0] is found_first(entries)]
    assert (found[0]["point"]["tool"], [one["point"]["concurrency"] for one in found]) == GUIDES[name]


def found_first(entries):
    return next(entry for entry in entries if entry["role"] in ("server", "frontend"))


@pytest.mark.parametrize(
    ("name", "change", "accepted"),
    [
        ("trn3-eagle3", {"output_tokens": 8000}, 16384),
        ("ascend-a2", {"concurrency": 5, "request_rate": None}, 4),
        ("b200-dynamo-disagg", {"concurrency": 1024}, 512),
        ("gb200-dynamo-disagg", {"output_tokens": 3000}, 11000),
    ],
)
def test_a_load_that_the_servers_of_a_recipe_do_not_accept(name, change, accepted):
    entries, recipe = planned(name, None, [("fleet_override", {"benchmark": {"profiles": {"guide": change}}})])
    with pytest.raises(FleetError) as caught:
        points(entries, recipe)
    assert caught.value.code == "measure.profile-invalid" and "at most %d" % accepted in caught.value.values[3]
