# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifest beside weights: which files they are, what those were when they came, and whether they still are."""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import shutil
import stat
import tempfile

from ..errors import FleetError
from ..host import files
from ..host.directories import existing_parent, mount_points
from . import checkpoints

MANIFEST = ".inference-fleet-manifest.json"
INNER_STAGING = ".inference-fleet-new"
INNER_LOCK = ".inference-fleet-lock"
JOURNAL = ".inference-fleet-journal.json"  # of an update, in the staging folder
REPLACED = ".inference-fleet-replaced"  # the old files of an update, in the staging folder
LISTING = ".listing.json"  # of a download, in the staging folder
PARTIAL = ".partial"  # the folder of growing files, in the staging folder
OURS = (MANIFEST, INNER_STAGING, INNER_LOCK, JOURNAL, REPLACED, LISTING, PARTIAL)
OTHERS_WRITE = 0o022
SHARD = ".safetensors"
SCHEMA = 1
MISSING = "is missing"
INSTALLING = "installing"
TEXTS = ("source", "repo", "revision", "commit", "at")
SHA256 = re.compile(r"^[0-9a-f]{64}$")


def read_manifest(folder):
    """The manifest in `folder`, None where there is none, it cannot be read, or its files are not all in place yet.

    Raises FleetError where its files are none that could lie there.
    """
    manifest = begun_manifest(folder)
    return None if manifest is None or INSTALLING in manifest else manifest


def begun_manifest(folder):
    """The manifest in `folder`, one that was begun too: that holds INSTALLING, the names of the files to come."""
    path = os.path.join(folder, MANIFEST)
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isfile(path)):
        raise _bad(folder, "it is no plain file")
    forged = _forged(folder, path)
    if forged:
        raise _bad(folder, forged)
    manifest = files.read_json(path)
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        return None
    if not isinstance(manifest.get("files"), dict):
        return None
    _check(folder, manifest)
    return manifest


def _forged(folder, path):
    """What makes this manifest one that accounts other than ours and the directory's owner may have written; "" for
    nothing."""
    try:
        status, owner = os.lstat(path), os.stat(folder).st_uid
    except FileNotFoundError:
        return ""
    if status.st_uid not in (os.geteuid(), owner):
        return "it belongs to the user %d, and the directory to %d" % (status.st_uid, owner)
    return "others than its owner can write to it" if status.st_mode & OTHERS_WRITE else ""


def _check(folder, manifest):
    """Raise FleetError unless each file is a path in the folder and what is recorded of it can be compared: whoever can
    write beside weights on a share writes what root reads here, and copies, replaces and removes by it."""
    coming = manifest.get(INSTALLING, [])
    if not isinstance(coming, list):
        raise _bad(folder, "%s is no list" % INSTALLING)
    for name in [*manifest["files"], *coming]:
        if not is_inside(name) or name.split("/")[0] in OURS or _leads_out(folder, name):
            raise _bad(folder, "%s is no path of a file there" % json.dumps(name))
    if not all(isinstance(manifest.get(key), (str, type(None))) for key in TEXTS):
        raise _bad(folder, "of %s not all are strings" % ", ".join(TEXTS))
    for name, record in manifest["files"].items():
        fields = record if isinstance(record, dict) else {}
        if not _is_number(fields.get("size")) or fields["size"] < 0:
            raise _bad(folder, "it records no size of %s" % name)
        if not isinstance(fields.get("sha256"), str) or not SHA256.match(fields["sha256"]):
            raise _bad(folder, "it records no sha256 of %s" % name)
        if not all(map(_is_number, (fields.get("mtime_ns"), fields.get("written_ns", 0)))):
            raise _bad(folder, "it records no time of %s" % name)
        if not all(isinstance(fields.get(key), (str, type(None))) for key in ("oid", "at")):
            raise _bad(folder, "it records no text as oid or at of %s" % name)


