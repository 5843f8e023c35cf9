# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks a node in one call which step of the run is the first that has something to do, and keeps that for the run."""

from __future__ import annotations

import importlib

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.platforms.shipped_operations import SECRETS
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.step_tasks import OWN, StepTasks
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import say

ACTIONS = "ansible_collections.inference.fleet.plugins.action."


class ActionModule(ActionBase):
    """Action plugin of inference.fleet.node_state."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset()

    def run(self, tmp=None, task_vars=None):
        """Returns {changed, steps, first}; see modules/node_state.py."""
        result = super().run(tmp, task_vars)
        host = task_vars["inventory_hostname"]
        looks, unread = self._looks(task_vars)
        answer = {"steps": [], "first": None}
        if looks:
            answer = self._ask(looks, task_vars)
        if answer.get("unreachable"):
            return {**result, **answer}
        if answer.get("failed"):
            text = "%s could not be looked at, so every step is run: %s" % (host, answer.get("msg"))
            return {**result, "changed": False, "steps": [], "first": None, "warnings": [text]}
        if answer["first"] is None and unread:
            answer["first"] = unread["step"]
            answer["steps"] = [one for one in answer["steps"] if one["step"] != unread["step"]] + [unread]
        looked = [one["step"] for one in answer["steps"]]
        if looked:
            run_look.note(host, looked, answer["first"])
        if answer["first"]:
            answer["look_line"] = "%s: %s: %s" % (host, answer["first"], answer["steps"][-1]["reason"])
            say(answer["look_line"])
        return {**result, "changed": False, **answer}

    def _looks(self, task_vars):
        """([{step, module, arguments}], {step, differs, reason} of a step that cannot be looked at or None)."""
        tasks = StepTasks(
            self._loader, lambda variables: self._templar.copy_with_new_env(available_variables=variables), task_vars,
            load_extra_vars(self._loader), task_vars["ansible_run_tags"], task_vars["ansible_skip_tags"],
        )  # fmt: skip
        looks = []
        for step in run_look.STEPS:
            try:
                for name, arguments in tasks.of(step):
                    module = name[len(OWN) :] if name.startswith(OWN) else name
                    arguments = self._sent(module, arguments)
                    if arguments is not None:
                        looks.append({"step": step, "module": module, "arguments": dict(arguments)})
            except (AnsibleError, FleetError) as error:
                reason = str(error).strip().partition("\n")[0]
                return looks, {"step": step, "differs": True, "reason": "it cannot be looked at: " + reason}
        return looks, None

    def _sent(self, module, arguments):
        """What the module's own action would send to the node; None where it would send nothing."""
        if arguments is None:
            return {}
        try:
            action = importlib.import_module(ACTIONS + module)
        except ModuleNotFoundError:
            return arguments
        return action.sent(self, dict(arguments)) if hasattr(action, "sent") else arguments

    def _ask(self, looks, task_vars):
        secrets = {}
        for number, one in enumerate(looks):
            for name in SECRETS.get(one["module"], ()):
                if name in one["arguments"]:
                    secrets.setdefault(str(number), {})[name] = one["arguments"].pop(name)
        answer = self._execute_module(
            "inference.fleet.node_state", module_args={"looks": looks, "secrets": secrets}, task_vars=task_vars
        )
        answer.pop("invocation", None)
        return answer
