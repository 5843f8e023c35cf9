#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: shared_libraries
short_description: Tells which shared libraries a node lacks
version_added: 0.1.0
description:
  - Asks the dynamic loader for each of O(libraries), as a program does that loads them. A role installs what is
    missing.
options:
  libraries:
    description: Sonames, such as C(libnuma.so.1).
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    description: Nothing is ever changed; in check mode it is C(changed) where something is to be installed.
    support: full
  diff_mode:
    description: There is none.
    support: none
  idempotent:
    description: A second run changes nothing.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Look for the shared libraries that an engine loads
  inference.fleet.shared_libraries:
    libraries: [libnuma.so.1]
  register: found
"""

RETURN = r"""
message:
  description: What is missing.
  type: str
  returned: success
missing:
  description: Those of O(libraries) that the loader does not find, in their order.
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.operations.shared_libraries import ARGUMENTS, run


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=error.message, **error.details)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
