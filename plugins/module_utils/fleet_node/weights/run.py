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
import tempfile

from ..errors import FleetError
from ..host import files
from . import checkpoints, known, selection, sources
from . import manifest as manifests
from . import staging as stagings
from .staging import Busy, WeightLock
from .transfer import Progress, Transfer, difference, part_of
from .wanted import Listing, SourceProblem

AT_ONCE = 1 << 30  # bytes; a job copies or reads more


class TakesLong(Exception):
    """The run has to contact a hub, or to read or copy many bytes."""


class NotOnNode(Exception):
    """The archive is still on the control node; copy it to the node and call again."""


class Run:
    """One run. hub: the hub.Hub of the wanted weights; files of the node need none. progress: a Progress.

    limited: raise TakesLong instead of starting long work.
    """

    def __init__(self, wanted, hub=None, progress=None, limited=False):
        self.wanted = wanted
        self.progress = progress or Progress()
        self._limited = limited
        source = hub if wanted.from_hub else sources.of(wanted)
        self.transfer = Transfer(wanted, source, self.progress)

    def run(self):
        """Install the wanted files at the destination. Returns the result of the operation. Raises FleetError."""
        self._wrong = {}  # {path: what is wrong with a recorded file}
        try:
            result = self._in_place() if self.wanted.in_place else self._once()
            while result is None:
                result = self._once()
            return result
        except (FleetError, SourceProblem, OSError) as error:
            explained = self._explained(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            self.transfer.release()

    def _explained(self, error):
        """The FleetError of an error, with the damaged files that are the reason for the request."""
        if isinstance(error, SourceProblem):
            from .hub import explained  # a quick check imports no hub

            error = explained(error, self.wanted)
        elif isinstance(error, OSError):
            error = manifests.failed(self.wanted, error)
        if not self._wrong or isinstance(error, Busy):
            return error
        faults, details = manifests.faults_text(self._wrong), {**error.details, "rotted": sorted(self._wrong)}
        values = (self.wanted.destination, faults, error.message)
        return FleetError("weights.rotted-and-unrepaired", *values, details=details)

    def _long(self, size):
        """Raise TakesLong before so many bytes are read or copied, unless that is allowed."""
        if self._limited and (size >= AT_ONCE or (size and self.wanted.from_hub)):
            raise TakesLong

    def _own_manifest(self):
        return manifests.own_manifest(self.wanted.destination, self.wanted.repo, self.wanted.source)

    def _compare(self, recorded):
        """({path: what is wrong}, {path: sha256}) of the recorded files: sizes and times, and the checksums of files
        whose time changed, or of all."""
        folder = self.wanted.destination
        wrong, touched = manifests.compare_status(folder, recorded)
        names = [path for path in recorded if path not in wrong] if self.wanted.verify == "full" else touched
        hashed = self._hash({path: recorded[path] for path in names})
        for path, found in hashed.items():
            if found != recorded[path]["sha256"]:
                wrong[path] = "has sha256 %s, had %s" % (found, recorded[path]["sha256"])
        return wrong, hashed

    def _hash(self, records):
        """{path: sha256} of these installed files."""
        size = sum(record["size"] for record in records.values())
        self._long(size)
        return manifests.hash_files(self.wanted.destination, records, self.progress.verifying(size)) if records else {}

    # ---- weights that are installed

    def _once(self):
        """The result of run(), or None if another run changed the destination meanwhile."""
        wanted, self._wrong = self.wanted, {}
        self._adopted = {}  # {path: sha256} of files that are correct without a record
        self._manifest = self._own_manifest()
        self._recorded = self._manifest["files"] if self._manifest else {}
        self._wrong, self._hashed = self._compare(self._recorded)
        unknown = [] if self._manifest else manifests.unknown(wanted.destination)
        self._listing, self._target = self._listed(unknown)
        self._due = self._differing()
        if self._due and wanted.source == "path" and not os.path.isdir(wanted.path):
            raise sources.missing(wanted.path)
        if unknown and not any(path.endswith(manifests.SHARDS) for path in self._adopted):
            what = "it contains files that this collection did not install (%s)" % ", ".join(unknown[:5])
            raise manifests.occupied(wanted.destination, what)
        self._gone = sorted(set(self._recorded) - set(self._target))
        self._settled = self._manifest is not None and not self._due and not self._gone
        if wanted.check_mode or self._settled:
            return self._finish()
        self._long(sum(record["size"] for record in self._target.values()))
        if self._due and wanted.source == "standin" and not wanted.path:
            raise NotOnNode
        with WeightLock(wanted.destination, self.progress, patience_s=0 if self._limited else None) as lock:
            if lock.waited or self._own_manifest() != self._manifest:
                return None
            self.transfer.warnings += lock.warnings
            return self._finish()

    def _listed(self, unknown):
        """(the Listing, {path: record} of the wanted files)."""
        wanted, manifest, recorded = self.wanted, self._manifest, self._recorded
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
            raise sources.missing(wanted.path)
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

    def _differing(self):
        """The paths that have to be transferred, because the installed files differ from the wanted files."""
        due, read = [], None
        for path, record in sorted(self._target.items()):
            old = self._recorded.get(path)
            if old and path not in self._wrong and selection.agree(old, record):
                continue
            there = os.path.join(self.wanted.destination, path)
            checksum = record["sha256"] or record.get("oid")
            if checksum and os.path.isfile(there) and os.path.getsize(there) == record["size"]:
                # installed by a run that was killed, or by others
                if read is None:
                    size = sum(one["size"] for one in self._target.values())
                    self._long(size)
                    read = self.progress.verifying(size)
                sha256 = self._hashed.get(path) or files.sha256_file(there, read=functools.partial(read, path))
                if difference(there, record, sha256) is None:
                    self._adopted[path] = sha256
                    self._wrong.pop(path, None)
                    continue
            due.append(path)
        return due

    def _finish(self):
        """Install what is due, unless in check mode, and return the result."""
        wanted, manifest, target, due = self.wanted, self._manifest, self._target, self._due
        commit = {"commit": self._listing.commit} if wanted.from_hub else {}
        changed = not self._settled or not wanted.is_in(manifest) or bool(self._wrong)
        changed = changed or (wanted.from_hub and self._listing.commit != manifest["commit"])
        to_come = sum(target[path]["size"] for path in due)
        leftovers = self.transfer.leftovers() if due else []
        still = to_come - (self.transfer.on_disk(target, due) if leftovers else 0)
        if due or self._gone:
            self._check_writable()
            stagings.check_targets(wanted.destination, due, self._gone)
            manifests.check_space(wanted.destination, to_come, leftovers=leftovers)
        if self._settled:
            found = selection.describe(wanted, wanted.destination)
            after = self._records() if wanted.check_mode else self._record(changed)
        else:
            found, after = self._install(to_come)
        verified = "full" if manifest is None else wanted.verify
        if manifest is None and not any(one["sha256"] or one.get("oid") for one in target.values()):
            verified = "structure"  # nothing is known to compare the copy with
        return result_of(
            wanted,
            changed,
            self._message(still, changed),
            self._recorded,
            after,
            self.transfer.warnings,
            **commit,
            fetched=due,
            fetched_bytes=to_come,
            to_fetch_bytes=still,
            repaired=sorted(self._wrong),
            verified=None if wanted.check_mode and changed else verified,
            **found,
        )

    def _install(self, to_come):
        """Stage and install the files that are due: (what the complete checkpoint is, the manifest's files).

        Files that show the kind of a checkpoint are transferred first, so that another kind is refused before anything
        is changed. In check mode nothing else is transferred.
        """
        wanted, transfer, listing, target = self.wanted, self.transfer, self._listing, self._target
        planned = self._records()
        phase = "downloading" if wanted.from_hub else "copying"
        self.progress.begin(phase, to_come, lambda: transfer.on_disk(target, self._due))
        first = {wanted.config, checkpoints.INDEX} & set(target) if wanted.source != "standin" else set()
        due = sorted(first.intersection(self._due))
        self._long(sum(target[path]["size"] for path in due))
        with tempfile.TemporaryDirectory(prefix="inference-fleet-") as folder:
            parts = {path: transfer.fetch(listing, path, target[path], folder) for path in due}
            if first:
                self._described(first, parts, complete=False)
            if wanted.check_mode:
                return {}, planned
            transfer.prepare(listing, target)
            for path, part in parts.items():
                staged = part_of(transfer.staging, path, target[path])
                files.write_atomic(staged, files.read_bytes(part), mode=0o644)
        rest = sorted(set(self._due) - set(parts), key=lambda path: -target[path]["size"])
        transfer.fetch_all(listing, target, rest)
        self.progress.begin("verifying", to_come, lambda: to_come)
        parts = {path: part_of(transfer.staging, path, target[path]) for path in self._due}
        found = self._described(target, parts)
        transfer.check_staging()
        held = part_of(transfer.staging, wanted.config, target[wanted.config])
        after = stagings.install(
            transfer.staging,
            wanted.destination,
            parts,
            (wanted.config, held),
            self._gone,
            self._records(),
            **self._identity(),
        )
        with contextlib.suppress(OSError):
            files.remove(transfer.place)
        return found, after

    def _described(self, names, parts, complete=True):
        """What the checkpoint is, by the files `names` of the destination, or of `parts`. See selection.describe()."""
        wanted = self.wanted
        with selection.view(wanted, names, parts) as folder:
            found = selection.describe(wanted, folder, complete)
            if not complete and checkpoints.INDEX in names:
                index = files.read_json(os.path.join(folder, checkpoints.INDEX), follow=True)
                selection.check_complete(wanted, self._target, self._listing.files, index or {})
            return found

    def _records(self):
        """{path: record for the manifest} of all wanted files, with the best sha256 that is known by now: of bytes that
        were read, of the listing, of the manifest."""
        found, read = {}, {**self._adopted, **self.transfer.made}
        for path, record in self._target.items():
            old = self._recorded.get(path)
            recorded = old["sha256"] if old and selection.agree(old, record) else None
            found[path] = {**_kept(record), "sha256": read.get(path) or record["sha256"] or recorded}
        return found

    def _record(self, changed):
        """The manifest's files if nothing is transferred, with new times if it is written."""
        folder, recorded = self.wanted.destination, self._recorded
        touched = manifests.is_touched(folder, recorded) and os.access(folder, os.W_OK)
        if not changed and not touched:
            return recorded
        return manifests.write_manifest(folder, self._records(), before=recorded, **self._identity())

    def _identity(self):
        commit = {"commit": self._listing.commit, "at": self._listing.at} if self.wanted.from_hub else {}
        return {**self.wanted.identity(), **commit}

    def _check_writable(self):
        """Raises FleetError if nothing could be installed. Nothing is created."""
        destination = self.wanted.destination
        folder = manifests.existing_parent(os.path.dirname(manifests.staging_of(destination)))
        for place in {folder, *([destination] if os.path.isdir(destination) else [])}:
            if not os.access(place, os.W_OK | os.X_OK):
                raise manifests.failed(self.wanted, PermissionError(13, "%s cannot be written to" % place))

    def _message(self, still, changed):
        wanted, would = self.wanted, self.wanted.check_mode
        if self._wrong:
            verb = "would repair" if would else "repaired"
            return "%s in %s: %s" % (verb, wanted.destination, manifests.faults_text(self._wrong))
        if not changed:
            return "up to date"
        verb = "adopt" if self._adopted and self._manifest is None else "install"
        text = "%s %s in %s: %d files, %s to transfer" % (
            "would " + verb if would else verb + "ed",
            wanted.name,
            wanted.destination,
            len(self._due),
            manifests.amount(still),
        )
        return "%s; already correct: %d" % (text, len(self._adopted)) if self._adopted else text

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
        wrong, _hashed = self._compare(recorded)
        if wrong:
            values = (folder, manifests.faults_text(wrong), os.path.join(folder, manifests.MANIFEST))
            raise FleetError("weights.rotted", *values, details={"rotted": sorted(wrong)})
        there = sources.statuses(folder).items()
        records = recorded or {path: {"size": one["size"], "sha256": None} for path, one in there}
        records = selection.check_required(wanted, records)
        required = not recorded and any(record["sha256"] for record in records.values())
        writable, warnings = os.access(folder, os.W_OK), []
        verified = wanted.verify if recorded else None if wanted.check_mode else "structure"
        if not recorded and not wanted.check_mode and (writable or (required and wanted.verify == "full")):
            hashes = self._hash(records)
            records = {path: dict(record, sha256=hashes[path]) for path, record in records.items()}
            selection.check_required(wanted, records)
            verified = "full" if required else "structure"
        # A directory that was downloaded from a hub and copied here keeps that origin.
        asked, identity = wanted.revision, wanted.identity()
        same = manifest is not None and (
            asked in (manifest.get("revision"), manifest.get("commit")) or (asked is None and "commit" in manifest)
        )
        if same:
            identity = {key: value for key, value in manifest.items() if key not in ("schema", "files")}
        changed = writable and not same
        if writable and not wanted.check_mode and (changed or manifests.is_touched(folder, recorded)):
            records = manifests.write_manifest(folder, records, before=recorded, **identity)
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
        return result_of(wanted, changed, message, recorded, records, warnings, repaired=[], verified=verified, **found)


def _kept(record):
    """The fields of a listed file that a manifest keeps."""
    return {key: record[key] for key in ("size", "sha256", "oid", "at", "origin_mtime_ns") if key in record}


def names_of(wanted):
    """The fields of a result that repeat the request."""
    return {
        "path": wanted.destination, "source": wanted.source, "repo": wanted.repo, "revision": wanted.revision
    }  # fmt: skip


def result_of(wanted, changed, message, before, after, warnings=(), **more):
    """The result of an operation."""
    diff = {"before": manifests.listing_text(before), "after": manifests.listing_text(after)}
    more = {**more, "warnings": list(warnings)} if warnings else more
    return {**names_of(wanted), "changed": changed, "message": message, "diff": diff, **more}
