# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights brought, looked at, mended and refused, with tiny checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils import checkpoints, files, model_weights, standin
from ansible_collections.inference.fleet.plugins.module_utils.weight_sources import path as path_source
from ansible_collections.inference.fleet.plugins.modules import model_weights as module
from ansible_collections.inference.fleet.tests.unit.node_helpers import (
    build_checkpoint,
    build_encodings,
    build_packed_standin,
    four_steps,
    run_module,
)

SHARD = "model-00001-of-00002.safetensors"
REPO = "openai/gpt-oss-tiny"


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files whose sha256 is taken."""
    names = []
    real = files.sha256_file

    def sha256_file(path, *arguments):
        names.append(os.path.basename(path))
        return real(path, *arguments)

    monkeypatch.setattr(files, "sha256_file", sha256_file)
    return names


def manifest_of(folder):
    return json.loads((folder / model_weights.MANIFEST).read_text())


def promised_by(packed):
    return json.loads(Path(packed, "standin.json").read_text())["files"]


def rot(path):
    """Another byte, with size and times as they were."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def snapshot(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else None


class Weights:
    """Runs of the module with the same arguments."""

    def __init__(self, capsys, destination, **arguments):
        self.capsys = capsys
        self.destination = destination
        self.arguments = dict(arguments, destination=str(destination))

    def run(self, check_mode=False, **changes):
        return run_module(self.capsys, module, check_mode, **{**self.arguments, **changes})

    def four_steps(self, **changes):
        return four_steps(self.capsys, module, **{**self.arguments, **changes})


@pytest.fixture
def stand_in(tmp_path, capsys):
    encodings = build_encodings(tmp_path / "o200k_base.tiktoken")
    packed = build_packed_standin(tmp_path / "packed", standin.expand, encodings)
    return Weights(
        capsys,
        tmp_path / "models" / "standin",
        source="standin",
        repo="inference-fleet/gpt-oss-tiny-standin",
        revision="1",
        format="bf16",
        packed=str(packed),
        encodings_file=str(encodings),
    )


@pytest.fixture
def shared(tmp_path):
    """A checkpoint on a share, with what does not belong to it."""
    folder = build_checkpoint(tmp_path / "share")
    (folder / ".cache").mkdir()
    (folder / "original").mkdir()
    (folder / "original" / "model.bin").write_text("the same weights once more")
    (folder / ".gitattributes").write_text("hidden")
    return folder


@pytest.fixture
def copied(tmp_path, capsys, shared):
    return Weights(
        capsys, tmp_path / "models" / "copy", source="path", repo=REPO, path=str(shared), copy=True, format="mxfp4"
    )


@pytest.fixture
def in_place(capsys, shared):
    return Weights(capsys, shared, source="path", repo=REPO, path=str(shared))


NAMES = [
    "config.json",
    "model-00000-of-00002.safetensors",
    SHARD,
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
]


