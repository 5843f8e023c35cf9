# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations of the platform nvidia."""

from __future__ import annotations

from ...operation import Operation
from . import toolkit

NVIDIA_TOOLKIT = {
    "servers": {"type": "list", "elements": "dict", "required": True},
    "packages": {"type": "dict", "required": True},
    "installed": {"type": "bool", "default": False},
    "root": {"type": "str", "default": ""},
}


def nvidia_toolkit(params, check_mode):
    """The result of toolkit.compare(). Raises FleetError."""
    return toolkit.compare(check_mode=check_mode, **params)


def nvidia_toolkit_due(result):
    """The reason to run the role, or None."""
    return result["message"] if result["due"] else None


OPERATIONS = {
    "nvidia_toolkit": Operation(NVIDIA_TOOLKIT, nvidia_toolkit, due=nvidia_toolkit_due),
}
