#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_weights
short_description: A gpt-oss checkpoint on a node, complete and unchanged
version_added: 0.1.0
description:
  - Brings a gpt-oss checkpoint to the directory that servers load, or looks at the one that is there.
  - A checkpoint is accepted when C(config.json) says C(gpt_oss) in the wanted format, C(tokenizer.json) is there, and
    every shard that the index names is there and as long as its own header implies.
  - A manifest C(.inference-fleet-manifest.json) beside the weights records size, sha256 and time of each file, so that
    a file that changed or rotted is found later, and mended where that is possible.
  - New weights grow in a folder beside the destination and take its place when they are complete. A destination that
    holds another model, or files of unknown origin, is left as it is, and the task fails.
options:
  source:
    description:
      - Where the weights come from.
      - V(standin) is a tiny checkpoint that this collection carries. It answers in valid harmony, so that everything
        around a model can be tried without an accelerator; its answers mean nothing.
      - V(path) is a directory of the node, served where it is unless O(copy) is true.
    type: str
    choices: [standin, path]
    required: true
  repo:
    description:
      - Name of the model, such as V(openai/gpt-oss-120b). It is recorded, and another model's directory is refused.
    type: str
    required: true
  revision:
    description:
      - The revision to record.
    type: str
  destination:
    description:
      - Absolute path of the directory that servers load.
    type: path
    required: true
  path:
    description:
      - For O(source=path), the directory that holds the checkpoint. Without O(copy) it is the O(destination).
    type: path
  copy:
    description:
      - For O(source=path), whether to copy the checkpoint to O(destination).
    type: bool
    default: false
  format:
    description:
      - The format that the checkpoint must be in. V(bf16) stands for weights without quantization. By default any.
    type: str
    choices: [mxfp4, bf16]
  verify:
    description:
      - V(quick) compares sizes and times with the manifest, and reads only files whose time changed.
      - V(full) reads every file and compares its sha256.
    type: str
    choices: [quick, full]
    default: quick
  draft:
    description:
      - Directory of a draft model for speculative decoding, which must be there.
    type: path
  encodings_file:
    description:
      - For O(source=standin), the file C(o200k_base.tiktoken) on the node; see M(inference.fleet.tiktoken_encodings).
    type: path
  packed:
    description:
      - For O(source=standin), the directory on the controller with the packed stand-in, by default the collection's.
      - It is brought to the node only when it is needed there.
    type: path
  expected:
    description:
      - Filled in by the action plugin from O(packed). Size and sha256 by file name.
    type: dict
attributes:
  check_mode:
    support: full
    description: Reads and compares what a run would, and writes nothing.
  diff_mode:
    support: full
    description: Shows the recorded files before and after.
  idempotent:
    support: full
    description: A second run changes nothing. With O(verify=quick) it reads no weights.
notes:
  - This module has an action plugin on the controller.
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: The stand-in
  inference.fleet.model_weights:
    source: standin
    repo: inference-fleet/gpt-oss-tiny-standin
    destination: /var/lib/inference-fleet/models/gpt-oss-tiny-standin
    encodings_file: /var/lib/inference-fleet/encodings/o200k_base.tiktoken

- name: A checkpoint that is on the node, looked at and served where it is
  inference.fleet.model_weights:
    source: path
    repo: openai/gpt-oss-120b
    path: /mnt/models/gpt-oss-120b
    destination: /mnt/models/gpt-oss-120b
    format: mxfp4

- name: From a share to a local disk, every file read again
  inference.fleet.model_weights:
    source: path
    repo: openai/gpt-oss-120b
    path: /mnt/share/gpt-oss-120b
    copy: true
    destination: /var/lib/inference-fleet/models/gpt-oss-120b
    verify: full
"""

RETURN = r"""
message:
  description: What was done, or would be.
  type: str
  returned: success
path:
  description: The directory that servers load.
  type: str
  returned: success
source:
  description: As in O(source).
  type: str
  returned: success
repo:
  description: As in O(repo).
  type: str
  returned: success
revision:
  description: As in O(revision).
  type: str
  returned: success
verified:
  description:
    - How the files were checked, V(quick) or V(full). V(structure) where no manifest can be kept, null where there is
      nothing yet.
  type: str
  returned: success
repaired:
  description: Files that were missing, changed or rotten, and were mended.
  type: list
  elements: str
  returned: success
model_type:
  description: Always V(gpt_oss).
  type: str
  returned: when there are weights
format:
  description: V(mxfp4) or V(bf16).
  type: str
  returned: when there are weights
hidden_size:
  description: Width of the model.
  type: int
  returned: when there are weights
vocab_size:
  description: Tokens of the vocabulary.
  type: int
  returned: when there are weights
num_layers:
  description: Layers of the model.
  type: int
  returned: when there are weights
shards:
  description: Names of the files with weights.
  type: list
  elements: str
  returned: when there are weights
bytes:
  description: Size of all shards.
  type: int
  returned: when there are weights
rotted:
  description: Files that are not what they were, and cannot be mended from here.
  type: list
  elements: str
  returned: when it failed over such files
missing:
  description: Files that the checkpoint lacks.
  type: list
  elements: str
  returned: when it failed over such files
damage:
  description: What is wrong with shards.
  type: list
  elements: str
  returned: when it failed over such shards
needed_bytes:
  description: Space that is needed.
  type: int
  returned: when there is too little
free_bytes:
  description: Space that there is.
  type: int
  returned: when there is too little
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils import model_weights
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError


def main():
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "choices": ["standin", "path"], "required": True},
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str"},
            "destination": {"type": "path", "required": True},
            "path": {"type": "path"},
            "copy": {"type": "bool", "default": False},
            "format": {"type": "str", "choices": ["mxfp4", "bf16"]},
            "verify": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
            "draft": {"type": "path"},
            "encodings_file": {"type": "path"},
            "packed": {"type": "path"},
            "expected": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(
            **model_weights.ensure(
                model_weights.from_parameters(module.params),
                verify=module.params["verify"],
                draft=module.params["draft"],
                check_mode=module.check_mode,
            )
        )
    except FleetError as error:
        module.fail_json(msg=error.message, **error.details)


if __name__ == "__main__":
    main()
