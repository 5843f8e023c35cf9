# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on the servers of a node."""

from __future__ import annotations

import time

from ..clean import clean
from ..containers.engine import our_containers
from ..discover import Operation, lists, options, required
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
from ..verify import runner

HARDWARE = {
    **options("str", "accelerator"),
    **options("int", "count", "cores", "lnc"),
    **options("float", "memory_gib"),
    **options("dict", "cpu_affinity"),
    "exclude": {"type": "list", "elements": "int"},
}
NEEDS = {
    **options("str", "driver"),
    **options("int", "lnc"),
    **options("float", "device_memory_gib", "host_memory_gib", "disk_gib"),
    **{
        name: {"type": "list", "elements": "str"}
        for name in ("accelerators", "compute_capability", "cpu_flags", "libraries")
    },
}
NODE_PREFLIGHT = {
    "hardware": {"type": "dict", "options": HARDWARE},
    "needs": {"type": "dict", "options": NEEDS},
    **required("str", "platform"),
    **options("str", root=""),
    **options("dict", installs={}),
    **options("bool", prepares=True, adopt=False),
    **lists("str", "only"),
    **lists("path", "satisfied_by"),
    **lists("dict", "servers", "models", "venvs"),
}


def node_preflight(params, check_mode):
    """Checks the node and changes nothing. Raises FleetError."""
    result = preflight(**params)
    result["warnings"] = result["warnings"] + result["unchecked"]
    return result


SECRETS = {"secrets": {"type": "dict", "no_log": True}}
ENGINE_SERVERS = {
    **SERVERS_ARGUMENTS,
    **SECRETS,
    "state": {"type": "str", "default": "started", "choices": [*STATES, *CLOSINGS]},
    "changes": {"type": "str", "default": AT_ONCE, "choices": list(CHANGES)},
    "watchdog": {"type": "dict", "options": options("int", interval=60, failures=3, timeout=60)},
    **options("float", drain_s=0),
    **options("bool", adopt=False, start_on_boot=False),
    **options("path", "reports_dir"),
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
    return "; ".join(why) or (None if result["kept"] else "the plan is not kept yet for a rollback")


ENGINE_SERVERS_INFO = {
    **SERVERS_ARGUMENTS,
    **SECRETS,
    **options("int", log_lines=0, timeout=10),
    **options("bool", "report", probe=False),
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


FOREIGN_SERVERS = {**options("path", root=""), **required("list", "servers", elements="dict")}


def foreign_servers(params, check_mode):
    """Servers on the ports of planned servers that were started by hand, as `found`."""
    entries = check_entries(params["servers"])
    containers = our_containers(params["root"], entries.values())
    found = started_by_hand(params["root"], entries.values(), containers)
    return {"changed": False, "found": [{"server": name, **one} for name, one in found.items()]}


ENGINE_READY = {
    **SERVERS_ARGUMENTS,
    "secrets": {"type": "dict", "no_log": True, "default": {}},
    **options("int", "restarts", timeout=30, wait_s=0),
    **options("bool", deployed=False),
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


PROBE = {
    **required("str", "name"),
    **options("str", path="/v1/chat/completions"),
    **options("dict", "body"),
    "expect": {
        "type": "dict",
        "apply_defaults": True,
        "options": {**options("int", status=200), **options("str", "field"), **lists("str", "contains")},
    },
}
ENDPOINT_VERIFY = {
    **NODE_ARGUMENTS,
    "mode": {"type": "str", "choices": ["auto", "full", "quick"], "default": "auto"},
    "effort_parameter": {"type": "str", "choices": list(gpt_oss.EFFORT_PARAMETERS), "default": gpt_oss.EFFORT},
    "workers_elsewhere": servers_elsewhere(
        role={"type": "str", "choices": ["prefill", "decode"], "required": True},
        **required("str", "bind"),
        **options("dict", ports={}),
    ),
    "probes": {"type": "list", "elements": "dict", "default": [], "options": PROBE},
    **required("list", "servers", elements="dict"),
    **options("bool", "servers_changed", responses_api=True),
    **options("float", timeout=120, quick_timeout=20),
    **options("path", reports_dir=""),
    **options("dict", deployment={}),
    **options("str", simulated="", problem=""),
}


def endpoint_verify(params, check_mode):
    """A verdict for each server. Raises FleetError."""
    return {"changed": False, **runner.verify_from_parameters(params, check_mode)}


UNUSED_FILES = {
    **required("list", "servers", elements="dict"),
    **options("dict", deployment={}),
    **options("path", root=""),
    **options("bool", remove=False, remove_shared=False),
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
