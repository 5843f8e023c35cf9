# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that are written beside their places and put there together."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile

from ..node.directories import make_directory
from ..node.files import as_bytes
from ..node.os_errors import about, os_error


class Staging:
    """Files written beside their places; commit() renames them all, leaving without it deletes them."""

    def __init__(self):
        self.files = []

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for temporary, _place in self.files:
            for path in (temporary, temporary + ".old"):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def add(self, path, text, mode=0o644, owner=None):
        folder = os.path.dirname(path)
        make_folder(folder)
        with about(path):
            handle, temporary = tempfile.mkstemp(prefix=".%s." % os.path.basename(path), dir=folder)
        self.files.append((temporary, path))
        with about(path), os.fdopen(handle, "wb") as stream:
            stream.write(as_bytes(text))
            os.fchmod(stream.fileno(), mode)
            if owner is not None:
                os.fchown(stream.fileno(), owner[0], owner[1])
            stream.flush()
            os.fsync(stream.fileno())

    def commit(self):
        """Put all files in their places; where one fails, those before it are as they were. Raises OSError."""
        kept = []
        try:
            for temporary, place in self.files:
                old = None
                with about(place):
                    if os.path.lexists(place):
                        old = temporary + ".old"
                        _keep(place, old)
                    kept.append((place, old))
                    os.rename(temporary, place)
        except OSError:
            for place, old in reversed(kept):
                with contextlib.suppress(OSError):
                    os.rename(old, place) if old else os.unlink(place)
            raise
        for _place, old in kept:
            if old:
                os.unlink(old)
        self.files = []


def _keep(path, copy):
    """Make `copy` what `path` is now, also on a file system without links. Raises OSError."""
    try:
        os.link(path, copy, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        with open(path, "rb") as source, os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as target:
            shutil.copyfileobj(source, target)
        shutil.copystat(path, copy)
        with contextlib.suppress(PermissionError):
            os.chown(copy, os.stat(path).st_uid, os.stat(path).st_gid)


def make_folder(path, owner=None, mode=0o755):
    """Create `path`, and what is missing above it with mode 0755, whatever the umask; the owner and another mode are
    those of `path` alone. One that is there and that its owner cannot use gets that mode too. Raises FleetError.
    """
    try:
        created = make_directory(path)
        if owner is not None and (os.stat(path).st_uid, os.stat(path).st_gid) != owner:
            os.chown(path, owner[0], owner[1])
        if path in created or os.stat(path).st_mode & 0o700 != 0o700:
            os.chmod(path, mode)
    except OSError as error:
        raise os_error("The directory %s cannot be made" % path, error) from error
