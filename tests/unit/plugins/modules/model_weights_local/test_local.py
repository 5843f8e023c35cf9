# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights that need no hub: copied from a directory, served in place, extracted from the archive."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import known, run, sources
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.manifest import (
    INNER_LOCK,
    MANIFEST,
    write_manifest,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.operations.weights import ARCHIVE
from ansible_collections.inference.fleet.tests.unit.node_helpers import build_checkpoint, rot
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.weights import test_draft_heads as heads
from ansible_collections.inference.fleet.tests.unit.weights_node import Weights

REPO = "openai/gpt-oss-tiny"
SHARDS = ["model-%05d-of-00002.safetensors" % number for number in range(3)]
SHARD = SHARDS[1]
NAMES = ["config.json", *SHARDS, "model.safetensors.index.json", "tokenizer.json"]
SIZES = {"hidden_size": 16, "vocab_size": 100, "draft_vocab_size": None}  # of a draft that fits
INVALID = "weights.source-invalid"
OCCUPIED, UNREPAIRED = "weights.destination-occupied", "weights.rotted-and-unrepaired"
INCOMPLETE, UNFIT, DAMAGED = "checkpoint.incomplete", "checkpoint.does-not-fit", "checkpoint.damaged"


def bf16(shared):
    """The checkpoint is of another format than the wanted one."""
    config = json.loads((shared / "config.json").read_text())
    (shared / "config.json").write_text(json.dumps({**config, "quantization_config": None}))


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
def stand_in(tmp_path, monkeypatch):
    folder, archive = build_checkpoint(tmp_path / "packed", quantization_config=None), tmp_path / "standin.zip"
    monkeypatch.setitem(
        known.STANDINS, known.DEFAULT_STANDIN, sums_of({path.name: path.read_bytes() for path in folder.iterdir()})
    )
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


@pytest.fixture
def size(shared):
    return sum((shared / name).stat().st_size for name in NAMES)


class TestCopy:
    def test_copied_compared_and_left_alone(self, copied, shared, size):
        check, applied = copied.four_steps()
        assert check["to_fetch_bytes"] == applied["to_fetch_bytes"] == size
        contents = {name: (shared / name).read_bytes() for name in NAMES}
        assert copied.found() == contents
        sums = {name: sha256 for name, (_size, sha256) in sums_of(contents).items()}
        assert {name: record["sha256"] for name, record in copied.manifest()["files"].items()} == sums
        assert copied.run()["to_fetch_bytes"] == 0
        assert not (shared / MANIFEST).exists() and os.listdir(copied.destination.parent) == ["copy"]
        assert not copied.run(path=str(copied.destination), copy=False)["changed"]  # served in place later

    def test_only_the_damaged_file_is_copied_again(self, copied, shared):
        copied.run()
        rot(copied.destination / SHARD)
        check, applied = copied.four_steps(verify="full")
        assert check["repaired"] == applied["repaired"] == applied["fetched"] == [SHARD]
        rot(copied.destination / SHARD)
        rot(shared / SHARD)  # damage in the source does not spread
        before = copied.found()
        assert (copied.run(verify="full")["code"], copied.found()) == (UNREPAIRED, before)
        shutil.rmtree(shared)  # as if unmounted
        assert copied.refused(UNREPAIRED, verify="full")["rotted"] == [SHARD]
        rot(copied.destination / SHARD)
        assert not copied.run(verify="full")["changed"]

    def test_a_newer_source_is_copied(self, copied, shared):
        copied.run()
        (shared / "config.json").write_text((shared / "config.json").read_text() + "\n")
        (shared / "README.md").write_text("new")
        assert copied.four_steps()[1]["fetched"] == ["README.md", "config.json"]
        (shared / "README.md").unlink()
        check, _applied = copied.four_steps()
        assert "README.md" in check["diff"]["before"] and "README.md" not in check["diff"]["after"]
        assert "README.md" not in copied.found()

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            (lambda shared: (shared / SHARD).unlink(), INCOMPLETE),
            (lambda shared: (shared / "tokenizer.json").unlink(), INCOMPLETE),
            (bf16, UNFIT),
            (shutil.rmtree, INVALID),
            (lambda shared: write_manifest(str(shared), {}, repo="openai/other"), INVALID),
            (lambda shared: write_manifest(str(shared), {SHARD: {"size": 1, "sha256": "0" * 64}}, repo=REPO), INVALID),
        ],
    )
    def test_a_source_that_cannot_be_served(self, copied, shared, change, code):
        change(shared)
        copied.refused(code)
        assert not copied.destination.exists()

    def test_a_source_that_changes_while_it_is_copied(self, copied, monkeypatch):
        real = sources.statuses

        def statuses(folder):
            return {**real(folder), SHARD: {**real(folder)[SHARD], "size": 5}}

        monkeypatch.setattr(sources, "statuses", statuses)
        assert copied.run()["code"] == "weights.wrong-data"
        assert not copied.destination.exists()

    def test_too_little_space(self, copied, size, monkeypatch):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=size - 1))
        failed = copied.refused("weights.disk-full")
        assert (failed["needed_bytes"], failed["free_bytes"]) == (size, size - 1)

    def test_a_link_to_a_folder_that_does_not_exist_yet(self, copied, tmp_path, monkeypatch):
        """Its target needs the space."""
        copied.destination.parent.mkdir()
        disk = tmp_path / "disk"
        disk.mkdir()
        copied.destination.symlink_to(disk / "model")
        free = {str(disk): 1 << 40}
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free.get(path, 0)))
        assert copied.run(check_mode=True)["changed"] and copied.run()["changed"]
        assert copied.destination.is_symlink() and (disk / "model" / "config.json").exists()

    def test_a_mount_of_a_folder_of_the_same_file_system(self, copied, tmp_path, monkeypatch):
        (copied.destination / "lost+found").mkdir(parents=True)
        mounts, real = tmp_path / "mounts", os.rename
        mounts.write_text("1 2 0:1 /x %s rw - ext4 /dev/x rw\n" % copied.destination)

        def rename(old, new):
            assert (copied.destination / INNER_LOCK).exists()
            if str(new) == str(copied.destination):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), old, None, new)
            real(old, new)

        monkeypatch.setattr(files, "MOUNTS", str(mounts))
        monkeypatch.setattr(os, "rename", rename)
        copied.four_steps()
        assert sorted(os.listdir(copied.destination)) == sorted([MANIFEST, "lost+found", *NAMES])

    def test_gigabytes_are_copied_and_compared_by_a_job(self, copied, in_place, monkeypatch):
        monkeypatch.setattr(run, "AT_ONCE", 1)
        first = copied.run(wait_s=0)
        assert (first["changed"], first["finished"]) == (False, False)
        assert copied.run(wait_s=300)["changed"]
        assert not in_place.run(wait_s=0)["finished"]
        assert in_place.run(wait_s=300)["verified"] == "structure"
        rot(copied.destination / SHARD)
        assert copied.run(verify="full", wait_s=300)["repaired"] == [SHARD]


