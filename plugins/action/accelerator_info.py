# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the operation accelerator_info on the node."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.plugin_utils.node_program import NodeProgram


class ActionModule(NodeProgram, ActionBase):
    """Action plugin of inference.fleet.accelerator_info."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        """Returns what the module returns; see modules/accelerator_info.py."""
        result = super().run(tmp, task_vars)
        result.update(self.call("accelerator_info", dict(self._task.args), task_vars))
        return result
