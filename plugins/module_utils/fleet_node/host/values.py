# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Access to JSON of any shape, sums of verdicts, times, and hosts in URLs."""

from __future__ import annotations

import datetime

TIME = "%Y-%m-%dT%H:%M:%SZ"


def now():
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).strftime(TIME)


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
