# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run: list the files of a source, compare them with the manifest, stage the missing files, install them.

Check mode ends after the comparison. Files are written to a folder next to the destination, where no server reads them,
and are installed when all of them are correct; the next run continues a run that was killed. A directory that is served
in place is only compared and recorded.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import tempfile
import time

from ..errors import FleetError
from ..host import files
from . import checkpoints, known, selection
from . import manifest as manifests
from . import staging as stagings
from .lock import Busy, WeightLock
from .progress import Progress
from .wanted import Listing, SourceProblem

AT_ONCE = 1 << 30  # bytes; a job copies or reads more


class TakesLong(Exception):
    """The run has to contact a hub, or to read or copy many bytes."""


class NotOnNode(Exception):
    """The archive is still on the control node; copy it to the node and call again."""


def source_of(wanted, http_of):
    """The source of a Wanted. http_of: a function that returns its hub.Hub; not used for files on the node."""
    if wanted.from_hub:
        return http_of(wanted)
    from . import sources  # a quick check of a hub's weights needs none

    return sources.Archive(wanted) if wanted.source == "standin" else sources.Directory(wanted)


class Run:
    """One run. http_of: see source_of(). progress: a Progress. sleep: for tests.

    limited: raise TakesLong instead of starting long work.
    """

    def __init__(self, wanted, http_of=None, progress=None, limited=False, sleep=time.sleep):
        self.wanted = wanted
        self.progress = progress or Progress()
        self._limited = limited
        self._http_of, self._sleep = http_of, sleep
        self._lock = self._new_lock()
        self._made_transfer = None
        self.made = {}  # {path: sha256} of files that are correct without a record

    @property
    def transfer(self):
        """The Transfer, made when it is needed, because its imports are slow."""
        if self._made_transfer is None:
            from .transfer import Transfer

            source = source_of(self.wanted, self._http_of)
            self._made_transfer = Transfer(self.wanted, source, self.progress, self._sleep)
        return self._made_transfer

    def _new_lock(self):
        return WeightLock(self.wanted.destination, self.progress, patience_s=0 if self._limited else None)

    def run(self):
        """Install the wanted files at the destination. Returns the result of the operation. Raises FleetError."""
        try:
            if self.wanted.in_place:
                return self._in_place()
            result = None
            while result is None:
                result = self._once()
            return result
        except SourceProblem as problem:
            from .hub import explained

            raise explained(problem, self.wanted) from problem
        except OSError as error:
            raise manifests.failed(self.wanted, error) from error
        finally:
            if self._made_transfer:
                self._made_transfer.release()

    def _long(self, size):
        """Raise TakesLong before so many bytes are read or copied, unless that is allowed."""
        if self._limited and (size >= AT_ONCE or (size and self.wanted.from_hub)):
            raise TakesLong

    def _own_manifest(self):
        return manifests.own_manifest(self.wanted.destination, self.wanted.repo, self.wanted.source)

    def _compare(self, manifest):
        """({path: what is wrong}, {path: sha256}) of the recorded files: sizes and times, and the checksums of files
        whose time changed, or of all."""
        recorded, folder = manifest["files"] if manifest else {}, self.wanted.destination
        wrong, touched = manifests.compare_status(folder, recorded)
        names = [path for path in recorded if path not in wrong] if self.wanted.verify == "full" else touched
        size = sum(recorded[path]["size"] for path in names)
        self._long(size)
        read = self.progress.verifying(size) if names else None
        hashed = manifests.hash_files(folder, names, read) if names else {}
        for path, found in hashed.items():
            if found != recorded[path]["sha256"]:
                wrong[path] = "has sha256 %s, had %s" % (found, recorded[path]["sha256"])
        return wrong, hashed

    # ---- weights that are installed

    def _once(self):
        """The result of run(), or None if another run changed the destination meanwhile."""
        wanted = self.wanted
        self.made = {}
        manifest = self._own_manifest()
        recorded = manifest["files"] if manifest else {}
        wrong, hashed = self._compare(manifest)
        unknown = [] if manifest else manifests.unknown(wanted.destination)
        if unknown and not any(path.endswith(manifests.SHARDS) for path in unknown):
            raise self._foreign_files(unknown)
        try:
            listing, target = self._target(manifest, recorded, unknown)
            due = self._due(target, recorded, wrong, hashed)
            if due and wanted.source == "path" and not os.path.isdir(wanted.path):
                raise self._missing_source()
            if unknown and not any(path.endswith(manifests.SHARDS) for path in self.made):
                raise self._foreign_files(unknown)
            gone = sorted(set(recorded) - set(target))
            change = _Change(manifest, recorded, listing, target, due, gone, wrong, hashed)
            if wanted.check_mode or change.settled:
                return self._finish(change)
            self._long(sum(record["size"] for record in target.values()))
            if due and wanted.source == "standin" and not wanted.path:
                raise NotOnNode
            self._lock = self._new_lock()
            self._lock.take()
            try:
                if self._lock.waited or self._own_manifest() != manifest:
                    return None
                return self._finish(change)
            finally:
                if not self.transfer.abandoned:  # else threads may still write; the lock ends with their process
                    self._lock.release()
        except (SourceProblem, FleetError, OSError) as error:
            raise self._unrepaired(error, wrong) from error

    def _missing_source(self):
        from .sources import invalid

        return invalid(self.wanted.path, "there is no such directory on this node")

    def _foreign_files(self, unknown):
        what = "it contains files that this collection did not install (%s)" % ", ".join(unknown[:5])
        return manifests.occupied(self.wanted.destination, what)

    def _unrepaired(self, error, wrong):
        """The error, with the damaged files that are the reason for the request."""
        if not wrong or isinstance(error, Busy):
            return error
        if isinstance(error, SourceProblem):
            from .hub import explained

            error = explained(error, self.wanted)
        elif isinstance(error, OSError):
            error = manifests.failed(self.wanted, error)
        return FleetError(
            "weights.rotted-and-unrepaired",
            self.wanted.destination,
            manifests.faults_text(wrong),
            error.message,
            details=dict(error.details, rotted=sorted(wrong)),
        )

    def _target(self, manifest, recorded, unknown):
        """(the Listing, {path: record} of the wanted files)."""
        wanted = self.wanted
        if wanted.from_hub and manifest and wanted.is_in(manifest) and not wanted.refresh:
            # checksums that the collection knows count, whatever a manifest states
            pinned = known.find(wanted.source, wanted.repo, manifest["commit"])
            found = {path: {"oid": None, **_kept(record)} for path, record in recorded.items()}
            found = known.corrected(pinned, found)
            return Listing(manifest["commit"], manifest["at"], found), selection.check_required(wanted, found)
        if wanted.from_hub:
            self._long(1)
            return selection.choose(wanted, (unknown and self._known_listing()) or self.transfer.listing())
        listing = self.transfer.source.listing()
        if listing is None and manifest:  # the directory is not mounted now
            return Listing(None, None, recorded), selection.check_required(wanted, recorded)
        if listing is None:
            raise self._missing_source()
        listing, target = selection.choose(wanted, listing)
        for path, record in target.items():
            if record["sha256"] is None and path in recorded and selection.agree(recorded[path], record):
                record["sha256"] = recorded[path]["sha256"]
        return listing, target

    def _known_listing(self):
        """The listing of a commit that the collection has checksums of, else None."""
        pinned = known.find(self.wanted.source, self.wanted.repo, self.wanted.revision)
        if self.wanted.refresh or not pinned:
            return None
        found = {path: {"size": size, "sha256": sha, "oid": None} for path, (size, sha) in pinned.files.items()}
        return Listing(pinned.commit, pinned.commit, found)

    def _due(self, target, recorded, wrong, hashed):
        """The paths that have to be transferred, because the installed files differ from the wanted files."""
        due, read = [], None
        for path in sorted(target):
            record, old = target[path], recorded.get(path)
            if old and path not in wrong and selection.agree(old, record):
                continue
            there = os.path.join(self.wanted.destination, path)
            checksum = record["sha256"] or record.get("oid")
            if checksum and os.path.isfile(there) and os.path.getsize(there) == record["size"]:
                # installed by a run that was killed, or by others
                if read is None:
                    size = sum(one["size"] for one in target.values())
                    self._long(size)
                    read = self.progress.verifying(size)
                from .transfer import difference

                sha256 = hashed.get(path) or files.sha256_file(there, read=functools.partial(read, path))
                if difference(there, record, sha256) is None:
                    self.made[path] = sha256
                    wrong.pop(path, None)
                    continue
            due.append(path)
        return due

    def _finish(self, change):
        wanted, listing, target, due = self.wanted, change.listing, change.target, change.due
        commit = {"commit": listing.commit} if wanted.from_hub else {}
        changed = not change.settled or not wanted.is_in(change.manifest) or bool(change.wrong)
        changed = changed or (wanted.from_hub and listing.commit != change.manifest["commit"])
        to_come = sum(target[path]["size"] for path in due)
        leftovers = self.transfer.leftovers() if due else []
        still = to_come - (self.transfer.on_disk(target, due) if leftovers else 0)
        after = self._records(change)
        if due or change.gone:
            self._check_writable()
            stagings.check_targets(wanted.destination, due, change.gone)
            manifests.check_space(wanted.destination, to_come, leftovers=leftovers)
        found = {}
        if change.settled:
            found = selection.describe(wanted, wanted.destination)
            if not wanted.check_mode:
                after = self._record(change, changed)
        else:
            phase = "downloading" if wanted.from_hub else "copying"
            self.progress.begin(phase, to_come, lambda: self.transfer.on_disk(target, due))
            previewed = {} if wanted.source == "standin" else self._preview(listing, target, due)
            if not wanted.check_mode:
                found, after = self._install(change, to_come, previewed)
        verified = "full" if change.manifest is None else wanted.verify
        if change.manifest is None and not any(one["sha256"] or one.get("oid") for one in target.values()):
            verified = "structure"  # nothing is known to compare the copy with
        warnings = [*self._lock.warnings, *(self._made_transfer.warnings if self._made_transfer else ())]
        return result_of(
            wanted,
            changed,
            self._message(change, still, changed),
            change.before(),
            after,
            **commit,
            fetched=due,
            fetched_bytes=to_come,
            to_fetch_bytes=still,
            repaired=sorted(change.wrong),
            verified=None if wanted.check_mode and changed else verified,
            **found,
            **({"warnings": warnings} if warnings else {}),
        )

    def _preview(self, listing, target, due):
        """Refuse a checkpoint of the wrong kind by config.json and its index, before anything is changed. Returns
        {path: bytes} of those that were transferred."""
        from .transfer import part_of

        wanted, come = self.wanted, {}
        with tempfile.TemporaryDirectory(prefix="inference-fleet-") as folder:
            for path in sorted({wanted.config, checkpoints.INDEX} & set(target)):
                place = os.path.join(folder, path)
                if path not in due:
                    os.symlink(os.path.join(wanted.destination, path), place)
                    continue
                staged = part_of(self.transfer.place, path, target[path])
                complete = self.transfer.on_disk(target, [path]) == target[path]["size"]
                if complete and self.transfer.leftovers() and not stagings.foreign(staged, stat.S_IFREG):
                    with contextlib.suppress(OSError):  # of an earlier run; fetch() checks it
                        shutil.copyfile(staged, part_of(folder, path, target[path]), follow_symlinks=False)
                with self._distrusting():
                    os.rename(self.transfer.fetch(listing, path, target[path], folder), place)
                come[path] = files.read_bytes(place)
            with selection.naming(folder, wanted.name):
                selection.describe(wanted, folder, complete=False)
                if checkpoints.INDEX in target:
                    index = files.read_json(os.path.join(folder, checkpoints.INDEX), follow=True)
                    selection.check_complete(wanted, target, listing.files, index or {})
        return come

    def _install(self, change, to_come, previewed):
        """Stage and install the files that are due; returns (what the complete checkpoint is, the manifest's files)."""
        from .transfer import part_of

        wanted, transfer, listing = self.wanted, self.transfer, change.listing
        target, due = change.target, change.due
        transfer.prepare(listing, target)
        for path, content in previewed.items():
            files.write_atomic(part_of(transfer.staging, path, target[path]), content)
        with self._distrusting():
            transfer.fetch_all(listing, target, sorted(due, key=lambda path: -target[path]["size"]))
            self.progress.begin("verifying", to_come, lambda: to_come)
            parts = {path: part_of(transfer.staging, path, target[path]) for path in due}
            view = manifests.view(wanted.destination, target, parts)
            with view as folder, selection.naming(folder, wanted.name):
                found = selection.describe(wanted, folder)
        transfer.check_staging()
        held = part_of(transfer.staging, wanted.config, target[wanted.config])
        records, identity = self._records(change), self._identity(listing)
        after = stagings.install(
            transfer.staging, wanted.destination, parts, (wanted.config, held), change.gone, records, **identity
        )
        with contextlib.suppress(OSError):
            stagings.remove(transfer.place)
        return found, after

    @contextlib.contextmanager
    def _distrusting(self):
        """If received bytes are wrong, the listing may be; so the next run requests it again."""
        try:
            yield
        except FleetError:
            if not self.wanted.check_mode:
                self.transfer.forget_listing()
            raise

    def _records(self, change):
        """{path: record for the manifest} of all wanted files, with the best sha256 that is known by now: of bytes that
        were read, of the listing, of the manifest."""
        found, made = {}, {**self.made, **(self._made_transfer.made if self._made_transfer else {})}
        for path, record in change.target.items():
            old = change.recorded.get(path)
            recorded = old["sha256"] if old and selection.agree(old, record) else None
            found[path] = {**_kept(record), "sha256": made.get(path) or record["sha256"] or recorded}
        return found

    def _record(self, change, changed):
        """The manifest's files if nothing is transferred, with new times if it is written."""
        folder, recorded = self.wanted.destination, change.recorded
        times = manifests.times_of(folder, recorded)
        touched = any(times[path] != record["mtime_ns"] for path, record in recorded.items())
        if not changed and not (touched and os.access(folder, os.W_OK)):
            return recorded
        records = self._records(change)
        same = {path: recorded[path] for path in records if path in recorded and path not in self.made}
        for path, old in manifests.still_written(same).items():
            if old["sha256"] == records[path]["sha256"]:
                records[path]["written_ns"] = old["written_ns"]
        return manifests.write_manifest(folder, records, **self._identity(change.listing))

    def _identity(self, listing):
        commit = {"commit": listing.commit, "at": listing.at} if self.wanted.from_hub else {}
        return {**self.wanted.identity(), **commit}

    def _check_writable(self):
        """Raises FleetError if nothing could be installed. Nothing is created."""
        destination = self.wanted.destination
        folder = manifests.existing_parent(os.path.dirname(manifests.staging_of(destination)))
        for place in {folder, *([destination] if os.path.isdir(destination) else [])}:
            if not os.access(place, os.W_OK | os.X_OK):
                raise manifests.failed(self.wanted, PermissionError(13, "%s cannot be written to" % place))

    def _message(self, change, still, changed):
        wanted = self.wanted
        if change.wrong:
            verb = "would repair" if wanted.check_mode else "repaired"
            return "%s in %s: %s" % (verb, wanted.destination, manifests.faults_text(change.wrong))
        if not changed:
            return "up to date"
        verbs = ("would update", "updated") if change.due else ("would record", "recorded")
        if change.manifest is None:
            verbs = ("would adopt", "adopted") if self.made else ("would install", "installed")
        text = "%s %s in %s: %d files, %s%s" % (
            verbs[0 if wanted.check_mode else 1],
            wanted.name,
            wanted.destination,
            len(change.due),
            manifests.amount(still),
            " to transfer" if wanted.check_mode else "",
        )
        return "%s; already correct: %d" % (text, len(self.made)) if change.manifest is None and self.made else text

    # ---- a directory that is served in place

    def _in_place(self):
        """Compare a directory that is not managed by this collection with its manifest. Write the manifest if there is
        none."""
        wanted, folder = self.wanted, self.wanted.destination
        found = selection.describe(wanted, folder)
        manifest = manifests.read_manifest(folder)
        if manifest and wanted.repo and manifest.get("repo") != wanted.repo:
            raise manifests.occupied(folder, "it contains another model, %s" % manifest.get("repo"))
        recorded = manifest["files"] if manifest else {}
        wrong, _hashed = self._compare(manifest)
        if wrong:
            raise FleetError(
                "weights.rotted",
                folder,
                manifests.faults_text(wrong),
                os.path.join(folder, manifests.MANIFEST),
                details={"rotted": sorted(wrong)},
            )
        if recorded:
            records = selection.check_required(wanted, recorded)
        else:
            from .sources import statuses

            records = {path: {"size": one["size"], "sha256": None} for path, one in statuses(folder).items()}
            records = selection.check_required(wanted, records)
        required = not recorded and any(record["sha256"] for record in records.values())
        writable = os.access(folder, os.W_OK)
        verified = wanted.verify if recorded else None if wanted.check_mode else "structure"
        warnings = []
        if not recorded and not wanted.check_mode and (writable or (required and wanted.verify == "full")):
            size = sum(record["size"] for record in records.values())
            self._long(size)
            hashes = manifests.hash_files(folder, records, self.progress.verifying(size))
            records = {path: dict(record, sha256=hashes[path]) for path, record in records.items()}
            selection.check_required(wanted, records)
            verified = "full" if required else "structure"
        # A directory that was downloaded from a hub and copied here keeps that origin.
        asked = wanted.revision
        same = manifest is not None and (
            asked in (manifest.get("revision"), manifest.get("commit")) or (asked is None and "commit" in manifest)
        )
        changed, times = writable and not same, manifests.times_of(folder, recorded)
        stale = any(times[path] != record["mtime_ns"] for path, record in recorded.items())
        if (changed or stale) and writable and not wanted.check_mode:
            identity = {key: value for key, value in (manifest or {}).items() if key not in ("schema", "files")}
            records = manifests.still_written(recorded) if stale else records
            records = manifests.write_manifest(folder, records, **(identity if same else wanted.identity()))
        if manifest is None and not writable:
            records = {}
            warnings = [
                "%s cannot be written to, so there is no manifest: only the structure of the checkpoint was checked, "
                "not the content of its files." % folder
            ]
        message = "up to date"
        if changed:
            verb = "would record" if wanted.check_mode else "recorded"
            message = "%s the files of %s in %s" % (verb, wanted.repo or "the draft model", folder)
            if not (recorded or required):
                message += " as they are; nothing is known to compare them with"
        more = {"warnings": warnings} if warnings else {}
        return result_of(wanted, changed, message, recorded, records, repaired=[], verified=verified, **found, **more)


