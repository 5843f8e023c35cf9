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
        assert not node.run(verify="full")["changed"]
        monkeypatch.setattr(jobs.Job, "advance", lambda *_given: pytest.fail("a job"))
        monkeypatch.setattr(weight_manifest, "hash_files", lambda *_given: pytest.fail("reading"))
        for check_mode in (True, False):
            again = node.run(check_mode)
            assert (again["changed"], again["verified"], again["finished"]) == (False, "quick", True)

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

    def test_patterns(self, node):
        node.run(include=["*.json", "*.safetensors"], exclude=["original/*", "metal/*", "tokenizer_config.json"])
        assert "README.md" not in node.found() and "tokenizer_config.json" not in node.found()
        _check, applied = node.four_steps()
        assert "README.md" in applied["fetched"] and SHARD not in applied["fetched"]
        assert node.found() == node.wanted()
        node.run(include=["*.json", "*.safetensors"])
        assert "README.md" not in node.found()


class TestNamesOfOurOwn:
    def test_files_that_are_named_as_ours_are_left_out(self, node, hub):
        """Somebody uploaded a folder with all that lay in it."""
        names = [weight_manifest.MANIFEST, ".listing.json", ".inference-fleet-new/a"]
        files = {**gpt_oss_files(30_000, seed=3), **dict.fromkeys(names, b"{}")}
        hub.repositories[REPO].commit(files)
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
        assert failed["code"] == "weights.rotted-and-unrepaired"
        assert node.found() == rotten
        assert hub.counts().get(REPO, {}).get(SHARD, {}).get("sent", 0) <= 3 * len(rotten[SHARD])
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
