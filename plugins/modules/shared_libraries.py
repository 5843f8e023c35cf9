#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: shared_libraries
short_description: Makes shared libraries available to programs of a node
version_added: 0.1.0
description:
  - Looks whether the dynamic loader finds shared libraries, and installs the distribution's packages for those that it
    does not find.
  - Where all are found nothing is asked of the package manager, and root is not needed.
options:
  libraries:
    description:
      - The libraries by soname. Each has the name of its package by family of distributions, C(debian) (Debian,
        Ubuntu), C(redhat) (RHEL, Rocky, Fedora, Amazon Linux, openEuler) or C(suse).
    type: dict
    required: true
  search_paths:
    description:
      - Folders to look in besides those of the dynamic loader.
    type: list
    elements: path
    default: []
attributes:
  check_mode:
    description: Can run in check mode and return what it would change.
    support: full
  diff_mode:
    description: Returns details on what has changed, or would change, in diff mode.
    support: full
  idempotent:
    description: Running it twice changes nothing the second time.
    support: full
notes:
  - Packages are installed with C(apt-get), C(dnf), C(yum) or C(zypper), whichever the distribution has.
seealso:
  - module: inference.fleet.node_preflight
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Make libnuma available
  inference.fleet.shared_libraries:
    libraries:
      libnuma.so.1:
        debian: libnuma1
        redhat: numactl-libs
        suse: libnuma1
"""

RETURN = r"""
missing:
  description: Libraries that were not found before.
  returned: success, and on failure where known
  type: list
  elements: str
  sample: [libnuma.so.1]
installed:
  description: Packages that were installed, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [libnuma1]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.shared_libraries import ensure_libraries


def main():
    module = AnsibleModule(
        argument_spec={
            "libraries": {"type": "dict", "required": True},
            "search_paths": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        result = ensure_libraries(
            module.params["libraries"], check_mode=module.check_mode, search_paths=module.params["search_paths"]
        )
    except FleetError as error:
        module.fail_json(msg=error.message, **error.details)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
