# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights that need no hub: the stand-in, and directories of the node.

They are complete, of the format that is wanted, and still what they were when they came.
A manifest beside the weights, written last, says which files they are. New weights grow in a folder beside the
destination and take its place when all of them are there.
"""

from __future__ import annotations

import os

from ..errors import FleetError
from . import checkpoints, draft_heads, known, sha256sums
from . import manifest as manifests
from . import staging as stagings
from .lock import WeightLock
from .progress import Progress
from .sources import NotOnNode, Request
from .sources import path as path_source
from .sources import standin as standin_source

SOURCES = {"standin": standin_source, "path": path_source}


def from_parameters(parameters):
    """A Request from a module's parameters. Raises FleetError where they contradict each other."""
    given = {name: value for name, value in parameters.items() if name in Request._fields}
    request = Request(**given)
    if request.source == "standin":
        request = request._replace(format=None)  # it has its own, whatever the recipe's weights have
    if request.source == "path":
        if not request.path:
            raise FleetError(
                "weights.path-invalid",
                "source is path, but path is not set; name the directory that holds the checkpoint.",
            )
        if not request.copy and os.path.normpath(request.path) != os.path.normpath(request.destination):
            raise FleetError(
                "weights.path-invalid",
                "Without copy the weights are served from path %s, but servers load destination %s. "
                "Set copy to true, or both to the same directory.",
                (request.path, request.destination),
            )
        if request.copy and os.path.realpath(request.path) == os.path.realpath(request.destination):
            raise FleetError(
                "weights.path-invalid",
                "copy is true, but path and destination are the same directory %s. Set another destination.",
                (request.path,),
            )
    if not os.path.isabs(request.destination) or os.path.normpath(request.destination) == "/":
        raise FleetError(
            "weights.path-invalid",
            "destination is %r. Set the absolute path of a directory.",
            (request.destination,),
        )
    return request


def ensure(request, verify="quick", draft=None, draft_eagle3=False, check_mode=False, progress=None, patience_s=None):
    """Bring the wanted weights to `request.destination`, and see that they are complete.

    verify: "quick" compares sizes and times with the manifest and hashes only files whose time changed; "full" hashes
    all of them, on all cores. draft: directory of a draft model that must be there, or None; draft_eagle3: whether it
    must be a head that the engine runs. progress: a Progress, or None. patience_s: how long to wait for
    another run that brings weights to the destination before weight_lock.Busy is raised; None: until it has ended.

    Returns {changed, message, path, source, repo, revision, verified: quick|full|structure|null, repaired: [names],
    warnings: [text], diff: {before, after}}, to_fetch_bytes for a copy, and what checkpoints.inspect says (in check
    mode where there are weights); with a draft what `joined` adds.
    Returns {changed: False, packed_needed: True} where the source's files must be brought to the node first.
    Raises FleetError.
    """
    progress = progress or Progress()
    try:
        check_draft(draft, draft_eagle3)
        if draft and request.source == "path" and os.path.isdir(request.path):
            _check_draft_of(request.path, draft, checkpoints.describe(request.path))
        if request.in_place:
            result = _ensure_in_place(request, verify, check_mode, progress)
        else:
            result = _ensure_copy(request, verify, check_mode, progress, patience_s)
        if draft and "hidden_size" in result:
            _check_draft_of(request.destination, draft, result)
        return joined(look_at_draft(draft, verify, check_mode, progress), result) if draft else result
    except NotOnNode:
        return {"changed": False, "packed_needed": True}
    except OSError as error:
        raise manifests.cannot_bring(request.repo, request.destination, error) from error


def check_draft(draft, eagle3_head):
    """Raise FleetError unless the draft model in this directory (None, "": none) is complete, and, where it must be an
    EAGLE3 head, one that the engine runs: what can be checked before the model itself comes."""
    checkpoints.check_draft(draft)
    if draft and eagle3_head:
        draft_heads.check(draft, {})


def look_at_draft(draft, verify, check_mode=False, progress=None):
    """The result of `ensure` for a draft model that is on the node: looked at, recorded, never changed."""
    request = Request(source="path", repo=None, destination=draft, path=draft)
    try:
        return _ensure_in_place(request, verify, check_mode, progress or Progress(), checkpoints.inspect_draft)
    except OSError as error:
        raise FleetError(
            "weights.cannot-bring",
            "Cannot read the draft model in %s: %s. Check its mode and the mount.",
            (draft, error),
        ) from error


