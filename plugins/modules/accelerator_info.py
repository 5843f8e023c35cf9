#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: accelerator_info
short_description: Return the accelerators of a node
version_added: 0.1.0
description:
  - Reads the hardware of a node for inference servers, and changes nothing.
  - A CPU has a device for each NUMA node. Its cores and memory are those available to this process, by affinity and
    cgroup. A warning contains the reason if the machine has more.
  - Accelerators are read with the vendor's tool, or from the driver's files if the tool is not installed. The instance
    type is not used.
options:
  vendor:
    description:
      - The platform of the accelerators. V(auto) uses the first platform that is present. For an unknown platform, the
        error lists the known platforms.
    type: str
    default: auto
extends_documentation_fragment:
  - inference.fleet.node.read_only
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Read the accelerators
  inference.fleet.accelerator_info:
  register: node_accelerators

- name: Show the accelerators
  ansible.builtin.debug:
    msg: "{{ node_accelerators.model }}: {{ node_accelerators.devices | map(attribute='cores') | sum }} cores"
"""

RETURN = r"""
accelerator:
  description: The name in C(fleet_hardware.accelerator).
  returned: success
  type: str
  sample: cpu
vendor:
  description: The vendor.
  returned: success
  type: str
  sample: AMD
model:
  description: The vendor's name of the model.
  returned: success
  type: str
  sample: AMD EPYC 9554
generation:
  description: The architecture. For a CPU its best vector instruction set.
  returned: success
  type: str
  sample: avx512_bf16
driver:
  description: Version of the driver, or null.
  returned: success
  type: str
  sample: null
runtime:
  description: Version of the vendor's library for the driver, or null.
  returned: success
  type: str
  sample: null
lnc:
  description: Physical cores in a logical core. Null if there are no logical cores, or if unknown.
  returned: success
  type: int
  sample: null
flags:
  description: Instruction sets and features, sorted.
  returned: success
  type: list
  elements: str
  sample: [avx2, avx512f]
devices:
  description: The devices, in the order of their ids.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: The number that a plan entry's C(devices) uses.
      type: int
    memory_mib:
      description: Its memory in MiB. Null if unknown.
      type: int
    cores:
      description:
        - Usable cores, which are logical CPUs on a CPU, and logical cores on other platforms.
      type: int
    numa:
      description: Its NUMA node. Null if unknown.
      type: int
    cpus:
      description: The CPUs near it.
      type: str
    health:
      description: V(ok), or the vendor's word for a fault.
      type: str
    holders:
      description: Processes that use it, as C(pid) and C(command).
      type: list
      elements: dict
    core_ids:
      description:
        - The numbers that a plan entry's C(devices) uses, of its parts if servers are assigned parts of a device.
      type: list
      elements: int
    address:
      description: Its address on the PCI bus.
      returned: for GPUs and NPUs
      type: str
    product:
      description: The vendor's name of it. Null if unknown.
      returned: for GPUs and NPUs
      type: str
    compute_capability:
      description: Compute capability, such as V(9.0). Null if unknown.
      returned: for GPUs of NVIDIA
      type: str
    kind:
      description: Its name in C(fleet_hardware.accelerator). Null if unknown.
      returned: for GPUs of AMD
      type: str
    faults:
      description: Sentences on what prevents servers from using it.
      returned: for GPUs and NPUs
      type: list
      elements: str
    fabric:
      description: The state of its links to other GPUs, or null.
      returned: for GPUs of NVIDIA
      type: str
    npu:
      description: The number of its board in the vendor's tool.
      returned: for NPUs
      type: int
    chip:
      description: Its number on the board.
      returned: for NPUs
      type: int
    phy:
      description: The Phy-ID in the vendor's tool. Null without one.
      returned: for NPUs
      type: int
  sample:
    - {id: 0, memory_mib: 32768, cores: 4, numa: 0, cpus: 0-3, health: ok, holders: [], core_ids: []}
"""
