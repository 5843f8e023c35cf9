# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated hub: the real clients can download from it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.tests.hubs import hub as hubs
from ansible_collections.inference.fleet.tests.hubs.repositories import gpt_oss

REPO = "openai/gpt-oss-120b"


@pytest.fixture
def hub():
    with hubs.Hub([gpt_oss()]) as running:
        yield running


def wanted(hub):
    files = hub.repositories[REPO].files
    return {path: content.sha256 for path, content in files.items() if not path.startswith(("original/", "metal/"))}


@pytest.mark.parametrize(
    "command",
    [
        ["hf", "download", REPO, "--exclude", "original/*", "--exclude", "metal/*", "--local-dir"],
        ["modelscope", "download", REPO, "--exclude", "original/*", "metal/*", "--local_dir"],
    ],
    ids=["huggingface", "modelscope"],
)
def test_the_real_client_downloads(hub, tmp_path, command):
    out = tmp_path / "out"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("HF_", "MODELSCOPE_"))},
        "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "MODELSCOPE_ENDPOINT": hub.endpoint,
        "MODELSCOPE_CACHE": str(tmp_path / "ms"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*",
    }  # fmt: skip
    argv = [str(Path(sys.executable).with_name(command[0])), *command[1:], str(out)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len(wanted(hub)) == 26
    assert wanted(hub) == {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in out.rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }
    files = hub.repositories[REPO].files
    assert hub.counts() == {REPO: {path: {"requests": 1, "sent": files[path].size} for path in wanted(hub)}}
    on_cdn = {entry["path"] for entry in hub.requests if entry["on_cdn"]}
    assert on_cdn == {path for path in wanted(hub) if path.endswith(".safetensors")}
