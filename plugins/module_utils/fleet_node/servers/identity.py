# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the process of a planned entry answers on its port, or which process does instead."""

from __future__ import annotations

import contextlib
import os
import threading
import time

from ..host import http_client, processes
from ..host.server_spec import entry_hash, health_port
from ..host.values import utc
from ..supervise import state as guard_state
from .drift import entry_changes
from .model import Observed, condition
from .observe import holder_words, note_ready, observe

NOT_VERIFIED = "not verified: "


class Stranger(Exception):
    """Another process answers than the planned server; the message describes it."""


class Watch:
    """Observes a node: a call with an entry returns who_answers() for it.

    All entries share the first observation. For further calls the node is observed again, once for those that wait for
    it at the same time.
    """

    def __init__(self, node):
        self.node = node
        self.planned = {}
        self._first, self._again = None, (0.0, None)  # (began, observation)
        self._last = {}  # {name: Observed} of each entry's last call
        self._lock = threading.Lock()

    def over(self, planned):
        """Observe all of these: {name: entry}. Returns itself."""
        self.planned = planned
        self._first, self._last = self._look(), {}
        return self

    def __call__(self, entry):
        name = entry["name"]
        observed, sockets = self._look_again() if name in self._last else self._first
        self._last[name] = observed.get(name) or Observed(name)
        return who_answers(self.node, entry, observed, sockets)

    def note_ready(self, names):
        """Record that these were ready: the processes of the last observation, which followed the probes."""
        for name in names:
            note_ready(self.node.paths, name, self._last[name].state)
            self._last[name].was_ready = True

    def starts(self):
        """{name: start_times()} of all entries, by their last observations."""
        last = {**self._first[0], **self._last}
        return {
            name: start_times(self.node.paths, entry, last.get(name) or Observed(name))
            for name, entry in self.planned.items()
        }

    def _look(self):
        observed = observe(self.node.paths, self.node.manager, self.planned)
        return observed, processes.Sockets(lambda: [pid for one in observed.values() for pid in one.pids])

    def _look_again(self):
        """An observation that began after this call."""
        called = time.monotonic()
        with self._lock:
            if self._again[0] < called:
                self._again = time.monotonic(), self._look()
            return self._again[1]


def who_answers(node, entry, observed, sockets=None):
    """Describes the process that answers for `entry`. observed: of observe(); sockets: processes.Sockets of that time.
    Raises Stranger if it does not belong to that entry."""
    one = observed.get(entry["name"]) or Observed(entry["name"])
    deployed_as_planned(node, entry, one)
    pid, runs = _running(entry, one)
    if runs != entry["hash"]:
        raise Stranger(
            "%s runs the entry %s, and the plan's is %s; site.yml restarts it"
            % (entry["name"], _short(runs), _short(entry["hash"]))
            + _answers_instead(node, entry)
        )
    process = "its container"
    if pid is not None:
        process = "process %d (%s)" % (pid, http_client.cut(processes.command(pid) or "gone", 120))
    words = "%s runs the planned entry %s" % (process, _short(runs))
    port = health_port(entry)
    if port is None:
        return words
    published = any(port in container.ports for container in one.containers if container.running)
    holders = processes.port_holders(entry["bind"], port, sockets)
    if not holders:
        return "%s; %s" % (words, "its container publishes the port %d" % port if published else
                           "nothing listens on the port %d" % port)  # fmt: skip
    for holder in holders:
        ours = holder["server"] == entry["name"] and holder["root"] == (node.paths.root or "/")
        if ours and holder["pid"] in one.pids:
            continue
        if entry["container"] and (published or holder["pid"] is None):
            words += "; the process that holds the port %d cannot be seen as this user, its container can" % port
            continue
        raise Stranger("the port %d is held by %s" % (port, holder_words(holder, node.paths.root)))
    return "%s and holds the port %d" % (words, port)


def deployed_as_planned(node, entry, one):
    """Raises Stranger unless the deployed entry is the planned entry."""
    name = entry["name"]
    if one.entry is None:
        raise Stranger("nothing is deployed as %s%s" % (name, _answers_instead(node, entry)))
    if one.entry.get("hash") == entry["hash"] and entry_hash(one.entry) == entry["hash"]:
        return
    fields = ", ".join(change[0] for change in entry_changes(one.entry, entry))
    raise Stranger(
        "%s is deployed as the entry %s, and the plan's is %s; they differ in %s%s"
        % (name, _short(one.entry.get("hash")), _short(entry["hash"]), fields or "hash", _answers_instead(node, entry))
    )


def _running(entry, one):
    """(pid, hash) of a server's process. Raises Stranger if there is none, or its entry is unknown."""
    name = entry["name"]
    if entry["container"]:
        found = next((container for container in one.containers if container.running), None)
        if found is None:
            raise Stranger("no container of %s runs%s" % (name, _doing(one)))
        return one.pids[0] if one.pids else None, found.hash
    pid = guard_state.recorded_pid(one.state)
    if pid in one.pids:
        return pid, one.state.get("hash")
    if one.pids:
        words = "%s runs as process %d, whose start is not recorded, so its entry is not known; site.yml restarts it"
        raise Stranger(words % (name, one.pids[0]))
    if pid is not None:
        raise Stranger("the process %d of %s cannot be seen as this user; run with become to see it" % (pid, name))
    raise Stranger("%s does not run%s" % (name, _doing(one)))


def _doing(one):
    now = condition(one)
    return " (%s)" % ": ".join(filter(None, (now.state, now.reason)))


def _answers_instead(node, entry):
    """ "; the port … is held by …" if another process answers instead of the planned server."""
    port = health_port(entry)
    holders = processes.port_holders(entry["bind"], port) if port else []
    words = " and ".join(holder_words(holder, node.paths.root) for holder in holders)
    return "; the port %d is held by %s" % (port, words) if words else ""


def _short(text):
    return text[: guard_state.DIGITS] if isinstance(text, str) and text else "unknown"


def start_times(paths, entry, observed):
    """{started, ready: UTC or None, artifact: "compiles", "loads" or None, memory_mib}.

    observed: Observed of the server. ready: when this process was first seen ready. memory_mib: of its processes, on
    the host.
    """
    state, ready = observed.state, None
    with contextlib.suppress(OSError):
        ready = os.stat(paths.ready(entry["name"])).st_mtime if observed.was_ready else None
    return {
        "started": utc(state.get("started")),
        "ready": utc(ready),
        "artifact": state.get("artifact"),
        "memory_mib": processes.memory_mib(observed.pids),
    }
