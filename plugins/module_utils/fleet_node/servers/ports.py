# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds the ports of servers."""

from __future__ import annotations

from ..containers.launcher import port_holder
from ..errors import FleetError
from .model import STARTS, STAY, Observed


def server_ports(entry):
    """[(port, what it is)] of an entry."""
    ports = [(entry["port"], "port")] if entry.get("port") else []
    return ports + [(port, "%s port" % kind) for kind, port in sorted((entry.get("ports") or {}).items()) if port]


COMMAND_SHOWN = 200  # characters


def holder_words(holder, root):
    """Who holds a port, for a person. holder: processes.port_holder()'s."""
    if holder["pid"] is None:
        return "a process of %s that this user cannot see" % holder["user"]
    words = "process %d of %s (%s)" % (holder["pid"], holder["user"], (holder["command"] or "gone")[:COMMAND_SHOWN])
    if holder["server"] is None:
        return words
    whose = "our server '%s'" % holder["server"]
    return "%s%s, %s" % (whose, "" if holder["root"] == (root or "/") else " of the root %s" % holder["root"], words)


def port_holders(node, entries, observed):
    """{name: [words]} of who holds ports of these entries and is not the server itself."""
    root = node.paths.root
    containers = {name: one.containers for name, one in observed.items()}
    found = {}
    for name, entry in entries.items():
        one = observed.get(name) or Observed(name)
        for port, what in server_ports(entry):
            holder = port_holder(entry["bind"], port, root, containers)
            ours = holder is not None and (holder["server"], holder["root"]) == (name, root or "/")
            if holder is None or ours or holder["pid"] in one.pids:
                continue
            words = "its %s %d on %s is held by %s" % (what, port, entry["bind"], holder_words(holder, root))
            found.setdefault(name, []).append(words)
    return found


def check_ports(node, actions, desired, observed):
    """FleetError where a port that a start needs is held by something that this run does not stop."""
    ending = {action.name for action in actions if action.kind not in STAY}
    root = node.paths.root or "/"
    containers = {name: one.containers for name, one in observed.items()}
    for action in actions:
        if action.kind not in STARTS:
            continue
        entry = desired[action.name].entry
        for port, what in server_ports(entry):
            holder = port_holder(entry["bind"], port, node.paths.root, containers)
            if holder is None or (holder["root"] == root and holder["server"] in ending):
                continue
            raise FleetError(
                "servers.port-held",
                "Server '%s': its %s %d on %s is held by %s. Nothing was changed. End that process, or plan "
                "another port.",
                (action.name, what, port, entry["bind"], holder_words(holder, root)),
                details={"port": port, "holder": holder},
            )
