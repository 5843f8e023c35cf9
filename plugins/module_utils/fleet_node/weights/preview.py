# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuses a checkpoint of the wrong kind by its small files, before large ones are asked for."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from dataclasses import replace

from ..host import files
from . import checkpoints, draft_heads, selection
from . import manifest as manifests
from .fetch.hub import HubProblem, explained
from .selection import describe, naming
from .transfer import difference, part_of


class Preview:
    """The look at config.json and the index of what a Transfer is to bring."""

    def __init__(self, transfer, client_of):
        self._transfer = transfer
        self._wanted = transfer.wanted
        self._client_of = client_of

    @contextlib.contextmanager
    def files(self, listing, target, due, fetching):
        """Refuse a checkpoint of the wrong kind, before anything at the destination or in the staging folder is
        touched: where a setting is wrong, what an earlier run left is of use with the right one.

        fetching(): the context in which files are fetched. Yields {path: file} of those that had to be fetched.
        """
        with tempfile.TemporaryDirectory(prefix="inference-fleet-") as folder:
            come = {}
            for path in sorted({checkpoints.CONFIG, checkpoints.INDEX} & set(target)):
                if path not in due:
                    os.symlink(os.path.join(self._wanted.destination, path), os.path.join(folder, path))
                elif not self._copied(path, target[path], folder):
                    with fetching():
                        fetched = self._transfer.fetch(listing, path, target[path], folder)
                    come[path] = os.path.join(folder, path)
                    os.rename(fetched, come[path])
            with naming(folder, self._wanted.name):
                self._check(target, listing, folder)
            yield come

    def _copied(self, path, record, folder):
        """Whether a file that is due lies correct in the staging folder; then it is copied to this one. The copy is
        checked: a preview has no lock, and another run may move the file meanwhile."""
        copy = os.path.join(folder, path)
        with contextlib.suppress(OSError):
            part = part_of(os.path.join(self._transfer.place, manifests.PARTIAL), path, record)
            if self._transfer.there({path: record}, [path]) == record["size"]:
                shutil.copyfile(part, copy, follow_symlinks=False)
                if difference(copy, record, files.sha256_file(copy)) is None:
                    return True
                os.unlink(copy)
        return False

    def _check(self, target, listing, folder):
        sizes = self._target_sizes()
        describe(self._wanted, folder, complete=False, target=sizes)
        index = self._index(self._wanted, target, listing, folder)
        if self._wanted.eagle3:
            draft_heads.check_configuration(folder, sizes)
            tensors = self._remote_tensors(listing, target, index)
            if tensors is not None:
                draft_heads.check_layers(folder, tensors)

    @staticmethod
    def _index(wanted, target, listing, folder):
        """The index in `folder`, None where the checkpoint has none. FleetError unless all its shards are wanted."""
        if checkpoints.INDEX not in target:
            return None
        index = files.read_json(os.path.join(folder, checkpoints.INDEX), follow=True)
        selection.check_index(wanted, target, listing.files, index)
        return index

    def _target_sizes(self):
        """{name, hidden_size, vocab_size} of the model that this draft is for, {} where it is none or that is unknown.

        They are read on the node, or, where the model has yet to come, on the hub.
        """
        target = self._wanted.target
        if not self._wanted.draft or not target:
            return {}
        wanted = replace(self._wanted, **target, draft=False, eagle3=False, target={})
        there = wanted.destination
        manifest = manifests.read_manifest(there)
        if manifest and wanted.is_in(manifest) and os.path.isfile(os.path.join(there, checkpoints.CONFIG)):
            return {"name": there, **describe(wanted, there, complete=False)}
        client, patiently = self._client_of(wanted), self._transfer.patiently
        with tempfile.TemporaryDirectory(prefix="inference-fleet-") as folder:
            try:
                listing, target = selection.choose(wanted, patiently(client.listing))
                for path in sorted({checkpoints.CONFIG, checkpoints.INDEX} & set(target)):
                    content = patiently(lambda path=path: client.head(listing, path, target[path]["size"]))
                    files.write_atomic(os.path.join(folder, path), content)
            except HubProblem as problem:
                raise explained(problem, wanted) from problem
            with naming(folder, wanted.name):
                found = describe(wanted, folder, complete=False)
                self._index(wanted, target, listing, folder)
        return {"name": wanted.name, **found}

    def _remote_tensors(self, listing, target, index):
        """{tensor: …} by the headers of the shards on the hub, None where it does not give them."""
        names = sorted(set(index["weight_map"].values())) if index else [checkpoints.SINGLE]
        found = {}
        try:
            if not set(names) <= set(target):
                return None
            reader = self._transfer.client
            for name in names:
                start = reader.head(listing, name, 8)
                text = reader.head(listing, name, 8 + min(int.from_bytes(start, "little"), checkpoints.LONGEST_HEADER))
                found.update(checkpoints.parse_header(io.BytesIO(text).read, target[name]["size"])[0])
        except (HubProblem, ValueError):
            return None
        return found
