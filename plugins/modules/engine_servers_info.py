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
  - It compares the deployed entry, the unit or program section byte for byte, the configuration file, the file of
    secrets with its mode and owner, and the running program and image with the plan. Of variables only the names are
    returned.
  - An action plugin of the same name shows them as a table. A host that cannot be reached has a line there too.
options:
  log_lines:
    description: How many of the last lines of each log are returned. The values of its secrets are masked.
    type: int
    default: 0
  probe:
    description:
      - Find out whether the servers are ready, as the operation C(engine_ready) does, with one short completion each.
    type: bool
    default: false
  timeout:
    description: Seconds for each request of O(probe).
    type: int
    default: 10
  secrets:
    description:
      - The values of the secrets, by the name of the variable that an entry's C(secrets) names, so that they can be
        compared with those on the node. They are never returned.
      - By default the action plugin gives those that the controller can read. The others are compared by name only, so
        that no vault password is needed.
    type: dict
  report:
    description: Whether the action plugin shows a table. By default it does where the task registers nothing.
    type: bool
extends_documentation_fragment:
  - inference.fleet.node
  - inference.fleet.node.servers
  - inference.fleet.node.read_only
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
differs:
  description: Whether one of the servers differs from the plan.
  returned: success
  type: bool
  sample: false
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
        - RV(servers[].differences) as one string, null where there is none. Without O(servers) nothing is known of a
          plan, and it is null.
      type: str
      sample: "changed: command, environment"
    differences:
      description: How it differs from the plan, one element for each difference, the weightiest first.
      type: list
      elements: dict
      contains:
        kind:
          description:
            - V(not planned), V(not deployed), V(failed), V(stopped), V(unmanaged), V(not ready), V(port) (somebody else
              holds it), V(service manager) and V(container engine) (which do not answer), V(changed) (the entry),
              V(ailing), V(weights), V(config), V(secrets), V(program), V(definition), V(reload),
              V(interpreter), V(not enabled), V(file mode), V(file owner), V(directory), V(account), V(shared file),
              V(container) and V(process).
          type: str
          sample: file mode
        text:
          description: The difference, for a person.
          type: str
          sample: /etc/inference-fleet/secrets/server-0.json has mode 0644 instead of 0600
    notes:
      description: Facts that are no difference, such as drop-ins that others added.
      type: list
      elements: str
      sample: []
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
