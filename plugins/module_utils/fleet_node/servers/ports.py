# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes that use the ports of servers."""

from __future__ import annotations

from ..containers.launcher import port_holder

COMMAND_SHOWN = 200  # characters


def server_ports(entry):
    """[(port, its name)] of an entry."""
    ports = [(entry["port"], "port")] if entry.get("port") else []
    return ports + [(port, "%s port" % kind) for kind, port in sorted((entry.get("ports") or {}).items()) if port]


def holder_words(holder, root):
    """A description of the process that uses a port. holder: processes.port_holder()'s."""
    if holder["pid"] is None:
        return "a process of %s that this user cannot see" % holder["user"]
    words = "process %d of %s (%s)" % (holder["pid"], holder["user"], (holder["command"] or "gone")[:COMMAND_SHOWN])
    if holder["server"] is None:
        return words
    whose = "our server '%s'" % holder["server"]
    return "%s%s, %s" % (whose, "" if holder["root"] == (root or "/") else " of the root %s" % holder["root"], words)


def foreign_holders(root, entries, containers, leaving=()):
    """[(name, holder, words)] of processes that use ports of these entries ([entry]) and are not the server itself.

    containers: {name: [Container]} of this root; leaving: names of servers of this root that release their ports.
    """
    found = []
    for entry in entries:
        for port, what in server_ports(entry):
            holder = port_holder(entry["bind"], port, root, containers)
            own = (
                holder is not None and holder["root"] == (root or "/") and holder["server"] in (entry["name"], *leaving)
            )
            if holder is not None and not own:
                words = "its %s %d on %s is held by %s" % (what, port, entry["bind"], holder_words(holder, root))
                found.append((entry["name"], holder, words))
    return found
