# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module's calls: the stand-in, a copy of a folder, a folder in place."""

from __future__ import annotations

import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import standin
from ansible_collections.inference.fleet.tests.unit.node_helpers import (
    build_checkpoint,
    build_encodings,
    build_packed_standin,
)
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_local.local_weights_calls import (
    REPO,
    Weights,
)


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files whose sha256 is taken."""
    names = []
    real = files.sha256_file

    def sha256_file(path, *arguments, **options):
        names.append(os.path.basename(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(files, "sha256_file", sha256_file)
    return names


@pytest.fixture
def stand_in(tmp_path, capsys):
    encodings = build_encodings(tmp_path / "o200k_base.tiktoken")
    packed = build_packed_standin(tmp_path / "packed", standin.expand, encodings)
    return Weights(
        capsys,
        tmp_path / "models" / "standin",
        source="standin",
        repo="inference-fleet/gpt-oss-tiny-standin",
        revision="1",
        format="bf16",
        packed=str(packed),
        encodings_file=str(encodings),
    )


@pytest.fixture
def shared(tmp_path):
    """A checkpoint on a share, with what does not belong to it."""
    folder = build_checkpoint(tmp_path / "share")
    (folder / ".cache").mkdir()
    (folder / "original").mkdir()
    (folder / "original" / "model.bin").write_text("the same weights once more")
    (folder / ".gitattributes").write_text("hidden")
    return folder


@pytest.fixture
def copied(tmp_path, capsys, shared):
    return Weights(
        capsys, tmp_path / "models" / "copy", source="path", repo=REPO, path=str(shared), copy=True, format="mxfp4"
    )


@pytest.fixture
def in_place(capsys, shared):
    return Weights(capsys, shared, source="path", repo=REPO, path=str(shared))