def _is_number(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _bad(folder, what):
    return FleetError(
        "weights.manifest-unreadable",
        "%s is not a manifest that this collection wrote: %s. Nothing was changed. Remove it, or the complete "
        "directory, and run again.",
        (os.path.join(folder, MANIFEST), what),
    )


def _leads_out(folder, name):
    """Whether a link among the folders of the name leads out of this folder."""
    below, real = os.path.dirname(name), os.path.realpath(folder)
    return bool(below) and os.path.commonpath([real, os.path.realpath(os.path.join(folder, below))]) != real


def is_inside(path):
    """Whether this, as somebody else gave it, is the relative path of a file below a folder, spelt plainly."""
    return (
        isinstance(path, str)
        and path == posixpath.normpath(path)
        and path not in (".", "..")
        and not path.startswith(("/", "../"))
        and "\0" not in path
    )


def times_of(folder, names):
    """{name: time in ns} of files in `folder`."""
    return {name: os.stat(os.path.join(folder, name)).st_mtime_ns for name in names}


def write_manifest(folder, records, times=None, **identity):
    """Write the manifest of the files in `folder`; returns its files, {name: {size, sha256, mtime_ns, …}}.

    times: {name: ns} of when the files were what is recorded; by default they are now.

    A record that has written_ns keeps it, see still_written(). identity: source, repo, revision and what else says
    which weights they are.
    """
    times = times or times_of(folder, records)
    recorded = {name: dict(record, mtime_ns=times[name]) for name, record in sorted(records.items())}
    manifest = {"schema": SCHEMA, **identity, "files": recorded}
    files.write_atomic(os.path.join(folder, MANIFEST), json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    return recorded


def still_written(records):
    """The records of files whose bytes were found as they were under new times: when they were written is kept.

    What reads weights once, at its start, asks for that (guard_state.weights_note).
    """
    return {name: dict(one, written_ns=one.get("written_ns", one["mtime_ns"])) for name, one in records.items()}


def faults_text(wrong):
    """{name: what is wrong} in words."""
    return "; ".join("%s %s" % item for item in sorted(wrong.items()))


def as_found(recorded, wrong, hashed):
    """The records of those files that are there, with the sha256 of what was read; wrong, hashed: of compare()."""
    return {
        name: dict(record, sha256=hashed.get(name, record["sha256"]))
        for name, record in recorded.items()
        if wrong.get(name) != MISSING
    }


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
            wrong[name] = "is no plain file"
            continue
        if status.st_size != record["size"]:
            wrong[name] = "is %d bytes long, was %d" % (status.st_size, record["size"])
        elif status.st_mtime_ns != record["mtime_ns"]:
            touched.append(name)
    return wrong, touched


def compare(folder, recorded, full, progress=None):
    """({name: what is wrong}, {name: sha256 of what is there}) for the files that a manifest records.

    full: hash every file; otherwise only those of the recorded size whose time differs. progress: a Progress that is
    told of what is read, or None.
    """
    wrong, touched = compare_status(folder, recorded)
    names = [name for name in recorded if name not in wrong] if full else touched
    read = progress and progress.counting("verifying", sum(recorded[name]["size"] for name in names))
    hashed = hash_files(folder, names, read)
    for name, found in hashed.items():
        if found != recorded[name]["sha256"]:
            wrong[name] = "has sha256 %s, had %s" % (found, recorded[name]["sha256"])
    return wrong, hashed


def hash_files(folder, names, read=None):
    """{name: sha256} of files in `folder`, on all cores, the largest first. read(name, bytes): called as it goes."""
    if not names:
        return {}
    from concurrent.futures import ThreadPoolExecutor  # takes longer to import than a quick look takes

    names = sorted(names, key=lambda name: -os.path.getsize(os.path.join(folder, name)))

    def one(name):
        path = os.path.join(folder, name)
        return (
            files.sha256_file(path) if read is None else files.sha256_file(path, read=lambda count: read(name, count))
        )

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return dict(zip(names, pool.map(one, names)))


def check_space(destination, needed, what="weights", leftovers=()):
    """Raise FleetError unless the file system of `destination` has `needed` bytes free. what: for the message.

    leftovers: files and folders there that go before anything comes, so that their bytes count as free.
    """
    folder = existing_parent(destination)
    free = shutil.disk_usage(folder).free + sum(_occupied(path) for path in leftovers)
    if free < needed:
        raise FleetError(
            "weights.disk-full",
            "Not enough space for the %s: %s needs %s, and the file system of %s has %s free. "
            "Free some, or choose another destination.",
            (what, destination, amount(needed), folder, amount(free)),
            details={"needed_bytes": needed, "free_bytes": free},
        )


def _occupied(path):
    """Bytes that a file, or all in a folder, takes on the disk; 0 where nothing is there."""
    below = (os.path.join(base, name) for base, _folders, names in os.walk(path) for name in names)
    total = 0
    for one in (path, *below):
        with contextlib.suppress(OSError):
            total += os.lstat(one).st_blocks * 512
    return total


def amount(size):
    """Bytes for people."""
    return "%.1f GiB" % (size / (1 << 30)) if size >= 1 << 29 else "%.1f MiB" % (size / (1 << 20))


def other_model(destination, manifest, repo, source):
    """The FleetError for a destination whose manifest is of other weights than wanted."""
    return FleetError(
        "weights.holds-other-model",
        "%s holds another model, %s (source %s), and %s (source %s) is wanted there; it is left as it is. "
        "Choose another destination, or remove it.",
        (destination, manifest.get("repo") or "a draft", manifest.get("source"), repo, source),
    )


def own_manifest(destination, repo, source, adopt=False):
    """The manifest of an earlier run at the destination. Raises FleetError where others put something there; with
    `adopt` not where there are shards, which may be the wanted ones.

    None where nothing is there, or where an earlier run was cut while it put these weights there for the first time.
    """
    if not os.path.lexists(destination):
        return None
    if not os.path.isdir(destination):
        raise FleetError(
            "weights.holds-other-files",
            "%s is not a directory; remove it or choose another destination.",
            (destination,),
        )
    manifest = begun_manifest(destination)
    if manifest is None:
        names = unknown(destination)
        if not names or (adopt and any(name.endswith(SHARD) for name in names)):
            return None
        raise unknown_files(destination)
    if (manifest.get("source"), manifest.get("repo")) != (source, repo):
        raise other_model(destination, manifest, repo, source)
    return None if INSTALLING in manifest else manifest


def unknown(destination):
    """Names of what lies at the destination, where no run of ours has put anything there; [] for nothing."""
    if not os.path.isdir(destination) or begun_manifest(destination) is not None:
        return []
    return sorted(name for name in os.listdir(destination) if name not in (INNER_STAGING, INNER_LOCK, "lost+found"))


def unknown_files(destination):
    """The FleetError for what others put to the destination."""
    return FleetError(
        "weights.holds-other-files",
        "%s holds files that this collection did not put there (%s); they are left as they are. Choose another "
        "destination, or remove them.",
        (destination, ", ".join(unknown(destination)[:5])),
    )


def is_mount(path):
    """Whether something is mounted there, be it a folder of the same file system: no rename takes its place."""
    return os.path.ismount(path) or os.path.realpath(path) in mount_points()


def staging_of(destination):
    """The folder in which new files grow: beside `destination`, or in it where that is a mount of its own."""
    return _beside(destination, INNER_STAGING)


def lock_of(destination):
    """The file that weight_lock locks, where the staging folder is."""
    return _beside(destination, INNER_LOCK)


def _beside(destination, name):
    if is_mount(destination):
        return os.path.join(destination, name)
    return os.path.join(os.path.dirname(destination), ".%s%s" % (os.path.basename(destination), name))


def inspect_staged(staging, destination, staged, names):
    """checkpoints.inspect of what the destination will be: `staged` of the files `names` are still in `staging`."""
    with view(destination, names, {name: os.path.join(staging, name) for name in staged}) as folder:
        try:
            return checkpoints.inspect(folder)
        except FleetError as error:
            raise error.rewritten(lambda text: text.replace(folder, destination)) from error


@contextlib.contextmanager
def view(destination, names, places):
    """A temporary folder of links to the files `names` of the destination, or to those of `places` {name: path}."""
    with tempfile.TemporaryDirectory(prefix="inference-fleet-") as folder:
        for name in names:
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            os.symlink(places.get(name) or os.path.join(destination, name), os.path.join(folder, name))
        yield folder


def cannot_bring(repo, destination, error):
    """The FleetError for an OSError."""
    return FleetError(
        "weights.cannot-bring",
        "Cannot bring %s to %s: %s. Check the disk and its mount, and run again.",
        (repo, destination, error.strerror or error),
    )


def listing_text(recorded):
    """Recorded files as the text of a diff."""
    return "".join(
        "%s %d bytes sha256 %s\n" % (name, record["size"], record.get("sha256") or "not known yet")
        for name, record in sorted(recorded.items())
    )
