# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A gpt-oss checkpoint on a node: complete, of the format that is wanted, and still what it was when it came.

A manifest beside the weights, written last, says which files they are. New weights grow in a folder beside the
destination and are renamed into place when all of them are there.
"""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

from ansible_collections.inference.fleet.plugins.module_utils import checkpoints, files
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node_layout import existing_parent, make_directory
from ansible_collections.inference.fleet.plugins.module_utils.weight_sources import NotOnNode, Request
from ansible_collections.inference.fleet.plugins.module_utils.weight_sources import path as path_source
from ansible_collections.inference.fleet.plugins.module_utils.weight_sources import standin as standin_source

MANIFEST = ".inference-fleet-manifest.json"
SCHEMA = 1
SOURCES = {"standin": standin_source, "path": path_source}


def from_parameters(parameters):
    """A Request from a module's parameters. Raises FleetError where they contradict each other."""
    given = {name: value for name, value in parameters.items() if name in Request.__dataclass_fields__}
    request = Request(**given)
    if request.source == "path":
        if not request.path:
            raise FleetError("source is path, but path is not set; name the directory that holds the checkpoint.")
        if not request.copy and os.path.normpath(request.path) != os.path.normpath(request.destination):
            raise FleetError(
                "Without copy the weights are served from path %s, but servers load destination %s. "
                "Set copy to true, or both to the same directory." % (request.path, request.destination)
            )
        if request.copy and os.path.realpath(request.path) == os.path.realpath(request.destination):
            raise FleetError("copy is true, but path and destination are the same directory %s." % request.path)
    if not os.path.isabs(request.destination) or os.path.normpath(request.destination) == "/":
        raise FleetError("destination is %r; it must be the absolute path of a directory." % request.destination)
    return request


def ensure(request, verify="quick", draft=None, check_mode=False):
    """Bring the wanted weights to `request.destination`, and see that they are whole.

    verify: "quick" compares sizes and times with the manifest and hashes only files whose time changed; "full" hashes
    all of them, on all cores. draft: directory of a draft model that must be there, or None.

    Returns {changed, message, path, source, repo, revision, verified: quick|full|structure|null, repaired: [names],
    warnings: [text], diff: {before, after}} and what checkpoints.inspect says (in check mode where there are weights).
    Returns {changed: False, packed_needed: True} where the source's files must be brought to the node first.
    Raises FleetError.
    """
    try:
        check_draft(draft)
        if SOURCES[request.source].in_place(request):
            return _ensure_in_place(request, verify, check_mode)
        return _ensure_copy(request, verify, check_mode)
    except NotOnNode:
        return {"changed": False, "packed_needed": True}
    except OSError as error:
        raise FleetError("Cannot bring %s to %s: %s." % (request.repo, request.destination, error)) from error


def read_manifest(folder):
    """The manifest in `folder`, None where there is none or it cannot be read."""
    manifest = files.read_json(os.path.join(folder, MANIFEST))
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        return None
    return manifest if isinstance(manifest.get("files"), dict) else None


def compare(folder, recorded, full):
    """({name: what is wrong}, {name: sha256 of what is there}) for the files that a manifest records.

    full: hash every file; otherwise only those of the recorded size whose time differs.
    """
    wrong, hashed = {}, {}
    for name, record in recorded.items():
        try:
            status = os.stat(os.path.join(folder, name))
        except OSError:
            wrong[name] = "is missing"
            continue
        if status.st_size != record["size"]:
            wrong[name] = "is %d bytes long, was %d" % (status.st_size, record["size"])
        elif full or status.st_mtime_ns != record["mtime_ns"]:
            hashed[name] = None
    hashed = hash_files(folder, hashed)
    for name, found in hashed.items():
        if found != recorded[name]["sha256"]:
            wrong[name] = "has sha256 %s, had %s" % (found, recorded[name]["sha256"])
    return wrong, hashed


def hash_files(folder, names):
    """{name: sha256} of files in `folder`, on all cores."""
    names = list(names)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return dict(zip(names, pool.map(lambda name: files.sha256_file(os.path.join(folder, name)), names)))


def check_space(destination, needed):
    """Raise FleetError unless the file system of `destination` has `needed` bytes free."""
    folder = existing_parent(destination)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise FleetError(
            "Not enough space for the weights: %s needs %s, and the file system of %s has %s free. "
            "Free some, or choose another destination." % (destination, _amount(needed), folder, _amount(free)),
            needed_bytes=needed,
            free_bytes=free,
        )


