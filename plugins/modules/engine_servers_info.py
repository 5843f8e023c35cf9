#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: engine_servers_info
short_description: What the inference servers of a node do
version_added: 0.1.0
description:
  - Returns every server of the plan and every other one that is deployed or runs on the node, what it does, how it
    differs from the plan, its memory, and the end of its log. It changes nothing.
  - An action plugin of the same name shows them as a table where the task registers nothing.
options:
  log_lines:
    description: How many of the last lines of each log are returned. The values of its secrets are masked.
    type: int
    default: 0
  probe:
    description:
      - Find out whether the servers are ready, as M(inference.fleet.engine_ready) does, with one short completion each.
    type: bool
    default: false
  timeout:
    description: Seconds for each request of O(probe).
    type: int
    default: 10
extends_documentation_fragment:
  - inference.fleet.node
attributes:
  check_mode:
    description: It changes nothing, and returns the same in check mode.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
  idempotent:
    description: Nothing is changed.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: What runs on the node
  inference.fleet.engine_servers_info:
    servers: "{{ query('inference.fleet.plan') | flatten }}"
    root: "{{ fleet_root }}"
  register: info

- name: The last lines of one log, without a plan
  inference.fleet.engine_servers_info:
    servers: []
    only: [server-0]
    log_lines: 50
    root: "{{ fleet_root }}"
"""

RETURN = r"""
fleet_report:
  description: The servers as a table.
  returned: success, where the task has no C(register)
  type: dict
  sample: {"title": "Status", "columns": ["host", "server"], "rows": [["node1", "server-0"]]}
servers:
  description: One element for each server, the plan's first.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the server.
      type: str
      sample: server-0
    state:
      description: As RV(inference.fleet.engine_servers#module:servers[].state).
      type: str
      sample: running
    ready:
      description: Whether it is ready; null without O(probe).
      type: bool
      sample: true
    since:
      description: When the state began, ISO 8601 in UTC.
      type: str
      sample: "2026-01-15T10:32:05Z"
    restarts:
      description: How often it has restarted by itself since it was last started on purpose.
      type: int
      sample: 0
    memory_mib:
      description: Memory of all its processes, shared pages counted in proportion where that may be read.
      type: int
      sample: 1990
    pid:
      description: The engine's process; of a server in a container that of the container engine's client.
      type: int
      sample: 4711
    port:
      description: Its port, that of the deployed entry.
      type: int
      sample: 8000
    hash:
      description: Hash of the entry that runs, of the deployed one where none does.
      type: str
      sample: 6f1c5bd1f1cd5b8b7e3f35a6b18de5c6b2c0a7e7c0e6d37a1fe1bde6bc7b1c37
    drift:
      description:
        - How it differs from the plan, C(changed) with the fields, C(not deployed), C(not in the plan), that a reboot
          would not start it since its unit is not enabled, or null.
          Without O(servers) nothing is known of a plan, and it is null.
      type: str
      sample: "changed: command, environment"
    reason:
      description: Why it waits, has failed, or is not ready.
      type: str
      sample: waiting for server-0
    log_tail:
      description: The last lines of its log.
      type: list
      elements: str
      sample: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node_arguments import NODE_ARGUMENTS, node_of
from ansible_collections.inference.fleet.plugins.module_utils.readiness import status


def main():
    arguments = {
        "log_lines": {"type": "int", "default": 0},
        "probe": {"type": "bool", "default": False},
        "timeout": {"type": "int", "default": 10},
    }
    arguments.update(NODE_ARGUMENTS)
    module = AnsibleModule(argument_spec=arguments, supports_check_mode=True)
    params = module.params
    try:
        servers = status(
            node_of(params), params["servers"], params["only"], params["log_lines"], params["probe"], params["timeout"]
        )
    except FleetError as error:
        module.fail_json(msg=error.message, **error.details)
    module.exit_json(changed=False, servers=servers)


if __name__ == "__main__":
    main()
