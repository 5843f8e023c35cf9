# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights that need no hub: copied from a directory, served in place, extracted from the archive."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import known, run, sources
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as manifests
from ansible_collections.inference.fleet.plugins.plugin_utils.operations.weights import ARCHIVE
from ansible_collections.inference.fleet.tests.unit.node_helpers import rot
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.weights import test_draft_heads as heads
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_local.conftest import REPO

SHARD = "model-00001-of-00002.safetensors"
NAMES = [
    "config.json",
    "model-00000-of-00002.safetensors",
    SHARD,
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
]


@pytest.fixture
def warnings(monkeypatch):
    found = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: found.append(text))
    return found


@pytest.fixture
def unwritable(monkeypatch):
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))


class TestCopy:
    def test_copied_compared_and_left_alone(self, copied, shared):
        size = sum((shared / name).stat().st_size for name in NAMES)
        check, applied = copied.four_steps()
        assert check["to_fetch_bytes"] == applied["to_fetch_bytes"] == size
        assert (
            "config.json %d bytes sha256 not known yet" % (shared / "config.json").stat().st_size
            in (check["diff"]["after"])
        )
        assert copied.found() == {name: (shared / name).read_bytes() for name in NAMES}
        for name, record in copied.manifest()["files"].items():
            assert record["sha256"] == hashlib.sha256((shared / name).read_bytes()).hexdigest()
        assert copied.run()["to_fetch_bytes"] == 0
        assert manifests.MANIFEST not in os.listdir(shared) and os.listdir(copied.destination.parent) == ["copy"]

    def test_the_source_may_be_unmounted(self, copied, shared):
        copied.run()
        shutil.rmtree(shared)
        assert not copied.run(verify="full")["changed"]
        rot(copied.destination / SHARD)
        assert copied.refused("weights.rotted-and-unrepaired", verify="full")["rotted"] == [SHARD]

    def test_only_the_damaged_file_is_copied_again(self, copied):
        copied.run()
        rot(copied.destination / SHARD)
        check, applied = copied.four_steps(verify="full")
        assert check["repaired"] == applied["repaired"] == applied["fetched"] == [SHARD]

    def test_damage_in_the_source_does_not_spread(self, copied, shared):
        copied.run()
        rot(shared / SHARD)
        rot(copied.destination / SHARD)
        before = copied.found()
        assert copied.run(verify="full")["code"] == "weights.rotted-and-unrepaired"
        assert copied.found() == before

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
            (lambda shared: (shared / SHARD).unlink(), "checkpoint.incomplete"),
            (lambda shared: (shared / "tokenizer.json").unlink(), "checkpoint.incomplete"),
            (lambda shared: (shared / "config.json").write_text('{"model_type": "llama"}'), "checkpoint.does-not-fit"),
            (shutil.rmtree, "weights.source-invalid"),
        ],
    )
    def test_a_source_that_cannot_be_served(self, copied, shared, change, code):
        change(shared)
        copied.refused(code)
        assert not copied.destination.exists()

    def test_a_source_that_changes_while_it_is_copied(self, copied, monkeypatch):
        real = sources.statuses

        def too_early(folder):
            found = real(folder)
            found[SHARD]["size"] = 5
            return found

        monkeypatch.setattr(sources, "statuses", too_early)
        assert copied.run()["code"] == "weights.wrong-data"
        assert not copied.destination.exists()

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_too_little_space(self, copied, shared, monkeypatch, check_mode):
        size = sum((shared / name).stat().st_size for name in NAMES)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=size - 1))
        failed = copied.run(check_mode)
        assert failed["code"] == "weights.disk-full"
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
        copied.destination.mkdir(parents=True)
        (copied.destination / "lost+found").mkdir()
        mounts, real = tmp_path / "mounts", os.rename
        mounts.write_text("1 2 0:1 /x %s rw - ext4 /dev/x rw\n" % copied.destination)

        def rename(old, new):
            if str(new) == str(copied.destination):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), old, None, new)
            real(old, new)

        monkeypatch.setattr(files, "MOUNTS", str(mounts))
        monkeypatch.setattr(os, "rename", rename)
        copied.four_steps()
        assert sorted(os.listdir(copied.destination)) == [manifests.MANIFEST, *NAMES[:1], "lost+found", *NAMES[1:]]

    def test_gigabytes_are_copied_and_compared_by_a_job(self, copied, in_place, monkeypatch):
        monkeypatch.setattr(run, "AT_ONCE", 1)
        first = copied.run(wait_s=0)
        assert (first["changed"], first["finished"]) == (False, False)
        assert copied.run(wait_s=300)["changed"]
        assert not copied.run()["changed"]
        assert in_place.run(wait_s=300)["verified"] == "structure"
        rot(copied.destination / SHARD)
        assert copied.run(verify="full", wait_s=300)["repaired"] == [SHARD]


