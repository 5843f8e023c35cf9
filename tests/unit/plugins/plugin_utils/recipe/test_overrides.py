# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import copy

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides
from hypothesis import given
from hypothesis import strategies as st

KEYS = st.sampled_from("abcd")
SCALARS = st.integers(0, 3) | st.sampled_from(["x", "y"]) | st.booleans() | st.none()
TREES = st.dictionaries(
    KEYS, st.recursive(SCALARS, lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=6), max_size=4
)


def test_host_does_not_wipe_out_group():
    merged, origin = overrides.combine(
        [
            ("fleet_override_group", {"arguments": {"max-num-seqs": 4}, "environment": {"A": "1"}}),
            ("fleet_override_host", {"arguments": {"max-model-len": 8}}),
        ]
    )
    assert merged == {"arguments": {"max-num-seqs": 4, "max-model-len": 8}, "environment": {"A": "1"}}
    assert origin[("arguments", "max-model-len")] == "fleet_override_host"


def test_same_leaf_with_two_values_is_an_error():
    with pytest.raises(FleetError) as caught:
        overrides.combine([("fleet_override_a", {"x": {"y": 1}}), ("fleet_override_b", {"x": {"y": 2}})])
    assert caught.value.code == "override.leaf-set-twice"
    assert caught.value.values == ("fleet_override_b", "x.y", "2", "fleet_override_a", "x.y", "1")


def test_override_must_be_a_mapping():
    with pytest.raises(FleetError) as caught:
        overrides.combine([("fleet_override", ["x"])])
    assert (caught.value.code, caught.value.values[:2]) == ("input.value-invalid", ("fleet_override", '["x"]'))


def test_apply_null_removes_list_replaces_mapping_merges():
    base = {"a": {"x": 1, "y": 2}, "b": [1, 2], "c": 3}
    assert overrides.apply(base, {"a": {"x": None, "z": 5}, "b": [9], "c": None}) == {"a": {"y": 2, "z": 5}, "b": [9]}


def test_apply_mapping_over_named_list():
    base = {"servers": [{"name": "prefill", "port": 1}, {"role": "decode", "port": 2}]}
    assert overrides.apply(base, {"servers": {"decode": {"port": 7}}}) == {
        "servers": [{"name": "prefill", "port": 1}, {"role": "decode", "port": 7}]
    }
    assert overrides.apply(base, {"servers": {"prefill": None}}) == {"servers": [{"role": "decode", "port": 2}]}
    with pytest.raises(FleetError) as caught:
        overrides.apply(base, {"servers": {"decoder": {"port": 7}}})
    assert (caught.value.code, caught.value.values[1]) == ("input.key-unknown", "decoder")


@given(TREES, TREES)
def test_apply_changes_neither_side(base, override):
    before = copy.deepcopy((base, override))
    overrides.apply(base, override)
    assert (base, override) == before


def test_a_null_of_a_group_stays_also_beside_what_the_group_has():
    """It takes away what the recipe says for all servers, which the plan lays under the group's."""
    base = {"arguments": {"a": 1, "b": 2}, "servers": [{"name": "x", "arguments": {"b": 3}}, {"name": "y"}]}
    nulls = {"arguments": {"a": None, "b": None}}
    found = overrides.apply(base, {"servers": {"x": nulls, "y": nulls}})
    assert [one["arguments"] for one in found["servers"]] == [{"a": None, "b": None}] * 2
    again = overrides.apply(found, {"servers": {"x": {"arguments": {"a": 4}}}})
    assert again["servers"][0]["arguments"] == {"a": 4, "b": None}


@given(TREES)
def test_no_null_of_an_override_survives(override):
    def nulls(value):
        return value is None or (isinstance(value, dict) and any(nulls(item) for item in value.values()))

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
