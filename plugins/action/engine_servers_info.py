# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inference.fleet.engine_servers_info on the node, and makes a table for people of what it found."""

from __future__ import annotations

from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.redact import TOKEN_LENGTH
from ansible_collections.inference.fleet.plugins.plugin_utils.node_program import NodeProgram
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import show
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.tables import status_report, unreachable_report


class ActionModule(NodeProgram, ActionBase):
    """Action plugin of inference.fleet.engine_servers_info."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        """Returns what the module returns, and fleet_report where it shows a table."""
        result = super().run(tmp, task_vars)
        host = task_vars["inventory_hostname"]
        arguments = dict(self._task.args)
        report = boolean(arguments.pop("report", None) or not self._task.register)
        if arguments.get("secrets") is None:
            arguments["secrets"] = self._known_secrets(arguments.get("servers"), task_vars)
        try:
            result.update(self.call("engine_servers_info", arguments, task_vars))
        except AnsibleConnectionFailure as error:
            result.update(unreachable=True, msg=str(error))
        if report and result.get("unreachable"):
            result["fleet_report"] = unreachable_report(host)
        elif report and "servers" in result:
            result["fleet_report"] = status_report(host, result["servers"])
        if "fleet_report" in result:
            show(result["fleet_report"])
        return result

    def _known_secrets(self, servers, task_vars):
        """{variable: value} of the servers' secrets that can be read here: a locked vault is no reason to fail."""
        known = {}
        for entry in servers if isinstance(servers, list) else ():
            secrets = entry.get("secrets") if isinstance(entry, dict) else None
            for name in set(secrets.values()) if isinstance(secrets, dict) else ():
                if name in task_vars and name not in known:
                    try:
                        value = self._templar.template(task_vars[name])
                        known[name] = value if isinstance(value, list) else str(value)
                    except Exception:  # whatever the templating engine raises: a locked vault, an undefined variable
                        known[name] = None
        # masked in all that the module returns, a short one would go missing everywhere
        return {
            name: value
            for name, value in known.items()
            if value and all(len(str(one)) >= TOKEN_LENGTH for one in (value if isinstance(value, list) else [value]))
        }
