# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sources of files on the node: a directory, and the archive of the stand-in.

A source has listing(), which returns a Listing, and read(listing, path, start, end), which yields the bytes of a file.
The source of hubs is hub.Hub.
"""

from __future__ import annotations

import os

from ..errors import FleetError
from . import known
from . import manifest as manifests
from .wanted import Listing, SourceProblem

BLOCK = 4 << 20


def of(wanted):
    """The source of weights that are on the node."""
    return Archive(wanted) if wanted.source == "standin" else Directory(wanted)


class Directory:
    """A directory of the node, such as a mount."""

    def __init__(self, wanted):
        self._wanted = wanted

    def listing(self):
        """The files of the directory, by its manifest if it has one; None if there is no directory."""
        wanted, folder = self._wanted, self._wanted.path
        if not os.path.isdir(folder):
            return None
        manifest = manifests.read_manifest(folder)
        if manifest is None:
            return Listing(None, None, statuses(folder))
        if manifest.get("repo") != wanted.repo:
            raise invalid(folder, "it contains another model, %s" % manifest.get("repo"))
        wrong, _touched = manifests.compare_status(folder, manifest["files"])
        if wrong:
            raise invalid(folder, "it differs from its manifest: %s" % manifests.faults_text(wrong), sorted(wrong))
        found = manifest["files"].items()
        return Listing(None, None, {name: {"size": one["size"], "sha256": one["sha256"]} for name, one in found})

    def read(self, listing, path, start, end):
        """The bytes from `start` to `end` of a file. Raises FleetError for a link that leads out, SourceProblem."""
        size = listing.files[path]["size"]
        try:
            with open(self._opened(path), "rb") as stream:
                if os.fstat(stream.fileno()).st_size != size:
                    raise SourceProblem("data", "%d bytes long" % os.fstat(stream.fileno()).st_size)
                yield from _blocks(stream, start, end, "cut off while it was copied")
        except OSError as error:
            raise invalid(self._wanted.path, "%s cannot be read: %s" % (path, error.strerror)) from error

    def _opened(self, name):
        """The open descriptor of a file. Raises FleetError if a link leads out of the folder: its target is not part of
        the weights, and may be a file that only root can read."""
        folder = self._wanted.path
        handle = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        target = os.readlink("/proc/self/fd/%d" % handle)
        within = [os.path.realpath(folder)]
        if os.path.basename(os.path.dirname(within[0])) == "snapshots":  # of the cache of huggingface_hub
            within.append(os.path.join(os.path.dirname(os.path.dirname(within[0])), "blobs"))
        if os.path.dirname(target) not in within and not target.startswith(within[0] + "/"):
            os.close(handle)
            raise invalid(folder, "%s is a link that leads out of it, to %s" % (name, target))
        return handle


def _blocks(stream, start, end, problem):
    """The bytes from `start` to `end` of an open file. Raises SourceProblem with `problem` if it ends before."""
    stream.seek(start)
    while start < end:
        block = stream.read(min(BLOCK, end - start))
        if not block:
            raise SourceProblem("data", problem)
        start += len(block)
        yield block


class Archive:
    """A stand-in, a zip archive of this collection with known checksums."""

    def __init__(self, wanted):
        self._wanted = wanted

    def listing(self):
        """The known files of the archive."""
        files = known.STANDINS.get(self._wanted.repo, known.STANDINS[known.DEFAULT_STANDIN])
        return Listing(None, None, {name: {"size": size, "sha256": sha} for name, (size, sha) in files.items()})

    def read(self, listing, path, start, end):
        """The bytes from `start` to `end` of a file."""
        import zipfile  # here, because a quick check needs neither
        import zlib

        archive = self._wanted.path
        try:
            with zipfile.ZipFile(archive) as packed, packed.open(path) as stream:
                yield from _blocks(stream, start, end, "shorter than listed")
        except (OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise invalid(archive, "it cannot be read: %s" % error) from error


def invalid(place, what, rotted=()):
    """The FleetError for a directory or archive that cannot be copied."""
    return FleetError("weights.source-invalid", place, what, details={"rotted": list(rotted)} if rotted else {})


def missing(folder):
    """The FleetError for a directory that is not there."""
    return invalid(folder, "there is no such directory on this node")


def statuses(folder):
    """{name: {size, sha256: None, origin_mtime_ns}} of the plain files in `folder`, except hidden files.

    Folders are not included: original/ and metal/ of the published repository contain two more copies of the weights.
    """
    found = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.startswith(".") and os.path.isfile(path):
            status = os.stat(path)
            found[name] = {"size": status.st_size, "sha256": None, "origin_mtime_ns": status.st_mtime_ns}
    return found
