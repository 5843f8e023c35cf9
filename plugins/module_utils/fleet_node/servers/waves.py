# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which turns servers that run are changed, so that the others go on serving. Pure."""

from __future__ import annotations

from ..engines.registry import engine_of
from .model import STARTS, condition
from .ports import server_ports
from .start_order import leaders_to_follow, start_order


def order_waves(actions, desired, observed, together=False, unverified=()):
    """[[name]]: servers that are changed together, in their order. Names in none of them can be acted on at once.

    A wave is one server that runs and has to be stopped. With it go those that restart with it, those that hold devices
    or ports which another of them needs (removed ones as well), and those whose engine says so. Repairs come first,
    since these servers do not answer. Servers that only have to be removed come last: they serve until all others are
    verified. together: all but the repairs are one wave. unverified: names of servers that have a turn in any case.
    """
    moving = {action.name: action for action in actions
              if action.alone and (action.kind in STARTS or action.kind == "remove")}  # fmt: skip
    starting = [name for name in moving if moving[name].kind in STARTS]
    groups = _Groups([*moving, *(name for name in unverified if name in desired)])
    groups.join(unverified)
    for name in starting:
        groups.join([name, *leaders_to_follow(desired[name].entry)])
        wanted = _resources(desired[name].entry)
        for other in moving:
            # what both have in the plan they share on purpose
            shared = _resources(desired[other].entry) if other in desired else set()
            one = observed.get(other)
            if other != name and one is not None and one.runs and (wanted - shared) & _resources(one.entry or {}):
                groups.join([name, other])
    groups.join([name for name in starting if moving[name].kind == "change" and _with_peers(desired, observed, name)])

    serving = {name for name, one in observed.items() if condition(one).state == "running"}
    known = {name: number for number, name in enumerate(start_order({n: one.entry for n, one in desired.items()}))}
    found = [sorted(group, key=lambda name: (known.get(name, len(known)), name)) for group in groups.all()]
    found = [group for group in found if serving & set(group) or set(unverified) & set(group)]
    found.sort(key=lambda group: known.get(group[0], len(known)))
    repairs = [group for group in found if all(name in moving and moving[name].repairs for name in group)]
    ends = [group for group in found if not any(name in desired for name in group)]
    turns = [group for group in found if group not in repairs and group not in ends]
    if not repairs and not turns:
        return []  # nothing takes the place of what is removed
    if together and turns:
        turns = [[name for group in turns for name in group]]
    return repairs + turns + ([[name for group in ends for name in group]] if ends else [])


def _with_peers(desired, observed, name):
    before = observed[name].entry if name in observed else None
    entry = desired[name].entry
    return before is not None and engine_of(entry).changes_together(before, entry)


def _resources(entry):
    """Devices and ports of an entry, as far as it has any."""
    devices = {("device", entry.get("platform"), device) for device in entry.get("devices") or ()}
    return devices | {("port", port) for port, _what in server_ports(entry)}


class _Groups:
    """Names, each in one group; groups are joined."""

    def __init__(self, names):
        self._of = {name: {name} for name in names}

    def join(self, names):
        """Put these into one group; names that it does not know are left out."""
        known = [name for name in names if name in self._of]
        joined = set().union(*(self._of[name] for name in known))
        for name in joined:
            self._of[name] = joined

    def all(self):
        return list({id(group): group for group in self._of.values()}.values())