def _ensure_copy(request, verify, check_mode):
    """The weights are ours: made, replaced and mended."""
    source = SOURCES[request.source]
    destination = os.path.realpath(request.destination)
    manifest = _own_manifest(request, destination)
    recorded = manifest["files"] if manifest else {}
    wrong, hashed = compare(destination, recorded, verify == "full")
    wanted = source.wanted_files(request)
    if wanted is None and not manifest and request.source == "path":
        checkpoints.inspect(request.path)  # says what is missing there
    due = sorted(set(wrong) | _outdated(recorded, wanted))
    gone = sorted(set(recorded) - set(wanted)) if wanted is not None else []
    # Without a promise of names, as long as there is nothing at all, the source alone knows what to fetch.
    unknown = manifest is None and wanted is None
    if not (due or gone or unknown) and manifest["revision"] == request.revision:
        if any(_stat_differs(destination, name, record) for name, record in recorded.items()) and not check_mode:
            _write_manifest(request, destination, recorded)  # same bytes, new times: hash them once only
        found = checkpoints.inspect(destination)
        checkpoints.check_format(request.destination, found["format"], request.format)
        return _result(request, False, "as wanted", verify, found, recorded, recorded, {})
    if request.source == "path" and (due or unknown):
        if wrong and not os.path.isdir(request.path):
            raise FleetError(
                "In %s %s, and %s is not there to copy from again; mount it, or check path."
                % (request.destination, "; ".join("%s %s" % item for item in sorted(wrong.items())), request.path),
                rotted=sorted(wrong),
            )
        origin = source.inspect(request)
        checkpoints.check_format(request.path, origin["format"], request.format)
    future = {name: dict(recorded.get(name, {}), **record) for name, record in (wanted or recorded).items()}
    if due:
        check_space(request.destination, sum(future[name]["size"] for name in due))
    message = _message(request, manifest, wrong, check_mode)
    before = {name: dict(record, sha256=hashed.get(name, record["sha256"])) for name, record in recorded.items()}
    for name, text in wrong.items():
        if text == "is missing":
            del before[name]
    if check_mode:
        return _result(request, True, message, None, {}, before, future, wrong)
    staging = _staging(destination)
    try:
        if due or unknown:
            _clear_staging(destination)
            make_directory(os.path.dirname(staging))
            made = source.fetch(request, due, staging)
        else:
            made = {}
        _check_made(request, made, wanted, recorded, due)
        if manifest is None:
            found = checkpoints.inspect(staging)
            checkpoints.check_format(staging, found["format"], request.format)
            future = _write_manifest(request, staging, made)
            os.chmod(staging, 0o755)
            os.rename(staging, destination)
        else:
            for name in due:
                os.rename(os.path.join(staging, name), os.path.join(destination, name))
            for name in gone:
                if os.path.lexists(os.path.join(destination, name)):
                    os.unlink(os.path.join(destination, name))
            kept = {name: record for name, record in recorded.items() if name not in gone and name not in due}
            kept.update({name: made[name] for name in due})
            found = checkpoints.inspect(destination)
            checkpoints.check_format(request.destination, found["format"], request.format)
            future = _write_manifest(request, destination, kept)
    finally:
        _clear_staging(destination)
    return _result(request, True, message, "full" if manifest is None else verify, found, before, future, wrong)


def _ensure_in_place(request, verify, check_mode):
    """The weights are somebody else's: looked at, recorded, never changed."""
    destination = request.destination
    found = checkpoints.inspect(destination)
    checkpoints.check_format(destination, found["format"], request.format)
    manifest = read_manifest(destination)
    if manifest and manifest.get("repo") != request.repo:
        raise _other_model(request, manifest)
    writable = os.access(destination, os.W_OK)
    if manifest is None and not writable:
        warning = (
            "%s cannot be written to, so no manifest is kept there: only the structure of the checkpoint was checked, "
            "not the content of its files." % destination
        )
        return _result(request, False, "as wanted", "structure", found, {}, {}, {}, [warning])
    recorded = manifest["files"] if manifest else {}
    wrong, _hashed = compare(destination, recorded, verify == "full")
    if wrong:
        raise FleetError(
            "The checkpoint in %s is not what it was when it was recorded: %s. Bring those files back, or, if the "
            "change was meant, remove %s and run again."
            % (
                destination,
                "; ".join("%s %s" % item for item in sorted(wrong.items())),
                os.path.join(destination, MANIFEST),
            ),
            rotted=sorted(wrong),
        )
    changed = writable and (manifest is None or manifest["revision"] != request.revision)
    stale = any(_stat_differs(destination, name, record) for name, record in recorded.items())
    future = recorded or {
        name: {"size": status.st_size, "sha256": None}
        for name, status in path_source.file_statuses(destination).items()
    }
    if (changed or stale) and writable and not check_mode:
        if not recorded:
            hashes = hash_files(destination, future)
            future = {name: dict(record, sha256=hashes[name]) for name, record in future.items()}
        future = _write_manifest(request, destination, future)
    message = "as wanted"
    if changed:
        message = "%s the files of %s in %s" % ("would record" if check_mode else "recorded", request.repo, destination)
    verified = verify if recorded else None if check_mode else "full"
    return _result(request, changed, message, verified, found, recorded, future, {})


