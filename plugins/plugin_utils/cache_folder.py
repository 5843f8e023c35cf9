# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders of the control node with files of earlier runs. They belong to a single account."""

from __future__ import annotations

import contextlib
import os
import stat

from ..module_utils.fleet_node.host.files import read_bytes


def folder(name):
    """Return the folder for one kind of files."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.cache")
    return os.path.join(base, "inference-fleet", name)


def prepare(path):
    """Create the folder if it is missing. Raises OSError if other accounts have access to it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or not _ours(status, stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(1, "is a link, or other accounts may write to it", path)


def read(path, most):
    """Return up to ``most`` bytes of a file. Return None if the file belongs to another account."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most or not _ours(status, stat.S_IRWXG | stat.S_IRWXO):
            return None
        return read_bytes(path, most, follow=False)
    except OSError:
        return None


def prune(path, kept, most):
    """Remove the oldest files beyond ``kept`` files or ``most`` bytes."""
    found = []
    with os.scandir(path) as entries:
        for one in entries:
            with contextlib.suppress(FileNotFoundError):  # another run removes files, too
                status = one.stat(follow_symlinks=False)
                found.append((status.st_mtime, status.st_size, one.path))
    total = 0
    for number, (_changed, size, file) in enumerate(sorted(found, reverse=True)):
        total += size
        if number >= kept or total > most:
            with contextlib.suppress(OSError):
                os.unlink(file)


def _ours(status, others):
    """Return whether a file or folder belongs to this account and gives other accounts
    none of the rights ``others``."""
    return status.st_uid == os.geteuid() and not status.st_mode & others
