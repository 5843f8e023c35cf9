# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports on the control node, without contacting nodes."""

from __future__ import annotations

import importlib

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.actions import action_fail

# A module's KINDS: {kind: (arguments, function(action, given, task_vars) that returns the result)}.
VERDICTS = "operations.verdicts"
MODULES = {
    "certificate": "measure.measured_page", "converged": VERDICTS, "doctor": "operations.doctor", "status": VERDICTS,
    "tune": "operations.tune", "verification": VERDICTS,
}  # fmt: skip
PACKAGE = "ansible_collections.inference.fleet.plugins.plugin_utils."


class ActionModule(ActionBase):
    """Action plugin of inference.fleet.report."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Return the result of the report's kind."""
        result = super().run(tmp, task_vars)
        kind = self._task.args.get("kind")
        if kind not in MODULES:
            raise AnsibleActionFail("kind is %r; allowed: %s." % (kind, ", ".join(MODULES)))
        arguments, run = importlib.import_module(PACKAGE + MODULES[kind]).KINDS[kind]
        kinds = {"type": "str", "choices": list(MODULES), "required": True}
        _found, given = self.validate_argument_spec({"kind": kinds, **arguments})
        try:
            return {**result, "changed": False, **run(self, given, task_vars)}
        except FleetError as error:
            raise action_fail(error) from error
