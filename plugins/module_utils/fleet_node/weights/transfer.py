# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfers files of a source into the staging folder, each correct by size and checksum.

A large file is requested in ranges, several at a time. Next to the growing file is a record of how far each range has
come, so that the next run continues a transfer that was killed. A file with wrong bytes is transferred again. A request
that fails is repeated as long as that may help.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import threading
import time

from ..errors import FleetError
from ..host import files
from . import staging as stagings
from .manifest import staging_of
from .wanted import SourceProblem

BAD_LIMIT = 3  # times that a file may be received with wrong bytes
LONGEST_WAIT_S = 300
RANGE = 128 << 20  # bytes of a request
RANGES = ".ranges"  # the record next to a growing file
COUNT = struct.Struct("<Q")
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
        self._waits = {}  # {thread: (until, reason)}

    @contextlib.contextmanager
    def waiting(self, seconds, reason):
        """While a file waits for its next attempt."""
        with self._lock:
            self._waits[threading.get_ident()] = (time.monotonic() + seconds, reason)
        try:
            yield
        finally:
            with self._lock:
                del self._waits[threading.get_ident()]

    def _waiting(self):
        """The reason and the remaining time of a wait; None if no thread waits."""
        until, reason = max(self._waits.values(), default=(None, None))
        return None if until is None else "%d s: %s" % (max(0, round(until - time.monotonic())), reason)

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
            return {
                "phase": self.phase,
                "percent": int(1000 * done / self.total) / 10 if self.total else 0.0,
                "bytes_done": done,
                "bytes_total": self.total,
                "rate_bytes_s": None if rate is None else int(rate),
                "eta_s": None if not rate else int(left / rate) + (left > 0),
                "file": self.file,
                "waiting": self._waiting(),
            }


class Stopped(Exception):
    """Another file failed permanently."""


class Part:
    """A growing file of `size` bytes, and the record of its ranges.

    done: bytes of each range that are in the file. Data is written before its count, so that the count of a killed run
    is right; any other damage is found by the file's checksum.
    """

    def __init__(self, path, size):
        self.path = path
        self.ranges = [(start, min(start + RANGE, size)) for start in range(0, size, RANGE)] or [(0, 0)]
        self.done = [0] * len(self.ranges)
        self._file = self._record = None

    def __enter__(self):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self.path, flags, 0o600)
        self._record = os.open(self.path + RANGES, flags, 0o600)
        counts = os.pread(self._record, COUNT.size * len(self.ranges), 0)
        for index in range(len(counts) // COUNT.size):
            start, end = self.ranges[index]
            self.done[index] = min(COUNT.unpack_from(counts, COUNT.size * index)[0], end - start)
        return self

    def __exit__(self, *_error):
        os.close(self._file)
        os.close(self._record)

    def write(self, index, block):
        """Add a block to a range."""
        view, at = memoryview(block), self.ranges[index][0] + self.done[index]
        while view:
            written = os.pwrite(self._file, view, at)
            view, at = view[written:], at + written
        self.done[index] += len(block)
        os.pwrite(self._record, COUNT.pack(self.done[index]), COUNT.size * index)

    def complete(self):
        """Record on the disk that the file is complete: its record is removed."""
        os.fsync(self._file)
        os.unlink(self.path + RANGES)


def part_of(folder, path, record):
    """The path of a growing file in `folder`: the name differs with the listed content."""
    key = json.dumps([path, record["size"], record["sha256"], record.get("oid")])
    return os.path.join(folder, hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:40])


