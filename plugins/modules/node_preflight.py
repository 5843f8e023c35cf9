#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: node_preflight
short_description: Checks that a node can take its plan before anything is changed
version_added: 0.1.0
description:
  - Checks the Python, write access below the root, the hardware against what the inventory declares, the CPU's flags,
    shared libraries, the planned ports, memory and disk. It fails with all problems in one message, and never changes
    anything.
  - Each platform adds what stops its own servers, such as processes that hold the devices, a machine image's
    environment without the engine, or a compiled artifact or draft model that the engine does not run.
  - A server whose CPUs are not beside its devices, by what the node reports of them, is warned of. So is what this run
    replaces by itself, such as packages that do not fit each other.
  - A port that is held by the same server of the same root is no problem, nor is one that belongs to a server which
    this run moves or removes.
options:
  root:
    description:
      - The folder below which the fleet keeps everything. Empty for the system's own C(/etc), C(/var) and C(/run).
    type: str
    default: ""
  servers:
    description:
      - The plan entries of this node. Their ports and memory are checked.
    type: list
    elements: dict
    default: []
  only:
    description:
      - Names of the servers that this run is limited to. All where it is empty.
    type: list
    elements: str
    default: []
  platform:
    description:
      - The platform of the recipe, which says how accelerators are detected and what else is checked. An unknown one is
        an error that lists those there are.
    type: str
    required: true
  hardware:
    description:
      - What the inventory declares, that is C(fleet_hardware).
    type: dict
    suboptions:
      accelerator:
        description:
          - Kind of the devices.
        type: str
      count:
        description:
          - Number of devices.
        type: int
      cores:
        description:
          - Cores of one device. On a CPU the node must have O(hardware.count) times as many.
        type: int
      lnc:
        description:
          - Physical cores of a logical one.
        type: int
      memory_gib:
        description:
          - Memory of one device in GiB. On a CPU the node must have O(hardware.count) times as much.
        type: float
      cpu_affinity:
        description:
          - Devices to the CPUs near them. The plan has made the servers' C(cpus) of it; those are what is compared with
            what the node reports.
        type: dict
      exclude:
        description:
          - Numbers of devices that no server is given. They may be missing.
        type: list
        elements: int
  needs:
    description:
      - What the recipe needs. Every need is checked, or refused where the platform cannot have it.
    type: dict
    suboptions:
      accelerators:
        description:
          - Kinds of devices that fit.
        type: list
        elements: str
      lnc:
        description:
          - Physical cores of a logical one.
        type: int
      device_memory_gib:
        description:
          - Memory of one device in GiB, at least.
        type: float
      host_memory_gib:
        description:
          - Memory of the host in GiB for each server that does not run yet.
        type: float
      disk_gib:
        description:
          - Free disk in GiB for a first deployment. See O(satisfied_by).
        type: float
      driver:
        description:
          - The oldest driver that fits.
        type: str
      compute_capability:
        description:
          - Compute capabilities that fit.
        type: list
        elements: str
      cpu_flags:
        description:
          - Flags of C(/proc/cpuinfo) that every processor must have.
        type: list
        elements: str
      libraries:
        description:
          - Shared libraries, by soname, that the dynamic loader must find.
        type: list
        elements: str
  installs:
    description:
      - What the platform's role installs where it is root, by name, that is its variable C(<platform>_packages). As
        root a missing library of these is no problem, and versions of drivers are checked as they will be then.
    type: dict
    default: {}
  satisfied_by:
    description:
      - Paths that are there once the deployment is. Where all of them are, no free disk is asked for.
    type: list
    elements: path
    default: []
  models:
    description:
      - The models that servers load, with their paths resolved. One whose C(source) is C(path) must be in its directory
        already, a complete gpt_oss checkpoint of the right format, with its draft model; others come later.
    type: list
    elements: dict
    default: []
  venvs:
    description:
      - The environments that servers run in. A platform that knows where machine images have theirs checks those whose
        C(create) is false.
    type: list
    elements: dict
    default: []
extends_documentation_fragment:
  - inference.fleet.node.read_only
seealso:
  - module: inference.fleet.accelerator_info
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Refuse what cannot work before anything is changed
  inference.fleet.node_preflight:
    root: "{{ fleet_root }}"
    servers: "{{ fleet_servers }}"
    platform: cpu
    hardware:
      accelerator: cpu
      count: 4
      memory_gib: 8
    needs:
      accelerators: [cpu]
      cpu_flags: [avx2]
      libraries: [libnuma.so.1]
      host_memory_gib: 4
      disk_gib: 6
    installs:
      libnuma.so.1: {debian: libnuma1, redhat: numactl-libs}
"""

RETURN = r"""
accelerators:
  description:
    - What the node has, as M(inference.fleet.accelerator_info) returns it, with C(warnings) in it. Null on a node whose
      driver the platform's role is yet to install.
  returned: success
  type: dict
  sample:
    accelerator: cpu
    vendor: AMD
    model: AMD EPYC 9554
    generation: avx512_bf16
    driver: null
    flags: [avx2]
    devices:
      - {id: 0, memory_mib: 32768, cores: 4, numa: 0, cpus: 0-3, health: ok, holders: []}
    warnings: []
problems:
  description: What stands in the way. Empty on success.
  returned: success, and on failure after the checks
  type: list
  elements: dict
  contains:
    check:
      description: Which check found it.
      type: str
      sample: ports
    message:
      description: What is wrong and what to do.
      type: str
unchecked:
  description: What could not be checked, since the node does not tell it. Also given as warnings.
  returned: success
  type: list
  elements: str
  sample: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.operations.node_preflight import ARGUMENTS, run


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