class TestRefused:
    def test_files_of_unknown_origin(self, copied, stand_in):
        for weights in (copied, stand_in):
            weights.destination.mkdir(parents=True)
            (weights.destination / "config.json").write_text("{}")
            weights.refused("weights.destination-occupied")

    def test_a_file(self, stand_in):
        stand_in.destination.parent.mkdir()
        stand_in.destination.write_text("")
        assert stand_in.run()["code"] == "weights.destination-occupied"

    @pytest.mark.parametrize(
        "arguments",
        [
            {"path": None},
            {"path": "/a", "destination": "/b"},
            {"path": "/a", "destination": "/a", "copy": True},
            {"source": "standin", "destination": "models"},
        ],
    )
    def test_arguments_that_contradict_each_other(self, in_place, arguments):
        assert in_place.run(**arguments)["code"] == "weights.argument-invalid"


class TestStandin:
    def test_extracted_and_left_alone(self, stand_in, tmp_path):
        check, applied = stand_in.four_steps()
        assert check["to_fetch_bytes"] == sum(size for size, _sha256 in known.STANDIN.values())
        assert (applied["verified"], applied["format"]) == ("full", "bf16")
        rot(stand_in.destination / SHARD)
        assert stand_in.run(verify="full")["repaired"] == [SHARD]
        (stand_in.destination / manifests.MANIFEST).unlink()
        assert stand_in.run()["message"].startswith("adopted ")

    def test_the_archive_is_requested_if_it_is_needed(self, stand_in):
        assert stand_in.run(check_mode=True, archive=None)["changed"]
        assert stand_in.run(archive=None)["archive_needed"]
        assert not stand_in.destination.exists()
        assert stand_in.run()["changed"]
        assert not stand_in.run(archive=None)["changed"]

    def test_a_damaged_archive(self, stand_in):
        with open(stand_in.arguments["archive"], "r+b") as stream:
            stream.truncate(100)
        assert stand_in.run()["code"] == "weights.source-invalid"
        assert not stand_in.destination.exists()

    def test_the_archive_of_the_collection(self, stand_in, monkeypatch):
        monkeypatch.undo()
        assert stand_in.run(archive=ARCHIVE)["verified"] == "full"
        assert stand_in.run()["shards"] == ["model-00000-of-00001.safetensors", "model-00001-of-00001.safetensors"]


class TestPublished:
    """Directories of a checkpoint whose files are known."""

    COMMIT = "b" * 40

    @pytest.fixture(autouse=True)
    def known_now(self, monkeypatch, shared):
        contents = {name: (shared / name).read_bytes() for name in NAMES}
        sums = {name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in contents.items()}
        monkeypatch.setattr(known, "KNOWN", (known.Known("huggingface", REPO, self.COMMIT, sums),))

    @pytest.mark.parametrize("revision", [None, COMMIT])
    def test_served_in_place_or_copied(self, in_place, copied, revision):
        for weights in (copied, in_place):
            applied = weights.run(revision=revision)
            assert (applied["changed"], applied["verified"]) == (True, "full" if revision else applied["verified"])
            assert "nothing is known" not in applied["message"]

    @pytest.mark.parametrize("revision", [None, COMMIT])
    def test_a_byte_that_was_wrong_from_the_start(self, in_place, copied, shared, revision):
        rot(shared / SHARD)
        failed = in_place.run(revision=revision)
        assert (failed["code"], failed["rotted"]) == ("weights.checksum-differs", [SHARD])
        assert manifests.MANIFEST not in os.listdir(shared)
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

    @pytest.mark.usefixtures("unwritable")
    def test_without_a_manifest_full_compares_all_the_same(self, in_place, shared):
        assert in_place.run()["verified"] == "structure"
        assert in_place.run(verify="full")["verified"] == "full"
        rot(shared / SHARD)
        assert in_place.run(verify="full")["rotted"] == [SHARD]


