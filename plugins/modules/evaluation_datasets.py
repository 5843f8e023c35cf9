#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: evaluation_datasets
short_description: Check that the datasets of evaluations are complete on a node
version_added: 0.1.0
description:
  - Reads the datasets that evaluations need, before any of them is begun. Files must be there, have the columns that
    the tools read, and the checksums that are given.
  - All that is missing or wrong is one error.
options:
  path:
    description: Folder on the node that holds the datasets.
    type: path
    required: true
  evals:
    description: Names of the evaluations, see M(inference.fleet.evaluation_run).
    type: list
    elements: str
    required: true
  checksums:
    description: The sha256 of files, by their path below O(path).
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Nothing is changed. A folder that is not there, as an earlier task would have made it, is no error.
  diff_mode:
    support: none
    description: Nothing is changed.
  idempotent:
    support: full
    description: Nothing is changed.
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Check the datasets
  inference.fleet.evaluation_datasets:
    path: /var/lib/inference-fleet/datasets
    evals: [gpqa, aime25]
"""

RETURN = r"""
datasets:
  description: What was found, by the evaluation's name.
  type: dict
  returned: success
  sample:
    gpqa:
      questions: 198
      sha256: 4d0c0e9a5a4bc1a3b1f4f5b50e2e0a4e4a4a2c6f5a1f1cf2a1a4f5f0c3f1d2e3
      files:
        gpqa_diamond.csv: 1b9f1f2a4a4bc1a3b1f4f5b50e2e0a4e4a4a2c6f5a1f1cf2a1a4f5f0c3f1d2e3
wrong:
  description: What is missing or wrong, one string each.
  type: list
  elements: str
  returned: when it failed over datasets
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.measure import datasets


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "evals": {"type": "list", "elements": "str", "required": True},
            "checksums": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    params = module.params
    if module.check_mode and not os.path.isdir(params["path"]):
        module.exit_json(changed=False, datasets={})
    try:
        module.exit_json(changed=False, datasets=datasets.look(params["path"], params["evals"], params["checksums"]))
    except FleetError as error:
        module.fail_json(msg=error.message, **error.details)


if __name__ == "__main__":
    main()
