# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on the servers of a node."""

from __future__ import annotations

import time

from ..clean import clean
from ..containers.launcher import our_containers
from ..discover import Operation
from ..errors import FleetError
from ..host.os_errors import os_error
from ..host.paths import NodePaths
from ..host.server_spec import check_entries
from ..model import gpt_oss
from ..servers.decide import AT_ONCE, CHANGES
from ..servers.model import CLOSINGS, NODE_ARGUMENTS, SERVERS_ARGUMENTS, STATES, Node, servers_elsewhere
from ..servers.observe import given_redactor, started_by_hand
from ..servers.preflight import preflight
from ..servers.readiness import check_ready
from ..servers.reconcile import acted
from ..servers.reconcile import run as run_servers
from ..servers.status import status
from ..services.base import LOG_LIMITS
from ..verify import runner

NODE_PREFLIGHT = {
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
    "adopt": {"type": "bool", "default": False},
}


def node_preflight(params, check_mode):
    """Checks the node and changes nothing. Raises FleetError."""
    result = preflight(**params)
    result["warnings"] = result["warnings"] + result["unchecked"]
    return result


ENGINE_SERVERS = {
    **SERVERS_ARGUMENTS,
    "state": {"type": "str", "default": "started", "choices": [*STATES, *CLOSINGS]},
    "changes": {"type": "str", "default": AT_ONCE, "choices": list(CHANGES)},
    "drain_s": {"type": "float", "default": 0},
    "adopt": {"type": "bool", "default": False},
    "secrets": {"type": "dict", "no_log": True},
    "reports_dir": {"type": "path"},
    "logs": {
        "type": "dict",
        "options": {name: {"type": "int", "default": value} for name, value in LOG_LIMITS.items()},
    },
    "start_on_boot": {"type": "bool", "default": False},
    "watchdog": {
        "type": "dict",
        "options": {
            "interval": {"type": "int", "default": 60},
            "failures": {"type": "int", "default": 3},
            "timeout": {"type": "int", "default": 60},
        },
    },
}


def engine_servers(params, check_mode):
    """Changes the servers to the plan. Raises FleetError, whose details contain the actions that were begun."""
    node = Node.of_parameters(params)
    try:
        return run_servers(node, params, check_mode)
    except FleetError as error:
        error.details = {"actions": acted(node.acted), **error.details}
        raise


def engine_servers_due(result):
    """Why servers have to change or to be waited for; None if all run as planned and answer."""
    names = {}
    actions = [(one["name"], one["reason"]) for one in result["actions"]]
    for name, reason in [*actions, *sorted(result["pending"].items())]:
        names.setdefault(reason, {})[name] = True
    why = ["%s: %s" % (", ".join(servers), reason) for reason, servers in names.items()]
    if result["changed"]:
        return "; ".join(why or result["diff"]["after"].splitlines())
    if not result["answering"]:
        rows = ["%s: %s" % (row["name"], row["reason"] or row["state"])
                for row in result["servers"] if row["state"] != "running"]  # fmt: skip
        return "; ".join(why or rows) or "not every server answers"
    return "; ".join(why) or None


ENGINE_SERVERS_INFO = {
    **SERVERS_ARGUMENTS,
    "log_lines": {"type": "int", "default": 0},
    "probe": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 10},
    "secrets": {"type": "dict", "no_log": True},
    "report": {"type": "bool"},
}


def engine_servers_info(params, check_mode):
    """The status of the servers, and how they differ from the plan. Raises FleetError."""
    try:
        servers = status(
            Node.of_parameters(params), params["servers"], params["only"], params["log_lines"], params["probe"],
            params["timeout"], params["secrets"],
        )  # fmt: skip
    except OSError as error:
        raise os_error("What runs here cannot be read", error) from error
    return {"changed": False, "servers": servers, "differs": any(row["drift"] for row in servers)}


FOREIGN_SERVERS = {
    "root": {"type": "path", "default": ""},
    "servers": {"type": "list", "elements": "dict", "required": True},
}


def foreign_servers(params, check_mode):
    """Servers on the ports of planned servers that were started by hand, as `found`."""
    entries = check_entries(params["servers"])
    containers = our_containers(params["root"], entries.values())
    found = started_by_hand(params["root"], entries.values(), containers)
    return {"changed": False, "found": [{"server": name, **one} for name, one in found.items()]}


