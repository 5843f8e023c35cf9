# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifest next to weights: names, checksums and times of their files, and the comparison with the files."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import stat

from ..errors import FleetError
from ..host import files
from ..host.files import existing_parent, mount_points, size_of

MANIFEST = ".inference-fleet-manifest.json"
INNER_STAGING = ".inference-fleet-new"
INNER_LOCK = ".inference-fleet-lock"
OURS = (MANIFEST, INNER_STAGING, INNER_LOCK)
OTHERS_WRITE = 0o022
SHARDS = (".safetensors", ".bin", ".pt")  # endings of files with weights
SCHEMA = 1
SHOWN = 5  # names in a message
MISSING = "is missing"
NAMES = dict.fromkeys(("source", "repo", "revision", "commit", "at"), (str, None))
RECORD = {"size": int, "sha256": str, "mtime_ns": int, "written_ns": int, "oid": (str, None), "at": (str, None)}
REQUIRED = {"size", "sha256", "mtime_ns"}
SHA256 = re.compile(r"^[0-9a-f]{64}$")


def read_manifest(folder):
    """The manifest in `folder`, None if there is none or it cannot be read.

    Raises FleetError if another account may have written it, or if its files could not be in the folder: an account
    that can write next to weights on a share controls what root reads here, and so what root copies, replaces and
    removes.
    """
    path = os.path.join(folder, MANIFEST)
    try:
        status, owner = os.lstat(path), os.stat(folder).st_uid
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise _invalid(path, "it is not a plain file")
    if status.st_uid not in (os.geteuid(), owner):
        raise _invalid(path, "it belongs to user %d, and the directory to user %d" % (status.st_uid, owner))
    if status.st_mode & OTHERS_WRITE:
        raise _invalid(path, "accounts other than its owner can write to it")
    manifest = files.read_json(path)
    if not files.fits(manifest, {"files": {}}) or manifest.get("schema") != SCHEMA or "files" not in manifest:
        return None
    if not files.fits(manifest, NAMES):
        raise _invalid(path, "%s must be strings" % ", ".join(NAMES))
    for name, record in manifest["files"].items():
        if not is_inside(name) or name.split("/")[0] in OURS or _leads_out(folder, name):
            raise _invalid(path, "%s is not the path of a file there" % json.dumps(name))
        complete = files.fits(record, RECORD) and set(record) >= REQUIRED
        if not complete or record["size"] < 0 or not SHA256.match(record["sha256"]):
            raise _invalid(path, "the record of %s is incomplete, or its sha256 is not one" % name)
    return manifest


def _invalid(path, what):
    return FleetError("weights.manifest-unreadable", path, what)


def _leads_out(folder, name):
    """Whether a link among the folders of the name leads out of this folder."""
    below, real = os.path.dirname(name), os.path.realpath(folder)
    return bool(below) and os.path.commonpath([real, os.path.realpath(os.path.join(folder, below))]) != real


def is_inside(path):
    """Whether this is the plain relative path of a file below a folder, without backslashes or control characters."""
    return (
        isinstance(path, str)
        and path == posixpath.normpath(path)
        and path not in (".", "..")
        and not path.startswith(("/", "../"))
        and not any(ord(one) < 32 or ord(one) == 127 or one == "\\" for one in path)
    )


def is_touched(folder, recorded):
    """Whether the time of a recorded file in `folder` is not the recorded one."""
    return any(_time_of(folder, name) != record["mtime_ns"] for name, record in recorded.items())


def _time_of(folder, name):
    return os.stat(os.path.join(folder, name)).st_mtime_ns


