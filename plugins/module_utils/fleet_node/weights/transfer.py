# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfers files of a source into the staging folder, each correct by size and checksum.

Several files are transferred at a time, each by one request, which continues at the end of a growing file that a killed
run left. A file with wrong bytes is transferred again. A request that fails is repeated as long as that may help.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import threading
import time

from ..errors import FleetError
from ..host import files
from . import staging as stagings
from .manifest import staging_of
from .wanted import SourceProblem

BAD_LIMIT = 3  # times that a file may be received with wrong bytes
LONGEST_WAIT_S = 300
RATE_S = 15.0  # the period over which the rate of a progress is measured


class Progress:
    """The progress of a run."""

    def __init__(self):
        self._lock = threading.Lock()
        self.phase = "listing"
        self.total = 0
        self.file = None
        self._done = None
        self._samples = []
        self._wait = (0.0, "")

    def waits(self, seconds, reason):
        """A file waits for its next attempt."""
        self._wait = max(self._wait, (time.monotonic() + seconds, reason))

    def begin(self, phase, total, done):
        """A new phase of `total` bytes; done(): how many of them are transferred or read."""
        with self._lock:
            self.phase, self.total, self._done, self._samples, self.file = phase, total, done, [], None

    def verifying(self, total):
        """Begin to read `total` bytes that are on the node; returns the read(name, bytes) that counts them."""
        counts = {}

        def read(name, count):
            counts[name] = counts.get(name, 0) + count
            self.file = name

        self.begin("verifying", total, lambda: sum(list(counts.values())))
        return read

    def snapshot(self):
        """{phase, percent, bytes_done, bytes_total, rate_bytes_s, eta_s, file, waiting}; null if unknown, or if
        nothing waits."""
        with self._lock:
            done = min(self._done(), self.total) if self._done else 0
            now = time.monotonic()
            self._samples = [item for item in self._samples if now - item[0] <= RATE_S] + [(now, done)]
            then, before = self._samples[0]
            rate = max(0, done - before) / (now - then) if self._done and now - then >= 0.5 else None
            left = self.total - done
            until, reason = self._wait
            return {
                "phase": self.phase,
                "percent": int(1000 * done / self.total) / 10 if self.total else 0.0,
                "bytes_done": done,
                "bytes_total": self.total,
                "rate_bytes_s": None if rate is None else int(rate),
                "eta_s": None if not rate else int(left / rate) + (left > 0),
                "file": self.file,
                "waiting": "%d s: %s" % (round(until - now), reason) if until > now else None,
            }


class Stopped(Exception):
    """Another file failed permanently."""


def part_of(folder, path, record):
    """The path of a growing file in `folder`: the name differs with the listed content."""
    key = json.dumps([path, record["size"], record["sha256"], record.get("oid")])
    return os.path.join(folder, hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:40])


def bytes_of(part):
    """Bytes of a growing file that are on the disk; 0 without one."""
    return os.path.getsize(part) if os.path.isfile(part) else 0


def difference(path, record, sha256):
    """What is wrong with a file of this sha256, compared with its listed record; None if nothing is."""
    size = os.path.getsize(path)
    if size != record["size"]:
        return "%d bytes long, listed are %d" % (size, record["size"])
    if record["sha256"] is not None and sha256 != record["sha256"]:
        return "of sha256 %s, listed is %s" % (sha256, record["sha256"])
    if record.get("oid") is not None:
        found = _git_oid(path)
        if found != record["oid"]:
            return "of git sha1 %s, listed is %s" % (found, record["oid"])
    return None


def _git_oid(path):
    """git's sha1 of a file, which Hugging Face lists for small files. Against accidents; sha256 is recorded."""
    digest = hashlib.sha1(b"blob %d\0" % os.path.getsize(path))
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


