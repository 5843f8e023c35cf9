# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights of a simulated hub: brought, checked and left alone; names, branches and commits."""

from __future__ import annotations

import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import state as guard_state
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import jobs
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.tests.hubs.repositories import gpt_oss_files
from ansible_collections.inference.fleet.tests.unit.node_helpers import rot
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_hub.hub_node import (
    BRANCHES,
    REPO,
    SHARD,
    Node,
    both,
)


class TestBrought:
    @both
    def test_brought_checked_and_left_alone(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        wanted = node.wanted()
        total = sum(len(content) for content in wanted.values())
        check, applied = node.four_steps()
        text = "%s in %s: 26 files, %d bytes" % (node.name, node.destination, total)
        assert (check["message"], applied["message"]) == ("would bring %s to fetch" % text, "brought " + text)
        assert (check["to_fetch_bytes"], check["fetched"]) == (total, sorted(wanted))
        assert node.found() == wanted
        assert os.listdir(node.models) == ["small"]
        head = hub.repositories[REPO].head
        assert (applied["commit"], applied["verified"], applied["finished"]) == (head, "full", True)
        assert len(applied["shards"]) == 15 and applied["hidden_size"] == 2880
        progress = {"phase": "done", "percent": 100.0, "bytes_done": total, "bytes_total": total}
        assert {key: applied["progress"][key] for key in progress} == progress
        manifest = node.manifest()
        records = manifest.pop("files")
        assert manifest == {
            "schema": 1, "source": source, "repo": REPO, "revision": BRANCHES[source], "commit": head,
            "at": head if source == "huggingface" else "master", "include": [], "exclude": ["metal/*", "original/*"],
        }  # fmt: skip
        for name, record in records.items():
            assert record["sha256"] == hub.repositories[REPO].files[name].sha256
            assert (record["size"], record["mtime_ns"]) == (
                len(wanted[name]), (node.destination / name).stat().st_mtime_ns
            )  # fmt: skip
        assert {path.stat().st_mode & 0o777 for path in node.destination.rglob("*")} == {0o644}

    @both
    def test_a_quick_look_takes_no_hub_no_worker_and_no_reading(self, capsys, tmp_path, hub, source, monkeypatch):
        node = Node(capsys, tmp_path, hub, source)
        node.run()
        hub.stop()
        monkeypatch.setattr(jobs.Job, "advance", lambda *_given: pytest.fail("a job"))
        monkeypatch.setattr(weight_manifest, "hash_files", lambda *_given: pytest.fail("reading"))
        for check_mode in (True, False):
            again = node.run(check_mode)
            assert (again["changed"], again["verified"], again["finished"]) == (False, "quick", True)

    def test_full_needs_no_hub_where_all_is_well(self, node):
        node.run()
        node.hub.stop()
        again = node.run(verify="full")
        assert (again["changed"], again["message"], again["verified"]) == (False, "up to date", "full")

    @both
    def test_rot_is_named_by_full_and_that_file_alone_comes_again(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        node.run()
        rot(node.destination / SHARD)
        assert not node.run()["changed"]
        hub.forget()
        check, applied = node.four_steps(verify="full")
        assert check["message"].startswith("would repair in %s: %s has sha256 " % (node.destination, SHARD))
        size = len(node.wanted()[SHARD])
        assert (check["repaired"], check["to_fetch_bytes"]) == ([SHARD], size)
        assert applied["fetched"] == [SHARD]
        assert node.found() == node.wanted()
        assert hub.counts() == {REPO: {SHARD: {"requests": 1, "sent": size}}}

    def test_rot_that_cannot_be_mended(self, node):
        node.run()
        rot(node.destination / SHARD)
        node.hub.stop()
        good = node.hub.repositories[REPO].files[SHARD].sha256
        failed = node.run(verify="full")
        assert failed["rotted"] == [SHARD]
        assert failed["code"] == "weights.rotted-and-unrepaired" and good in failed["msg"]
        assert node.called in failed["msg"]

    def test_new_times_alone_are_no_change_and_cost_one_look(self, node):
        node.run()
        note = guard_state.weights_note(str(node.destination))
        os.utime(node.destination / SHARD, ns=(1, 1))
        node.hub.stop()
        assert node.run()["message"] == "up to date"
        assert node.manifest()["files"][SHARD]["mtime_ns"] == 1
        assert guard_state.weights_note(str(node.destination)) == note  # no server restarts for it
        node.hub.start()
        rot(node.destination / SHARD)
        assert node.run(verify="full")["repaired"] == [SHARD]
        assert guard_state.weights_note(str(node.destination)) != note

    def test_a_missing_file_comes_again(self, node):
        node.run()
        (node.destination / SHARD).unlink()
        _check, applied = node.four_steps()
        assert applied["message"] == "repaired in %s: %s is missing" % (node.destination, SHARD)

    def test_patterns(self, node):
        node.run(include=["*.json", "*.safetensors"], exclude=["original/*", "metal/*", "tokenizer_config.json"])
        assert "README.md" not in node.found() and "tokenizer_config.json" not in node.found()
        _check, applied = node.four_steps()
        assert "README.md" in applied["fetched"] and SHARD not in applied["fetched"]
        assert node.found() == node.wanted()
        node.run(include=["*.json", "*.safetensors"])
        assert "README.md" not in node.found()

    def test_on_a_disk_of_its_own(self, node, monkeypatch):
        node.destination.mkdir(parents=True)
        (node.destination / "lost+found").mkdir()
        monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(node.destination))
        # The worker asks its own os; so the staging folder is looked at here, where both agree.
        assert weight_manifest.staging_of(str(node.destination)) == str(node.destination / ".inference-fleet-new")
        assert weight_manifest.own_manifest(str(node.destination), REPO, "huggingface") is None


class TestNamesOfOurOwn:
    @both
    def test_files_that_are_named_as_ours_are_left_out(self, capsys, tmp_path, hub, source):
        """Somebody uploaded a folder with all that lay in it."""
        names = [weight_manifest.MANIFEST, ".listing.json", ".partial/config.json", ".inference-fleet-new/a"]
        files = {**gpt_oss_files(30_000, seed=3), **dict.fromkeys(names, b"{}")}
        hub.repositories[REPO].commit(files)
        node = Node(capsys, tmp_path, hub, source)
        node.four_steps()
        assert not node.run(refresh=True)["changed"]
        assert node.found() == {name: content for name, content in node.wanted().items() if name not in names}


class TestRevisions:
    def test_a_branch_of_modelscope_that_moved_on(self, capsys, tmp_path, hub):
        """What rotted comes again from the commit that it was of; the branch has other files by now."""
        node = Node(capsys, tmp_path, hub, "modelscope")
        node.run()
        old = node.found()
        hub.repositories[REPO].commit(gpt_oss_files(30_000, seed=9))
        rot(node.destination / SHARD)
        hub.forget()
        applied = node.run(verify="full")
        assert (applied.get("repaired"), applied.get("fetched")) == ([SHARD], [SHARD]), applied
        assert node.found() == old
        assert hub.counts() == {REPO: {SHARD: {"requests": 1, "sent": len(old[SHARD])}}}

    @pytest.mark.parametrize("gone", [False, True])
    def test_a_branch_of_modelscope_whose_past_is_gone(self, capsys, tmp_path, hub, gone):
        node = Node(capsys, tmp_path, hub, "modelscope")
        first = node.run()["commit"]
        repository = hub.repositories[REPO]
        files = gpt_oss_files(30_000, seed=9)
        if gone:
            del files[SHARD]
        repository.commit(files)
        del repository.commits[first]
        rot(node.destination / SHARD)
        rotten = node.found()
        hub.forget()
        failed = node.run(verify="full")
        assert failed["code"] == "weights.rotted-and-unrepaired" and first in failed["msg"]
        assert node.found() == rotten
        assert hub.counts().get(REPO, {}).get(SHARD, {}).get("sent", 0) <= len(rotten[SHARD])
        if not gone:
            assert node.run(refresh=True)["changed"] and node.found() == node.wanted()

    def test_a_file_of_modelscope_that_is_the_same_on_a_branch_without_a_past(self, capsys, tmp_path, hub):
        node = Node(capsys, tmp_path, hub, "modelscope")
        first = node.run()["commit"]
        repository = hub.repositories[REPO]
        repository.commit({**gpt_oss_files(30_000, seed=3), "README.md": b"new"})
        del repository.commits[first]
        good = node.found()
        rot(node.destination / SHARD)
        assert node.run(verify="full")["repaired"] == [SHARD]
        assert node.found() == good

    def test_a_branch_is_resolved_once(self, node):
        repository = node.hub.repositories[REPO]
        first = node.run()["commit"]
        second = repository.commit({**gpt_oss_files(30_000, seed=3), "README.md": b"new"})
        assert second != first
        again = node.run(verify="full")
        assert (again["changed"], again["commit"]) == (False, first)
        check = node.run(check_mode=True, refresh=True)
        assert (check["changed"], check["to_fetch_bytes"], check["fetched"]) == (True, 3, ["README.md"])
        updated = node.run(refresh=True)
        assert (updated["commit"], updated["fetched"]) == (second, ["README.md"])
        assert updated["message"] == "updated %s in %s: 1 file, 3 bytes" % (node.name, node.destination)
        assert node.found() == node.wanted()
        assert not node.run(refresh=True)["changed"]

    def test_a_commit_by_its_name(self, node):
        commit = node.hub.repositories[REPO].head
        node.run()
        same = node.run(revision=commit)
        assert (same["changed"], same["verified"]) == (False, "quick")

    def test_an_update_takes_what_is_new_and_removes_what_is_gone(self, node):
        node.run()
        (node.destination / "kept").write_text("not ours")
        files = gpt_oss_files(30_000, seed=3)
        files["model-00000-of-00014.safetensors"] = gpt_oss_files(30_000, seed=4)["model-00000-of-00014.safetensors"]
        files["config.json"] = gpt_oss_files(model_type="gpt_oss", vocab_size=5)["config.json"]
        del files["USAGE_POLICY"]
        node.hub.repositories[REPO].commit(files)
        updated = node.run(refresh=True)
        assert updated["fetched"] == ["config.json", "model-00000-of-00014.safetensors"]
        assert (node.destination / "kept").read_text() == "not ours"
        (node.destination / "kept").unlink()
        assert node.found() == node.wanted()

    @both
    def test_a_failed_update_leaves_the_old_weights(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        node.run()
        old, manifest = node.found(), node.manifest()
        hub.repositories[REPO].commit(gpt_oss_files(30_000, seed=9))
        hub.fault("status", path=SHARD, status=500)
        failed = node.run(refresh=True)
        assert failed["problem"] == "busy"
        assert (node.found(), node.manifest()) == (old, manifest)
        assert not node.run()["changed"]
        hub.mend()
        hub.forget()
        assert node.run(refresh=True)["changed"]
        assert node.found() == node.wanted()
        assert os.listdir(node.models) == ["small"]

    def test_a_swap_that_was_broken_off_is_finished(self, node, monkeypatch):
        """Killed while the new files took their places: no server loads the mixture, and the next run needs little."""
        node.run()
        hub = node.hub
        hub.repositories[REPO].commit(gpt_oss_files(30_000, seed=9))
        # What a kill in the middle leaves: some new files in place, the rest staged, no config.json.
        new = node.wanted()
        shards = sorted(name for name in new if name.endswith(".safetensors"))
        for name in shards[:7]:
            (node.destination / name).write_bytes(new[name])
        (node.destination / "config.json").unlink()
        hub.forget()
        assert node.run(refresh=True)["changed"]
        assert node.found() == new
        assert hub.sent(REPO, shards[0]) == 0 and hub.sent(REPO, shards[-1]) == len(new[shards[-1]])
