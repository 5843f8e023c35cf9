# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accelerators that no platform here uses: named, so that their node is not taken for one without any."""

from __future__ import annotations

from . import vendor_tools
from .base import Accelerators, Device

# PCI vendor: its name. Most make nothing else; of the others it takes a class that only accelerators have.
VENDORS = {
    "0x1002": "AMD",
    "0x10ee": "AMD Xilinx",
    "0x17cb": "Qualcomm",
    "0x1ae0": "Google",
    "0x1d94": "Hygon",
    "0x1d95": "Graphcore",
    "0x1da3": "Intel Habana",
    "0x1de0": "Groq",
    "0x1e36": "Enflame",
    "0x1e3e": "Iluvatar",
    "0x1e52": "Tenstorrent",
    "0x1ed2": "FuriosaAI",
    "0x1ed5": "Moore Threads",
    "0x1eff": "Rebellions",
    "0x8086": "Intel",
    "0x9999": "MetaX",
    "0xcabc": "Cambricon",
}
COMPUTE = ("0x1200", "0x0302", "0x0380")  # processing accelerators; 3D and other display controllers without a screen
SCREEN, SCREEN_MIB = "0x0300", 8192  # a graphics card counts from this memory on: a BMC and a processor's own have less
MODELS = {
    "0x1002:0x738c": "Instinct MI100",
    "0x1002:0x740c": "Instinct MI250",
    "0x1002:0x740f": "Instinct MI210",
    "0x1002:0x74a0": "Instinct MI300A",
    "0x1002:0x74a1": "Instinct MI300X",
    "0x1002:0x74a5": "Instinct MI325X",
    "0x1da3:0x1020": "Gaudi 2",
    "0x1da3:0x1060": "Gaudi 3",
}
MIB = 1 << 20


def detect(system):
    """Accelerators that this collection has no platform for, None where the node has none of them."""
    devices, vendors, models = [], [], []
    for address in vendor_tools.listed(system, vendor_tools.PCI):
        folder = "%s/%s" % (vendor_tools.PCI, address)
        vendor, kind, device = ((system.read("%s/%s" % (folder, key)) or "").strip().lower()
                                for key in ("vendor", "class", "device"))  # fmt: skip
        memory = vendor_tools.whole((system.read(folder + "/mem_info_vram_total") or "").strip())
        memory = memory and memory // MIB
        large = kind.startswith(SCREEN) and (memory or 0) >= SCREEN_MIB
        # a class of display alone may be a processor's own graphics of a vendor that makes processors too
        if vendor not in VENDORS or not (kind.startswith(COMPUTE) or large):
            continue
        if vendor == "0x8086" and not kind.startswith("0x1200") and not _has_memory(system, folder):
            continue
        found = Device(id=len(devices), memory_mib=memory, cores=1, numa=None, cpus="")
        found.numa = vendor_tools.whole((system.read(folder + "/numa_node") or "").strip())
        devices.append(found)
        vendors.append(VENDORS[vendor])
        key = "%s:%s" % (vendor, device)
        models.append((system.read(folder + "/product_name") or "").strip() or MODELS.get(key, "PCI " + key))
    if not devices:
        return None
    return Accelerators(
        accelerator="unsupported", vendor=", ".join(dict.fromkeys(vendors)), model=", ".join(dict.fromkeys(models)),
        generation="unknown", driver=None, devices=devices, warnings=system.warnings,
    )  # fmt: skip


def _has_memory(system, folder):
    """Whether a display controller has local memory, as a card has and a processor's own graphics has not."""
    return (system.read(folder + "/lmem_total_bytes") or system.read(folder + "/tile0/vram_size") or "").strip() != ""


def sentence(system, known):
    """What there is that nothing here uses, None where the node has none of it. known: names of the platforms."""
    found = detect(system)
    if found is None:
        return None
    count = len(found.devices)
    words = "This node has %d accelerator%s of %s (%s), for which this collection has no platform; it knows: %s."
    return words % (count, "" if count == 1 else "s", found.vendor, found.model, ", ".join(known))
