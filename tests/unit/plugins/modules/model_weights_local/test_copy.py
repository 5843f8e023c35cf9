# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A checkpoint of a folder, copied: whole, resumed, refused; the draft beside it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import directories as node_layout
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import pipeline as model_weights
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.sources import path as path_source
from ansible_collections.inference.fleet.tests.unit.node_helpers import (
    HIDDEN,
    VOCABULARY,
    rot,
)
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.weights import (
    test_draft_heads as heads,
)
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_local.local_weights_calls import (
    NAMES,
    REPO,
    SHARD,
    manifest_of,
    snapshot,
    snapshot_files,
)


class TestCopy:
    def test_copied_checked_and_left_alone(self, copied, shared, hashed):
        check, _applied = copied.four_steps()
        assert hashed == []
        assert check["diff"]["after"].startswith("config.json %d bytes sha256 not known yet\n" % (
            (shared / "config.json").stat().st_size
        ))  # fmt: skip
        assert sorted(path.name for path in copied.destination.iterdir()) == [weight_manifest.MANIFEST, *NAMES]
        for name in NAMES:
            content = (shared / name).read_bytes()
            assert (copied.destination / name).read_bytes() == content
            assert manifest_of(copied.destination)["files"][name]["sha256"] == hashlib.sha256(content).hexdigest()
        assert weight_manifest.MANIFEST not in os.listdir(shared)

    def test_the_source_may_go_away(self, copied, shared):
        copied.run()
        shutil.rmtree(shared)
        assert not copied.run(verify="full")["changed"]
        rot(copied.destination / SHARD)
        failed = copied.run(verify="full")
        assert failed["rotted"] == [SHARD]
        assert failed["msg"].startswith("In %s %s has sha256 " % (copied.destination, SHARD))
        assert failed["msg"].endswith(", and %s is not there to copy from again; mount it, or check path." % shared)

    def test_only_what_rotted_is_copied_again(self, copied, monkeypatch):
        copied.run()
        asked = []
        real = path_source.fetch
        monkeypatch.setattr(path_source, "fetch", lambda *given: asked.append(given[1]) or real(*given))
        rot(copied.destination / SHARD)
        copied.four_steps(verify="full")
        assert asked == [[SHARD]]

    def test_rot_in_the_source_does_not_spread(self, copied, shared):
        copied.run()
        good = (shared / SHARD).read_bytes()
        rot(shared / SHARD)
        rot(copied.destination / SHARD)
        rotten = snapshot(copied.destination)
        failed = copied.run(verify="full")
        assert failed["msg"] == (
            "%s came with sha256 %s, expected %s; its source is damaged or another version. Nothing was replaced. "
            "Check the source."
            % (SHARD, hashlib.sha256((shared / SHARD).read_bytes()).hexdigest(), hashlib.sha256(good).hexdigest())
        )
        assert snapshot(copied.destination) == rotten
        assert os.listdir(copied.destination.parent) == ["copy"]

    def test_a_newer_source_is_copied(self, copied, shared):
        copied.run()
        (shared / "config.json").write_text((shared / "config.json").read_text() + "\n")
        (shared / "README.md").write_text("new")
        copied.four_steps()
        (shared / "README.md").unlink()
        check, _applied = copied.four_steps()
        assert "README.md" in check["diff"]["before"] and "README.md" not in check["diff"]["after"]
        assert not (copied.destination / "README.md").exists()

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_a_source_that_is_not_whole(self, copied, shared, check_mode):
        (shared / SHARD).unlink()
        assert copied.run(check_mode)["msg"] == (
            "The checkpoint in %s is incomplete, missing: %s. Fetch or copy it again." % (shared, SHARD)
        )
        assert not copied.destination.parent.exists()

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_a_source_of_another_kind(self, copied, shared, check_mode):
        (shared / "config.json").write_text('{"model_type": "llama"}')
        assert copied.run(check_mode)["msg"] == (
            '%s/config.json: model_type is "llama", allowed: "gpt_oss". '
            "This collection serves gpt-oss checkpoints only. Choose another checkpoint." % shared
        )
        assert not copied.destination.parent.exists()

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_a_wrong_format(self, copied, shared, check_mode):
        assert copied.run(check_mode, format="bf16")["msg"] == (
            "The checkpoint in %s is in format mxfp4, the recipe needs bf16. Serve another checkpoint or choose a "
            "recipe that takes this one." % shared
        )
        assert not copied.destination.parent.exists()

    def test_no_source_directory(self, copied):
        assert copied.run(path="/nowhere/model")["msg"] == (
            "There is no checkpoint directory /nowhere/model on this node; check the path, or mount it."
        )

    def test_a_source_that_grows_while_it_is_copied(self, copied, shared, monkeypatch):
        real = path_source.file_statuses

        def too_early(folder):
            statuses = dict(real(folder))
            statuses[SHARD] = SimpleNamespace(st_size=5, st_mtime_ns=1)
            return statuses

        monkeypatch.setattr(path_source, "file_statuses", too_early)
        assert copied.run()["msg"] == "%s changed while it was copied: %s. Try again." % (shared, SHARD)
        assert not copied.destination.parent.exists()

    def test_what_a_killed_run_left(self, copied):
        half = copied.destination.parent / ".copy.inference-fleet-new"
        half.mkdir(parents=True)
        (half / "config.json").write_text("half")
        copied.four_steps()
        assert os.listdir(copied.destination.parent) == ["copy"]

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_too_little_space(self, copied, tmp_path, monkeypatch, check_mode):
        monkeypatch.setattr(model_weights, "JOB_FROM", 1 << 60)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
        monkeypatch.setattr(path_source, "file_statuses", lambda folder: {
            name: SimpleNamespace(st_size=65248893184 if name == SHARD else 0, st_mtime_ns=1) for name in NAMES
        })  # fmt: skip
        failed = copied.run(check_mode)
        assert failed["msg"] == (
            "Not enough space for the weights: %s needs 60.8 GiB, and the file system of %s has 0.0 MiB free. "
            "Free some, or choose another destination."
            % (copied.destination, tmp_path if check_mode else copied.destination.parent)
        )
        assert (failed["needed_bytes"], failed["free_bytes"]) == (65248893184, 1000)
        assert not copied.destination.parent.exists()

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_what_a_killed_run_left_is_room(self, copied, shared, monkeypatch, check_mode):
        half = copied.destination.parent / ".copy.inference-fleet-new"
        half.mkdir(parents=True)
        (half / SHARD).write_bytes(b"x" * 5000)
        needed = sum((shared / name).stat().st_size for name in NAMES)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed - 5000))
        assert copied.run(check_mode)["changed"]
        assert half.exists() is check_mode

    def test_how_much_is_to_come(self, copied, shared):
        size = {name: (shared / name).stat().st_size for name in NAMES}
        check, applied = copied.four_steps()
        assert check["to_fetch_bytes"] == applied["to_fetch_bytes"] == sum(size.values())
        assert copied.run()["to_fetch_bytes"] == 0
        rot(copied.destination / SHARD)
        assert copied.run(check_mode=True, verify="full")["to_fetch_bytes"] == size[SHARD]

    def test_a_link_to_a_folder_that_is_not_there_yet(self, copied, tmp_path, monkeypatch):
        """Where it leads is what has to have room."""
        copied.destination.parent.mkdir()
        disk = tmp_path / "disk"
        disk.mkdir()
        copied.destination.symlink_to(disk / "model")
        free = {str(disk): 1 << 40}
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free.get(path, 0)))
        assert copied.run(check_mode=True)["changed"] and copied.run()["changed"]
        assert copied.destination.is_symlink() and (disk / "model" / "config.json").exists()

    def test_a_mount_of_a_folder_of_the_same_file_system(self, copied, tmp_path, monkeypatch):
        """os.path.ismount does not see it, and the kernel lets nothing take its place."""
        copied.destination.mkdir(parents=True)
        mounts, real = tmp_path / "mounts", os.rename
        mounts.write_text("1 2 0:1 /x %s rw - ext4 /dev/x rw\n" % copied.destination)

        def rename(old, new):
            if str(new) == str(copied.destination):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), old, None, new)
            real(old, new)

        monkeypatch.setattr(node_layout, "MOUNTS", str(mounts))
        monkeypatch.setattr(os, "rename", rename)
        copied.four_steps()
        assert sorted(os.listdir(copied.destination)) == [weight_manifest.MANIFEST, *NAMES]


