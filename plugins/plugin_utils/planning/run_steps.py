# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of a host's plan in one run: which of them its tags leave, and their arguments filled in.

A run whose plan is kept needs this and not the planner, so nothing of that is imported here.
"""

from __future__ import annotations

# The tags of the steps' playbooks.
TAGS = {
    "preflight": ("preflight", "prepare", "serve"),
    "prepare": ("prepare",),
    "weights": ("weights",),
    "serve": ("serve",),
    "verify": ("verify",),
}
PREPARES = frozenset(("all", "tagged", "prepare", "preflight"))  # a run with one of these tags, as preflight.yml says


def of_run(steps, only, skip):
    """Those of a plan's steps that are part of a run with these tags, and those whose playbook was changed: its tags
    are not known.

    only, skip: of the run, --tags and --skip-tags.
    """
    return [one for one in steps if one.get("changed") or has_part(TAGS[one["step"]], set(only), set(skip))]


def has_part(tags, only, skip):
    """Whether a task of these tags is part of the run, as ansible-playbook decides that."""
    tags = set(tags)
    chosen = bool(tags & only) or bool(only & {"all", "tagged"})
    return chosen and not (tags & skip or skip & {"all", "tagged"})


def filled(call, plan, variables, only):
    """The arguments of one of a plan's calls, with what was left for later. Raises FleetError.

    plan: the host's. variables: HostVariables. only: tags of the run.
    """
    arguments = _copy(call["arguments"])
    for one in call["later"]:
        place = arguments
        for key in one["at"][:-1]:
            place = place[key]
        key = one["at"][-1]
        if "unprepared" in one:
            if not PREPARES & set(only):
                place[key] = one["unprepared"]
        elif "plan" in one:
            value = plan
            for name in one["plan"]:
                value = value[name]
            place[key] = value
        else:
            _fill(place, key, one, variables.peek(one["variable"]))
    return arguments


def _fill(place, key, later, value):
    if not value and "default" in later:
        value = later["default"]
    if not value and later.get("omits"):
        del place[key]
    else:
        place[key] = _merged(later["over"], value or {}) if "over" in later else value


def _merged(under, over):
    """A mapping merged over another one, as the filter combine does it with recursive."""
    found = dict(under)
    for key, value in over.items():
        both = isinstance(found.get(key), dict) and isinstance(value, dict)
        found[key] = _merged(found[key], value) if both else value
    return found


def _copy(value):
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    return [_copy(one) for one in value] if isinstance(value, list) else value
