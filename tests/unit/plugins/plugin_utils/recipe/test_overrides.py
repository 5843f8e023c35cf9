# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import copy

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from hypothesis import given
from hypothesis import strategies as st

KEYS = st.sampled_from("abcd")
SCALARS = st.integers(0, 3) | st.sampled_from(["x", "y"]) | st.booleans() | st.none()
TREES = st.dictionaries(
    KEYS, st.recursive(SCALARS, lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=6), max_size=4
)


def test_host_does_not_wipe_out_group():
    group, host = {"arguments": {"a": 4}, "environment": {"A": "1"}}, {"arguments": {"b": 8}}
    merged, origin = overrides.combine([("fleet_override_group", group), ("fleet_override_host", host)])
    assert merged == {"arguments": {"a": 4, "b": 8}, "environment": {"A": "1"}}
    names = ["fleet_override_group", "fleet_override_host"]
    assert origin == {("arguments", "a"): names[0], ("arguments", "b"): names[1], ("environment", "A"): names[0]}
    for path in (), ("arguments",):
        assert overrides.owners(origin, path) == names
    assert overrides.owners(origin, ("arguments", "b", "deeper")) == names[1:]


@pytest.mark.parametrize(
    ("first", "second", "path", "shown"),
    [
        ({"y": 1}, {"y": 2}, "x.y", ("2", "1")),
        ({"y": {"password": "secret"}}, 2, "x", ("2", "a mapping")),
        (1, {"y": 2}, "x", ("a mapping", "1")),
        ({"A_TOKEN": "a"}, {"A_TOKEN": "b"}, "x.A_TOKEN", ("another value", "another value")),
    ],
)
def test_same_leaf_with_two_values_is_an_error(first, second, path, shown):
    found = error(overrides.combine, [("fleet_override_a", {"x": first}), ("fleet_override_b", {"x": second})])
    values = ("fleet_override_b", path, shown[0], "fleet_override_a", shown[1])
    assert (found.code, found.values) == ("override.leaf-set-twice", values)


PREFILL, DECODE = {"name": "prefill", "port": 1}, {"role": "decode", "port": 2}
GROUPS = {"servers": [PREFILL, DECODE]}


@pytest.mark.parametrize(
    ("base", "override", "result"),
    [
        ({"a": {"x": 1, "y": 2}, "b": [1, 2], "c": 3}, {"a": {"x": None, "z": 5}, "b": [9], "c": None},
         {"a": {"y": 2, "z": 5}, "b": [9]}),
        (GROUPS, {"servers": {"decode": {"port": 7}}}, {"servers": [PREFILL, {**DECODE, "port": 7}]}),
        (GROUPS, {"servers": {"prefill": None}}, {"servers": [DECODE]}),
    ],
)  # fmt: skip
def test_null_removes_lists_replace_and_mappings_merge(base, override, result):
    assert overrides.apply(base, override) == result


def test_a_null_of_a_group_stays_also_beside_what_the_group_has():
    """It takes away what the recipe says for all servers, which the plan lays under the group's."""
    base = {"arguments": {"a": 1, "b": 2}, "servers": [{"name": "x", "arguments": {"b": 3}}, {"name": "y"}]}
    nulls = {"arguments": {"a": None, "b": None}}
    found = overrides.apply(base, {"servers": {"x": nulls, "y": nulls}})
    assert [one["arguments"] for one in found["servers"]] == [{"a": None, "b": None}] * 2
    again = overrides.apply(found, {"servers": {"x": {"arguments": {"a": 4}}}})
    assert again["servers"][0]["arguments"] == {"a": 4, "b": None}


@given(TREES, TREES)
def test_apply_changes_neither_side_and_no_null_of_an_override_survives(base, override):
    def nulls(value):
        return value is None or (isinstance(value, dict) and any(nulls(item) for item in value.values()))

    before = copy.deepcopy((base, override))
    overrides.apply(base, override)
    assert (base, override) == before
    assert not nulls(overrides.apply({}, override))


@given(TREES, TREES)
def test_order_of_layers_does_not_matter(first, second):
    """What merges without an error merges to the same, whatever the variables are called."""

    def combined(*layers):
        try:
            return overrides.combine(list(layers))[0]
        except FleetError:
            return "error"

    one = combined(("fleet_override_a", first), ("fleet_override_b", second))
    other = combined(("fleet_override_a", second), ("fleet_override_b", first))
    assert one == other
