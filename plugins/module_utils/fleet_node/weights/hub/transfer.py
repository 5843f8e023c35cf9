# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings files of a hub into the staging folder of a destination, each right by size and checksum.

A file with wrong bytes is fetched again, alone, a few times. What an earlier run left is continued. An attempt that
fails is repeated as long as that may help.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time

from ...errors import FleetError
from ...node import files
from ...node.directories import make_directory
from .. import manifest as manifests
from .. import staging as stagings
from . import COMMIT, LISTING, PARTIAL, HubProblem, Listing, part_of, partial_folder, selection
from .digest import Digest, difference

BAD_LIMIT = 3  # times that a file may come with wrong bytes
LONGEST_WAIT_S = 300


class Stopped(Exception):
    """Another file failed for good."""


class Transfer:
    """The files of one run. client_of(wanted): the client of hub/ for a repository. progress: a Progress.

    made: {path: sha256} of what is complete. warnings: what was removed from the staging folder. sleep: for tests.
    """

    def __init__(self, wanted, client_of, progress, sleep=time.sleep):
        self.wanted = wanted
        self.progress = progress
        self.staging = manifests.staging_of(wanted.destination)
        self.made = {}
        self.warnings = []
        self._client_of = client_of
        self._made_client = None
        self._client_lock = threading.Lock()
        self._sleep = sleep
        self._partial = os.path.join(self.staging, PARTIAL)
        self._stop = threading.Event()
        self._running = []
        self._claimed = None  # what the staging folder was when it was looked through

    @property
    def client(self):
        """The client, made when it is needed: to look at files takes none."""
        with self._client_lock:
            if self._made_client is None:
                self._made_client = self._client_of(self.wanted)
            return self._made_client

    @property
    def stopped(self):
        """Whether a file failed for good; threads of others may still write then."""
        return self._stop.is_set()

    def listing(self):
        """The Listing of the wanted revision: that of a download that was begun, else the hub's."""
        self.progress.begin("listing", 0, None)
        begun = {} if self.wanted.refresh else self._begun()
        if begun.get("wanted") == self.wanted.identity():
            listing = Listing(begun["commit"], begun["at"], begun["files"])
            with contextlib.suppress(FleetError):  # one that does not fit checksums that are asked for now
                selection.choose(self.wanted, listing)
                return listing
        return self.patiently(self.client.listing)

    # ---- the staging folder

    def prepare(self, listing, target):
        """The staging folder, with what an earlier run of the same listing left in it."""
        now = {
            "wanted": self.wanted.identity(), "commit": listing.commit, "at": listing.at, "files": listing.files
        }  # fmt: skip
        self.warnings += stagings.claim(self.staging)
        self._claimed = os.lstat(self.staging)
        for path in self.leftovers(listing):
            os.unlink(path)
        make_directory(self._partial)
        self._check_case(target)
        files.write_atomic(os.path.join(self.staging, LISTING), json.dumps(now))

    def check_staging(self):
        """Raise FleetError where something else took the place of the staging folder."""
        try:
            same = os.path.samestat(os.lstat(self.staging), self._claimed)
        except FileNotFoundError:
            same = False
        if not same:
            raise FleetError(
                "weights.staging-replaced",
                "%s was replaced while weights came into it. Nothing was put in place; find out who writes there, and "
                "run again.",
                (self.staging,),
            )

    def _check_case(self, target):
        """Raise FleetError where names differ by case alone, and the file system does not tell them apart."""
        seen = {}
        for path in sorted(target):
            seen.setdefault(path.casefold(), []).append(path)
        same = next((paths for paths in seen.values() if len(paths) > 1), None)
        if same:
            probe = os.path.join(self._partial, ".Case")
            files.write_atomic(probe, "")
            alike = os.path.lexists(os.path.join(self._partial, ".cASE"))
            os.unlink(probe)
            if alike:
                raise FleetError(
                    "weights.names-differ-by-case",
                    "%s has the files %s, and the file system of %s does not tell capital letters from small ones. "
                    "Choose another destination, or leave one out by exclude.",
                    (self.wanted.name, " and ".join(same), self.wanted.destination),
                )

    def forget_listing(self):
        """Have the next run ask the hub for its listing again."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.staging, LISTING))

    def _begun(self):
        """What an interrupted run wrote down of itself in the staging folder; {} for nothing."""
        return (files.read_json(os.path.join(self.staging, LISTING)) if self._is_ours() else None) or {}

    def _is_ours(self):
        """Whether what lies in the staging folder can be continued."""
        listing = os.path.join(self.staging, LISTING)
        return stagings.trusted(self.staging) and stagings.trusted(self._partial) and stagings.plain_file(listing)

    def _usable(self, listing):
        """The listed files of which this run can continue what an earlier one left. Without a record of that it is all
        of them: their checksums decide."""
        before = self._begun().get("files") or {}
        return {path for path, record in listing.files.items() if before.get(path, record) == record}

    def leftovers(self, listing):
        """[paths] of what an earlier run left in the staging folder, and this one cannot continue."""
        if not self._is_ours():
            return []
        places = {place for path in self._usable(listing) for place in places_of(self.staging, path)}
        found = (os.path.join(self.staging, path) for path in _below(self.staging) if path != LISTING)
        return [path for path in found if path not in places]

    def staged(self, path):
        """Where a file may lie complete in the staging folder: [plain files of ours]."""
        places = places_of(self.staging, path)[:2] if self._is_ours() else ()
        return [place for place in places if stagings.plain_file(place)]

    def tidy(self, due):
        """Remove what is not part of the weights from the staging folder before it takes their place: also what an
        earlier run with other patterns brought."""
        shutil.rmtree(self._partial)
        for path in set(_below(self.staging)) - set(due):
            os.unlink(os.path.join(self.staging, path))
        for folder, *_rest in os.walk(self.staging, topdown=False):
            if folder != self.staging:
                with contextlib.suppress(OSError):  # where files are left
                    os.rmdir(folder)

    def there(self, listing, target, due):
        """How many bytes of the files that are due lie in the staging folder, and can be continued."""
        return self.on_disk(target, self._usable(listing) & set(due)) if self._is_ours() else 0

    def on_disk(self, target, due):
        """How many bytes of these files lie in the staging folder."""
        return sum(min(size_of(places_of(self.staging, path)), target[path]["size"]) for path in due)

    # ---- files

    def fetch_all(self, listing, target, paths):
        """Bring files into the staging folder, several at a time. The first failure stops all."""
        from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait  # as in manifest.hash_files

        pool = ThreadPoolExecutor(max_workers=max(1, min(self.wanted.workers, len(paths))))
        try:
            tasks = [pool.submit(self.fetch, listing, path, target[path]) for path in paths]
            done, _rest = wait(tasks, return_when=FIRST_EXCEPTION)
            failed = [task.exception() for task in done if task.exception()]
            if failed:
                self._stop.set()
                raise next((error for error in failed if not isinstance(error, Stopped)), failed[0])
        finally:
            pool.shutdown(wait=not self.stopped, cancel_futures=True)

    def fetch(self, listing, path, record, staging=None):
        """Bring one file into the staging folder, or another one like it, right by size and checksum."""
        if staging is None:
            staging = self.staging
            self.check_staging()
        complete, partial, incomplete = places_of(staging, path)
        for folder in (os.path.dirname(complete), os.path.dirname(partial)):
            make_directory(folder)
        self._running.append(path)
        self.progress.file = self._running[0]
        try:
            for attempt in range(BAD_LIMIT):
                if os.path.isfile(complete):
                    os.replace(complete, partial)  # of an earlier run: trusted when it was read once more
                wrong = None
                try:
                    sha256 = self._come(listing, path, partial_folder(staging, path))
                except HubProblem as problem:
                    if problem.kind in ("entry", "revision"):
                        self._check_moved(listing, path, gone=True)
                    if problem.kind != "data":
                        raise
                    wrong = problem.text
                wrong = wrong or difference(partial, record, sha256)
                if wrong is None:
                    with open(partial, "rb") as stream:
                        os.fsync(stream.fileno())
                    os.chmod(partial, 0o644)
                    os.replace(partial, complete)
                    self.made[path] = sha256
                    return
                if attempt == 0:
                    self._check_moved(listing, path)
                for place in (partial, incomplete):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(place)
            raise FleetError(
                "hub.wrong-data",
                "%s of %s came %d times from %s, and was %s. Nothing was replaced. The hub or a proxy on the way gives "
                "wrong data; try later, or another endpoint.",
                (path, self.wanted.name, BAD_LIMIT, self.wanted.hub, wrong),
            )
        finally:
            self._running.remove(path)
            self.progress.file = self._running[0] if self._running else None

    def _come(self, listing, path, folder):
        """Let the client bring a file to `folder`; returns its sha256."""
        partial, digest = os.path.join(folder, path), Digest()
        if not os.path.isfile(partial):
            places = (partial, part_of(partial))
            self.patiently(lambda: self.client.fetch(listing, path, folder, digest), lambda: size_of(places), path)
        return digest.of(partial)

    def _check_moved(self, listing, path, gone=False):
        """Raise FleetError where a file is not as listed, or `gone`, because its branch is elsewhere now."""
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
            "%s of %s is %s on %s by now: the branch moved on from commit %s, which is wanted here and not "
            "given any more. Nothing was replaced. For the newer weights run again with refresh=true (in a play: "
            "model_weights_refresh).",
            (path, self.wanted.name, "gone" if by_commit else "another file", self.wanted.hub, listing.commit),
        )

    def patiently(self, call, size=lambda: 0, path=None):
        """call(), again while trying again may help: as long as bytes come, and `retries` times without any."""
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
                    refused = 1  # a CDN's signature may have run out: the hub gives another one
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


def places_of(staging, path):
    """Where a file that is due may be in a staging folder, the furthest first."""
    partial = os.path.join(partial_folder(staging, path), path)
    return (os.path.join(staging, path), partial, part_of(partial))


def size_of(places):
    """Size of the largest of these files, which one file is on its way, the last first.

    It is looked for in that order, so that one that is moved on meanwhile is found where it comes to.
    """
    size = 0
    for path in reversed(places):
        with contextlib.suppress(OSError):
            size = max(size, os.stat(path).st_size)
    return size


def _below(folder):
    """Paths of all files below `folder`, relative."""
    for base, _folders, names in os.walk(folder):
        for name in names:
            yield os.path.relpath(os.path.join(base, name), folder)
