# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights among accounts, hosts and disks that are not trusted: planted links, swapped folders, forged manifests, kills
between any two steps, tokens, and checkpoints that others installed."""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import json
import os
import shutil
import socket
import threading
import time
from dataclasses import replace
from unittest import mock
from urllib.parse import urlsplit

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import known, selection, transfer
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import lock as weight_lock
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import staging as weight_staging
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.http import (
    Http,
    HttpFailure,
    proxy_for,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.hub import Hub as Client
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.hub import wait_of
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.lock import Busy, WeightLock
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.manifest import (
    LISTING,
    MANIFEST,
    is_inside,
    read_manifest,
    write_manifest,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.run import Run
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.transfer import part_of
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.wanted import SourceProblem, Wanted
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import Repository, gpt_oss_files
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.node_helpers import build_checkpoint, rot, run_module
from ansible_collections.inference.fleet.tests.unit.operating import Operation

module = Operation("model_weights")

REPO = "made-up/gpt-oss-tiny"
SHARD = "model-00001-of-00002.safetensors"
FILES = {path: content for path, content in gpt_oss_files(90_000, shards=3).items() if "/" not in path}
PART = part_of("", SHARD, {"size": FILES[SHARD].size, "sha256": FILES[SHARD].sha256, "oid": None})


@pytest.fixture
def hub():
    with Hub([Repository(REPO, FILES)]) as running:
        yield running


class Place:
    """Runs in this process against the hub."""

    def __init__(self, folder, hub):
        self.hub = hub
        self.destination = folder / "models" / "tiny"
        self.destination.parent.mkdir()
        self.staging = self.destination.parent / ".tiny.inference-fleet-new"
        self.wanted = Wanted(
            "huggingface", REPO, "main", str(self.destination), endpoint=hub.endpoint, retries=0, timeout_s=20
        )

    def prepared(self, sleep=lambda _seconds: None, **changes):
        http = Http({}, timeout_s=20)
        return Run(replace(self.wanted, **changes), lambda wanted: Client(wanted, None, http), sleep=sleep)

    def run(self, **changes):
        return self.prepared(**changes).run()

    def found(self):
        return {
            str(path.relative_to(self.destination)): path.read_bytes()
            for path in self.destination.rglob("*")
            if path.is_file() and path.name != MANIFEST
        }

    def right(self):
        return {path: content.bytes() for path, content in self.hub.repositories[REPO].files.items()}


@pytest.fixture
def place(tmp_path, hub):
    return Place(tmp_path, hub)


# ---- planted links


def to_file(path, elsewhere):
    path.symlink_to(elsewhere / "precious")


def to_folder(path, elsewhere):
    path.symlink_to(elsewhere)


def dangling(path, elsewhere):
    path.symlink_to(elsewhere / "made-by-root")


def hard_link(path, elsewhere):
    path.hardlink_to(elsewhere / "precious")


def pipe(path, _elsewhere):
    os.mkfifo(path)


def loop(path, _elsewhere):
    path.symlink_to(path)


def folder(path, _elsewhere):
    path.mkdir()
    (path / "kept").write_text("x")


PLANTS = [to_file, to_folder, dangling, hard_link, pipe, loop, folder]
STAGED = ["", LISTING, PART, PART + transfer.RANGES, MANIFEST]


def elsewhere_of(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "below").mkdir(parents=True)
    for name in ("precious", "config.json", "below/precious"):
        (elsewhere / name).write_text("precious")
    return elsewhere


def state_of(folder):
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.is_file() and path.read_bytes())
        for path in [folder, *folder.rglob("*")]
    }


@pytest.mark.parametrize("plant", PLANTS[:-1])
@pytest.mark.parametrize("name", STAGED)
def test_what_is_planted_in_the_staging_folder(place, tmp_path, name, plant):
    elsewhere = elsewhere_of(tmp_path)
    planted = place.staging / name if name else place.staging
    planted.parent.mkdir(parents=True, exist_ok=True)
    plant(planted, elsewhere)
    before = state_of(elsewhere)
    result = place.run()
    assert state_of(elsewhere) == before
    assert place.found() == place.right()
    assert os.listdir(place.destination.parent) == ["tiny"]
    assert [text.partition(" was ")[0] for text in result["warnings"]] == [str(planted)]


@pytest.mark.parametrize("check_mode", [True, False])
@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_planted_in_place_of_the_lock_or_the_manifest(place, tmp_path, plant, check_mode):
    elsewhere = elsewhere_of(tmp_path)
    plant(place.destination.parent / ".tiny.inference-fleet-lock", elsewhere)
    before = state_of(elsewhere)
    with contextlib.suppress(FleetError) if plant is folder else contextlib.nullcontext():
        place.run(check_mode=check_mode)
    assert state_of(elsewhere) == before
    shutil.rmtree(place.destination.parent)
    place.destination.mkdir(parents=True)
    plant(place.destination / MANIFEST, elsewhere)
    with pytest.raises(FleetError):
        place.run(check_mode=check_mode)
    assert state_of(elsewhere) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_staging_folder_of_another_user_or_that_others_write_to(place):
    for make in (lambda: place.staging.chmod(0o777), lambda: os.chown(place.staging, 12345, 12345)):
        place.staging.mkdir()
        (place.staging / SHARD).write_text("planted")
        make()
        handle, claimed = weight_staging.claim(str(place.staging))
        os.close(handle)
        assert len(claimed) == 1 and os.listdir(place.staging) == []
        assert place.staging.stat().st_mode & 0o777 == 0o700
        place.staging.rmdir()


@pytest.mark.parametrize("plant", [to_folder, to_file, hard_link, folder])
def test_a_folder_of_the_destination_that_leads_elsewhere(place, tmp_path, plant):
    """Nothing is put, and nothing removed, through a link that somebody made in the destination."""
    place.run()
    elsewhere = elsewhere_of(tmp_path)
    plant(place.destination / "sub", elsewhere)
    before, there = state_of(elsewhere), place.found()
    place.hub.repositories[REPO].commit({**FILES, "sub/config.json": b"{}"})
    if plant is folder:
        place.run(refresh=True)
        assert (place.destination / "sub" / "config.json").read_bytes() == b"{}"
    else:
        with pytest.raises(FleetError) as caught:
            place.run(refresh=True)
        assert caught.value.code == "weights.destination-occupied"
        assert place.found() == there
    assert state_of(elsewhere) == before


@pytest.mark.parametrize("round_number", range(3))
def test_a_staging_folder_that_is_swapped_for_a_link_writes_nothing_elsewhere(place, tmp_path, round_number):
    """An account that may write next to the destination swaps the folder all the time."""
    staging = tmp_path / "models" / ".tiny.inference-fleet-new"
    elsewhere, aside = tmp_path / "elsewhere", tmp_path / "models" / "aside"
    elsewhere.mkdir(mode=0o700)
    precious = [elsewhere / name for name in ("config.json", SHARD, MANIFEST, LISTING)]
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
        place.run()
    ended.set()
    thread.join()
    assert [path.read_text() for path in precious] == ["precious"] * len(precious)
    assert sorted(path.name for path in elsewhere.rglob("*")) == before


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
    with pytest.raises(FleetError) as caught:
        place.run()
    assert caught.value.code == "weights.manifest-unreadable"


@pytest.mark.parametrize("verify", ["quick", "full"])
def test_known_checksums_win_against_a_manifest(place, hub, monkeypatch, verify):
    commit, right = hub.repositories[REPO].head, place.right()
    files = {path: (len(content), hashlib.sha256(content).hexdigest()) for path, content in right.items()}
    monkeypatch.setattr(known, "KNOWN", (known.Known("huggingface", REPO, commit, files),))
    place.run(revision=commit)
    shard, path = place.destination / SHARD, place.destination / MANIFEST
    shard.write_bytes(bytes(len(right[SHARD])))
    manifest = json.loads(path.read_text())
    manifest["files"][SHARD]["sha256"] = hashlib.sha256(shard.read_bytes()).hexdigest()
    manifest["files"][SHARD]["mtime_ns"] = shard.stat().st_mtime_ns
    path.write_text(json.dumps(manifest))
    assert place.run(revision=commit, verify=verify)["fetched"] == [SHARD]
    assert place.found() == right


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


# ---- kills and errors during an installation


class Killed(BaseException):
    """As kill -9: nothing after it is done by this process."""


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


class Update:
    """An installation from the staging folder, and the comparison that follows a kill."""

    def __init__(self, folder, old, new):
        self.destination, self.staging = folder / "tiny", folder / ".tiny.inference-fleet-new"
        self.old, self.new = {"config.json": "0", **old}, {"config.json": "0", **new}
        self.destination.mkdir(parents=True)
        for name, text in self.old.items():
            (self.destination / name).parent.mkdir(parents=True, exist_ok=True)
            (self.destination / name).write_text(text)
        write_manifest(str(self.destination), self.records(self.old), source="s", repo="r")
        self.staging.mkdir()

    def records(self, files):
        return {
            name: {"size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
            for name, text in files.items()
        }

    def run(self):
        """As a run does: files that are not as wanted are staged, unless an earlier run staged them."""
        found, parts = self.found(), {}
        for name, text in self.new.items():
            part = self.staging / name.replace("/", "+")
            if found.get(name) != text:
                if not part.exists():
                    part.write_text(text)
                parts[name] = str(part)
        recorded = read_manifest(str(self.destination))["files"]
        gone = sorted(set(recorded) - set(self.new))
        config = ("config.json", str(self.staging / "config.json"))
        weight_staging.install(
            str(self.staging), str(self.destination), parts, config, gone, self.records(self.new), source="s", repo="r"
        )

    def found(self):
        return {
            str(path.relative_to(self.destination)): path.read_text()
            for path in self.destination.rglob("*")
            if path.is_file() and path.name != MANIFEST
        }


UPDATES = {
    "a file": ({"a": "1"}, {"a": "2"}),
    "config.json too": ({"a": "1", "config.json": "1"}, {"a": "2", "config.json": "2"}),
    "a folder turns into a file": ({"a/x": "1", "a/y/z": "1", "b": "1"}, {"a": "2", "b": "1"}),
    "a file turns into a folder": ({"a": "1", "b": "1"}, {"a/x": "2", "a/y": "2", "b": "2"}),
    "files go": ({"a": "1", "b/c": "1", "d": "1"}, {"a": "1"}),
    "files come": ({"a": "1"}, {"a": "1", "b/c/d": "2", "e": "2"}),
}


@pytest.mark.parametrize("error", [Killed, OSError(errno.EIO, "made up")], ids=["kill", "error"])
@pytest.mark.parametrize("update", UPDATES)
def test_an_update_that_ends_between_any_two_steps(tmp_path, monkeypatch, update, error):
    """Nothing in between that a server would load; the next run completes the new weights."""
    steps = 1
    while True:
        case = Update(tmp_path / str(steps), *UPDATES[update])
        old, ended = case.found(), True
        with contextlib.contextmanager(strike)(monkeypatch, steps, error):
            try:
                case.run()
            except (Killed, OSError):
                ended = False
        assert case.found() in (old, case.new) or "config.json" not in case.found()
        case.run()
        assert case.found() == case.new
        assert set(read_manifest(str(case.destination))["files"]) == set(case.new)
        if ended:
            break
        steps += 1
    assert steps > 2


def test_a_folder_of_others_where_a_file_has_to_come(place):
    """All targets are looked at first: a working checkpoint stays whole."""
    place.run()
    (place.destination / "new.txt").mkdir()
    (place.destination / "new.txt" / "mine").write_text("x")
    place.hub.repositories[REPO].commit({**FILES, "new.txt": b"x"})
    before = place.found()
    with pytest.raises(FleetError) as caught:
        place.run(refresh=True)
    assert caught.value.code == "weights.destination-occupied" and "new.txt/mine" in caught.value.message
    assert place.found() == before
    shutil.rmtree(place.destination / "new.txt")
    place.run(refresh=True)
    assert place.found() == place.right()


# ---- disks that fail


@pytest.mark.parametrize("trouble", ["full", "read-only", "error"])
def test_rot_that_cannot_be_repaired_is_named(place, monkeypatch, trouble):
    place.run()
    rot(place.destination / SHARD)
    if trouble == "full":
        usage = type("Usage", (), {"free": 0})
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    elif trouble == "read-only":
        monkeypatch.setattr(os, "access", lambda *_given: False)
    else:
        monkeypatch.setattr(weight_lock.WeightLock, "_taken", mock.Mock(side_effect=OSError(30, "EROFS")))
    with pytest.raises(FleetError) as caught:
        place.run(verify="full")
    assert caught.value.code == "weights.rotted-and-unrepaired"
    assert caught.value.details["rotted"] == [SHARD]


# ---- checkpoints that others brought

LITTER = {
    ".cache/huggingface/download/config.json.metadata": "x", ".cache/huggingface/.gitignore": "*", ".msc": "x",
    ".mv": "x", "._____temp/x": "x", "notes.txt": "mine",
}  # fmt: skip


def bring_by_hand(place, without=(), **changes):
    for path, content in {**place.right(), **{name: text.encode() for name, text in LITTER.items()}, **changes}.items():
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
    assert (foreseen["changed"], foreseen["fetched"], foreseen["message"].partition(" ")[0]) == (True, fetched, "would")
    place.hub.forget()
    result = place.run()
    assert (result["changed"], result["fetched"], result["verified"]) == (True, fetched, "full")
    assert result["message"].startswith("adopted ")
    assert sorted(place.hub.counts().get(REPO, {})) == fetched
    assert place.found() == {**place.right(), **{name: text.encode() for name, text in LITTER.items()}}
    again = place.run()
    assert (again["changed"], again["message"]) == (False, "up to date")


@pytest.mark.parametrize("check_mode", [True, False])
def test_what_is_no_part_of_the_wanted_checkpoint_is_not_adopted(place, check_mode):
    shards = [path for path in FILES if path.endswith(".safetensors")]
    bring_by_hand(place, **dict.fromkeys(shards, b"another model's"))
    before = place.found()
    with pytest.raises(FleetError, match="files that this collection did not install"):
        place.run(check_mode=check_mode)
    assert place.found() == before and not (place.destination / MANIFEST).exists()


def sums_of(files):
    return {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}


def test_a_list_of_checksums_that_says_otherwise(place):
    sums = {**sums_of(place.right()), SHARD: "0" * 64}
    with pytest.raises(FleetError) as caught:
        place.run(sums=sums)
    assert caught.value.code == "weights.checksum-differs" and SHARD in caught.value.message
    assert not place.destination.exists()


def test_known_files_are_adopted_without_a_hub(place, monkeypatch):
    files = place.right()
    pinned = known.Known(
        "huggingface", REPO, place.hub.repositories[REPO].head,
        {path: (len(content), hashlib.sha256(content).hexdigest()) for path, content in files.items()},
    )  # fmt: skip
    monkeypatch.setattr(known, "KNOWN", (pinned,))
    bring_by_hand(place)
    place.hub.stop()
    result = place.run(revision=pinned.commit)
    assert (result["fetched"], result["commit"]) == ([], pinned.commit)


SUM = "a" * 64


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SUM + "  a\n", {"a": SUM}),
        ("# by hand\n\n%s *./sub/a b\r\n" % SUM.upper(), {"sub/a b": SUM}),
        (SUM[1:] + "  a\n", "line 1"),
        (SUM + "  a\n" + SUM + "  /etc/passwd\n", "line 2"),
        (SUM + "  ../a\n", "line 1"),
        ("SHA256 (a) = " + SUM, "line 1"),
        (SUM + "  a\n" + "b" * 64 + "  a\n", "line 2"),
        ("\n", "no file"),
    ],
)
def test_lists_of_checksums(text, found):
    if isinstance(found, dict):
        assert selection.parse_sums(text, "SUMS") == found
        return
    with pytest.raises(FleetError, match=found) as caught:
        selection.parse_sums(text, "SUMS")
    assert caught.value.code == "weights.sha256sums-invalid"


# ---- names, headers, waits


@pytest.mark.parametrize(
    ("path", "inside"),
    [("..foo", True), ("...", True), ("a/..foo/b", True), ("a\\b", False), ("a\nb", False), ("..", False), (".", False),
     ("", False),
     ("../a", False), ("a/../b", False), ("foo/../bar", False), ("/a", False), ("a//b", False), ("a/", False),
     ("./a", False), ("a\0b", False), (None, False), (3, False)],
)  # fmt: skip
def test_paths_inside(path, inside):
    assert is_inside(path) is inside


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "soon"}, None),
        ({"RateLimit": '"resolvers";r=0;t=50'}, 50),
        ({"RateLimit": '"api";r=12;t=50'}, None),
        ({"RateLimit": '"api";r=0;t=3, "resolvers"; r=0; t=50'}, 50),
        ({"RateLimit": '"resolvers";r=0;t=50', "Retry-After": "2"}, 2),
        ({"RateLimit": "nonsense"}, None),
    ],
)
def test_how_long_a_hub_asks_to_wait(headers, seconds):
    assert wait_of(headers) == seconds


def test_a_wait_is_shown_with_its_reason_and_has_a_bound(place):
    seen, waits = [], [50, 10_000]
    run = place.prepared(sleep=lambda _s: seen.append(run.progress.snapshot()["waiting"]), retries=5)
    clock = [0.0]

    def call():
        if waits:
            raise SourceProblem("busy", "HTTP 429", retry=True, wait=waits.pop(0))
        return "done"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer.time, "monotonic", lambda: clock.__setitem__(0, clock[0] + 25.0) or clock[0])
        assert run.transfer.patiently(call) == "done"
    assert seen and all(text.endswith(" s: HTTP 429") for text in seen)
    assert clock[0] < 2 * transfer.LONGEST_WAIT_S
    assert run.progress.snapshot()["waiting"] is None


# ---- directories of the node


@pytest.fixture
def copied(tmp_path, capsys):
    """A run that copies a checkpoint of the node; its options can be changed."""
    shared = build_checkpoint(tmp_path / "share")
    destination = tmp_path / "models" / "copy"
    destination.parent.mkdir()
    arguments = {
        "source": "path",
        "repo": "me/tiny",
        "path": str(shared),
        "copy": True,
        "destination": str(destination),
    }
    return lambda **changes: run_module(capsys, module, **{**arguments, **changes})


@pytest.mark.parametrize("copy", [True, False])
def test_a_directory_and_a_list_of_checksums(copied, tmp_path, copy):
    share = tmp_path / "share"
    sums = sums_of({path.name: path.read_bytes() for path in share.iterdir() if path.is_file()})
    more = {"sha256sums": str(tmp_path / "SUMS"), **({} if copy else {"copy": False, "destination": str(share)})}
    shard = next(name for name in sorted(sums) if name.endswith(".safetensors"))
    for wrong in ({**sums, shard: "0" * 64}, {**sums, shard + ".more": "0" * 64}):
        (tmp_path / "SUMS").write_text("".join("%s  %s\n" % (one, name) for name, one in wrong.items()))
        failed = copied(**more)
        assert failed["failed"] and shard in failed["msg"] and "Traceback" not in failed["msg"]
    (tmp_path / "SUMS").write_text("".join("%s  %s\n" % (one, name) for name, one in sums.items()))
    assert copied(**more)["verified"] == "full"
    assert not copied(**more)["changed"]
    (tmp_path / "SUMS").unlink()
    assert copied(**more)["code"] == "weights.sha256sums-invalid"


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
    wanted = Wanted("huggingface", REPO, "main", "/models/x", endpoint=endpoint.url)
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


def test_a_file_is_downloaded_in_ranges_and_continued_where_each_of_them_was(place, hub, monkeypatch):
    monkeypatch.setattr(transfer, "RANGE", 30_000)
    size = FILES[SHARD].size
    hub.fault("cut", path=SHARD, at=10_000, count=1)
    with contextlib.suppress(FleetError):
        place.run()

    def free():
        """The lock of a failed run goes with it, when its threads have ended."""
        gc.collect()
        with contextlib.suppress(Busy), WeightLock(str(place.destination), patience_s=0):
            return True

    wait_until(free)
    assert not place.destination.exists()
    hub.mend()
    came = hub.sent(REPO, SHARD)
    assert 0 < came < size
    place.run()
    assert place.found() == place.right()
    assert hub.sent(REPO, SHARD) < size + 1000  # only what was missing
    assert hub.asked(REPO, SHARD) > size // 30_000
