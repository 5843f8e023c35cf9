# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records the files that planning reads or looks for. A cached plan is valid while they are unchanged.

Planning opens, lists and tests files with these functions, which record the path and the result for the lifetime of the
process, because a process may cache content. The collection's own files are not recorded; the digest of the code in
run_plan.py covers them.
"""

from __future__ import annotations

import hashlib
import os
import re

COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OWN = os.path.join(COLLECTION, "recipes", "")
NO_CODE = ("files", "__pycache__")
NO_CODE_NAME = re.compile(r"^\.|~$|\.pyc$|^README\.md$")
seen = {}  # path → state() of each that this process has opened, listed or tested


def read(path):
    """Return the content of the file. Raises OSError."""
    with open(_noted(path), "rb") as stream:
        return stream.read()


def is_file(path):
    """Return whether the path is a file."""
    return os.path.isfile(_noted(path))


def is_folder(path):
    """Return whether the path is a folder."""
    return os.path.isdir(_noted(path))


def files_in(folder):
    """Return the names of the files in a folder, sorted; [] if the folder does not exist."""
    names = os.listdir(folder) if is_folder(folder) else []
    return sorted(name for name in names if os.path.isfile(os.path.join(folder, name)))


def state(path):
    """Return a digest of a file, the names in a folder, or None if there is neither."""
    try:
        return sorted(os.listdir(path)) if os.path.isdir(path) else digest_of(path, [""])
    except OSError:
        return None


def _noted(path):
    full = os.path.abspath(path)
    if not full.startswith(OWN):
        seen[full] = state(full)
    return path


def files_below(path):
    """Return the names of the files below a folder that affect plans, sorted; [""] for a file. README.md and files/ of
    roles do not."""
    found = [""] if os.path.isfile(path) else []
    for at, folders, files in os.walk(path):
        folders[:] = [name for name in folders if name not in NO_CODE]
        found += [os.path.relpath(os.path.join(at, name), path) for name in files if not NO_CODE_NAME.search(name)]
    return sorted(found)


def digest_of(folder, names):
    """Return a digest of files of a folder and of their names; "" is the name of a folder that is a file itself."""
    digest = hashlib.sha256()
    for name in names:
        with open(os.path.join(folder, name) if name else folder, "rb") as stream:
            digest.update(b"%s\0%s" % (os.fsencode(name), hashlib.sha256(stream.read()).digest()))
    return digest.hexdigest()
