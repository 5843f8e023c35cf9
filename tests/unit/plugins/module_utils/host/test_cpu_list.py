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


@given(st.lists(st.tuples(NUMBERS, st.integers(min_value=0, max_value=40))))
def test_ranges_are_their_union_whose_shortest_text_ascends(ranges):
    numbers = {number for first, more in ranges for number in range(first, first + more + 1)}
    assert parse_cpu_list(",".join("%d-%d" % (first, first + more) for first, more in ranges)) == numbers
    text = format_cpu_list(numbers)
    assert parse_cpu_list(text) == numbers
    items = [[int(end) for end in item.split("-")] for item in text.split(",") if item]
    assert all(left[-1] + 1 < right[0] for left, right in zip(items, items[1:])), "neighbouring ranges are one range"
    assert all(len(item) == 1 or item[0] < item[1] for item in items)


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
