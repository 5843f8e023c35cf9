# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared libraries that engines load at run time."""

from __future__ import annotations

import functools
import json
import sys

from ..errors import FleetError
from . import commands

# A child loads them: the loader keeps what it once looked up, and a library may do anything when it is loaded.
LOADER = """
import ctypes, json, sys
missing = []
for name in json.loads(sys.argv[1]):
    try:
        ctypes.CDLL(name)
    except OSError:
        missing.append(name)
sys.stdout.write(json.dumps(missing))
"""


def missing_libraries(names):
    """Those of `names` (sonames such as "libnuma.so.1") that the dynamic loader does not find, in their order.

    Raises FleetError if this Python cannot load libraries.
    """
    return list(_missing(tuple(names)))


@functools.cache  # a process that looks at several things starts one child
def _missing(names):
    if not names:
        return []
    try:
        child = commands.run([sys.executable, "-c", LOADER, json.dumps(names)])
        return json.loads(child.stdout)
    except ValueError:
        reason = (child.stderr.strip().splitlines() or ["exit status %d" % child.returncode])[-1]
    raise FleetError(
        "libraries.lookup-failed",
        "Whether the shared libraries %s are there cannot be found out: %s -c 'import ctypes' fails (%s). Install the "
        "full Python of the distribution.",
        (", ".join(names), sys.executable, reason),
    )
