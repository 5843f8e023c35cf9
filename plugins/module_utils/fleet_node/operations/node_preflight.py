# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What node_preflight takes and does."""

from __future__ import annotations

from ..servers.preflight import preflight

ARGUMENTS = {
    "root": {"type": "str", "default": ""},
    "servers": {"type": "list", "elements": "dict", "default": []},
    "only": {"type": "list", "elements": "str", "default": []},
    "platform": {"type": "str", "required": True},
    "hardware": {
        "type": "dict",
        "options": {
            "accelerator": {"type": "str"},
            "count": {"type": "int"},
            "cores": {"type": "int"},
            "lnc": {"type": "int"},
            "memory_gib": {"type": "float"},
            "cpu_affinity": {"type": "dict"},
            "exclude": {"type": "list", "elements": "int"},
        },
    },
    "needs": {
        "type": "dict",
        "options": {
            "accelerators": {"type": "list", "elements": "str"},
            "lnc": {"type": "int"},
            "device_memory_gib": {"type": "float"},
            "host_memory_gib": {"type": "float"},
            "disk_gib": {"type": "float"},
            "driver": {"type": "str"},
            "compute_capability": {"type": "list", "elements": "str"},
            "cpu_flags": {"type": "list", "elements": "str"},
            "libraries": {"type": "list", "elements": "str"},
        },
    },
    "installs": {"type": "dict", "default": {}},
    "satisfied_by": {"type": "list", "elements": "path", "default": []},
    "models": {"type": "list", "elements": "dict", "default": []},
    "venvs": {"type": "list", "elements": "dict", "default": []},
    "prepares": {"type": "bool", "default": True},
}
READS = True


def run(params, check_mode):
    """The result of the module; its warnings with it. Raises FleetError. Nothing is changed in either mode."""
    result = preflight(**params)
    result["warnings"] = result["warnings"] + result["unchecked"]
    return result
