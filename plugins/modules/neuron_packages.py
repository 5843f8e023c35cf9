#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: neuron_packages
short_description: Driver, runtime, collectives and tools of AWS Neuron
version_added: 0.1.0
description:
  - Looks which packages of AWS Neuron a node has, and installs those that are missing or too old from the vendor's
    repositories, with apt on Ubuntu and Debian, with dnf on Amazon Linux 2023. Where all are there, as on a Deep
    Learning AMI, no repository is added and no network is used.
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
  apt:
    description: The repository for apt.
    type: dict
    default: {}
    suboptions:
      url:
        description: Its URL, or that of a mirror.
        type: str
        default: https://apt.repos.neuron.amazonaws.com
      suite:
        description: The distribution's code name there; that of the node by default.
        type: str
  dnf:
    description: The repository for dnf.
    type: dict
    default: {}
    suboptions:
      url:
        description: Its URL, or that of a mirror.
        type: str
        default: https://yum.repos.neuron.amazonaws.com
  key:
    description: The public key that signs the repository, armored. It is used for this repository alone.
    type: dict
    default: {}
    suboptions:
      url:
        description: Where to fetch it.
        type: str
        default: https://apt.repos.neuron.amazonaws.com/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB
      file:
        description: A file on the node that holds it; nothing is fetched then.
        type: path
  kernel_headers:
    description: Install the headers of the running kernel with the driver, which is built for it.
    type: bool
    default: true
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
  reboot_follows:
    description: The play reboots the node after this where RV(must_reboot) is true.
    type: bool
    default: false
  environment:
    description: Environment variables for what uses the network, such as proxies.
    type: dict
    default: {}
  ca_bundle:
    description: File with the certificates to trust. The system's own by default.
    type: path
attributes:
  check_mode:
    description: Says what would be installed.
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
- name: The Neuron SDK 2.32, unless the machine image has one
  inference.fleet.neuron_packages:
    packages:
      aws-neuronx-dkms: {version: 2.30.2.0, least: "2.25"}
      aws-neuronx-runtime-lib: {version: 2.34.10.0, least: "2.29"}
"""

RETURN = r"""
message:
  description: What was done, or would be.
  type: str
  returned: success
packages:
  description: The version of each package that is installed.
  type: dict
  returned: success
  sample: {"aws-neuronx-dkms": "2.30.2.0"}
installed:
  description: Names of what was installed, or would be.
  type: list
  elements: str
  returned: success
loaded_driver:
  description: Version of the driver that the kernel had loaded.
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
from ansible_collections.inference.fleet.plugins.module_utils.node.redact import SecretsHidden
from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron import packages as neuron_packages


class Module(SecretsHidden, AnsibleModule):
    """Its passwords and tokens are masked in all that is logged and returned."""


def main():
    module = Module(
        argument_spec={
            "packages": {"type": "dict", "required": True},
            "apt": {
                "type": "dict",
                "default": {},
                "options": {
                    "url": {"type": "str", "default": "https://apt.repos.neuron.amazonaws.com"},
                    "suite": {"type": "str"},
                },
            },
            "dnf": {
                "type": "dict",
                "default": {},
                "options": {"url": {"type": "str", "default": "https://yum.repos.neuron.amazonaws.com"}},
            },
            "key": {
                "type": "dict",
                "default": {},
                "no_log": False,
                "options": {
                    "url": {
                        "type": "str",
                        "default": "https://apt.repos.neuron.amazonaws.com/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB",
                    },
                    "file": {"type": "path"},
                },
            },
            "kernel_headers": {"type": "bool", "default": True},
            "hardware": {"type": "dict", "default": {}},
            "needs": {"type": "dict", "default": {}},
            "servers": {"type": "list", "elements": "dict", "default": []},
            "reboot_follows": {"type": "bool", "default": False},
            "environment": {"type": "dict", "default": {}},
            "ca_bundle": {"type": "path"},
        },
        supports_check_mode=True,
    )
    try:
        wanted = neuron_packages.Wanted(**module.params)
        result = neuron_packages.ensure(wanted, check_mode=module.check_mode)
    except FleetError as error:
        module.fail_json(msg=error.message, **error.details)
    if result["reboot"] and not result["must_reboot"]:
        module.warn(
            "The kernel has the Neuron driver %s loaded, %s is installed; reboot the node to use it."
            % (result["loaded_driver"], result["packages"].get(neuron_packages.DRIVER))
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
