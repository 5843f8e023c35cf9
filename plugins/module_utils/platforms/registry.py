# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The platforms there are, and what accelerators a node has.

A platform is NAME.py or NAME/platform.py of this folder, with a class Platform (base.Detector). tools/platforms.py then
writes shipped.py anew.
"""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.platforms.host import System
from ansible_collections.inference.fleet.plugins.module_utils.platforms.shipped import PLATFORM_CLASSES

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
            "This version of the collection cannot detect accelerators of %r; it knows: %s.",
            (name, ", ".join(PLATFORMS)),
        )
    return PLATFORMS[name]


def detect(name="auto", sysroot=""):
    """Accelerators (base.py) of this node, read below `sysroot`; "auto" takes the first platform that is present.

    Nothing is changed. FleetError where the platform is unknown or its hardware cannot be asked.
    """
    system = System(sysroot)
    found = next(one for one in PLATFORMS.values() if one.present(system)) if name == "auto" else platform_of(name)
    return found.detect(system)
