# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings the files of a hub's listing to a node: compares what is there, fetches what differs, puts it in place.

What a client says of its own success does not count. Files grow in a folder beside the destination, where no server
looks, and take their places when all of them are right. The next run continues one that was killed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time

from ..errors import FleetError
from ..host import files
from . import checkpoints, known, selection
from . import manifest as manifests
from . import staging as stagings
from .fetch.hub import HubProblem, explained
from .lock import WeightLock
from .preview import Preview
from .selection import describe, naming, summary
from .transfer import Transfer, difference, part_of
from .wanted import Listing


class Download:
    """One run. client_of: as Transfer takes it. progress: a Progress. sleep: for tests."""

    def __init__(self, wanted, client_of, progress, sleep=time.sleep):
        self.wanted = wanted
        self.progress = progress
        self.transfer = Transfer(wanted, client_of, progress, sleep)
        self._preview = Preview(self.transfer, client_of)
        self._lock = WeightLock(wanted.destination, progress)

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
            raise manifests.cannot_bring(wanted.repo, wanted.destination, error) from error
        finally:
            self.transfer.release()

    def _own_manifest(self):
        return manifests.own_manifest(self.wanted.destination, self.wanted.repo, self.wanted.source, adopt=True)

    def _once(self):
        """The result of run(), or None where another run has changed meanwhile what was looked at."""
        wanted = self.wanted
        self.transfer.made = {}
        if not wanted.check_mode and stagings.begun_update(wanted.destination):
            with WeightLock(wanted.destination, self.progress):
                stagings.finish(wanted.destination)
        manifest = self._own_manifest()
        recorded = manifest["files"] if manifest else {}
        wrong, hashed = manifests.compare(wanted.destination, recorded, wanted.verify == "full", self.progress)
        unknown = [] if manifest else manifests.unknown(wanted.destination)
        try:
            if manifest and wanted.is_in(manifest) and not wanted.refresh:
                # checksums that the collection knows count, whatever a manifest states
                pinned = known.find(wanted.source, wanted.repo, manifest["commit"])
                files_then = known.corrected(
                    pinned, {path: {"oid": None, **_kept(record)} for path, record in recorded.items()}
                )
                listing = Listing(manifest["commit"], manifest["at"], files_then)
                target = selection.check_sums(wanted, files_then)
            else:
                listing = (unknown and self._listing_without_hub()) or self.transfer.listing()
                listing, target = selection.choose(wanted, listing)
            due = self._due(target, recorded, wrong, hashed)
            if unknown and not any(path.endswith(manifests.SHARD) for path in self.transfer.made):
                raise manifests.unknown_files(wanted.destination)
            gone = sorted(set(recorded) - set(target))
            change = _Change(manifest, recorded, listing, target, due, gone, wrong, hashed)
            if wanted.check_mode or change.in_place:
                return self._bring(change)
            with self._alone(manifest) as as_seen:
                return self._bring(change) if as_seen else None
        except HubProblem as problem:
            raise self._unrepaired(explained(problem, wanted), wrong) from problem
        except FleetError as error:
            raise self._unrepaired(error, wrong) from error
        except OSError as error:
            if not wrong:
                raise
            failed = manifests.cannot_bring(wanted.repo, wanted.destination, error)
            raise self._unrepaired(failed, wrong) from error

    def _listing_without_hub(self):
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
        self._lock = WeightLock(self.wanted.destination, self.progress)
        self._lock.take()
        try:
            yield not self._lock.waited and self._own_manifest() == manifest
        finally:
            if not self.transfer.stopped:  # else threads may still write; the lock ends with their process
                self._lock.release()

    def _unrepaired(self, error, wrong):
        """The error with what is wrong on the node, where that is why the hub was asked at all."""
        if not wrong:
            return error
        return FleetError(
            "weights.rotted-and-unrepaired",
            "In %s %s. It cannot be repaired: %s",
            (self.wanted.destination, manifests.faults_text(wrong), error.message),
            details=dict(error.details, rotted=sorted(wrong)),
        )

    def _due(self, target, recorded, wrong, hashed):
        """The paths that have to come, because what is there is not what is wanted."""
        due, read = [], None
        for path in sorted(target):
            record, old = target[path], recorded.get(path)
            if old and path not in wrong and selection.agree(old, record):
                continue
            there = os.path.join(self.wanted.destination, path)
            checksum = record["sha256"] or record["oid"]
            if checksum and os.path.isfile(there) and os.path.getsize(there) == record["size"]:
                # Of a swap that was broken off, or changed by other hands into what is wanted.
                if read is None:  # this may take minutes, and a look or a job without progress is given up
                    read = self.progress.counting("verifying", sum(one["size"] for one in target.values()))
                sha256 = hashed.get(path) or files.sha256_file(there, read=functools.partial(read, path))
                if difference(there, record, sha256) is None:
                    self.transfer.made[path] = sha256
                    wrong.pop(path, None)
                    continue
            due.append(path)
        return due

    def _bring(self, change):
        wanted, listing, target, due = self.wanted, change.listing, change.target, change.due
        changed = not change.in_place or not wanted.is_in(change.manifest) or bool(change.wrong)
        changed = changed or listing.commit != change.manifest["commit"]
        to_come = sum(target[path]["size"] for path in due)
        still = to_come - self.transfer.there(target, due)
        result = {
            "commit": listing.commit,
            "fetched": due,
            "fetched_bytes": to_come,
            "to_fetch_bytes": still,
            "repaired": sorted(change.wrong),
            "changed": changed,
            "message": self._message(change, still, changed),
        }
        before, after = change.before(), self._records(change)
        if due or change.gone:
            self._check_writable()
            stagings.check_targets(wanted.destination, due, change.gone)
            manifests.check_space(wanted.destination, still, leftovers=self.transfer.leftovers(listing))
        if change.in_place:
            found = describe(wanted, wanted.destination)
            if not wanted.check_mode:
                after = self._record(change, changed)
        elif wanted.check_mode:
            found = {}
            with self._preview.files(listing, target, due, self._distrusting):
                pass
        else:
            found = self._fetch(change, to_come)
            after = self._records(change)
            self.transfer.arrange(due, target)
            self.transfer.check_staging()
            after = stagings.install(
                self.transfer.staging, wanted.destination, due, change.gone, after, **self._identity(listing)
            )
            with contextlib.suppress(OSError):
                stagings.remove(self.transfer.place)
        verified = None if wanted.check_mode else "full" if change.manifest is None else wanted.verify
        text = manifests.listing_text
        result = {
            **result,
            **({} if wanted.check_mode else found),
            "verified": verified,
            "diff": {"before": text(before), "after": text(after)},
        }
        warnings = [*self._lock.warnings, *self.transfer.warnings]
        return {**result, "warnings": warnings} if warnings else result

    def _fetch(self, change, to_come):
        """Bring the files that are due into the staging folder; returns what the complete checkpoint is."""
        listing, target, due = change.listing, change.target, change.due
        self.progress.begin("downloading", to_come, lambda: self.transfer.on_disk(target, due))
        with self._preview.files(listing, target, due, self._distrusting) as come:
            self.transfer.prepare(listing, target)
            partial = os.path.join(self.transfer.staging, manifests.PARTIAL)
            for path, file in come.items():
                with open(file, "rb") as stream:
                    files.write_atomic(part_of(partial, path, target[path]), stream.read())
        with self._distrusting():
            self.transfer.fetch_all(listing, target, sorted(due, key=lambda path: -target[path]["size"]))
            self.progress.begin("verifying", to_come, lambda: to_come)
            places = {path: part_of(partial, path, target[path]) for path in due}
            with manifests.view(self.wanted.destination, target, places) as folder, naming(folder, self.wanted.name):
                return describe(self.wanted, folder)

    @contextlib.contextmanager
    def _distrusting(self):
        """Where what comes is wrong, not broken off, the listing may be; so the next run asks for it again."""
        try:
            yield
        except FleetError:
            if not self.wanted.check_mode:
                self.transfer.forget_listing()
            raise

    def _records(self, change):
        """{path: what a manifest keeps of it} of all wanted files, with the best sha256 that is known by now: what was
        read here, what the hub lists, what the manifest says."""
        found = {}
        for path, record in change.target.items():
            old = change.recorded.get(path)
            recorded = old["sha256"] if old and selection.agree(old, record) else None
            found[path] = {**_kept(record), "sha256": self.transfer.made.get(path) or record["sha256"] or recorded}
        return found

    def _record(self, change, changed):
        """The manifest's files where nothing has to come, with new times where it is to be written."""
        folder, recorded = self.wanted.destination, change.recorded
        times = manifests.times_of(folder, recorded)
        touched = any(times[path] != record["mtime_ns"] for path, record in recorded.items())
        if not changed and not (touched and os.access(folder, os.W_OK)):
            return recorded
        records = self._records(change)
        same = {path: recorded[path] for path in records if path in recorded and path not in self.transfer.made}
        for path, old in manifests.still_written(same).items():
            if old["sha256"] == records[path]["sha256"]:
                records[path]["written_ns"] = old["written_ns"]
        return manifests.write_manifest(folder, records, **self._identity(change.listing))

    def _identity(self, listing):
        return {**self.wanted.identity(), "commit": listing.commit, "at": listing.at}

    def _check_writable(self):
        """Raise FleetError where nothing could be put in place. Nothing is made."""
        destination = self.wanted.destination
        folder = manifests.existing_parent(os.path.dirname(self.transfer.place))
        for place in {folder, *([destination] if os.path.isdir(destination) else [])}:
            if not os.access(place, os.W_OK | os.X_OK):
                raise FleetError(
                    "weights.directory-not-writable",
                    "%s cannot be written to, and the weights of %s go to %s. Choose another destination, or "
                    "give this user the right to write there.",
                    (place, self.wanted.repo, destination),
                )

    def _message(self, change, still, changed):
        wanted, made = self.wanted, self.transfer.made
        if change.wrong:
            verb = "would repair" if wanted.check_mode else "repaired"
            return "%s in %s: %s" % (verb, wanted.destination, manifests.faults_text(change.wrong))
        if not changed:
            return "up to date"
        verbs = ("would update", "updated") if change.due else ("would record", "recorded")
        if change.manifest is None:
            verbs = ("would adopt", "adopted") if made else ("would bring", "brought")
        text = summary(verbs[0 if wanted.check_mode else 1], wanted, len(change.due), still)
        return "%s; as listed already: %d" % (text, len(made)) if change.manifest is None and made else text


class _Change:
    """What is at the destination, and what has to come or to go: `due`, `gone` (paths). wrong: {path: what is wrong};
    hashed: {path: sha256} of recorded files that were read. in_place: whether there is nothing to do with files."""

    def __init__(self, manifest, recorded, listing, target, due, gone, wrong, hashed):
        self.manifest, self.recorded = manifest, recorded
        self.listing, self.target = listing, target
        self.due, self.gone = due, gone
        self.wrong, self._hashed = wrong, hashed
        self.in_place = manifest is not None and not due and not gone

    def before(self):
        """The files that are there, as they were found."""
        return manifests.as_found(self.recorded, self.wrong, self._hashed)


def _kept(record):
    """What a manifest keeps of a listed file."""
    return {key: record[key] for key in ("size", "sha256", "oid", "at") if key in record}
