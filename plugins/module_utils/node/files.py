# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that are never half-written: write beside, then rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import tempfile

from ansible_collections.inference.fleet.plugins.module_utils.node.os_errors import about


def write_atomic(path, data, mode=0o644, owner=None):
    """Put `data` (bytes or str) at `path` with `mode`; readers see the old file or the new one, never a part.

    owner: (uid, gid) or None. The folder must exist. Raises OSError, whose filename is `path`.
    """
    data = as_bytes(data)
    folder = os.path.dirname(path)
    with about(path):
        handle, temporary = tempfile.mkstemp(prefix=".%s." % os.path.basename(path), dir=folder)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, mode)
            if owner is not None:
                os.chown(temporary, owner[0], owner[1])
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def as_bytes(data):
    """str as UTF-8, what is no text in it as it was; bytes as they are."""
    return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data


def read_bytes(path):
    """What is in `path`, or None where there is no such file."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_text(path):
    """The text of `path`, or None where there is no such file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_json(path):
    """The JSON value in `path`; None where the file is absent or no JSON (a file of ours is replaced whole)."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def readable_json(path):
    """The same, and None also where the file cannot be read, as another user's."""
    try:
        return read_json(path)
    except OSError:
        return None


def write_json(path, value):
    """Put the JSON value at `path`, mode 0644, as write_atomic() does."""
    write_atomic(path, json.dumps(value))


@contextlib.contextmanager
def folder_lock(path):
    """One process at a time looks at what is in a folder and decides; file systems without locks go without."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.ENOSYS):
                raise
        yield
    finally:
        os.close(handle)


def write_hashed(path, blocks):
    """Write the blocks (bytes) to `path`, mode 0644, down to the disk; returns {size, sha256: hex}. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with about(path), open(path, "wb") as stream:
        for block in blocks:
            stream.write(block)
            digest.update(block)
            size += len(block)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(path, 0o644)
    return {"size": size, "sha256": digest.hexdigest()}


def sha256_file(path, block=1 << 20, read=None):
    """sha256 (hex) of the file's bytes; read(count): called after each block. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while True:
            chunk = stream.read(block)
            if not chunk:
                return digest.hexdigest()
            digest.update(chunk)
            if read is not None:
                read(len(chunk))
