# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hostile disks and names: planted links, kills between any two steps, checkpoints that others brought.

Without a worker's process: the simulated hub is asked by the standard library alone, so that tables stay quick.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from dataclasses import replace
from unittest import mock

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import (
    download,
    known,
    selection,
    sha256sums,
    transfer,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import lock as weight_lock
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import staging as weight_staging
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.fetch.hub import Hub as Client
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.fetch.hub import HubProblem, wait_of
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.http import Http
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.lock import WeightLock
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.manifest import MANIFEST, is_inside
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.progress import Progress
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.transfer import part_of
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.wanted import Desired
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import Repository, gpt_oss_files
from ansible_collections.inference.fleet.tests.unit.node_helpers import build_checkpoint, rot, run_module
from ansible_collections.inference.fleet.tests.unit.operating import Operation

module = Operation("model_weights")

REPO = "made-up/gpt-oss-tiny"
SHARD = "model-00001-of-00002.safetensors"
FILES = {path: content for path, content in gpt_oss_files(900, shards=3).items() if "/" not in path}


SHARD_RECORD = {"size": FILES[SHARD].size, "sha256": FILES[SHARD].sha256, "oid": None}
PART = part_of(".partial", SHARD, SHARD_RECORD)


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
        self.wanted = Desired(
            "huggingface", REPO, "main", str(self.destination), hub.endpoint, retries=0, timeout_s=20, exclude=()
        )
        self.clients = []

    def client(self, wanted):
        self.clients.append(Client(wanted, None, Http({"no_proxy": "*"}, timeout_s=20)))
        return self.clients[-1]

    def run(self, **changes):
        wanted = replace(self.wanted, **changes)
        self.ran = download.Download(wanted, self.client, Progress(), sleep=lambda _seconds: None)
        return self.ran.run()

    def found(self):
        return {
            str(path.relative_to(self.destination)): path.read_bytes()
            for path in self.destination.rglob("*")
            if path.is_file() and path.name != MANIFEST
        }

    def right(self):
        return {path: content.bytes() for path, content in self.hub.repositories[REPO].files.items()}


@pytest.fixture
def place(tmp_path, hub, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
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
STAGED = ["", ".partial", ".listing.json", ".inference-fleet-journal.json", ".inference-fleet-replaced", SHARD,
          PART, PART + transfer.RANGES, MANIFEST]  # fmt: skip


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


def test_a_staging_folder_of_another_user_or_that_others_write_to(place):
    for make in (lambda: place.staging.chmod(0o777), lambda: os.chown(place.staging, 12345, 12345)):
        place.staging.mkdir()
        (place.staging / SHARD).write_text("planted")
        if os.geteuid() == 0 or make.__code__ is None:
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
        assert caught.value.code == "weights.foreign-file-in-the-way"
        assert place.found() == there
    assert state_of(elsewhere) == before


# ---- kills and errors while files take their places


class Killed(BaseException):
    """As kill -9: nothing after it is done by this process."""


UPDATES = {
    "a file": ({"a": "1"}, {"a": "2"}),
    "config.json too": ({"a": "1", "config.json": "1"}, {"a": "2", "config.json": "2"}),
    "a folder turns into a file": ({"a/x": "1", "a/y/z": "1", "b": "1"}, {"a": "2", "b": "1"}),
    "a file turns into a folder": ({"a": "1", "b": "1"}, {"a/x": "2", "a/y": "2", "b": "2"}),
    "both": ({"a/x": "1", "b": "1"}, {"a": "2", "b/x": "2"}),
    "files go": ({"a": "1", "b/c": "1", "d": "1"}, {"a": "1"}),
    "files come": ({"a": "1"}, {"a": "1", "b/c/d": "2", "e": "2"}),
}


class Update:
    """An update by weight_staging.install in a folder of its own."""

    def __init__(self, folder, old, new):
        self.destination, self.staging = folder / "tiny", folder / ".tiny.inference-fleet-new"
        self.old, self.new = {"config.json": "0", **old}, {"config.json": "0", **new}
        self.destination.mkdir(parents=True)
        self._write(self.destination, self.old)
        weight_staging.write_manifest(str(self.destination), self._records(self.old), source="s", repo="r")
        self.due = [name for name in self.new if self.new[name] != self.old.get(name)]
        self.staging.mkdir(mode=0o700)
        self._write(self.staging, {name: self.new[name] for name in self.due})

    @staticmethod
    def _write(folder, files):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    @staticmethod
    def _records(files):
        return {
            name: {"size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
            for name, text in files.items()
        }

    def run(self):
        gone = sorted(set(self.old) - set(self.new))
        weight_staging.install(
            str(self.staging), str(self.destination), self.due, gone, self._records(self.new), source="s", repo="r"
        )

    def found(self):
        return {
            str(path.relative_to(self.destination)): path.read_text()
            for path in self.destination.rglob("*")
            if path.is_file() and path.name != MANIFEST
        }

    def recorded(self):
        return set(json.loads((self.destination / MANIFEST).read_text())["files"])


def strike(monkeypatch, at, error):
    """Let the call number `at` that changes names fail, and all after it where that is a kill."""
    count = [0]

    def wrap(real):
        def call(*arguments, **named):
            count[0] += 1
            if count[0] == at or (error is Killed and count[0] > at):
                raise error
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "unlink", "mkdir", "rmdir"):
            patch.setattr(os, name, wrap(getattr(os, name)))
        yield count


@pytest.mark.parametrize("error", [Killed, OSError(errno.EIO, "made up")], ids=["kill", "error"])
@pytest.mark.parametrize("update", UPDATES)
def test_an_update_that_ends_between_any_two_steps(tmp_path, monkeypatch, update, error):
    """After a kill the old weights or, when the next run has looked, the new; after an error the old ones; and in
    between nothing that a server would load."""
    steps, outcomes = 1, set()
    while True:
        case = Update(tmp_path / str(steps), *UPDATES[update])
        old, new = case.found(), case.new
        ended = True
        with contextlib.contextmanager(strike)(monkeypatch, steps, error):
            try:
                case.run()
            except (Killed, OSError):
                ended = False
        found = case.found()
        assert found in (old, new) or "config.json" not in found
        if ended:
            assert found == new
            break
        if error is not Killed:
            assert found == old or weight_staging.begun_update(str(case.destination))
        finished = weight_staging.finish(str(case.destination))
        found = case.found()
        assert found == new or (not finished and found == old)
        assert case.recorded() == set(found)
        assert not finished or not case.staging.exists()
        outcomes.add(finished)
        steps += 1
    assert steps > 3 and (False in outcomes)
    assert case.recorded() == set(new)


def test_a_killed_update_is_finished_by_the_next_run_without_the_hub(place, monkeypatch):
    place.run()
    repository = place.hub.repositories[REPO]
    newer = {path: one for path, one in gpt_oss_files(900, shards=3, seed=8).items() if path in FILES}
    del newer["LICENSE"]
    repository.commit({**newer, "LICENSE/a": b"now a folder"})
    real = os.rename

    def rename(source, target):
        if os.path.basename(target) == SHARD and os.path.realpath(os.path.dirname(target)) == str(place.destination):
            raise Killed
        real(source, target)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "rename", rename)
        place.run(refresh=True)
    assert not (place.destination / "config.json").exists()
    place.hub.stop()
    place.run()
    assert place.found() == place.right()
    assert place.clients and os.listdir(place.destination.parent) == ["tiny"]


def test_a_folder_of_others_where_a_file_has_to_come(place):
    """All targets are looked at first: a working checkpoint stays whole."""
    place.run()
    (place.destination / "new.txt").mkdir()
    (place.destination / "new.txt" / "mine").write_text("x")
    place.hub.repositories[REPO].commit({**FILES, "new.txt": b"x"})
    before = place.found()
    with pytest.raises(FleetError) as caught:
        place.run(refresh=True)
    assert caught.value.code == "weights.foreign-file-in-the-way" and "new.txt/mine" in caught.value.message
    assert place.found() == before
    shutil.rmtree(place.destination / "new.txt")
    place.run(refresh=True)
    assert place.found() == place.right()


# ---- disks that fail


def test_a_stale_mount_is_told_at_once(tmp_path, monkeypatch):
    def gone(path):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    monkeypatch.setattr(weight_lock, "make_directory", gone)
    with pytest.raises(FleetError) as caught, WeightLock(str(tmp_path / "models" / "tiny")):
        pass
    assert caught.value.code == "weights.directory-stale"


@pytest.mark.parametrize("trouble", ["full", "read-only", "error"])
def test_rot_that_cannot_be_repaired_is_named(place, monkeypatch, trouble):
    place.run()
    rot(place.destination / SHARD)
    if trouble == "full":
        usage = type("Usage", (), {"free": 0})
        monkeypatch.setattr(download.manifests.shutil, "disk_usage", lambda _path: usage)
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
    with pytest.raises(FleetError, match="holds files that this collection did not put there"):
        place.run(check_mode=check_mode)
    assert place.found() == before and not (place.destination / MANIFEST).exists()


def sums_of(files):
    return {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}


def test_a_list_of_checksums_adopts_without_a_hub(place):
    bring_by_hand(place)
    place.hub.stop()
    sums = sums_of(place.right())
    with pytest.raises(FleetError, match="cannot be reached"):
        place.run()
    with pytest.raises(FleetError, match="cannot be reached"):
        place.run(sums={path: sha256 for path, sha256 in sums.items() if path != SHARD})
    assert place.run(sums=sums)["fetched"] == []
    assert place.run()["message"] == "up to date"


def test_a_list_of_checksums_that_says_otherwise(place):
    sums = {**sums_of(place.right()), SHARD: "0" * 64}
    with pytest.raises(FleetError) as caught:
        place.run(sums=sums)
    assert caught.value.code == "sha256sums.differs" and SHARD in caught.value.message
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
        (SUM + " a\n", "SUMS, line 1 is no line"),
        (SUM[1:] + "  a\n", "SUMS, line 1 is no line"),
        (SUM + "  a\n" + SUM + "  /etc/passwd\n", "SUMS, line 2 is no line"),
        (SUM + "  ../a\n", "SUMS, line 1 is no line"),
        ("SHA256 (a) = " + SUM, "SUMS, line 1 is no line"),
        ("\\" + SUM + "  a\\nb\n", "SUMS, line 1 is no line"),
        (SUM + "  a\n" + "b" * 64 + "  a\n", "SUMS, line 2 has another checksum of a than a line before."),
        ("\n", "SUMS names no file. Write it by `sha256sum *` in a directory that is right."),
    ],
)
def test_lists_of_checksums(text, found):
    if isinstance(found, dict):
        assert sha256sums.parse(text, "SUMS") == found
        return
    with pytest.raises(FleetError) as caught:
        sha256sums.parse(text, "SUMS")
    assert caught.value.message.startswith(found)