class TestRefused:
    def test_files_of_unknown_origin(self, copied, stand_in):
        for weights in (copied, stand_in):
            weights.destination.mkdir(parents=True)
            (weights.destination / "config.json").write_text("{}")
            for check_mode in (True, False):
                assert weights.run(check_mode)["msg"] == (
                    "%s holds files that this collection did not put there (config.json); they are left as they are. "
                    "Choose another destination, or remove them." % weights.destination
                )
            assert snapshot(weights.destination) == {"config.json": b"{}"}

    @pytest.mark.parametrize("garbled", [False, True])
    def test_the_promised_files_whose_manifest_is_lost(self, copied, stand_in, garbled):
        for weights in (copied, stand_in):
            weights.run()
            before = manifest_of(weights.destination)["files"].keys()
            manifest = weights.destination / weight_manifest.MANIFEST
            manifest.write_text("{") if garbled else manifest.unlink()
            weights.four_steps()
            assert manifest_of(weights.destination)["files"].keys() == before
            manifest.unlink()
            with open(weights.destination / "config.json", "a") as stream:
                stream.write(" ")
            assert "holds files that this collection did not put there" in weights.run()["msg"]

    def test_another_model(self, copied, stand_in):
        copied.run()
        before = snapshot(copied.destination)
        for check_mode in (True, False):
            assert stand_in.run(check_mode, destination=str(copied.destination))["msg"] == (
                "%s holds another model, %s (source path), and inference-fleet/gpt-oss-tiny-standin (source standin) "
                "is wanted there; it is left as it is. Choose another destination, or remove it."
                % (copied.destination, REPO)
            )
        assert snapshot(copied.destination) == before

    def test_a_file(self, stand_in):
        stand_in.destination.parent.mkdir()
        stand_in.destination.write_text("")
        assert stand_in.run()["msg"] == (
            "%s is not a directory; remove it or choose another destination." % stand_in.destination
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                {"path": None},
                "source is path, but path is not set; name the directory that holds the checkpoint.",
            ),
            (
                {"path": "/a", "destination": "/b"},
                "Without copy the weights are served from path /a, but servers load destination /b. "
                "Set copy to true, or both to the same directory.",
            ),
            (
                {"path": "/a", "destination": "/a", "copy": True},
                "copy is true, but path and destination are the same directory /a. Set another destination.",
            ),
            (
                {"source": "standin", "destination": "models"},
                "destination is 'models'. Set the absolute path of a directory.",
            ),
        ],
    )
    def test_arguments_that_contradict_each_other(self, in_place, arguments, message):
        assert in_place.run(**arguments)["msg"] == message

    def test_a_draft_that_is_not_there(self, in_place, tmp_path):
        draft = tmp_path / "draft"
        assert in_place.run(draft=str(draft))["msg"] == (
            "There is no draft model in %s: config.json is missing. Put it there, or take the draft out of the recipe."
            % draft
        )
        draft.mkdir()
        (draft / "config.json").write_text("{}")
        assert in_place.run(draft=str(draft))["msg"] == (
            "The draft model in %s is incomplete, missing: model.safetensors. Fetch or copy it again." % draft
        )


