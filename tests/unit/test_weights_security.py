# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts and hosts that are not trusted: swapped folders, forged manifests, links out of a source, tokens."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import known, transfer
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as manifests
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.download import Download
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.fetch.hub import Hub as Client
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.http import (
    Http,
    HttpFailure,
    proxy_for,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.lock import Busy, WeightLock
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.progress import Progress
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.wanted import Desired
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import Repository, gpt_oss_files
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.node_helpers import build_checkpoint, run_module
from ansible_collections.inference.fleet.tests.unit.operating import Operation

module = Operation("model_weights")

REPO = "made-up/gpt-oss-tiny"
SHARD = "model-00001-of-00002.safetensors"
FILES = {path: content for path, content in gpt_oss_files(200_000, shards=3).items() if "/" not in path}


@pytest.fixture
def hub():
    with Hub([Repository(REPO, FILES)]) as running:
        yield running


@pytest.fixture
def download(hub, tmp_path):
    """A run of a download in this process."""
    destination = tmp_path / "models" / "tiny"
    destination.parent.mkdir()

    def run(**changes):
        given = {"retries": 0, "timeout_s": 20, "exclude": (), **changes}
        wanted = Desired("huggingface", REPO, given.pop("revision", "main"), str(destination), hub.endpoint, **given)
        http = Http({}, timeout_s=20)
        return Download(wanted, lambda other: Client(other, None, http), Progress()).run()

    run.destination = destination
    return run


def found(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != manifests.MANIFEST}


RIGHT = {path: one if isinstance(one, bytes) else one.bytes() for path, one in FILES.items()}


@pytest.mark.parametrize("round_number", range(3))
def test_a_staging_folder_that_is_swapped_for_a_link_writes_nothing_elsewhere(download, tmp_path, round_number):
    """An account that may write next to the destination swaps the folder all the time."""
    staging = tmp_path / "models" / ".tiny.inference-fleet-new"
    elsewhere, aside = tmp_path / "elsewhere", tmp_path / "models" / "aside"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / ".partial").mkdir()
    precious = [elsewhere / name for name in ("config.json", SHARD, manifests.MANIFEST, manifests.LISTING)]
    for path in precious:
        path.write_text("precious")
    before = sorted(path.name for path in elsewhere.rglob("*"))
    ended = threading.Event()

    def swap():
        while not ended.is_set():
            with contextlib.suppress(OSError):
                os.rename(staging, aside)
                staging.symlink_to(elsewhere)
                time.sleep(0.001)
                staging.unlink()
                os.rename(aside, staging)
            time.sleep(0.001 * round_number)

    thread = threading.Thread(target=swap)
    thread.start()
    with contextlib.suppress(FleetError):
        download()
    ended.set()
    thread.join()
    assert [path.read_text() for path in precious] == ["precious"] * len(precious)
    assert sorted(path.name for path in elsewhere.rglob("*")) == before


@pytest.mark.parametrize("forge", ["owner", "mode"])
def test_a_manifest_that_others_may_have_written_is_not_believed(download, forge):
    download()
    path = download.destination / manifests.MANIFEST
    if forge == "mode":
        path.chmod(0o666)
    elif os.geteuid() != 0:
        pytest.skip("only root gives files away")
    else:
        os.chown(path, 12345, 12345)
    with pytest.raises(FleetError) as caught:
        download()
    assert caught.value.code == "weights.manifest-unreadable"


@pytest.mark.parametrize("verify", ["quick", "full"])
def test_known_checksums_win_against_a_manifest(download, hub, monkeypatch, verify):
    commit = hub.repositories[REPO].head
    files = {path: (len(content), hashlib.sha256(content).hexdigest()) for path, content in RIGHT.items()}
    monkeypatch.setattr(known, "KNOWN", (known.Known("huggingface", REPO, commit, files),))
    download(revision=commit)
    shard, path = download.destination / SHARD, download.destination / manifests.MANIFEST
    shard.write_bytes(bytes(len(RIGHT[SHARD])))
    manifest = json.loads(path.read_text())
    manifest["files"][SHARD]["sha256"] = hashlib.sha256(shard.read_bytes()).hexdigest()
    manifest["files"][SHARD]["mtime_ns"] = shard.stat().st_mtime_ns
    path.write_text(json.dumps(manifest))
    assert download(revision=commit, verify=verify)["fetched"] == [SHARD]
    assert found(download.destination) == RIGHT


def test_the_lock_of_a_destination_is_readable_by_its_account_only(tmp_path):
    with WeightLock(str(tmp_path / "tiny")):
        assert (tmp_path / ".tiny.inference-fleet-lock").stat().st_mode & 0o777 == 0o600


