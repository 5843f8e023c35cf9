# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs an operation on a managed node, with its part on the control node."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.actions import action_fail
from ansible_collections.inference.fleet.plugins.plugin_utils.node_program import NodeProgram
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import part_of


class ActionModule(NodeProgram, ActionBase):
    """Action plugin of inference.fleet.node, and of each module with the name of an operation."""

    TRANSFERS_FILES = False
    _supports_async = True

    def run(self, tmp=None, task_vars=None):
        """Return the result of the operation."""
        result = super().run(tmp, task_vars)
        operation, arguments = self._task.action.rpartition(".")[2], dict(self._task.args)
        if operation == "node":
            _found, given = self.validate_argument_spec(
                {"operation": {"type": "str", "required": True}, "arguments": {"type": "dict", "default": {}}}
            )
            operation, arguments = given["operation"], dict(given["arguments"])
        part = part_of(operation)
        if part is None:
            return {**result, **self.call(operation, arguments, task_vars)}
        if self._task.async_val:
            return {**result, "failed": True, "msg": "The operation %s does not support async." % operation}
        try:
            return {**result, **part(self, arguments, task_vars)}
        except FleetError as error:
            raise action_fail(error) from error
