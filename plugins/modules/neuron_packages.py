#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: neuron_packages
short_description: Tells which packages of AWS Neuron a node needs
version_added: 0.1.0
description:
  - Looks which packages of AWS Neuron a node has, and says which are to be installed; the role neuron installs them.
  - A driver and a runtime that do not work together are an error, before anything is installed.
  - A driver that replaces a loaded one is used after a reboot. Where the loaded one is too old for O(packages), for the
    recipe or for the runtime, that is an error, since servers would be started on it; with O(reboot_follows) it is left
    to the play.
options:
  packages:
    description:
      - Packages by name. Each has C(version), the version to install where none fits, with as many numbers as matter,
        and may have C(least), the oldest version that stays. Without C(least) only C(version) fits.
    type: dict
    required: true
  hardware:
    description: What the inventory declares of the devices (C(fleet_hardware)), checked where the driver is new here.
    type: dict
    default: {}
  needs:
    description: What the recipe needs of them, checked likewise. A driver older than C(driver) in it is replaced.
    type: dict
    default: {}
  servers:
    description: Plan entries, whose cores must be there, checked likewise.
    type: list
    elements: dict
    default: []
  installed:
    description: Names of packages that were installed just now. What is still missing then is an error.
    type: list
    elements: str
    default: []
  reboot_follows:
    description: The play reboots the node after this where RV(must_reboot) is true.
    type: bool
    default: false
attributes:
  check_mode:
    description: Nothing is ever changed; in check mode it is C(changed) where something is to be installed.
    support: full
  diff_mode:
    description: Shows the versions before and after.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Ask for the Neuron SDK 2.32, unless the machine image has one
  inference.fleet.neuron_packages:
    packages:
      aws-neuronx-dkms: {version: 2.30.2.0, least: "2.25"}
      aws-neuronx-runtime-lib: {version: 2.34.10.0, least: "2.29"}
"""

RETURN = r"""
message:
  description: What is to be installed.
  type: str
  returned: success
packages:
  description: The version of each package that is installed.
  type: dict
  returned: success
  sample: {"aws-neuronx-dkms": "2.30.2.0"}
due:
  description: The version to install of each package that is missing or too old.
  type: dict
  returned: success
manager:
  description: Who installs them, V(apt) or V(dnf). Null where nothing is to be installed.
  type: str
  returned: success
suite:
  description: The distribution's code name.
  type: str
  returned: success
  sample: noble
kernel:
  description: Release of the running kernel, whose headers the driver is built with.
  type: str
  returned: success
load:
  description: The driver is to be loaded once it is installed.
  type: bool
  returned: success
loaded_driver:
  description: Version of the driver that the kernel has loaded.
  type: str
  returned: success
reboot:
  description: Another driver is loaded than is installed; a reboot brings it.
  type: bool
  returned: success
must_reboot:
  description: And servers cannot run on the loaded one. Never true without O(reboot_follows), where it is an error.
  type: bool
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron.operations.neuron_packages import (
    ARGUMENTS,
    run,
)


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=error.message, **error.details)
    for text in result.pop("warnings", ()):
        module.warn(text)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
