# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of servers: written in staging and installed together, or removed with their directories."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shutil
import tempfile

from ..errors import FleetError
from ..host import files
from ..host.directories import make_directory
from ..host.files import as_bytes
from ..host.os_errors import about, os_error
from .model import config_path


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


def remove(node, observed, desired, all_observed, purge):
    node.manager.drop([observed.name])
    forget_state(node, observed.name)
    # a config of the plan's that is there though the entry is not may be another server's
    kept = {config_path(one.entry) for name, one in all_observed.items() if name != observed.name and one.entry}
    for path in [*observed.files, *node.manager.log_files(observed.name)]:
        if path not in kept:
            unlink(path)
    if not purge:
        return
    shared = set()
    for name, one in [*all_observed.items(), *desired.items()]:
        if name != observed.name and one.entry and os.path.exists(node.paths.entry(name)):
            shared.update((one.entry.get("directories") or {}).values())
    for path in observed.folders:
        # one that several shared is gone with the first of them, where none was deployed any more
        if os.path.isdir(path) and not any(_overlap(path, other) for other in shared):
            _purge(path)
    with contextlib.suppress(OSError):
        os.rmdir("%s/servers/%s" % (node.paths.lib, observed.name))  # only where nothing else is in it


def purgeable(paths, entries, purge_artifacts):
    """(existing directories of these entries that a purge deletes, those of artifacts that it leaves), both sorted.

    An artifact outside the root's own folder, or on a file system of its own in it, may be a whole fleet's, which all
    its nodes mount.
    """
    folders, kept = set(), set()
    for entry in entries:
        for kind, path in ((entry or {}).get("directories") or {}).items():
            if os.path.isdir(path):
                own = _inside(path, paths.lib) and os.stat(path).st_dev == os.stat(paths.lib).st_dev
                if kind == "artifact" and not own and not purge_artifacts:
                    kept.add(os.path.realpath(path))
                else:
                    folders.add(path)
    folders = {path for path in folders if not any(_overlap(path, other) for other in kept)}
    return sorted(folders), sorted(kept)


def _purge(path):
    """Delete a server's directory; FleetError for one that cannot be a server's own."""
    real = os.path.realpath(path)
    homes = {os.path.realpath(user.pw_dir) for user in pwd.getpwall() if user.pw_dir}
    if real.count("/") < 3 or real in homes or os.path.ismount(real):
        raise FleetError(
            "servers.purge-path-shared",
            "%s is not purged, as it may be shared with others. Delete it by hand.",
            (path,),
        )
    shutil.rmtree(real, ignore_errors=False)


def forget_state(node, name):
    """Delete the record of a server's last start, not while somebody reads it and writes it anew (take_back)."""
    unlink(node.paths.ready(name))
    path = node.paths.server_state(name)
    if os.path.lexists(path):
        with files.folder_lock(os.path.dirname(path)):
            unlink(path)


def unlink(path):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _inside(path, folder):
    return os.path.commonpath([os.path.realpath(path), os.path.realpath(folder)]) == os.path.realpath(folder)


def _overlap(path, other):
    return _inside(path, other) or _inside(other, path)