class _Change:
    """The files at the destination, and those that are transferred (`due`) or removed (`gone`). wrong: {path: what is
    wrong}; hashed: {path: sha256} of recorded files that were read. settled: whether no file changes."""

    def __init__(self, manifest, recorded, listing, target, due, gone, wrong, hashed):
        self.manifest, self.recorded = manifest, recorded
        self.listing, self.target = listing, target
        self.due, self.gone = due, gone
        self.wrong, self._hashed = wrong, hashed
        self.settled = manifest is not None and not due and not gone

    def before(self):
        """The present files, with the checksums of those that were read."""
        return {
            path: dict(record, sha256=self._hashed.get(path, record["sha256"]))
            for path, record in self.recorded.items()
            if self.wrong.get(path) != manifests.MISSING
        }


def _kept(record):
    """The fields of a listed file that a manifest keeps."""
    return {key: record[key] for key in ("size", "sha256", "oid", "at", "origin_mtime_ns") if key in record}


def names_of(wanted):
    """The fields of a result that repeat the request."""
    return {
        "path": wanted.destination, "source": wanted.source, "repo": wanted.repo, "revision": wanted.revision
    }  # fmt: skip


def result_of(wanted, changed, message, before, after, **more):
    """The result of an operation."""
    text = manifests.listing_text
    diff = {"before": text(before), "after": text(after)}
    return {**names_of(wanted), "changed": changed, "message": message, "diff": diff, **more}
