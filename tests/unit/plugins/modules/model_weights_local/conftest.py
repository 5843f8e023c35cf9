# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in, a copy of a directory, a directory in place."""

from __future__ import annotations

import hashlib
import os
import zipfile

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import known
from ansible_collections.inference.fleet.tests.unit.node_helpers import build_checkpoint
from ansible_collections.inference.fleet.tests.unit.weights_node import Weights

REPO = "openai/gpt-oss-tiny"


def sums_of(contents):
    """{name: (size, sha256)} of {name: bytes}."""
    return {name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in contents.items()}


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files whose sha256 is calculated."""
    names, real = [], files.sha256_file

    def sha256_file(path, *arguments, **options):
        names.append(os.path.basename(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(files, "sha256_file", sha256_file)
    return names


@pytest.fixture
def warnings(monkeypatch):
    found = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: found.append(text))
    return found


@pytest.fixture
def unwritable(monkeypatch):
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    folder, archive = build_checkpoint(tmp_path / "packed", quantization_config=None), tmp_path / "standin.zip"
    monkeypatch.setattr(known, "STANDIN", sums_of({path.name: path.read_bytes() for path in folder.iterdir()}))
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(folder.iterdir()):
            packed.write(path, path.name)
    return Weights(
        tmp_path / "models" / "standin", tmp_path / "root", source="standin", format="bf16", archive=str(archive),
        repo="inference-fleet/gpt-oss-tiny-standin", revision="1",
    )  # fmt: skip


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
def copied(tmp_path, shared):
    given = {"source": "path", "repo": REPO, "path": str(shared), "copy": True, "format": "mxfp4"}
    return Weights(tmp_path / "models" / "copy", tmp_path / "root", **given)


@pytest.fixture
def in_place(tmp_path, shared):
    return Weights(shared, tmp_path / "root", source="path", repo=REPO, path=str(shared))
