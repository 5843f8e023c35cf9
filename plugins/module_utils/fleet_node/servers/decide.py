# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do, from how the servers should be and how they are. Pure."""

from __future__ import annotations

import dataclasses
import json

from ..engines.registry import engine_of
from ..host.server_spec import leaders_to_follow, start_order
from ..supervise import state as guard_state
from . import drift
from .drift import changed_weights, changed_weights_words, entry_changes, secret_summary
from .model import STARTS, STAY, Action, Observed, condition
from .ports import server_ports

AT_ONCE, WAVE, ONE_BY_ONE, TOGETHER = CHANGES = ("at_once", "wave", "one_by_one", "together")
TURNS = (ONE_BY_ONE, TOGETHER)
NOT_ENABLED = "its unit is not enabled, so a reboot would not start it"


@dataclasses.dataclass
class Decision:
    """actions: what to do now; postponed: what waits for its turn; waves: the turns, [[name]]."""

    actions: list
    postponed: list = dataclasses.field(default_factory=list)
    waves: list = dataclasses.field(default_factory=list)


def decide(desired, observed, state, only=None, purge=False, check=False, changes=AT_ONCE, unverified=()):
    """The Decision that brings `observed` ({name: Observed}) to `desired` ({name: DesiredServer}) and `state`.

    changes: what becomes of servers that run and have to be stopped for it. With one-by-one and together they are left
    as they are, in waves (order_waves). With at-once and wave they are changed now; but with at-once, of those
    that a restart repairs, only the first is restarted, so that the others serve what they can until it is ready.
    check: all are among the actions, since nothing is done.

    only: names to act upon, and with them those that run and restart with one of them. Servers that are not in
    `desired` are left alone then, unless they are named and the state is stopped or absent, or it is a wave. The
    actions come in the order of `desired`, those of servers that are not in it last, by name. unverified: names of
    servers that an earlier run changed and did not verify; they have a turn, whatever is left to do.
    """
    actions = []
    for name, target in desired.items():
        if only is None or name in only:
            actions.append(_decide_one(target, observed.get(name) or Observed(name), state, purge))
    actions = [action for action in actions if action is not None]
    turns = changes in TURNS and state in ("started", "restarted")
    repairs = [action for action in actions if action.repairs and action.alone and action.kind == "restart"]
    if changes != AT_ONCE or check:
        repairs = []
    else:
        actions = [action for action in actions if action not in repairs[1:]]
    if state in ("started", "restarted"):
        actions = _with_followers(actions, desired, observed, only)
    names = {action.name for action in actions}
    for name in sorted(set(observed) - set(desired)):
        if only is None and observed[name].is_there:
            actions.append(Action(name, "remove", "it is not in the plan"))
        elif only is not None and name in only and state in ("stopped", "absent"):
            actions += filter(None, [_decide_one(None, observed[name], state, purge)])
        elif only is not None and name in only and changes == WAVE:
            actions.append(Action(name, "remove", "it is not in the plan"))
    if turns:
        named = [name for name in unverified if only is None or name in only]
        waves = order_waves(actions, desired, observed, changes == TOGETHER, named)
        later = {name for wave in waves for name in wave}
        postponed = [action for action in actions if action.name in later]
        return Decision(actions if check else [one for one in actions if one.name not in later], postponed, waves)
    postponed = [action for action in repairs[1:] if action.name not in names]
    return Decision(actions, postponed, [[action.name] for action in postponed])


def _with_followers(actions, desired, observed, only):
    """`actions` with a restart for each running server that restarts with a leader which is among those started.

    A service manager restarts these with their leader, whether somebody named them or not. They start as the plan has
    them now.
    """
    by_name = {action.name: action for action in actions}
    for name in start_order({name: one.entry for name, one in desired.items()}):
        leader = next((one for one in leaders_to_follow(desired[name].entry)
                       if one in by_name and by_name[one].kind in STARTS), None)  # fmt: skip
        if leader is None or (name in by_name and by_name[name].kind in STARTS):
            continue
        now = observed.get(name) or Observed(name)
        if condition(now).state in ("running", "waiting"):
            changes = differences(now, desired[name]) if only is not None and name not in only else []
            by_name[name] = _change(name, changes) or Action(name, "restart", "it restarts with %s" % leader)
    return [by_name[name] for name in desired if name in by_name]


def _change(name, changes):
    if not changes:
        return None
    return Action(name, "change", "changed: " + ", ".join(change[0] for change in changes), changes)


