# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides on actions, from the servers as planned and as observed. Pure."""

from __future__ import annotations

import dataclasses
import json

from ..engines.registry import engine_of
from ..host.server_spec import leaders_to_follow, server_ports, start_order
from .drift import changed_fields, compare
from .model import KINDS, STARTS, STAY, Action, Observed, condition

AT_ONCE, WAVE, ONE_BY_ONE, TOGETHER = CHANGES = ("at_once", "wave", "one_by_one", "together")
PEERS = ("create", "change")  # kinds of actions after which servers of a deployment may not work together
TURNS = (ONE_BY_ONE, TOGETHER)
DEPLOYS = ("started", "restarted")


@dataclasses.dataclass
class Decision:
    """actions: to apply now; postponed: actions that wait for their turn; waves: the turns, [[name]]."""

    actions: list
    postponed: list = dataclasses.field(default_factory=list)
    waves: list = dataclasses.field(default_factory=list)


def decide(desired, observed, state, only=None, check=False, changes=AT_ONCE, unverified=()):
    """The Decision for `observed` ({name: Observed}), `desired` ({name: DesiredServer}) and `state`.

    changes: how servers change that run and have to be stopped for it. With one_by_one and together they are postponed,
    in waves (order_waves), and with at_once and wave they change now. check: all actions are returned, since none
    follows.

    only: names to act upon, and with them those that run and restart with one of them. Servers that are not in
    `desired` are left alone then, unless they are named and the state is stopped or absent, or it is a wave. The
    actions are in the order of `desired`, and those of servers that are not in it are last, by name. unverified: names
    of servers that an earlier run changed and did not verify; they have a turn in any case.
    """
    named = [name for name in desired if only is None or name in only]
    actions = [_decide_one(desired[name], observed.get(name) or Observed(name), state) for name in named]
    actions = [action for action in actions if action is not None]
    if state in DEPLOYS:
        actions = _with_followers(actions, desired, observed, only)
    for name in sorted(set(observed) - set(desired)):
        removes = observed[name].is_there if only is None else name in only and changes == WAVE
        if removes:
            actions.append(Action(name, "remove", "it is not in the plan"))
        elif only is not None and name in only and state not in DEPLOYS:
            actions += filter(None, [_decide_one(None, observed[name], state)])
    if changes not in TURNS or state not in DEPLOYS:
        return Decision(actions)
    unverified = [name for name in unverified if only is None or name in only]
    waves = order_waves(actions, desired, observed, changes == TOGETHER, unverified)
    later = {name for wave in waves for name in wave}
    postponed = [action for action in actions if action.name in later]
    return Decision(actions if check else [one for one in actions if one.name not in later], postponed, waves)


def _with_followers(actions, desired, observed, only):
    """`actions` with a restart for each running server that restarts with a leader which is among those started.

    A service manager restarts these servers with their leader, whether the run names them or not. They start with the
    current plan.
    """
    by_name = {action.name: action for action in actions}
    for name in start_order({name: one.entry for name, one in desired.items()}):
        leader = next((one for one in leaders_to_follow(desired[name].entry)
                       if one in by_name and by_name[one].kind in STARTS), None)  # fmt: skip
        now = observed.get(name) or Observed(name)
        starts = name in by_name and by_name[name].kind in STARTS
        if leader is None or starts or condition(now).state not in ("running", "waiting"):
            continue
        by_name[name] = Action(name, "restart", "it restarts with %s" % leader)
        fields = changed_fields(desired[name], now) if only is not None and name not in only and now.entry else []
        if fields:
            text = "changed: " + ", ".join(change[0] for change in fields)
            by_name[name] = Action(name, "change", text, fields)
    return [by_name[name] for name in desired if name in by_name]


def _decide_one(desired, observed, state):
    """The Action for a server, or None. desired: None for a server that is not in the plan."""
    name = observed.name
    if state == "absent":
        return Action(name, "remove", "state is absent") if observed.is_there else None
    if state == "stopped":
        there = observed.runs or observed.definition is not None
        return Action(name, "stop", "state is stopped") if there else None
    found = [one for one in compare(desired, observed) if one.action]
    kind = min((one.action for one in found), key=KINDS.index, default=None)
    if state == "restarted" and kind not in ("create", "change"):
        return Action(name, "restart", "state is restarted")
    if kind is None:
        return None
    found = [one for one in found if one.action == kind]
    texts = [one.text for one in found]
    changes = [change for one in found for change in one.changes] or [("found", texts, None)]
    repairs = kind == "restart" and all(one.repairs for one in found)
    return Action(name, kind, "; ".join(texts), changes, repairs)


