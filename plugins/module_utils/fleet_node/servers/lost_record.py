# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of a server's start when it is gone: made anew from /proc where that is certain."""

from __future__ import annotations

import os
import time

from ..node import files, processes
from ..node.files import read_json
from ..node.server_spec import ARTIFACT_RECORD, artifact_directory
from ..supervise import shared_folder
from ..supervise import state as guard_state
from .model import Fault

CLOCK_S = 2.0  # how far the time of a file and that of a process may be apart


def lost_record(paths, name, entry, service, state):
    """The Fault of an engine that runs without a record of its start, None where it has one or is no engine yet.

    entry: as deployed; service: its services.Status; state: the record that is there, {} without one.
    """
    pid = service.pid if service is not None else None
    found = processes.process(pid) if pid else None
    if found is None or (state.get("pid"), state.get("ticks")) == (pid, found.ticks):
        return None
    if processes.markers_of(pid) != (paths.root or "/", name) or paths.guard in processes.argv(pid):
        return None  # a guard writes the record before it becomes the engine
    try:
        record = _rebuilt(paths, name, entry, pid, found.ticks)
    except OSError:
        return None  # it has ended meanwhile
    return Fault("the record of its start is gone" + (", and was made anew" if record else ""), record)


def _rebuilt(paths, name, entry, pid, ticks):
    """The record of a process, None where it may have been started from anything else than what is deployed now."""
    with open("/proc/uptime", encoding="ascii") as stream:
        booted = time.time() - float(stream.read().split()[0])
    started = round(booted + ticks / os.sysconf("SC_CLK_TCK"), 3)
    entry = entry or {}
    files = [paths.entry(name), paths.secret(name), (entry.get("config") or {}).get("path")]
    files += [os.path.join(folder, guard_state.WEIGHT_MANIFEST) for folder in entry.get("weights", ())]
    encodings = guard_state.encodings_note(entry) if entry.get("environment") is not None else None
    written = [os.stat(path).st_mtime for path in filter(None, files) if os.path.exists(path)]
    written += [nanoseconds / 1e9 for _size, nanoseconds, _inode, _sha256 in (encodings or {}).values()]
    if not entry.get("hash") or any(moment > started + CLOCK_S for moment in written):
        return None
    artifact = artifact_directory(entry)
    compiled = read_json(os.path.join(artifact, ARTIFACT_RECORD)) if artifact else None
    compiles = isinstance(compiled, dict) and (compiled.get("pid"), compiled.get("ticks")) == (pid, ticks)
    return {
        "name": name,
        "hash": entry["hash"],
        "user": processes.user_name(os.stat("/proc/%d" % pid).st_uid),
        "pid": pid,
        "ticks": ticks,
        "phase": "running",
        "since": started,
        "started": started,
        "starts": [started],
        "count": 1,
        "reason": None,
        "artifact": ("compiles" if compiles else "loads") if artifact else None,
        "weights": {folder: guard_state.weights_note(folder) for folder in entry.get("weights", ())},
        "encodings": encodings,
        "folder": shared_folder.note(entry) if entry.get("environment") is not None else None,
    }


def write_record(paths, record):
    """Put a record where the guard would have; it belongs to the server's user, who writes the next. Raises OSError."""
    path = paths.server_state(record["name"])
    owner = os.stat("/proc/%d" % record["pid"])
    with files.folder_lock(os.path.dirname(path)):
        mode = os.stat(paths.entry(record["name"])).st_mode & 0o644  # as the guard does
        files.write_json(path, record, mode, (owner.st_uid, owner.st_gid) if os.getuid() == 0 else None)
