# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder in which new weights grow, and how they take their places.

Accounts that may write next to a destination could put links under our names there, or swap folders for links while a
run is at work, and so have root write elsewhere. Therefore the staging folder is ours alone (0700), contains plain
files only, and is used by its descriptor; so is the destination while files take their places. Links and foreign files
are removed themselves, never their targets, and reported.

An update takes its places by renames that a journal in the staging folder was written for. A kill before the journal
leaves the old weights; after it, the next run finishes by the journal, without asking the source again. An error puts
the old files back. config.json, without which no server loads anything, is away while the others change.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile

from ..errors import FleetError
from ..host import files
from ..host.directories import make_directory
from .checkpoints import CONFIG
from .manifest import (
    INSTALLING,
    JOURNAL,
    MANIFEST,
    OTHERS_WRITE,
    REPLACED,
    SCHEMA,
    begun_manifest,
    is_inside,
    is_mount,
    staging_of,
    times_of,
    write_manifest,
)

SWAPS = 5  # attempts at a folder that is swapped again and again


def remove(path):
    """Remove what lies at the path, a link itself; nothing where nothing is. Raises OSError."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(path)  # follows no link, not even one that takes a folder's place meanwhile
    else:
        os.unlink(path)


def trusted(folder):
    """Whether this is a folder that only we write to, so that what lies in it is ours."""
    return _foreign(folder) == ""


def path_of(handle):
    """The path of an open folder, which stays right whatever happens to the folder's name."""
    return "/proc/self/fd/%d" % handle


