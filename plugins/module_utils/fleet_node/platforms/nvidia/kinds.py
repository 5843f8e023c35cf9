# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs that have a name here, and which drivers run which CUDA."""

from __future__ import annotations

import re

from ..vendor_tools import version_numbers

# name: (compute capability, memory.total of nvidia-smi in MiB, what product names hold). Capabilities:
# developer.nvidia.com/cuda-gpus. Memory as nvidia-smi prints it: captures in NVIDIA/k8s-test-infra
# (tests/e2e/go/assertions/nvidiasmi/testdata/hardware), for A100 80GB, H200, B300 and RTX PRO 6000 in issues of vLLM.
KINDS = {
    "a100": ("8.0", 81920, r"\bA100\b"),
    "l40s": ("8.9", 46068, r"\bL40S\b"),
    "h100": ("9.0", 81559, r"\bH100\b"),
    "h200": ("9.0", 143771, r"\bH200\b"),
    "b200": ("10.0", 183359, r"\bB200\b"),
    "gb200": ("10.0", 189471, r"\bGB200\b"),
    "b300": ("10.3", 275040, r"\bB300\b"),
    "gb300": ("10.3", 284208, r"\bGB300\b"),
    "rtx-pro-6000": ("12.0", 97887, r"\bRTX PRO 6000 Blackwell\b"),
}
ARCHITECTURES = {"7.5": "Turing", "8.0": "Ampere", "8.6": "Ampere", "8.9": "Ada Lovelace", "9.0": "Hopper",
                 "10.0": "Blackwell", "10.3": "Blackwell", "12.0": "Blackwell", "12.1": "Blackwell"}  # fmt: skip
SWITCHED = ("a100", "h100", "h200", "b200", "b300")  # boards of eight have NVSwitches and need Fabric Manager
SUPERCHIPS = ("gb200", "gb300")  # of racks: the fabric is managed outside of the node, and IMEX is on it
SAME = 0.01  # memory that differs by less is the same
# CUDA release: oldest driver branch on Linux (CUDA Toolkit release notes, table 2; minor version compatibility aside).
DRIVER_FOR_CUDA = (((13, 3), 610), ((13, 2), 595), ((13, 1), 590), ((13, 0), 580), ((12, 9), 575), ((12, 8), 570),
                   ((12, 6), 560), ((12, 4), 550), ((12, 0), 525))  # fmt: skip


def kind_of(product, capability, memory_mib):
    """A name of KINDS for a GPU, None for another one. Where the product name tells nothing, memory does.

    product: nvidia-smi's name. capability: such as "9.0", or None. memory_mib: or None.
    """
    fitting = {name: one for name, one in KINDS.items() if capability in (None, one[0])}
    named = [name for name, one in fitting.items() if re.search(one[2], product or "", re.IGNORECASE)]
    if named:
        return named[0]
    if capability is None or not memory_mib or re.search(r"\d", product or ""):
        return None  # another model by its name, such as H20 or GH200
    near = [name for name, one in fitting.items() if abs(memory_mib - one[1]) <= one[1] * SAME]
    return near[0] if len(near) == 1 else None


def cuda_of_driver(driver):
    """The newest CUDA release that a driver runs, such as "12.9", None for one that is too old or not known."""
    numbers = version_numbers(driver)
    for release, branch in DRIVER_FOR_CUDA:
        if numbers and numbers[0] >= branch:
            return "%d.%d" % release
    return None
