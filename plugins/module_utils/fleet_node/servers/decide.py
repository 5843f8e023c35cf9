# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do, from how the servers should be and how they are. Pure."""

from __future__ import annotations

import dataclasses

from ..supervise import state as guard_state
from . import drift
from .diff import changed_weights, changed_weights_words, differences
from .model import STARTS, Action, Observed, condition
from .start_order import leaders_to_follow, start_order
from .waves import order_waves

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
    """The Decision that brings `observed` ({name: Observed}) to `desired` ({name: Desired}) and `state` (of STATES).

    changes: what becomes of servers that run and have to be stopped for it. With one-by-one and together they are left
    as they are, in waves (servers/waves.py). With at-once and wave they are changed now; but with at-once, of those
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
    """The Action for a running server that somebody changed, or that has a fault; None where nothing is wrong."""
    name, fault = observed.name, observed.fault
    found = drift.differences(desired, observed)
    restarts = [one.text for one in found if one.heals == "restart"]
    if fault is not None and not fault.record:
        restarts.insert(0, fault.reason)
    changes = [("found", fault.reason, None)] if fault is not None else []
    if restarts:
        lines = [one.text for one in found]
        changes += [("differs", lines, None)] if lines else []
        alone = fault is None or fault.alone
        return Action(name, "restart", "; ".join(restarts), changes, repairs=True, alone=alone)
    if fault is not None:
        return Action(name, "record", fault.reason, changes, repairs=True)
    if observed.definition != desired.definition:
        return Action(name, "redefine", "its service definition differs")
    rewrites = [one.text for one in found if one.heals]
    if rewrites:
        return Action(name, "redefine", "; ".join(rewrites), [("differs", rewrites, None)])
    if not observed.service.enabled:
        return Action(name, "enable", NOT_ENABLED)
    return None
