# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until servers that are about to be stopped have answered what they were asked."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ..engines import health_request as asking
from ..engines.registry import engine_of
from ..node import http_client, processes
from ..node.server_spec import health_port
from .model import condition

POLL_S = 0.2
METRICS_S = 2.0
CLOSE_S = 2.0


def drain(servers, seconds):
    """Return when none of these ([Observed]) has a request, at the latest after so many seconds.

    A server keeps its port meanwhile. One whose engine can refuse new requests does so, and clients ask another server.
    One whose engine finishes its requests by itself, when it is asked to end, is asked to, and has the time that its
    own command gives it on top.
    """
    busy = [one for one in servers if condition(one).state == "running" and one.entry and one.entry.get("engine")]
    end = time.monotonic() + seconds
    running = list(busy)
    while busy and seconds > 0:
        for one in running:
            _signal(one, engine_of(one.entry).drain_signal)
        busy = [one for one in busy if _requests(one)]
        if not busy or time.monotonic() > end:
            break
        time.sleep(POLL_S)
    if seconds > 0:
        _close(running)
    ends = [end_of for end_of in map(_ask_to_end, busy) if end_of is not None]
    while any(processes.process(pid) is not None and time.monotonic() < limit for pid, limit in ends):
        time.sleep(POLL_S)


def _requests(one):
    """How many requests a server has, as its engine counts them; clients' connections where it does not count."""
    entry = one.entry
    port = health_port(entry)
    if port is None:
        return 0
    base = http_client.base_url(entry.get("bind") or "127.0.0.1", port)
    answer = http_client.request("GET", base + "/metrics", timeout=METRICS_S, headers=asking.headers(one.secrets))
    counted = engine_of(entry).requests(answer.text or "") if answer.ok else None
    return processes.connections(port) if counted is None else counted


def _close(servers):
    """Close the ports of engines that can do so: a connection that nobody accepts would be reset at the end."""
    ports = [health_port(one.entry) for one in servers if _signal(one, engine_of(one.entry).close_signal)]
    end = time.monotonic() + CLOSE_S
    while any(port in ports for _address, port, _inode in processes.listening_sockets()) and time.monotonic() < end:
        time.sleep(POLL_S / 4)


def _signal(one, sign):
    """Signal an engine that handles this signal; a drain is longer than a turn of all servers. Whether it was sent."""
    pid = one.service.pid if one.service is not None else None
    own = one.entry.get("launcher") != "container"  # a container engine's client catches it and hands it on
    if sign and own and pid is not None and processes.catches(pid, sign):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sign)
            return True
    return False


def _ask_to_end(one):
    """(pid, when it must have ended) of an engine that was asked to finish what it has; None for any other."""
    seconds = engine_of(one.entry).finishes_within(one.entry)
    pid = one.service.pid if one.service is not None else None
    if not seconds or pid is None:
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)
        return pid, time.monotonic() + seconds
    return None