def test_a_link_in_a_source_is_followed_inside_it_only(tmp_path, capsys):
    source, destination = build_checkpoint(tmp_path / "share"), tmp_path / "models" / "copy"
    given = {"source": "path", "repo": "me/tiny", "path": str(source), "copy": True, "destination": str(destination)}
    secret = tmp_path / "secret"
    secret.write_text("root only")
    (source / "notes.txt").symlink_to(secret)
    failed = run_module(capsys, module, **given)
    assert failed["code"] == "weights.source-invalid" and not destination.exists()
    (source / "notes.txt").unlink()
    (source / "notes.txt").symlink_to(source / "config.json")
    assert run_module(capsys, module, **given)["changed"]
    assert not (destination / "notes.txt").is_symlink()


def test_a_cache_of_the_hubs_client_can_be_copied(tmp_path, capsys):
    """snapshots/COMMIT contains links to blobs/."""
    snapshot, blobs = tmp_path / "cache" / "snapshots" / "c0ffee", tmp_path / "cache" / "blobs"
    build_checkpoint(snapshot)
    blobs.mkdir()
    for path in list(snapshot.iterdir()):
        os.rename(path, blobs / path.name)
        path.symlink_to("../../blobs/" + path.name)
    given = {"source": "path", "repo": "me/tiny", "path": str(snapshot), "copy": True}
    assert run_module(capsys, module, destination=str(tmp_path / "copy"), **given)["changed"]


# ---- HTTP


class Server:
    """Answers each connection with what the test says."""

    def __init__(self, answer):
        self.requests = []
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _address = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                self.requests.append(connection.recv(65536).decode())
                self._answer(connection, self.requests[-1])

    def close(self):
        self._socket.close()


@pytest.fixture
def serve():
    servers = []

    def start(answer):
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def body(text, *headers):
    lines = ["HTTP/1.1 200 OK", "Content-Length: %d" % len(text), *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + text).encode()


@pytest.mark.parametrize("way", ["redirect", "next page"])
def test_a_token_is_sent_to_its_hub_only(serve, way):
    other = serve(lambda connection, _request: connection.sendall(body("[]")))
    commit = json.dumps({"sha": "a" * 40})

    def answer(connection, request):
        if "/revision/" in request:
            connection.sendall(body(commit))
        elif way == "redirect":
            line = "HTTP/1.1 302 Found\r\nLocation: %s/x\r\nContent-Length: 0\r\n\r\n" % other.url
            connection.sendall(line.encode())
        else:
            connection.sendall(body("[]", 'Link: <%s/x>; rel="next"' % other.url))

    endpoint = serve(answer)
    wanted = Desired("huggingface", REPO, "main", "/models/x", endpoint.url)
    Client(wanted, "hf_token", Http({}, timeout_s=5)).listing()
    assert all("hf_token" in request for request in endpoint.requests)
    assert len(other.requests) == 1 and "hf_token" not in other.requests[0]


def test_headers_that_drip_have_a_time_limit(serve):
    def drip(connection, _request):
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        for _number in range(100):
            connection.sendall(b"X: y\r\n")
            time.sleep(0.1)

    began = time.monotonic()
    with pytest.raises(HttpFailure, match="no response within"), Http({}, timeout_s=1).get(serve(drip).url):
        pass
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("no_proxy", "host", "proxied"),
    [
        ("", "hub.example.org", True),
        ("*", "hub.example.org", False),
        ("example.org", "hub.example.org", False),
        (".example.org", "hub.example.org", False),
        ("ample.org", "hub.example.org", True),
        ("hub.example.org:443", "hub.example.org", False),
        ("hub.example.org:80", "hub.example.org", True),
        ("10.0.0.0/8", "10.1.2.3", False),
        ("10.0.0.0/8,192.168.0.0/16", "11.1.2.3", True),
        ("10.0.0.0/8", "hub.example.org", True),
        ("fd00::/8", "[fd00::1]", False),
        ("10.1.2.3", "10.1.2.3", False),
    ],
)
def test_addresses_without_a_proxy(no_proxy, host, proxied):
    variables = {"HTTPS_PROXY": "http://upper:1", "https_proxy": "http://proxy:3128", "NO_PROXY": no_proxy}
    expected = "http://proxy:3128" if proxied else None
    assert proxy_for(urlsplit("https://%s/x" % host), variables) == expected


# ---- ranges


def test_a_file_is_downloaded_in_ranges_and_continued_where_each_of_them_was(download, hub, monkeypatch):
    monkeypatch.setattr(transfer, "RANGE", 30_000)
    size = len(RIGHT[SHARD])
    hub.fault("cut", path=SHARD, at=10_000, count=1)
    with contextlib.suppress(FleetError):
        download()

    def free():
        """The lock of a failed run goes with it, when its threads have ended."""
        gc.collect()
        with contextlib.suppress(Busy), WeightLock(str(download.destination), patience_s=0):
            return True

    wait_until(free)
    assert not download.destination.exists()
    hub.mend()
    came = hub.sent(REPO, SHARD)
    assert 0 < came < size
    download()
    assert found(download.destination) == RIGHT
    assert hub.sent(REPO, SHARD) < size + 1000  # only what was missing
    assert hub.asked(REPO, SHARD) > size // 30_000
