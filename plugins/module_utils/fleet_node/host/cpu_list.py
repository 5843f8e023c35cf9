# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lists of numbers as the kernel, systemd and vendors' tools write them: "0-3,8-11"."""

from __future__ import annotations

import re

ITEM = re.compile(r"^([0-9]{1,6})(?:-([0-9]{1,6}))?$")


def parse_cpu_list(text):
    """The set of ints in `text` ("0-3,8-11"). Raises ValueError with the item that is not a range."""
    numbers = set()
    for item in text.strip().split(",") if text.strip() else ():
        match = ITEM.match(item.strip())
        if not match or (match.group(2) is not None and int(match.group(2)) < int(match.group(1))):
            raise ValueError("%r in %r is neither a number nor a range like 0-3" % (item, text.strip()))
        first = int(match.group(1))
        numbers.update(range(first, int(match.group(2) or first) + 1))
    return numbers


def format_cpu_list(numbers):
    """The shortest form of a collection of ints, ascending: {0, 1, 2, 8} is "0-2,8"."""
    ranges = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else "%d-%d" % (first, last) for first, last in ranges)
