# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run at a time at a destination of weights, whichever fleet_root it is of, and on a shared mount whichever node.

The lock is an flock on a file that lies where the staging folder does, so whoever could write to the one sees the
other. It is the kernel's, and ends with its holder, however that dies; the file only says who that is. The file goes
with the run that holds the lock, but for one that was killed or whose transfers failed; so who gets the lock of a file
looks whether that is still the one of this name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time

from ..errors import FleetError
from ..host.directories import existing_parent, make_directory
from ..host.files import fits, read_json
from .manifest import lock_of

POLL_S = 0.5
VANISHED = 5  # times in a row that a folder may be gone before its file is made
GONE_S = 0.02
WAITING = "waiting"  # how the phase of a progress begins, while others hold the lock
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
UNKNOWN = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)  # of a file system that takes no locks


class Busy(FleetError):
    """Another run is at work at the destination."""


class WeightLock:
    """The lock of a destination (real path). progress: a Progress, which shows a wait, or None.

    patience_s: how long to wait for another run before Busy is raised; None: until it has ended.
    Once it is taken, `waited` says whether another run was at work meanwhile, and `warnings` what to warn of.
    """

    def __init__(self, destination, progress=None, patience_s=None):
        self._destination = destination
        self._path = lock_of(destination)
        self._progress = progress
        self._patience_s = patience_s
        self._stream = None
        self._made = []
        self.waited = False
        self.warnings = []

    def __enter__(self):
        self.take()
        return self

    def __exit__(self, *_error):
        self.release()

    def take(self):
        """Wait for it. Raises Busy, OSError."""
        began, vanished = time.monotonic(), 0
        while True:
            try:
                if self._taken():
                    return
            except FileNotFoundError as error:
                # Another run may have just removed the folder, which it had made; not again and again.
                vanished += 1
                if vanished >= VANISHED:
                    raise FleetError(
                        "weights.directory-stale",
                        "Nothing can be made in %s, though it is listed: %s. It may be a mount that is gone (`ls` and "
                        "`findmnt -T` of it say more). Mount it again, and run again.",
                        (existing_parent(os.path.dirname(self._path)), error.strerror),
                    ) from error
                time.sleep(GONE_S)
                continue
            vanished = 0
            self.waited = True
            if self._patience_s is not None and time.monotonic() - began >= self._patience_s:
                raise Busy(
                    "weights.locked",
                    "Weights are brought to %s by %s already. Wait until that has ended, or end it; then run again.",
                    (self._destination, self._holder()),
                )
            if self._progress is not None:
                self._progress.begin("%s for %s" % (WAITING, self._holder()), 0, None)
            time.sleep(POLL_S)

    def release(self):
        """Give it back, and remove its file, and the folders that were made for that alone."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._stream.close()
            self._stream = None
        with contextlib.suppress(OSError):
            while self._made:
                os.rmdir(self._made.pop())

    def _taken(self):
        """Take it unless somebody else has it; whether the run may go on. Raises OSError."""
        try:
            self._made += make_directory(os.path.dirname(self._path))
            stream = self._opened()  # release() closes it
        except OSError as error:
            # Where nothing can be written nothing can be spoilt; a run that has to write there says so itself.
            if error.errno in UNWRITABLE and not os.access(os.path.dirname(self._path), os.W_OK):
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
            self._warn(error)
            return True
        if not _is_at(stream, self._path):
            stream.close()
            return False
        self._stream = stream
        with contextlib.suppress(OSError):  # a full disk locks as well
            stream.truncate(0)
            stream.write(json.dumps({"host": os.uname().nodename, "pid": os.getpid(), "since": time.time()}).encode())
            os.fsync(stream.fileno())  # for those who read it on other nodes
        return True

    def _opened(self):
        """The lock's file; what is none is removed itself, never what it leads to."""
        try:
            return _open(self._path)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EINVAL, errno.ENXIO):
                raise
            os.unlink(self._path)
            self.warnings.append(
                "%s was a link, or no plain file. It was removed itself, and nothing else; find out who put it there."
                % self._path
            )
            return _open(self._path)

    def _warn(self, error):
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self.warnings += [
            "The file system of %s takes no locks (%s), so nothing keeps a run of another node, or of another "
            "fleet_root, from bringing weights to %s at the same time. Let one of them do that before the others run."
            % (os.path.dirname(self._path), error.strerror, self._destination)
        ]

    def _holder(self):
        """Who has the lock, as it says itself."""
        found = read_json(self._path)
        if not fits(found, {"since": float}) or not 0 < found.get("since", 0) < 1 << 33:
            return "another run"
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found["since"]))
        return "%s (process %s, since %s)" % (found.get("host"), found.get("pid"), since)


def _open(path):
    """The file of the lock, made where it is not there. Raises OSError.

    Who can write to a share could have put a link of this name there; what that leads to is nobody's to lock and fill.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    stream = os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)
    status = os.fstat(stream.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        stream.close()
        raise OSError(errno.EINVAL, "it is no plain file with one name; remove it", path)
    return stream


def _is_at(stream, path):
    """Whether the open file is the one at `path`: opened again, since a network file system may remember a status."""
    try:
        with open(path, "rb") as now:
            return os.path.samestat(os.fstat(stream.fileno()), os.fstat(now.fileno()))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return False
        raise
