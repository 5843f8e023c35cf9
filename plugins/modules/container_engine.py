#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: container_engine
short_description: Make a container engine run and reach its registries
version_added: 0.1.0
description:
  - Merges settings into docker's C(daemon.json), gives its daemon proxies and both engines certificates and mirrors,
    and makes docker run. The role P(inference.fleet.container_engine#role) installs the engine's packages.
  - C(daemon.json) is never replaced. Keys that are not named stay, lists get what they lack.
  - What an earlier call set and this one does not is taken back, so a mirror, a setting or a certificate that leaves
    the inventory leaves the node. A record in C(/var/lib/inference-fleet/container_engine.json) says what that is; what
    was there before, or was changed by somebody else since, stays.
  - Docker reloads what it can take while it runs. It is restarted for other settings only, and not where that would
    end containers that are not the fleet's; see O(restart). Where the fleet's own run, the restart is left to a call
    with O(state=effective), and they come back by themselves.
  - What docker has still to be reloaded or restarted for is in the record as well, so what fails, or is left out, is
    done by the next call that may. Whoever starts docker meanwhile has done it, too.
options:
  engine:
    description: The container engine.
    type: str
    default: docker
    choices: [docker, podman]
  allow_missing:
    description:
      - Where the engine is not installed, return what is missing in RV(missing) and do nothing, instead of failing.
    type: bool
    default: false
  settings:
    description: Keys of docker's C(daemon.json).
    type: dict
    default: {}
  registry_mirrors:
    description: Mirrors of Docker Hub, as URLs.
    type: list
    elements: str
    default: []
  insecure_registries:
    description: Registries without TLS, or with a certificate that cannot be verified, as HOST or HOST:PORT.
    type: list
    elements: str
    default: []
  registries:
    description:
      - Registries for which O(ca_bundle) is trusted, as HOST or HOST:PORT; for O(registry_mirrors) it always is.
      - Docker Hub is V(docker.io) here. Docker takes certificates for it only where it keeps images in containerd, and
        goes by the system's authorities otherwise.
    type: list
    elements: str
    default: []
  ca_bundle:
    description: A file of the node with certificates to trust, in PEM. Empty for the system's own alone.
    type: str
    default: ""
  proxy_env:
    description:
      - Variables of docker's daemon, such as C(HTTPS_PROXY) and C(NO_PROXY). They are in a file with mode 0600, not in
        the unit. Podman has no daemon; its proxies are those of M(inference.fleet.container_image).
    type: dict
    default: {}
  restart:
    description:
      - V(auto) restarts docker where that ends no containers. Where others than the fleet's run, and docker is not set
        to live-restore, it fails before anything is changed. Where the fleet's run, it restarts docker with
        O(state=effective) only; otherwise settings wait for that, as RV(pending) says.
      - V(always) restarts it at once, whatever runs. V(never) leaves it to its next start.
    type: str
    default: auto
    choices: [auto, always, never]
  state:
    description:
      - V(effective) sets and takes back nothing. It restarts docker where settings of earlier calls wait for that, and
        does nothing where docker does not run. Only O(engine), O(restart) and O(root) count then.
      - V(absent) takes back all that earlier calls set. It neither removes nor starts an engine.
      - Docker forgets mirrors and insecure registries at once, the rest when it is restarted; see O(restart).
    type: str
    default: present
    choices: [present, effective, absent]
  root:
    description: Directory that the record lies below. Empty for the system's own folders.
    type: str
    default: ""
attributes:
  check_mode:
    description: Says what would be written and restarted, also where the engine is yet to be installed.
    support: full
  diff_mode:
    description:
      - The files that change. Of C(daemon.json) only what differs, with passwords masked; of proxies the names of the
        variables.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Docker runs and pulls through the proxy
  inference.fleet.container_engine:
    engine: docker
    settings:
      live-restore: true
    proxy_env: "{{ fleet_proxy_env }}"
    registries: [registry.example.org:5000]
    ca_bundle: /etc/ssl/certs/example.pem

- name: Settings that docker takes at its start only are in effect
  inference.fleet.container_engine:
    engine: docker
    state: effective

- name: Nothing of it is left
  inference.fleet.container_engine:
    engine: docker
    state: absent
    restart: never
"""

RETURN = r"""
engine:
  description: The engine.
  returned: success
  type: str
  sample: docker
missing:
  description:
    - The program that is not installed, with O(allow_missing=true). It is the engine's, or the init that podman needs.
  returned: success
  type: list
  elements: str
  sample: []
actions:
  description: What was done, or would be in check mode, beside writing files.
  returned: success
  type: list
  elements: str
  sample: ["reload docker for registry-mirrors"]
pending:
  description: Settings that docker goes without until it is restarted; keys of C(daemon.json), and V(proxies).
  returned: success
  type: list
  elements: str
  sample: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.redact import SecretsHidden
from ansible_collections.inference.fleet.plugins.module_utils.operations.container_engine import ARGUMENTS, run


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
