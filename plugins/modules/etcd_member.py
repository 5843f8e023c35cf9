#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: etcd_member
short_description: Adds a member to an etcd cluster and starts it, or removes another
version_added: 0.1.0
description:
  - Compares a member with its plan, changes the cluster's member list for a new or replaced member, starts the member
    and waits for a quorum. The role P(inference.fleet.etcd#role) installs it.
  - An empty member with the name of a dead one replaces it if all other members are healthy. Otherwise the module fails
    before it changes anything.
options:
  state:
    description:
      - V(looked) reports the differences of this node. An upgrade by several minor releases and a downgrade are errors.
      - V(joined) writes O(initial) for a member without data, and changes the member list if necessary. Run it for one
        member at a time.
      - V(started) writes O(files) if the member is not ready, and enables and starts the unit.
      - V(restarted) writes O(files), restarts a process that is older than its files and waits until it is ready. It
        fails, and writes nothing, if the cluster would lose its quorum. Run it for one member at a time.
      - V(ready) waits for a quorum.
      - V(removed) removes O(leaving) from the cluster's member list. It fails if the other members have no quorum. Run
        it for one member at a time.
    type: str
    choices: [looked, joined, started, restarted, ready, removed]
    required: true
  client_port:
    description: Port for clients.
    type: int
    default: 2379
  peer_port:
    description: Port for other members.
    type: int
    default: 2380
  data_dir:
    description: Directory of the data.
    type: path
    default: /var/lib/etcd
  unit:
    description: Its unit of systemd.
    type: str
    default: etcd.service
  initial:
    description: File with the variables of the first start.
    type: path
    default: /etc/etcd/initial.env
  empty:
    description: Names of members without data. A new cluster starts only if this includes all members.
    type: list
    elements: str
    default: []
  leaving:
    description: With O(state=removed), the C(name) of the other member, and its C(address) if it is known.
    type: dict
    default: {}
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
- name: Compare the member with its plan
  inference.fleet.etcd_member:
    state: looked
    name: etcd-1
    members:
      - {name: etcd-1, address: 10.0.0.1}
      - {name: etcd-2, address: 10.0.0.2}
      - {name: etcd-3, address: 10.0.0.3}
"""

RETURN = r"""
due:
  description: What differs, with the reason of each part.
  type: dict
  returned: with O(state=looked)
  sample: {"unit": "etcd.service does not run"}
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
data:
  description: Whether the member has data.
  type: bool
  returned: with O(state=looked)
action:
  description: How the member joins, V(keep), V(bootstrap), V(join), V(add) or V(replace).
  type: str
  returned: with O(state=joined)
"""
