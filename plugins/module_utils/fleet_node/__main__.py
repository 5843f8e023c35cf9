# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The entry point of service managers and jobs: they execute the folder of a version, or an archive of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys

# Later imports must use the version that was started, and the folder may be a link that is changed in the meantime. The
# handle keeps that version.
sys.path[0] = os.path.realpath(sys.path[0])
with contextlib.suppress(OSError):
    HANDLE = os.open(sys.path[0], os.O_RDONLY)
    fcntl.flock(HANDLE, fcntl.LOCK_SH)

if __name__ == "__main__":
    from fleet_node.cli import main

    raise SystemExit(main())