def write_manifest(folder, records, into=None, before=None, **identity):
    """Write the manifest of the files in `folder`; returns its files, {name: {size, sha256, mtime_ns, …}}.

    into: another folder for the manifest. before: records of files that were not written since; of the same content,
    they keep the time of their writing, which the guard of a server that read them at its start needs
    (supervise.state). identity: source, repo, revision and what else identifies the weights.
    """
    recorded = {}
    for name, record in sorted(records.items()):
        recorded[name] = {**record, "mtime_ns": _time_of(folder, name)}
        old = (before or {}).get(name)
        if old and old["sha256"] == record["sha256"]:
            recorded[name]["written_ns"] = old.get("written_ns", old["mtime_ns"])
    manifest = {"schema": SCHEMA, **identity, "files": recorded}
    files.write_atomic(os.path.join(into or folder, MANIFEST), json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    return recorded


def faults_text(wrong):
    """{name: what is wrong} in words."""
    return some(("%s %s" % item for item in wrong.items()), "; ")


def some(texts, separator=", "):
    """A few of these strings, for a message."""
    texts = sorted(texts)
    more = " and %d more" % (len(texts) - SHOWN) if len(texts) > SHOWN else ""
    return separator.join(texts[:SHOWN]) + more


def compare_status(folder, recorded):
    """({name: what is wrong}, [names of the recorded size whose time differs]), without reading any file."""
    wrong, touched = {}, []
    for name, record in recorded.items():
        try:
            status = os.stat(os.path.join(folder, name))
        except OSError:
            wrong[name] = MISSING
            continue
        if not stat.S_ISREG(status.st_mode):
            wrong[name] = "is not a plain file"
        elif status.st_size != record["size"]:
            wrong[name] = "is %d bytes long, was %d" % (status.st_size, record["size"])
        elif status.st_mtime_ns != record["mtime_ns"]:
            touched.append(name)
    return wrong, touched


def hash_files(folder, names, read=None):
    """{name: sha256} of files in `folder`, on all cores, the largest first. read(name, bytes): called in between.
    Raises FleetError if a file changes meanwhile."""
    from concurrent.futures import ThreadPoolExecutor  # a quick comparison needs less time than its import

    names = sorted(names, key=lambda name: -os.path.getsize(os.path.join(folder, name)))
    times = {name: _time_of(folder, name) for name in names}

    def digest(name):
        counted = None if read is None else lambda count: read(name, count)
        return files.sha256_file(os.path.join(folder, name), read=counted)

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        found = dict(zip(names, pool.map(digest, names)))
    changed = sorted(name for name in names if _time_of(folder, name) != times[name])
    if changed:  # the manifest would have the new time with the old sha256
        raise FleetError("weights.changed-meanwhile", some(changed), folder)
    return found


def check_space(destination, needed, what="weights", leftovers=()):
    """Raises FleetError unless the file system of `destination` has `needed` bytes free. what: for the message.

    leftovers: files and folders there that are reused or removed, so that their bytes count as free.
    """
    folder = existing_parent(destination)
    free = shutil.disk_usage(folder).free + sum(size_of(path) for path in leftovers)
    if free < needed:
        details = {"needed_bytes": needed, "free_bytes": free}
        raise FleetError("weights.disk-full", what, destination, amount(needed), folder, amount(free), details=details)


def amount(size):
    """Bytes for people."""
    return "%.1f GiB" % (size / (1 << 30)) if size >= 1 << 29 else "%.1f MiB" % (size / (1 << 20))


def own_manifest(destination, repo, source):
    """The manifest at the destination, None if there is none. Raises FleetError if it belongs to other weights."""
    if not os.path.lexists(destination):
        return None
    if not os.path.isdir(destination):
        raise occupied(destination, "it is not a directory")
    manifest = read_manifest(destination)
    if manifest and (manifest.get("source"), manifest.get("repo")) != (source, repo):
        found = (manifest.get("repo") or "a draft", manifest.get("source"), repo, source)
        raise occupied(destination, "it contains another model, %s (source %s), and %s (source %s) is wanted" % found)
    return manifest


def unknown(destination):
    """Names of the files at a destination without a manifest; [] for none."""
    if not os.path.isdir(destination):
        return []
    return sorted(name for name in os.listdir(destination) if name not in (INNER_STAGING, INNER_LOCK, "lost+found"))


def occupied(destination, what):
    """The FleetError for a destination with something that is not managed by this collection."""
    return FleetError("weights.destination-occupied", destination, what)


def is_mount(path):
    """Whether something is mounted there, also a folder of the same file system: a rename cannot leave it."""
    return os.path.ismount(path) or os.path.realpath(path) in mount_points()


def staging_of(destination):
    """The folder in which new files are written: next to `destination`, or in it if that is a mount point."""
    return _next_to(destination, INNER_STAGING)


def lock_of(destination):
    """The file that WeightLock locks, next to the staging folder."""
    return _next_to(destination, INNER_LOCK)


def _next_to(destination, name):
    if is_mount(destination):
        return os.path.join(destination, name)
    return os.path.join(os.path.dirname(destination), ".%s%s" % (os.path.basename(destination), name))


def failed(wanted, error):
    """The FleetError for an OSError."""
    return FleetError(
        "weights.cannot-install", wanted.repo or "The draft model", wanted.destination, error.strerror or error
    )


def listing_text(recorded):
    """The records of files as lines of a diff."""
    return "".join(
        "%s %d bytes sha256 %s\n" % (name, record["size"], record.get("sha256") or "not known yet")
        for name, record in sorted(recorded.items())
    )
