#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: service_certificate
short_description: Certificates between members of a service and for its clients
version_added: 0.1.0
description:
  - Keeps C(ca.crt), C(ca.key), C(tls.crt) and C(tls.key) in a folder. The certificate is for server and client use and
    is made on the node with openssl; its key does not leave it.
  - It is made anew where it ends soon, is for other names or is of another authority.
options:
  state:
    description:
      - V(present) makes it where it does not fit.
      - V(looked) says whether a client's certificate, which another node signs, is to be brought anew. It changes
        nothing.
    type: str
    choices: [present, looked]
    default: present
  path:
    description: The folder, which must exist for O(state=present).
    type: path
    required: true
  names:
    description: Names and IP addresses that the certificate is for; the first is its common name.
    type: list
    elements: str
    required: true
  authority:
    description: Name of a new authority, which is made where the folder has none and O(authority_key) is not given.
    type: str
    default: inference-fleet
  authority_certificate:
    description: Certificate of the authority that other members have, PEM.
    type: str
  authority_key:
    description: Its key, PEM.
    type: str
  days:
    description: How long a new certificate is valid.
    type: int
    default: 365
  renew_days:
    description: One that ends in fewer days is replaced.
    type: int
    default: 30
  owner:
    description: Account that the key belongs to. By default the one that runs the module.
    type: str
  endpoints:
    description: Addresses of the service, C(ADDRESS:PORT). With O(state=looked) the first that answers must show a
      certificate of the same authority.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Says whether one would be made.
    support: full
  diff_mode:
    description: The reasons for a new one are shown as what is there before.
    support: full
  idempotent:
    description: A certificate that fits stays.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: A certificate of this member
  inference.fleet.service_certificate:
    path: /etc/etcd/tls
    names: [etcd-1, 10.0.0.1, 127.0.0.1]
"""

RETURN = r"""
reasons:
  description: Why a new certificate was made, or is to be.
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.operations.service_certificate import ARGUMENTS, run


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=error.message, **error.details)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
