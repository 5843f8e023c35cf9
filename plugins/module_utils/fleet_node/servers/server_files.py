# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of servers: written in staging and installed together, or removed with their directories."""

from __future__ import annotations

import contextlib
import os

from ..host import files
from ..host.files import make_directory
from ..host.os_errors import about, os_error
from .model import config_path


class Staging:
    """Files written next to their destinations; commit() renames all of them, and leaving without it deletes them."""

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
        make_folder(os.path.dirname(path))
        self.files.append((files.write_next_to(path, text, mode, owner), path))

    def commit(self):
        """Install all files; if one fails, the others are restored. Raises OSError."""
        kept = []
        try:
            for temporary, place in self.files:
                old = None
                with about(place):
                    if os.path.lexists(place):
                        old = temporary + ".old"
                        os.link(place, old, follow_symlinks=False)
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


def make_folder(path, owner=None, mode=0o755):
    """Create `path` with this owner and mode, and missing parents with mode 0755, whatever the umask. An existing
    directory that its owner cannot use gets the mode too. Raises FleetError."""
    try:
        created = make_directory(path)
        if owner is not None and (os.stat(path).st_uid, os.stat(path).st_gid) != owner:
            os.chown(path, owner[0], owner[1])
        if path in created or os.stat(path).st_mode & 0o700 != 0o700:
            os.chmod(path, mode)
    except OSError as error:
        raise os_error("The directory %s cannot be made" % path, error) from error


def remove(node, observed, all_observed):
    """Delete the files of a stopped server and its definition. Its directories stay."""
    node.manager.drop([observed.name])
    forget_state(node, observed.name)
    # a configuration file of the plan may belong to another server
    kept = {config_path(one.entry) for name, one in all_observed.items() if name != observed.name and one.entry}
    for path in [*observed.files, *node.manager.log_files(observed.name)]:
        if path not in kept:
            unlink(path)


def forget_state(node, name):
    """Delete the record of a server's last start, under the lock of those who rewrite it (take_back)."""
    unlink(node.paths.ready(name))
    path = node.paths.server_state(name)
    if os.path.lexists(path):
        with files.folder_lock(os.path.dirname(path)):
            unlink(path)


def unlink(path):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
