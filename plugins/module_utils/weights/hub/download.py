# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings the files of a hub's listing to a node, and believes nobody: what counts is what lies on the disk.

Every file that is fetched is read again from the disk and compared with the hub's size and checksum while the rest
still comes; a bad one is fetched again, alone, a few times. Files grow in a folder beside the destination, where no
server looks, and take their places when all of them are right. A killed run goes on where it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import tempfile
import threading
import time
from dataclasses import replace

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node import files
from ansible_collections.inference.fleet.plugins.module_utils.node.directories import make_directory
from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron import eagle3
from ansible_collections.inference.fleet.plugins.module_utils.weights import checkpoints
from ansible_collections.inference.fleet.plugins.module_utils.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.plugins.module_utils.weights import staging as weight_staging
from ansible_collections.inference.fleet.plugins.module_utils.weights.hub import (
    COMMIT,
    LISTING,
    PARTIAL,
    HubProblem,
    Listing,
    known,
    part_of,
    partial_folder,
    selection,
)
from ansible_collections.inference.fleet.plugins.module_utils.weights.lock import WeightLock

BAD_LIMIT = 3  # times that a file may come with wrong bytes
LONGEST_WAIT_S = 300
BLOCK = 1 << 20
LOOK_S = 0.05  # how often a growing file is read on
RATE_S = 15.0  # the span that the rate is taken over


class Stopped(Exception):
    """Another file failed for good."""


class Progress:
    """How far a run is. `places` are functions that say how many bytes are there of each file."""

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
        """Why somebody waits, and how long still; None where nobody does."""
        until, reason = max(self._waits.values(), default=(None, None))
        return None if until is None else "%d s: %s" % (max(0, round(until - time.monotonic())), reason)

    def begin(self, phase, total, done):
        """A new phase of `total` bytes; done(): how many of them are there."""
        with self._lock:
            self.phase, self.total, self._done, self._samples, self.file = phase, total, done, [], None

    def snapshot(self):
        """{phase, percent, bytes_done, bytes_total, rate_bytes_s, eta_s, file, waiting}; null where unknown, or where
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


class Follower:
    """Takes the checksums of a file while it grows, from the disk. `places`: the names it may have, the first first."""

    def __init__(self, places):
        self._places = places
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._stream = None
        self._start()
        self._thread.start()

    def _start(self):
        if self._stream is not None:
            self._stream.close()
        self._stream, self._sha256, self._read = None, hashlib.sha256(), 0

    def _follow(self):
        while not self._stop.is_set():
            with contextlib.suppress(OSError):
                if not self._advance():
                    self._stop.wait(LOOK_S)
                continue
            self._stop.wait(LOOK_S)

    def _advance(self):
        """Read a block; whether there was one. A file that was cut or replaced is read from its start."""
        if self._stream is None:
            path = next((path for path in self._places if os.path.exists(path)), None)
            if path is None:
                return False
            self._stream = open(path, "rb")  # noqa: SIM115 - open from block to block, close() ends it
        if os.fstat(self._stream.fileno()).st_size < self._read or os.fstat(self._stream.fileno()).st_nlink == 0:
            self._start()
            return False
        block = self._stream.read(BLOCK)
        self._sha256.update(block)
        self._read += len(block)
        return bool(block)

    def close(self):
        """Stop following."""
        self._stop.set()
        self._thread.join()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def finish(self, path):
        """sha256 (hex) of the file, which lies at `path` by now and no longer grows."""
        self._stop.set()
        self._thread.join()
        if self._stream is None or not os.path.samestat(os.fstat(self._stream.fileno()), os.stat(path)):
            self._start()
            self._stream = open(path, "rb")  # noqa: SIM115 - open from block to block, close() ends it
        while self._advance():
            pass
        digest = self._sha256.hexdigest()
        self.close()
        return digest


def git_oid(path):
    """git's sha1 of a file, which hubs list for small ones. Not a matter of security: sha256 is what is recorded."""
    digest = hashlib.sha1(b"blob %d\0" % os.path.getsize(path))
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def difference(path, record, sha256):
    """What is wrong with a file of this sha256, by what the hub lists of it; None where nothing is."""
    size = os.path.getsize(path)
    if size != record["size"]:
        return "%d bytes long, listed are %d" % (size, record["size"])
    if record["sha256"] is not None and sha256 != record["sha256"]:
        return "of sha256 %s, listed is %s" % (sha256, record["sha256"])
    if record["oid"] is not None:
        found = git_oid(path)
        if found != record["oid"]:
            return "of git sha1 %s, listed is %s" % (found, record["oid"])
    return None


