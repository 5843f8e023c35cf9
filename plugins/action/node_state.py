# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks a node in one call which step of the run is the first that has something to do, and keeps that for the run."""

from __future__ import annotations

import importlib

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.action import endpoint_verify
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.node_program import NodeProgram
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look, run_plan, run_steps
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import Hosts
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_folder
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import say

VERIFY = "verify"  # no step of the look
ACTIONS = "ansible_collections.inference.fleet.plugins.action."


class ActionModule(NodeProgram, ActionBase):
    """Action plugin of inference.fleet.node_state."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset()

    def run(self, tmp=None, task_vars=None):
        """Returns {changed, steps, first}; see modules/node_state.py."""
        result = super().run(tmp, task_vars)
        host = task_vars["inventory_hostname"]
        looks, unread, verify = self._looks(task_vars)
        answer = {"steps": [], "first": None}
        if looks:
            answer = self._ask(looks, verify, task_vars)
        verified = answer.pop("verified", None)
        if answer.get("unreachable"):
            return {**result, **answer}
        if answer.get("hangs"):  # each step would wait for the same program
            return {**result, **answer}
        if answer.get("failed"):
            text = "%s could not be looked at, so every step is run: %s" % (host, answer.get("msg"))
            return {**result, "changed": False, "steps": [], "first": None, "warnings": [text]}
        if answer["first"] is None and unread:
            answer["first"] = unread["step"]
            answer["steps"] = [one for one in answer["steps"] if one["step"] != unread["step"]] + [unread]
        looked = [one["step"] for one in answer["steps"]]
        if looked:
            run_look.note(host, looked, answer["first"], answer.get("serving", True))
        if verified and answer["first"] is None:
            run_look.note_answer(host, verify, verified)
        if answer["first"]:
            answer["look_line"] = "%s: %s: %s" % (host, answer["first"], answer["steps"][-1]["reason"])
            say(answer["look_line"])
        return {**result, "changed": False, **answer}

    def _looks(self, task_vars):
        """([{step, module, arguments}], {step, differs, reason} of a step that cannot be looked at or None, arguments
        of the verification that follows in the same call or None)."""
        host, others = task_vars["inventory_hostname"], Hosts.of_task(task_vars)
        only, skip = task_vars["ansible_run_tags"], task_vars["ansible_skip_tags"]
        asked = [one["step"] for one in run_steps.of_run([{"step": step} for step in run_look.STEPS], only, skip)]
        looks, verify, step = [], None, asked[0] if asked else None
        try:
            plan = run_plan.plans_of([host], others, True)[host] if asked else {"steps": []}
            for one in run_steps.of_run(plan["steps"], only, skip):
                if one["step"] == VERIFY:
                    if "reason" not in one:
                        verify = self._verification(run_steps.filled(one, plan, others(host), only), task_vars)
                    continue
                step = one["step"]
                if "reason" in one:
                    return looks, {"step": step, "differs": True, "reason": one["reason"]}, None
                given = run_steps.filled(one, plan, others(host), only)
                arguments = self._sent(one["operation"], given)
                if arguments is not None:
                    looks.append({"step": step, "module": one["operation"], "arguments": dict(arguments)})
        except (AnsibleError, FleetError) as error:
            reason = "it cannot be looked at: " + str(error).strip().partition("\n")[0]
            return looks, {"step": step, "differs": True, "reason": reason}, None
        return looks, None, verify

    def _verification(self, given, task_vars):
        """What verify.yml would send where nothing changed; None where that is no quick verification."""
        folder = reports_folder(given.pop("reports_dir", None), task_vars, self._templar)
        found = endpoint_verify.sent(given, task_vars["inventory_hostname"], folder, True)
        return found if found["mode"] == "quick" and not given["problem"] else None

    def _sent(self, module, arguments):
        """What the module's own action would send to the node; None where it would send nothing."""
        try:
            action = importlib.import_module(ACTIONS + module)
        except ModuleNotFoundError:
            return arguments
        return action.sent(self, arguments) if hasattr(action, "sent") else arguments

    def _ask(self, looks, verify, task_vars):
        serves = verify is not None and any(one["step"] == "serve" for one in looks)
        answer = self.call("node_state", {"looks": looks, "verify": verify if serves else None}, task_vars)
        answer.pop("invocation", None)
        return answer