class TestStandin:
    def test_made_checked_and_left_alone(self, stand_in):
        check, applied = stand_in.four_steps()
        assert check["message"] == "would bring inference-fleet/gpt-oss-tiny-standin in %s" % stand_in.destination
        assert check["diff"] == applied["diff"]
        assert applied["diff"]["before"] == ""
        promised = promised_by(stand_in.arguments["packed"])
        assert applied["diff"]["after"] == "".join(
            "%s %d bytes sha256 %s\n" % (name, record["size"], record["sha256"])
            for name, record in sorted(promised.items())
        )
        assert (applied["format"], applied["hidden_size"], applied["verified"]) == ("bf16", 8, "full")
        manifest = manifest_of(stand_in.destination)
        for name, record in manifest["files"].items():
            content = (stand_in.destination / name).read_bytes()
            mtime = (stand_in.destination / name).stat().st_mtime_ns
            sha256 = hashlib.sha256(content).hexdigest()
            assert record == {"size": len(content), "sha256": sha256, "mtime_ns": mtime}
        del manifest["files"]
        assert manifest == {"schema": 1, "source": "standin", "repo": stand_in.arguments["repo"], "revision": "1"}
        assert os.listdir(stand_in.destination.parent) == ["standin"]

    def test_check_mode_makes_nothing(self, stand_in):
        assert stand_in.run(check_mode=True)["verified"] is None
        assert not stand_in.destination.parent.exists()

    def test_a_quick_rerun_reads_no_weights(self, stand_in, hashed):
        stand_in.run()
        hashed.clear()
        assert stand_in.run()["verified"] == "quick"
        assert hashed == []

    def test_a_full_run_reads_all(self, stand_in, hashed):
        stand_in.run()
        hashed.clear()
        again = stand_in.run(verify="full")
        assert (again["changed"], again["verified"]) == (False, "full")
        assert sorted(hashed) == sorted(manifest_of(stand_in.destination)["files"])

    def test_rot_is_found_by_full_and_mended(self, stand_in):
        stand_in.run()
        good = snapshot(stand_in.destination)
        rot(stand_in.destination / standin.SHARDS[0])
        assert not stand_in.run()["changed"]
        was = hashlib.sha256(good[standin.SHARDS[0]]).hexdigest()
        now = hashlib.sha256((stand_in.destination / standin.SHARDS[0]).read_bytes()).hexdigest()
        check, applied = stand_in.four_steps(verify="full")
        assert check["message"] == "would mend in %s: %s has sha256 %s, had %s" % (
            stand_in.destination, standin.SHARDS[0], now, was
        )  # fmt: skip
        assert check["repaired"] == applied["repaired"] == [standin.SHARDS[0]]
        assert now in check["diff"]["before"] and check["diff"] == applied["diff"]
        mended = snapshot(stand_in.destination)
        assert {**mended, model_weights.MANIFEST: 0} == {**good, model_weights.MANIFEST: 0}
        assert os.listdir(stand_in.destination.parent) == ["standin"]

    @pytest.mark.parametrize("damage", ["missing", "shorter", "touched and other"])
    def test_quick_finds_what_shows(self, stand_in, damage):
        stand_in.run()
        file = stand_in.destination / standin.SHARDS[1]
        content = file.read_bytes()
        file.unlink()
        if damage == "shorter":
            file.write_bytes(content[:-1])
        elif damage == "touched and other":
            file.write_bytes(content[:-1] + b"?")
        _check, applied = stand_in.four_steps()
        assert applied["repaired"] == [standin.SHARDS[1]]
        assert file.read_bytes() == content

    def test_new_times_alone_are_no_change_and_cost_one_look(self, stand_in, hashed):
        stand_in.run()
        os.utime(stand_in.destination / "config.json", ns=(1, 1))
        hashed.clear()
        assert not stand_in.run(check_mode=True)["changed"]
        assert not stand_in.run()["changed"]
        assert hashed == ["config.json"] * 2
        assert not stand_in.run()["changed"]
        assert hashed == ["config.json"] * 2

    def test_a_newer_one_replaces_an_older(self, stand_in, tmp_path):
        stand_in.run()
        (stand_in.destination / "kept").write_text("")
        newer = build_packed_standin(tmp_path / "newer", standin.expand, stand_in.arguments["encodings_file"], seed=2)
        check, applied = stand_in.four_steps(packed=str(newer), revision="2")
        assert check["message"] == "would update inference-fleet/gpt-oss-tiny-standin in %s" % stand_in.destination
        assert check["diff"] == applied["diff"] and check["diff"]["before"] != check["diff"]["after"]
        assert manifest_of(stand_in.destination)["revision"] == "2"
        assert (stand_in.destination / "kept").exists()

    def test_another_revision_of_the_same_files(self, stand_in):
        stand_in.run()
        stand_in.four_steps(revision="1.1")

    def test_the_packed_form_is_asked_for_when_it_is_needed(self, stand_in):
        promised = promised_by(stand_in.arguments["packed"])
        assert stand_in.run(packed=None, expected=promised) == {"changed": False, "packed_needed": True}
        assert stand_in.run(check_mode=True, packed=None, expected=promised)["changed"]
        assert stand_in.run(expected=promised)["changed"]
        again = stand_in.run(packed=None, expected=promised)
        assert (again["changed"], again["message"]) == (False, "as wanted")
        (stand_in.destination / "tokenizer.json").unlink()
        assert stand_in.run(packed=None, expected=promised) == {"changed": False, "packed_needed": True}

    def test_without_the_encoding(self, stand_in):
        assert stand_in.run(encodings_file="/nowhere/o200k_base.tiktoken")["msg"] == (
            "The stand-in's tokenizer is made from the encoding o200k_base, and encodings_file "
            "/nowhere/o200k_base.tiktoken is not there. Run the role tiktoken_encodings before this one."
        )
        assert stand_in.run(check_mode=True, encodings_file=None)["changed"]

    def test_a_damaged_packed_form(self, stand_in, tmp_path):
        (tmp_path / "packed" / "weights.safetensors").write_bytes(b"")
        failed = stand_in.run()
        assert failed["msg"].startswith("Cannot make the stand-in: %s/packed/weights.safetensors: " % tmp_path)
        assert os.listdir(stand_in.destination.parent) == []

    def test_a_wrong_format_is_refused_before_it_is_seen(self, stand_in):
        assert "is in format bf16, the recipe needs mxfp4." in stand_in.run(format="mxfp4")["msg"]
        assert os.listdir(stand_in.destination.parent) == []

    def test_readable_by_the_service(self, stand_in, copied):
        for weights in (stand_in, copied):
            old = os.umask(0o077)
            try:
                weights.run()
            finally:
                os.umask(old)
            assert weights.destination.parent.stat().st_mode & 0o777 == 0o755
            assert weights.destination.stat().st_mode & 0o777 == 0o755
            assert {path.stat().st_mode & 0o777 for path in weights.destination.iterdir()} == {0o644}

    def test_a_link_to_another_disk(self, stand_in, tmp_path):
        disk = tmp_path / "disk"
        disk.mkdir()
        stand_in.destination.parent.mkdir()
        stand_in.destination.symlink_to(disk)
        assert stand_in.run()["changed"]
        assert stand_in.destination.is_symlink() and (disk / "config.json").exists()