def open_folder(path):
    """The descriptor of a folder (real path); no component of the path may be a link. Raises FleetError, OSError."""
    handle = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    parts = [part for part in path.split("/") if part]
    for number, part in enumerate(parts, 1):
        kind = os.O_RDONLY if number == len(parts) else os.O_PATH
        try:
            following = os.open(part, kind | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise replaced(path) from error
            raise
        finally:
            os.close(handle)
        handle = following
    return handle


@contextlib.contextmanager
def opened(path):
    """While a folder is open: its path by the descriptor."""
    handle = open_folder(path)
    try:
        yield path_of(handle)
    finally:
        os.close(handle)


def same(path, handle):
    """Whether the folder of this name is the open one."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def replaced(path):
    """The FleetError for a folder that was swapped while weights came into it."""
    return FleetError(
        "weights.staging-replaced",
        "%s, or a folder above it, was replaced by something else meanwhile. Nothing was put in place. Check who else "
        "writes there, and run again.",
        (path,),
    )


def claim(folder):
    """Make this folder ours alone, mode 0700, with only plain files and folders of ours. Returns (its descriptor,
    warnings). Raises FleetError, OSError."""
    make_directory(os.path.dirname(folder))
    removed = []
    with opened(os.path.dirname(folder)) as parent:
        handle = _claimed(os.path.join(parent, os.path.basename(folder)), folder, removed)
    os.fchmod(handle, 0o700)
    inside = path_of(handle)
    for base, folders, names in os.walk(inside):
        for name in [*folders, *names]:
            path = os.path.join(base, name)
            what = _foreign(path, (stat.S_IFDIR, stat.S_IFREG))
            if what:
                remove(path)
                removed.append((path.replace(inside, folder, 1), what))
        folders[:] = [name for name in folders if os.path.lexists(os.path.join(base, name))]
    return handle, [_removed(*one) for one in removed]


def _claimed(path, name, removed):
    """The descriptor of a folder of ours at the path; what is not ours is removed. name: for messages."""
    for _attempt in range(SWAPS):
        what = _foreign(path)
        if what:
            remove(path)
            removed.append((name, what))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            continue
        if not _fault(os.fstat(handle), path, (stat.S_IFDIR,)):
            return handle
        os.close(handle)
    raise replaced(name)


def _removed(path, what):
    return "%s was %s. It was removed itself, and nothing else; find out who put it there." % (path, what)


def clear(folder):
    """Remove this folder, or what has its name. Returns what to warn of."""
    what = _foreign(folder)
    remove(folder)
    return [_removed(folder, what)] if what else []


def plain_file(path):
    """Whether this is a plain file of ours, or nothing."""
    return _foreign(path, (stat.S_IFREG,)) == ""


def _foreign(path, kinds=(stat.S_IFDIR,)):
    """What makes this none of ours of these kinds, in words; "" where it is one, or nothing is."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return _fault(status, path, kinds)


def _fault(status, path, kinds):
    found = stat.S_IFMT(status.st_mode)
    if found == stat.S_IFLNK:
        return "a link to %s" % os.readlink(path)
    if found not in kinds:
        return "no folder" if kinds == (stat.S_IFDIR,) else "no plain file"
    if found == stat.S_IFREG and status.st_nlink > 1:
        return "a file that has another name elsewhere"
    if status.st_uid != os.geteuid() and status.st_uid != _uid_there(os.path.dirname(path)):
        return "of the user %d" % status.st_uid
    if found == stat.S_IFDIR and status.st_mode & OTHERS_WRITE:
        return "writable by others"
    return ""


def _uid_there(folder):
    """Whom a file of ours belongs to in this folder: on NFS root may be somebody else."""
    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            return os.fstat(stream.fileno()).st_uid
    except OSError:
        return os.geteuid()


# ---- taking places


def check_targets(destination, names, gone):
    """Raise FleetError where one of the files `names` cannot come to its place in the destination, by what lies there,
    once the files `gone` are away. Nothing is touched."""
    names, gone = set(names), set(gone)
    for name in sorted(names | gone):
        parts = name.split("/")
        for depth in range(1, len(parts)):
            above = "/".join(parts[:depth])
            kind = _kind(os.path.join(destination, above))
            if kind == stat.S_IFDIR:
                continue
            if kind == stat.S_IFLNK or (kind is not None and above not in gone and name in names):
                raise _in_the_way(destination, name, above, "a link" if kind == stat.S_IFLNK else "no folder")
            break
    for name in sorted(names):
        if _kind(os.path.join(destination, name)) == stat.S_IFDIR:
            kept = [path for path in _files_below(destination, name) if path not in gone]
            if kept:
                raise _in_the_way(destination, name, name, "a folder that holds %s" % ", ".join(kept[:3]))


def _in_the_way(destination, name, path, what):
    return FleetError(
        "weights.foreign-file-in-the-way",
        "%s cannot be put into %s: %s there is %s, which this collection did not put there. Nothing was replaced. Move "
        "it away and run again.",
        (name, destination, path, what),
    )


def _kind(path):
    """The type of what lies there, None for nothing."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _files_below(destination, name):
    """Paths in the destination of all that is no folder below the folder `name` there."""
    found = []
    for base, folders, names in os.walk(os.path.join(destination, name)):
        links = [one for one in folders if os.path.islink(os.path.join(base, one))]
        found += [os.path.relpath(os.path.join(base, one), destination) for one in [*names, *links]]
    return sorted(found)


def install(staging, destination, names, gone, records, **identity):
    """Put the files `names`, complete and checked in `staging`, in their places, and write the manifest of `records`.

    gone: files of the old weights to remove. Where nothing is at the destination the folder itself takes its place.
    In a destination that has no manifest of ours yet, one that names what is to come is there from the first file on,
    so that a run after a kill knows whose files they are. Returns the manifest's files. Raises FleetError, OSError.
    """
    if not is_mount(destination) and (not os.path.isdir(destination) or not os.listdir(destination)):
        recorded = write_manifest(staging, records, **identity)
        os.chmod(staging, 0o755)
        place, ours = staging_of(destination), os.stat(staging)
        os.rename(place, destination)
        if not os.path.samestat(os.lstat(destination), ours):
            raise replaced(place)
        return recorded
    begun = begun_manifest(destination)
    first = begun is None or INSTALLING in begun
    if first:
        gone = sorted({*gone, *(begun or {}).get(INSTALLING, ())} - set(records))
    elif not names and not gone:
        return write_manifest(destination, records, **identity)
    check_targets(destination, names, gone)
    times = {**times_of(destination, set(records) - set(names)), **times_of(staging, names)}
    journal = {
        "names": sorted(names), "gone": sorted(gone), "records": records, "times": times, "identity": identity,
        "first": first,
    }  # fmt: skip
    if not os.path.isdir(staging):
        os.mkdir(staging, 0o700)
    files.write_atomic(os.path.join(staging, JOURNAL), json.dumps(journal), mode=0o600)
    return _apply(staging, destination, journal)


def finish(destination):
    """Finish an update of the destination that was killed; the caller has its lock. Returns whether there was one."""
    staging = staging_of(destination)
    if begun_update(destination) is None:
        return False
    handle = open_folder(staging)
    try:
        journal = _journal(path_of(handle))
        if journal is None or _fault(os.fstat(handle), staging, (stat.S_IFDIR,)):
            raise replaced(staging)
        check_targets(destination, journal["names"], journal["gone"])
        _apply(path_of(handle), destination, journal)
    finally:
        os.close(handle)
    remove(staging)
    return True


def begun_update(destination):
    """The journal of an update of the destination that was killed; None for none."""
    staging = staging_of(destination)
    return _journal(staging) if trusted(staging) and os.path.isdir(destination) else None


def _journal(staging):
    path = os.path.join(staging, JOURNAL)
    journal = files.read_json(path) if plain_file(path) else None
    if not files.fits(journal, {"names": [str], "gone": [str]}) or not {"names", "gone"} <= set(journal):
        return None
    if not all(map(is_inside, [*journal["names"], *journal["gone"]])):
        return None
    return journal


class _Renames:
    """Renames that can be taken back."""

    def __init__(self):
        self._done = []

    def move(self, source, target):
        """Rename, with the folders that the target needs."""
        for folder in make_directory(os.path.dirname(target)):
            self._done.append((os.rmdir, folder))
        os.rename(source, target)
        self._done.append((os.rename, target, source))

    def remove_folder(self, path):
        """Remove a folder where it is empty."""
        with contextlib.suppress(OSError):
            os.rmdir(path)
            self._done.append((make_directory, path))

    def made(self, path):
        """A file that was made, to be removed again."""
        self._done.append((os.unlink, path))

    def take_back(self):
        """Undo all, the last first; whether that went well."""
        try:
            while self._done:
                function, *arguments = self._done.pop()
                function(*arguments)
        except OSError:
            return False
        return True


def _apply(staging, destination, journal):
    """Do what is left to do of a journal; returns the manifest's files."""
    with opened(destination) as place:
        return _applied(staging, place, journal)


def _applied(staging, destination, journal):
    renames = _Renames()
    try:
        if journal["first"]:
            unknown = begun_manifest(destination) is None
            _begin(staging, destination, [*journal["records"], *journal["gone"]], journal["identity"])
            if unknown:
                renames.made(os.path.join(destination, MANIFEST))
        _move_all(staging, destination, journal, renames)
        recorded = write_manifest(staging, journal["records"], journal["times"], **journal["identity"])
        os.rename(os.path.join(staging, MANIFEST), os.path.join(destination, MANIFEST))
    except OSError:
        if renames.take_back():
            remove(os.path.join(staging, JOURNAL))
        raise
    os.unlink(os.path.join(staging, JOURNAL))
    shutil.rmtree(os.path.join(staging, REPLACED), ignore_errors=True)
    return recorded


def _move_all(staging, destination, journal, renames):
    due = [name for name in journal["names"] if _kind(os.path.join(staging, name)) is not None]
    gone = [name for name in journal["gone"] if _kind(os.path.join(destination, name)) not in (None, stat.S_IFDIR)]
    config, held = os.path.join(destination, CONFIG), os.path.join(staging, CONFIG)
    if (due or gone) and _kind(config) is not None:
        new = CONFIG in due or CONFIG in gone
        renames.move(config, os.path.join(staging, REPLACED, CONFIG) if new else held)
    if CONFIG not in due and _kind(held) is not None:
        due.append(CONFIG)
    for name in gone:
        if name != CONFIG:
            renames.move(os.path.join(destination, name), os.path.join(staging, REPLACED, name))
    for folder in sorted({os.path.dirname(name) for name in gone} - {""}, key=len, reverse=True):
        while folder:
            renames.remove_folder(os.path.join(destination, folder))
            folder = os.path.dirname(folder)
    for name in sorted(due, key=lambda name: (name == CONFIG, name)):
        target = os.path.join(destination, name)
        if _kind(target) == stat.S_IFDIR:
            for base, _folders, _names in os.walk(target, topdown=False):
                renames.remove_folder(base)
        elif _kind(target) is not None:
            renames.move(target, os.path.join(staging, REPLACED, name))
        renames.move(os.path.join(staging, name), target)


def _begin(staging, destination, names, identity):
    """Put down whose files are about to come; by way of staging, so that no half of it is ever in the destination."""
    manifest = {"schema": SCHEMA, **identity, "files": {}, INSTALLING: sorted(names)}
    files.write_atomic(os.path.join(staging, MANIFEST), json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    os.rename(os.path.join(staging, MANIFEST), os.path.join(destination, MANIFEST))
