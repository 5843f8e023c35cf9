# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The quick way to plain values gives what the careful one gives, for whatever it is given."""

from __future__ import annotations

import datetime

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils import plain
from ansible_collections.inference.fleet.plugins.plugin_utils.base import checks
from hypothesis import example, given
from hypothesis import strategies as st

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=2)
    | st.just(datetime.date(2026, 1, 1)) | st.sampled_from((2**63 - 1, 2**63, -(2**63)))
)  # fmt: skip
KEYS = st.text(max_size=4) | st.booleans() | st.integers() | st.sampled_from((" a", "a\u200b", "é", ""))


def deep(depth):
    value = 1
    for _level in range(depth):
        value = [value]
    return value


def result(clean, value):
    try:
        return clean(value, "x")
    except FleetError as error:
        return error.code, error.message


@given(st.recursive(LEAVES, lambda one: st.lists(one, max_size=3) | st.tuples(one) | st.dictionaries(KEYS, one)))
@example(deep(checks.MAX_DEPTH))
@example(deep(checks.MAX_DEPTH + 1))
@example(deep(checks.MAX_DEPTH + 2))
@example([0] * checks.MAX_VALUES)
@example([0] * (checks.MAX_VALUES - 1))
def test_it_is_the_same(value):
    quick, careful = result(plain.clean, value), result(checks.clean, value)
    assert quick == careful
    assert repr(quick) == repr(careful)


def test_a_value_that_contains_itself():
    value = []
    value.append(value)
    with pytest.raises(FleetError) as caught:
        plain.clean(value, "x")
    assert caught.value.code == "input.too-large"


def test_types_of_the_templating_engine_are_dropped():
    class Tagged(str):
        pass

    found = plain.clean({Tagged("a"): [Tagged("b")]}, "x")
    assert [type(one) for one in (*found, *found["a"])] == [str, str]