class TestCopy:
    def test_copied_checked_and_left_alone(self, copied, shared, hashed):
        check, _applied = copied.four_steps()
        assert hashed == []
        assert check["diff"]["after"].startswith("config.json %d bytes sha256 not known yet\n" % (
            (shared / "config.json").stat().st_size
        ))  # fmt: skip
        assert sorted(path.name for path in copied.destination.iterdir()) == [model_weights.MANIFEST, *NAMES]
        for name in NAMES:
            content = (shared / name).read_bytes()
            assert (copied.destination / name).read_bytes() == content
            assert manifest_of(copied.destination)["files"][name]["sha256"] == hashlib.sha256(content).hexdigest()
        assert model_weights.MANIFEST not in os.listdir(shared)

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
            "%s came with sha256 %s, expected %s; its source is damaged or another version. Nothing was replaced."
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
            "The checkpoint in %s is not whole, missing: %s. Fetch or copy it again." % (shared, SHARD)
        )
        assert not copied.destination.parent.exists()

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_a_source_of_another_kind(self, copied, shared, check_mode):
        (shared / "config.json").write_text('{"model_type": "llama"}')
        assert copied.run(check_mode)["msg"] == (
            '%s/config.json: model_type is "llama", allowed: "gpt_oss". '
            "This collection serves gpt-oss checkpoints only." % shared
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
        assert os.listdir(copied.destination.parent) == []

    def test_what_a_killed_run_left(self, copied):
        half = copied.destination.parent / ".copy.inference-fleet-new"
        half.mkdir(parents=True)
        (half / "config.json").write_text("half")
        copied.four_steps()
        assert os.listdir(copied.destination.parent) == ["copy"]

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_too_little_space(self, copied, tmp_path, monkeypatch, check_mode):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
        monkeypatch.setattr(path_source, "file_statuses", lambda folder: {
            name: SimpleNamespace(st_size=65248893184 if name == SHARD else 0, st_mtime_ns=1) for name in NAMES
        })  # fmt: skip
        failed = copied.run(check_mode)
        assert failed["msg"] == (
            "Not enough space for the weights: %s needs 60.8 GiB, and the file system of %s has 0.0 MiB free. "
            "Free some, or choose another destination." % (copied.destination, tmp_path)
        )
        assert (failed["needed_bytes"], failed["free_bytes"]) == (65248893184, 1000)
        assert not copied.destination.parent.exists()


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
                "copy is true, but path and destination are the same directory /a.",
            ),
            (
                {"source": "standin", "destination": "models"},
                "destination is 'models'; it must be the absolute path of a directory.",
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
        assert in_place.run(draft=str(draft))["changed"]


class TestInPlace:
    def test_recorded_checked_and_left_alone(self, in_place, shared):
        before = snapshot_files(shared)
        check, applied = in_place.four_steps()
        assert check["message"] == "would record the files of %s in %s" % (REPO, shared)
        assert (applied["verified"], applied["format"]) == ("full", "mxfp4")
        assert sorted(manifest_of(shared)["files"]) == NAMES
        after = snapshot_files(shared)
        del after[model_weights.MANIFEST]
        assert after == before

    def test_a_quick_rerun_reads_no_weights(self, in_place, hashed):
        in_place.run()
        hashed.clear()
        assert in_place.run()["verified"] == "quick"
        assert hashed == []

    def test_rot_is_named_and_nothing_is_changed(self, in_place, shared):
        in_place.run()
        was = manifest_of(shared)["files"][SHARD]["sha256"]
        rot(shared / SHARD)
        before = snapshot_files(shared)
        failed = in_place.run(verify="full")
        assert failed["rotted"] == [SHARD]
        now = hashlib.sha256((shared / SHARD).read_bytes()).hexdigest()
        assert failed["msg"] == (
            "The checkpoint in {0} is not what it was when it was recorded: {1} has sha256 {2}, had {3}. Bring those "
            "files back, or, if the change was meant, remove {0}/.inference-fleet-manifest.json and run again."
        ).format(shared, SHARD, now, was)
        assert snapshot_files(shared) == before
        (shared / model_weights.MANIFEST).unlink()
        in_place.four_steps()

    def test_what_is_not_whole_is_refused(self, in_place, shared):
        (shared / SHARD).unlink()
        assert "is not whole, missing: %s." % SHARD in in_place.run()["msg"]
        assert model_weights.MANIFEST not in os.listdir(shared)

    def test_another_model_is_refused(self, in_place, shared):
        in_place.run()
        assert in_place.run(repo="openai/other")["msg"] == (
            "%s holds another model, %s (source path), and openai/other (source path) is wanted there; "
            "it is left as it is. Choose another destination, or remove it." % (shared, REPO)
        )

    def test_a_copy_may_be_served_in_place_later(self, copied, stand_in):
        copied.run()
        there = str(copied.destination)
        assert not copied.run(path=there, copy=False)["changed"]
        stand_in.run()
        there = str(stand_in.destination)
        assert not stand_in.run(source="path", path=there)["changed"]

    def test_new_times_alone_are_no_change(self, in_place, shared, hashed):
        in_place.run()
        os.utime(shared / SHARD, ns=(1, 1))
        hashed.clear()
        assert not in_place.run()["changed"]
        assert not in_place.run()["changed"]
        assert hashed == [SHARD]

    def test_another_revision_is_recorded(self, in_place):
        in_place.run()
        in_place.four_steps(revision="b5c939de")

    def test_a_directory_that_cannot_be_written_to(self, in_place, shared, monkeypatch, hashed):
        real = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))
        warnings = []
        monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warnings.append(text))
        result = in_place.run()
        assert (result["changed"], result["verified"], hashed) == (False, "structure", [])
        assert warnings == [
            "%s cannot be written to, so no manifest is kept there: only the structure of the checkpoint was checked, "
            "not the content of its files." % shared
        ]
        assert model_weights.MANIFEST not in os.listdir(shared)


def snapshot_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_the_manifest_is_no_part_of_a_checkpoint(in_place, shared, tmp_path):
    in_place.run()
    assert checkpoints.inspect(str(shared))["num_layers"] == 3
    assert model_weights.MANIFEST not in path_source.file_statuses(str(shared))
