# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operation check: reports in one call which steps of a run would change a node."""

from __future__ import annotations

from ansible.errors import AnsibleError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations.check import PLANNED, packed
from ansible_collections.inference.fleet.plugins.plugin_utils import operations
from ansible_collections.inference.fleet.plugins.plugin_utils.operations.servers import verification_arguments
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look, run_plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import Hosts
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_folder
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import say

VERIFY = "verify"  # not a step of the check


def check(action, _arguments, task_vars):
    """Return {changed, steps, first}, and what to show; see modules/node.py."""
    host = task_vars["inventory_hostname"]
    looks, unread, verification, told, servers = _looks(action, task_vars)
    answer = {"steps": [], "first": None}
    if looks:
        serves = verification is not None and any(one["step"] == "serve" for one in looks)
        asked = _asked(looks, verification if serves else None, servers)
        answer = action.call("check", asked, task_vars)
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


def _looks(action, task_vars):
    """Return ([{step, operation, arguments}], {step, differs, reason} of a step that cannot be checked or None,
    arguments of the verification that follows in the same call or None, values that its report needs, servers of the
    plan)."""
    host, others = task_vars["inventory_hostname"], Hosts.of_task(task_vars)
    only, skip = task_vars["ansible_run_tags"], task_vars["ansible_skip_tags"]
    asked = [one["step"] for one in run_look.of_run([{"step": step} for step in run_look.STEPS], only, skip)]
    looks, verification, told, servers, step = [], None, {}, [], asked[0] if asked else None
    try:
        plan = run_plan.plans_of([host], others, True)[host] if asked else {"servers": [], "steps": []}
        servers = plan["servers"]
        for one in run_look.of_run(plan["steps"], only, skip):
            if one["step"] == VERIFY:
                if "reason" not in one:
                    given = run_look.filled(one["arguments"], plan, others(host), only)
                    verification, told = _verification(action, given, task_vars)
                continue
            step = one["step"]
            if "reason" in one:
                return looks, {"step": step, "differs": True, "reason": one["reason"]}, None, {}, servers
            given = run_look.filled(one["arguments"], plan, others(host), only)
            arguments = operations.sent(action, one["operation"], given)
            if arguments is not None:
                looks.append({"step": step, "operation": one["operation"], "arguments": dict(arguments)})
    except (AnsibleError, FleetError) as error:
        reason = "it cannot be looked at: " + str(error).strip().partition("\n")[0]
        return looks, {"step": step, "differs": True, "reason": reason}, None, {}, servers
    return looks, None, verification, told, servers


def _asked(looks, verification, servers):
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
