# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of a host's plan in a run: selection by tags, and completion of their arguments.

A run with a kept plan needs this module but not the planner, so it imports nothing of the planner.
"""

from __future__ import annotations

import functools
import operator

LATER = "fleet: filled in later"  # the only key of an argument that is completed when it is sent
OMITTED = object()
# The tags of the steps' playbooks.
TAGS = {
    "preflight": ("preflight", "prepare", "serve"),
    "prepare": ("prepare",),
    "weights": ("weights",),
    "serve": ("serve",),
    "verify": ("verify",),
}
PREPARES = frozenset(("all", "tagged", "prepare", "preflight"))  # tags that prepare nodes, see preflight.yml


def of_run(steps, only, skip):
    """Return the steps of a plan that a run with these tags includes, and steps whose playbook was changed,
    because its tags are not known.

    only, skip: of the run, --tags and --skip-tags.
    """
    return [one for one in steps if one.get("changed") or has_part(TAGS[one["step"]], set(only), set(skip))]


def has_part(tags, only, skip):
    """Return whether a run includes a task with these tags, by the rules of ansible-playbook."""
    tags = set(tags)
    chosen = bool(tags & only) or bool(only & {"all", "tagged"})
    return chosen and not (tags & skip or skip & {"all", "tagged"})


def filled(value, plan, variables, only):
    """Return the arguments of a call, or a part of them, with the omitted values. Raises FleetError.

    plan: the host's. variables: HostVariables. only: tags of the run.
    """
    if isinstance(value, list):
        return [filled(one, plan, variables, only) for one in value]
    if not isinstance(value, dict):
        return value
    if set(value) != {LATER}:
        found = {key: filled(one, plan, variables, only) for key, one in value.items()}
        return {key: one for key, one in found.items() if one is not OMITTED}
    how = value[LATER]
    if "unprepared" in how:
        return how["prepared" if PREPARES & set(only) else "unprepared"]
    if "plan" in how:
        return functools.reduce(operator.getitem, how["plan"], plan)
    found = variables.peek(how["variable"])
    if not found and "default" in how:
        found = how["default"]
    if not found and how.get("omits"):
        return OMITTED
    return _merged(how["over"], found or {}) if "over" in how else found


def _merged(under, over):
    """Return a mapping merged over another mapping, like the filter combine with recursive."""
    found = dict(under)
    for key, value in over.items():
        both = isinstance(found.get(key), dict) and isinstance(value, dict)
        found[key] = _merged(found[key], value) if both else value
    return found