ENGINE_READY = {
    **SERVERS_ARGUMENTS,
    "timeout": {"type": "int", "default": 30},
    "deployed": {"type": "bool", "default": False},
    "restarts": {"type": "int"},
    "wait_s": {"type": "int", "default": 0},
    "secrets": {"type": "dict", "no_log": True, "default": {}},
}


def engine_ready(params, check_mode):
    """Check the servers until they are ready or wait_s seconds are over. Raises FleetError if a server is not ready; it
    is final if waiting cannot help.

    `secrets` are masked, because a server that empties its file of secrets could log them.
    """
    redactor, end = given_redactor(params["secrets"]), time.monotonic() + params["wait_s"]
    while True:
        try:
            found = check_ready(
                Node.of_parameters(params), params["servers"], params["only"], timeout=params["timeout"],
                check=check_mode, deployed=params["deployed"], restarts=params["restarts"],
            )  # fmt: skip
            return redactor.value(found)
        except FleetError as error:
            final = error.details.get("final", True)
            interval = 0 if final else min(entry["health"]["poll_s"] for entry in params["servers"])
            if final or time.monotonic() + interval > end:
                masked = error.rewritten(redactor.text)
                masked.details = redactor.value(masked.details)
                raise masked from None
        time.sleep(interval)


ENDPOINT_VERIFY = {
    "servers": {"type": "list", "elements": "dict", "required": True},
    "workers_elsewhere": servers_elsewhere(
        role={"type": "str", "choices": ["prefill", "decode"], "required": True},
        bind={"type": "str", "required": True},
        ports={"type": "dict", "default": {}},
    ),
    "mode": {"type": "str", "choices": ["auto", "full", "quick"], "default": "auto"},
    "servers_changed": {"type": "bool"},
    "probes": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "path": {"type": "str", "default": "/v1/chat/completions"},
            "body": {"type": "dict"},
            "expect": {
                "type": "dict",
                "options": {
                    "status": {"type": "int", "default": 200},
                    "contains": {"type": "list", "elements": "str", "default": []},
                    "field": {"type": "str"},
                },
            },
        },
    },
    "effort_parameter": {
        "type": "str",
        "choices": list(gpt_oss.EFFORT_PARAMETERS),
        "default": gpt_oss.EFFORT,
    },
    "responses_api": {"type": "bool", "default": True},
    "timeout": {"type": "float", "default": 120},
    "quick_timeout": {"type": "float", "default": 20},
    **NODE_ARGUMENTS,
    "reports_dir": {"type": "path", "default": ""},
    "deployment": {"type": "dict", "default": {}},
    "simulated": {"type": "str", "default": ""},
    "problem": {"type": "str", "default": ""},
}


def endpoint_verify(params, check_mode):
    """A verdict for each server. Raises FleetError."""
    return {"changed": False, **runner.verify_from_parameters(params, check_mode)}


UNUSED_FILES = {
    "servers": {"type": "list", "elements": "dict", "required": True},
    "deployment": {"type": "dict", "default": {}},
    "root": {"type": "path", "default": ""},
    "remove": {"type": "bool", "default": False},
    "remove_shared": {"type": "bool", "default": False},
}


def unused_files(params, check_mode):
    """Finds and removes unused files. Raises FleetError."""
    return clean(
        NodePaths.of_parameter(params["root"]),
        list(check_entries(params["servers"]).values()),
        params["deployment"],
        params["remove"],
        params["remove_shared"],
        check_mode,
    )


OPERATIONS = {
    "node_preflight": Operation(NODE_PREFLIGHT, node_preflight, reads=True),
    "engine_servers": Operation(ENGINE_SERVERS, engine_servers, due=engine_servers_due),
    "engine_servers_info": Operation(ENGINE_SERVERS_INFO, engine_servers_info, reads=True),
    "engine_ready": Operation(ENGINE_READY, engine_ready),
    "endpoint_verify": Operation(ENDPOINT_VERIFY, endpoint_verify, reads=True),
    "unused_files": Operation(UNUSED_FILES, unused_files),
    "foreign_servers": Operation(FOREIGN_SERVERS, foreign_servers, reads=True),
}
