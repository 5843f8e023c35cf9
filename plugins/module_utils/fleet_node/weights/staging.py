# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder in which new weights are written, and their installation at the destination.

Accounts that may write next to a destination could create links under the names of this collection there, or swap
folders for links during a run, and so have root write elsewhere. Therefore the staging folder belongs to this account
alone (0700), contains plain files only, and is used by its descriptor; so is the destination during an installation.
Links and foreign files are removed themselves, never their targets, and reported.

Files are installed by renames, the largest first. config.json, without which no server loads anything, is removed
before them and installed last; the manifest follows. A kill in between leaves files that the next run recognises by
their checksums.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile

from ..errors import FleetError
from ..host.files import make_directory
from .manifest import MANIFEST, OTHERS_WRITE, occupied, write_manifest

SWAPS = 5  # attempts at a folder that is swapped again and again


def remove(path):
    """Remove the file or folder at the path, or a link itself; nothing if the path does not exist. Raises OSError."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(path)  # follows no link, not even one that replaces a folder meanwhile
    else:
        os.unlink(path)


def path_of(handle):
    """The path of an open folder, which stays valid after any change of the folder's name."""
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
    """Yields the path of a folder by its descriptor."""
    handle = open_folder(path)
    try:
        yield path_of(handle)
    finally:
        os.close(handle)


def same(path, handle):
    """Whether the folder of this name is the open folder."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def replaced(path):
    """The FleetError for a folder that was swapped during a run."""
    return FleetError("weights.staging-replaced", path)


def claim(folder):
    """Make this folder private to this account, mode 0700, with only plain files and folders of this account. Returns
    (its descriptor, warnings). Raises FleetError, OSError."""
    make_directory(os.path.dirname(folder))
    removed = []
    with opened(os.path.dirname(folder)) as parent:
        handle = _claimed(os.path.join(parent, os.path.basename(folder)), folder, removed)
    os.fchmod(handle, 0o700)
    inside = path_of(handle)
    for name in os.listdir(inside):
        path = os.path.join(inside, name)
        what = foreign(path, stat.S_IFREG)
        if what:
            remove(path)
            removed.append((os.path.join(folder, name), what))
    return handle, ["%s was %s. Only it was removed; find out who put it there." % one for one in removed]


def _claimed(path, name, removed):
    """The descriptor of this account's folder at the path; anything else there is removed. name: for messages."""
    for _attempt in range(SWAPS):
        what = foreign(path)
        if what:
            remove(path)
            removed.append((name, what))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            continue
        if not _fault(os.fstat(handle), path, stat.S_IFDIR):
            return handle
        os.close(handle)
    raise replaced(name)


def foreign(path, kind=stat.S_IFDIR):
    """What distinguishes this from a folder (or plain file) of this account, in words; "" if nothing does, or if the
    path does not exist."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return _fault(status, path, kind)


def _fault(status, path, kind):
    found = stat.S_IFMT(status.st_mode)
    if found == stat.S_IFLNK:
        return "a link to %s" % os.readlink(path)
    if found != kind:
        return "not a folder" if kind == stat.S_IFDIR else "not a plain file"
    if found == stat.S_IFREG and status.st_nlink > 1:
        return "a file that has another name elsewhere"
    if status.st_uid != os.geteuid() and status.st_uid != _uid_there(os.path.dirname(path)):
        return "of user %d" % status.st_uid
    if found == stat.S_IFDIR and status.st_mode & OTHERS_WRITE:
        return "writable by others"
    return ""


def _uid_there(folder):
    """The owner of files that this process creates in this folder: on NFS root may be another account."""
    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            return os.fstat(stream.fileno()).st_uid
    except OSError:
        return os.geteuid()


def check_targets(destination, names, gone):
    """Raises FleetError if one of the files `names` cannot be installed at the destination once the files `gone` are
    removed: because a folder above it is a link or a file, or a folder with other files has its name."""
    for name in sorted({*names, *gone}):
        parts = name.split("/")
        for depth in range(1, len(parts)):
            above = "/".join(parts[:depth])
            kind = _kind(os.path.join(destination, above))
            if kind == stat.S_IFLNK or (kind not in (None, stat.S_IFDIR) and above not in gone and name in names):
                raise occupied(destination, "%s, above %s, is not a folder" % (above, name))
    for name in sorted(names):
        if _kind(os.path.join(destination, name)) == stat.S_IFDIR:
            kept = sorted(set(_files_below(destination, name)) - set(gone))
            if kept:
                raise occupied(destination, "%s is a folder that contains %s" % (name, ", ".join(kept[:3])))


def _kind(path):
    """The type of the file at the path, None if it does not exist."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _files_below(destination, name):
    """Paths in the destination of all files and links below the folder `name` there."""
    for base, folders, names in os.walk(os.path.join(destination, name)):
        links = [one for one in folders if os.path.islink(os.path.join(base, one))]
        yield from (os.path.relpath(os.path.join(base, one), destination) for one in [*names, *links])


def install(staging, destination, parts, config, gone, records, **identity):
    """Rename complete files {path: part in the staging folder} to their places, and write the manifest of `records`.

    config: the name of the configuration, and its path in the staging folder if it is not replaced. gone: old files to
    remove. Returns the manifest's files. Raises FleetError, OSError.
    """
    make_directory(destination)
    with opened(destination) as place:
        check_targets(place, parts, gone)
        name_of, held = config
        current = os.path.join(place, name_of)
        if name_of in parts or name_of in gone:
            remove(current)
        elif (parts or gone) and name_of in records:
            os.rename(current, held)
            parts = {**parts, name_of: held}
        for name in gone:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                os.unlink(os.path.join(place, name))
            _remove_empty(place, os.path.dirname(name))
        for name in sorted(parts, key=lambda name: (name == name_of, -os.path.getsize(parts[name]), name)):
            target = os.path.join(place, name)
            if _kind(target) == stat.S_IFDIR:
                for base, _folders, _names in os.walk(target, topdown=False):
                    os.rmdir(base)
            make_directory(os.path.dirname(target))
            os.rename(parts[name], target)
        recorded = write_manifest(place, records, into=staging, **identity)
        os.rename(os.path.join(staging, MANIFEST), os.path.join(place, MANIFEST))
        return recorded


def _remove_empty(place, folder):
    with contextlib.suppress(OSError):
        while folder:
            os.rmdir(os.path.join(place, folder))
            folder = os.path.dirname(folder)
