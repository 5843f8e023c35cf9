# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a draft is a head that the engine of its platform runs. Only one platform asks for that as yet."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron.eagle3 import (
    check,
    check_configuration,
    check_layers,
)

__all__ = ("check", "check_configuration", "check_layers")
