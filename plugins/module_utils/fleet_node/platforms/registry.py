# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The platforms, and detection of a node's accelerators.

A platform is NAME.py or NAME/platform.py of this folder, with a class Platform (base.Detector).
"""

from __future__ import annotations

from .. import platforms
from ..discover import discover
from ..errors import FleetError
from . import other_hardware
from .host import System

FOUND = discover(platforms.__name__, platforms.__path__, "Platform", "platform")
# "auto" tries them in this order; the CPU, which each node has, is the last.
PLATFORMS = {name: FOUND[name]() for name in sorted(FOUND, key=lambda name: (name == "cpu", name))}


def platform_of(name):
    """The Platform of this name. Raises FleetError if there is none."""
    if name not in PLATFORMS:
        raise FleetError("platform.unknown", name, ", ".join(PLATFORMS))
    return PLATFORMS[name]


def detect(name="auto", sysroot=""):
    """Accelerators (base.py) of this node, read below `sysroot`; "auto" uses the first platform that is present.

    Accelerators without a platform come before the CPU, with a warning. Nothing is changed. Raises FleetError if the
    platform is unknown or its hardware does not answer.
    """
    system = System(sysroot)
    if name != "auto":
        return platform_of(name).detect(system)
    first = next(platform for platform in PLATFORMS.values() if platform.present(system))
    unsupported = other_hardware.detect(system) if first is PLATFORMS["cpu"] else None
    if unsupported:
        system.warn(other_hardware.sentence(unsupported))
        return unsupported
    return first.detect(system)