class TestDraft:
    """A draft that is on the node is checked as the model is, whatever the model's source."""

    @pytest.fixture(params=["in_place", "copied", "stand_in"])
    def weights(self, request):
        return request.getfixturevalue(request.param)

    @pytest.fixture
    def draft(self, tmp_path, weights):
        sizes = (HIDDEN, VOCABULARY) if weights.arguments["source"] == "standin" else (16, 100)
        config = {"hidden_size": sizes[0], "vocab_size": sizes[1], "draft_vocab_size": None}
        weights.arguments["draft"] = heads.write(tmp_path / "draft", shards=3, **config)
        return tmp_path / "draft"

    def test_recorded_compared_and_never_changed(self, weights, draft, hashed):
        before = snapshot(draft)
        check, applied = weights.four_steps()
        assert "would record the files of the draft model in %s" % draft in check["message"]
        assert applied["draft"] == {
            "path": str(draft), "repo": None, "revision": None, "commit": None, "changed": True, "verified": "structure"
        }  # fmt: skip
        assert (
            "recorded the files of the draft model in %s as they are; nothing is known to compare them with" % draft
        ) in applied["message"]
        assert {
            name: content for name, content in snapshot(draft).items() if name != weight_manifest.MANIFEST
        } == before
        hashed.clear()
        again = weights.run()
        assert (again["changed"], again["draft"]["verified"], hashed) == (False, "quick", [])
        rot(draft / "model-00002-of-00003.safetensors")
        assert not weights.run().get("failed")
        failed = weights.run(verify="full")
        assert failed["rotted"] == ["model-00002-of-00003.safetensors"]
        assert failed["msg"].startswith("The checkpoint in %s is not what it was when it was recorded: " % draft)

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_one_that_lacks_a_shard_is_refused_before_anything_comes(self, weights, draft, check_mode):
        before = weights.destination.exists() and snapshot_files(weights.destination)
        (draft / "model-00002-of-00003.safetensors").unlink()
        assert weights.run(check_mode, verify="full")["msg"] == (
            "The draft model in %s is incomplete, missing: model-00002-of-00003.safetensors. Fetch or copy it again."
            % draft
        )
        (draft / "model-00002-of-00003.safetensors").write_bytes((draft / "config.json").read_bytes())
        assert weights.run(check_mode)["msg"].startswith("The draft model in %s is damaged: model-00002-of" % draft)
        assert (weights.destination.exists() and snapshot_files(weights.destination)) == before

    def test_a_head_that_the_engine_does_not_run(self, weights, draft):
        config = json.loads((draft / "config.json").read_text())
        heads.write(draft, {**heads.names(), "d2t": [96]}, shards=3, **config, draft_vocab_size=None)
        before = weights.destination.exists() and snapshot_files(weights.destination)
        failed = weights.run(draft_eagle3=True)
        assert failed["msg"].startswith(
            "The draft model in %s is no EAGLE3 head that NxD Inference runs: layer " % draft
        )
        assert failed["layers"]
        assert (weights.destination.exists() and snapshot_files(weights.destination)) == before
        assert weights.run()["changed"]

    def test_in_the_form_of_pytorch(self, in_place, tmp_path):
        draft = tmp_path / "draft"
        draft.mkdir()
        (draft / "config.json").write_text("{}")
        (draft / "pytorch_model.bin").write_bytes(b"")
        assert in_place.run(draft=str(draft))["msg"] == (
            "The draft model in %s is damaged: pytorch_model.bin is empty. Fetch or copy it again." % draft
        )
        (draft / "pytorch_model.bin").write_bytes(b"x")
        assert in_place.run(draft=str(draft))["draft"]["changed"]

    def test_one_that_a_hub_brought_elsewhere(self, in_place, tmp_path):
        """It keeps its name, and its manifest is believed."""
        draft = Path(heads.write(tmp_path / "draft", hidden_size=16, vocab_size=100))
        records = {
            name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in snapshot(draft).items()
        }
        weight_manifest.write_manifest(
            str(draft), records, source="huggingface", repo="a/head", revision="main", commit="c" * 40, at="c" * 40
        )
        assert in_place.run(draft=str(draft))["draft"]["verified"] == "quick"
        rot(draft / "model.safetensors")
        assert in_place.run(draft=str(draft), verify="full")["rotted"] == ["model.safetensors"]
