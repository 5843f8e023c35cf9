#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Plan the servers of all hosts, without touching one
version_added: 0.1.0
description:
  - Makes the list of servers of every host from its recipe (the variable C(fleet_recipe)), its overrides and its
    declared hardware. It runs on the controller; no node is contacted and no facts are read, so hosts that are down are
    planned too.
  - All mistakes of the fleet are reported in one error, each with the key, its value and what is allowed. That no host
    has C(fleet_recipe) is one of them, and that two hosts are one machine and would remove each other's servers.
  - Before anything else it checks all variables of the collection that the hosts have, C(fleet_*) and those of roles.
  - Mistakes of hosts that C(--limit) leaves out do not count; a warning names them.
  - A host without C(fleet_recipe) has no servers, whatever groups it is in. One that has C(fleet_hardware) all the same
    is named in a warning. A C(--limit) that leaves no host with C(fleet_recipe) is an error.
  - What is planned is kept until the end of the run, in a file of the run's temporary folder that only the user can
    read. P(inference.fleet.plan#lookup) takes it from there, as long as the host's variables are the same.
  - A plan without a mistake is kept for later runs too, in C(~/.cache/inference-fleet/plans), or below
    C(XDG_CACHE_HOME). A run takes it where nothing differs of what it is made of (variables, recipes, this collection),
    with its tables and warnings. The environment variable C(INFERENCE_FLEET_PLAN_CACHE) names another folder; where it
    is empty, nothing is kept.
  - Weights and KV cache of each server are counted against the memory of its devices. What cannot run is an error, what
    may not fit is a warning. The variable C(fleet_capacity), V(refuse) by default, makes a warning of such an error for
    the hosts where it is V(warn).
  - Servers that listen beyond loopback (the variable C(fleet_bind_address)) and ask for no API key (C(fleet_api_key))
    are a warning.
options:
  hosts:
    description: Hosts to plan. All hosts of the inventory by default, whatever C(--limit) says.
    type: list
    elements: str
  file:
    description: A path on the controller where the plan is also written, as JSON, a list of entries for each host.
    type: path
  only_check:
    description: Only check the variables of the hosts of the play; none of them needs C(fleet_recipe).
    type: bool
    default: false
  pattern:
    description: The host pattern of the plays that follow. It has to name a host.
    type: raw
    default: all
  report:
    description:
      - Whether the plan and its capacity are printed as tables. The callback P(inference.fleet.fleet#callback) does it
        at the end of the run; without it they come at once.
    type: bool
    default: true
  restart:
    description: Servers that are about to be restarted, as C(fleet_server) names them. They have to be planned.
    type: raw
  secrets:
    description:
      - Whether every secret of the servers must have a value for the hosts of the play; those without one are an error,
        as before a deployment. A plan alone needs none, and no vault password.
    type: bool
    default: false
  strict:
    description:
      - Whether a mistake of any host of the play is an error, also what cannot fit into memory. Otherwise the hosts
        that cannot be planned are those of the lookup P(inference.fleet.hosts#lookup) with its option C(refused), and
        hosts that have C(fleet_hardware) alone are enough to go on, as for looking at what runs there.
    type: bool
    default: true
attributes:
  check_mode:
    description: Plans all the same; O(file) is not written.
    support: full
  diff_mode:
    description: Shows the change of O(file).
    support: full
  idempotent:
    description: The same inventory gives the same bytes.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Plan the fleet
  inference.fleet.plan:
  run_once: true
  register: fleet_planned

- name: Keep the plan as a file
  inference.fleet.plan:
    file: plan.json
  run_once: true
"""

RETURN = r"""
plan:
  description:
    - For each host its servers, the resolved recipe, for each server whether it fits its devices' memory, and what the
      steps of C(site.yml) run there, from which the operation C(check) of M(inference.fleet.node)
        knows where a run has to begin.
    - The recipe is what P(inference.fleet.plan#lookup) gives as C(deployment), but without C(workers_elsewhere), which
      would name all other hosts of a cluster for each of its hosts.
    - Of a server's C(capacity), C(verdict) is V(ok), V(warning) or V(not checked); sizes are of one device, in GiB;
      C(tokens) and C(requests) are what its KV cache holds.
  returned: success
  type: dict
  sample:
    node1:
      servers: [{name: server-0, port: 8000}]
      deployment: {name: cpu-tiny}
      capacity:
        - server: server-0
          verdict: ok
          text: fits 65 K tokens; 8 x 2048 needs 17 K
          tokens: 65536
          requests: 32
      steps:
        - step: prepare
          operation: node_layout
          arguments: {root: /srv/fleet}
          later: []
fleet_report:
  description: The plan and its capacity as tables.
  returned: success
  type: list
  elements: dict
  sample: [{"title": "Plan", "columns": ["host", "server"], "rows": [["node1", "server-0"]]}]
"""
