#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: nats_server
short_description: Starts a NATS server
version_added: 0.1.0
description:
  - Compares a NATS server with its plan, starts it and waits until it is ready. The role P(inference.fleet.nats#role)
    installs it, validates its configuration and deploys its login.
options:
  state:
    description:
      - V(looked) reports the differences of this node. A downgrade is an error.
      - V(started) writes O(files) if the server is not ready, and enables and starts the unit.
      - V(restarted) writes O(files), restarts a process that is older than its files and waits until it is ready. It
        fails, and writes nothing, if the cluster would lose its quorum. Run it for one server at a time.
      - V(ready) waits until the server is healthy and connected with most of the others.
    type: str
    choices: [looked, started, restarted, ready]
    required: true
  login:
    description: Content of C(/etc/nats/login.conf).
    type: str
    default: ''
  jetstream:
    description: Whether JetStream must be enabled.
    type: bool
    default: false
  client_port:
    description: Port for clients.
    type: int
    default: 4222
  cluster_port:
    description: Port for other servers.
    type: int
    default: 6222
  monitor_port:
    description: Port for monitoring on loopback.
    type: int
    default: 8222
  unit:
    description: Its unit of systemd.
    type: str
    default: nats.service
extends_documentation_fragment:
  - inference.fleet.node.service
attributes:
  check_mode:
    description: Reports the differences without a change.
    support: full
  diff_mode:
    description: The files that differ, with the states V(looked), V(started) and V(restarted).
    support: full
  idempotent:
    description: A member without differences is not changed.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Wait for the server
  inference.fleet.nats_server:
    state: ready
    name: node-1
    members:
      - {name: node-1, address: 127.0.0.1}
"""

RETURN = r"""
due:
  description: What differs, with the reason of each part.
  type: dict
  returned: with O(state=looked)
  sample: {"unit": "nats.service does not run"}
message:
  description: The reasons as a line.
  type: str
  returned: with O(state=looked)
name:
  description: Name of the member.
  type: str
  returned: with O(state=looked)
authority:
  description: Whether the node has the key of the certificate authority.
  type: bool
  returned: with O(state=looked)
engine_missing:
  description: Whether the engine of O(container) is not installed.
  type: bool
  returned: with O(state=looked)
"""
