# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operation check: reports in one call which steps of a run would change a node."""

from __future__ import annotations

from ansible.errors import AnsibleError

from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.operations.check import PLANNED, packed
from .. import operations
from ..planning import run_look, run_plan
from ..planning.inventory import Hosts
from ..reporting import report
from ..reporting.runs import reports_folder
from ..reporting.screen import say
from .servers import verification_arguments

VERIFY = "verify"  # not a step of the check


def check(action, _arguments, task_vars):
    """Return {changed, steps, first}, and what to show; see modules/node.py."""
    host = task_vars["inventory_hostname"]
    asked = run_look.of_run([{"step": step} for step in run_look.STEPS], *_tags(task_vars))
    looks, unread, verification, servers = looks_of(action, task_vars, asked and asked[0]["step"])
    unread, told = next(iter(unread), None), {}
    try:
        if verification:
            verification, told = (None, {}) if unread else _verification(action, verification, task_vars)
    except (AnsibleError, FleetError) as error:
        unread, verification = _unread(asked[-1]["step"], error), None
    answer = {"steps": [], "first": None}
    if looks:
        serves = verification is not None and any(one["step"] == "serve" for one in looks)
        given = asked_of(looks, verification if serves else None, servers)
        answer = action.call("check", given, task_vars)
    verified = answer.pop("verified", None)
    if answer.get("unreachable") or answer.get("hangs"):  # each step would wait for the same program
        return answer
    if answer.get("failed"):
        text = "%s could not be looked at, so every step is run: %s" % (host, answer.get("msg"))
        return {"changed": False, "steps": [], "first": None, "warnings": [text]}
    if answer["first"] is None and unread:
        answer["first"] = unread["step"]
        answer["steps"] = [one for one in answer["steps"] if one["step"] != unread["step"]] + [unread]
    looked = [one["step"] for one in answer["steps"]]
    if looked:
        run_look.note(host, looked, answer["first"], answer.get("serving", True))
    if verified and answer["first"] is None:
        run_look.note_verdict(host, {**verified, **told})
    if answer["first"]:
        answer["look_line"] = "%s: %s: %s" % (host, answer["first"], answer["steps"][-1]["reason"])
        say(answer["look_line"])
    return {"changed": False, **answer}


def _tags(task_vars):
    return task_vars["ansible_run_tags"], task_vars["ansible_skip_tags"]


def looks_of(action, task_vars, step, every=False, only=None):
    """Return ([{step, operation, arguments}], [{step, differs, reason}] of steps that cannot be checked, arguments of
    the verification or None, servers of the plan).

    step: the first of the run, None for no step. every: include the operations after one that cannot be checked. only:
    tags by which arguments are completed, those of the run by default.
    """
    host, others = task_vars["inventory_hostname"], Hosts.of_task(task_vars)
    tags, looks, unread, verification, servers = _tags(task_vars), [], [], None, []
    only = tags[0] if only is None else only
    try:
        plan = run_plan.plans_of([host], others, True)[host] if step else {"servers": [], "steps": []}
    except (AnsibleError, FleetError) as error:
        return looks, [_unread(step, error)], None, servers
    servers = plan["servers"]
    for one in run_look.of_run(plan["steps"], *tags):
        step = step if one["step"] == VERIFY else one["step"]
        try:
            if one["step"] == VERIFY and "reason" not in one:
                verification = run_look.filled(one["arguments"], plan, others(host), only)
            elif one["step"] != VERIFY and "reason" in one:
                unread.append({"step": step, "differs": True, "reason": one["reason"]})
            elif one["step"] != VERIFY:
                given = run_look.filled(one["arguments"], plan, others(host), only)
                arguments = operations.sent(action, one["operation"], given)
                if arguments is not None:
                    looks.append({"step": step, "operation": one["operation"], "arguments": dict(arguments)})
        except (AnsibleError, FleetError) as error:
            unread.append(_unread(step, error))
        if unread and not every:
            break
    return looks, unread, verification, servers


def _unread(step, error):
    reason = "it cannot be looked at: " + str(error).strip().partition("\n")[0]
    return {"step": step, "differs": True, "reason": reason}


def asked_of(looks, verification, servers):
    """Return the arguments of the call. The plan's servers are sent once, even if several operations need them."""

    def short(arguments):
        return {**arguments, "servers": PLANNED} if servers and arguments.get("servers") == servers else arguments

    looks = [{**one, "arguments": short(one["arguments"])} for one in looks]
    return {"looks": looks, "verify": verification and short(verification), "servers": packed(servers)}


def _verification(action, given, task_vars):
    """Return (the arguments of verify.yml's call after a run that changes nothing, or None if the verification is not
    quick; {folder, what} of its report)."""
    folder = reports_folder(given.pop("reports_dir", None), task_vars, action._templar)
    found = verification_arguments(given, task_vars["inventory_hostname"], folder, True)
    if found["mode"] != "quick" or given["problem"]:
        return None, {}
    what = report.deployed(given["servers"], given["deployment"], given.get("simulated"))
    return found, {"folder": folder, "what": what}
