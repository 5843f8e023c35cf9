#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: host_key
short_description: Fetch and verify a node's host key
version_added: 0.1.0
description:
  - Fetches the host keys that a node shows, and returns those whose fingerprints are accepted, for
    M(ansible.builtin.known_hosts). Otherwise it shows the fingerprints and fails.
  - It runs on the control node with OpenSSH and Ansible's arguments for the node, so C(ProxyJump), C(ProxyCommand),
    C(HostKeyAlias) and ports are honoured. No login is attempted.
options:
  node:
    description:
      - Name of the node in the inventory.
    type: str
    required: true
  accept:
    description:
      - A fingerprint such as C(SHA256:…), or a list. One that fits any of the node's keys is enough.
      - By default the node's variable C(fleet_host_key). Without it, a key that known_hosts already contains is
        accepted.
    type: raw
  timeout:
    description:
      - Seconds for each connection.
    type: int
    default: 15
attributes:
  check_mode:
    description: Keys are fetched and compared; nothing is changed in any mode.
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
- name: Verify the new host key of a replaced node
  inference.fleet.host_key:
    node: trn3-1
    accept: SHA256:9XbXTPMxqNbKM1rRFYN3GEHyrvHkDTHbW9vnGMVjkVo
  register: host_key
  run_once: true
"""

RETURN = r"""
name:
  description: The node's name in known_hosts.
  returned: success
  type: str
  sample: "[trn3-1.example.com]:2222"
path:
  description: The user's known_hosts file, or null if ssh keeps none.
  returned: success
  type: str
  sample: /home/me/.ssh/known_hosts
hashed:
  description: Whether ssh writes hashed names.
  returned: success
  type: bool
keys:
  description: Lines of known_hosts of the accepted keys; empty if no fingerprint was given.
  returned: success
  type: list
  elements: str
outdated:
  description: Whether the file has other keys of the node.
  returned: success
  type: bool
"""
