# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Local jobs: watched, killed, two at once, carried from the controller."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from types import SimpleNamespace

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import local as local_weights
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import lock as weight_lock
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import pipeline as model_weights
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.lock import WeightLock
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.sources import path as path_source
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.sources import (
    standin as standin_source,
)
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.node_helpers import (
    rot,
    weights_came,
)
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_local.local_weights_calls import (
    NAMES,
    REPO,
    SHARD,
    manifest_of,
)


class TestJob:
    """Where gigabytes are to be copied or read, a job of its own does it."""

    @pytest.fixture(autouse=True)
    def small_is_large(self, monkeypatch, tmp_path, copied, in_place):
        monkeypatch.setattr(model_weights, "JOB_FROM", 1)
        for weights in (copied, in_place):
            weights.arguments.update(root=str(tmp_path / "root"), wait_s=60)

    def test_copied_by_a_job(self, copied):
        _check, applied = copied.four_steps()
        assert (applied["finished"], applied["progress"]["phase"]) == (True, "done")
        size = sum(record["size"] for record in manifest_of(copied.destination)["files"].values())
        assert (applied["progress"]["bytes_done"], applied["progress"]["bytes_total"]) == (size, size)
        assert sorted(path.name for path in copied.destination.iterdir()) == [weight_manifest.MANIFEST, *NAMES]

    def test_polled(self, copied):
        first = copied.run(wait_s=0)
        assert (first["changed"], first["finished"]) == (False, False)
        result = first
        while not result["finished"]:
            result = copied.run(wait_s=1)
        assert result["changed"] and not copied.run(wait_s=0)["changed"]

    @pytest.mark.parametrize("verify", ["quick", "full"])
    def test_an_end_that_nobody_saw_is_worth_what_lies_there(self, copied, tmp_path, verify):
        assert not copied.run(wait_s=0, caller="first")["finished"]
        wait_until(lambda: weights_came(tmp_path / "root"))
        shutil.rmtree(copied.destination)
        result = copied.run(verify=verify, caller="second")
        assert (result["changed"], result["finished"]) == (True, True)
        assert manifest_of(copied.destination)

    def test_a_byte_that_rotted_unseen(self, copied, tmp_path):
        copied.run(wait_s=0, verify="full", caller="first")
        wait_until(lambda: weights_came(tmp_path / "root"))
        rot(copied.destination / SHARD)
        assert copied.run(verify="full", caller="second")["repaired"] == [SHARD]

    def test_a_quick_look_needs_no_job(self, copied, tmp_path):
        copied.run()
        shutil.rmtree(tmp_path / "root")
        assert "finished" not in copied.run()
        assert not (tmp_path / "root").exists()

    def test_read_in_full_by_a_job(self, copied):
        copied.run()
        rot(copied.destination / SHARD)
        assert copied.run(verify="full")["repaired"] == [SHARD]
        again = copied.run(verify="full")
        assert (again["changed"], again["finished"], again["verified"]) == (False, True, "full")

    def test_recorded_by_a_job(self, in_place, shared):
        assert in_place.run()["finished"]
        rot(shared / SHARD)
        assert in_place.run(verify="full")["rotted"] == [SHARD]

    def test_what_it_refuses_it_refuses_in_the_same_words(self, copied, shared):
        (shared / "config.json").write_text('{"model_type": "llama"}')
        assert copied.run()["msg"] == (
            '%s/config.json: model_type is "llama", allowed: "gpt_oss". '
            "This collection serves gpt-oss checkpoints only. Choose another checkpoint." % shared
        )
        assert not copied.destination.exists()


