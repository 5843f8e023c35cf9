# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What protects a destination while weights are installed: the lock, the folder of new files, and the installation.

One run at a time works at a destination, for any fleet_root and, on a shared mount, for any node. The lock is an flock
on a file next to the staging folder. The kernel keeps it and releases it when its holder ends for any reason; the
content of the file only names the holder. The file is removed by the run that has the lock, unless that run was killed
or its transfers failed; therefore a run that gets the lock of a file checks whether that file still has this name.

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
import fcntl
import json
import os
import stat
import tempfile
import time

from ..errors import FleetError
from ..host.files import fits, make_directory, read_json, remove
from .manifest import MANIFEST, OTHERS_WRITE, lock_of, occupied, write_manifest

POLL_S = 0.5
WAITING = "waiting"  # the beginning of the phase of a progress while other runs have the lock
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
UNKNOWN = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)  # of a file system without locks


class Busy(FleetError):
    """Another run is at work at the destination."""


class WeightLock:
    """The lock of a destination (real path). progress: a Progress, which shows a wait, or None.

    patience_s: seconds to wait for another run before Busy is raised; None: until it has ended.
    When it is locked, `waited` is whether another run was active in the meantime, and `warnings` are for the result.
    """

    def __init__(self, destination, progress=None, patience_s=None):
        self._destination = destination
        self._path = lock_of(destination)
        self._progress = progress
        self._patience_s = patience_s
        self._stream = None
        self.waited = False
        self.warnings = []

    def __enter__(self):
        """Wait for the lock. Raises Busy, OSError."""
        began = time.monotonic()
        while not self._taken():
            self.waited = True
            if self._patience_s is not None and time.monotonic() - began >= self._patience_s:
                raise Busy("weights.locked", self._destination, self._holder())
            if self._progress is not None:
                self._progress.begin("%s for %s" % (WAITING, self._holder()), 0, None)
            time.sleep(POLL_S)
        return self

    def __exit__(self, *_error):
        """Release the lock and remove its file."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._stream.close()
            self._stream = None

    def _taken(self):
        """Lock it unless another run has it. Returns whether the run may continue. Raises OSError."""
        folder = os.path.dirname(self._path)
        try:
            make_directory(folder)
            stream = self._opened()  # __exit__() closes it
        except OSError as error:
            # if nothing can be written, nothing needs the lock; a run that has to write there fails itself
            if error.errno in UNWRITABLE and not os.access(folder, os.W_OK):
                return True
            raise
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            stream.close()
            if error.errno in (errno.EAGAIN, errno.ESTALE):
                return False
            if error.errno not in UNKNOWN:
                raise
            os.unlink(self._path)
            self.warnings.append(
                "The file system of %s has no locks (%s), so nothing keeps runs of other nodes from installing weights "
                "in %s at the same time. Let one node do that before the others run."
                % (folder, error.strerror, self._destination)
            )
            return True
        with self._opened() as again:  # because a network file system may cache a status
            if not os.path.samestat(os.fstat(stream.fileno()), os.fstat(again.fileno())):
                stream.close()
                return False
        self._stream = stream
        with contextlib.suppress(OSError):  # a full disk locks as well
            stream.truncate(0)
            stream.write(json.dumps({"host": os.uname().nodename, "pid": os.getpid(), "since": time.time()}).encode())
            os.fsync(stream.fileno())  # for runs that read it on other nodes
        return True

    def _opened(self):
        """The lock's file; a link or anything else is removed itself, never its target."""
        try:
            return _open(self._path)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EINVAL, errno.ENXIO):
                raise
            os.unlink(self._path)
            self.warnings.append(
                "%s was a link, or not a plain file. Only it was removed; find out who put it there." % self._path
            )
            return _open(self._path)

    def _holder(self):
        """The holder according to the file."""
        found = read_json(self._path)
        if not fits(found, {"since": float}) or not 0 < found.get("since", 0) < 1 << 33:
            return "another run"
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found["since"]))
        return "%s (process %s, since %s)" % (found.get("host"), found.get("pid"), since)


def _open(path):
    """The file of the lock, created if it is missing; no link is followed. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    stream = os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)
    status = os.fstat(stream.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        stream.close()
        raise OSError(errno.EINVAL, "it is not a plain file with one name", path)
    return stream


# ---- the folder of new files


def path_of(handle):
    """The path of an open folder, which stays valid after any change of the folder's name."""
    return "/proc/self/fd/%d" % handle


@contextlib.contextmanager
def opened(path):
    """Yields the path of a folder (real path) by its descriptor; no component of the path may be a link. Raises
    FleetError, OSError."""
    handle = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    parts = [part for part in path.split("/") if part]
    try:
        for number, part in enumerate(parts, 1):
            kind = os.O_RDONLY if number == len(parts) else os.O_PATH
            try:
                following = os.open(part, kind | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise replaced(path) from error
                raise
            os.close(handle)
            handle = following
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
        raise replaced(name) from error
    if _fault(os.fstat(handle), path, stat.S_IFDIR):
        os.close(handle)
        raise replaced(name)
    return handle


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
    """Raises FleetError if one of the files `names` cannot be installed at the destination, or one of the files `gone`
    not be removed: because a folder above it is a link or a file, or a folder has its name."""
    for name in sorted({*names, *gone}):
        parts = name.split("/")
        for above in ("/".join(parts[:depth]) for depth in range(1, len(parts))):
            kind = _kind(os.path.join(destination, above))
            if kind == stat.S_IFLNK or (kind not in (None, stat.S_IFDIR) and name in names):
                raise occupied(destination, "%s, above %s, is not a folder" % (above, name))
        if name in names and _kind(os.path.join(destination, name)) == stat.S_IFDIR:
            raise occupied(destination, "%s is a folder" % name)


def _kind(path):
    """The type of the file at the path, None if it does not exist."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


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
        for name in sorted(parts, key=lambda name: (name == name_of, -os.path.getsize(parts[name]), name)):
            target = os.path.join(place, name)
            make_directory(os.path.dirname(target))
            os.rename(parts[name], target)
        recorded = write_manifest(place, records, into=staging, **identity)
        os.rename(os.path.join(staging, MANIFEST), os.path.join(place, MANIFEST))
        return recorded
