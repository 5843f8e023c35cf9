# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module's calls: the stand-in, a copy of a directory, a directory in place."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import known
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.manifest import MANIFEST
from ansible_collections.inference.fleet.tests.unit.node_helpers import build_checkpoint, four_steps, run_module
from ansible_collections.inference.fleet.tests.unit.operating import Operation

REPO = "openai/gpt-oss-tiny"


class Weights:
    """Runs of the operation with the same arguments."""

    module = Operation("model_weights")

    def __init__(self, capsys, destination, **arguments):
        self.capsys = capsys
        self.destination = destination
        self.arguments = dict(arguments, destination=str(destination))

    def run(self, check_mode=False, **changes):
        return run_module(self.capsys, self.module, check_mode, **{**self.arguments, **changes})

    def four_steps(self, **changes):
        return four_steps(self.capsys, self.module, **{**self.arguments, **changes})

    def manifest(self):
        return json.loads((self.destination / MANIFEST).read_text())

    def found(self):
        """{name: bytes} of the files at the destination, except the manifest."""
        paths = self.destination.iterdir() if self.destination.exists() else ()
        return {path.name: path.read_bytes() for path in paths if path.is_file() and path.name != MANIFEST}

    def refused(self, code, **changes):
        """Both modes end with this error, and nothing is changed."""
        before = self.found()
        for check_mode in (True, False):
            result = self.run(check_mode, **changes)
            assert result.get("failed") and result["code"] == code, result
            assert self.found() == before
        return result


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files whose sha256 is calculated."""
    names = []
    real = files.sha256_file

    def sha256_file(path, *arguments, **options):
        names.append(os.path.basename(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(files, "sha256_file", sha256_file)
    return names


@pytest.fixture
def stand_in(tmp_path, capsys, monkeypatch):
    folder = build_checkpoint(tmp_path / "packed", quantization_config=None)
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    sums = {name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in contents.items()}
    monkeypatch.setattr(known, "STANDIN", sums)
    with zipfile.ZipFile(tmp_path / "standin.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(contents):
            archive.write(folder / name, name)
    return Weights(
        capsys,
        tmp_path / "models" / "standin",
        source="standin",
        repo="inference-fleet/gpt-oss-tiny-standin",
        revision="1",
        format="bf16",
        archive=str(tmp_path / "standin.zip"),
        root=str(tmp_path / "root"),
    )


@pytest.fixture
def shared(tmp_path):
    """A checkpoint on a share, with files that are not part of it."""
    folder = build_checkpoint(tmp_path / "share")
    (folder / ".cache").mkdir()
    (folder / "original").mkdir()
    (folder / "original" / "model.bin").write_text("the same weights once more")
    (folder / ".gitattributes").write_text("hidden")
    return folder


@pytest.fixture
def copied(tmp_path, capsys, shared):
    return Weights(
        capsys, tmp_path / "models" / "copy", source="path", repo=REPO, path=str(shared), copy=True, format="mxfp4",
        root=str(tmp_path / "root"),
    )  # fmt: skip


@pytest.fixture
def in_place(tmp_path, capsys, shared):
    return Weights(capsys, shared, source="path", repo=REPO, path=str(shared), root=str(tmp_path / "root"))
