# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server as a run would have deployed it, without a service manager: its entry, its record, and a marked process that
holds its port and passes requests on to a scripted engine of the test."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths

FORWARDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "forwarder.py")


def a_port():
    """A socket that listens on a port of its own, for holding()."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    return listener


@contextlib.contextmanager
def holding(listener, target, root="", name=""):
    """A process that holds the listener's port for the block, marked as the server `name` of `root` where one is
    given; it passes requests on to the port `target`. Yields its pid."""
    markers = {processes.MARKER_SERVER: name, processes.MARKER_ROOT: root or "/"} if name else {}
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", FORWARDER, str(listener.fileno()), str(target)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **markers}, pass_fds=[listener.fileno()],
    )  # fmt: skip
    try:
        process.stdout.readline()
        listener.close()
        yield process.pid
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def write_down(root, entry, pid, runs=None):
    """The files of an entry whose process is `pid` and runs the entry with the hash `runs`, its own by default."""
    paths = NodePaths(str(root))
    record = {"name": entry["name"], "hash": runs or entry["hash"], "user": "x", "pid": pid, "phase": "running",
              "ticks": processes.process(pid).ticks, "since": 1.0, "starts": [1.0], "count": 1}  # fmt: skip
    for path, value in ((paths.entry(entry["name"]), entry), (paths.server_state(entry["name"]), record)):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(value, stream)


@contextlib.contextmanager
def deployed(root, target, make_entry):
    """Deploy make_entry(port) below `root` for the block, in front of the port `target`; yields the entry."""
    listener = a_port()
    entry = make_entry(listener.getsockname()[1])
    with holding(listener, target, str(root), entry["name"]) as pid:
        write_down(root, entry, pid)
        yield entry
