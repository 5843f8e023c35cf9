# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated hub: the real clients can download from it, and each fault is what it says."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.tests.hubs import hub as hubs
from ansible_collections.inference.fleet.tests.hubs.repositories import Repository, gpt_oss
from ansible_collections.inference.fleet.tests.unit.engines.small_node import alive, wait_until

CLONE = Path(__file__).resolve().parents[2]
REPO = "openai/gpt-oss-120b"


@pytest.fixture
def hub():
    with hubs.Hub([gpt_oss()]) as running:
        yield running


def wanted(hub):
    files = hub.repositories[REPO].files
    return {path: content.sha256 for path, content in files.items() if not path.startswith(("original/", "metal/"))}


def get(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read()


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


def test_the_listing_of_a_repository():
    with hubs.Hub([Repository("some/thing", {"sub/a.txt": b"hello"})]) as hub:
        assert get("%s/some/thing/resolve/main/sub/a.txt" % hub.endpoint) == b"hello"
        tree = json.loads(get("%s/api/models/some/thing/tree/main?recursive=true" % hub.endpoint))
        assert [(one["type"], one["path"]) for one in tree] == [("directory", "sub"), ("file", "sub/a.txt")]
        assert tree[1]["oid"] == "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0"  # git hash-object


def test_by_hand():
    """As a process with a fault and counts over HTTP, which ends with its parent."""
    code = (
        "import subprocess, sys\n"
        "hub = subprocess.Popen([sys.executable, '-m', 'tests.hubs', *sys.argv[1:]], stdout=subprocess.PIPE)\n"
        "print(hub.stdout.readline().decode().strip(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    fault = {"action": "status", "status": 500, "count": 1}
    with subprocess.Popen(
        [sys.executable, "-c", code, "--seconds", "600", "--fault", json.dumps(fault)], cwd=CLONE,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        started = json.loads(parent.stdout.readline())
        readme = "%s/%s/resolve/main/README.md" % (started["endpoint"], REPO)
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(readme)
        assert (refused.value.code, get(readme)) == (500, b"# A made-up repository\n")
        counts = json.loads(get(started["endpoint"] + "/_hub/counts"))
        assert counts == {REPO: {"README.md": {"requests": 2, "sent": 23}}}
    wait_until(lambda: not alive(started["pid"]))  # a zombie, where process 1 does not wait for what it inherits
