#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: nats_server
short_description: Configures and starts a server of NATS
version_added: 0.1.0
description:
  - Says what a server of NATS lacks, puts its configuration in place once the server itself has read it, starts it and
    waits until it is ready. The role P(inference.fleet.nats#role) installs it.
options:
  state:
    description:
      - V(looked) says what is to be done, and refuses what cannot work. Only this node is asked.
      - V(configured) writes O(files) and the login.
      - V(started) starts the unit where it does not run.
      - V(restarted) restarts it where its files are younger than its process, and waits until it is ready again. It is
        refused where the others would have no quorum meanwhile. Run it for one at a time.
      - V(ready) waits until JetStream is up, where it is asked for, and what is published is received.
      - V(stopped) stops the unit and disables it. Its ports must be free then, and its container gone.
    type: str
    choices: [looked, configured, started, restarted, ready, stopped]
    required: true
  name:
    description: Name of this server, one of O(members).
    type: str
    required: true
  members:
    description: All servers of the cluster, each with C(name) and C(address).
    type: list
    elements: dict
    required: true
  user:
    description: Name that clients log in with, where there is a password.
    type: str
    default: fleet
  password:
    description: Password that clients log in with. Without one there is no login.
    type: str
    default: ''
  jetstream:
    description: Whether JetStream must be up.
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
    description: Port for monitoring, on loopback.
    type: int
    default: 8222
  unit:
    description: Its unit of systemd.
    type: str
    default: nats.service
  account:
    description: The account that it runs as.
    type: str
    default: nats
  conf:
    description: Its configuration, one of O(files).
    type: path
    default: /etc/nats/nats.conf
  files:
    description: What its files must contain, by path. Nothing secret, since they are shown.
    type: dict
    default: {}
  programs:
    description: Programs that must be there.
    type: list
    elements: path
    default: []
  nats_server:
    description: The server's program, which reads a configuration before it is put in place, with its first arguments.
    type: list
    elements: str
    default: [nats-server]
  arguments:
    description: More arguments of the server. None may contradict the configuration.
    type: list
    elements: str
    default: []
  timeout_s:
    description: Seconds to wait until it is ready.
    type: int
    default: 120
extends_documentation_fragment:
  - inference.fleet.service
attributes:
  check_mode:
    description: Says what would be done.
    support: full
  diff_mode:
    description: With O(state=looked) the files that differ.
    support: full
  idempotent:
    description: A server that is as it is to be is not touched.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Wait until it takes messages
  inference.fleet.nats_server:
    state: ready
    name: node-1
    members:
      - {name: node-1, address: 127.0.0.1}
"""

RETURN = r"""
due:
  description: What is to be done and why.
  type: dict
  returned: with O(state=looked)
  sample: {"unit": "nats.service does not run"}
message:
  description: The same as one line.
  type: str
  returned: with O(state=looked)
name:
  description: This server's name.
  type: str
  returned: with O(state=looked)
authority:
  description: Whether its node has the key of the authority that signs certificates.
  type: bool
  returned: with O(state=looked)
engine_missing:
  description: Whether the engine of O(container) is not installed.
  type: bool
  returned: with O(state=looked)
"""
