#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Plan the servers of all hosts without contacting them
version_added: 0.1.0
description:
  - Plans the servers of every host from its recipe (C(fleet_recipe)), overrides and declared hardware. It runs on the
    control node and reads no facts, so hosts that are down are planned too.
  - All mistakes are reported in a single error, each with its key, value and valid values. An inventory without
    C(fleet_recipe), and two hosts that are the same machine, are mistakes.
  - It first checks all variables C(fleet_*) and of roles.
  - Mistakes of hosts outside of C(--limit) are a warning.
  - A host without C(fleet_recipe) has no servers, in any group; with C(fleet_hardware) it is a warning. A C(--limit)
    without a host with C(fleet_recipe) is an error.
  - The plan is stored until the end of the run in a private temporary file, from which P(inference.fleet.plan#lookup)
    reads it if the host's variables are the same.
  - A valid plan is cached for later runs with the same input (variables, recipes, collection), in
    C(~/.cache/inference-fleet/plans), or below C(XDG_CACHE_HOME). The environment variable
    C(INFERENCE_FLEET_PLAN_CACHE) sets another directory; an empty value disables the cache.
  - Weights and KV cache of each server are compared with the memory of its devices. A server that cannot run is an
    error, or a warning with C(fleet_capacity) V(warn); a server that may not fit is a warning.
  - Servers that listen beyond loopback (C(fleet_bind_address)) without an API key (C(fleet_api_key)) are a warning.
options:
  hosts:
    description: Hosts to plan. By default all hosts of the inventory, regardless of C(--limit).
    type: list
    elements: str
  only_check:
    description: Only check the variables of the play's hosts, which need no C(fleet_recipe).
    type: bool
    default: false
  pattern:
    description: The host pattern of the following plays. It must match a host.
    type: raw
    default: all
  report:
    description:
      - Whether to print the plan and its capacity as tables. The callback P(inference.fleet.fleet#callback) prints
        them at the end of the run; without it they are printed at once.
    type: bool
    default: true
  restart:
    description: Servers to restart, as in C(fleet_server). They must be planned.
    type: raw
  secrets:
    description:
      - Whether every secret of the play's servers must have a value, as for a deployment. Otherwise no vault password
        is required.
    type: bool
    default: false
  strict:
    description:
      - Whether a mistake of any host of the play is an error, including insufficient memory. Otherwise the lookup
        P(inference.fleet.hosts#lookup) returns these hosts with its option C(refused), and hosts with only
        C(fleet_hardware) are sufficient, as for C(status.yml).
    type: bool
    default: true
attributes:
  check_mode:
    description: Plans, as always.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
  idempotent:
    description: The same inventory gives the same plan.
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
  ansible.builtin.copy:
    content: "{{ fleet_planned.plan | to_nice_json }}"
    dest: plan.json
    mode: "0644"
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
plan:
  description:
    - For each host the servers, the resolved recipe, the capacity of each server, and the operations of the steps of
      C(site.yml), from which the operation C(check) of M(inference.fleet.node) determines the first step of a run.
    - The recipe is C(deployment) of P(inference.fleet.plan#lookup) without C(workers_elsewhere).
    - Of a server's C(capacity), C(verdict) is V(ok), V(warning) or V(not checked); sizes are of one device, in GiB;
      C(tokens) and C(requests) are the capacity of its KV cache.
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
