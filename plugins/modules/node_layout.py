#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_layout
short_description: The account and the folders that this collection uses on a node
version_added: 0.1.0
description:
  - Makes the system account that servers run as, and the folders that several parts of the collection share.
  - An account and folders that are there keep what they have.
  - A record below the folders says which accounts were made here.
options:
  root:
    description:
      - Directory that all folders are below. Empty for the system's own C(/etc/inference-fleet),
        C(/var/lib/inference-fleet) and C(/var/log/inference-fleet).
    type: str
    default: ''
  user:
    description:
      - Name of the system account, which has a group of the same name and cannot log in.
      - By default none is made, and servers run as whoever connects.
    type: str
  state:
    description:
      - V(absent) removes the accounts that were made here, and the collection's folders with all that is in them. The
        servers must have been stopped. Accounts that were there before stay, and so does what is mounted in those
        folders, which other nodes may have too.
    type: str
    default: present
    choices: [present, absent]
  keep:
    description: Paths that O(state=absent) must not touch. They stay with the folders above them.
    type: list
    elements: path
    default: []
attributes:
  check_mode:
    support: full
    description: Says what would be made.
  diff_mode:
    support: full
    description: Lists what is there before and after.
  idempotent:
    support: full
    description: A second run changes nothing.
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: The system's own folders, and an account
  inference.fleet.node_layout:
    user: inference-fleet

- name: All below a folder of one's own
  inference.fleet.node_layout:
    root: "{{ ansible_facts.env.HOME }}/fleet"

- name: Nothing of it is left
  inference.fleet.node_layout:
    state: absent
"""

RETURN = r"""
message:
  description: What was made or changed, or would be.
  type: str
  returned: with O(state=present)
user:
  description: As in O(user); null with O(state=absent).
  type: str
  returned: success
directories:
  description: The folders; none with O(state=absent).
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.operations.node_layout import ARGUMENTS, run


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=error.message, **error.details)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