def bytes_of(part, size):
    """Bytes of a file of this size that are in its part."""
    counts = files.read_bytes(part + RANGES, follow=False)
    if counts is None:
        return size if os.path.isfile(part) else 0
    return min(size, sum(one for (one,) in COUNT.iter_unpack(counts[: len(counts) // COUNT.size * COUNT.size])))


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

    made: {path: sha256} of complete files. warnings: what was removed, for the result. lock: the lock of the run, for
    as long as threads may write.
    """

    def __init__(self, wanted, source, progress):
        self.wanted = wanted
        self.source = source
        self.progress = progress
        self.place = staging_of(wanted.destination)
        self.made = {}
        self.warnings = []
        self.lock = None
        self.abandoned = False  # whether threads may still write
        self._stop = threading.Event()
        self._handle = None
        self._requests = None

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
            if name.removesuffix(RANGES) not in parts:
                os.unlink(os.path.join(self.staging, name))

    def check_staging(self):
        """Raises FleetError if something else has the name of the staging folder now."""
        if not stagings.same(self.place, self._handle):
            raise stagings.replaced(self.place)

    def release(self):
        """Close the staging folder."""
        if self._handle is not None and not self.abandoned:
            os.close(self._handle)
            self._handle = None

    def leftovers(self):
        """[the staging folder] if its bytes can be reused or removed."""
        return [] if stagings.foreign(self.place) else [self.place]

    def on_disk(self, target, due):
        """Bytes of these files in the staging folder."""
        return sum(bytes_of(part_of(self.staging, path, target[path]), target[path]["size"]) for path in due)

    # ---- files

    def fetch_all(self, listing, target, paths):
        """Transfer files into the staging folder, several at a time. The first failure stops all."""
        from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait  # as in manifest.hash_files

        pool = ThreadPoolExecutor(max_workers=max(1, min(self.wanted.workers, len(paths))))
        self._requests = ThreadPoolExecutor(max_workers=self.wanted.workers)
        try:
            tasks = [pool.submit(self.fetch, listing, path, target[path], self.staging) for path in paths]
            done, _rest = wait(tasks, return_when=FIRST_EXCEPTION)
            failed = [task.exception() for task in done if task.exception()]
            if failed:
                self._stop.set()
                self.abandoned = self.wanted.from_hub  # a response may take long
                raise next((error for error in failed if not isinstance(error, Stopped)), failed[0])
        finally:
            for one in (pool, self._requests):
                one.shutdown(wait=not self.abandoned, cancel_futures=True)

    def fetch(self, listing, path, record, folder):
        """Transfer a file into `folder`, correct by size and checksum; returns its path there."""
        part = part_of(folder, path, record)
        attempts = BAD_LIMIT if self.wanted.from_hub else 1
        for _attempt in range(attempts):
            try:
                self._receive(listing, path, record, part)
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
            for place in (part, part + RANGES):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(place)
        raise FleetError("weights.wrong-data", path, self.wanted.name, attempts, self.wanted.origin, wrong)

    def _receive(self, listing, path, record, part):
        """Receive the missing bytes of a file. Raises SourceProblem."""
        if os.path.isfile(part) and not os.path.exists(part + RANGES):
            return  # complete since an earlier run
        try:
            with Part(part, record["size"]) as growing:
                indexes = [i for i, (start, end) in enumerate(growing.ranges) if growing.done[i] < end - start]
                if self._requests is None or len(indexes) < 2:
                    for index in indexes:
                        self._range(listing, path, growing, index)
                else:
                    tasks = [self._requests.submit(self._range, listing, path, growing, index) for index in indexes]
                    errors = [task.exception() for task in tasks]  # all have ended before the file is closed
                    for error in filter(None, errors):
                        raise error
                growing.complete()
        except OSError as error:
            raise SourceProblem("disk", error.strerror or str(error)) from error

    def _range(self, listing, path, growing, index):
        start, end = growing.ranges[index]

        def receive():
            self.progress.file = path
            for block in self.source.read(listing, path, start + growing.done[index], end):
                growing.write(index, block)
                if self._stop.is_set():
                    raise Stopped()

        self.patiently(receive, lambda: growing.done[index], path)

    def patiently(self, call, size=lambda: 0, path=None):
        """call(), again while another attempt may help: as long as bytes are received, and `retries` times without."""
        idle = 0
        while True:
            if self._stop.is_set():
                raise Stopped()
            before = size()
            try:
                return call()
            except SourceProblem as problem:
                problem.path = path
                idle = 1 if size() > before else idle + 1
                if not problem.retry or idle > self.wanted.retries:
                    raise
                pause = min(2 ** (idle - 1), 16) if problem.wait is None else min(problem.wait, LONGEST_WAIT_S)
                self._pause(pause, problem.text)

    def _pause(self, seconds, reason):
        end = time.monotonic() + seconds
        with self.progress.waiting(seconds, reason):
            while not self._stop.is_set() and time.monotonic() < end:
                time.sleep(min(0.2, max(0.0, end - time.monotonic())))
