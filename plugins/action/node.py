# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs an operation of this collection's program on the node."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.plugin_utils.node_program import NodeProgram


class ActionModule(NodeProgram, ActionBase):
    """Action plugin of inference.fleet.node."""

    TRANSFERS_FILES = False
    _supports_async = True
    _VALID_ARGS = frozenset(("operation", "arguments"))

    def run(self, tmp=None, task_vars=None):
        """Returns what the operation returns."""
        result = super().run(tmp, task_vars)
        _found, given = self.validate_argument_spec(
            {"operation": {"type": "str", "required": True}, "arguments": {"type": "dict", "default": {}}}
        )
        result.update(self.call(given["operation"], dict(given["arguments"]), task_vars))
        return result
