# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What accelerators a node has. A vendor plugs in with one line in DETECTORS."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.platforms.cpu import CpuDetector
from ansible_collections.inference.fleet.plugins.module_utils.platforms.host import System
from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron.detect import NeuronDetector

# In the order in which "auto" asks: what is special first, the CPU, which is always there, last.
DETECTORS = {"neuron": NeuronDetector(), "cpu": CpuDetector()}


def detector(vendor):
    """The Detector called `vendor`. FleetError lists those there are."""
    if vendor not in DETECTORS:
        raise FleetError(
            "platform.unknown",
            "This version of the collection cannot detect accelerators of %r; it knows: %s.",
            (vendor, ", ".join(DETECTORS)),
        )
    return DETECTORS[vendor]


def detect(vendor="auto", sysroot=""):
    """Accelerators (form.py) of this node, read below `sysroot`; "auto" takes the first vendor that is present.

    Nothing is changed. FleetError where the vendor is unknown or its hardware cannot be asked.
    """
    system = System(sysroot)
    chosen = next(item for item in DETECTORS.values() if item.present(system)) if vendor == "auto" else detector(vendor)
    return chosen.detect(system)
