# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: plan
short_description: The planned servers of a host
version_added: 0.1.0
author:
  - inference.fleet contributors (!UNKNOWN)
description:
  - Returns the list of plan entries of a host, made from its recipe, overrides and declared hardware alone. The host
    may be down, or outside of C(--limit).
  - Where M(inference.fleet.plan) has planned the host in the same run, and none of the host's variables that it read
    has changed since, that plan is returned.
  - A host without C(fleet_recipe) has no servers.
options:
  _terms:
    description: Names of hosts; the current host by default.
    type: list
    elements: str
  field:
    description:
      - What of the plan is returned. V(servers) is the list of plan entries, V(deployment) the recipe with all
        overrides and paths resolved.
    type: str
    choices: [servers, deployment]
    default: servers
  deploys:
    description:
      - Whether the plan will be deployed. Then a server that exceeds its devices' memory is an error, unless
        C(fleet_capacity) is V(warn). Otherwise it is planned, so that it can be stopped.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: The ports of this host
  ansible.builtin.debug:
    msg: "{{ lookup('inference.fleet.plan') | map(attribute='port') }}"

- name: The ports of all nodes, for a gateway
  ansible.builtin.debug:
    msg: "{{ query('inference.fleet.plan', *query('inference.fleet.hosts')) | flatten | map(attribute='port') }}"
"""

RETURN = r"""
_raw:
  description: For each name its list of plan entries, or its deployment.
  type: list
  elements: raw
"""

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import show
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import Hosts


class LookupModule(LookupBase):
    """Lookup inference.fleet.plan."""

    def run(self, terms, variables=None, **kwargs):
        """Return the field of each host in ``terms``."""
        self.set_options(var_options=variables, direct=kwargs)
        hosts = list(terms) or [variables["inventory_hostname"]]
        unknown = [host for host in hosts if not isinstance(host, str) or host not in variables["hostvars"]]
        if unknown:
            raise AnsibleLookupError(
                "inference.fleet.plan: %s is no host of the inventory. Give names of its hosts, each as a term."
                % show(unknown[0])
            )
        try:
            planned = run_plan.plans_of(hosts, Hosts.of_task(variables), self.get_option("deploys"))
        except FleetError as error:
            raise AnsibleLookupError(error.message) from error
        field = self.get_option("field")
        return [planned[host][field] for host in hosts]
