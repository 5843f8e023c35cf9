# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of systemd in its memory and on disk."""

from __future__ import annotations

import os

LOADED = "/run/systemd/systemd-units-load"  # systemd 257 and newer: its time is that of the last load of all units


def is_outdated(block, path):
    """Whether systemd has an older version of the unit with these properties than the file at path.

    Since systemd 257 NeedDaemonReload is yes for all units if any has changed; then times of files decide.
    """
    if block.get("NeedDaemonReload") != "yes":
        return False
    try:
        loaded = os.stat(LOADED).st_mtime_ns
    except OSError:
        return True
    return any(os.path.exists(one) and os.stat(one).st_mtime_ns > loaded for one in (path, path + ".d"))
