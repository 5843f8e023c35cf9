#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: container_image
short_description: Make an image available to the container engine of a node
version_added: 0.1.0
description:
  - Pulls an image unless it is there. With a digest exactly that image counts; where it is there, no network is used.
  - A pull is a process of its own, which a lost connection does not end. It is waited for at most O(wait_s) seconds;
    then RV(finished) is false, RV(progress) says how far it is, and the next call waits for the same pull. The failure
    of a pull that nobody waited for is reported only within two minutes, and to a call with the same login.
  - An image that comes through a mirror gets its own name back, so that neither a server's command line nor its hash
    depends on the mirror.
  - With a digest it is kept under a tag of its own, NAME:sha256-HEX, which no other digest takes away, and NAME:TAG is
    left as it is. Without one it is NAME:TAG.
options:
  image:
    description: The image, REGISTRY/NAME:TAG.
    type: str
    required: true
  digest:
    description: Its digest in the registry, C(sha256:…). Without one the tag counts, even if it has moved since.
    type: str
  engine:
    description: The container engine. V(auto) is docker where there is one, podman otherwise.
    type: str
    default: auto
    choices: [auto, docker, podman]
  address:
    description: Where the engine listens (C(unix:///PATH)), unless it is its usual place.
    type: str
  mirror:
    description:
      - Registry to pull from instead of the image's own, HOST[:PORT] or HOST[:PORT]/PREFIX, or a mapping of registries
        to such. Docker Hub is C(docker.io) there. A URL is an error.
    type: raw
  auth:
    description:
      - Logins by registry, each with C(username) and C(password). They are written to a file with mode 0600 for the
        time of the pull, and to nothing else. Usernames are shown, the rest is not.
    type: dict
  environment:
    description: Variables for the engine's client, such as proxies. Docker pulls in its daemon, which has its own.
    type: dict
    default: {}
  wait_s:
    description: How many seconds this call waits for a pull.
    type: int
    default: 3600
  root:
    description: An absolute path that all files of the fleet lie below, empty for the system's own.
    type: path
    default: ""
  state:
    description:
      - V(absent) takes the image off the node, by its tags and by the names that a pull gave it. One that a container
        uses is an error of the engine.
    type: str
    default: present
    choices: [present, absent]
attributes:
  check_mode:
    description: Says whether it would pull. An engine that an earlier task would have installed may be missing.
    support: full
  diff_mode:
    description: The image as it is named to the engine.
    support: full
  idempotent:
    description: An image that is there is not pulled again.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: The image is there
  inference.fleet.container_image:
    image: nvcr.io/nvidia/tensorrt-llm/release:1.0.0rc6
    digest: sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
    mirror: "{{ fleet_registry_mirror }}"
    auth: "{{ fleet_registry_auth }}"

- name: Poll for a large one
  inference.fleet.container_image:
    image: quay.io/ascend/vllm-ascend:v0.20.2rc1
    wait_s: 5
  register: pulled
  until: pulled is failed or pulled.finished
  retries: 1000
  delay: 5
"""

RETURN = r"""
finished:
  description: Whether the image is there; false while it is being pulled.
  returned: success
  type: bool
  sample: true
engine:
  description: The engine that has it; null in check mode where none is there yet.
  returned: success
  type: str
  sample: docker
image:
  description: What is there, null where nothing is.
  returned: success
  type: dict
  contains:
    reference:
      description: What names it to the engine.
      type: str
      sample: nvcr.io/nvidia/tensorrt-llm/release@sha256:0123456789abcdef
    id:
      description: The engine's own number of it.
      type: str
      sample: sha256:fedcba98
    digests:
      description: Its digests in registries, NAME@DIGEST; for a recipe's C(container.digest).
      type: list
      elements: str
      sample: []
    size:
      description: Bytes on disk.
      type: int
      sample: 31000000000
progress:
  description: How far a pull is.
  returned: while an image is pulled, and when it is there
  type: dict
  sample: {"percent": 38, "layers_done": 12, "layers_total": 31, "phase": "pulling"}
msg:
  description: One line for a person.
  returned: success
  type: str
  sample: "pulling nvcr.io/nvidia/tensorrt-llm/release:1.0.0rc6: 12 of 31 layers after 95 s"
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.redact import SecretsHidden
from ansible_collections.inference.fleet.plugins.module_utils.operations.container_image import ARGUMENTS, run


class Module(SecretsHidden, AnsibleModule):
    """Its passwords and tokens are masked in all that is logged and returned."""


def main():
    module = Module(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=error.message, **error.details)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