# ---- names, headers, waits


@pytest.mark.parametrize(
    ("path", "inside"),
    [("..foo", True), ("...", True), ("a/..foo/b", True), ("a\\b", True), ("..", False), (".", False), ("", False),
     ("../a", False), ("a/../b", False), ("foo/../bar", False), ("/a", False), ("a//b", False), ("a/", False),
     ("./a", False), ("a\0b", False), (None, False), (3, False)],
)  # fmt: skip
def test_paths_inside(path, inside):
    assert is_inside(path) is inside


@pytest.mark.parametrize(
    ("paths", "what"),
    [
        (["a\\b"], '"a\\\\b" for {}, which has a backslash or a control character in its name'),
        (["a\nb"], '"a\\nb" for {}, which has a backslash or a control character in its name'),
        (["x" * 256], '"%s" for {}, which has a name of more than 255 bytes' % ("x" * 256)),
        (["d/" + "é" * 128], '"d/%s" for {}, which has a name of more than 255 bytes' % ("\\u00e9" * 128)),
        (["a", "a/b"], '"a" for {}, which has the name of a folder'),
        (["a/b/c", "a/b"], '"a/b" for {}, which has the name of a folder'),
        (["..foo", "A", "a", "x" * 255, "X.incomplete", "X"], None),
    ],
)
def test_names_of_a_listing(paths, what):
    wanted = Desired("huggingface", REPO, "main", "/models/x", "https://hub")
    check = contextlib.nullcontext() if what is None else pytest.raises(FleetError)
    with check as caught:
        selection.check_names(wanted, dict.fromkeys(paths))
    if what:
        assert caught.value.message == (
            "Hugging Face (https://hub) lists a file %s. Leave it out by exclude, if servers do not need it."
            % what.replace("{}", wanted.name)
        )


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
    run = download.Download(
        place.wanted,
        place.client,
        Progress(),
        sleep=lambda _s: seen.append(run.progress.snapshot()["waiting"]),
    )
    clock = [0.0]

    def call():
        if waits:
            raise HubProblem("busy", "HTTP 429", retry=True, wait=waits.pop(0))
        return "done"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer.time, "monotonic", lambda: clock.__setitem__(0, clock[0] + 25.0) or clock[0])
        run.transfer.wanted = replace(place.wanted, retries=5)
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


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("end", ["new", "new.partial", "new.old", "lock"])
def test_what_is_planted_where_a_copy_grows(copied, tmp_path, end, plant):
    elsewhere = elsewhere_of(tmp_path)
    plant(tmp_path / "models" / (".copy.inference-fleet-" + end), elsewhere)
    before = state_of(elsewhere)
    result = copied()
    assert state_of(elsewhere) == before
    assert result.get("failed", False) is (end == "lock" and plant is folder)
    assert result.get("failed") or os.listdir(tmp_path / "models") == ["copy"]


@pytest.mark.parametrize("copy", [True, False])
def test_a_directory_and_a_list_of_checksums(copied, tmp_path, copy):
    share = tmp_path / "share"
    sums = sums_of({path.name: path.read_bytes() for path in share.iterdir() if path.is_file()})
    more = {"sha256sums": str(tmp_path / "SUMS"), **({} if copy else {"copy": False, "destination": str(share)})}
    shard = next(name for name in sorted(sums) if name.endswith(".safetensors"))
    for wrong in ({**sums, shard: "0" * 64}, {name: one for name, one in sums.items() if name != shard}):
        (tmp_path / "SUMS").write_text("".join("%s  %s\n" % (one, name) for name, one in wrong.items()))
        failed = copied(**more)
        assert failed["failed"] and shard in failed["msg"] and "Traceback" not in failed["msg"]
    (tmp_path / "SUMS").write_text("".join("%s  %s\n" % (one, name) for name, one in sums.items()))
    assert copied(**more)["verified"] == "full"
    assert not copied(**more)["changed"]
    (tmp_path / "SUMS").unlink()
    assert copied(**more)["code"] == "sha256sums.invalid"
