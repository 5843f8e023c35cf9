# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA GPUs, asked of nvidia-smi."""

from __future__ import annotations

from .. import vendor_tools
from ..base import Detector
from . import detect, fit, preflight


class Platform(Detector):
    """A Device is a whole GPU, by nvidia-smi's index."""

    visible = ("CUDA_VISIBLE_DEVICES",)
    lost_by_reload = "/dev/nvidiactl"
    setuid_helper = True  # CUDA starts nvidia-modprobe where a device file is missing

    def present(self, system):
        return bool(vendor_tools.listed(system, detect.DRIVEN) or detect.on_the_bus(system, (detect.ACCELERATOR,)))

    def detect(self, system):
        return detect.detect(system)

    def shortfalls(self, found, hardware, needs, installs=()):
        return fit.shortfalls(found, hardware, needs)

    def unchecked(self, found, hardware, needs):
        return fit.unchecked(found, hardware, needs)

    def preflight(self, context):
        return preflight.checks(context)
