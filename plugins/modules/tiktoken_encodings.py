#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tiktoken_encodings
short_description: The tiktoken encodings of the harmony format on a node
version_added: 0.1.0
description:
  - Places the encodings that gpt-oss servers read from the directory E(TIKTOKEN_ENCODINGS_BASE).
    Without them a server starts, says that it is healthy, and fails every chat.
  - A file is right by its published sha256. One that is not is replaced, and nothing else is ever written.
options:
  directory:
    description: Absolute path of the directory for the files.
    type: path
    required: true
  encodings:
    description: The encodings to place. gpt-oss needs V(o200k_base) only.
    type: list
    elements: str
    choices: [o200k_base, cl100k_base]
    default: [o200k_base]
  sources:
    description:
      - Where to take a missing file from, tried in this order. A source whose place is an empty string is passed over.
    type: list
    elements: dict
    required: true
    suboptions:
      type:
        description:
          - V(package) reads V(o200k_base) out of the Python package C(oss-harmony), without a network.
          - V(file) takes a file that is on the node.
          - V(controller) takes a file that is on the controller. It is copied to the node only when it is needed there.
          - V(url) downloads.
        type: str
        choices: [package, file, controller, url]
        required: true
      python:
        description:
          - For O(sources[].type=package), the interpreter of an environment that C(oss-harmony) is installed in.
            Engines that speak harmony bring it.
        type: path
      path:
        description:
          - For O(sources[].type=file) and O(sources[].type=controller), the file, or a directory that holds
            C(NAME.tiktoken).
        type: str
      copied:
        description: Filled in by the action plugin. For O(sources[].type=controller), where the files are on the node.
        type: dict
      base:
        description: For O(sources[].type=url), the URL that C(/NAME.tiktoken) is added to.
        type: str
  environment:
    description: Environment variables for what this module runs and downloads, such as proxies.
    type: dict
    default: {}
  ca_bundle:
    description: File with the certificates to trust for downloads.
    type: path
attributes:
  check_mode:
    support: full
    description: Says which files would be placed, and from which sources, without asking one.
  diff_mode:
    support: full
    description: Shows the sha256 of each file before and after.
  idempotent:
    support: full
    description: A second run changes nothing and asks no source.
notes:
  - This module has an action plugin on the controller.
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: From vLLM's own environment, or else from the public address
  inference.fleet.tiktoken_encodings:
    directory: /var/lib/inference-fleet/encodings
    sources:
      - type: package
        python: /var/lib/inference-fleet/venvs/vllm/bin/python
      - type: url
        base: https://openaipublic.blob.core.windows.net/encodings

- name: Both encodings, from a share that the site keeps
  inference.fleet.tiktoken_encodings:
    directory: /var/lib/inference-fleet/encodings
    encodings: [o200k_base, cl100k_base]
    sources:
      - type: file
        path: /mnt/share/tiktoken

- name: For nodes without a network, from a folder of the controller
  inference.fleet.tiktoken_encodings:
    directory: /var/lib/inference-fleet/encodings
    sources:
      - type: controller
        path: ~/tiktoken
"""

RETURN = r"""
message:
  description: What was done, or would be.
  type: str
  returned: success
directory:
  description: The directory of the files.
  type: str
  returned: success
files:
  description: For each encoding its path, sha256, size in bytes, and the source it was taken from now, if it was.
  type: dict
  returned: success
  sample:
    o200k_base:
      path: /var/lib/inference-fleet/encodings/o200k_base.tiktoken
      sha256: 446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d
      size: 3613922
      source: package /var/lib/inference-fleet/venvs/vllm/bin/python
tried:
  description: The sources that were tried, and what each of them said.
  type: list
  elements: str
  returned: when no source has an encoding
"""
