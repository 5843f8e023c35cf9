# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values of the templating engine as plain ones, without what finds and names mistakes in them: that is imported where
there is one."""

from __future__ import annotations

import math

MAX_DEPTH = 32
MAX_VALUES = 100_000  # of one variable or recipe, aliases written out
MAX_NUMBER = 2**63 - 1


class _Odd(Exception):
    """A value, or a part of it, that has to be looked at more closely."""


def clean(value, name):
    """``value`` of the variable ``name`` as dict, list, str, int, float, bool and None; FleetError where it is none of
    these. The same as recipe.checks.clean, which says what is wrong."""
    try:
        return _plain(value, 0, [0])
    except _Odd:
        from ansible_collections.inference.fleet.plugins.plugin_utils.base import checks

        return checks.clean(value, name)


def _plain(value, depth, count):
    count[0] += 1
    if count[0] > MAX_VALUES:
        raise _Odd
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if abs(value) > MAX_NUMBER:
            raise _Odd
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Odd
        return float(value)
    if depth > MAX_DEPTH:  # or it contains itself
        raise _Odd
    if isinstance(value, dict):
        return {_key(key): _plain(one, depth + 1, count) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one, depth + 1, count) for one in value]
    raise _Odd


def _key(key):
    if isinstance(key, str) and key and key.isascii() and key.isprintable() and key == key.strip():
        return str.__str__(key)
    raise _Odd
