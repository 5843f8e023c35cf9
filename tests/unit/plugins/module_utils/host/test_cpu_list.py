# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.values import (
    format_cpu_list,
    parse_cpu_list,
)
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.integers(min_value=0, max_value=2047)


@given(st.sets(NUMBERS))
def test_a_set_survives_writing_and_reading(numbers):
    assert parse_cpu_list(format_cpu_list(numbers)) == numbers


@given(st.sets(NUMBERS))
def test_the_text_is_the_shortest_and_ascends(numbers):
    items = [[int(end) for end in item.split("-")] for item in format_cpu_list(numbers).split(",") if item]
    for left, right in zip(items, items[1:]):
        assert left[-1] + 1 < right[0], "neighbouring ranges are one range"
    assert all(len(item) == 1 or item[0] < item[1] for item in items)


@given(st.lists(st.tuples(NUMBERS, st.integers(min_value=0, max_value=40)), min_size=1))
def test_ranges_in_any_order_and_overlapping_are_their_union(ranges):
    text = ",".join("%d-%d" % (first, first + more) for first, more in ranges)
    assert parse_cpu_list(text) == {number for first, more in ranges for number in range(first, first + more + 1)}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", []), ("\n", []), ("0\n", [0]), ("0-3,8-11\n", [0, 1, 2, 3, 8, 9, 10, 11]), ("48-50, 144", [48, 49, 50, 144])],
)
def test_what_the_kernel_and_tools_write(text, numbers):
    assert parse_cpu_list(text) == set(numbers)


@pytest.mark.parametrize("item", ["a", "3-2", "1-", "-1", "1-2-3", "", "0x1", "1:2", "99999999", "²"])
def test_what_is_no_range_is_named(item):
    with pytest.raises(ValueError) as caught:
        parse_cpu_list("0-1,%s" % item)
    assert str(caught.value).startswith("%r in %r" % (item, ("0-1,%s" % item).strip()))
