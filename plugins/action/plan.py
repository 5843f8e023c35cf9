# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans all hosts on the control node, without contacting them."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import lookup_loader
from ansible.utils.vars import load_extra_vars
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.actions import action_fail
from ansible_collections.inference.fleet.plugins.plugin_utils.base import words
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import (
    Hosts,
    address_given,
    check_inventory_folders,
    check_limit,
    inference_hosts,
    no_host,
    no_recipe,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.run_plan import PlanCache, RunPlan, save
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import show

# of templates without a host
EXTRA = ("etcd_group", "fleet_node", "fleet_play_hosts", "fleet_remove", "fleet_rollback", "nats_group")


class ActionModule(ActionBase):
    """Action plugin of inference.fleet.plan."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Return {changed, plan, fleet_report, warnings}; see modules/plan.py."""
        result = super().run(tmp, task_vars)
        _valid, arguments = self.validate_argument_spec(
            argument_spec={
                "hosts": {"type": "list", "elements": "str"},
                "only_check": {"type": "bool", "default": False},
                "pattern": {"type": "raw", "default": "all"},
                "report": {"type": "bool", "default": True},
                "restart": {"type": "raw"},
                "secrets": {"type": "bool", "default": False},
                "strict": {"type": "bool", "default": True},
            }
        )
        if not task_vars["groups"]["all"]:
            raise action_fail(no_host(task_vars.get("ansible_inventory_sources") or ()))
        hosts = arguments["hosts"] or task_vars["groups"]["all"]
        unknown = sorted(set(hosts) - set(task_vars["groups"]["all"]))
        if unknown:
            raise AnsibleActionFail("plan: hosts names '%s', which the inventory does not have." % unknown[0])
        run_look.forget()
        others = Hosts.of_task(task_vars)
        play_hosts = [host for host in task_vars["ansible_play_hosts_all"] if host in hosts]
        options = {**arguments, "restarts": "restart" in self._task.args}
        ours = []
        try:
            check_inventory_folders(others.inventory_sources)  # before any variable is templated
            self._check_pattern(arguments["pattern"], task_vars)
            if not options["only_check"]:
                ours = inference_hosts(hosts, others, deployed=not options["strict"] and not options["restarts"])
                if not ours:
                    raise no_recipe()
                check_limit(ours, play_hosts, task_vars)
            for name in EXTRA:
                named = [host for host in hosts if others(host).has(name)]
                if named and name not in load_extra_vars(self._loader):
                    raise FleetError("inventory.extra-variable-only", name, words.some(named))
            answer = answer_of(hosts, play_hosts, ours, others, options)
        except FleetError as error:
            raise action_fail(error) from error
        if options["only_check"]:
            return {**result, "changed": False}
        save(answer["plan"], others)
        plans = {host: found["plan"] for host, found in answer["plan"]["hosts"].items() if found["plan"]}
        result.update(changed=False, plan=plans)
        if arguments["report"]:
            result["fleet_report"] = answer["report"]
            show(result["fleet_report"])
        if answer["warnings"]:
            result["warnings"] = [*result.get("warnings", []), *answer["warnings"]]
        return result

    def _check_pattern(self, pattern, task_vars):
        """Raises FleetError if the plays' pattern matches no host."""
        names = lookup_loader.get("ansible.builtin.inventory_hostnames", loader=self._loader, templar=self._templar)
        if not isinstance(pattern, str) or not names.run([pattern], task_vars):
            raise FleetError("inventory.play-hosts-unknown", words.show(pattern))


def answer_of(hosts, play_hosts, ours, others, options):
    """Return {plan, warnings, report}, kept by an earlier run or made now; see fleet.make()."""
    asked = {key: options[key] for key in ("only_check", "report", "restart", "restarts", "secrets", "strict")}
    sources = [str(source) for source in others.inventory_sources]
    cache = PlanCache({**asked, "hosts": hosts, "limit": play_hosts, "sources": sources, "address": address_given()})
    answer = cache.recall(others)
    if answer is None:
        from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet

        answer, whole = fleet.make(hosts, play_hosts, ours, others, RunPlan(recalls=False), options)
        if whole:  # errors of planning are reported each time
            cache.keep(others, answer)
    return answer
