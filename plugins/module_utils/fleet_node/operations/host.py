# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on accounts, folders, Python environments and the hardware of a node."""

from __future__ import annotations

import os

from ..host import accounts, commands
from ..host import python_environment as environments
from ..host.metrics import file_in
from ..host.packages import missing_libraries
from ..host.paths import NodePaths
from ..operation import Operation
from ..platforms.registry import detect

ACCELERATOR_INFO = {"vendor": {"type": "str", "default": "auto"}}


def accelerator_info(params, check_mode):
    """The accelerators of the node. Raises FleetError."""
    return {"changed": False, **detect(params["vendor"]).as_dict()}


NODE_LAYOUT = {
    "root": {"type": "str", "default": ""},
    "user": {"type": "str"},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
}


def node_layout(params, check_mode):
    """The result of the module. Raises FleetError."""
    if params["state"] == "absent":
        return accounts.remove(params["root"], check_mode)
    return accounts.ensure(params["root"], params["user"] or None, check_mode=check_mode)


PYTHON_ENVIRONMENT = {
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
    "verify_imports": {"type": "list", "elements": "str", "default": []},
    "environment": {"type": "dict", "default": {}},
    "ca_bundle": {"type": "path"},
}


def python_environment(params, check_mode):
    """The result of the module. Raises FleetError."""
    return environments.ensure(environments.from_parameters(params), check_mode=check_mode)


NODE_EXPORTER = "prometheus-node-exporter"
SHARED_LIBRARIES = {"libraries": {"type": "list", "elements": "str", "required": True}}


def shared_libraries(params, check_mode):
    """The result of the module: {changed, message, missing: [names]}. Raises FleetError. Nothing is changed."""
    missing = missing_libraries(params["libraries"])
    message = "missing: %s" % ", ".join(missing) if missing else "all are there"
    return {"changed": bool(missing) and check_mode, "message": message, "missing": missing}


TEXTFILES = "/var/lib/prometheus/node-exporter/inference-fleet.prom"  # of Debian's package


def node_exporter(params, check_mode):
    """Whether node exporter runs and reads the metrics of this node's servers: {changed, message}. Nothing is changed.
    Raises FleetError if systemd hangs."""
    metrics = file_in(NodePaths().metrics)
    message = ""
    if not os.path.isfile(metrics) or os.path.realpath(TEXTFILES) != os.path.realpath(metrics):
        message = "node exporter does not read the metrics of the servers"
    elif commands.run(["systemctl", "is-active", "--quiet", NODE_EXPORTER]).returncode:
        message = "node exporter does not run"
    return {"changed": bool(message) and check_mode, "message": message}


OPERATIONS = {
    "accelerator_info": Operation(ACCELERATOR_INFO, accelerator_info, reads=True),
    "node_exporter": Operation({}, node_exporter, reads=True),
    "node_layout": Operation(NODE_LAYOUT, node_layout),
    "python_environment": Operation(PYTHON_ENVIRONMENT, python_environment),
    "shared_libraries": Operation(SHARED_LIBRARIES, shared_libraries),
}
