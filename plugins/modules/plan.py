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
  - A host without C(fleet_recipe) has no servers, whatever groups it is in. One that has C(fleet_hardware) all the same
    is named in a warning, and so is a C(--limit) that leaves no host with C(fleet_recipe).
  - What is planned is kept until the end of the run, in a file of the run's temporary folder that only the user can
    read. P(inference.fleet.plan#lookup) takes it from there, as long as the host's variables are the same.
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
  report:
    description:
      - Whether the plan and its capacity are printed as tables. The callback P(inference.fleet.fleet#callback) does it
        at the end of the run; without it they come at once.
    type: bool
    default: true
  secrets:
    description:
      - Whether every secret of the servers must have a value for the hosts of the play; those without one are an error,
        as before a deployment. A plan alone needs none, and no vault password.
    type: bool
    default: false
  strict:
    description:
      - Whether a mistake of any host is an error, also what cannot fit into memory. Otherwise a host that cannot be
        planned fails where its plan is used, and hosts that have C(fleet_hardware) alone are enough to go on, as for
        looking at what runs there.
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
    - For each host its servers, the resolved recipe, and for each server whether it fits its devices' memory.
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
fleet_report:
  description: The plan and its capacity as tables.
  returned: success
  type: list
  elements: dict
  sample: [{"title": "Plan", "columns": ["host", "server"], "rows": [["node1", "server-0"]]}]
"""
