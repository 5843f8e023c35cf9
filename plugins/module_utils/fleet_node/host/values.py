# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Access to JSON of any shape, sums of verdicts, times, hosts in URLs, and lists of CPUs such as "0-3,8-11"."""

from __future__ import annotations

import re
import time

TIME = "%Y-%m-%dT%H:%M:%SZ"
ITEM = re.compile(r"^([0-9]{1,6})(?:-([0-9]{1,6}))?$")


def now():
    """The time in UTC, to the second."""
    return utc(time.time())


def utc(epoch):
    """Seconds since the epoch in UTC, to the second; None for None."""
    return None if epoch is None else time.strftime(TIME, time.gmtime(epoch))


def dig(value, *path):
    """value[path[0]][path[1]]…, or None if a step is missing. A negative number counts from the end of a list."""
    for step in path:
        if isinstance(step, int):
            if not isinstance(value, list) or not -len(value) <= step < len(value):
                return None
        elif not isinstance(value, dict) or step not in value:
            return None
        value = value[step]
    return value


def mapping_of(value, *path):
    """The mapping that dig() finds, else {}."""
    found = dig(value, *path)
    return found if isinstance(found, dict) else {}


def text_of(value):
    """`value` if it is a string, else ""."""
    return value if isinstance(value, str) else ""


def items_of(value):
    """The mappings in `value` if it is a list, else []."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def count(value):
    """`value` if it is an integer, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def all_ok(values):
    """False if any value is False, True if all of at least one value are True, else None."""
    values = list(values)
    if any(value is False for value in values):
        return False
    return True if values and all(values) else None


def url_host(address):
    """An address as the host of a URL, with brackets for IPv6."""
    return "[%s]" % address if ":" in address else address


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
