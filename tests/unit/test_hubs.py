# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated hub: the real clients can download from it, and each fault is what it says."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import checkpoints
from ansible_collections.inference.fleet.tests.hubs import hub as hubs
from ansible_collections.inference.fleet.tests.hubs.faults import Fault
from ansible_collections.inference.fleet.tests.hubs.repositories import from_folder, gpt_oss
from ansible_collections.inference.fleet.tests.unit.engines.small_node import alive, wait_until

BIN = Path(sys.executable).parent
CLONE = Path(__file__).resolve().parents[2]
REPO = "openai/gpt-oss-120b"
EXCLUDED = ("original/", "metal/")
SHARD = "model-00003-of-00014.safetensors"


@pytest.fixture
def hub():
    with hubs.Hub([gpt_oss()]) as running:
        yield running


def wanted(hub, repo=REPO):
    return {
        path: content.sha256 for path, content in hub.repositories[repo].files.items() if not path.startswith(EXCLUDED)
    }


def found(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }


def environment(hub, folder, **more):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "MODELSCOPE_"))}
    return {
        **clean, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(folder / "hf-home"), "MODELSCOPE_ENDPOINT": hub.endpoint,
        "MODELSCOPE_CACHE": str(folder / "ms-home"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*", **more,
    }  # fmt: skip


def download(client, hub, folder, **more):
    command = {
        "huggingface": [BIN / "hf", "download", REPO, "--exclude", "original/*", "--exclude", "metal/*", "--local-dir"],
        "modelscope": [BIN / "modelscope", "download", REPO, "--exclude", "original/*", "metal/*", "--local_dir"],
    }[client]
    return subprocess.run(
        [*map(str, command), str(folder / "out")], env=environment(hub, folder, **more), capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip


def get(address, **headers):
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as answer:
        return answer.status, dict(answer.headers), answer.read()


def reached(address):
    try:
        return get(address)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def address(hub, path, client="huggingface", revision=None):
    if client == "huggingface":
        return "%s/%s/resolve/%s/%s" % (hub.endpoint, REPO, revision or "main", path)
    return "%s/api/v1/models/%s/repo?Revision=%s&FilePath=%s" % (hub.endpoint, REPO, revision or "master", path)


CLIENTS = ("huggingface", "modelscope")


@pytest.mark.parametrize("client", CLIENTS)
def test_the_real_client_downloads(hub, tmp_path, client):
    done = download(client, hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert found(tmp_path / "out") == wanted(hub)
    assert len(wanted(hub)) == 26
    for path in wanted(hub):
        assert hub.sent(REPO, path) == hub.repositories[REPO].files[path].size, path
        assert hub.asked(REPO, path) == 1, path
    on_cdn = {entry["path"] for entry in hub.requests if entry["on_cdn"]}
    assert on_cdn == {path for path in wanted(hub) if path.endswith(".safetensors")}


def test_pages_of_a_listing(tmp_path):
    with hubs.Hub([gpt_oss()], page=5) as hub:
        assert download("huggingface", hub, tmp_path).returncode == 0
        assert found(tmp_path / "out") == wanted(hub)
        assert hub.asked(kinds=("list",)) == 8  # 26 + 9 + 1 files and 2 folders


@pytest.mark.parametrize("model_format", ["mxfp4", "bf16"])
def test_the_made_up_repository_is_a_whole_checkpoint(tmp_path, model_format):
    for path, content in gpt_oss(model_format=model_format).files.items():
        if not path.startswith(EXCLUDED):
            (tmp_path / path).write_bytes(content.bytes())
    seen = checkpoints.inspect(str(tmp_path))
    assert (seen["format"], len(seen["shards"]), seen["hidden_size"]) == (model_format, 15, 2880)


def test_a_folder_is_a_repository(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_bytes(b"hello")
    with hubs.Hub([from_folder("some/thing", tmp_path)]) as hub:
        assert get("%s/some/thing/resolve/main/sub/a.txt" % hub.endpoint)[2] == b"hello"
        tree = json.loads(get("%s/api/models/some/thing/tree/main?recursive=true" % hub.endpoint)[2])
        assert [(one["type"], one["path"]) for one in tree] == [("directory", "sub"), ("file", "sub/a.txt")]
        assert tree[1]["oid"] == "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0"  # git hash-object


@pytest.mark.parametrize("client", CLIENTS)
def test_ranges(hub, client):
    content = hub.repositories[REPO].files[SHARD]
    whole = content.bytes()
    status, headers, body = get(address(hub, SHARD, client), Range="bytes=1000-")
    assert (status, headers["Content-Range"], body) == (
        206,
        "bytes 1000-%d/%d" % (content.size - 1, content.size),
        whole[1000:],
    )
    assert get(address(hub, SHARD, client), Range="bytes=10-19")[2] == whole[10:20]
    assert get(address(hub, SHARD, client), Range="bytes=-5")[2] == whole[-5:]
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(address(hub, SHARD, client), Range="bytes=%d-" % content.size)
    assert (refused.value.code, refused.value.headers["Content-Range"]) == (416, "bytes */%d" % content.size)


@pytest.mark.parametrize("client", CLIENTS)
def test_commits(hub, client):
    repository = hub.repositories[REPO]
    old = repository.head
    new = repository.commit({**repository.files, "README.md": b"new\n"})
    assert new != old
    assert get(address(hub, "README.md", client))[2] == b"new\n"
    assert get(address(hub, "README.md", client, old))[2] == b"# A made-up repository\n"
    listing = json.loads(get("%s/api/v1/models/%s/repo/files?Recursive=True" % (hub.endpoint, REPO))[2])["Data"]
    revisions = {entry["Path"]: entry["Revision"] for entry in listing["Files"]}
    assert (revisions["README.md"], revisions["LICENSE"]) == (new, old)
    assert (listing["LatestCommitter"]["Id"], listing["LatestCommitter"]["ShortId"]) == ("", new[:8])


def refused(target, **headers):
    with pytest.raises(urllib.error.HTTPError) as error:
        get(target, **headers)
    return error.value.code, error.value.headers["X-Error-Code"]


def test_errors_of_hugging_face(hub):
    api = hub.endpoint + "/api/models/"
    assert refused(api + "no/such/revision/main") == (404, "RepoNotFound")
    assert refused(api + REPO + "/revision/nope") == (404, "RevisionNotFound")
    assert refused(api + REPO + "/tree/nope") == (404, "RevisionNotFound")
    assert refused(address(hub, "nope")) == (404, "EntryNotFound")
    assert refused("%s/nothing" % hub.endpoint) == (404, None)
    unsigned = urllib.request.urlopen(address(hub, SHARD), timeout=60).url.split("?")[0]
    assert refused(unsigned)[0] == 403


def test_errors_of_modelscope(hub):
    api = hub.endpoint + "/api/v1/models/"
    assert refused(api + "no/such/repo/files")[0] == 404
    unknown = json.loads(get(api + REPO + "/repo/files?Revision=nope&Recursive=True")[2])
    assert (unknown["Code"], unknown["Success"], unknown["Data"]["Files"]) == (200, True, None)
    assert refused(address(hub, "nope", "modelscope"))[0] == 404


@pytest.mark.parametrize("access", ["gated", "private"])
def test_who_may_see_what(access):
    with hubs.Hub([gpt_oss(access=access, tokens=["right"])]) as hub:
        listing = "%s/api/models/%s/tree/main" % (hub.endpoint, REPO)
        right, wrong = ({"Authorization": "Bearer " + token} for token in ("right", "wrong"))
        if access == "gated":
            assert get(listing)[0] == 200
            assert refused(address(hub, SHARD)) == (401, "GatedRepo")
            assert refused(address(hub, SHARD), **wrong) == (403, "GatedRepo")
        else:
            assert refused(listing) == (401, "RepoNotFound")
            assert refused(listing, **wrong) == (404, "RepoNotFound")
        assert get(address(hub, "README.md"), **right)[0] == 200
        assert get(address(hub, "README.md", "modelscope"), Cookie="m_session_id=right")[0] == 200
        assert all("right" not in str(entry) for entry in hub.requests)  # a test may print them


@pytest.mark.parametrize(
    "description, message",
    [
        ({"action": "explode"}, "No fault 'explode'; there are status, cut, flip, length, truncate, stall, hold, "
                                "slow, no_range, page, listing."),
        ({"action": "cut"}, "Fault cut needs at."),
        ({"action": "slow", "rate": 1, "at": 2}, "Fault slow has no at."),
        ({"action": "page", "on": "put"}, "on is 'put', allowed: info, list, head, redirect, get."),
        ({"action": "page", "hub": "x"}, "hub is 'x', allowed: huggingface, modelscope."),
    ],
)  # fmt: skip
def test_a_fault_that_does_not_exist(description, message):
    with pytest.raises(ValueError) as error:
        Fault.make(**description)
    assert str(error.value) == message


def test_by_hand(tmp_path):
    """As a process: faults and counts over HTTP, down for a while, stops with its parent or by itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.hubs", "--seconds", "600", "--parent", str(os.getpid())],
        cwd=CLONE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        started = json.loads(process.stdout.readline())
        endpoint = started["endpoint"]
        assert urlsplit(endpoint).hostname == "127.0.0.1"

        def post(what, value=None):
            request = urllib.request.Request("%s/_hub/%s" % (endpoint, what), json.dumps(value).encode())
            return urllib.request.urlopen(request, timeout=60).read()

        post("faults", [{"action": "status", "status": 500, "count": 1}])
        readme = "%s/%s/resolve/main/README.md" % (endpoint, REPO)
        assert refused(readme) == (500, None)
        assert get(readme)[0] == 200
        assert json.loads(get(endpoint + "/_hub/counts")[2]) == {REPO: {"README.md": {"requests": 2, "sent": 23}}}
        assert json.loads(get(endpoint + "/_hub/faults")[2])[0]["happened"] == 1
        post("forget")
        assert json.loads(get(endpoint + "/_hub/counts")[2]) == {}
        with pytest.raises(urllib.error.HTTPError) as error:
            post("faults", {"action": "explode"})
        assert error.value.read().startswith(b"No fault 'explode'")
        kept = http.client.HTTPConnection("127.0.0.1", urlsplit(endpoint).port, timeout=60)
        kept.request("GET", urlsplit(readme).path)
        kept.getresponse().read()
        post("down", {"seconds": 0.5})
        assert kept.sock.recv(1) == b""
        wait_until(lambda: reached(readme))
        assert get(readme)[0] == 200
        post("stop")
        assert process.wait(60) == 0
    finally:
        process.kill()


def test_a_hub_ends_with_its_parent():
    script = (
        "import subprocess, sys\n"
        "hub = subprocess.Popen([sys.executable, '-m', 'tests.hubs', '--seconds', '60'], stdout=subprocess.PIPE)\n"
        "print(hub.stdout.readline().decode().strip(), flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=CLONE, capture_output=True, text=True, timeout=300, check=True
    )
    pid = json.loads(done.stdout)["pid"]
    wait_until(lambda: not alive(pid))  # a zombie, where process 1 does not wait for what it inherits
