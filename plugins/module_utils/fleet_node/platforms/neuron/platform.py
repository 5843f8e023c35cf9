# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AWS Trainium: devices by neuron-ls or the driver's files, packages, machine images, and what compiles once."""

from __future__ import annotations

import typing

from ..base import Detector
from . import artifacts, detect, driver_files, fit, packages, preflight


class Platform(Detector):
    """A Device is a chip; its `cores` and `core_ids` are logical cores."""

    visible = ("NEURON_RT_VISIBLE_CORES", "NEURON_VISIBLE_DEVICES")  # cores, whatever the second one's name says
    parts = True
    start_hooks: typing.ClassVar = {artifacts.NAME: artifacts}

    def present(self, system):
        there = driver_files.sysfs_devices(system) or driver_files.device_nodes(system)
        return bool(there or driver_files.on_the_bus(system))

    def detect(self, system):
        return detect.detect(system)

    def shortfalls(self, found, hardware, needs, installs=()):
        return fit.shortfalls(found, hardware, needs, installs)

    def unchecked(self, found, hardware, needs):
        return fit.unchecked(found, hardware, needs)

    def driver_missing(self, context):
        return packages.DRIVER in context.installs and driver_files.lacks_driver(context.system)

    def preflight(self, context):
        return [("packages", packages.check(context)), *preflight.checks(context, self.given)]
