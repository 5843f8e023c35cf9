# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that keeps a server from being as planned, for playbooks/status.yml: what it does, its entry, and drift.py's."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.launchers.container import port_holder
from ansible_collections.inference.fleet.plugins.module_utils.launchers.process import program_problem
from ansible_collections.inference.fleet.plugins.module_utils.servers import drift
from ansible_collections.inference.fleet.plugins.module_utils.servers.reconcile import (
    NOT_ENABLED,
    Seen,
    changed_weights,
    changed_weights_words,
    compared,
    condition,
    config_path,
    entry_changes,
    server_ports,
)


def port_holders(node, entries, seen):
    """{name: [words]} of who holds ports of these entries and is not the server itself."""
    root = node.paths.root
    containers = {name: one.containers for name, one in seen.items()}
    found = {}
    for name, entry in entries.items():
        one = seen.get(name) or Seen(name)
        for port, what in server_ports(entry):
            holder = port_holder(entry["bind"], port, root, containers)
            ours = holder is not None and (holder["server"], holder["root"]) == (name, root or "/")
            if holder is None or ours or holder["pid"] in one.pids:
                continue
            words = "its %s %d on %s is held by %s" % (what, port, entry["bind"], drift.holder_words(holder, root))
            found.setdefault(name, []).append(words)
    return found


def differences(node, planned, name, seen, secrets, shared, holders):
    """[drift.Difference] of one server, the weightiest first.

    planned: {name: entry}; seen: servers.Seen; secrets: {variable: value}, as far as they are known; shared: paths of
    files that all servers share and that differ; holders: port_holders() of this server.
    """
    if name not in planned:
        return [drift.Difference("not planned", "not in the plan")]
    if seen.entry is None:
        return [drift.Difference("not deployed", "not deployed"), *_held(holders)]
    entry, found = planned[name], []
    now = condition(seen)
    if now.state == "failed":
        found.append(drift.Difference("failed", "it has failed: %s" % now.reason))
    elif now.state in ("stopped", "missing"):
        found.append(drift.Difference("stopped", "it is stopped"))
    elif not now.managed:
        found.append(drift.Difference("unmanaged", "%s (process %s)" % (now.reason, now.pid)))
    found += _held(holders)
    fields = [change[0] for change in entry_changes(seen.entry, entry)]
    if fields:
        found.append(drift.Difference("changed", "changed: " + ", ".join(fields)))
    elif now.hash is not None and now.hash != entry["hash"]:
        found.append(drift.Difference("changed", "changed: it runs an older entry than the deployed one"))
    changed = changed_weights(seen)
    if changed:
        found.append(drift.Difference("weights", "changed: " + changed_weights_words(changed)))
    want, problem = compared(node, entry, secrets)
    if problem:
        found.append(drift.Difference("definition", problem))
    if "config" not in fields and seen.config != want.config:
        lost = "is missing" if seen.config is None else "differs"
        found.append(drift.Difference("config", "its configuration file %s (%s)" % (lost, config_path(entry))))
    if seen.secrets_read and any(seen.secrets.get(key) != value for key, value in want.secrets.items()):
        keys = sorted(key for key, value in want.secrets.items() if seen.secrets.get(key) not in (None, value))
        if keys:
            found.append(drift.Difference("secrets", "its file of secrets has another value of %s" % ", ".join(keys)))
    if now.state not in ("stopped", "missing"):
        if seen.definition is None and not seen.unit and not problem and now.managed:
            found.append(drift.Difference("definition", "its service definition is missing"))
        if seen.service and not seen.service.enabled:
            found.append(drift.Difference("not enabled", NOT_ENABLED))
        gone = program_problem(entry)
        if gone:
            found.append(drift.Difference("program", gone))
    if seen.ailment is not None:
        found.append(drift.Difference("ailing", seen.ailment.reason))
    if seen.bound is not None and now.state in ("running", "waiting"):
        found.append(drift.Difference("definition", seen.bound))
    found += drift.differences(want, seen)
    found += [drift.Difference("shared file", "%s differs from this collection's" % path) for path in shared]
    return found


def _held(holders):
    return [drift.Difference("port", words) for words in holders]
