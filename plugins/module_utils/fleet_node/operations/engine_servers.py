# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What engine_servers takes and does."""

from __future__ import annotations

from ..errors import FleetError
from ..servers.decide import AT_ONCE, CHANGES
from ..servers.model import CLOSINGS, SERVERS_ARGUMENTS, STATES, Node
from ..servers.reconcile import acted
from ..servers.reconcile import run as run_servers
from ..services import boot
from ..services.base import LOG_LIMITS

ARGUMENTS = {
    **SERVERS_ARGUMENTS,
    "state": {"type": "str", "default": "started", "choices": [*STATES, *CLOSINGS]},
    "changes": {"type": "str", "default": AT_ONCE, "choices": list(CHANGES)},
    "drain_s": {"type": "float", "default": 0},
    "secrets": {"type": "dict", "no_log": True},
    "user": {"type": "str"},
    "deployment": {"type": "dict"},
    "deployer": {"type": "dict"},
    "reports_dir": {"type": "path"},
    "restarted": {"type": "list", "elements": "str", "default": []},
    "purge": {"type": "bool", "default": False},
    "purge_artifacts": {"type": "bool", "default": False},
    "logs": {
        "type": "dict",
        "options": {name: {"type": "int", "default": value} for name, value in LOG_LIMITS.items()},
    },
    "start_on_boot": {"type": "str", "default": boot.NONE, "choices": list(boot.WAYS)},
    "watchdog": {
        "type": "dict",
        "options": {
            "interval": {"type": "int", "default": 60},
            "failures": {"type": "int", "default": 3},
            "timeout": {"type": "int", "default": 60},
        },
    },
}


def run(params, check_mode):
    """The result of the module; its warnings with it. Raises FleetError, whose details say what was begun."""
    node = Node.of_parameters(params)
    try:
        result, warnings = run_servers(node, params, check_mode)
    except FleetError as error:
        error.details = {"actions": acted(node.acted), **error.details}
        raise
    result["warnings"] = warnings
    return result


def due(result):
    """Why the servers have to be brought to the plan, or waited for; None where all are and answer."""
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
