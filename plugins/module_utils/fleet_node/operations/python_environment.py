# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What python_environment takes and does."""

from __future__ import annotations

from ..node import python_environment

ARGUMENTS = {
    "path": {"type": "path", "required": True},
    "create": {"type": "bool", "default": True},
    "packages": {"type": "list", "elements": "str", "default": []},
    "excludes": {"type": "list", "elements": "str", "default": []},
    "overrides": {"type": "list", "elements": "str", "default": []},
    "python": {"type": "str"},
    "uv": {"type": "path"},
    "find_links": {"type": "list", "elements": "str", "default": []},
    "index_url": {"type": "str"},
    "extra_index_urls": {"type": "list", "elements": "str", "default": []},
    "fallback_indexes": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "package": {"type": "str", "required": True},
            "index": {"type": "str", "required": True},
        },
    },
    "compile_bytecode": {"type": "bool", "default": True},
    "verify_imports": {"type": "list", "elements": "str", "default": []},
    "environment": {"type": "dict", "default": {}},
    "ca_bundle": {"type": "path"},
}


def run(params, check_mode):
    """The result of the module. Raises FleetError."""
    return python_environment.ensure(python_environment.from_parameters(params), check_mode=check_mode)
