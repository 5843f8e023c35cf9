#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_toolkit
short_description: Tells what a node lacks until its containers get NVIDIA GPUs
version_added: 0.1.0
description:
  - Looks at the NVIDIA Container Toolkit, at the description of the GPUs for CDI, and whether a container has listed
    the GPUs as they are now. The role P(inference.fleet.nvidia#role) brings what is missing.
  - The description is written again where it names files that are gone, as after a change of the driver, or lacks a
    GPU.
  - Servers that run in no container need none of it. A node without driver is an error, since the role does not
    install drivers.
options:
  servers:
    description: Plan entries of the host.
    type: list
    elements: dict
    required: true
  packages:
    description:
      - Packages of the toolkit by name. Each has C(version), the version to install where none fits, and may have
        C(least), the oldest version that stays. All have one version.
    type: dict
    required: true
  repositories:
    description: Where the packages come from. C(apt.url) is looked for in apt's other source files.
    type: dict
    default: {}
  installed:
    description: Names of packages that were installed just now. What is still missing then is an error.
    type: list
    elements: str
    default: []
  generated:
    description:
      - The descriptions of the GPUs were written just now. A GPU that is still not in them is left out until the next
        boot.
    type: bool
    default: false
  prove:
    description:
      - List the GPUs in a container of each engine that has not done so, and record it. An engine that takes no CDI
        names before its restart is left for the next call.
    type: bool
    default: false
  root:
    description: Directory that the record lies below. Empty for the system's own folders.
    type: str
    default: ""
attributes:
  check_mode:
    description: Nothing but the record is ever changed; in check mode it is C(changed) where something is due.
    support: full
  diff_mode:
    description: Shows what is due.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ask for the container toolkit
  inference.fleet.nvidia_toolkit:
    servers: "{{ fleet_servers }}"
    packages:
      nvidia-container-toolkit: {version: 1.20.0, least: 1.17.8}
      nvidia-container-toolkit-base: {version: 1.20.0, least: 1.17.8}
      libnvidia-container-tools: {version: 1.20.0, least: 1.17.8}
      libnvidia-container1: {version: 1.20.0, least: 1.17.8}
"""

RETURN = r"""
message:
  description: What is due.
  type: str
  returned: success
due:
  description:
    - Steps to take, in this order. C(settings), docker's settings that an installation left aside; C(packages), the
      versions to install; C(cdi), why the description of the GPUs is to be written; C(proof), why a container is to
      list them. Empty where nothing is.
  type: dict
  returned: success
  sample: {"cdi": "there is none"}
packages:
  description: The version of each package that is installed.
  type: dict
  returned: success
manager:
  description: Who installs packages, V(apt) or V(dnf). Null where none is due.
  type: str
  returned: success
conflicts:
  description:
    - Lines of apt's other source files that name the same repository, each with C(path), C(regexp) and C(replace).
  type: list
  elements: dict
  returned: success
cdi:
  description: Descriptions of the GPUs that are to be written.
  type: list
  elements: str
  returned: success
  sample: [/etc/cdi/nvidia.yaml]
keep:
  description: Path of docker's settings, which are kept aside while packages are installed. Null where there are none.
  type: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.platforms.nvidia.operations.nvidia_toolkit import (
    ARGUMENTS,
    run,
)


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=error.message, **error.details)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
