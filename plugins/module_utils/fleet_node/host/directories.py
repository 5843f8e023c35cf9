# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directories: making them, and what is mounted."""

from __future__ import annotations

import os
import re

MOUNTS = "/proc/self/mountinfo"
ESCAPED = re.compile(r"\\([0-7]{3})")  # how that writes blanks


def make_directory(path):
    """Create `path` and what is missing above it, readable by every user whatever the umask. Returns what it created.

    Folders that are there keep their owner and mode. Raises OSError.
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
            continue  # another run made it meanwhile
        os.chmod(folder, 0o755)  # mkdir's own mode is cut by the umask of the login
        created.append(folder)
    return created


def existing_parent(path):
    """The nearest folder at or above `path` that is there."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def mount_points():
    """{path} of what is mounted on this node, bind mounts too; empty where it cannot be read."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as stream:
            fields = [line.split(" ") for line in stream]
    except OSError:
        return set()
    return {ESCAPED.sub(lambda found: chr(int(found.group(1), 8)), line[4]) for line in fields if len(line) > 4}