class Download:
    """One run. client_of(wanted): the client of hub/ for a repository. progress: a Progress. sleep: for tests.

    reader_of(wanted): the same with a function `head`, for a look at the start of files; None: there is no such look.
    """

    def __init__(self, wanted, client_of, progress, sleep=time.sleep, reader_of=None):
        self.wanted = wanted
        self.progress = progress
        self._client_of = client_of
        self._reader_of = reader_of
        self._made_client = None
        self._client_lock = threading.Lock()
        self._sleep = sleep
        self._staging = weight_manifest.staging_of(wanted.destination)
        self._partial = os.path.join(self._staging, PARTIAL)
        self._stop = threading.Event()
        self._made = {}  # path: sha256 of what is whole in staging
        self._running = []
        self._lock = None
        self._warnings = []
        self._claimed = None  # what the staging folder was when it was looked through

    @property
    def _client(self):
        """The client, made when it is needed: to look at files takes none."""
        with self._client_lock:
            if self._made_client is None:
                self._made_client = self._client_of(self.wanted)
            return self._made_client

    # ---- what is wanted, what is there

    def run(self):
        """Bring the wanted files to the destination. Returns a result as model_weights.ensure does. FleetError."""
        wanted = self.wanted
        try:
            result = None
            while result is None:
                result = self._once()
            return result
        except HubProblem as problem:
            raise explained(problem, wanted) from problem
        except OSError as error:
            raise FleetError(
                "weights.cannot-bring", "Cannot bring %s to %s: %s.", (wanted.repo, wanted.destination, error)
            ) from error

    def _once(self):
        """The result of run(), or None where another run has changed meanwhile what was looked at."""
        wanted = self.wanted
        self._made = {}
        if not wanted.check_mode and weight_staging.begun_update(wanted.destination):
            with WeightLock(wanted.destination, self.progress):
                weight_staging.finish(wanted.destination)
        manifest = weight_manifest.own_manifest(wanted.destination, wanted.repo, wanted.source, adopt=True)
        recorded = manifest["files"] if manifest else {}
        wrong, hashed = self._verify(recorded)
        unknown = [] if manifest else weight_manifest.unknown(wanted.destination)
        try:
            if manifest and same_request(manifest, wanted) and not wanted.refresh:
                listing = Listing(manifest["commit"], manifest["at"], _target(recorded))
                target = selection.check_sums(wanted, listing.files)
            else:
                listing, target = chosen(wanted, (unknown and self._foreknown()) or self._listing())
            due = self._due(target, recorded, wrong, hashed)
            if unknown and not any(path.endswith(weight_manifest.SHARD) for path in self._made):
                raise weight_manifest.unknown_files(wanted.destination)
            gone = sorted(set(recorded) - set(target))
            if wanted.check_mode or (manifest is not None and not due and not gone):
                return self._bring(manifest, listing, target, due, gone, wrong, hashed)
            with self._alone(manifest) as as_seen:
                return self._bring(manifest, listing, target, due, gone, wrong, hashed) if as_seen else None
        except HubProblem as problem:
            raise self._unmended(explained(problem, wanted), wrong) from problem
        except FleetError as error:
            raise self._unmended(error, wrong) from error
        except OSError as error:
            if not wrong:
                raise
            raise self._unmended(FleetError("hub.unusable", "%s.", (error,)), wrong) from error

    def _foreknown(self):
        """The listing of a checkpoint that others brought, where it is known without the hub: by the collection, or by
        the user's list where that names all that a checkpoint needs. None otherwise."""
        wanted, folder = self.wanted, self.wanted.destination
        pinned = known.find(wanted.source, wanted.repo, wanted.revision)
        if wanted.refresh:
            return None
        if pinned:
            found = {path: {"size": size, "sha256": sha, "oid": None} for path, (size, sha) in pinned.files.items()}
            return Listing(pinned.commit, pinned.commit, found)
        needed = checkpoints.needed(folder, wanted.draft) if wanted.sums else None
        if needed is None or not needed <= set(wanted.sums):
            return None
        try:
            found = {
                path: {"size": os.path.getsize(os.path.join(folder, path)), "sha256": sha256, "oid": None}
                for path, sha256 in wanted.sums.items()
            }
        except OSError:
            return None  # some have to come, and their sizes are the hub's
        return Listing(wanted.revision, wanted.revision, found)

    @contextlib.contextmanager
    def _alone(self, manifest):
        """While no other run works at the destination; yields whether the manifest there is still this one."""
        wanted = self.wanted
        self._lock = WeightLock(wanted.destination, self.progress)
        self._lock.take()
        try:
            now = weight_manifest.own_manifest(wanted.destination, wanted.repo, wanted.source, adopt=True)
            yield not self._lock.waited and now == manifest
        finally:
            if not self._stop.is_set():  # else threads may still write; the lock ends with their process
                self._lock.release()

    def _unmended(self, error, wrong):
        """The error with what is wrong on the node, where that is why the hub was asked at all."""
        if not wrong:
            return error
        return FleetError(
            "weights.rotted-and-unrepaired",
            "In %s %s. It cannot be repaired: %s",
            (self.wanted.destination, "; ".join("%s %s" % item for item in sorted(wrong.items())), error.message),
            details=dict(error.details, rotted=sorted(wrong)),
        )

    def _verify(self, recorded):
        """compare() with progress, of files that are there already."""
        folder, full = self.wanted.destination, self.wanted.verify == "full"
        wrong, touched = weight_manifest.compare_status(folder, recorded)
        names = [name for name in recorded if name not in wrong] if full else touched
        counts = dict.fromkeys(names, 0)

        def read(name, count):
            counts[name] += count
            self.progress.file = name

        self.progress.begin(
            "verifying", sum(recorded[name]["size"] for name in names), lambda: sum(list(counts.values()))
        )
        return weight_manifest.compare(folder, recorded, full, read)

    def _listing(self):
        self.progress.begin("listing", 0, None)
        if not self.wanted.refresh:
            # A download that was broken off goes on with the commit that it was begun with.
            begun = self._begun()
            if begun.get("wanted") == identity(self.wanted):
                listing = Listing(begun["commit"], begun["at"], begun["files"])
                with contextlib.suppress(FleetError):  # one that older versions took, and this one does not
                    chosen(self.wanted, listing)
                    return listing
        return self._patiently(self._client.listing, lambda: 0)

    def _due(self, target, recorded, wrong, hashed):
        """The paths that have to come, because what is there is not what is wanted."""
        due, counts = [], {}

        def read(path, count):
            if not counts:  # this may take minutes, and a look or a job without progress is given up
                total = sum(record["size"] for record in target.values())
                self.progress.begin("verifying", total, lambda: sum(list(counts.values())))
            counts[path] = counts.get(path, 0) + count
            self.progress.file = path

        for path in sorted(target):
            record, old = target[path], recorded.get(path)
            if old and path not in wrong and _agree(old, record):
                continue
            there = os.path.join(self.wanted.destination, path)
            known = record["sha256"] or record["oid"]
            if known and os.path.isfile(there) and os.path.getsize(there) == record["size"]:
                # Of a swap that was broken off, or changed by other hands into what is wanted.
                sha256 = hashed.get(path) or files.sha256_file(there, read=lambda count, path=path: read(path, count))
                if difference(there, record, sha256) is None:
                    self._made[path] = sha256
                    wrong.pop(path, None)
                    continue
            due.append(path)
        return due

    # ---- bringing it

    def _bring(self, manifest, listing, target, due, gone, wrong, hashed):
        wanted = self.wanted
        recorded = manifest["files"] if manifest else {}
        known = self._records(target, recorded)
        before = {path: dict(recorded[path], sha256=hashed.get(path, recorded[path]["sha256"])) for path in recorded}
        for path, text in wrong.items():
            if text == "is missing":
                del before[path]
        at_once = manifest is not None and not due and not gone
        changed = not at_once or not same_request(manifest, wanted) or listing.commit != manifest["commit"]
        changed = changed or bool(wrong)
        to_come = sum(target[path]["size"] for path in due)
        still = to_come - self._already(listing, target, due)
        message = self._message(manifest, wrong, due, still, changed)
        result = {
            "commit": listing.commit,
            "fetched": due,
            "fetched_bytes": to_come,
            "to_fetch_bytes": still,
            "repaired": sorted(wrong),
        }
        if due or gone:
            self._check_writable()
            weight_staging.check_targets(wanted.destination, due, gone)
            weight_manifest.check_space(wanted.destination, still, leftovers=self._leftovers(listing))
        if wanted.check_mode:
            if at_once:
                describe(wanted, wanted.destination)
            else:
                with self._first(listing, target, due):
                    pass
            return self._result(result, changed, message, None, {}, before, known)
        if at_once:
            found = describe(wanted, wanted.destination)
            future = recorded
            touched = any(
                os.stat(os.path.join(wanted.destination, path)).st_mtime_ns != record["mtime_ns"]
                for path, record in recorded.items()
            )
            if changed or (touched and os.access(wanted.destination, os.W_OK)):
                future = self._record(wanted.destination, target, recorded, listing)
            return self._result(result, changed, message, wanted.verify, found, before, future)
        found = self._fetch_checked(listing, target, due, to_come)
        records = self._records(target, recorded)
        self._tidy(due)
        self._check_staging()
        future = weight_staging.install(
            self._staging, wanted.destination, due, gone, records, **self._identity(listing)
        )
        with contextlib.suppress(OSError):
            weight_staging.remove(self._staging)
        return self._result(result, True, message, wanted.verify if manifest else "full", found, before, future)

    def _fetch_checked(self, listing, target, due, to_come):
        """Bring the files that are due into the staging folder; returns what the whole checkpoint is."""
        self.progress.begin("downloading", to_come, lambda: self._on_disk(target, due))
        with self._first(listing, target, due) as (folder, come):
            self._prepare(listing, target)
            for path in come:
                with open(os.path.join(folder, path), "rb") as stream:
                    files.write_atomic(os.path.join(self._staging, path), stream.read())
        with self._believing():
            self._fetch_all(listing, target, sorted(due, key=lambda path: -target[path]["size"]))
            self.progress.begin("verifying", to_come, lambda: to_come)
            return self._inspect_staged(due, target)

    @contextlib.contextmanager
    def _believing(self):
        """Where what comes is wrong, not broken off, the listing may be; so the next run asks for it again."""
        try:
            yield
        except FleetError:
            if not self.wanted.check_mode:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._staging, LISTING))
            raise

    def _sha256_of(self, path, target, recorded):
        """The best that is known: what was read here, what the hub lists, what the manifest says."""
        if path in self._made:
            return self._made[path]
        if target[path]["sha256"]:
            return target[path]["sha256"]
        old = recorded.get(path)
        return old["sha256"] if old and _agree(old, target[path]) else None

    def _records(self, target, recorded):
        """{path: what a manifest keeps of it} of all wanted files, with the best sha256 that is known by now."""
        return {path: {**_plain(target[path]), "sha256": self._sha256_of(path, target, recorded)} for path in target}

    def _record(self, folder, target, recorded, listing):
        records = self._records(target, recorded)
        same = {path: recorded[path] for path in records if path in recorded and path not in self._made}
        for path, old in weight_manifest.still_written(same).items():
            if old["sha256"] == records[path]["sha256"]:
                records[path]["written_ns"] = old["written_ns"]
        return weight_manifest.write_manifest(folder, records, **self._identity(listing))

    def _identity(self, listing):
        return {**identity(self.wanted), "commit": listing.commit, "at": listing.at}

    def _check_writable(self):
        """Raise FleetError where nothing could be put in place. Nothing is made."""
        folder = weight_manifest.existing_parent(os.path.dirname(self._staging))
        for place in {folder, *([self.wanted.destination] if os.path.isdir(self.wanted.destination) else [])}:
            if not os.access(place, os.W_OK | os.X_OK):
                raise FleetError(
                    "weights.directory-not-writable",
                    "%s cannot be written to, and the weights of %s shall lie in %s. Choose another destination, or "
                    "give this user the right to write there.",
                    (place, self.wanted.repo, self.wanted.destination),
                )

    def _prepare(self, listing, target):
        """The staging folder, with what an earlier run of the same listing left in it."""
        now = {
            "wanted": identity(self.wanted), "commit": listing.commit, "at": listing.at, "files": listing.files
        }  # fmt: skip
        self._warnings += weight_staging.claim(self._staging)
        self._claimed = os.lstat(self._staging)
        for path in self._leftovers(listing):
            os.unlink(path)
        make_directory(self._partial)
        self._check_case(target)
        files.write_atomic(os.path.join(self._staging, LISTING), json.dumps(now))

    def _check_staging(self):
        """Raise FleetError where something else took the place of the staging folder."""
        try:
            same = os.path.samestat(os.lstat(self._staging), self._claimed)
        except FileNotFoundError:
            same = False
        if not same:
            raise FleetError(
                "weights.staging-replaced",
                "%s was replaced while weights came into it. Nothing was put in place; find out who writes there, and "
                "run again.",
                (self._staging,),
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

    def _begun(self):
        """What an earlier run that was broken off wrote down of itself in the staging folder; {} for nothing."""
        return (files.read_json(os.path.join(self._staging, LISTING)) if self._is_ours() else None) or {}

    def _is_ours(self):
        """Whether what lies in the staging folder can be gone on with."""
        listing = os.path.join(self._staging, LISTING)
        folders = weight_staging.trusted(self._staging) and weight_staging.trusted(self._partial)
        return folders and weight_staging.plain_file(listing)

    def _usable(self, listing):
        """The listed files of which this run can go on with what an earlier one left. Without a record of that it is
        all of them: their checksums decide."""
        before = self._begun().get("files") or {}
        return {path for path, record in listing.files.items() if before.get(path, record) == record}

    def _leftovers(self, listing):
        """[paths] of what an earlier run left in the staging folder, and this one cannot go on with."""
        if not self._is_ours():
            return []
        places = {place for path in self._usable(listing) for place in self._places(self._staging, path)}
        found = (os.path.join(self._staging, path) for path in _below(self._staging) if path != LISTING)
        return [path for path in found if path not in places]

    def _tidy(self, due):
        """What is not part of the weights leaves the staging folder before it takes their place: also what an earlier
        run with other patterns brought."""
        shutil.rmtree(self._partial)
        for path in set(_below(self._staging)) - set(due):
            os.unlink(os.path.join(self._staging, path))
        for folder, *_rest in os.walk(self._staging, topdown=False):
            if folder == self._staging:
                continue
            with contextlib.suppress(OSError):  # where files are left
                os.rmdir(folder)

    @staticmethod
    def _places(staging, path):
        """Where a file that is due may be in a staging folder, the furthest first."""
        partial = os.path.join(partial_folder(staging, path), path)
        return (os.path.join(staging, path), partial, part_of(partial))

    def _already(self, listing, target, due):
        return self._on_disk(target, self._usable(listing) & set(due)) if self._is_ours() else 0

    def _on_disk(self, target, due):
        return sum(min(_size(self._places(self._staging, path)), target[path]["size"]) for path in due)

    def _fetch_all(self, listing, target, paths):
        """Bring files into the staging folder, several at a time. The first failure stops all."""
        from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait  # as in weight_manifest.hash_files

        pool = ThreadPoolExecutor(max_workers=max(1, min(self.wanted.workers, len(paths))))
        try:
            tasks = [pool.submit(self._fetch, listing, path, target[path]) for path in paths]
            done, _left = wait(tasks, return_when=FIRST_EXCEPTION)
            failed = [task.exception() for task in done if task.exception()]
            if failed:
                self._stop.set()
                raise next((error for error in failed if not isinstance(error, Stopped)), failed[0])
        finally:
            pool.shutdown(wait=not self._stop.is_set(), cancel_futures=True)

    def _fetch(self, listing, path, record, staging=None):
        """Bring one file into the staging folder, or another one like it, right by size and checksum."""
        if staging is None:
            staging = self._staging
            self._check_staging()
        whole, partial, incomplete = self._places(staging, path)
        for folder in (os.path.dirname(whole), os.path.dirname(partial)):
            make_directory(folder)
        self._running.append(path)
        self.progress.file = self._running[0]
        try:
            for attempt in range(BAD_LIMIT):
                if os.path.isfile(whole):
                    os.replace(whole, partial)  # of an earlier run: believed when it was read once more
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
                if wrong is not None and attempt == 0:
                    self._check_moved(listing, path)
                if wrong is None:
                    with open(partial, "rb") as stream:
                        os.fsync(stream.fileno())
                    os.chmod(partial, 0o644)
                    os.replace(partial, whole)
                    self._made[path] = sha256
                    return
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

    def _check_moved(self, listing, path, gone=False):
        """Raise FleetError where a file is not as listed, or `gone`, because its branch is elsewhere now."""
        by_commit = listing.at == listing.commit
        if by_commit and (not gone or COMMIT.match(self.wanted.revision)):
            return
        try:
            now = self._patiently(self._client.listing, lambda: 0)
        except HubProblem:
            return
        if now.commit == listing.commit if by_commit else _same(now.files.get(path), listing.files[path]):
            return
        raise FleetError(
            "hub.branch-moved",
            "%s of %s is %s on %s by now: the branch moved on from commit %s, which is wanted here and not "
            "given any more. Nothing was replaced. For the newer weights run again with refresh=true (in a play: "
            "model_weights_refresh).",
            (path, self.wanted.name, "gone" if by_commit else "another file", self.wanted.hub, listing.commit),
        )

    def _come(self, listing, path, folder):
        """Let the client bring a file to `folder`; returns its sha256."""
        partial = os.path.join(folder, path)
        incomplete = part_of(partial)
        calls, only_grew = int(_size((incomplete,)) > 0), True

        def call():
            nonlocal calls, only_grew
            calls += 1
            only_grew = self._client.fetch(listing, path, folder)

        follower = Follower((partial, incomplete))
        try:
            if not os.path.isfile(partial):
                self._patiently(call, lambda: _size((partial, incomplete)), path)
            # A hub that knows no ranges makes its client write a begun file again from the start, which can be over
            # before the follower sees the file short; then it has followed bytes that are gone.
            return follower.finish(partial) if calls <= 1 and only_grew else files.sha256_file(partial)
        finally:
            follower.close()

    def _patiently(self, call, size, path=None):
        """call(), again while trying again may help: as long as bytes come, and `retries` times without any."""
        idle = refused = 0
        while True:
            if self._stop.is_set():
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
            while not self._stop.is_set() and time.monotonic() < end:
                self._sleep(min(0.2, max(0.0, end - time.monotonic())))

    # ---- what it is

    @contextlib.contextmanager
    def _first(self, listing, target, due):
        """Refuse a checkpoint of the wrong kind by config.json and the index, before the large files are asked for, and
        before anything is touched: where a setting is wrong, what an earlier run left is of use with the right one.

        Yields a temporary folder of those two files, and the list of those that had to come into it.
        """
        with tempfile.TemporaryDirectory(prefix="inference-fleet-") as folder:
            come = []
            for path in (checkpoints.CONFIG, checkpoints.INDEX):
                if path not in target:
                    continue
                if path not in due:
                    os.symlink(os.path.join(self.wanted.destination, path), os.path.join(folder, path))
                    continue
                if self._copied(path, target[path], folder):
                    continue
                with self._believing():
                    self._fetch(listing, path, target[path], folder)
                come.append(path)
            try:
                self._check_first(target, listing, folder)
            except FleetError as error:
                raise self._named(error, folder) from error
            yield folder, come

    def _copied(self, path, record, folder):
        """Whether a file that is due lies right in the staging folder; then it is copied to this one. The copy is what
        is looked at: a look has no lock, and another run may move its file on meanwhile."""
        copy = os.path.join(folder, path)
        for place in self._places(self._staging, path)[:2] if self._is_ours() else ():
            if not weight_staging.plain_file(place):
                continue
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(place, copy)
                if difference(copy, record, files.sha256_file(copy)) is None:
                    return True
                os.unlink(copy)
        return False

    def _check_first(self, target, listing, folder):
        """Raise FleetError unless the small files in `folder` are of the wanted kind, and of all that it needs."""
        sizes = self._target_sizes()
        describe(self.wanted, folder, whole=False, target=sizes)
        if checkpoints.INDEX in target:
            index = files.read_json(os.path.join(folder, checkpoints.INDEX))
            selection.check_index(self.wanted, target, listing.files, index)
        if self.wanted.eagle3:
            eagle3.check_configuration(folder, sizes)
            tensors = self._remote_tensors(listing, target, folder)
            if tensors is not None:
                eagle3.check_layers(folder, tensors)

    def _target_sizes(self):
        """{name, hidden_size, vocab_size} of the model that this draft is for, {} where it is none or that is unknown.

        They are read on the node, or, where the model has yet to come, on the hub.
        """
        target = self.wanted.target
        if not self.wanted.draft or not target:
            return {}
        wanted = replace(self.wanted, **target, draft=False, eagle3=False, target={})
        there = wanted.destination
        manifest = weight_manifest.read_manifest(there)
        if manifest and same_request(manifest, wanted) and os.path.isfile(os.path.join(there, checkpoints.CONFIG)):
            return {"name": there, **describe(wanted, there, whole=False)}
        client = self._client_of(wanted)
        with tempfile.TemporaryDirectory(prefix="inference-fleet-") as folder:
            try:
                listing, chosen_files = chosen(wanted, self._patiently(client.listing, lambda: 0))
                for path in sorted({checkpoints.CONFIG, checkpoints.INDEX} & set(chosen_files)):
                    self._patiently(lambda path=path: client.fetch(listing, path, folder), lambda: 0)
            except HubProblem as problem:
                raise explained(problem, wanted) from problem
            try:
                found = describe(wanted, folder, whole=False)
                if checkpoints.INDEX in chosen_files:
                    index = files.read_json(os.path.join(folder, checkpoints.INDEX))
                    selection.check_index(wanted, chosen_files, listing.files, index)
            except FleetError as error:
                raise self._named(error, folder, wanted.name) from error
        return {"name": wanted.name, **found}

    def _remote_tensors(self, listing, target, folder):
        """{tensor: …} by the headers of the shards on the hub, None where it does not give them."""
        index = files.read_json(os.path.join(folder, checkpoints.INDEX)) if checkpoints.INDEX in target else None
        names = sorted(set(index["weight_map"].values())) if index else [checkpoints.SINGLE]
        found = {}
        try:
            if self._reader_of is None or not set(names) <= set(target):
                return None
            reader = self._reader_of(self.wanted)
            for name in names:
                start = reader.head(listing, name, 8)
                text = reader.head(listing, name, 8 + min(int.from_bytes(start, "little"), checkpoints.LONGEST_HEADER))
                found.update(checkpoints.parse_header(io.BytesIO(text).read, target[name]["size"])[0])
        except (HubProblem, ValueError):
            return None
        return found

    def _inspect_staged(self, due, target):
        with weight_manifest.view(self._staging, self.wanted.destination, due, target) as folder:
            try:
                return describe(self.wanted, folder)
            except FleetError as error:
                raise self._named(error, folder) from error

    def _named(self, error, folder, name=None):
        """The error with the repository for the temporary folder that was looked at."""
        return error.rewritten(lambda text: text.replace(folder + "/", "").replace(folder, name or self.wanted.name))

    def _message(self, manifest, wrong, due, still, changed):
        wanted = self.wanted
        where = wanted.destination
        if wrong:
            verb = "would mend" if wanted.check_mode else "mended"
            return "%s in %s: %s" % (verb, where, "; ".join("%s %s" % item for item in sorted(wrong.items())))
        if not changed:
            return "as wanted"
        if manifest is None and self._made:
            text = told("would adopt" if wanted.check_mode else "adopted", wanted, len(due), still)
            return "%s; as listed already: %d" % (text, len(self._made))
        verb = ("would bring", "brought") if manifest is None else ("would update", "updated")
        if manifest is not None and not due:
            verb = ("would record", "recorded")
        return told(verb[0 if wanted.check_mode else 1], wanted, len(due), still)

    def _result(self, result, changed, message, verified, found, before, after):
        text = weight_manifest.listing_text
        whole = {
            **result,
            **found,
            "changed": changed,
            "message": message,
            "verified": verified,
            "diff": {"before": text(before), "after": text(after)},
        }
        warnings = [*(self._lock.warnings if self._lock is not None else []), *self._warnings]
        return {**whole, "warnings": warnings} if warnings else whole


def describe(wanted, folder, whole=True, target=None):
    """What the checkpoint in `folder` is, as checkpoints.inspect says. FleetError unless it is of the wanted kind, and
    whole (not whole: config.json is all that is looked at). target: sizes of the model that a draft is for."""
    if wanted.draft:
        sizes = checkpoints.inspect_draft(folder) if whole else checkpoints.describe_draft(folder)
        if target:
            checkpoints.check_draft_sizes(wanted.repo, sizes, target["name"], target)
        if whole and wanted.eagle3:
            eagle3.check(folder, {})
        return sizes
    found = checkpoints.describe(folder)
    checkpoints.check_format(folder, found["format"], wanted.format)
    if wanted.draft_sizes:
        checkpoints.check_draft_sizes(wanted.draft_sizes["name"], wanted.draft_sizes, wanted.repo, found)
    return checkpoints.inspect(folder) if whole else found


def chosen(wanted, listing):
    """(the Listing with the checksums that are known, {path: record} of the wanted files). Raises FleetError."""
    selection.check_commit(wanted, listing)
    selection.check_paths(wanted, listing.files)
    every = selection.check_known(wanted, listing)
    kept = selection.check_sums(wanted, selection.select(wanted, every))
    selection.check_names(wanted, kept)
    selection.check_complete(wanted, kept, every)
    selection.check_checksums(wanted, kept)
    return Listing(listing.commit, listing.at, every), kept


def identity(wanted):
    """What makes two requests the same weights; a manifest holds it."""
    return {
        "source": wanted.source,
        "repo": wanted.repo,
        "revision": wanted.revision,
        "include": sorted(wanted.include),
        "exclude": sorted(wanted.exclude),
    }


def same_request(manifest, wanted):
    """Whether the manifest is of what is wanted: the same revision by name or commit, the same patterns."""
    asked = identity(wanted)
    if asked["revision"] == manifest.get("commit"):
        asked["revision"] = manifest.get("revision")
    elif COMMIT.match(asked["revision"]):
        return False  # of a hub that did not keep to it
    return all(manifest.get(key) == value for key, value in asked.items())


def explained(problem, wanted):
    """The FleetError for what a hub did."""
    path = getattr(problem, "path", None)
    what = "%s of %s" % (path, wanted.name) if path else wanted.name
    attempts = "1 attempt" if not wanted.retries else "%d attempts" % (wanted.retries + 1)
    texts = {
        "client": "The toolkit's Python environment has no client for %s (%s). Run the role toolkit with this recipe."
        % (wanted.hub, problem.text),
        "repository": "%s does not know the repository %s (%s), or hides it. Check repo; if it is private, give a "
        "token that may read it." % (wanted.hub, wanted.repo, problem.text),
        "revision": "%s has no revision %s of %s (%s). Check revision: a commit, a tag or a branch."
        % (wanted.hub, wanted.revision, wanted.repo, problem.text),
        "entry": "%s does not have %s (%s). Check repo and revision." % (wanted.hub, what, problem.text),
        "access": "%s does not give %s without a token that may read it (%s). Accept the conditions of the repository "
        "on its page, and give such a token." % (wanted.hub, wanted.name, problem.text),
        "busy": "%s is overloaded or out of order: %s for %s, %s. What has come stays; run again later."
        % (wanted.hub, problem.text, what, attempts),
        "network": "%s cannot be reached, or breaks off: %s for %s, %s. What has come stays; check endpoint, "
        "proxies and certificates, and run again." % (wanted.hub, problem.text, what, attempts),
        "foreign": "%s answers for %s with something that is no listing (%s). A proxy or a portal may stand in the "
        "way; check endpoint and proxies." % (wanted.hub, wanted.name, problem.text),
        "disk": "Cannot write %s below %s: %s." % (what, os.path.dirname(wanted.destination), problem.text),
    }
    text = texts.get(problem.kind, "%s does not give %s: %s." % (wanted.hub, what, problem.text))
    return FleetError("hub." + problem.kind, text, details={"problem": problem.kind})


def told(verb, wanted, count, size):
    """What was done, or would be, with `count` files of which `size` bytes were to come."""
    files_word = "file" if count == 1 else "files"
    text = "%s %s in %s: %d %s, %d bytes" % (verb, wanted.name, wanted.destination, count, files_word, size)
    return text + " to fetch" if wanted.check_mode else text


def _plain(record):
    """What a manifest keeps of a listed file."""
    return {key: record[key] for key in ("size", "sha256", "oid", "at") if key in record}


def _target(recorded):
    return {path: {"oid": None, **_plain(record)} for path, record in recorded.items()}


def _agree(old, record):
    """Whether a recorded file is the listed one, by what both know."""
    if old["size"] != record["size"]:
        return False
    for key in ("sha256", "oid"):
        if record[key] is not None and old.get(key) is not None:
            return record[key] == old[key]
    return False


def _same(now, record):
    return now is not None and _agree(now, record)


def _size(places):
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
