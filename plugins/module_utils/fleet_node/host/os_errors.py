# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors of the operating system as messages with the path and a remedy."""

from __future__ import annotations

import contextlib
import errno
import os

from ..errors import FleetError

RIGHTS = "Run with the rights to do so (become), or set fleet_root to a directory that this user may write to"
REMEDIES = {
    errno.ENOSPC: "Free space or inodes on its file system (df -h, df -i)",
    errno.EDQUOT: "Free space that counts against this user's quota, or raise the quota",
    errno.EROFS: "Its file system is mounted read-only: mount it read-write (see dmesg for errors of the disk first), "
    "or set fleet_root to a directory elsewhere",
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS + "; where the user is root, the file may be immutable (lsattr) or its mount may forbid it",
    errno.ENAMETOOLONG: "Set fleet_root to a shorter path",
    errno.ESTALE: "The network file system was replaced on its server: unmount it and mount it again",
    errno.EIO: "The disk or the network file system has an error: see dmesg",
    errno.ENOTDIR: "Part of the path is a file: remove it, or set another fleet_root",
    errno.EEXIST: "Part of the path is a file: remove it, or set another fleet_root",
    errno.ELOOP: "Links in the path lead in a circle: remove them",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.ENFILE: "Raise the node's limit of open files (sysctl fs.file-max)",
    errno.ETXTBSY: "The program is being executed: end it",
    errno.EBUSY: "Something uses it, a mount for example: see findmnt and lsof",
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f)",
}
OTHERWISE = "Correct that and run again"


@contextlib.contextmanager
def about(path):
    """Set the path of an OSError: a write to a full disk names no file, and a temporary name does not help."""
    try:
        yield
    except OSError as error:
        error.filename = path
        error.filename2 = None
        raise


def read_only(path):
    """The OSError (EROFS) of a path whose file system is mounted read-only, or None."""
    with contextlib.suppress(OSError):
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return OSError(errno.EROFS, os.strerror(errno.EROFS), path)
    return None


def os_words(error):
    """ "PATH: MESSAGE" of an OSError, or only the message."""
    words = error.strerror or str(error) or type(error).__name__
    path = error.filename
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    return "%s: %s" % (path, words) if isinstance(path, str) and path else words


def remedy(error):
    """The remedy of an OSError, without a full stop."""
    return REMEDIES.get(error.errno, OTHERWISE)


def os_error(what, error, after=""):
    """The FleetError of an OSError. what: the failed action, which begins the message; after: a last sentence."""
    words = os_words(error)
    path = words.rpartition(": ")[0]
    if path and what.endswith(" " + path):
        words = words[len(path) + 2 :]
    found = {"errno": errno.errorcode.get(error.errno, None)}
    return FleetError("node.os-error", what, words, remedy(error), after and " " + after, details=found)
