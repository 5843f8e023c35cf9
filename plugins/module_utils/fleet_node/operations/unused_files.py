# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What unused_files takes and does."""

from __future__ import annotations

from ..clean.unused_files import clean
from ..node.paths import NodePaths
from ..node.server_spec import check_entries

ARGUMENTS = {
    "servers": {"type": "list", "elements": "dict", "required": True},
    "deployment": {"type": "dict", "default": {}},
    "root": {"type": "path", "default": ""},
    "remove": {"type": "bool", "default": False},
    "remove_shared": {"type": "bool", "default": False},
}


def run(params, check_mode):
    """What no server needs, and what of it was removed. Raises FleetError."""
    return clean(
        NodePaths.of_parameter(params["root"]),
        list(check_entries(params["servers"]).values()),
        params["deployment"],
        params["remove"],
        params["remove_shared"],
        check_mode,
    )
