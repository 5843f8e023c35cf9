# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accelerators without a platform in this collection, named so that their node does not count as a CPU node."""

from __future__ import annotations

from .base import Accelerators, Device
from .host import MIB, PCI, whole_number

# PCI vendors. Some also make graphics and network cards, so the class counts too.
VENDORS = {
    "0x1002": "AMD", "0x10ee": "AMD Xilinx", "0x17cb": "Qualcomm", "0x1ae0": "Google", "0x1d94": "Hygon",
    "0x1d95": "Graphcore", "0x1da3": "Intel Habana", "0x1de0": "Groq", "0x1e36": "Enflame", "0x1e3e": "Iluvatar",
    "0x1e52": "Tenstorrent", "0x1ed2": "FuriosaAI", "0x1ed5": "Moore Threads", "0x1eff": "Rebellions",
    "0x8086": "Intel", "0x9999": "MetaX", "0xcabc": "Cambricon",
}  # fmt: skip
ACCELERATOR = "0x1200"  # the PCI class of processing accelerators
COVERED = ("0x1002",)  # vendors whose processing accelerators have a platform, and other devices have none
DISPLAYS = ("0x0302", "0x0380")  # 3D and other display controllers without a screen
SCREEN, SCREEN_MIB = "0x0300", 8192  # graphics of a BMC or of a processor have less memory than this
MODELS = {
    "0x1002:0x738c": "Instinct MI100",
    "0x1da3:0x1020": "Gaudi 2", "0x1da3:0x1060": "Gaudi 3",
}  # fmt: skip


def detect(system):
    """Accelerators of the vendors above, with ``accelerator`` "unsupported"; None if the node has none of them."""
    devices, vendors, models = [], {}, {}
    for address in system.listed(PCI):
        folder = "%s/%s/" % (PCI, address)
        vendor, kind, chip = (system.value(folder + key).lower() for key in ("vendor", "class", "device"))
        if vendor not in VENDORS or (vendor in COVERED and kind.startswith(ACCELERATOR)):
            continue
        memory = (whole_number(system.value(folder + "mem_info_vram_total")) or 0) // MIB or None
        # Intel's graphics cards have local memory, graphics of its processors have none.
        card = vendor != "0x8086" or system.exists(folder + "lmem_total_bytes") or system.exists(folder + "tile0")
        large = kind.startswith(SCREEN) and (memory or 0) >= SCREEN_MIB
        if kind.startswith(ACCELERATOR) or (card and (large or kind.startswith(DISPLAYS))):
            device = Device(id=len(devices), memory_mib=memory, cores=1, numa=None, cpus="")
            device.locate(system, address)
            devices.append(device)
            key = "%s:%s" % (vendor, chip)
            vendors[VENDORS[vendor]] = None
            models[system.value(folder + "product_name") or MODELS.get(key, "PCI " + key)] = None
    if not devices:
        return None
    return Accelerators(
        accelerator="unsupported", vendor=", ".join(vendors), model=", ".join(models), generation="unknown",
        driver=None, devices=devices, warnings=system.warnings,
    )  # fmt: skip


def sentence(found):
    """A sentence that names accelerators of detect()."""
    return "This node has %d x %s (%s), for which this collection has no platform." % (
        len(found.devices), found.vendor, found.model,
    )  # fmt: skip


def describe(system):
    """The sentence for a node, None if it has no accelerators without a platform."""
    found = detect(system)
    return found and sentence(found)