def _own_manifest(request, destination):
    """The manifest of an earlier run at the destination, None where nothing is there. Raises FleetError otherwise."""
    if not os.path.lexists(destination):
        return None
    if not os.path.isdir(destination):
        raise FleetError("%s is not a directory; remove it or choose another destination." % destination)
    names = sorted(os.listdir(destination))
    if not names:
        return None
    manifest = read_manifest(destination)
    if manifest is None:
        raise FleetError(
            "%s holds files that this collection did not put there (%s); they are left as they are. Choose another "
            "destination, or remove them." % (destination, ", ".join(names[:5]))
        )
    if (manifest.get("source"), manifest.get("repo")) != (request.source, request.repo):
        raise _other_model(request, manifest)
    return manifest


def _other_model(request, manifest):
    return FleetError(
        "%s holds another model, %s (source %s), and %s (source %s) is wanted there; it is left as it is. "
        "Choose another destination, or remove it."
        % (request.destination, manifest.get("repo"), manifest.get("source"), request.repo, request.source)
    )


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
                "%s is part of %s, but its source %s does not give it." % (name, request.repo, request.source)
            )
        if promised is not None and made[name]["sha256"] != promised:
            raise FleetError(
                "%s came with sha256 %s, expected %s; its source is damaged or another version. Nothing was replaced."
                % (name, made[name]["sha256"], promised)
            )


def _write_manifest(request, folder, records):
    """Write the manifest of the files in `folder`; returns its files."""
    recorded = {
        name: dict(record, mtime_ns=os.stat(os.path.join(folder, name)).st_mtime_ns)
        for name, record in sorted(records.items())
    }
    manifest = {
        "schema": SCHEMA,
        "source": request.source,
        "repo": request.repo,
        "revision": request.revision,
        "files": recorded,
    }
    files.write_atomic(os.path.join(folder, MANIFEST), json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    return recorded


def _stat_differs(folder, name, record):
    return os.stat(os.path.join(folder, name)).st_mtime_ns != record["mtime_ns"]


def check_draft(draft):
    """Raise FleetError unless the draft model's folder holds a configuration. None and "": there is no draft."""
    if draft and not os.path.isfile(os.path.join(draft, checkpoints.CONFIG)):
        raise FleetError(
            "There is no draft model in %s: %s is missing. Put it there, or take the draft out of the recipe."
            % (draft, checkpoints.CONFIG)
        )


def _staging(destination):
    return os.path.join(os.path.dirname(destination), ".%s.inference-fleet-new" % os.path.basename(destination))


def _clear_staging(destination):
    """Remove what an earlier run, or this one, left half-made beside the destination."""
    staging = _staging(destination)
    for folder in (staging, staging + ".partial"):
        if os.path.isdir(folder):
            shutil.rmtree(folder)


def _message(request, manifest, wrong, check_mode):
    if wrong:
        return "%s in %s: %s" % (
            "would mend" if check_mode else "mended",
            request.destination,
            "; ".join("%s %s" % item for item in sorted(wrong.items())),
        )
    verb = ("would bring", "brought") if manifest is None else ("would update", "updated")
    return "%s %s in %s" % (verb[0 if check_mode else 1], request.repo, request.destination)


def _amount(size):
    return "%.1f GiB" % (size / (1 << 30)) if size >= 1 << 29 else "%.1f MiB" % (size / (1 << 20))


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
        "diff": {"before": _listing(before), "after": _listing(after)},
    }
    if warnings:
        result["warnings"] = list(warnings)
    result.update(found)
    return result


def _listing(recorded):
    return "".join(
        "%s %d bytes sha256 %s\n" % (name, record["size"], record.get("sha256") or "not known yet")
        for name, record in sorted(recorded.items())
    )
