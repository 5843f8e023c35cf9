# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a host is unreachable, in one sentence, from what ssh and Ansible print about it."""

from __future__ import annotations

import os
import re
import shlex

from ansible import context

PLAYBOOK = "playbooks/replace_node.yml"
NAMED = "inference.fleet.replace_node"
SENT = re.compile(r"fingerprint for the (\S+) key sent by the remote host is\s+(SHA256:[A-Za-z0-9+/]{43})")
OFFENDING = re.compile(r"Offending \S+ key in (\S+:\d+)")
# Of several that fit, the first counts: ssh's later lines follow from the earlier ones.
REASONS = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for (?P<changed>\S+) has changed", "changed"),
    (r"REVOKED HOST KEY DETECTED|Host key .* was revoked|is marked as revoked",
     "its host key is one that known_hosts marks as revoked; do not connect before you know why"),
    (r"No \S+ host key is known for (?P<host>\S+)|Host key verification failed", "unknown"),
    (r"Could not resolve hostname (?P<host>\S+?): (?P<why>[^\r\n]+)",
     "its name {host} cannot be resolved ({why}); see ansible_host, or the name server"),
    (r"Connection refused",
     "connection refused: nothing listens on its ssh port. It may be booting, or ansible_port is another"),
    (r"No route to host|Host is down|Network is unreachable|Network unreachable",
     "no route to it: it is down, or a network between is"),
    (r"(Connection|Operation) timed out|Connection to .* timed out",
     "no answer in time: it is down, or a firewall drops the packets"),
    (r"UNPROTECTED PRIVATE KEY FILE|bad permissions|Bad owner or permissions on (?P<file>\S+)",
     "ssh does not use a private key or configuration that others may change or read; chmod 600 it"),
    (r"Too many authentication failures",
     "the node refuses after too many keys were offered; name one with ansible_ssh_private_key_file and "
     "IdentitiesOnly=yes"),
    (r"Permission denied \((?P<ways>[^)]+)\)|Invalid/incorrect password|Permission denied, please try again",
     "the login is refused ({ways}); see ansible_user and ansible_ssh_private_key_file"),
    (r"no matching (?P<what>host key type|key exchange method|cipher|MAC) found",
     "ssh and the node have no {what} in common"),
    (r"waiting for privilege escalation prompt",
     "become waits for a password that it does not get; give it with --ask-become-pass, or allow sudo without"),
    (r"Failed to create temporary directory",
     "the login works, but no temporary directory can be made there: is its disk full or read-only, or the home of "
     "another?"),
    (r"too long for Unix domain socket",
     "ssh's control path is too long; set a shorter control_path_dir in ansible.cfg"),
    (r"stdio forwarding failed|ProxyCommand|kex_exchange_identification: Connection closed",
     "the connection was closed before ssh began; see the jump host or the proxy, or the node's sshd"),
    (r"Connection reset by|Connection closed by|Broken pipe|Shared connection to \S+ closed",
     "the connection broke; the node may be rebooting"),
)  # fmt: skip
TABLE = "Unreachable"


def reason(message, host):
    """Why `host` is unreachable, a sentence for a person, of the message that Ansible has for it."""
    message = message if isinstance(message, str) else str(message)
    for pattern, words in REASONS:
        found = re.search(pattern, message)
        if not found:
            continue
        if words == "changed":
            return _changed(message, host, found)
        if words == "unknown":
            return "its host key is not in known_hosts; %s shows it" % replace_command(host)
        return words.format(**{key: value or "password" for key, value in found.groupdict().items()})
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.startswith("debug")]
    return lines[-1][:300] if lines else "nothing was said about why"


def _changed(message, host, found):
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
    """The command that accepts a node's new host key, as it can be typed where this run was started."""
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
