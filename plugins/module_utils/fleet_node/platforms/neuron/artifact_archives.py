# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiled artifacts that go from one node to others: an archive with a manifest, checked file by file.

The guard's record in an artifact says whether it is complete. An archive is a tar whose first member is the manifest:
{schema, key, server, host, at, versions, weights, files: {name: {size, sha256}}}. It is named after the key, which the
plan makes of all that it knows a compilation to depend on, so the archive of another configuration is never taken for
this one's; versions and weights are what the node that compiled it had, and the one that imports it must have them too.
"""

from __future__ import annotations

import io
import json
import os
import pwd
import shutil
import tarfile
import tempfile
import time
from functools import partial

from ...errors import FleetError
from ...node import files
from ...node.directories import make_directory
from ...node.files import write_hashed
from ...node.server_spec import artifact_directory, artifact_key, check_entries
from ...weights.manifest import check_space, hash_files
from . import artifacts

MANIFEST = "manifest.json"
SCHEMA = 1
SUFFIX = ".tar"
BLOCK = 1 << 20
LONGEST_MANIFEST = 64 << 20
STAGING = ".%s.import"


def artifacts_of(entries):
    """[{path, key, user, entry, servers: [names]}] of the plan entries' artifacts, each directory once.

    entry: that of the first of its servers.
    """
    found = {}
    for name, entry in check_entries(entries).items():
        path, key = artifact_directory(entry), artifact_key(entry)
        if path is not None and key is not None:
            one = {"path": path, "key": key, "user": entry["user"], "entry": entry, "servers": []}
            found.setdefault(path, one)["servers"].append(name)
    return list(found.values())


def archive_name(key):
    """The file name of the archive of a key."""
    return key + SUFFIX


def read_manifest(archive):
    """The manifest of an archive. FleetError where it is none of ours or cannot be read."""
    try:
        with tarfile.open(archive, "r:") as tar:
            member = tar.next()
            if member is None or member.name != MANIFEST or not member.isreg() or member.size > LONGEST_MANIFEST:
                raise ValueError("its first member is not " + MANIFEST)
            manifest = json.loads(tar.extractfile(member).read().decode("utf-8"))
    except (OSError, tarfile.TarError, ValueError) as error:
        raise FleetError(
            "artifact.not-an-archive",
            "%s is no archive of a compiled artifact (%s). Export it again with playbooks/artifact_export.yml.",
            (archive, error),
        ) from error
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or manifest.get("schema") != SCHEMA or not isinstance(manifest.get("key"), str):
        raise FleetError(
            "artifact.manifest-schema-unknown",
            "%s has a manifest of another form (schema %r, this collection knows %d). Export it again.",
            (archive, manifest.get("schema") if isinstance(manifest, dict) else None, SCHEMA),
        )
    weights = manifest.get("weights", [])
    if (
        not isinstance(manifest.get("versions", {}), dict)
        or not isinstance(weights, list)
        or not all(one is None or isinstance(one, dict) for one in weights)
    ):
        raise FleetError(
            "artifact.manifest-incomplete",
            "%s does not record what it was compiled with. Export it again.",
            (archive,),
        )
    for name, record in files.items():
        parts = name.split("/")
        if name.startswith("/") or ".." in parts or "" in parts or name == artifacts.RECORD:
            raise FleetError(
                "artifact.file-name-invalid",
                "%s names the file %r, which cannot be part of an artifact.",
                (archive, name),
            )
        if not isinstance(record, dict) or not isinstance(record.get("size"), int) or not record.get("sha256"):
            raise FleetError(
                "artifact.manifest-lacks-checksum",
                "%s says neither size nor sha256 of %s. Export it again.",
                (archive, name),
            )
    return manifest


def check_key(archive, manifest, key, servers):
    """FleetError unless the archive was made for the configuration `key`."""
    if manifest["key"] != key:
        raise FleetError(
            "artifact.other-configuration",
            "%s was made for another configuration (key %s); %s would load it and ignore what is asked for (key %s). "
            "Export the artifact of a node with the same recipe and overrides, under its own name.",
            (archive, manifest["key"], ", ".join(servers), key),
        )


# ---- export


def export(entries, folder, force=False, check_mode=False):
    """Write the archive of each artifact of the entries into `folder` of this node; one for each key.

    Returns {changed, message, archives: [{key, path, size, files, written}]}. An archive that is there with the right
    key stays, unless `force`. Raises FleetError where an artifact is incomplete.
    """
    archives, done = [], set()
    wanted = _some(entries)
    for one in wanted:
        if one["key"] in done:
            continue
        target = os.path.join(folder, archive_name(one["key"]))
        if not force and os.path.exists(target):
            manifest = read_manifest(target)
            check_key(target, manifest, one["key"], one["servers"])
            archives.append(_archive_row(target, manifest, False))
            done.add(one["key"])
    due = {}
    for one in wanted:
        if one["key"] not in done:
            state, record = _look(one["path"])
            if _lacking(one, state, record) is None:
                due[one["key"]] = (one, record)
                done.add(one["key"])
    lacking = [one for one in wanted if one["key"] not in done]
    if lacking:
        raise FleetError(
            "artifact.nothing-complete",
            "There is nothing complete to export: %s. Deploy this node first; the artifact is complete once its server "
            "is ready.",
            ("; ".join("%s %s" % (one["path"], _lacking(one, *_look(one["path"]))) for one in lacking),),
        )
    for one, record in due.values():
        target = os.path.join(folder, archive_name(one["key"]))
        if check_mode:
            archives.append({"key": one["key"], "path": target, "size": None, "files": None, "written": True})
        else:
            archives.append(_archive_row(target, _pack(one, record, target), True))
    written = [row["key"] for row in archives if row["written"]]
    words = "%s %s" % ("would export" if check_mode else "exported", ", ".join(written))
    return {"changed": bool(written), "message": words if written else "up to date", "archives": archives}


def _archive_row(path, manifest, written):
    return {
        "key": manifest["key"],
        "path": path,
        "size": os.path.getsize(path),
        "files": len(manifest["files"]),
        "written": written,
    }


def _some(entries):
    wanted = artifacts_of(entries)
    if not wanted:
        raise FleetError(
            "artifact.no-server-has-one",
            "None of this host's servers has a compiled artifact (%s equal to directories.artifact).",
            (artifacts.VARIABLE,),
        )
    return wanted


def _look(path):
    if not os.path.isdir(path):
        return "empty", {}
    return artifacts.state_of(path)


def _lacking(one, state, record):
    """Why an artifact is not to be exported, None where it is: what a start here would clear is nothing for others."""
    if state != "complete":
        return _words(state, record)
    if record.get("key") not in (None, one["key"]):
        return "is of another configuration (key %s, this one is %s)" % (record.get("key"), one["key"])
    misfit = artifacts.misfit_of(one["entry"], record)
    return misfit and "does not fit any more: %s" % misfit


def _words(state, record):
    return {
        "empty": "is empty or missing",
        "compiling": "is being compiled by %s" % record.get("server"),
        "abandoned": "is what %s left of a compilation that did not end" % record.get("server"),
        "damaged": "lacks files that it had",
        "foreign": "holds files of somebody else",
        "complete": "is complete",
    }[state]


def _pack(one, record, target):
    """Write the archive beside its place and rename it; its manifest."""
    names = sorted(record["files"])
    hashes = hash_files(one["path"], names)
    manifest = {
        "schema": SCHEMA,
        "key": one["key"],
        "server": record.get("server"),
        "host": record.get("host"),
        "at": record.get("at"),
        **{name: record[name] for name in artifacts.IDENTITY if name in record},
        "files": {
            name: {"size": os.path.getsize(os.path.join(one["path"], name)), "sha256": hashes[name]} for name in names
        },
    }
    make_directory(os.path.dirname(target))
    check_space(target, sum(file["size"] for file in manifest["files"].values()), "artifact")
    handle, temporary = tempfile.mkstemp(prefix=".%s." % os.path.basename(target), dir=os.path.dirname(target))
    try:
        with (
            os.fdopen(handle, "wb") as stream,
            tarfile.open(fileobj=stream, mode="w:", format=tarfile.PAX_FORMAT) as tar,
        ):
            text = json.dumps(manifest, sort_keys=True).encode("utf-8")
            tar.addfile(_member(MANIFEST, len(text)), io.BytesIO(text))
            for name in names:
                with open(os.path.join(one["path"], name), "rb") as source:
                    tar.addfile(_member(name, manifest["files"][name]["size"]), source)
        os.chmod(temporary, 0o644)
        os.rename(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return manifest


def _member(name, size):
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o644, 0
    return member


# ---- import


def take_over(entries, folder=None, check_mode=False):
    """Put the artifacts of the entries that are not there from the archives in `folder` of this node.

    Returns {changed, message, artifacts: [{path, key, state, message}], needed: [keys]}. Without a folder nothing is
    changed, and `needed` says whose archives are wanted; so does it in check mode. One that is complete and fits, or
    that a server compiles now, stays. Raises FleetError; then the artifact in question is as it was.
    """
    rows, needed, due = [], [], []
    for one in artifacts_of(entries):
        state, record = _look(one["path"])
        fault = _fault(one, state, record)
        rows.append({"path": one["path"], "key": one["key"], "state": state, "message": fault or _words(state, record)})
        if fault is not None:
            due.append((one, rows[-1]))
            needed += [one["key"]] if one["key"] not in needed else []
    result = {"changed": bool(due), "artifacts": rows, "needed": needed}
    if folder is not None:
        archives = {}
        for one, _row in due:
            archives[one["path"]] = find_archive(folder, one["key"], one["servers"])
            _check_fit(one, *archives[one["path"]])
        if not check_mode:
            for one, row in due:
                manifest = _unpack(one, *archives[one["path"]])
                row.update(state="complete", message="imported, compiled by %s on %s" % (
                    manifest.get("server"), manifest.get("host")))  # fmt: skip
    verb = "imported" if folder is not None and not check_mode else "would import"
    result["message"] = "%s %s" % (verb, ", ".join(needed)) if due else "up to date"
    return result


def find_archive(folder, key, servers):
    """(path, manifest) of the archive of a key in `folder`. FleetError that says which there are."""
    path = os.path.join(folder, archive_name(key))
    if not os.path.isfile(path):
        try:
            there = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
        except OSError as error:
            raise FleetError(
                "artifact.folder-unreadable",
                "The folder %s with compiled artifacts cannot be read: %s.",
                (folder, error.strerror),
            ) from error
        raise FleetError(
            "artifact.archive-missing",
            "%s has no archive %s, which %s would load (there %s). Deploy one node without a source of artifacts, "
            "export its artifact with playbooks/artifact_export.yml, and run again.",
            (folder, archive_name(key), ", ".join(servers), "is " + ", ".join(there) if there else "is none"),
        )
    manifest = read_manifest(path)
    check_key(path, manifest, key, servers)
    return path, manifest


def _check_fit(one, archive, manifest):
    """FleetError unless the archive was made with the packages and from the weights that this node has."""
    misfit = artifacts.misfit_of(one["entry"], manifest)
    if misfit is not None:
        raise FleetError(
            "artifact.does-not-fit-node",
            "%s does not fit this node, where %s would load it: %s. Bring the same packages and weights here, or "
            "export the artifact of a node that has these, with -e fleet_artifact_force=true where an older archive "
            "is.",
            (archive, ", ".join(one["servers"]), misfit),
        )


def _fault(one, state, record):
    """Why what is there is to be replaced, None where it stays."""
    if state == "complete":
        return artifacts.misfit_of(one["entry"], record)
    return None if state in ("compiling", "foreign") else _words(state, record)


def _unpack(one, archive, manifest):
    """Unpack beside the artifact's directory, check every file, and rename; the manifest."""
    path, owner = one["path"], None
    if one["user"] is not None and os.geteuid() == 0:
        try:
            found = pwd.getpwnam(one["user"])
        except KeyError:
            raise FleetError(
                "artifact.user-missing",
                "Server '%s' runs as the user '%s', who is not on this node. Nothing was imported.",
                (one["servers"][0], one["user"]),
            ) from None
        owner = (found.pw_uid, found.pw_gid)
    parent = os.path.dirname(path)
    make_directory(parent)
    check_space(path, sum(file["size"] for file in manifest["files"].values()), "artifact")
    staging = os.path.join(parent, STAGING % os.path.basename(path))
    shutil.rmtree(staging, ignore_errors=True)
    try:
        os.mkdir(staging)
        os.chmod(staging, 0o755)
        _extract(archive, manifest, staging)
        record = {
            "schema": artifacts.SCHEMA,
            "key": one["key"],
            "state": "complete",
            "server": manifest.get("server"),
            "host": manifest.get("host"),
            "found": False,
            "imported": True,
            **{name: manifest[name] for name in artifacts.IDENTITY if name in manifest},
            "at": round(time.time(), 3),
            "files": {name: file["size"] for name, file in manifest["files"].items()},
        }
        files.write_json(os.path.join(staging, artifacts.RECORD), record)
        if owner is not None:
            for folder, _folders, names in os.walk(staging):
                for name in (folder, *(os.path.join(folder, name) for name in names)):
                    os.chown(name, *owner)
        if os.path.isdir(path):
            with files.folder_lock(path):
                state, record = artifacts.state_of(path)
                if _fault(one, state, record) is None:
                    return manifest  # a server was quicker
                artifacts.clear(path)
                os.rename(staging, path)
        else:
            os.rename(staging, path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return manifest


def _extract(archive, manifest, folder):
    """The files of the manifest, and no others, into `folder`. FleetError where one is not what it was."""
    due = dict(manifest["files"])
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                if member.name == MANIFEST:
                    continue
                wanted = due.pop(member.name, None)
                if wanted is None or not member.isreg():
                    raise FleetError(
                        "artifact.file-not-in-manifest",
                        "%s holds %r, which its manifest does not name. Export it again.",
                        (archive, member.name),
                    )
                file = os.path.join(folder, member.name)
                make_directory(os.path.dirname(file))
                source = tar.extractfile(member)
                found = write_hashed(file, iter(partial(source.read, BLOCK), b""))
                if any(found[key] != wanted[key] for key in found):
                    raise FleetError(
                        "artifact.checksum-differs",
                        "%s is damaged: %s has sha256 %s and %d bytes, the manifest says %s and %d. Bring the archive "
                        "again.",
                        (archive, member.name, found["sha256"], found["size"], wanted["sha256"], wanted["size"]),
                    )
    except tarfile.TarError as error:
        raise FleetError("artifact.damaged", "%s is damaged: %s. Bring the archive again.", (archive, error)) from error
    if due:
        raise FleetError(
            "artifact.truncated", "%s is cut: %s missing. Bring the archive again.", (archive, ", ".join(sorted(due)))
        )
