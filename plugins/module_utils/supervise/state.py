# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the guard records of a server's starts, and the start limit that follows from it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import sys
import time

from ansible_collections.inference.fleet.plugins.module_utils.node.files import folder_lock, readable_json, write_json
from ansible_collections.inference.fleet.plugins.module_utils.node.processes import process
from ansible_collections.inference.fleet.plugins.module_utils.verify import gpt_oss

START_LIMIT_EXIT = 194  # the one exit after which a service manager must not start again
BURST = 5  # starts
TERM_S = 5.0
KILL_S = 5.0
RESTART_DELAY_S = 5.0
KEPT_STARTS = 20
WEIGHT_MANIFEST = ".inference-fleet-manifest.json"  # weights/manifest.py writes it beside weights
DIGITS = 12  # of a digest, for a person


class State:
    """The server's state file.

    {name, hash, user, pid, ticks, phase, since, started, starts, count, reason, artifact, weights, encodings}: pid and
    ticks name the process that wrote it; phase is "restarting", "waiting for NAME", "running" or "failed", since when:
    epoch seconds; started: when the engine was executed; starts: the latest of such times, without those of engines
    that were ended on request; count: how many there were in all since the module's own start; artifact: "compiles" or
    "loads" for a server with a compiled artifact, else null; weights: {folder: weights_note()} and encodings:
    encodings_note() as they were when the engine was executed, null before.
    """

    def __init__(self, path, name, entry_hash):
        self.path = path
        self.name = name
        self.hash = entry_hash
        kept = readable_json(path)
        kept = kept if isinstance(kept, dict) and kept.get("name") == name else {}
        now = time.time()
        self.artifact = None
        self.weights = None
        self.encodings = None
        self.starts = [start for start in kept.get("starts", []) if start < now + 60]  # a clock that was set back
        self.count = kept.get("count", len(self.starts))

    def recent(self, seconds):
        """How many starts lie in the last `seconds`."""
        return sum(1 for start in self.starts if start > time.time() - seconds)

    def count_start(self):
        self.starts = [*self.starts, round(time.time(), 3)][-KEPT_STARTS:]
        self.count += 1

    def write(self, phase, reason=None):
        """Record the phase. Where that fails, the log says so, and the server goes on: one that serves without a record
        is better than none."""
        try:
            self._write(phase, reason)
        except OSError as error:
            say("its record %s cannot be written (%s), so neither status nor the start limit know of this: %s"
                % (self.path, error.strerror, phase))  # fmt: skip

    def _write(self, phase, reason):
        now = round(time.time(), 3)
        state = {
            "name": self.name,
            "hash": self.hash,
            "user": user_of_process().pw_name,
            "pid": os.getpid(),
            "ticks": process(os.getpid()).ticks,
            "phase": phase,
            "since": now,
            "started": self.starts[-1] if phase == "running" and self.starts else None,
            "starts": self.starts,
            "count": self.count,
            "reason": reason,
            "artifact": self.artifact,
            "weights": self.weights,
            "encodings": self.encodings,
        }
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with folder_lock(os.path.dirname(self.path)):  # see take_back()
            write_json(self.path, state)


def take_back(state_path, pid):
    """Do not count the start of the engine `pid` any more: it is ended on request. Raises OSError.

    Nothing where the record is of another process, or of a guard that waits, since waiting is no start.
    """
    with folder_lock(os.path.dirname(state_path)):  # else a guard's newer record could be lost
        record = readable_json(state_path)
        if isinstance(record, dict) and record.get("phase") == "running" and record.get("pid") == pid:
            kept = [start for start in record.get("starts", ()) if start != record.get("started")]
            write_json(state_path, dict(record, starts=kept))


def start_interval(budget_s, burst=BURST, restart_delay_s=RESTART_DELAY_S):
    """Seconds within which `burst` starts are one too few to go on.

    Twice as long as that many whole start budgets, so that it also trips on a server that dies after 25 minutes of
    compiling, every time. A start whose engine was ended on request is taken back and counts no more, however often an
    operator, a leader or docker restarts it; see stop.take_back_if_asked() and reap.py.
    """
    return burst * (budget_s + restart_delay_s) * 2


def user_of_process():
    """The passwd entry of the user that this process runs as; one made of the number where there is none."""
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        return pwd.struct_passwd((str(os.getuid()), "x", os.getuid(), os.getgid(), "", "/", "/bin/sh"))


def say(text):
    """A line in the server's log."""
    sys.stdout.write("%s guard: %s\n" % (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), text))
    sys.stdout.flush()


def weight_records(folder):
    """{name: {size, sha256, mtime_ns, …}} of the manifest beside the weights in `folder`, None without one."""
    manifest = readable_json(os.path.join(folder, WEIGHT_MANIFEST))
    records = manifest.get("files") if isinstance(manifest, dict) else None
    return records if isinstance(records, dict) and all(isinstance(one, dict) for one in records.values()) else None


def weights_note(folder):
    """A digest of what the manifest in `folder` says of its files, None without one.

    A file that was repaired has the checksum that it always should have had, so when it was written counts too.
    """
    records = weight_records(folder)
    if records is None:
        return None
    return digest({name: [one.get("size"), one.get("sha256"), written(one)] for name, one in records.items()})


def written(record):
    """When a file of the manifest was written; mtime_ns may be newer, of bytes that were found as they were."""
    return record.get("written_ns", record.get("mtime_ns"))


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("utf-8")).hexdigest()


def encodings_note(entry):
    """{name: [bytes, when it was written, in ns]} of the vocabularies that the entry's engine reads, once, at its start
    or its first chat; None for an engine that has none."""
    folder = entry["environment"].get(gpt_oss.VOCABULARY_VARIABLE)
    if not folder:
        return None
    note = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            found = os.stat(os.path.join(folder, name))
            if name.endswith(gpt_oss.VOCABULARY_SUFFIX):
                note[name] = [found.st_size, found.st_mtime_ns]
    return note
