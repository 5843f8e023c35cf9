#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: engine_ready
short_description: Find out whether the servers of a node are ready
version_added: 0.1.0
description:
  - Looks once at every server, all at the same time, and fails unless all are ready; C(until) makes it wait.
  - A server is ready when it runs the planned entry, its health path answers 200, its model is listed, and one short
    chat completion comes back through its own port. Prefill and decode workers, which clients do not talk to, are ready
    with the health path alone.
  - A server that listens on all addresses where the plan binds it to one is not ready; it would serve whoever reaches
    the node. That is seen in C(/proc/net/tcp) and C(/proc/net/tcp6), for the port that clients talk to.
  - A server whose port is held by somebody else is not ready. Where another run deployed another entry meanwhile, it
    fails for good and names that run.
  - Of a server that is ready it records in C(run/inference-fleet/ready) which process was seen ready. It is what a
    later run goes by when the server hangs, and counts as no change. Check mode leaves it.
  - RV(final) says that more waiting is no use.
options:
  timeout:
    description: Seconds for each request.
    type: int
    default: 30
extends_documentation_fragment:
  - inference.fleet.node
  - inference.fleet.node.servers
  - inference.fleet.node.read_only
attributes:
  check_mode:
    description: Where what runs is not what is planned, it succeeds with RV(skipped_reason); it looks otherwise.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: All servers are ready
  inference.fleet.engine_ready:
    servers: "{{ query('inference.fleet.plan') | flatten }}"
    root: "{{ fleet_root }}"
  register: ready
  until: ready is success or ready.final | default(false)
  retries: 1000
  delay: 2
"""

RETURN = r"""
msg:
  description: How many are ready, and of each other one what it lacks since when, with the last lines of its log.
  returned: always
  type: str
  sample: >-
    1 of 2 servers ready after 34 s. server-1: starting since 10:32:05Z (34 s), health: no answer: connection refused.
final:
  description:
    - More waiting is no use, since a server is stopped, missing, has failed, runs another entry, or is over its budget.
  returned: failure
  type: bool
  sample: false
skipped_reason:
  description: Why nothing was verified.
  returned: in check mode, where what runs is not what is planned
  type: str
  sample: not verified (check)
servers:
  description:
    - As RV(inference.fleet.engine_servers#module:servers). C(ready) is true or false; C(reason) and the last 15 lines
      of the log stand with those that are not ready.
  returned: always
  type: list
  elements: dict
  sample: [{"name": "server-0", "state": "running", "ready": true}]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.servers.node_arguments import SERVERS_ARGUMENTS, node_of
from ansible_collections.inference.fleet.plugins.module_utils.servers.readiness import check_ready


def main():
    arguments = {"timeout": {"type": "int", "default": 30}}
    module = AnsibleModule(argument_spec={**SERVERS_ARGUMENTS, **arguments}, supports_check_mode=True)
    params = module.params
    try:
        result = check_ready(
            node_of(params), params["servers"], params["only"], timeout=params["timeout"], check=module.check_mode
        )
    except FleetError as error:
        module.fail_json(msg=error.message, **error.details)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
