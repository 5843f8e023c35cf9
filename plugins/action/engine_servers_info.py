# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inference.fleet.engine_servers_info on the node, and makes a table for people of what it found."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.plugin_utils.screen import show
from ansible_collections.inference.fleet.plugins.plugin_utils.tables import status_report


class ActionModule(ActionBase):
    """Action plugin of inference.fleet.engine_servers_info."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        """Returns what the module returns, and fleet_report where nobody else is to read that."""
        result = super().run(tmp, task_vars)
        result.update(
            self._execute_module(
                "inference.fleet.engine_servers_info", module_args=self._task.args, task_vars=task_vars
            )
        )
        if "servers" in result and not self._task.register:
            result["fleet_report"] = status_report(task_vars["inventory_hostname"], result["servers"])
            show(result["fleet_report"])
        return result