def test_arguments_that_contradict_each_other(in_place):
    for arguments in (
        {"path": None},
        {"draft": str(in_place.destination)},
        {"path": "/a", "destination": "/b"},
        {"path": "/a", "destination": "/a", "copy": True},
        {"source": "standin", "destination": "a"},
    ):
        assert in_place.run(**arguments)["code"] == "weights.argument-invalid"


class TestStandin:
    def test_extracted_and_left_alone(self, stand_in):
        assert stand_in.run(check_mode=True, archive=None)["changed"]
        assert stand_in.run(archive=None)["archive_needed"]
        assert not stand_in.destination.exists()
        check, applied = stand_in.four_steps()
        assert not stand_in.run(archive=None)["changed"]
        assert check["to_fetch_bytes"] == sum(size for size, _sha256 in known.STANDINS[known.DEFAULT_STANDIN].values())
        assert (applied["verified"], applied["format"]) == ("full", "bf16")
        rot(stand_in.destination / SHARD)
        assert stand_in.run(verify="full")["repaired"] == [SHARD]
        (stand_in.destination / MANIFEST).unlink()
        assert stand_in.run()["message"].startswith("adopted ")

    def test_a_damaged_archive_and_that_of_the_collection(self, stand_in, monkeypatch):
        os.truncate(stand_in.arguments["archive"], 100)
        assert stand_in.run()["code"] == INVALID
        assert not stand_in.destination.exists()
        monkeypatch.undo()
        assert stand_in.run(archive=ARCHIVE)["verified"] == "full"
        assert stand_in.run()["shards"] == ["model-00000-of-00001.safetensors", "model-00001-of-00001.safetensors"]


