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
  description: The value for C(fleet_hardware.accelerator).
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
  description: The target of compilers. For a CPU its best vector instruction set.
  returned: success
  type: str
  sample: avx512_bf16
driver:
  description: Version of the driver, or null.
  returned: success
  type: str
  sample: null
runtime:
  description: Version of the vendor's runtime library, or null.
  returned: success
  type: str
  sample: null
lnc:
  description: Physical cores per logical core. Null without logical cores, or if unknown.
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
      description: Memory in MiB, or null.
      type: int
    cores:
      description:
        - Usable cores. For a CPU these are logical CPUs, for others logical cores, or physical cores if RV(lnc) is
          null.
      type: int
    numa:
      description: The NUMA node, or null.
      type: int
    cpus:
      description: The CPUs of its NUMA node.
      type: str
    health:
      description: V(ok), or the vendor's name of the fault.
      type: str
    holders:
      description: Processes that use it, with C(pid) and C(command).
      type: list
      elements: dict
    core_ids:
      description:
        - The numbers of its cores in a plan entry's C(devices), if servers use single cores. Empty if unknown.
      type: list
      elements: int
    address:
      description: Its address on the PCI bus.
      returned: for GPUs and NPUs
      type: str
    product:
      description: The vendor's product name, or null.
      returned: for GPUs and NPUs
      type: str
    compute_capability:
      description: Compute capability, such as V(9.0), or null.
      returned: for GPUs
      type: str
    faults:
      description: Faults that prevent a server on it, as sentences.
      returned: for GPUs and NPUs
      type: list
      elements: str
    slow:
      description: Reasons for its current throttling.
      returned: for GPUs
      type: list
      elements: str
    used_mib:
      description: Used memory in MiB, or null.
      returned: for GPUs
      type: int
    recovery:
      description: The recovery action that the driver requests, V(None) for none. Null if unknown.
      returned: for GPUs
      type: str
    fabric:
      description: The state of its links to other GPUs. Null without managed links.
      returned: for GPUs
      type: str
    npu:
      description: Number of its board in the vendor's tool.
      returned: for NPUs
      type: int
    chip:
      description: Its number on the board.
      returned: for NPUs
      type: int
  sample:
    - {id: 0, memory_mib: 32768, cores: 4, numa: 0, cpus: 0-3, health: ok, holders: [], core_ids: []}
"""
