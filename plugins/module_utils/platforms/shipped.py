# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Written by tools/platforms.py: every platform of this folder, so that Ansible ships it to nodes."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.platforms.ascend.platform import Platform as Ascend
from ansible_collections.inference.fleet.plugins.module_utils.platforms.cpu import Platform as Cpu
from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron.platform import Platform as Neuron
from ansible_collections.inference.fleet.plugins.module_utils.platforms.nvidia.platform import Platform as Nvidia

PLATFORM_CLASSES = {"ascend": Ascend, "cpu": Cpu, "neuron": Neuron, "nvidia": Nvidia}