class TestTwoAtOnce:
    """Two runs of any size, of one fleet_root or two: the second waits, and finds what the first has brought."""

    @pytest.fixture
    def other(self, tmp_path, monkeypatch):
        """hold(weights, source): a process that brings these weights, in the middle, until `go` is called."""
        begun, going = tmp_path / "begun", tmp_path / "go"
        monkeypatch.setattr(weight_lock, "POLL_S", 0.01)

        def hold(weights, source):
            self.child = os.fork()
            if not self.child:
                status = 1
                try:
                    real = source.fetch

                    def fetch(*given):
                        made = real(*given)
                        begun.touch()
                        wait_until(going.exists)
                        return made

                    source.fetch = fetch
                    local_weights.ensure(local_weights.from_parameters(weights.arguments))
                    status = 0
                finally:
                    os._exit(status)
            wait_until(begun.exists)
            return "%s (process %d, since " % (os.uname().nodename, self.child)

        def go():
            going.touch()
            assert os.waitpid(self.child, 0)[1] == 0

        return SimpleNamespace(hold=hold, go=go)

    def test_small_copies(self, copied, shared, other, tmp_path):
        copied.arguments["root"] = str(tmp_path / "root")
        holder = other.hold(copied, path_source)
        told = wait_until(lambda: "waiting" in (found := copied.run(wait_s=0))["message"] and found)
        assert (told["changed"], told["finished"]) == (False, False)
        assert told["progress"]["phase"].startswith("waiting for " + holder)
        assert told["message"] == "%s to bring %s from %s" % (told["progress"]["phase"], REPO, shared)
        other.go()
        ended = copied.run(wait_s=300)
        assert (ended["changed"], ended["message"], ended["finished"]) == (False, "up to date", True)
        assert sorted(os.listdir(copied.destination)) == [weight_manifest.MANIFEST, *NAMES]
        assert os.listdir(copied.destination.parent) == ["copy"]

    def test_the_stand_in(self, stand_in, other, monkeypatch):
        holder = other.hold(stand_in, standin_source)
        monkeypatch.setattr(model_weights, "PATIENCE_S", 0.1)
        text = stand_in.run()["msg"]
        assert text.startswith("Weights are brought to %s by %s" % (stand_in.destination, holder))
        assert text.endswith("UTC) already. Wait until that has ended, or end it; then run again.")
        other.go()
        assert stand_in.run()["message"] == "up to date"
        assert os.listdir(stand_in.destination.parent) == ["standin"]

    def test_a_look_waits_for_nobody(self, copied):
        copied.run()
        with WeightLock(str(copied.destination)):
            assert copied.run()["message"] == copied.run(check_mode=True)["message"] == "up to date"


class TestCarried:
    """A directory that was fetched elsewhere, manifest and all."""

    @pytest.fixture
    def carried(self, shared):
        names = [*NAMES, ".gitattributes"]
        records = {
            name: {
                "size": (shared / name).stat().st_size,
                "sha256": hashlib.sha256((shared / name).read_bytes()).hexdigest(),
                "oid": None,
            }
            for name in names
        }
        identity = {"source": "huggingface", "repo": REPO, "revision": "main", "commit": "c" * 40, "at": "c" * 40}
        weight_manifest.write_manifest(str(shared), records, **identity, include=[], exclude=[])
        return shared

    def test_copied_by_its_manifest(self, copied, carried):
        (carried / "notes.txt").write_text("not part of it")
        check, _applied = copied.four_steps()
        assert "not known yet" not in check["diff"]["after"]
        assert sorted(path.name for path in copied.destination.iterdir()) == sorted(
            [weight_manifest.MANIFEST, *NAMES, ".gitattributes"]
        )

    def test_rot_on_the_way_is_not_copied(self, copied, carried):
        good = hashlib.sha256((carried / SHARD).read_bytes()).hexdigest()
        rot(carried / SHARD)
        failed = copied.run()
        assert failed["msg"] == (
            "%s came with sha256 %s, expected %s; its source is damaged or another version. Nothing was replaced. "
            "Check the source." % (SHARD, hashlib.sha256((carried / SHARD).read_bytes()).hexdigest(), good)
        )
        assert not copied.destination.exists()

    def test_a_file_that_was_cut_on_the_way(self, copied, carried):
        (carried / SHARD).write_bytes(b"cut")
        failed = copied.run()
        assert failed["msg"] == (
            "%s is not what its manifest says: %s is 3 bytes long, was %d. Bring those files back, or remove %s/%s if "
            "the change was meant."
            % (carried, SHARD, json.loads((carried / weight_manifest.MANIFEST).read_text())["files"][SHARD]["size"],
               carried, weight_manifest.MANIFEST)
        )  # fmt: skip
        assert not copied.destination.exists()

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_one_that_leads_elsewhere(self, copied, carried, tmp_path, check_mode):
        (tmp_path / "payload").write_text("* * * * * root evil")
        manifest = manifest_of(carried)
        manifest["files"]["../payload"] = {
            **manifest["files"]["config.json"], "size": 19,
            "sha256": hashlib.sha256(b"* * * * * root evil").hexdigest(),
        }  # fmt: skip
        (carried / weight_manifest.MANIFEST).write_text(json.dumps(manifest))
        failed = copied.run(check_mode)
        assert failed["code"] == "weights.manifest-unreadable" and "../payload" in failed["msg"]
        assert not copied.destination.parent.exists()

    def test_another_models_directory(self, copied, carried):
        assert copied.run(repo="openai/other")["msg"] == (
            "%s holds another model, %s (source huggingface), and openai/other (source path) is wanted there; it is "
            "left as it is. Choose another destination, or remove it." % (carried, REPO)
        )

    def test_served_in_place(self, in_place, carried):
        before = manifest_of(carried)
        assert not in_place.run()["changed"] and not in_place.run(revision="c" * 40)["changed"]
        os.utime(carried / SHARD, ns=(1, 1))
        assert not in_place.run(verify="full")["changed"]
        before["files"][SHARD]["mtime_ns"] = 1
        assert manifest_of(carried) == before
        rot(carried / SHARD)
        assert in_place.run(verify="full")["rotted"] == [SHARD]
