# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders that others own: published, on a disk of their own, served in place."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import checkpoints, known
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import local as local_weights
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import staging as weight_staging
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.sources import path as path_source
from ansible_collections.inference.fleet.tests.unit.node_helpers import (
    build_checkpoint,
    rot,
)
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_local.local_weights_calls import (
    NAMES,
    REPO,
    SHARD,
    Weights,
    manifest_of,
    snapshot_files,
)


class TestPublished:
    """Directories that say they are a checkpoint whose files are known."""

    COMMIT = "b" * 40

    @pytest.fixture(autouse=True)
    def known_now(self, monkeypatch, shared):
        files = {
            name: (len(content), hashlib.sha256(content).hexdigest())
            for name, content in snapshot_files(shared).items()
            if not name.startswith(".")
        }
        monkeypatch.setattr(known, "KNOWN", (known.Known("huggingface", REPO, self.COMMIT, files),))
        self.sha256 = {name: sha256 for name, (_size, sha256) in files.items()}

    @pytest.mark.parametrize("revision", [None, COMMIT])
    @pytest.mark.parametrize("verify", ["quick", "full"])
    def test_served_in_place_or_copied(self, in_place, copied, revision, verify):
        for weights in (copied, in_place):
            applied = weights.run(revision=revision, verify=verify)
            assert (applied["changed"], applied["verified"]) == (True, "full"), applied
            assert "nothing is known" not in applied["message"]

    @pytest.mark.parametrize("revision", [None, COMMIT])
    def test_a_byte_that_was_wrong_from_the_start(self, in_place, copied, shared, revision):
        rot(shared / SHARD)
        now = hashlib.sha256((shared / SHARD).read_bytes()).hexdigest()
        failed = in_place.run(revision=revision)
        assert failed["rotted"] == [SHARD]
        assert failed["msg"] == (
            "%s does not hold what %s commit %s is known to have: %s has sha256 %s, known is %s. Bring these files "
            "again; if it is another version, set revision to the name of that."
            % (shared, REPO, self.COMMIT, SHARD, now, self.sha256[SHARD])
        )
        assert weight_manifest.MANIFEST not in os.listdir(shared)
        assert copied.run(revision=revision)["msg"] == (
            "%s came with sha256 %s, expected %s; its source is damaged or another version. Nothing was replaced. "
            "Check the source." % (SHARD, now, self.sha256[SHARD])
        )
        assert not copied.destination.exists()

    def test_one_that_was_recorded_before_it_was_known(self, in_place, copied, shared, monkeypatch):
        rot(shared / SHARD)
        with monkeypatch.context() as before:
            before.setattr(known, "KNOWN", ())
            assert copied.run()["verified"] == in_place.run()["verified"] == "structure"
        assert in_place.run()["rotted"] == copied.run()["rotted"] == [SHARD]
        assert "nothing is known" not in in_place.run(revision="ours")["message"]

    def test_another_version_is_compared_with_nothing(self, in_place, shared):
        rot(shared / SHARD)
        assert in_place.run(revision="ours")["verified"] == "structure"

    def test_a_checkpoint_that_was_cut_into_other_files_is_not_taken_for_it(self, capsys, tmp_path):
        other = build_checkpoint(tmp_path / "other", shards=2)
        weights = Weights(capsys, other, source="path", repo=REPO, path=str(other))
        assert weights.run()["verified"] == "structure"

    def test_what_people_change_is_warned_of(self, in_place, copied, shared, monkeypatch):
        warnings = []
        monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warnings.append(text))
        (shared / "tokenizer.json").write_text("[]")
        text = " does not hold what %s commit %s is known to have: tokenizer.json has sha256 " % (REPO, self.COMMIT)
        for weights in (in_place, copied):
            warnings.clear()
            assert weights.run()["changed"]
            assert len(warnings) == 1 and text in warnings[0]
        assert text in in_place.run(revision=self.COMMIT)["msg"]

    def test_where_no_manifest_can_be_kept_full_compares_all_the_same(self, in_place, shared, monkeypatch):
        real = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))
        request = local_weights.from_parameters(
            {"repo": REPO, "source": "path", "path": str(shared), "destination": str(shared)}
        )
        assert local_weights.effort(request, "quick") == 0
        assert local_weights.effort(request, "full") == sum((shared / name).stat().st_size for name in NAMES)
        assert in_place.run()["verified"] == "structure"
        assert in_place.run(verify="full")["verified"] == "full"
        with monkeypatch.context() as nothing_known:
            nothing_known.setattr(known, "KNOWN", ())
            assert (local_weights.effort(request, "full"), in_place.run(verify="full")["verified"]) == (0, "structure")
        rot(shared / SHARD)
        assert in_place.run(verify="full")["rotted"] == [SHARD]


