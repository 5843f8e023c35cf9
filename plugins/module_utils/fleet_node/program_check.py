# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks whether a version of this package is on a node as it was installed.

The module inference.fleet.node sends this file and its imports with each call. The rest stays on the node.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os

from .host import trust

FOLDER = "program"  # below the node's own folder (NodePaths.lib)
CURRENT = "current"
MANIFEST = "manifest.json"
VERSION_LENGTH = 32


def version_of(digests):
    """The version of a program of these files, {path: sha256}."""
    lines = "".join("%s %s\n" % (digest, path) for path, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode("utf-8")).hexdigest()[:VERSION_LENGTH]


def place(lib):
    """The folder of versions; each is a folder with the version as its name."""
    return os.path.join(lib, FOLDER)


def current(lib):
    """The path that service managers execute; it is the same for all versions."""
    return os.path.join(place(lib), CURRENT)


def in_use(folder):
    """A handle of a version's folder that prevents its removal while it is open; None without such a folder."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def fault(folder, version):
    """Why a folder is not this version as it was installed, as a clause; None if it is.

    A file with the size and times of its record is not read again.
    """
    others = trust.fault(folder, sticky=False) if os.geteuid() == 0 else None
    if others:
        return others
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as stream:
            known = json.load(stream)
        if version_of({path: record[0] for path, record in known["files"].items()}) != version:
            return "%s is of another version" % MANIFEST
        files = {**known["files"], **known["compiled"]}
        folders = dict.fromkeys(map(os.path.dirname, files))
        for path, record in {**folders, **files}.items():
            path = os.path.join(folder, path)
            found = trust.misplaced(path, folder=record is None, owners=(0,)) or _change(path, record)
            if found:
                return "%s %s" % (path, found)
    except OSError as error:
        return "%s: %s" % (error.filename, error.strerror)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return "%s is damaged" % MANIFEST
    return None


def record_of(path, digest):
    """The record of a file in the manifest: its sha256, size and times."""
    status = os.lstat(path)
    return [digest, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _change(path, record):
    """How a file differs from its record, as a clause; None if it does not. record: None for a folder."""
    status = os.lstat(path)
    if record is None or record[1:] == [status.st_size, status.st_mtime_ns, status.st_ctime_ns]:
        return None
    with open(path, "rb") as stream:
        return None if hashlib.sha256(stream.read()).hexdigest() == record[0] else "was changed"
