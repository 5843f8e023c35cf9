#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: unused_files
short_description: List what this collection left on a node and nothing uses any more, and delete it
version_added: 0.1.0
description:
  - Finds folders of servers, compiled artifacts, environments, checkpoints, partial downloads, ended jobs and encodings
    that no planned and no deployed server, no service definition and no running process names.
  - Only what this collection made is looked at, which it knows by place and record. Links are not followed.
  - It deletes nothing unless O(remove) says so, and then exactly what it lists.
options:
  servers:
    description: The plan entries of this host. What they name is used, whether it is deployed or not.
    type: list
    elements: dict
    required: true
  deployment:
    description:
      - The recipe as resolved for this host, C(lookup('inference.fleet.plan', field='deployment')). What it names is
        used as well.
    type: dict
    default: {}
  root:
    description: An absolute path that all files of the fleet lie below, empty for the system's own.
    type: path
    default: ""
  remove:
    description: Whether to delete what is listed.
    type: bool
    default: false
  remove_shared:
    description:
      - With O(remove=true), also delete artifacts and checkpoints on other file systems, or outside the root's own
        C(var/lib/inference-fleet). Other nodes may use those; this node cannot know.
    type: bool
    default: false
attributes:
  check_mode:
    description: Lists what would be deleted.
    support: full
  diff_mode:
    description: The paths that go.
    support: full
  idempotent:
    description: A second run finds nothing.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: What does nothing use?
  inference.fleet.unused_files:
    servers: "{{ lookup('inference.fleet.plan') }}"
    deployment: "{{ lookup('inference.fleet.plan', field='deployment') }}"

- name: Delete it
  inference.fleet.unused_files:
    servers: "{{ lookup('inference.fleet.plan') }}"
    deployment: "{{ lookup('inference.fleet.plan', field='deployment') }}"
    remove: true
"""

RETURN = r"""
unused:
  description: What nothing uses, by path.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: Where it is.
      type: str
    kind:
      description: What it is.
      type: str
      sample: compiled artifact
    why:
      description: Why it is not used.
      type: str
    size:
      description: Bytes on the disk.
      type: int
    shared:
      description: Whether other nodes may use it, see O(remove_shared).
      type: bool
    mounted:
      description: Whether something is mounted in it. Then it is never deleted.
      type: bool
removed:
  description: Paths that were deleted, or would be.
  returned: success
  type: list
  elements: str
kept:
  description: Paths that are listed and were not deleted.
  returned: success
  type: list
  elements: str
fleet_report:
  description: The list as a table, added by the action plugin.
  returned: success
  type: dict
"""
