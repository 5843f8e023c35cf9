# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans the whole fleet on the controller: no node is touched."""

from __future__ import annotations

import json

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.files import write_atomic
from ansible_collections.inference.fleet.plugins.plugin_utils.errors import action_fail
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.fleet import (
    check_secrets,
    host_warnings,
    inference_hosts,
    no_recipe,
    plan_each,
    plan_inventory,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.run_plan import RunPlan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.tables import (
    capacity_table,
    capacity_warnings,
    exposed_warnings,
    plan_table,
    tuning_tables,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import show


class ActionModule(ActionBase):
    """Action plugin of inference.fleet.plan."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("hosts", "file", "report", "secrets", "strict"))

    def run(self, tmp=None, task_vars=None):
        """Returns {changed, plan, fleet_report, warnings}; see modules/plan.py."""
        result = super().run(tmp, task_vars)
        _valid, arguments = self.validate_argument_spec(
            argument_spec={
                "hosts": {"type": "list", "elements": "str"},
                "file": {"type": "path"},
                "report": {"type": "bool", "default": True},
                "secrets": {"type": "bool", "default": False},
                "strict": {"type": "bool", "default": True},
            }
        )
        hosts = arguments["hosts"] or task_vars["groups"]["all"]
        unknown = sorted(set(hosts) - set(task_vars["groups"]["all"]))
        if unknown:
            raise AnsibleActionFail("plan: hosts names '%s', which the inventory does not have." % unknown[0])
        run_look.forget()
        run_plan, hostvars = RunPlan(), task_vars["hostvars"]
        play_hosts = [host for host in task_vars["ansible_play_hosts_all"] if host in hosts]
        try:
            if not inference_hosts(hosts, hostvars, deployed=not arguments["strict"]):
                raise no_recipe()
            if arguments["strict"]:
                planned = plan_inventory(hosts, task_vars, deploys=True, run_plan=run_plan)
            else:
                planned = {host: item for host, item in plan_each(hosts, task_vars, run_plan).items() if item}
            if arguments["secrets"]:
                check_secrets(planned, play_hosts, task_vars)
        except FleetError as error:
            raise action_fail(error) from error
        run_plan.save()
        warnings = host_warnings(hosts, hostvars, play_hosts)
        result.update(changed=False, plan=planned)
        if arguments["file"]:
            result.update(self._write(arguments["file"], planned))
        if arguments["report"]:
            result["fleet_report"] = [plan_table(planned), *tuning_tables(planned), capacity_table(planned)]
            show(result["fleet_report"])
        warnings += [*capacity_warnings(planned), *exposed_warnings(planned)]
        if warnings:
            result["warnings"] = [*result.get("warnings", []), *warnings]
        return result

    def _write(self, path, planned):
        """Write {host: [entry, …]} as JSON. Returns {changed, diff}."""
        wanted = json.dumps({host: item["servers"] for host, item in planned.items()}, indent=2, sort_keys=True) + "\n"
        try:
            with open(path, encoding="utf-8") as stream:
                before = stream.read()
        except FileNotFoundError:
            before = ""
        except OSError as error:
            raise AnsibleActionFail("fleet_plan_file %s cannot be read: %s." % (path, error.strerror)) from error
        if before != wanted and not self._task.check_mode:
            try:
                write_atomic(path, wanted)
            except OSError as error:
                raise AnsibleActionFail("fleet_plan_file %s cannot be written: %s." % (path, error.strerror)) from error
        return {"changed": before != wanted, "diff": {"before": before, "after": wanted, "before_header": path}}
