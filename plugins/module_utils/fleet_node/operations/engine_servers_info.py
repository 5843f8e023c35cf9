# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What engine_servers_info takes and does."""

from __future__ import annotations

from ..node.os_errors import os_error
from ..servers.model import SERVERS_ARGUMENTS, Node
from ..servers.status import status

ARGUMENTS = {
    **SERVERS_ARGUMENTS,
    "log_lines": {"type": "int", "default": 0},
    "probe": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 10},
    "secrets": {"type": "dict", "no_log": True},
    "report": {"type": "bool"},
}
READS = True


def run(params, check_mode):
    """What runs here, and how it differs from the plan. Raises FleetError."""
    try:
        servers = status(
            Node.of_parameters(params),
            params["servers"],
            params["only"],
            params["log_lines"],
            params["probe"],
            params["timeout"],
            params["secrets"],
        )
    except OSError as error:
        raise os_error("What runs here cannot be read", error) from error
    return {"changed": False, "servers": servers, "differs": any(row["drift"] for row in servers)}
