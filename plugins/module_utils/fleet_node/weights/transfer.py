# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Downloads files of a hub into the staging folder, each correct by size and checksum.

A large file is requested in ranges, several at a time. Next to the growing file lies a record of how far each range
has come, so that the next run continues a download that was killed. A file with wrong bytes is downloaded again. A
request that fails is repeated as long as that may help.
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
from ..host.directories import make_directory
from . import manifest as manifests
from . import selection
from . import staging as stagings
from .fetch.hub import HubProblem
from .manifest import LISTING, PARTIAL
from .wanted import COMMIT, Listing

BAD_LIMIT = 3  # times that a file may be received with wrong bytes
LONGEST_WAIT_S = 300
RANGE = 128 << 20  # bytes of a request
RANGES = ".ranges"  # the record next to a growing file
COUNT = struct.Struct("<Q")


class Stopped(Exception):
    """Another file failed for good."""


class Part:
    """A growing file of `size` bytes, and the record of its ranges.

    done: bytes of each range that are in the file. Data is written before its count, so that the count of a killed run
    is right; whatever else happens to the file is found by its checksum.
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
        """Note on the disk that the file is complete: its record goes."""
        os.fsync(self._file)
        os.unlink(self.path + RANGES)


def part_of(folder, path, record):
    """Where a file of a listing grows below `folder`: the name differs with the listed content."""
    key = json.dumps([path, record["size"], record["sha256"], record["oid"]])
    return os.path.join(folder, hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:40])


def bytes_of(part, size):
    """Bytes of a file of this size that lie in its part."""
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
    if record["oid"] is not None:
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
    """The files of one run. client_of(wanted): the fetch.hub.Hub of a repository. progress: a Progress.

    made: {path: sha256} of complete files. warnings: what was removed from the staging folder. sleep: for tests.
    """

    def __init__(self, wanted, client_of, progress, sleep=time.sleep):
        self.wanted = wanted
        self.progress = progress
        self.place = manifests.staging_of(wanted.destination)
        self.client = client_of(wanted)
        self.made = {}
        self.warnings = []
        self._sleep = sleep
        self._stop = threading.Event()
        self._running = []
        self._handle = None
        self._requests = None

    @property
    def staging(self):
        """The path of the staging folder; while it is claimed, by its descriptor, which no rename of others changes."""
        return self.place if self._handle is None else stagings.path_of(self._handle)

    @property
    def stopped(self):
        """Whether a file failed for good; threads of others may still write then."""
        return self._stop.is_set()

    def listing(self):
        """The Listing of the wanted revision: of a download that was begun, else from the hub."""
        self.progress.begin("listing", 0, None)
        begun = {} if self.wanted.refresh else self._begun()
        if begun.get("wanted") == self.wanted.identity():
            listing = Listing(begun["commit"], begun["at"], begun["files"])
            with contextlib.suppress(FleetError):  # if it differs from checksums that are required now
                selection.choose(self.wanted, listing)
                return listing
        return self.patiently(self.client.listing)

    # ---- the staging folder

    def prepare(self, listing, target):
        """Claim the staging folder, with the parts that an earlier run of the same listing left in it."""
        if self._handle is None:
            self._handle, warnings = stagings.claim(self.place)
            self.warnings += warnings
        partial = os.path.join(self.staging, PARTIAL)
        make_directory(partial)
        for path, record in target.items():  # of a run that was killed while it arranged complete files
            with contextlib.suppress(OSError):
                os.rename(os.path.join(self.staging, path), part_of(partial, path, record))
        for path in self._leftovers(self.staging, listing):
            os.unlink(path)
        self._check_case(target)
        now = {"wanted": self.wanted.identity(), "commit": listing.commit, "at": listing.at, "files": listing.files}
        files.write_atomic(os.path.join(self.staging, LISTING), json.dumps(now), mode=0o600)

    def check_staging(self):
        """Raise FleetError if something else has taken the name of the staging folder."""
        if not stagings.same(self.place, self._handle):
            raise stagings.replaced(self.place)

    def release(self):
        """Close the staging folder."""
        if self._handle is not None and not self.stopped:
            os.close(self._handle)
            self._handle = None

    def _check_case(self, target):
        """Raise FleetError where names differ by case alone, and the file system does not distinguish them."""
        seen = {}
        for path in sorted(target):
            seen.setdefault(path.casefold(), []).append(path)
        same = next((paths for paths in seen.values() if len(paths) > 1), None)
        if same:
            probe = os.path.join(self.staging, PARTIAL, ".Case")
            files.write_atomic(probe, "")
            alike = os.path.lexists(os.path.join(self.staging, PARTIAL, ".cASE"))
            os.unlink(probe)
            if alike:
                raise FleetError(
                    "weights.names-differ-by-case",
                    "%s has the files %s, and the file system of %s does not distinguish upper case from lower case. "
                    "Choose another destination, or leave one out by exclude.",
                    (self.wanted.name, " and ".join(same), self.wanted.destination),
                )

    def forget_listing(self):
        """Have the next run request the listing again."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.staging, LISTING))

    def _begun(self):
        """What an interrupted run recorded of itself in the staging folder; {} for nothing."""
        return (files.read_json(os.path.join(self.place, LISTING)) if self._is_ours() else None) or {}

    def _is_ours(self):
        """Whether the content of the staging folder can be continued."""
        folders = (self.place, os.path.join(self.place, PARTIAL))
        return all(map(stagings.trusted, folders)) and stagings.plain_file(os.path.join(self.place, LISTING))

    def leftovers(self, listing):
        """[paths] of files of an earlier run in the staging folder that this run cannot continue."""
        return self._leftovers(self.place, listing) if self._is_ours() else []

    @staticmethod
    def _leftovers(staging, listing):
        partial = os.path.join(staging, PARTIAL)
        parts = {part_of(partial, path, record) for path, record in listing.files.items()}
        keep = {os.path.join(staging, LISTING), *parts, *(part + RANGES for part in parts)}
        return [path for path in _below(staging) if path not in keep]

    def arrange(self, due, target):
        """Give the complete files their names in the staging folder, and remove everything else from it."""
        partial = os.path.join(self.staging, PARTIAL)
        for path in due:
            make_directory(os.path.dirname(os.path.join(self.staging, path)))
            os.rename(part_of(partial, path, target[path]), os.path.join(self.staging, path))
        stagings.remove(partial)
        for path in set(_below(self.staging)) - {os.path.join(self.staging, path) for path in due}:
            os.unlink(path)

    def there(self, target, due):
        """Bytes of the files that are due that lie in the staging folder and can be continued."""
        return self.on_disk(target, due) if self._is_ours() else 0

    def on_disk(self, target, due):
        """Bytes of these files in the staging folder."""
        partial = os.path.join(self.staging, PARTIAL)
        return sum(bytes_of(part_of(partial, path, target[path]), target[path]["size"]) for path in due)

    # ---- files

    def fetch_all(self, listing, target, paths):
        """Bring files into the staging folder, several at a time. The first failure stops all."""
        from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait  # as in manifest.hash_files

        partial = os.path.join(self.staging, PARTIAL)
        pool = ThreadPoolExecutor(max_workers=max(1, min(self.wanted.workers, len(paths))))
        self._requests = ThreadPoolExecutor(max_workers=self.wanted.workers)
        try:
            tasks = [pool.submit(self.fetch, listing, path, target[path], partial) for path in paths]
            done, _rest = wait(tasks, return_when=FIRST_EXCEPTION)
            failed = [task.exception() for task in done if task.exception()]
            if failed:
                self._stop.set()
                raise next((error for error in failed if not isinstance(error, Stopped)), failed[0])
        finally:
            for one in (pool, self._requests):
                one.shutdown(wait=not self.stopped, cancel_futures=True)

    def fetch(self, listing, path, record, folder):
        """Bring a file into `folder`, correct by size and checksum; returns where it is."""
        part = part_of(folder, path, record)
        self._running.append(path)
        self.progress.file = self._running[0]
        try:
            for attempt in range(BAD_LIMIT):
                wrong = sha256 = None
                try:
                    self._receive(listing, path, record, part)
                    sha256 = files.sha256_file(part)
                    wrong = difference(part, record, sha256)
                except HubProblem as problem:
                    if problem.kind in ("entry", "revision"):
                        self._check_moved(listing, path, gone=True)
                    if problem.kind != "data":
                        raise
                    wrong = problem.text
                if wrong is None:
                    os.chmod(part, 0o644)
                    self.made[path] = sha256
                    return part
                if attempt == 0:
                    self._check_moved(listing, path)
                for place in (part, part + RANGES):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(place)
            raise FleetError(
                "hub.wrong-data",
                "%s of %s was received %d times from %s, and was %s. Nothing was replaced. Check the endpoint and "
                "proxies for one that alters data, or run again later.",
                (path, self.wanted.name, BAD_LIMIT, self.wanted.hub, wrong),
            )
        finally:
            self._running.remove(path)
            self.progress.file = self._running[0] if self._running else None

    def _receive(self, listing, path, record, part):
        """Receive what is missing of a file. Raises HubProblem."""
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
            raise HubProblem("disk", error.strerror or str(error)) from error

    def _range(self, listing, path, growing, index):
        start, end = growing.ranges[index]

        def receive():
            for block in self.client.read(listing, path, start + growing.done[index], end):
                growing.write(index, block)
                if self.stopped:
                    raise Stopped()

        self.patiently(receive, lambda: growing.done[index], path)

    def _check_moved(self, listing, path, gone=False):
        """Raise FleetError where a file is not as listed, or `gone`, because its branch has moved."""
        by_commit = listing.at == listing.commit
        if by_commit and (not gone or COMMIT.match(self.wanted.revision)):
            return
        try:
            now = self.patiently(self.client.listing)
        except HubProblem:
            return
        record = now.files.get(path)
        same = record is not None and selection.agree(record, listing.files[path])
        if now.commit == listing.commit if by_commit else same:
            return
        raise FleetError(
            "hub.branch-moved",
            "%s of %s is %s on %s: the branch moved on from commit %s, which this download began with. Nothing was "
            "replaced. Run again with refresh=true (in a play: model_weights_refresh) for the newer weights.",
            (path, self.wanted.name, "gone" if by_commit else "another file", self.wanted.hub, listing.commit),
        )

    def patiently(self, call, size=lambda: 0, path=None):
        """call(), again while another attempt may help: as long as bytes are received, and `retries` times without."""
        idle = refused = 0
        while True:
            if self.stopped:
                raise Stopped()
            before = size()
            try:
                return call()
            except HubProblem as problem:
                problem.path = path
                if problem.forbidden and path and not refused:
                    refused = 1  # a signed address may have expired: the hub gives another one
                    continue
                idle = 1 if size() > before else idle + 1
                if not problem.retry or idle > self.wanted.retries:
                    raise
                pause = min(2 ** (idle - 1), 16) if problem.wait is None else min(problem.wait, LONGEST_WAIT_S)
                self._pause(pause, problem.text)

    def _pause(self, seconds, reason):
        end = time.monotonic() + seconds
        with self.progress.waiting(seconds, reason):
            while not self.stopped and time.monotonic() < end:
                self._sleep(min(0.2, max(0.0, end - time.monotonic())))


def _below(folder):
    """Paths of all files below `folder`."""
    for base, _folders, names in os.walk(folder):
        for name in names:
            yield os.path.join(base, name)
