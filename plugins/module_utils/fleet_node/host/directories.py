# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directories and mounts."""

from __future__ import annotations

import contextlib
import os
import re

MOUNTS = "/proc/self/mountinfo"
ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks in that file


def make_directory(path):
    """Create `path` and its missing parents with mode 0755. Returns the created folders. Raises OSError.

    Existing folders keep their owner and mode.
    """
    created, lacking = [], []
    missing = path
    while not os.path.isdir(missing):
        lacking.insert(0, missing)
        missing = os.path.dirname(missing)
    for folder in lacking:
        try:
            os.mkdir(folder)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
            continue  # another run created it meanwhile
        os.chmod(folder, 0o755)  # the mode of mkdir() is limited by the umask
        created.append(folder)
    return created


def existing_parent(path):
    """The nearest existing folder at or above `path`."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def mount_points():
    """{path} of the mounts on this node, including bind mounts; empty if they cannot be read."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as stream:
            fields = [line.split(" ") for line in stream]
    except OSError:
        return set()
    return {ESCAPED.sub(lambda found: chr(int(found.group(1), 8)), line[4]) for line in fields if len(line) > 4}


def size_of(path):
    """Bytes of a path on its disk. Links are not followed, and hard links count once."""
    seen, total, waiting = set(), 0, [path]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):
            status = os.lstat(one)
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
            if os.path.isdir(one) and not os.path.islink(one):
                waiting += [item.path for item in os.scandir(one)]
    return total
