# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run at a time at a destination of weights, for any fleet_root and, on a shared mount, for any node.

The lock is an flock on a file next to the staging folder, so that all runs that could write there see it. The kernel
keeps it and releases it when its holder ends for any reason; the content of the file only names the holder. The file is
removed by the run that has the lock, unless that run was killed or its transfers failed; therefore a run that gets the
lock of a file checks whether that file still has this name.
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
from ..host.files import fits, make_directory, read_json
from .manifest import lock_of

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
        self.take()
        return self

    def __exit__(self, *_error):
        self.release()

    def take(self):
        """Wait for the lock. Raises Busy, OSError."""
        began = time.monotonic()
        while not self._taken():
            self.waited = True
            if self._patience_s is not None and time.monotonic() - began >= self._patience_s:
                raise Busy("weights.locked", self._destination, self._holder())
            if self._progress is not None:
                self._progress.begin("%s for %s" % (WAITING, self._holder()), 0, None)
            time.sleep(POLL_S)

    def release(self):
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
            stream = self._opened()  # release() closes it
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
        if not _is_at(stream, self._path):
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


def _is_at(stream, path):
    """Whether the open file is the file at `path`, which is opened again: a network file system may cache a status."""
    try:
        with open(path, "rb") as now:
            return os.path.samestat(os.fstat(stream.fileno()), os.fstat(now.fileno()))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return False
        raise
