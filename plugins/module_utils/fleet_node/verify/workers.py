# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The workers of a frontend: whether each role handled requests and moved the KV cache."""

from __future__ import annotations

import typing

ROLES = ("prefill", "decode")
LATE_S = 12  # a worker's counters follow up to 10 seconds later


def workers_of(entry, entries):
    """The prefill and decode workers in `entries` of a frontend; [] for other roles."""
    if entry["role"] != "frontend":
        return []
    return [other for other in entries if other["role"] in ROLES]


class Seen(typing.NamedTuple):
    """A worker's counters, or None: handled requests, fetched bytes of KV cache."""

    requests: int | None = None
    moved: int | None = None


def idle(before, after, roles):
    """Names of the workers of those roles of which none has handled a request between two readings ({name: Seen}): a
    router may use only some of several workers. Workers that do not count are omitted. roles: {name: role}."""
    known = [name for name in after if None not in (after[name].requests, before[name].requests)]
    busy = {roles[name] for name in known if after[name].requests > before[name].requests}
    return [name for name in known if roles[name] not in busy]


def still(before, after, fetching):
    """Names of those workers of `fetching` that have handled requests between two readings and moved no bytes, although
    they count them."""
    return [
        name for name in fetching
        if after[name].moved is not None and after[name].moved <= (before[name].moved or 0)
        and (after[name].requests or 0) > (before[name].requests or 0)
    ]  # fmt: skip
