# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checksums of files that are downloaded: taken by the thread that writes them, compared with what the hub lists."""

from __future__ import annotations

import hashlib
import os

from ...node import files

BLOCK = 1 << 20


class Digest:
    """The sha256 of a file while it is written. It is kept over the attempts at a file; what another process has
    written of it is read once."""

    def __init__(self):
        self._sha256, self._size = hashlib.sha256(), 0

    def open(self, path, mode):
        """Open the file for writing in binary `mode`, through this digest."""
        return _Stream(self, path, open(path, mode))

    def add(self, path, position, data):
        """`data` is written to the file at this position, which is its end."""
        if position != self._size:  # begun by another process, or cut since
            self._sha256, self._size = hashlib.sha256(), 0
            with open(path, "rb") as stream:
                while block := stream.read(min(BLOCK, position - self._size)):
                    self._sha256.update(block)
                    self._size += len(block)
        self._sha256.update(data)
        self._size += len(data)

    def of(self, path):
        """sha256 (hex) of the file, which is complete now."""
        return self._sha256.hexdigest() if os.path.getsize(path) == self._size else files.sha256_file(path)


class _Stream:
    """A file that is written through a Digest. error: of the disk, that of the first write that failed."""

    def __init__(self, digest, path, stream):
        self._digest, self._path, self._stream = digest, path, stream
        self.error = None

    def __enter__(self):
        self._stream.__enter__()
        return self

    def __exit__(self, *error):
        return self._stream.__exit__(*error)

    def write(self, data):
        """As a file does."""
        try:
            self._digest.add(self._path, self._stream.tell(), data)
            return self._stream.write(data)
        except OSError as error:
            self.error = error
            raise

    def __getattr__(self, name):
        return getattr(self._stream, name)


def git_oid(path):
    """git's sha1 of a file, which hubs list for small ones. Not a matter of security: sha256 is what is recorded."""
    digest = hashlib.sha1(b"blob %d\0" % os.path.getsize(path))
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def difference(path, record, sha256):
    """What is wrong with a file of this sha256, by what the hub lists of it; None where nothing is."""
    size = os.path.getsize(path)
    if size != record["size"]:
        return "%d bytes long, listed are %d" % (size, record["size"])
    if record["sha256"] is not None and sha256 != record["sha256"]:
        return "of sha256 %s, listed is %s" % (sha256, record["sha256"])
    if record["oid"] is not None:
        found = git_oid(path)
        if found != record["oid"]:
            return "of git sha1 %s, listed is %s" % (found, record["oid"])
    return None
