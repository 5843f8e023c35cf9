# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of compiled artifacts, which a node exports and others import.

An archive is a tar whose first member is the manifest: {schema, key, server, host, at, versions, weights, files: {name:
{size, sha256}}}. It is named after the key, the plan's hash of all settings that a compilation depends on; `versions`
and `weights` are those of the node that compiled it, and a node that imports it must have the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import io
import json
import os
import pwd
import shutil
import stat
import tarfile
import tempfile
import time
from functools import partial

from ...errors import FleetError
from ...host import files
from ...host.files import make_directory
from ...host.server_spec import artifact_directory, artifact_key, check_entries
from ...weights.manifest import check_space, hash_files
from . import artifacts

MANIFEST = "manifest.json"
SCHEMA = 1
SUFFIX = ".tar"
BLOCK = 1 << 20
LONGEST_MANIFEST = 64 << 20
STAGING = ".%s.import"
SHAPE = {"schema": int, "key": str, "files": {"*": {"size": int, "sha256": str}}, "versions": {"*": object},
         "weights": [({"*": object}, None)]}  # fmt: skip
KEPT = (*artifacts.LOADED, "compiling")  # states in which an import leaves an artifact


def artifacts_of(entries):
    """[{path, key, entry, servers: [names]}] of the plan entries' artifacts, each directory once.

    entry: that of the first of its servers.
    """
    found = {}
    for name, entry in check_entries(entries).items():
        path, key = artifact_directory(entry), artifact_key(entry)
        if path is not None and key is not None:
            one = {"path": path, "key": key, "entry": entry, "servers": []}
            found.setdefault(path, one)["servers"].append(name)
    return list(found.values())


def invalid(archive, problem):
    """The FleetError for a damaged archive or a file that is no archive."""
    return FleetError("artifact.archive-invalid", archive, problem)


def read_manifest(archive):
    """The manifest of an archive. Raises FleetError if it is invalid."""
    try:
        with tarfile.open(archive, "r:") as tar:
            member = tar.next()
            if member is None or member.name != MANIFEST or not member.isreg() or member.size > LONGEST_MANIFEST:
                raise ValueError("its first member is not " + MANIFEST)
            manifest = json.loads(tar.extractfile(member).read().decode("utf-8"))
    except (OSError, tarfile.TarError, ValueError) as error:
        raise invalid(archive, error) from error
    if not files.fits(manifest, SHAPE) or manifest.get("schema") != SCHEMA or not {"key", "files"} <= set(manifest):
        raise invalid(archive, "its manifest does not have the form of schema %d" % SCHEMA)
    for name, record in manifest["files"].items():
        parts = name.split("/")
        if ".." in parts or "" in parts or name == artifacts.RECORD:
            raise invalid(archive, "it contains the file %r, which cannot be part of an artifact" % name)
        if not record.get("sha256") or "size" not in record:
            raise invalid(archive, "it has no size or sha256 of %s" % name)
    return manifest


# ---- export


def export(entries, folder, force=False, check_mode=False):
    """Write the archive of each artifact of the entries into `folder` of this node, one for each key.

    Returns {changed, message, archives: [{key, path, size, files}] of the written archives}. An existing archive stays,
    unless `force`. Raises FleetError if an artifact is incomplete.
    """
    due, present, unfit = {}, set(), {}
    for one in artifacts_of(entries):
        key = one["key"]
        if not force and os.path.exists(os.path.join(folder, key + SUFFIX)):
            present.add(key)
        if key in present or key in due:
            continue
        state, record, words = artifacts.assess(one["path"], one["entry"])
        if state == "complete":
            due[key] = (one, record)
            unfit.pop(key, None)
        else:
            unfit[key] = "%s: %s" % (one["path"], words)
    if unfit or not (present or due):
        raise FleetError(
            "artifact.nothing-to-export",
            "; ".join(unfit.values()) or "no server has %s equal to directories.artifact" % artifacts.VARIABLE,
        )
    rows = []
    for key, (one, record) in due.items():
        path, size = os.path.join(folder, key + SUFFIX), None
        if not check_mode:
            _pack(one, record, path)
            size = os.path.getsize(path)
        rows.append({"key": key, "path": path, "size": size, "files": len(record["files"])})
    verb = "would export" if check_mode else "exported"
    message = "%s %s" % (verb, ", ".join(due)) if due else "up to date"
    return {"changed": bool(due), "message": message, "archives": rows}


