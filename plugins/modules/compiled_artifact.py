#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: compiled_artifact
short_description: Bring compiled artifacts from one node to others
version_added: 0.1.0
description:
  - Servers on AWS Neuron compile their model for 20 to 40 minutes and load the result from then on. This exports such
    an artifact of one node as an archive, and imports it on others, so that a fleet compiles once.
  - An archive is named after its key, which the plan makes of all that a compilation depends on. It has a manifest with
    the sha256 of every file; each is checked while it is unpacked, beside the artifact's place, which then is replaced
    as one. The archive of another configuration is refused, and so is one that was compiled with other packages or from
    other weights than the node has; import it when both are there.
  - An action plugin does the transfer. A node whose artifacts are complete costs one module call; without O(source)
    there is none.
options:
  servers:
    description: Plan entries of this host. Those with a compiled artifact count, each directory once.
    type: list
    elements: dict
    required: true
  state:
    description: Whether archives are made of the node's artifacts, or artifacts of archives.
    type: str
    choices: [exported, imported]
    default: imported
  source:
    description: The folder with the archives, C(KEY.tar). Without it nothing is imported and the servers compile.
    type: path
  remote_source:
    description: O(source) is a folder on the node, such as a mounted file system, and not on the controller.
    type: bool
    default: false
  destination:
    description: The folder that takes the archives. Required with O(state=exported).
    type: path
  remote_destination:
    description: O(destination) is a folder on the node and not on the controller.
    type: bool
    default: false
  force:
    description: Export again what is in O(destination) already.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says what would be imported or exported.
    support: full
  diff_mode:
    description: The message says what was done.
    support: none
  idempotent:
    description: What is there stays.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Keep what this node compiled
  inference.fleet.compiled_artifact:
    state: exported
    servers: "{{ fleet_servers }}"
    destination: artifacts

- name: Load it on the others
  inference.fleet.compiled_artifact:
    servers: "{{ fleet_servers }}"
    source: artifacts
"""

RETURN = r"""
message:
  description: What was done, or would be.
  type: str
  returned: success
artifacts:
  description: The node's artifacts, C(path), C(key), C(state) and a C(message).
  type: list
  elements: dict
  returned: when imported
archives:
  description: The archives, C(key), C(path), C(size) in bytes, C(files) and whether it was C(written) now.
  type: list
  elements: dict
  returned: when exported
needed:
  description: Keys of the artifacts that the node lacked.
  type: list
  elements: str
  returned: when imported
"""