def joined(draft, result):
    """The result of a model with that of its draft, which gets a key of its own."""
    both = (draft, result)
    messages = [part["message"] for part in both if part["changed"]]
    both_results = {
        **result,
        "changed": bool(messages),
        "message": "; ".join(messages) or result["message"],
        "repaired": [name for part in both for name in part.get("repaired", [])],
        "warnings": [text for part in both for text in part.get("warnings", [])],
        "draft": {key: draft.get(key) for key in ("path", "repo", "revision", "commit", "changed", "verified")},
        "diff": {key: draft["diff"][key] + result["diff"][key] for key in ("before", "after")},
    }
    if "to_fetch_bytes" in result:
        both_results["to_fetch_bytes"] = draft.get("to_fetch_bytes", 0) + result["to_fetch_bytes"]
    return both_results


def effort(request, verify, draft=None):
    """Bytes that `ensure` would copy or read for a request of source path. Raises FleetError."""
    return _effort(request, verify) + (
        _effort(Request(source="path", repo=None, destination=draft, path=draft), verify) if draft else 0
    )


def _effort(request, verify):
    manifest = manifests.read_manifest(request.destination)
    recorded = manifest["files"] if manifest else {}
    wrong, touched = manifests.compare_status(request.destination, recorded)
    read = [record["size"] for name, record in recorded.items() if verify == "full" or name in touched]
    if request.copy:
        wanted = path_source.wanted_files(request) or {}
        due = set(wrong) | _outdated(recorded, wanted)
        return sum(read) + sum(record["size"] for name, record in wanted.items() if name in due)
    if manifest is None and os.path.isdir(request.destination):
        statuses = path_source.file_statuses(request.destination)
        there = {name: {"size": status.st_size} for name, status in statuses.items()}
        if os.access(request.destination, os.W_OK) or (verify == "full" and known.published(request, None, there)):
            read = [record["size"] for record in there.values()]
    return sum(read)


def _check_draft_of(path, draft, found):
    checkpoints.check_draft_sizes(draft, checkpoints.describe_draft(draft), path, found)


def _own_manifest(request, destination):
    """The manifest of an earlier run, None where there is none, also beside exactly the files that are promised: those
    are replaced. Raises FleetError where others put something there."""
    names = set(manifests.unknown(destination)) - {manifests.MANIFEST}
    wanted = (names and SOURCES[request.source].wanted_files(request)) or {}
    wrong, _touched = manifests.compare_status(destination, {n: {**one, "mtime_ns": 0} for n, one in wanted.items()})
    adopt = not wrong and names == {name.partition("/")[0] for name in wanted}
    return manifests.own_manifest(destination, request.repo, request.source, adopt)


class _Look:
    """What is at a destination of ours, and what has to come there: `due`, `gone` (names) or, where the source alone
    knows what there is to fetch, `unknown`. Raises FleetError."""

    def __init__(self, request, destination, verify, progress):
        self.request = request
        self.destination = destination
        self.manifest = _own_manifest(request, destination)
        self.recorded = self.manifest["files"] if self.manifest else {}
        self.wrong, self._hashed = manifests.compare(destination, self.recorded, verify == "full", progress)
        wanted = SOURCES[request.source].wanted_files(request)
        if wanted is None and not self.manifest and request.source == "path":
            checkpoints.inspect(request.path)  # says what is missing there
        self.published = known.published(request, self.manifest, wanted or self.recorded)
        self.warnings = known.check(
            request, request.path if wanted else destination, self.published, wanted or self.recorded
        )
        self.wanted = sha256sums.filled(request, known.filled(request, self.published, wanted))
        sha256sums.check(request, request.path if wanted else destination, self.wanted or self.recorded)
        self.due = sorted(set(self.wrong) | _outdated(self.recorded, self.wanted))
        self.gone = sorted(set(self.recorded) - set(self.wanted)) if self.wanted is not None else []
        # Without a promise of names, as long as there is nothing at all.
        self.unknown = self.manifest is None and self.wanted is None
        self.future = {
            name: dict(self.recorded.get(name, {}), **record) for name, record in (self.wanted or self.recorded).items()
        }
        self.to_fetch = sum(self.future[name]["size"] for name in self.due)

    def settled(self):
        """Whether all is as wanted."""
        return not (self.due or self.gone or self.unknown) and self.manifest["revision"] == self.request.revision

    def before(self):
        """The files that are there, as they were found."""
        return manifests.as_found(self.recorded, self.wrong, self._hashed)

    def result(self, changed, message, verified, found, before, after, warnings):
        """The result of a run that found this."""
        result = _result(self.request, changed, message, verified, found, before, after, self.wrong, warnings)
        return {**result, "to_fetch_bytes": self.to_fetch} if self.request.source == "path" else result


