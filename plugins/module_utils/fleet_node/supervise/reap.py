# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An event listener of supervisord."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

from ..host.paths import PREFIX
from ..host.processes import process
from ..host.server_spec import read_entry
from .state import read_record, take_back

FOLLOWER_S = 15.0


def reap(source, sink, servers=None, states=None):
    """Serve supervisord's event listener protocol until the input ends: kill the group of each program that ended.

    servers, states: folders of entries and of guards' records; servers that restart with the one that ended are ended,
    so that supervisord starts them again. What ended on request is no failed start, nor are these.
    """
    while True:
        sink.write(b"READY\n")
        sink.flush()
        line = source.readline()
        if not line:
            return 0
        headers = dict(item.split(b":", 1) for item in line.split())
        payload = source.read(int(headers[b"len"]))
        event = dict(item.split(b":", 1) for item in payload.split() if b":" in item)
        pid = int(event.get(b"pid", b"0"))
        group = event.get(b"groupname", b"")
        if pid > 1 and group.startswith(PREFIX.encode()):
            name = os.fsdecode(group[len(PREFIX) :])
            if states and headers.get(b"eventname") == b"PROCESS_STATE_STOPPED":  # else it is EXITED
                with contextlib.suppress(OSError):
                    take_back(os.path.join(states, name + ".json"), pid)
            reap_group(pid)
            for state_path, follower, ticks in followers(name, pid, servers, states):
                with contextlib.suppress(OSError):
                    take_back(state_path, follower)
                end_follower(follower, ticks)
        sink.write(b"RESULT 2\nOK")
        sink.flush()


def reap_group(pid):
    """Kill what the ended process `pid` left in its process group."""
    if process(pid) is not None:
        return  # the number belongs to another process by now
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def followers(leader, ended, servers, states):
    """[(path of the record, pid, ticks)] of the engines that run and restart with the server `leader`, whose process
    `ended` has ended.

    Not those that were started after its successor: who hears late of an end must not take them for its followers.
    """
    found = []
    successor = read_record(os.path.join(states or "", leader + ".json"))
    since = successor.get("started") if successor.get("pid") != ended else None
    try:
        names = sorted(name for name in os.listdir(servers or "") if name.endswith(".json"))
    except OSError:
        return found
    for name in names:
        start = (read_entry(os.path.join(servers, name)) or {}).get("start") or {}
        if start.get("restart_with_leader") and leader in start.get("after", ()):
            path = os.path.join(states, name)
            record = read_record(path)
            running = process(record.get("pid") or 0)
            if since is not None and (record.get("started") or 0) >= since:
                continue
            same = running is not None and running.ticks == record.get("ticks")
            if record.get("phase") == "running" and same and is_of_its_account(path, record["pid"]):
                found.append((path, record["pid"], record["ticks"]))
    return found


def is_of_its_account(path, pid):
    """Whether the process runs as the account that the record `path` belongs to; that could name anybody's process."""
    try:
        return os.lstat(path).st_uid in (0, os.stat("/proc/%d" % pid).st_uid)
    except OSError:
        return False


def end_follower(pid, ticks):
    """TERM, and KILL where it is still there after FOLLOWER_S; supervisord starts it again."""

    def kill():
        found = process(pid)
        if found is not None and found.ticks == ticks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)
    timer = threading.Timer(FOLLOWER_S, kill)
    timer.daemon = True
    timer.start()
