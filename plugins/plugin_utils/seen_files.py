# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that planning reads, and those that it looks for: a plan that was kept is right as long as they are the same.

What planning opens, lists or looks for goes through here, and is noted for as long as the process lives: what it read
once it may remember. Files of the collection itself are left out; the code's own digest has them (plan_cache.py).
"""

from __future__ import annotations

import hashlib
import os

OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "recipes", "")
MOST = 2**20 + 1  # bytes of a file that are looked at; recipes have less
_seen = {}  # (kind, path) → what was found


def read(path):
    """What is in the file, at most MOST bytes. Raises OSError."""
    _note("content", path, None)
    with open(path, "rb") as stream:
        data = stream.read(MOST)
    _note("content", path, _digest(data))
    return data


def exists(path):
    """Whether there is anything."""
    return _note("exists", path, os.path.exists(path))


def is_file(path):
    """Whether there is a file."""
    return _note("file", path, os.path.isfile(path))


def is_folder(path):
    """Whether there is a folder."""
    return _note("folder", path, os.path.isdir(path))


def files_in(folder):
    """Names of the files in a folder, sorted; [] where there is none."""
    return _note("names", folder, _files_in(folder))


def seen():
    """{(kind, path): what was found} of all that this process has looked at."""
    return dict(_seen)


def now(kind, path):
    """What seen() would have there now."""
    return KINDS[kind](path)


def _note(kind, path, found):
    path = os.path.abspath(path)
    if not path.startswith(OWN):
        _seen[kind, path] = found
    return found


def _content(path):
    try:
        with open(path, "rb") as stream:
            return _digest(stream.read(MOST))
    except OSError:
        return None


def _digest(data):
    return hashlib.sha256(data).hexdigest()


def _files_in(folder):
    try:
        return sorted(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name)))
    except OSError:
        return []


KINDS = {
    "content": _content, "exists": os.path.exists, "file": os.path.isfile, "folder": os.path.isdir, "names": _files_in,
}  # fmt: skip