class TestInPlace:
    def test_recorded_compared_and_left_alone(self, in_place, shared):
        before = in_place.found()
        _check, applied = in_place.four_steps()
        assert (applied["verified"], applied["format"]) == ("structure", "mxfp4")
        assert sorted(in_place.manifest()["files"]) == NAMES
        assert in_place.found() == before

    def test_a_quick_rerun_reads_no_weights(self, in_place, shared, hashed):
        in_place.run()
        hashed.clear()
        assert in_place.run()["verified"] == "quick"
        assert hashed == []
        os.utime(shared / SHARD, ns=(1, 1))
        assert not in_place.run()["changed"] and not in_place.run()["changed"]
        assert hashed == [SHARD]

    def test_damage_is_named_and_nothing_is_changed(self, in_place, shared):
        in_place.run()
        rot(shared / SHARD)
        assert in_place.refused("weights.rotted", verify="full")["rotted"] == [SHARD]
        (shared / SHARD).unlink()
        assert in_place.refused("checkpoint.incomplete")["missing"] == [SHARD]

    def test_another_model(self, in_place):
        in_place.run()
        in_place.refused("weights.destination-occupied", repo="openai/other")

    def test_a_copy_may_be_served_in_place_later(self, copied):
        copied.run()
        assert not copied.run(path=str(copied.destination), copy=False)["changed"]

    def test_another_revision_is_recorded(self, in_place):
        in_place.run()
        in_place.four_steps(revision="b5c939de")

    @pytest.mark.usefixtures("unwritable")
    def test_a_directory_that_cannot_be_written_to(self, in_place, shared, warnings, hashed):
        result = in_place.run()
        assert (result["changed"], result["verified"], hashed) == (False, "structure", [])
        assert len(warnings) == 1 and manifests.MANIFEST not in os.listdir(shared)


class TestDraft:
    """A draft that is on the node is compared as the model is, whatever the model's source."""

    @pytest.fixture(params=["in_place", "copied", "stand_in"])
    def weights(self, request):
        return request.getfixturevalue(request.param)

    @pytest.fixture
    def draft(self, tmp_path, weights):
        config = {"hidden_size": 16, "vocab_size": 100, "draft_vocab_size": None}
        weights.arguments["draft"] = heads.write(tmp_path / "draft", shards=3, **config)
        return tmp_path / "draft"

    def test_recorded_compared_and_never_changed(self, weights, draft):
        before = {path.name: path.read_bytes() for path in draft.iterdir()}
        _check, applied = weights.four_steps()
        assert applied["draft"] == {
            "path": str(draft), "repo": None, "revision": None, "commit": None, "changed": True, "verified": "structure"
        }  # fmt: skip
        shard = next(name for name in sorted(before) if name.endswith(".safetensors"))
        rot(draft / shard)
        assert not weights.run()["changed"]
        assert weights.run(verify="full")["rotted"] == [shard]

    def test_it_does_not_fit(self, copied, tmp_path):
        draft = heads.write(tmp_path / "draft", hidden_size=32, vocab_size=100)
        copied.refused("checkpoint.does-not-fit", draft=draft)

    def test_a_head_that_the_engine_does_not_run(self, weights, tmp_path):
        sizes = {"hidden_size": 16, "vocab_size": 100, "draft_vocab_size": None}
        draft = heads.write(tmp_path / "draft", {**heads.names(), "d2t": [96]}, **sizes)
        assert weights.run(draft=draft, draft_eagle3=True)["faults"]

    def test_incomplete(self, in_place, tmp_path):
        draft = tmp_path / "draft"
        assert in_place.refused("checkpoint.incomplete", draft=str(draft))["missing"] == ["config.json"]
        draft.mkdir()
        (draft / "config.json").write_text("{}")
        in_place.refused("checkpoint.incomplete", draft=str(draft))
        (draft / "pytorch_model.bin").write_bytes(b"")
        in_place.refused("checkpoint.damaged", draft=str(draft))
        (draft / "pytorch_model.bin").write_bytes(b"x")
        assert in_place.run(draft=str(draft))["draft"]["changed"]

    def test_downloaded_elsewhere_by_this_collection(self, in_place, tmp_path):
        """It keeps its name, and its manifest counts."""
        draft = Path(heads.write(tmp_path / "draft", hidden_size=16, vocab_size=100))
        contents = {path.name: path.read_bytes() for path in draft.iterdir()}
        records = {
            name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in contents.items()
        }
        identity = {"source": "huggingface", "repo": "a/head", "revision": "main", "commit": "c" * 40, "at": "c" * 40}
        manifests.write_manifest(str(draft), records, **identity)
        assert in_place.run(draft=str(draft))["draft"]["verified"] == "quick"
        rot(draft / "model.safetensors")
        assert in_place.run(draft=str(draft), verify="full")["rotted"] == ["model.safetensors"]
