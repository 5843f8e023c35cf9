# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What benchmark_run takes and does."""

from __future__ import annotations

from ..measure import run as measuring
from ..measure.arguments import MEASURED_ARGUMENTS
from ..servers.model import NODE_ARGUMENTS

ARGUMENTS = {
    "servers": {"type": "list", "elements": "dict", "required": True},
    "elsewhere": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "host": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "hash": {"type": "str", "required": True},
            "devices": {"type": "list", "elements": "raw", "default": []},
            "url": {"type": "str"},
        },
    },
    "beside": {"type": "list", "elements": "dict", "default": []},
    "point": {"type": "dict", "required": True},
    "profile": {"type": "str", "default": ""},
    "scope": {"type": "str", "choices": ["server", "node", "fleet"], "default": "node"},
    "environment_path": {"type": "path"},
    "again": {"type": "bool", "default": False},
    "reports_dir": {"type": "path"},
    "head": {"type": "dict", "default": {}},
    "caller": {"type": "str", "default": ""},
    **MEASURED_ARGUMENTS,
    **NODE_ARGUMENTS,
}


def run(params, check_mode):
    """The result of a measurement, or how far it is. Raises FleetError."""
    return measuring.bring(params, check_mode)