def _ensure_copy(request, verify, check_mode, progress, patience_s):
    """The weights are ours: made, replaced and repaired, by one run at a time."""
    destination = os.path.realpath(request.destination)
    while True:
        if not check_mode and stagings.begun_update(destination):
            with WeightLock(destination, progress, patience_s):
                stagings.finish(destination)
        look = _Look(request, destination, verify, progress)
        if look.settled():
            return _as_wanted(look, verify, check_mode)
        _check_origin(look)
        if check_mode:
            _check_space(look)
            message = _message(request, look.manifest, look.wrong, check_mode)
            return look.result(True, message, None, {}, look.before(), look.future, look.warnings)
        with WeightLock(destination, progress, patience_s) as lock:
            # What another run has brought meanwhile is looked at first.
            if not lock.waited and _own_manifest(request, destination) == look.manifest:
                return _replace(look, verify, progress, lock.warnings)


def _as_wanted(look, verify, check_mode):
    request, recorded = look.request, look.recorded
    if any(_stat_differs(look.destination, name, record) for name, record in recorded.items()) and not check_mode:
        # same bytes, new times: hash them once only
        manifests.write_manifest(look.destination, manifests.still_written(recorded), **_identity(request))
    found = checkpoints.inspect(look.destination)
    checkpoints.check_format(request.destination, found["format"], request.format)
    return look.result(False, "up to date", verify, found, recorded, recorded, look.warnings)


def _check_origin(look):
    """Raise FleetError where what is due cannot come from the directory that it is copied from."""
    request = look.request
    if request.source != "path" or not (look.due or look.unknown):
        return
    if look.wrong and not os.path.isdir(request.path):
        raise FleetError(
            "weights.rotted-and-unrepaired",
            "In %s %s, and %s is not there to copy from again; mount it, or check path.",
            (request.destination, manifests.faults_text(look.wrong), request.path),
            details={"rotted": sorted(look.wrong)},
        )
    origin = checkpoints.inspect(request.path)
    checkpoints.check_format(request.path, origin["format"], request.format)


def _check_space(look):
    if look.due:
        manifests.check_space(look.destination, look.to_fetch, leftovers=_staging(look.destination))


def _replace(look, verify, progress, warnings):
    """Bring what is due. No other run is at work there."""
    request, destination, manifest = look.request, look.destination, look.manifest
    wanted, due, gone = look.wanted, look.due, look.gone
    _check_space(look)
    before = look.before()
    stagings.check_targets(destination, due, gone)
    warnings = [*warnings, *_clear_staging(destination)]
    handle, claimed = stagings.claim(manifests.staging_of(destination))
    warnings += claimed
    staging = stagings.path_of(handle)
    try:
        if due or look.unknown:
            made = SOURCES[request.source].fetch(request, due, staging, progress.counting("copying", look.to_fetch))
        else:
            made = {}
        _check_made(request, made, wanted, look.recorded, due)
        kept = {name: record for name, record in look.recorded.items() if name not in gone and name not in due}
        kept.update({name: made[name] for name in due} if manifest else made)
        found = manifests.inspect_staged(staging, destination, due if manifest else sorted(made), kept)
        checkpoints.check_format(request.destination, found["format"], request.format)
        future = stagings.install(
            staging, destination, due if manifest else sorted(made), gone, kept, **_identity(request)
        )
    finally:
        os.close(handle)
        if stagings.begun_update(destination) is None:  # else the next run finishes by it
            _clear_staging(destination)
    warnings = [*warnings, *known.check(request, destination, look.published, future)]
    promised = (
        request.source != "path"
        or look.published
        or request.sums
        or all(record["sha256"] for record in (wanted or {}).values())
    )
    verified = verify if manifest else "full" if promised else "structure"
    message = _message(request, manifest, look.wrong, False)
    return look.result(True, message, verified, found, before, future, warnings)


