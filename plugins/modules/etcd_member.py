#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: etcd_member
short_description: Brings a member of an etcd cluster into its cluster and starts it
version_added: 0.1.0
description:
  - Says what a member of etcd lacks, tells the cluster of a new member or of one that replaces a dead one, starts it
    and waits for a quorum. The role P(inference.fleet.etcd#role) installs it and writes its files.
  - A member that is dead and comes back empty takes its old place where the others are all healthy. A snapshot of the
    cluster is taken on its node before.
  - Where only a person can decide, it fails before anything is changed and says what was found.
options:
  state:
    description:
      - V(looked) says what is to be done, and refuses what cannot work. Only this node is asked.
      - V(joined) writes O(initial) for a member without data, and changes the cluster's list of members where that is
        needed. Run it for one member at a time.
      - V(started) starts the unit where it does not run.
      - V(restarted) restarts it where its files are younger than its process, and waits until it is ready again. It is
        refused where the others would have no quorum meanwhile. Run it for one at a time.
      - V(ready) waits until a write is answered and read back.
      - V(stopped) stops the unit and disables it. Its ports must be free then, and its container gone.
    type: str
    choices: [looked, joined, started, restarted, ready, stopped]
    required: true
  name:
    description: Name of this member, one of O(members).
    type: str
    required: true
  members:
    description: All members, each with C(name) and C(address).
    type: list
    elements: dict
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
    description: The member's data folder.
    type: path
    default: /var/lib/etcd
  backup_dir:
    description: Folder for snapshots, made where one is taken.
    type: path
    default: /var/backups/etcd
  unit:
    description: Its unit of systemd.
    type: str
    default: etcd.service
  files:
    description: What its files must contain, by path.
    type: dict
    default: {}
  programs:
    description: Programs that must be there.
    type: list
    elements: path
    default: []
  etcdctl:
    description: The program that takes snapshots, with its first arguments.
    type: list
    elements: str
    default: [etcdctl]
  initial:
    description: File for the variables that a member begins with.
    type: path
    default: /etc/etcd/initial.env
  token:
    description: The cluster's name in O(initial).
    type: str
    default: inference-fleet
  empty:
    description: Names of members that are known to have no data. Only where all are among them a new cluster begins.
    type: list
    elements: str
    default: []
  timeout_s:
    description: Seconds to wait for a quorum.
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
    description: A member that is as it is to be is not touched.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Is the member as it is to be?
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
  description: What is to be done and why, with O(state=looked).
  type: dict
  returned: with O(state=looked)
  sample: {"unit": "etcd.service does not run"}
message:
  description: The same as one line.
  type: str
  returned: with O(state=looked)
data:
  description: Whether the data folder holds a member.
  type: bool
  returned: with O(state=looked)
name:
  description: This member's name.
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
action:
  description: What the member does to be in the cluster, V(keep), V(bootstrap), V(join), V(add) or V(replace).
  type: str
  returned: with O(state=joined)
snapshot:
  description: Path of the snapshot that was taken on this node, null where none was.
  type: str
  returned: with O(state=joined)
"""
