# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is installed in a Python environment, by its dist-info folders; nothing is imported and no process started."""

from __future__ import annotations

import glob
import os
import re

from . import files

LOADED = (".py", ".so")  # what of a package's files a process loads; headers and data are the greater part


def normalized(name):
    """A package's name as indexes compare it (PyPA's name normalisation)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _dist_infos(path):
    """[(folder, name, version)] of what is installed at `path`."""
    found = []
    for folder in glob.glob(os.path.join(glob.escape(path), "lib", "python3*", "site-packages", "*.dist-info")):
        name, _dash, version = os.path.basename(folder)[: -len(".dist-info")].rpartition("-")
        found.append((folder, normalized(name), version))
    return found


def installed(path):
    """{normalised name: version} of what is installed at `path`, from the names of its dist-info folders."""
    return {name: version for _folder, name, version in _dist_infos(path)}


def damaged_file(path, names):
    """(normalised name, what is wrong) of the first of these packages with a missing or truncated file; else None.

    By the sizes in each package's RECORD (packaging.python.org, "Recording installed projects"), without reading the
    files. Longer ones count as somebody's patch.
    """
    for folder, name, _version in sorted(_dist_infos(path)):
        if name not in names:
            continue
        site = os.path.dirname(folder)
        lines = (files.read_text(os.path.join(folder, "RECORD")) or "").splitlines()
        for file, _comma, rest in (line.partition(",") for line in lines if not line.startswith('"')):
            size = rest.rpartition(",")[2]
            if not (file.endswith(LOADED) or file.startswith("../")):
                continue
            where = os.path.normpath(os.path.join(site, file))
            try:
                found = os.stat(where).st_size
            except OSError:
                return name, "%s is missing" % where
            if size.isdigit() and found < int(size):
                return name, "%s is %d bytes long, was %s" % (where, found, size)
    return None