class TestDiskOfItsOwn:
    """The destination is a file system: files move into it one by one."""

    @pytest.fixture(autouse=True)
    def mounted(self, monkeypatch, copied):
        copied.destination.mkdir(parents=True)
        (copied.destination / "lost+found").mkdir()
        monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(copied.destination))

    def steps(self, copied, kill_at):
        """How many steps a run in a process of its own has made when it is killed before the step `kill_at`."""
        counts = Path(str(copied.destination) + ".steps")
        child = os.fork()
        if not child:
            made = 0

            def counted(real):
                def step(*given, **named):
                    nonlocal made
                    made += 1
                    counts.write_text(str(made))
                    if made == kill_at:
                        os._exit(9)
                    return real(*given, **named)

                return step

            for name in ("rename", "unlink", "rmdir"):
                setattr(os, name, counted(getattr(os, name)))
            try:
                local_weights.ensure(local_weights.from_parameters(copied.arguments))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return int(counts.read_text())

    def test_killed_between_any_two_steps(self, copied, shared):
        wanted = {name: (shared / name).read_bytes() for name in NAMES}
        kill_at, told = 0, set()
        while True:
            kill_at += 1
            shutil.rmtree(copied.destination)
            copied.destination.mkdir()
            if self.steps(copied, kill_at) < kill_at:
                break
            seen = set(os.listdir(copied.destination))
            assert "config.json" not in seen or set(NAMES) <= seen
            finished = copied.run()
            assert not finished.get("failed"), (kill_at, finished)
            told.add(finished["changed"])
            assert {
                path.name: path.read_bytes() for path in copied.destination.iterdir() if path.name in NAMES
            } == wanted
            assert not copied.run(verify="full")["changed"]
        assert kill_at > len(NAMES) and told == {True, False}

    def test_what_an_install_that_was_cut_had_of_another_version_goes(self, copied, shared):
        identity = {"source": "path", "repo": REPO, "revision": None}
        staging = copied.destination / weight_manifest.INNER_STAGING
        staging.mkdir()
        weight_staging._begin(str(staging), str(copied.destination), ["model-00007-of-00008.safetensors"], identity)
        (copied.destination / "model-00007-of-00008.safetensors").write_text("of the other")
        assert weight_manifest.read_manifest(str(copied.destination)) is None
        copied.four_steps()
        assert set(os.listdir(copied.destination)) == {"lost+found", weight_manifest.MANIFEST, *NAMES}

    def test_files_of_others_stay_refused(self, copied):
        (copied.destination / "thesis.txt").write_text("three years")
        assert "holds files that this collection did not put there (thesis.txt)" in copied.run()["msg"]


class TestInPlace:
    def test_recorded_checked_and_left_alone(self, in_place, shared):
        before = snapshot_files(shared)
        check, applied = in_place.four_steps()
        text = " the files of %s in %s as they are; nothing is known to compare them with" % (REPO, shared)
        assert (check["message"], applied["message"]) == ("would record" + text, "recorded" + text)
        assert (applied["verified"], applied["format"]) == ("structure", "mxfp4")
        assert sorted(manifest_of(shared)["files"]) == NAMES
        after = snapshot_files(shared)
        del after[weight_manifest.MANIFEST]
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
        (shared / weight_manifest.MANIFEST).unlink()
        in_place.four_steps()

    def test_what_is_not_whole_is_refused(self, in_place, shared):
        (shared / SHARD).unlink()
        assert "is incomplete, missing: %s." % SHARD in in_place.run()["msg"]
        assert weight_manifest.MANIFEST not in os.listdir(shared)

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
        assert weight_manifest.MANIFEST not in os.listdir(shared)


def test_the_manifest_is_no_part_of_a_checkpoint(in_place, shared, tmp_path):
    in_place.run()
    assert checkpoints.inspect(str(shared))["num_layers"] == 3
    assert weight_manifest.MANIFEST not in path_source.file_statuses(str(shared))
