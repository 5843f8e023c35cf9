# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights among accounts, hosts and disks that are not trusted: planted links, swapped folders, forged manifests, kills
between any two steps, tokens, and checkpoints that others installed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from dataclasses import replace
from unittest import mock
from urllib.parse import urlsplit

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import (
    http,
    known,
    manifest,
    run,
    staging,
    transfer,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import hub as hub_client
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.manifest import MANIFEST
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.wanted import SourceProblem, Wanted
from ansible_collections.inference.fleet.tests.hubs import hub as hubs
from ansible_collections.inference.fleet.tests.hubs.repositories import Repository, gpt_oss_files
from ansible_collections.inference.fleet.tests.unit.node_helpers import build_checkpoint, rot
from ansible_collections.inference.fleet.tests.unit.weights_node import HubWeights, Weights

REPO = "made-up/gpt-oss-tiny"
SHARD = "model-00001-of-00002.safetensors"
FILES = {path: content for path, content in gpt_oss_files(90_000, shards=3).items() if "/" not in path}
PART = transfer.part_of("", SHARD, {"size": FILES[SHARD].size, "sha256": FILES[SHARD].sha256, "oid": None})


@pytest.fixture
def hub():
    with hubs.Hub([Repository(REPO, FILES)]) as running:
        yield running


class Place(HubWeights):
    """Runs in this process, without a job."""

    def __init__(self, folder, hub):
        super().__init__(folder, hub, repo=REPO)
        self.models.mkdir()
        self.plain = Wanted(
            "huggingface", REPO, "main", str(self.destination), endpoint=hub.endpoint, retries=0, timeout_s=20
        )

    def prepared(self, **changes):
        wanted = replace(self.plain, **changes)
        return run.Run(wanted, hub_client.Hub(wanted, None, http.Http({}, timeout_s=20)))

    def run(self, check_mode=False, **changes):
        return self.prepared(check_mode=check_mode, **changes).run()

    def fails(self, code, **changes):
        """A run that ends with this error and changes no file."""
        before = self.found() if self.destination.exists() else None
        with pytest.raises(FleetError) as caught:
            self.run(**changes)
        assert caught.value.code == code
        assert before == (self.found() if self.destination.exists() else None)
        return caught.value


@pytest.fixture
def place(tmp_path, hub):
    return Place(tmp_path, hub)


# ---- planted links


def link_to(name):
    return lambda path, elsewhere: path.symlink_to(elsewhere / name)


def hard_link(path, elsewhere):
    path.hardlink_to(elsewhere / "precious")


def pipe(path, _elsewhere):
    os.mkfifo(path)


def loop(path, _elsewhere):
    path.symlink_to(path)


def folder(path, _elsewhere):
    path.mkdir()
    (path / "kept").write_text("x")


to_file, to_folder, dangling = map(link_to, ("precious", "", "made-by-root"))
PLANTS = [to_file, to_folder, dangling, hard_link, pipe, loop, folder]
STAGED = ["", PART, MANIFEST]


@pytest.fixture
def elsewhere(tmp_path):
    """A folder that must not change."""
    folder = tmp_path / "elsewhere"
    (folder / "below").mkdir(parents=True)
    for name in ("precious", "config.json", SHARD, MANIFEST, "below/precious"):
        (folder / name).write_text("precious")

    def state():
        return {
            path: (path.lstat().st_mode, path.is_file() and path.read_bytes()) for path in [folder, *folder.rglob("*")]
        }

    before = state()
    yield folder
    assert state() == before


@pytest.mark.parametrize("plant", PLANTS[:-1])
@pytest.mark.parametrize("name", STAGED)
def test_what_is_planted_in_the_staging_folder(place, elsewhere, name, plant):
    planted = place.staging / name if name else place.staging
    planted.parent.mkdir(parents=True, exist_ok=True)
    plant(planted, elsewhere)
    result = place.run()
    assert place.found() == place.wanted()
    assert os.listdir(place.models) == ["small"]
    assert [text.partition(" was ")[0] for text in result["warnings"]] == [str(planted)]


@pytest.mark.parametrize("check_mode", [True, False])
@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_planted_in_place_of_the_lock_or_the_manifest(place, elsewhere, plant, check_mode):
    plant(place.models / ".small.inference-fleet-lock", elsewhere)
    with pytest.raises(FleetError) if plant is folder and not check_mode else contextlib.nullcontext():
        assert len(place.run(check_mode=check_mode).get("warnings", [])) == (not check_mode)
    shutil.rmtree(place.models)
    place.destination.mkdir(parents=True)
    plant(place.destination / MANIFEST, elsewhere)
    with pytest.raises(FleetError):
        place.run(check_mode=check_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_staging_folder_of_another_user_or_that_others_write_to(place):
    for make in (lambda: place.staging.chmod(0o777), lambda: os.chown(place.staging, 12345, 12345)):
        place.staging.mkdir()
        (place.staging / SHARD).write_text("planted")
        make()
        handle, claimed = staging.claim(str(place.staging))
        os.close(handle)
        assert len(claimed) == 1 and os.listdir(place.staging) == []
        assert place.staging.stat().st_mode & 0o777 == 0o700
        place.staging.rmdir()


@pytest.mark.parametrize(
    ("plant", "file"),
    [*((plant, "sub/config.json") for plant in (to_folder, to_file, hard_link, folder)), (folder, "sub")],
)
def test_a_folder_of_the_destination_that_leads_elsewhere_or_is_where_a_file_has_to_come(place, elsewhere, plant, file):
    """Nothing is put, and nothing removed, through a link that somebody made in the destination."""
    place.run()
    plant(place.destination / "sub", elsewhere)
    place.repository.commit({**FILES, file: b"{}"})
    if plant is folder and file != "sub":
        place.run(refresh=True)
        assert (place.destination / file).read_bytes() == b"{}"
    else:
        assert "sub" in place.fails("weights.destination-occupied", refresh=True).message


@pytest.mark.parametrize("round_number", range(3))
def test_a_staging_folder_that_is_swapped_for_a_link_writes_nothing_elsewhere(place, elsewhere, round_number):
    """An account that may write next to the destination swaps the folder all the time."""
    ended = threading.Event()

    def swap():
        while not ended.is_set():
            with contextlib.suppress(OSError):
                os.rename(place.staging, place.models / "aside")
                place.staging.symlink_to(elsewhere)
                time.sleep(0.001)
                place.staging.unlink()
                os.rename(place.models / "aside", place.staging)
            time.sleep(0.001 * round_number)

    thread = threading.Thread(target=swap)
    thread.start()
    with contextlib.suppress(FleetError):
        place.run()
    ended.set()
    thread.join()


@pytest.mark.parametrize("anew", [True, False])
def test_a_staging_folder_that_is_replaced_before_the_installation_installs_nothing(place, monkeypatch, anew):
    real = run.Run._described

    def replaced(self, names, parts, complete=True):
        found = real(self, names, parts, complete)
        if complete:
            os.rename(place.staging, place.models / "aside")
            if anew:
                place.staging.mkdir()
        return found

    monkeypatch.setattr(run.Run, "_described", replaced)
    place.fails("weights.staging-replaced")


@pytest.mark.parametrize("forge", ["owner", "mode"])
def test_a_manifest_that_others_may_have_written_is_not_believed(place, forge):
    place.run()
    path = place.destination / MANIFEST
    if forge == "mode":
        path.chmod(0o666)
    elif os.geteuid() != 0:
        pytest.skip("only root gives files away")
    else:
        os.chown(path, 12345, 12345)
    place.fails("weights.manifest-unreadable")


def sums_of(files):
    return {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}


@pytest.fixture
def pinned(place, monkeypatch):
    """The commit of the hub, whose files are known."""
    files, commit = place.wanted(), place.repository.head
    sums = {path: (len(files[path]), sha256) for path, sha256 in sums_of(files).items()}
    monkeypatch.setattr(known, "KNOWN", (known.Known("huggingface", REPO, commit, sums),))
    return commit


@pytest.mark.parametrize("verify", ["quick", "full"])
def test_known_checksums_win_against_a_manifest(place, pinned, verify):
    place.run(revision=pinned)
    shard, forged = place.destination / SHARD, place.manifest()
    shard.write_bytes(bytes(place.size(SHARD)))
    forged["files"][SHARD].update(
        sha256=hashlib.sha256(shard.read_bytes()).hexdigest(), mtime_ns=shard.stat().st_mtime_ns
    )
    (place.destination / MANIFEST).write_text(json.dumps(forged))
    assert place.run(revision=pinned, verify=verify)["fetched"] == [SHARD]
    assert place.found() == place.wanted()


# ---- kills and errors during an installation


class Killed(BaseException):
    """As kill -9: nothing after it is done by this process."""


@contextlib.contextmanager
def strike(monkeypatch, at, error):
    """Let the call number `at` that changes names fail, and all after it if that is a kill."""
    count = [0]

    def wrap(real):
        def call(*arguments, **named):
            count[0] += 1
            if count[0] == at or (error is Killed and count[0] > at):
                raise error
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "unlink", "rmdir"):
            patch.setattr(os, name, wrap(getattr(os, name)))
        yield


@pytest.mark.parametrize("error", [Killed, OSError(errno.EIO, "made up")], ids=["kill", "error"])
def test_an_update_that_ends_between_any_two_steps(tmp_path, monkeypatch, error):
    """Nothing in between that a server would load; the next run completes the new weights."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    share, weights, steps, ended = tmp_path / "share", Weights(tmp_path / "models" / "copy", tmp_path), 0, False
    wanted = Wanted("path", "me/tiny", None, str(weights.destination), path=str(share))
    while not ended:
        steps += 1
        shutil.rmtree(share, ignore_errors=True)
        build_checkpoint(share)
        (share / "leaves").write_text("1")
        run.Run(wanted).run()
        old = weights.found()
        (share / "config.json").write_text((share / "config.json").read_text().replace("16", "32"))
        (share / SHARD).write_bytes((share / SHARD).read_bytes()[:-1] + b"2")
        (share / "leaves").unlink()
        (share / "comes").write_text("2")
        new = {path.name: path.read_bytes() for path in share.iterdir()}
        with strike(monkeypatch, steps, error), contextlib.suppress(Killed, FleetError):
            run.Run(wanted).run()
            ended = True
        found = weights.found()
        assert found in (old, new) or "config.json" not in found
        run.Run(wanted).run()
        assert weights.found() == new
        assert set(weights.manifest()["files"]) == set(new)
    assert steps > 10


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (os, "access", lambda *_given: False),
        (staging.WeightLock, "_taken", mock.Mock(side_effect=OSError(30, "EROFS"))),
    ],
)
def test_rot_that_cannot_be_repaired_is_named(place, monkeypatch, owner, name, fault):
    place.run()
    rot(place.destination / SHARD)
    monkeypatch.setattr(owner, name, fault)
    assert place.fails("weights.rotted-and-unrepaired", verify="full").details["rotted"] == [SHARD]


# ---- checkpoints that others brought

LITTER = {
    ".cache/huggingface/download/config.json.metadata": b"x", ".cache/huggingface/.gitignore": b"*", ".msc": b"x",
    ".mv": b"x", "._____temp/x": b"x", "notes.txt": b"mine",
}  # fmt: skip


def bring_by_hand(place, without=(), **changes):
    for path, content in {**place.wanted(), **LITTER, **changes}.items():
        if path not in without:
            (place.destination / path).parent.mkdir(parents=True, exist_ok=True)
            (place.destination / path).write_bytes(content)


@pytest.mark.parametrize(
    ("without", "changes", "fetched"),
    [
        ((), {}, []),
        ((SHARD,), {}, [SHARD]),
        ((), {SHARD: b"short"}, [SHARD]),
        (("config.json", "LICENSE"), {}, ["LICENSE", "config.json"]),
        ((), {"chat_template.jinja": b"{{ messages2}}\n"}, ["chat_template.jinja"]),
    ],
)
def test_a_checkpoint_of_others_is_adopted(place, without, changes, fetched):
    bring_by_hand(place, without, **changes)
    foreseen = place.run(check_mode=True)
    assert (foreseen["changed"], foreseen["fetched"], foreseen["message"][:6]) == (True, fetched, "would ")
    place.hub.forget()
    result = place.run()
    assert (result["changed"], result["fetched"], result["verified"]) == (True, fetched, "full")
    assert result["message"].startswith("adopted ")
    assert sorted(place.hub.counts().get(REPO, {})) == fetched
    assert place.found() == {**place.wanted(), **LITTER}
    again = place.run()
    assert (again["changed"], again["message"]) == (False, "up to date")


def test_known_files_are_adopted_without_a_hub(place, pinned):
    bring_by_hand(place)
    place.hub.stop()
    result = place.run(revision=pinned)
    assert (result["fetched"], result["commit"]) == ([], pinned)


# ---- directories of the node


@pytest.fixture
def copied(tmp_path):
    source = build_checkpoint(tmp_path / "share")
    given = {"source": "path", "repo": "me/tiny", "path": str(source), "copy": True}
    return Weights(tmp_path / "models" / "copy", tmp_path / "root", **given)


def test_a_link_in_a_source_is_followed_inside_it_only(copied, tmp_path):
    secret, link = tmp_path / "secret", tmp_path / "share" / "notes.txt"
    secret.write_text("root only")
    link.symlink_to(secret)
    assert copied.run()["code"] == "weights.source-invalid" and not copied.destination.exists()
    link.unlink()
    link.symlink_to(tmp_path / "share" / "config.json")
    assert copied.run()["changed"]
    assert not (copied.destination / "notes.txt").is_symlink()


def test_a_cache_of_the_hubs_client_can_be_copied(copied, tmp_path):
    """snapshots/COMMIT contains links to blobs/."""
    snapshot, blobs = tmp_path / "cache" / "snapshots" / "c0ffee", tmp_path / "cache" / "blobs"
    build_checkpoint(snapshot)
    blobs.mkdir()
    for path in list(snapshot.iterdir()):
        os.rename(path, blobs / path.name)
        path.symlink_to("../../blobs/" + path.name)
    assert copied.run(path=str(snapshot))["changed"]


@pytest.mark.parametrize("copy", [True, False])
def test_a_directory_and_a_list_of_checksums(copied, tmp_path, copy):
    share, path = tmp_path / "share", tmp_path / "SUMS"
    sums = sums_of({path.name: path.read_bytes() for path in share.iterdir()})
    more = {"sha256sums": str(path), **({} if copy else {"copy": False, "destination": str(share)})}

    def copy_with(**changes):
        path.write_text("".join("%s  %s\n" % (one, name) for name, one in {**sums, **changes}.items()))
        return copied.run(**more)

    for wrong in (SHARD, SHARD + ".more"):
        failed = copy_with(**{wrong: "0" * 64})
        assert failed["failed"] and SHARD in failed["msg"] and "Traceback" not in failed["msg"]
    assert copy_with()["verified"] == "full"
    assert not copy_with()["changed"]
    path.unlink()
    assert copied.run(**more)["code"] == "weights.sha256sums-invalid"


# ---- names, headers, waits


@pytest.mark.parametrize(
    ("inside", "paths"),
    [
        (True, ["..foo", "...", "a/..foo/b"]),
        (False, ["a\\b", "a\nb", "a\0b", "", "..", ".", "../a", "a/../b", "foo/../bar", "/a", "a//b", "a/", "./a"]),
        (False, [None, 3]),
    ],
)
def test_paths_inside(inside, paths):
    assert [path for path in paths if manifest.is_inside(path) is not inside] == []


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "²"}, None),
        ({"RateLimit": '"resolvers";r=0;t=50'}, 50),
        ({"RateLimit": '"api";r=12;t=50'}, None),
        ({"RateLimit": '"api";r=0;t=3, "resolvers"; r=0; t=50'}, 50),
        ({"RateLimit": '"resolvers";r=0;t=50', "Retry-After": "2"}, 2),
        ({"RateLimit": "nonsense"}, None),
    ],
)
def test_how_long_a_hub_asks_to_wait(headers, seconds):
    assert hub_client.wait_of(headers) == seconds


def test_a_wait_is_shown_with_its_reason_and_has_a_bound(place):
    prepared, waits, seen = place.prepared(retries=5), [50, 10_000], []

    def call():
        if waits:
            raise SourceProblem("busy", "HTTP 429", retry=True, wait=waits.pop(0))
        return "done"

    def wait(seconds):
        seen.append((seconds, prepared.progress.snapshot()["waiting"]))

    prepared.transfer._stop = mock.Mock(wait=wait, is_set=lambda: False)
    assert prepared.transfer.patiently(call) == "done"
    assert seen == [(50, "50 s: HTTP 429"), (300, "300 s: HTTP 429")]


# ---- HTTP


def test_a_token_is_sent_to_its_hub_only(monkeypatch):
    """Neither to the host of a redirect nor to that of the next page."""
    with hubs.Hub([Repository(REPO, FILES)], page=5) as hub, hubs.Hub([Repository(REPO, FILES)], page=5) as other:
        monkeypatch.setattr(hubs._Handler, "origin", lambda _self: other.endpoint)  # in links to the next page
        wanted = Wanted("huggingface", REPO, "main", "/models/x", endpoint=hub.endpoint)
        client = hub_client.Hub(wanted, "hf_token", http.Http({}, timeout_s=20))
        listing = client.listing()
        assert set(listing.files) == set(FILES)
        assert b"".join(client.read(listing, SHARD, 0, FILES[SHARD].size)) == FILES[SHARD].bytes()
        assert {(one["on_cdn"], bool(one["token"])) for one in hub.requests} == {(False, True), (True, False)}
        assert other.requests and not any(one["token"] for one in other.requests)


class Answers:
    """An Http whose responses are these JSON values; each has another page, which is not of https."""

    def __init__(self, values):
        self._values = list(values)

    @contextlib.contextmanager
    def get(self, *_given):
        text = json.dumps(self._values.pop(0)).encode()
        yield mock.Mock(read=lambda _most: text, headers={"Link": '<http://hub/next>; rel="next"'})


COMMIT = {"sha": "a" * 40}


@pytest.mark.parametrize(
    ("source", "values", "kind"),
    [
        ("huggingface", [COMMIT, []], "foreign"),  # the checksums come from the page
        *(("huggingface", [{"sha": commit}], "foreign") for commit in (7, "main")),
        ("huggingface", [COMMIT, [{"type": "file", "path": ["a"], "size": 1}]], "foreign"),
        ("huggingface", [COMMIT, [{"type": "file", "path": "a", "lfs": "sha"}]], "foreign"),
        ("modelscope", [{"Data": {"Files": [{"Path": "a", "Size": 1, "Revision": 7}]}}], "foreign"),
        ("modelscope", [{"Data": {"Files": None}}], "revision"),
        ("modelscope", [{"Data": {"Files": [{}] * hub_client.LISTED_AT_MOST}}], "other"),  # it lists no more
    ],
)
def test_listings_that_are_none(source, values, kind):
    client = hub_client.Hub(Wanted(source, REPO, "v1", "/models/x", endpoint="https://hub"), None, Answers(values))
    with pytest.raises(SourceProblem) as raised:
        client.listing()
    assert raised.value.kind == kind


def test_addresses_and_numbers_of_a_server_that_are_none():
    for call, *given in (
        (http.origin, "http://a:80x/"),
        (http.following, "https://a/b", "//[x"),
        (http.following, "https://a/b", "http://a/"),
    ):
        with pytest.raises(http.HttpFailure):
            call(*given)
    for proxy in ("http://proxy:3x", "https://proxy"):
        with pytest.raises(http.HttpFailure), http.Http({"http_proxy": proxy}).get("http://a/"):
            pass
    headers = {"Content-Length": "²", "Content-Range": "bytes 0-1/" + "9" * 5000}
    found = http.Response(mock.Mock(chunked=False, status=206, getheader=headers.get), "http://a", 0, 0)
    assert (found.length, found.start, found.size) == (None, 0, None)


def test_a_file_that_changes_while_it_is_hashed_gets_no_record(tmp_path):
    (tmp_path / "a").write_bytes(b"1" * 100)
    with pytest.raises(FleetError) as raised:
        manifest.hash_files(str(tmp_path), ["a"], lambda _name, _count: (tmp_path / "a").write_bytes(b"2" * 100))
    assert raised.value.code == "weights.changed-meanwhile"


def test_headers_that_drip_have_a_time_limit():
    def drip(listening):
        connection, _address = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            for _number in range(100):
                connection.sendall(b"X: y\r\n")
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=drip, args=[listening], daemon=True).start()
        began, client = time.monotonic(), http.Http({}, timeout_s=1)
        with (
            pytest.raises(http.HttpFailure, match="no response within"),
            client.get("http://127.0.0.1:%d" % listening.getsockname()[1]),
        ):
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
    assert http.proxy_for(urlsplit("https://%s/x" % host), variables) == expected
