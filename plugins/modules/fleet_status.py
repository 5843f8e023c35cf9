#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_status
short_description: Gather the status of all hosts
version_added: 0.1.0
description:
  - Puts what M(inference.fleet.engine_servers_info) registered for each host of the play into one document, also for
    hosts that could not be reached.
  - The document goes to a file on the controller, and with C(set_stats) to the run as C(fleet_status), where automation
    controllers such as AWX show it.
  - It runs on the controller and contacts no node, so it takes a C(run_once). Run once before the hosts are asked, it
    replaces the status of an earlier run even if every host turns out to be unreachable.
options:
  file:
    description:
      - File on the controller, in an existing directory, that is replaced as a whole. Nothing is written without it.
      - A relative one begins where C(ansible-playbook) was started.
    type: path
  registered:
    description: Name of the variable that the hosts registered. Without it every host counts as not asked.
    type: str
attributes:
  check_mode:
    description: The file is written in check mode too, since a status changes nothing.
    support: full
  diff_mode:
    description: A status is no change.
    support: none
  idempotent:
    description: A status is no change.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Look at the servers
  inference.fleet.engine_servers_info:
    servers: "{{ query('inference.fleet.plan') | flatten }}"
    probe: true
  register: status_servers

- name: Gather the status of all hosts
  inference.fleet.fleet_status:
    file: status.json
    registered: status_servers
  run_once: true
"""

RETURN = r"""
status:
  description: The document.
  returned: success
  type: dict
  contains:
    schema:
      description: Version of this form.
      type: int
      sample: 1
    at:
      description: When, in UTC.
      type: str
      sample: "2026-01-02T03:04:05Z"
    differs:
      description: Whether a host differs from the plan, or nothing is known of it.
      type: bool
      sample: false
    hosts:
      description:
        - For each host C(reached) (null where it failed or was not asked), C(differs) (null where nothing is known),
          C(servers) as RV(inference.fleet.engine_servers_info#module:servers) has them, and C(problem), why nothing
          is known.
      type: dict
      sample: {"node1": {"reached": true, "differs": false, "servers": [], "problem": null}}
"""