def _decide_one(desired, observed, state, purge):
    name, now = observed.name, condition(observed)
    if state == "absent":
        there = observed.is_there or (purge and observed.folders)
        return Action(name, "remove", "state is absent") if there else None
    if state == "stopped":
        there = observed.runs or observed.definition is not None
        return Action(name, "stop", "state is stopped") if there else None
    changes = differences(observed, desired)
    if observed.entry is None:
        return Action(name, "create", "it is not deployed", changes)
    if changes:
        return _change(name, changes)
    if state == "restarted":
        return Action(name, "restart", "state is restarted")
    if now.state == "failed":
        return Action(name, "start", "failed: %s" % now.reason)
    if now.state in ("stopped", "missing"):
        return Action(name, "start", now.reason or "it is stopped")
    if not now.managed:
        return Action(name, "restart", now.reason)
    if now.hash is not None and now.hash != desired.entry["hash"]:
        return Action(name, "restart", "it runs an older entry than the deployed one")
    changed = changed_weights(observed)
    if changed:
        before = {folder: "digest " + old[: guard_state.DIGITS] for folder, old, _new in changed}
        after = {folder: "digest " + new[: guard_state.DIGITS] for folder, _old, new in changed}
        return Action(name, "restart", changed_weights_words(changed), [("weights", before, after)])
    user = observed.state.get("user")
    if desired.user is not None and observed.fresh and user != desired.user:
        return Action(name, "restart", "it runs as %s instead of %s" % (user, desired.user))
    return _repair(desired, observed)


def _repair(desired, observed):
    """The Action for a running server that somebody changed, or that has a fault; None if nothing is wrong."""
    name, fault = observed.name, observed.fault
    found = drift.differences(desired, observed)
    restarts = [one.text for one in found if one.heals == "restart"]
    changes = []
    if fault is not None:
        restarts.insert(0, fault.reason)
        changes.append(("found", fault.reason, None))
    if restarts:
        lines = [one.text for one in found]
        changes += [("differs", lines, None)] if lines else []
        return Action(name, "restart", "; ".join(restarts), changes, repairs=True, alone=fault is None or fault.alone)
    if observed.definition != desired.definition:
        return Action(name, "redefine", "its service definition differs")
    rewrites = [one.text for one in found if one.heals]
    if rewrites:
        return Action(name, "redefine", "; ".join(rewrites), [("differs", rewrites, None)])
    if not observed.service.enabled:
        return Action(name, "enable", NOT_ENABLED)
    return None


def differences(observed, target):
    """[(field, before, after)] between the deployed server, with its files, and the desired one, without secrets."""
    changes = entry_changes(observed.entry or {}, target.entry)
    if observed.entry is None:
        return changes
    fields = [change[0] for change in changes]
    if "secrets" not in fields and observed.secrets != target.secrets:
        old, new = secret_summary(observed.entry), secret_summary(target.entry)
        for key in target.secrets:
            if observed.secrets.get(key) != target.secrets[key]:
                new[key] += ", another value"
        for key in set(observed.secrets) - set(target.secrets):
            old[key] = "left over"
        changes.append(("secrets", old, new))
    if "config" not in fields and observed.config != target.config:
        changes.append(("config", "no file" if observed.config is None else "a file that differs", "as planned"))
    return changes


# -- turns of servers that run -----------------------------------------------------------------------------------------


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


# -- the diff of a run -------------------------------------------------------------------------------------------------


def describe(actions, observed):
    """{"before": text, "after": text} for Ansible's diff: for each server its state and the fields that change."""
    before, after = [], []
    for action in actions:
        now = condition(observed.get(action.name) or Observed(action.name)).state
        becomes = {"stop": "stopped", "remove": "absent"}.get(action.kind, now if action.kind in STAY else "running")
        if action.kind in STARTS and now in ("running", "waiting"):
            becomes += " (restarted)"
        old, new = ["%s:" % action.name, "  state: %s" % now], ["%s:" % action.name, "  state: %s" % becomes]
        if action.kind == "redefine" and not action.changes:
            old.append("  service: another definition")
            new.append("  service: as planned, from its next start on")
        elif action.kind == "enable":
            old.append("  after a reboot: stopped")
            new.append("  after a reboot: started")
        for field, old_value, new_value in action.changes:
            old += _lines(field, old_value)
            new += _lines(field, new_value)
        before += [] if action.kind == "create" else old
        after += new
    return {"before": _joined(before), "after": _joined(after)}


def _lines(field, value):
    if value is None or value == {} or value == []:
        return []
    if isinstance(value, list):
        return ["  %s:" % field] + ["    %s" % _word(item) for item in value]
    if isinstance(value, dict):
        return ["  %s:" % field] + ["    %s: %s" % (key, _word(value[key])) for key in sorted(value)]
    return ["  %s: %s" % (field, _word(value))]


def _word(value):
    bare = isinstance(value, str) and value.isprintable() and value == value.strip() and value
    return value if bare else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _joined(lines):
    return "".join(line + "\n" for line in lines)
