#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: host_key
short_description: Replace a node's host key in known_hosts
version_added: 0.1.0
description:
  - Fetches the host keys that a node shows and, where one of them is accepted, makes it the node's key in the user's
    known_hosts. Otherwise it shows their fingerprints and fails, and no file is changed.
  - The files, names and options are those that OpenSSH has for the node, as C(ssh -G) prints them with Ansible's
    arguments. Hashed names, C([host]:port), C(HostKeyAlias) and several files are honoured. Lines of other hosts, of
    certificate authorities and of revoked keys stay as they are.
  - It runs on the controller. The connection may go through C(ProxyJump) or C(ProxyCommand).
requirements:
  - paramiko >= 3.4 on the controller
options:
  node:
    description:
      - Name of the node in the inventory.
    type: str
    required: true
  accept:
    description:
      - Fingerprints such as C(SHA256:…), or whole public keys. One that fits any of the node's keys is enough.
      - By default the node's variable C(fleet_host_key). Without it, a key that known_hosts has already is good.
    type: raw
  timeout:
    description:
      - Seconds for each connection.
    type: int
    default: 15
attributes:
  check_mode:
    description: Keys are fetched and compared, no file is changed.
    support: full
  diff_mode:
    description: The lines of known_hosts that go and come.
    support: full
  idempotent:
    description: A second call changes nothing.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Accept the new host key of a replaced node
  inference.fleet.host_key:
    node: trn3-1
    accept: SHA256:9XbXTPMxqNbKM1rRFYN3GEHyrvHkDTHbW9vnGMVjkVo
  run_once: true
"""

RETURN = r"""
keys:
  description: The host keys that the node shows, one of each kind.
  returned: success
  type: list
  elements: dict
  contains:
    type:
      description: Type of the key.
      type: str
      sample: ssh-ed25519
    fingerprint:
      description: Its fingerprint as OpenSSH prints it.
      type: str
      sample: SHA256:9XbXTPMxqNbKM1rRFYN3GEHyrvHkDTHbW9vnGMVjkVo
"""