class Transfer:
    """The files of one run. source: with listing() and read(), see sources.py. progress: a Progress.

    made: {path: sha256} of complete files. warnings: what was removed, for the result.
    """

    def __init__(self, wanted, source, progress):
        self.wanted = wanted
        self.source = source
        self.progress = progress
        self.place = staging_of(wanted.destination)
        self.made = {}
        self.warnings = []
        self._stop = threading.Event()
        self._handle = None

    @property
    def staging(self):
        """The path of the staging folder; while it is claimed, by its descriptor, which no rename of others changes."""
        return self.place if self._handle is None else stagings.path_of(self._handle)

    def listing(self):
        """The Listing of the wanted revision."""
        self.progress.begin("listing", 0, None)
        return self.patiently(self.source.listing)

    # ---- the staging folder

    def prepare(self, listing, target):
        """Claim the staging folder; parts of these files that an earlier run left in it are kept."""
        self._handle, warnings = stagings.claim(self.place)
        self.warnings += warnings
        listed = [*listing.files.items(), *target.items()]
        parts = {os.path.basename(part_of("", path, record)) for path, record in listed}
        for name in os.listdir(self.staging):
            if name not in parts:
                os.unlink(os.path.join(self.staging, name))

    def check_staging(self):
        """Raises FleetError if something else has the name of the staging folder now."""
        if not stagings.same(self.place, self._handle):
            raise stagings.replaced(self.place)

    def release(self):
        """Close the staging folder."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def leftovers(self):
        """[the staging folder] if its bytes can be reused or removed."""
        return [] if stagings.foreign(self.place) else [self.place]

    def on_disk(self, target, due):
        """Bytes of these files in the staging folder."""
        return sum(bytes_of(part_of(self.staging, path, target[path])) for path in due)

    # ---- files

    def fetch_all(self, listing, target, paths):
        """Transfer files into the staging folder, several at a time. The first failure ends all."""
        from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait  # as in manifest.hash_files

        with ThreadPoolExecutor(max_workers=self.wanted.workers) as pool:
            tasks = [pool.submit(self.fetch, listing, path, target[path], self.staging) for path in paths]
            wait(tasks, return_when=FIRST_EXCEPTION)
            self._stop.set()
        for error in (task.exception() for task in tasks):
            if error and not isinstance(error, Stopped):
                raise error

    def fetch(self, listing, path, record, folder):
        """Transfer a file into `folder`, correct by size and checksum; returns its path there."""
        part = part_of(folder, path, record)
        receive = functools.partial(self._receive, listing, path, record["size"], part)
        attempts = BAD_LIMIT if self.wanted.from_hub else 1
        for _attempt in range(attempts):
            try:
                self.patiently(receive, functools.partial(bytes_of, part), path)
                sha256 = files.sha256_file(part)
                wrong = difference(part, record, sha256)
            except SourceProblem as problem:
                if problem.kind != "data":
                    raise
                wrong = problem.text
            if wrong is None:
                os.chmod(part, 0o644)
                self.made[path] = sha256
                return part
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
        raise FleetError("weights.wrong-data", path, self.wanted.name, attempts, self.wanted.origin, wrong)

    def _receive(self, listing, path, size, part):
        """Receive the missing bytes of a file. Raises SourceProblem."""
        self.progress.file = path
        try:
            with open(part, "ab", opener=_private) as stream:
                if stream.tell() < size:
                    for block in self.source.read(listing, path, stream.tell(), size):
                        stream.write(block)
                        self._check_stop()
                    stream.flush()
                    os.fsync(stream.fileno())
        except OSError as error:
            raise SourceProblem("disk", error.strerror or str(error)) from error

    def patiently(self, call, size=lambda: 0, path=None):
        """call(), again while another attempt may help: as long as bytes are received, and `retries` times without."""
        idle = 0
        while True:
            self._check_stop()
            before = size()
            try:
                return call()
            except SourceProblem as problem:
                problem.path = path
                idle = 1 if size() > before else idle + 1
                if not problem.retry or idle > self.wanted.retries:
                    raise
                pause = min(2 ** (idle - 1), 16) if problem.wait is None else min(problem.wait, LONGEST_WAIT_S)
                self.progress.waits(pause, problem.text)
                self._stop.wait(pause)

    def _check_stop(self):
        if self._stop.is_set():
            raise Stopped


def _private(path, flags):
    """Open a file that only this account can read; no link is followed."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
