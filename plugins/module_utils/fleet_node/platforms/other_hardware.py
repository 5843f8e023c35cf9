# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accelerators without a platform in this collection, named so that their node does not count as a CPU node."""

from __future__ import annotations

from .base import Accelerators, Device
from .host import PCI

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


def detect(system):
    """Accelerators of the vendors above, with ``accelerator`` "unsupported"; None if the node has none of them."""
    devices, vendors, models = [], {}, {}
    for address in system.listed(PCI):
        folder = "%s/%s/" % (PCI, address)
        vendor, kind, chip = (system.value(folder + key).lower() for key in ("vendor", "class", "device"))
        # Intel's graphics cards have local memory, graphics of its processors have none.
        card = vendor != "0x8086" or system.exists(folder + "lmem_total_bytes") or system.exists(folder + "tile0")
        accelerates = kind.startswith(ACCELERATOR) and vendor not in COVERED
        if vendor in VENDORS and (accelerates or (card and kind.startswith(DISPLAYS))):
            devices.append(Device(id=len(devices), memory_mib=None))
            devices[-1].locate(system, address)
            vendors[VENDORS[vendor]] = None
            models[system.value(folder + "product_name") or "PCI %s:%s" % (vendor, chip)] = None
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