def _ensure_in_place(request, verify, check_mode, progress, inspect=checkpoints.inspect):
    """The weights are somebody else's: looked at, recorded, never changed. inspect: of checkpoints, what fits them."""
    destination = request.destination
    found = inspect(destination)
    checkpoints.check_format(destination, found.get("format"), request.format)
    manifest = manifests.read_manifest(destination)
    if manifest and request.repo and manifest.get("repo") != request.repo:
        raise manifests.other_model(request.destination, manifest, request.repo, request.source)
    writable = os.access(destination, os.W_OK)
    recorded = manifest["files"] if manifest else {}
    wrong, _hashed = manifests.compare(destination, recorded, verify == "full", progress)
    if wrong:
        raise FleetError(
            "weights.rotted",
            "The checkpoint in %s is not what it was when it was recorded: %s. Bring those files back, or, if the "
            "change was meant, remove %s and run again.",
            (destination, manifests.faults_text(wrong), os.path.join(destination, manifests.MANIFEST)),
            details={"rotted": sorted(wrong)},
        )
    # A directory that was fetched from a hub and carried here keeps saying so.
    same = manifest is not None and (
        request.revision in (manifest["revision"], manifest.get("commit"))
        or (request.revision is None and "commit" in manifest)
    )
    changed = writable and not same
    stale = any(_stat_differs(destination, name, record) for name, record in recorded.items())
    future = recorded or {
        name: {"size": status.st_size, "sha256": None}
        for name, status in path_source.file_statuses(destination).items()
    }
    published = known.published(request, manifest, future)
    warnings = known.check(request, destination, published, future)
    sha256sums.check(request, destination, recorded)
    verified = verify if recorded else None
    if not recorded and not check_mode and (writable or ((published or request.sums) and verify == "full")):
        read = progress.counting("verifying", sum(record["size"] for record in future.values()))
        hashes = manifests.hash_files(destination, future, read)
        future = {name: dict(record, sha256=hashes[name]) for name, record in future.items()}
        warnings = known.check(request, destination, published, future)
        sha256sums.check(request, destination, future)
        verified = "full" if published or request.sums else "structure"
    if (changed or stale) and writable and not check_mode:
        kept = {key: value for key, value in (manifest or {}).items() if key not in ("schema", "files")}
        future = manifests.write_manifest(destination, future, **(kept if same else _identity(request)))
    if manifest is None and not writable:
        future = {}
        if verified is None:
            verified = "structure"
            warnings.append(
                "%s cannot be written to, so no manifest is kept there: only the structure of the checkpoint was "
                "checked, not the content of its files." % destination
            )
    message = "up to date"
    if changed:
        message = "%s the files of %s in %s" % (
            "would record" if check_mode else "recorded", request.repo or "the draft model", destination
        )  # fmt: skip
        if not (recorded or published or request.sums):
            message += " as they are; nothing is known to compare them with"
    return _result(request, changed, message, verified, found, recorded, future, {}, warnings)


def _outdated(recorded, wanted):
    """Names of wanted files that the recorded ones do not match, by whatever both know of them."""
    return {
        name
        for name, record in (wanted or {}).items()
        if name not in recorded
        or any(value is not None and recorded[name].get(key) != value for key, value in record.items())
    }


def _check_made(request, made, wanted, recorded, due):
    """Raise FleetError where a source gave something else than was promised, or than was there before it rotted."""
    for name in due:
        promised = (wanted or {}).get(name, {}).get("sha256")
        if promised is None and name in recorded and name not in _outdated(recorded, wanted):
            promised = recorded[name]["sha256"]
        if name not in made:
            raise FleetError(
                "weights.source-invalid",
                "%s is part of %s, but its source %s does not give it. Check path.",
                (name, request.repo, request.source),
            )
        if promised is not None and made[name]["sha256"] != promised:
            raise FleetError(
                "weights.source-invalid",
                "%s came with sha256 %s, expected %s; its source is damaged or another version. Nothing was replaced. "
                "Check the source.",
                (name, made[name]["sha256"], promised),
            )


def _stat_differs(folder, name, record):
    return os.stat(os.path.join(folder, name)).st_mtime_ns != record["mtime_ns"]


def _identity(request):
    return {"source": request.source, "repo": request.repo, "revision": request.revision}


def _staging(destination):
    """The folders in which files grow for the destination."""
    return [manifests.staging_of(destination) + end for end in ("", ".partial", ".old")]


def _clear_staging(destination):
    """Remove what an earlier run, or this one, left half-made beside the destination. Returns what to warn of."""
    return [text for folder in _staging(destination) for text in stagings.clear(folder)]


def _message(request, manifest, wrong, check_mode):
    if wrong:
        return "%s in %s: %s" % (
            "would repair" if check_mode else "repaired",
            request.destination,
            manifests.faults_text(wrong),
        )
    verb = ("would bring", "brought") if manifest is None else ("would update", "updated")
    return "%s %s in %s" % (verb[0 if check_mode else 1], request.repo, request.destination)


def _result(request, changed, message, verified, found, before, after, wrong, warnings=()):
    result = {
        "changed": changed,
        "message": message,
        "path": request.destination,
        "source": request.source,
        "repo": request.repo,
        "revision": request.revision,
        "verified": verified,
        "repaired": sorted(wrong),
        "diff": {"before": manifests.listing_text(before), "after": manifests.listing_text(after)},
    }
    if warnings:
        result["warnings"] = list(warnings)
    result.update(found)
    return result
