# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reason why a host is unreachable: the last line of ssh's message, or what to do about its host key."""

from __future__ import annotations

import os
import re
import shlex

from ansible import context

PLAYBOOK = "playbooks/replace_node.yml"
NAMED = "inference.fleet.replace_node"
SENT = re.compile(r"fingerprint for the (\S+) key sent by the remote host is\s+(SHA256:[A-Za-z0-9+/]{43})")
OFFENDING = re.compile(r"Offending \S+ key in (\S+:\d+)")
CHANGED = re.compile(r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for \S+ has changed")
UNKNOWN = re.compile(r"No \S+ host key is known for|Host key verification failed")
TABLE = "Unreachable"


def reason(message, host):
    """A sentence about Ansible's message for an unreachable host."""
    message = str(message)
    if CHANGED.search(message):
        return _changed(message, host)
    if UNKNOWN.search(message) and "revoked" not in message.lower():
        return "its host key is not in known_hosts; %s shows it" % replace_command(host)
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.startswith("debug")]
    return lines[-1].rpartition("reached over ssh: ")[2][:300] if lines else "no message was returned"


def _changed(message, host):
    sent, place = SENT.search(message), OFFENDING.search(message)
    text = "its host key has changed"
    if sent:
        text += " to %s (%s)" % (sent.group(2), sent.group(1))
    if place:
        text += ", %s has another" % place.group(1)
    return text + "; if the node was replaced, and that is its fingerprint: %s" % replace_command(
        host, sent.group(2) if sent else "SHA256:…"
    )


def replace_command(host, fingerprint=None):
    """The command that accepts a node's new host key, with paths relative to the working directory."""
    playbook = PLAYBOOK if os.path.exists(PLAYBOOK) else NAMED
    words = ["ansible-playbook", playbook]
    for source in context.CLIARGS.get("inventory") or ():
        if "," not in source:
            near = os.path.relpath(source)
            source = source if near.startswith("..") else near
        words += ["-i", source]
    words += ["-e", "fleet_node=%s" % host]
    if fingerprint:
        words += ["-e", "fleet_host_key=%s" % fingerprint]
    return " ".join(word if re.match(r"^[\w@%+=:,./…-]+$", word) else shlex.quote(word) for word in words)


def table(reasons):
    """{host: reason} as a report {title, columns, rows}."""
    return {"title": TABLE, "columns": ["host", "reason"], "rows": [[host, reasons[host]] for host in sorted(reasons)]}
