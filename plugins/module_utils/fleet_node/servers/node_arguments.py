# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options that modules for a node's servers share; the fragment inference.fleet.node documents them."""

from __future__ import annotations

from ..node.paths import NodePaths
from ..services import MANAGERS, get_manager
from .model import Node

NODE_ARGUMENTS = {
    "root": {"type": "path", "default": ""},
    "manager": {"type": "str", "default": "auto", "choices": list(MANAGERS)},
    "toolkit": {"type": "path"},
}
SERVERS_ARGUMENTS = {
    **NODE_ARGUMENTS,
    "servers": {"type": "list", "elements": "dict", "required": True},
    "only": {"type": "list", "elements": "str"},
}


def node_of(params):
    """The Node that a module's parameters name. Raises FleetError."""
    paths = NodePaths.of_parameter(params["root"])
    manager = get_manager(params["manager"], paths, params["toolkit"])
    user = params.get("user")
    accounts = {one.get("user") or user for one in params.get("servers") or () if isinstance(one, dict)}
    return Node(paths, manager, user, params.get("deployer") or {}, frozenset(accounts - {None}))