# -- turns of servers that run -----------------------------------------------------------------------------------------


def order_waves(actions, desired, observed, together=False, unverified=()):
    """[[name]]: servers that are changed together, in their order. Names in none of them can be acted on at once.

    A wave is one server that runs and has to be stopped. The wave also contains servers that restart with it, servers
    with devices or ports that another server of it needs (removed servers as well), and servers that its engine names.
    Repairs come first, since these servers do not answer. Servers that only have to be removed come last: they serve
    until all others are verified. together: all except the repairs are one wave. unverified: names of servers that have
    a turn in any case.
    """
    moving = {action.name: action for action in actions if action.kind in STARTS or action.kind == "remove"}
    starting = [name for name in moving if moving[name].kind in STARTS]
    group_of = {name: {name} for name in [*moving, *(name for name in unverified if name in desired)]}

    def join(names):
        known = [name for name in names if name in group_of]
        joined = set().union(*(group_of[name] for name in known))
        group_of.update(dict.fromkeys(joined, joined))

    join(unverified)
    for name in starting:
        join([name, *leaders_to_follow(desired[name].entry)])
        wanted = _resources(desired[name].entry)
        for other in moving:
            # both share on purpose what both have in the plan
            shared = _resources(desired[other].entry) if other in desired else set()
            one = observed.get(other)
            if other != name and one is not None and one.runs and (wanted - shared) & _resources(one.entry or {}):
                join([name, other])
    peers = [name for name in starting if moving[name].kind in PEERS and _with_peers(desired, observed, name)]
    if peers:  # those that an earlier run did not complete wait for them
        join([*peers, *(name for name in unverified if name in desired and _with_peers(desired, {}, name))])

    serving = {name for name, one in observed.items() if condition(one).state == "running"}
    known = {name: number for number, name in enumerate(start_order({n: one.entry for n, one in desired.items()}))}
    found = [
        sorted(group, key=lambda name: (known.get(name, len(known)), name))
        for group in {id(group): group for group in group_of.values()}.values()
    ]
    found = [group for group in found if serving & set(group) or set(unverified) & set(group)]
    found.sort(key=lambda group: known.get(group[0], len(known)))
    repairs = [group for group in found if all(name in moving and moving[name].repairs for name in group)]
    ends = [group for group in found if not any(name in desired for name in group)]
    turns = [group for group in found if group not in repairs and group not in ends]
    if not repairs and not turns:
        return []  # nothing replaces the removed servers
    if together and turns:
        turns = [[name for group in turns for name in group]]
    return repairs + turns + ([[name for group in ends for name in group]] if ends else [])


def _with_peers(desired, observed, name):
    before = observed[name].entry if name in observed else None
    entry = desired[name].entry
    return engine_of(entry).changes_together(before, entry)


def _resources(entry):
    """Devices and ports of an entry, as far as it has any."""
    devices = {("device", entry.get("platform"), device) for device in entry.get("devices") or ()}
    return devices | {("port", port) for port, _what in server_ports(entry)}


# -- the diff of a run -------------------------------------------------------------------------------------------------


def describe(actions, observed):
    """{"before": text, "after": text} for Ansible's diff: for each server its state and the fields that change."""
    diff = {"before": "", "after": ""}
    for action in actions:
        now = condition(observed.get(action.name) or Observed(action.name)).state
        becomes = {"stop": "stopped", "remove": "absent"}.get(action.kind, now if action.kind in STAY else "running")
        if action.kind in STARTS and now in ("running", "waiting"):
            becomes += " (restarted)"
        for at, (side, state) in enumerate((("before", now), ("after", becomes)), 1):
            if (side, action.kind) != ("before", "create"):
                fields = [("state", state), *((change[0], change[at]) for change in action.changes)]
                diff[side] += "%s:\n%s" % (action.name, "".join(_lines(*field) for field in fields))
    return diff


def _lines(field, value):
    if value is None or value == {} or value == []:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    return "".join("  %s\n" % line for line in ("%s: %s" % (field, text)).splitlines())