class TestPublished:
    """Directories of a checkpoint whose files are known."""

    COMMIT = "b" * 40

    @pytest.fixture(autouse=True)
    def known_now(self, monkeypatch, shared):
        sums = sums_of({name: (shared / name).read_bytes() for name in NAMES})
        monkeypatch.setattr(known, "KNOWN", (known.Known("huggingface", REPO, self.COMMIT, sums),))

    @pytest.mark.parametrize("revision", [None, COMMIT])
    def test_served_in_place_or_copied(self, in_place, copied, revision):
        for weights in (copied, in_place):
            applied = weights.run(revision=revision)
            assert applied["changed"] and (revision is None or applied["verified"] == "full")
            assert "nothing is known" not in applied["message"]

    @pytest.mark.parametrize("revision", [None, COMMIT])
    def test_a_byte_that_was_wrong_from_the_start(self, in_place, copied, shared, revision):
        rot(shared / SHARD)
        failed = in_place.run(revision=revision)
        assert (failed["code"], failed["rotted"]) == ("weights.checksum-differs", [SHARD])
        assert not (shared / MANIFEST).exists()
        assert copied.run(revision=revision)["code"] == "weights.wrong-data"
        assert not copied.destination.exists()
        assert in_place.run(revision="ours")["verified"] == "structure"

    def test_recorded_before_it_was_known(self, in_place, copied, shared, monkeypatch):
        rot(shared / SHARD)
        with monkeypatch.context() as before:
            before.setattr(known, "KNOWN", ())
            assert copied.run()["verified"] == in_place.run()["verified"] == "structure"
        assert in_place.run()["rotted"] == copied.run()["rotted"] == [SHARD]

    def test_other_files_than_weights_may_differ(self, in_place, copied, shared):
        (shared / "tokenizer.json").write_text("[]")
        assert in_place.run()["changed"] and copied.run()["changed"]
        assert in_place.run(revision=self.COMMIT)["rotted"] == ["tokenizer.json"]

    def test_without_a_manifest_full_compares_all_the_same(self, in_place, shared, warnings, hashed, monkeypatch):
        monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
        result = in_place.run()
        assert (result["changed"], result["verified"], hashed) == (False, "structure", [])
        assert len(warnings) == 1 and not (shared / MANIFEST).exists()
        assert in_place.run(verify="full")["verified"] == "full"
        rot(shared / SHARD)
        assert in_place.run(verify="full")["rotted"] == [SHARD]


class TestInPlace:
    def test_recorded_compared_and_left_alone(self, in_place):
        before = in_place.found()
        _check, applied = in_place.four_steps()
        assert (applied["verified"], applied["format"]) == ("structure", "mxfp4")
        assert sorted(in_place.manifest()["files"]) == NAMES
        assert in_place.found() == before
        in_place.four_steps(revision="b5c939de")

    def test_a_quick_rerun_reads_no_weights(self, in_place, shared, hashed):
        in_place.run()
        hashed.clear()
        assert in_place.run()["verified"] == "quick"
        assert hashed == []
        written = in_place.manifest()["files"][SHARD]["mtime_ns"]
        os.utime(shared / SHARD, ns=(1, 1))
        assert not in_place.run()["changed"] and not in_place.run()["changed"]
        assert hashed == [SHARD]
        assert in_place.manifest()["files"][SHARD]["written_ns"] == written  # no server restarts for it

    def test_damage_is_named_and_nothing_is_changed(self, in_place, shared):
        in_place.run()
        in_place.refused(OCCUPIED, repo="openai/other")
        rot(shared / SHARD)
        assert in_place.refused("weights.rotted", verify="full")["rotted"] == [SHARD]
        (shared / SHARD).unlink()
        assert in_place.refused(INCOMPLETE)["missing"] == [SHARD]


class TestDraft:
    """A draft that is on the node is compared as the model is, whatever the model's source."""

    @pytest.fixture(params=["in_place", "copied", "stand_in"])
    def weights(self, request):
        return request.getfixturevalue(request.param)

    def test_recorded_compared_and_never_changed(self, weights, tmp_path):
        draft = heads.write(tmp_path / "draft", shards=3, **SIZES)
        _check, applied = weights.four_steps(draft=draft)
        expected = {"path": draft, "repo": None, "commit": None, "changed": True, "verified": "structure"}
        assert expected.items() <= applied["draft"].items()
        shard = "model-00001-of-00003.safetensors"
        rot(Path(draft) / shard)
        assert not weights.run(draft=draft)["changed"]
        assert weights.run(draft=draft, verify="full")["rotted"] == [shard]

    def test_a_head_that_the_engine_does_not_run(self, weights, tmp_path):
        draft = heads.write(tmp_path / "draft", {**heads.names(), "d2t": [96]}, **SIZES)
        assert weights.run(draft=draft, draft_eagle3=True)["faults"]

    def test_incomplete(self, in_place, tmp_path):
        draft = tmp_path / "draft"
        assert in_place.refused(INCOMPLETE, draft=str(draft))["missing"] == ["config.json"]
        draft.mkdir()
        for name, content, code in (("config.json", b"{}", INCOMPLETE), ("pytorch_model.bin", b"", DAMAGED)):
            (draft / name).write_bytes(content)
            in_place.refused(code, draft=str(draft))
        (draft / "pytorch_model.bin").write_bytes(b"x")
        assert in_place.run(draft=str(draft))["draft"]["changed"]

    def test_downloaded_elsewhere_by_this_collection(self, in_place, tmp_path):
        """It keeps its name, and its manifest counts."""
        draft = Path(heads.write(tmp_path / "draft", hidden_size=16, vocab_size=100))
        in_place.run(draft=str(draft))
        origin = {"source": "huggingface", "repo": "a/head", "revision": "main", "commit": "c" * 40, "at": "c" * 40}
        (draft / MANIFEST).write_text(json.dumps({**json.loads((draft / MANIFEST).read_text()), **origin}))
        assert in_place.run(draft=str(draft))["draft"]["verified"] == "quick"
        rot(draft / "model.safetensors")
        assert in_place.run(draft=str(draft), verify="full")["rotted"] == ["model.safetensors"]
