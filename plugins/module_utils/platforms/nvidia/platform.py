# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA GPUs: what the units of their servers must heed. Nothing detects them yet."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.platforms.base import Detector


class Platform(Detector):
    detects = False
    lost_by_reload = "/dev/nvidiactl"
    setuid_helper = True  # CUDA starts nvidia-modprobe where a device file is missing
