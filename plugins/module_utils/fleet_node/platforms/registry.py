# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The platforms there are, and what accelerators a node has.

A platform is NAME.py or NAME/platform.py of this folder, with a class Platform (base.Detector).
"""

from __future__ import annotations

from .. import platforms
from ..discover import discover
from ..errors import FleetError
from . import other_hardware
from .host import System

PLATFORM_CLASSES = discover(platforms.__name__, platforms.__path__, "Platform", "platform")
# "auto" asks in this order: the CPU, which is always there, last.
REGISTERED = {
    name: PLATFORM_CLASSES[name]() for name in sorted(PLATFORM_CLASSES, key=lambda name: (name == "cpu", name))
}
PLATFORMS = {name: one for name, one in REGISTERED.items() if one.detects}


def platform_of(name):
    """The Platform called `name`. FleetError lists those there are."""
    if name not in PLATFORMS:
        raise FleetError(
            "platform.unknown",
            "This version of the collection cannot detect accelerators of %r; it knows: %s. Use one of these.",
            (name, ", ".join(PLATFORMS)),
        )
    return PLATFORMS[name]


def detect(name="auto", sysroot=""):
    """Accelerators (base.py) of this node, read below `sysroot`; "auto" takes the first platform that is present.

    Nothing is changed. FleetError where the platform is unknown or its hardware cannot be asked. Accelerators that no
    platform here uses are named with a warning, and come before the processors.
    """
    system = System(sysroot)
    if name != "auto":
        return platform_of(name).detect(system)
    found, first = next((one, platform) for one, platform in PLATFORMS.items() if platform.present(system))
    others = unused(system) if found == "cpu" else None
    if others:
        system.warn(others)
    return (other_hardware.detect(system) if others else None) or first.detect(system)


def unused(system):
    """A sentence on accelerators of the node that no platform here uses, None where there are none."""
    return other_hardware.sentence(system, PLATFORMS)