def _pack(one, record, target):
    """Write the archive to a temporary file and rename it."""
    names = sorted(record["files"])
    for name in names:
        with _opened(one["path"], name):
            pass
    hashes = hash_files(one["path"], names)
    sizes = {name: os.path.getsize(os.path.join(one["path"], name)) for name in names}
    manifest = {
        "schema": SCHEMA,
        "key": one["key"],
        **{name: record.get(name) for name in ("server", "host", "at")},
        **{name: record[name] for name in artifacts.IDENTITY if name in record},
        "files": {name: {"size": sizes[name], "sha256": hashes[name]} for name in names},
    }
    folder, prefix = os.path.dirname(target), ".%s." % os.path.basename(target)
    make_directory(folder)
    for left in glob.glob(os.path.join(glob.escape(folder), prefix + "*")):
        if not files.is_locked(left):  # its export was killed
            files.remove(left)
    check_space(target, sum(sizes.values()), "artifact")
    handle, temporary = tempfile.mkstemp(prefix=prefix, dir=folder)
    try:
        with (
            os.fdopen(handle, "wb") as stream,
            tarfile.open(fileobj=stream, mode="w:", format=tarfile.PAX_FORMAT) as tar,
        ):
            fcntl.flock(stream, fcntl.LOCK_EX)
            text = json.dumps(manifest, sort_keys=True).encode("utf-8")
            tar.addfile(_member(MANIFEST, len(text)), io.BytesIO(text))
            for name in names:
                with _opened(one["path"], name) as source:
                    tar.addfile(_member(name, sizes[name]), source)
        os.chmod(temporary, 0o644)
        os.rename(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


@contextlib.contextmanager
def _opened(folder, name):
    """Yields a stream of an artifact's file. Raises FleetError for a link, by which the server's account would have
    root archive a file that the account may not read, and for a FIFO. Raises OSError."""
    path = os.path.join(os.path.realpath(folder), name)
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
        handle = stream.fileno()
        if os.path.realpath("/proc/self/fd/%d" % handle) != path or not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FleetError("artifact.nothing-to-export", "%s is a link, or not a plain file" % path)
        yield stream


def _member(name, size):
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o644, 0
    return member


# ---- import


def take_over(entries, folder=None, check_mode=False):
    """Import the artifacts of the entries that are missing from the archives in `folder` of this node.

    Returns {changed, message, artifacts: [{path, key, state, message}], needed: [keys]}. Without a folder and in check
    mode nothing is changed, and `needed` contains the keys of the archives. An artifact stays if it is complete and
    fits, or if a server compiles it now. Raises FleetError; the artifact in question is unchanged then.
    """
    rows, due = [], []
    for one in artifacts_of(entries):
        state, _record, words = artifacts.assess(one["path"], one["entry"])
        rows.append({"path": one["path"], "key": one["key"], "state": state, "message": words})
        if state not in KEPT:
            due.append((one, rows[-1]))
    needed = list(dict.fromkeys(one["key"] for one, _row in due))
    if folder is not None:
        archives = [find_archive(folder, one["key"], one["servers"]) for one, _row in due]
        for (one, _row), (archive, manifest) in zip(due, archives):
            misfit = artifacts.misfit_of(one["entry"], manifest)
            if misfit is not None:
                raise FleetError("artifact.archive-does-not-fit", archive, ", ".join(one["servers"]), misfit)
        if not check_mode:
            for (one, row), archive in zip(due, archives):
                manifest = _unpack(one, *archive)
                origin = "imported, compiled by %s on %s" % (manifest.get("server"), manifest.get("host"))
                row.update(state="complete", message=origin)
    verb = "imported" if folder is not None and not check_mode else "would import"
    return {"changed": bool(due), "artifacts": rows, "needed": needed,
            "message": "%s %s" % (verb, ", ".join(needed)) if due else "up to date"}  # fmt: skip


def find_archive(folder, key, servers):
    """(path, manifest) of the archive of a key in `folder`. Raises FleetError."""
    path = os.path.join(folder, key + SUFFIX)
    if not os.path.isfile(path):
        raise FleetError("artifact.archive-missing", folder, key + SUFFIX, ", ".join(servers))
    return path, read_manifest(path)


def _unpack(one, archive, manifest):
    """Unpack next to the artifact's directory, check every file, and rename; returns the manifest."""
    path, user = one["path"], one["entry"]["user"]
    owner = pwd.getpwnam(user) if user is not None and os.geteuid() == 0 else None
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
            **{name: manifest[name] for name in artifacts.IDENTITY if name in manifest},
            "at": round(time.time(), 3),
            "files": {name: file["size"] for name, file in manifest["files"].items()},
        }
        files.write_json(os.path.join(staging, artifacts.RECORD), record)
        if owner is not None:
            # follows no link, which the server's account could put there if the parent is its own
            for _folder, _folders, names, handle in os.fwalk(staging, topdown=False):
                for name in names:
                    os.chown(name, owner.pw_uid, owner.pw_gid, dir_fd=handle, follow_symlinks=False)
                os.fchown(handle, owner.pw_uid, owner.pw_gid)
        if os.path.isdir(path):
            with files.folder_lock(path):
                if artifacts.assess(path, one["entry"])[0] in KEPT:
                    return manifest  # a server was faster
                artifacts.clear(path)
                os.rename(staging, path)
        else:
            os.rename(staging, path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return manifest


def _extract(archive, manifest, folder):
    """Extract only the files of the manifest into `folder`. Raises FleetError if a file differs."""
    due = dict(manifest["files"])
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                if member.name == MANIFEST:
                    continue
                wanted = due.pop(member.name, None)
                if wanted is None or not member.isreg():
                    raise invalid(archive, "its manifest does not have %r" % member.name)
                file = os.path.join(folder, member.name)
                make_directory(os.path.dirname(file))
                found = files.write_hashed(file, iter(partial(tar.extractfile(member).read, BLOCK), b""))
                if any(found[key] != wanted[key] for key in found):
                    raise invalid(archive, "%s has another sha256 or size" % member.name)
    except tarfile.TarError as error:
        raise invalid(archive, error) from error
    if due:
        raise invalid(archive, "it lacks %s" % ", ".join(sorted(due)))
