# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A checkpoint in a directory of the node: served where it is, or copied."""

from __future__ import annotations

import os

from ...errors import FleetError
from ...host.directories import make_directory
from ...host.files import write_hashed
from .. import manifest as manifests

BLOCK = 4 << 20


def wanted_files(request):
    """The files of a copied checkpoint, None once the directory it came from is gone (unmounted, say).

    Where the directory has a manifest, of an earlier copy or of a hub, that says which files and which checksums.
    """
    if request.in_place or not os.path.isdir(request.path):
        return None
    manifest = manifests.read_manifest(request.path)
    if manifest is None:
        return {
            name: {"size": status.st_size, "sha256": None, "origin_mtime_ns": status.st_mtime_ns}
            for name, status in file_statuses(request.path).items()
        }
    if manifest.get("repo") != request.repo:
        raise manifests.other_model(request.path, manifest, request.repo, request.source)
    wrong, _touched = manifests.compare_status(request.path, manifest["files"])
    if wrong:
        raise FleetError(
            "weights.source-invalid",
            "%s is not what its manifest says: %s. Bring those files back, or remove %s if the change was meant.",
            (request.path, manifests.faults_text(wrong), os.path.join(request.path, manifests.MANIFEST)),
            details={"rotted": sorted(wrong)},
        )
    return {name: {"size": record["size"], "sha256": record["sha256"]} for name, record in manifest["files"].items()}


def file_statuses(folder):
    """{name: os.stat_result} of what belongs to a checkpoint in `folder`: its plain files, but for hidden ones.

    Folders do not belong: original/ and metal/ of the published repository hold the same weights twice more.
    """
    found = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.startswith(".") and os.path.isfile(path):
            found[name] = os.stat(path)
    return found


def fetch(request, names, folder, read=None):
    """Copy the files `names`, taking their sha256 on the way."""
    from concurrent.futures import ThreadPoolExecutor  # as in manifest.hash_files

    if not os.path.isdir(request.path):
        raise FleetError(
            "weights.source-invalid",
            "There is no directory %s on this node to copy %s from; check path, or mount it.",
            (request.path, request.repo),
        )
    wanted = wanted_files(request)
    absent = sorted(set(names) - set(wanted))
    if absent:
        raise FleetError(
            "weights.source-invalid",
            "%s no longer holds %s, which %s needs. Copy it there again.",
            (request.path, ", ".join(absent), request.repo),
        )
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        copied = pool.map(lambda name: _copy(request.path, folder, name, read), names)
        made = {name: {**wanted[name], **result} for name, result in zip(names, copied)}
    changed = [name for name in names if made[name]["size"] != wanted[name]["size"]]
    if changed:
        raise FleetError(
            "weights.source-invalid",
            "%s changed while it was copied: %s. Try again.",
            (request.path, ", ".join(changed)),
        )
    return made


def _opened(source, name):
    """The open descriptor of a file. Raises FleetError where a link leads out of the folder: its target is not part of
    the weights, and may be a file that only root can read."""
    handle = os.open(os.path.join(source, name), os.O_RDONLY | os.O_CLOEXEC)
    leads_to = os.readlink("/proc/self/fd/%d" % handle)
    within = [os.path.realpath(source)]
    if os.path.basename(os.path.dirname(within[0])) == "snapshots":  # of the cache of huggingface_hub
        within.append(os.path.join(os.path.dirname(os.path.dirname(within[0])), "blobs"))
    if os.path.dirname(leads_to) not in within and not leads_to.startswith(within[0] + "/"):
        os.close(handle)
        raise FleetError(
            "weights.source-invalid",
            "%s is a link that leads out of %s, to %s. Nothing was copied. Replace it with the file, or set path "
            "to the directory with the files.",
            (name, source, leads_to),
        )
    return handle


def _copy(source, destination, name, read):
    """Copy one file of the folder `source`; returns {size, sha256}."""
    destination = os.path.join(destination, name)
    make_directory(os.path.dirname(destination))

    def blocks():
        with open(_opened(source, name), "rb") as stream:
            for block in iter(lambda: stream.read(BLOCK), b""):
                yield block
                if read is not None:
                    read(name, len(block))

    return write_hashed(destination, blocks())
