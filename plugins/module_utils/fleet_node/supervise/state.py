# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of a server's starts, which the guard writes, and the start limit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
import time

from ..host.files import fits, readable_json, record_lock, sha256_file, write_json
from ..host.processes import ENDED, process
from ..host.values import utc
from ..model import gpt_oss

START_LIMIT_EXIT = 194  # the exit status after which a service manager must not start a server again
BURST = 5  # starts
TERM_S = 5.0
KILL_S = 5.0
RESTART_DELAY_S = 5.0
KEPT_STARTS = 20
WEIGHT_MANIFEST = ".inference-fleet-manifest.json"  # weights/manifest.py writes it next to weights
DIGITS = 12  # of a digest in messages
MOST = {"phase": 100, "reason": 2000}  # characters
LAST = 1 << 33  # more than any pid, and a time of the year 2242
RECORD = {
    "hash": (str, None), "pid": int, "ticks": int, "phase": str, "since": (float, None),
    "started": (float, None), "starts": [float], "count": int, "reason": (str, None),
    "artifact": (str, None), "weights": ({"*": (str, None)}, None),
}  # fmt: skip


def read_record(path):
    """The record of a server's start, {} without one. The server's account can write it: a record with other types or
    times than those of State is ignored, and the next start replaces it."""
    record = readable_json(path)
    if not isinstance(record, dict) or not fits(record, RECORD):
        return {}
    record = {key: record[key] for key in RECORD if key in record}
    times = [one for one in (record.get("since"), record.get("started"), *record.get("starts", ())) if one is not None]
    numbers = [record.get(key, 1) for key in ("pid", "count")]
    sane = all(0 <= one < LAST for one in (*times, *numbers)) and record.get("ticks", 0) >= 0
    if not sane or len(times) > 2 * KEPT_STARTS:
        return {}
    return {**record, **{key: record[key][:most] for key, most in MOST.items() if record.get(key)}}


def recorded_pid(record):
    """The pid of the process that a record (read_record()) is of, None if that process has ended."""
    found = process(record.get("pid") or 0)
    same = found is not None and found.ticks == record.get("ticks") and found.state not in ENDED
    return record["pid"] if same else None


def read_secrets(path):
    """{variable: value} of a file of secrets, which the server's account owns; {} without one, or for other content."""
    secrets = readable_json(path)
    return secrets if isinstance(secrets, dict) and fits(secrets, {"*": str}) else {}


class State:
    """The server's state file.

    {hash, pid, ticks, phase, since, started, starts, count, reason, artifact, weights}: pid and ticks name the process
    that wrote it; phase is "restarting", "waiting for NAME", "running" or "failed", since when: epoch seconds; started:
    when the engine was executed; starts: the latest of such times, without those of engines that were ended on request;
    count: the number of all starts since the module's own start; artifact: "compiles" or "loads" for a server with a
    compiled artifact, else null; weights: weights_read() when the engine was executed, null before.
    """

    def __init__(self, path, entry_hash, mode=0o640):
        self.path, self.hash, self.mode = path, entry_hash, mode
        self.artifact = self.weights = None
        kept = read_record(path)
        self.starts = [start for start in kept.get("starts", []) if start < time.time() + 60]  # after a clock's setback
        self.count = kept.get("count", len(self.starts))
        self.ended = kept.get("phase") == "running"  # an engine, and no guard that waited

    def recent(self, seconds):
        """The number of starts in the last `seconds`."""
        return sum(1 for start in self.starts if start > time.time() - seconds)

    def forgive(self):
        """Do not count the start whose engine has ended, because a service that it needs is not available."""
        if self.ended:
            self.starts = self.starts[:-1]
        self.ended = False

    def count_start(self):
        self.starts = [*self.starts, round(time.time(), 3)][-KEPT_STARTS:]
        self.count += 1

    def write(self, phase, reason=None):
        """Record the phase. If that fails, the log reports it and the server starts anyway."""
        record = {key: getattr(self, key) for key in
                  ("hash", "starts", "count", "artifact", "weights")}  # fmt: skip
        record.update(phase=phase, reason=reason, since=round(time.time(), 3), pid=os.getpid(),
                      ticks=process(os.getpid()).ticks)  # fmt: skip
        record["started"] = self.starts[-1] if phase == "running" and self.starts else None
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with record_lock(os.path.dirname(self.path)):  # see take_back()
                write_json(self.path, record, self.mode)
        except OSError as error:
            say("its record %s cannot be written (%s), so neither status nor the start limit know of this: %s"
                % (self.path, error.strerror, phase))  # fmt: skip


def take_back(state_path, pid):
    """Do not count the start of the engine `pid`, which is ended on request. Raises OSError.

    The record stays if it belongs to another process, or to a guard that waits.
    """
    with record_lock(os.path.dirname(state_path)):  # else a guard's newer record could be lost
        record = read_record(state_path)
        if record.get("phase") == "running" and record.get("pid") == pid:
            kept = [start for start in record.get("starts", ()) if start != record.get("started")]
            found = os.lstat(state_path)
            owner = (found.st_uid, found.st_gid) if os.geteuid() == 0 else None
            write_json(state_path, dict(record, starts=kept), stat.S_IMODE(found.st_mode), owner)


def start_interval(budget_s, burst=BURST, restart_delay_s=RESTART_DELAY_S):
    """The interval in seconds of the start limit, in which `burst` starts are permitted.

    It is twice as long as that many start budgets, so that the limit also stops a server that fails after 25 minutes of
    compiling every time. With systemd, a start whose engine was ended on request does not count, however often an
    operator, a leader or docker restarts it; see containers.take_back_if_asked().
    """
    return burst * (budget_s + restart_delay_s) * 2


def say(text, who="guard"):
    """Write a line to the log of the server, or of the watchdog."""
    sys.stdout.write("%s %s: %s\n" % (utc(time.time()), who, text))
    sys.stdout.flush()


def weight_records(folder):
    """{name: {size, sha256, mtime_ns, …}} of the manifest of the weights in `folder`, None without one."""
    manifest = readable_json(os.path.join(folder, WEIGHT_MANIFEST))
    records = manifest.get("files") if isinstance(manifest, dict) else None
    return records if isinstance(records, dict) and all(isinstance(one, dict) for one in records.values()) else None


def weights_note(folder):
    """A digest of the manifest in `folder`, None without one.

    A repaired file has the same checksum as before the damage, so the time of writing is part of it.
    """
    records = weight_records(folder)
    if records is None:
        return None
    return digest({name: [one.get("size"), one.get("sha256"), written(one)] for name, one in records.items()})


def written(record):
    """When a file of the manifest was written; mtime_ns may be newer, for content that was verified again."""
    return record.get("written_ns", record.get("mtime_ns"))


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("utf-8")).hexdigest()


def weights_read(entry, note=weights_note, digest_of=sha256_file):
    """{folder of weights: weights_note(), vocabulary: sha256} of what the engine of an entry reads once, at its start
    or its first chat. A vocabulary that is missing is not in it."""
    found = {folder: note(folder) for folder in entry.get("weights") or ()}
    folder = (entry.get("environment") or {}).get(gpt_oss.VOCABULARY_VARIABLE)
    with contextlib.suppress(OSError, ValueError):
        for name in os.listdir(folder) if folder else ():
            if name.endswith(gpt_oss.VOCABULARY_SUFFIX):
                found[os.path.join(folder, name)] = digest_of(os.path.join(folder, name))
    return found
