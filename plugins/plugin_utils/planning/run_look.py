# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of a host's plan in a run: selection by tags, completion of their arguments, and the results of the
operation check for the following plays.

The results are where each host has something to do, which hosts failed, and whether servers of a host could not be
changed, after which no servers of other hosts are changed. They are lines of JSON in a file in the run's temporary
folder, like the plan (run_plan.py). A run with a kept plan needs this module but not the planner, so it imports nothing
of the planner.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import os

from ansible import constants as C
from ansible.utils.vars import merge_hash

FILE = "inference-fleet-checked.jsonl"  # a line for each result: [kind, value]
LOOK, STOPPED, VERDICT, REPORTED, FAILED = "look", "stopped", "verdict", "reported", "failed"
NOBODY = ["!all"]  # The hosts of a play without hosts. An empty list of patterns would select all hosts.
STEPS = ("preflight", "prepare", "weights", "serve")
VERIFY = "verify"
NOT_ASKED = "not asked: the run ended before; see its output"  # of a host in a report
LATER = "fleet: filled in later"  # the only key of an argument that is completed when it is sent
OMITTED = object()
# The tags of the steps' playbooks.
TAGS = {**{step: (step,) for step in (*STEPS, VERIFY)}, "preflight": ("preflight", "prepare", "serve")}
PREPARES = frozenset(("all", "tagged", "prepare", "preflight"))  # tags that prepare nodes, see preflight.yml


def note(host, steps, first, serving=True):
    """Store the checked steps of a host, its first step that differs, or None, and whether servers run."""
    _append(LOOK, {"host": host, "steps": steps, "first": first, "serving": serving})


def forget():
    """Delete the results when another playbook begins."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_path())


def note_stopped(host):
    """Store that servers of this host could not be changed."""
    _append(STOPPED, host)


def stopped():
    """Return the host whose servers could not be changed, None if there is none."""
    return _last(STOPPED)


def note_failed(host, failed):
    """Store whether a task of a host failed, or a later one ran there nevertheless, such as a rescue."""
    _append(FAILED, [host, failed])


def in_turn(hosts):
    """Return the hosts in the order in which their servers change: without running servers, with, then those that were
    not checked and those that failed, where nothing changes. The first host with running servers shows whether the plan
    is good."""
    found, failed = _looks(), _failed()

    def turn(host):
        return 3 if host not in found or host in failed else 1 + found[host]["serving"]

    return sorted(hosts, key=turn)


def listed(serial):
    """Return a play's serial as a list."""
    return list(serial) if isinstance(serial, (list, tuple)) else [serial]


def batches(hosts, serial, together=()):
    """Return the serial of a play for these hosts. Hosts without running servers come first, in one batch; then a
    single host, then batches of `serial` hosts. It is `serial` if servers run only on hosts in `together`, which are
    changed at the same time."""
    serial, failed, found = listed(serial), _failed(), _looks()
    first = [host for host in hosts if host in found and not found[host]["serving"] and host not in failed]
    if all(host in first or host in together or host in failed for host in hosts):
        return serial
    return ([len(first)] if first else []) + [1, *serial]


def due(hosts, step):
    """Return the hosts that have something to do in this step or an earlier step, or that were not checked. For the
    step verify, return the hosts whose verdict is not in the reports yet."""
    if step == VERIFY:
        reported = _last(REPORTED) or ()
        return [host for host in hosts if host not in reported]
    found, begun = _looks(), STEPS[: STEPS.index(step) + 1]
    return [host for host in hosts if host not in found or found[host]["first"] in begun]


def unchanged(host):
    """Return whether the servers of a host were checked, and the run has nothing to do there."""
    found = _looks().get(host)
    return found is not None and "serve" in found["steps"] and found["first"] is None


def note_verdict(host, verdict):
    """Store the verification of a host that followed in the same call; verdict: JSON."""
    _append(VERDICT, [host, verdict])


def verdicts():
    """Return {host: verdict} of note_verdict();
    {} if the run changes any host, because the servers of other hosts may answer differently then."""
    looks = _looks()
    if any(one["first"] is not None for one in looks.values()):
        return {}
    found = dict(_read(VERDICT))
    return {host: found[host] for host in looks if host in found}


def note_reported(hosts):
    """Store that the verdicts of these hosts are in the reports."""
    _append(REPORTED, sorted(hosts))


def _failed():
    """Return the names of the hosts that failed."""
    return {host for host, failed in dict(_read(FAILED)).items() if failed}


def _path():
    return os.path.join(C.DEFAULT_LOCAL_TMP, FILE)


def _append(kind, value):
    stream = os.open(_path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(stream, "wb", buffering=0) as file:  # a single write, because several processes may write
        file.write(json.dumps([kind, value]).encode() + b"\n")


def _read(kind):
    """Return the values of a kind, [] if there are none."""
    try:
        with open(_path(), encoding="utf-8") as stream:
            return [json.loads(line)[1] for line in stream if line.startswith('["%s"' % kind)]
    except FileNotFoundError:
        return []


def _last(kind):
    return (_read(kind) or [None])[-1]


def _looks():
    """Return {host: result that note() stored last}."""
    return {one["host"]: one for one in _read(LOOK)}


def of_run(steps, only, skip):
    """Return the steps of a plan that a run with these tags includes, and steps whose playbook was changed,
    because its tags are not known.

    only, skip: of the run, --tags and --skip-tags.
    """

    def names(given, step):  # by the rules of ansible-playbook for a task with tags
        return not {"all", "tagged", *TAGS[step]}.isdisjoint(given)

    return [one for one in steps
            if one.get("changed") or (names(only, one["step"]) and not names(skip, one["step"]))]  # fmt: skip


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
    return merge_hash(how["over"], found or {}) if "over" in how else found
