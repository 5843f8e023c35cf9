# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder by which servers of one node find each other: a mark in it tells it from another one at its path."""

from __future__ import annotations

import contextlib
import os
import secrets

from ..engines.registry import engine_of
from ..engines.stays_registered import MARK, mark_of


def note(entry):
    """The mark of the entry's folder as it is now, None for an entry without one and for a folder without a mark."""
    folder = engine_of(entry).shared_folder(entry)
    return mark_of(folder) if folder else None


def made(entry):
    """note() of the folder, which is made where it is missing, as the folder above it belongs to somebody."""
    folder = engine_of(entry).shared_folder(entry)
    if not folder:
        return None
    with contextlib.suppress(OSError):
        above = os.stat(os.path.dirname(folder))
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)
            os.chown(folder, above.st_uid, above.st_gid, follow_symlinks=False)
        new = os.open(os.path.join(folder, MARK), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(new, "w") as stream:
            stream.write(secrets.token_hex(8))
    return note(entry)
