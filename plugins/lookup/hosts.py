# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: hosts
short_description: Names of the inference hosts
version_added: 0.1.0
author:
  - inference.fleet contributors (!UNKNOWN)
description:
  - Returns the hosts of the inventory with C(fleet_recipe), in any group, for the C(hosts) of a play, to which
    C(--limit) applies. No host is an error.
  - In the first play of a run, and for C(--list-hosts), variables of hosts are not available, and all hosts of the
    pattern are returned. Start with a play that calls M(inference.fleet.plan). For an inventory without hosts
    V(localhost) is returned, so that this module can report the error; with C(--limit) it is an error.
options:
  _terms:
    description: Host patterns.
    type: list
    elements: str
    default: [all]
  deployed:
    description:
      - Also the hosts that have C(fleet_hardware) alone. Servers of an earlier plan may run there, to be looked at and
        stopped.
    type: bool
    default: false
  every:
    description: Hosts of the pattern, whether or not they have C(fleet_recipe).
    type: bool
    default: false
  cluster:
    description: Only hosts with this C(fleet_cluster). A number equals its string, as in a plan.
    type: raw
  refused:
    description: Those hosts alone that M(inference.fleet.plan) could not plan in this run.
    type: bool
    default: false
  step:
    description:
      - Leave out the hosts on which the operation C(check) of M(inference.fleet.node) found, in this run, that neither
        this step nor an earlier one has to run. Hosts that were not checked stay.
      - With V(serve) the hosts on which no server runs come first, and hosts that were not checked come last.
      - With V(verify), leave out the hosts whose verdict M(inference.fleet.report) has written in this run.
    type: str
    choices: [preflight, prepare, weights, serve, verify]
  serial:
    description:
      - Return the C(serial) of the play with these hosts instead of their names. Hosts without running servers are
        first, in a batch, then a single host, then batches of this size, as C(serial) of a play. Without hosts that
        change servers one by one (C(fleet_changes)), and without O(step), this value is returned.
      - C(fleet_serial) of the hosts replaces this value, unless it is an extra variable or a variable of the play. If
        hosts differ, the value with the smallest batches counts.
    type: raw
"""

EXAMPLES = r"""
- name: Plan
  hosts: all
  gather_facts: false
  tasks:
    - name: Plan the fleet
      inference.fleet.plan:
      run_once: true

- name: Configure every inference host
  hosts: "{{ query('inference.fleet.hosts', 'all:!spare') }}"
  tasks:
    - name: Show the ports
      ansible.builtin.debug:
        msg: "{{ lookup('inference.fleet.plan') | map(attribute='port') }}"
"""

RETURN = r"""
_raw:
  description: Names of hosts, in the inventory's order.
  type: list
  elements: str
"""

from ansible.errors import AnsibleLookupError
from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase
from ansible.utils.helpers import pct_to_int
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import show
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look, run_plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import (
    Hosts,
    cluster_of,
    inference_hosts,
    no_host,
    no_recipe,
)


class LookupModule(LookupBase):
    """Lookup inference.fleet.hosts."""

    def run(self, terms, variables=None, **kwargs):
        """Return the hosts of the patterns ``terms``."""
        self.set_options(var_options=variables, direct=kwargs)
        patterns, hostvars = list(terms) or ["all"], variables.get("hostvars")
        if not variables["groups"]["all"]:
            if variables.get("ansible_limit"):  # the limit excludes localhost
                raise AnsibleLookupError(no_host(variables.get("ansible_inventory_sources") or ()).message)
            return ["localhost"]
        if hostvars is None or self.get_option("every"):
            return patterns
        if self.get_option("refused"):
            return list(run_plan.refused())
        names = lookup_loader.get("ansible.builtin.inventory_hostnames", loader=self._loader, templar=self._templar)
        matched = names.run(patterns, variables)
        if not matched:
            raise AnsibleLookupError(
                "the pattern %s (fleet_play_hosts) names no host of the inventory. Name one of its hosts or groups."
                % show(",".join(patterns))
            )
        others = Hosts.of_task(variables)
        found = inference_hosts(matched, others, self.get_option("deployed"))
        if not found:
            raise AnsibleLookupError(no_recipe().message)
        cluster = self.get_option("cluster")
        if cluster is not None:
            return [host for host in found if cluster_of(others(host)) == str(cluster)]
        run_plan.load()  # once, for the processes of all tasks of the play
        step, serial = self.get_option("step"), self.get_option("serial")
        if not step and serial is None:
            return found
        due, limit = run_look.due(found, step) if step else found, variables.get("ansible_limit") or "@"
        if "@" not in limit:  # a play only for hosts outside of --limit has no hosts
            limited = names.run([limit], variables)
            due = [host for host in due if host in limited]
        if not step:
            return run_look.listed(_serial(due, serial, others, variables))
        due = run_look.in_turn(due) if step == "serve" else due
        if serial is None:
            return due or run_look.NOBODY
        together = [host for host in due if others(host).peek("fleet_changes") == "together"]
        return run_look.batches(due, _serial(due, serial, others, variables), together)


def _serial(hosts, serial, others, variables):
    """Return the smallest fleet_serial of the hosts, else `serial`. A play has no host when its serial is templated, so
    that `serial` can only be an extra variable, a variable of the play or a default."""

    def largest(one):
        return max(pct_to_int(batch, len(hosts)) for batch in run_look.listed(one))

    given = [] if "fleet_serial" in variables else [others(host).peek("fleet_serial") for host in hosts]
    return min([one for one in given if one is not None], key=largest, default=serial)
