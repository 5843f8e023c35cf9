# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options that modules for a node's servers share; the fragment inference.fleet.node documents them."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.servers.model import Node
from ansible_collections.inference.fleet.plugins.module_utils.services import MANAGERS, get_manager

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
DROP_INS = {"type": "str", "default": "remove", "choices": ["remove", "keep"]}


def node_of(params):
    """The Node that a module's parameters name. Raises FleetError."""
    try:
        paths = NodePaths(params["root"])
    except ValueError as error:
        raise FleetError("arguments.invalid", "%s.", (error,)) from error
    manager = get_manager(params["manager"], paths, params["toolkit"])
    manager.keep_drop_ins = params.get("drop_ins") == "keep"
    return Node(paths, manager, params.get("user"), params.get("deployer") or {})
