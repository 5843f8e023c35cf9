# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights from a simulated hub by the real clients: brought, watched, kept, updated, refused, and the token kept."""

from __future__ import annotations

import contextlib
import errno
import http.client
import io
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.redact import Redactor
from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron import eagle3
from ansible_collections.inference.fleet.plugins.module_utils.supervise import state as guard_state
from ansible_collections.inference.fleet.plugins.module_utils.weights import ensure as model_weights
from ansible_collections.inference.fleet.plugins.module_utils.weights import hub as hub_package
from ansible_collections.inference.fleet.plugins.module_utils.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.plugins.module_utils.weights.hub import (
    digest,
    huggingface,
    jobs,
    known,
    modelscope,
    plain,
    worker,
)
from ansible_collections.inference.fleet.plugins.module_utils.weights.progress import Progress
from ansible_collections.inference.fleet.plugins.modules import model_weights as module
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import (
    Content,
    Repository,
    gpt_oss,
    gpt_oss_files,
    safetensors,
)
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.node_helpers import four_steps, rot, run_module
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.platforms.neuron import test_eagle3 as heads

REPO = "made-up/gpt-oss-small"
DRAFT = "made-up/gpt-oss-small-eagle3"
TOOLKIT = str(Path(sys.executable).parent.parent)
SHARD = "model-00003-of-00014.safetensors"
TOKEN = "hf_Zq7NotToBeSeenAnywhere"
BRANCHES = {"huggingface": "main", "modelscope": "master"}
both = pytest.mark.parametrize("source", ["huggingface", "modelscope"])


class Node:
    """Runs of the module with the same arguments against a hub."""

    def __init__(self, capsys, folder, hub, source="huggingface"):
        self.capsys = capsys
        self.hub = hub
        self.source = source
        self.models = folder / "models"
        self.destination = self.models / "small"
        self.root = folder / "root"
        self.name = "%s at revision %s" % (REPO, BRANCHES[source])
        self.called = "%s (%s)" % (hub_package.SOURCES[source], hub.endpoint)
        self.arguments = {
            "source": source,
            "repo": REPO,
            "revision": BRANCHES[source],
            "destination": str(self.destination),
            "format": "mxfp4",
            "endpoint": hub.endpoint,
            "root": str(self.root),
            "toolkit": TOOLKIT,
            "environment": {"no_proxy": "*"},
            "wait_s": 300,
            "timeout_s": 120,
            "retries": 0,
        }

    def run(self, check_mode=False, **changes):
        return run_module(self.capsys, module, check_mode, **{**self.arguments, **changes})

    def four_steps(self, **changes):
        return four_steps(self.capsys, module, **{**self.arguments, **changes})

    def incomplete_sizes(self):
        """Bytes on the disk of each file that still comes; one that is done meanwhile is left out."""
        sizes = []
        for folder, _folders, names in os.walk(self.models):  # which bears that folders go while it looks
            for name in names:
                if name.endswith(".incomplete"):
                    with contextlib.suppress(FileNotFoundError):
                        sizes.append(os.stat(os.path.join(folder, name)).st_size)
        return sizes

    def finish(self, **changes):
        """Poll until the end, as the role does; what the hub holds goes on."""
        for fault in self.hub.faults:
            fault.release()

        def ended():
            result = self.run(wait_s=0, **changes)
            return result if result.get("failed") or result["finished"] else None

        return wait_until(ended, 300, "the end")

    def refused(self, message, check_too=True, **changes):
        """Both modes end with this error, and nothing is there but what was."""
        before = self.state()
        for check_mode in (True, False) if check_too else (False,):
            result = self.run(check_mode, **changes)
            assert result.get("failed"), result
            assert result["msg"] == message.format(name=self.name, hub=self.called, destination=self.destination)
            assert self.state() == before
        return result

    def wanted(self):
        files = self.hub.repositories[REPO].files
        return {path: files[path].bytes() for path in files if not path.startswith(("original/", "metal/"))}

    def found(self):
        return {
            str(path.relative_to(self.destination)): path.read_bytes()
            for path in self.destination.rglob("*")
            if path.is_file() and path.name != weight_manifest.MANIFEST
        }

    def state(self):
        """What a server could see."""
        return self.found() if self.destination.exists() else None

    def manifest(self):
        return json.loads((self.destination / weight_manifest.MANIFEST).read_text())

    def job(self):
        return next((self.root / "var/lib/inference-fleet/jobs").glob("weights-*/"))

    def phase(self):
        """What the worker is at, None before it says so."""
        state = self.job() / "state.json"
        return json.loads(state.read_text())["progress"]["phase"] if state.exists() else None

    def pid(self):
        return int((self.job() / "pid").read_text())

    def kill(self):
        """kill -9 of the worker; the hub lets go of what it holds."""
        os.kill(self.pid(), signal.SIGKILL)
        wait_until(lambda: not jobs.Job(str(self.job().parent), TOOLKIT, str(self.destination)).alive())
        self.hub.mend()

    def kept_state(self):
        """What the job says of itself, None where it says nothing."""
        state = self.job() / "state.json"
        return json.loads(state.read_text()) if state.exists() else None

    def left_behind(self, **changes):
        """A job that a play starts and that ends while nobody looks; what it says of itself."""
        first = self.run(wait_s=0, **changes)
        assert not first.get("failed") and not first["finished"], first
        wait_until(lambda: (self.kept_state() or {}).get("state") in jobs.ENDED)
        return self.kept_state()


@pytest.fixture
def hub():
    with Hub([gpt_oss(REPO, 30_000, seed=3)]) as running:
        yield running


@pytest.fixture
def node(capsys, tmp_path, hub):
    return Node(capsys, tmp_path, hub)


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
        monkeypatch.setattr(jobs.Job, "look", lambda *_given: pytest.fail("a worker"))
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
        assert failed["msg"].startswith("In %s %s has sha256 " % (node.destination, SHARD))
        assert (", had %s. It cannot be repaired: %s cannot be reached" % (good, node.called)) in failed["msg"]

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
        assert failed["msg"].endswith(
            ". It cannot be repaired: %s of %s is another file on %s by now: the branch moved on from commit %s, which "
            "is wanted here and not given any more. Nothing was replaced. For the newer weights run again with "
            "refresh=true (in a play: model_weights_refresh)." % (SHARD, node.name, node.called, first)
        )
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


class TestJob:
    def test_polled_to_its_end_and_told_once(self, node):
        node.hub.fault("hold", path=SHARD, at=1000)
        first = node.run(wait_s=0)
        assert (first["changed"], first["finished"]) == (False, False)
        assert sorted(first["progress"]) == [
            "bytes_done", "bytes_total", "eta_s", "file", "percent", "phase", "rate_bytes_s", "waiting",
        ]  # fmt: skip
        last = node.finish()
        assert (last["changed"], last["finished"]) == (True, True)
        assert not node.run()["changed"]
        assert not (node.job() / "state.json").exists()

    def test_progress_grows(self, node):
        held = node.hub.fault("hold", path=SHARD, at=10_000)
        total = sum(map(len, node.wanted().values()))
        seen = []

        def all_but_the_held():
            seen.append(node.run(wait_s=0)["progress"])
            return seen[-1]["file"] == SHARD and seen[-1]["bytes_done"] >= total - len(node.wanted()[SHARD])

        wait_until(all_but_the_held)
        loading = [item for item in seen if item["phase"] == "downloading"]
        done = [item["bytes_done"] for item in loading]
        assert done == sorted(done)
        assert {item["bytes_total"] for item in loading} == {total}
        assert done[-1] < total and loading[-1]["percent"] < 100
        held.release()
        assert node.finish()["progress"]["bytes_done"] == total

    def test_two_runs_start_one_job(self, node):
        node.hub.fault("hold", path=SHARD, at=1000)
        assert not node.run(wait_s=0)["finished"]
        pid = node.pid()
        assert not node.run(wait_s=0)["finished"]
        assert node.pid() == pid
        assert node.finish()["changed"]
        assert node.hub.asked(REPO, SHARD) == 1

    def test_the_connection_breaks(self, node):
        """The job has a session of its own, and goes on when the process that started it is gone."""
        held = node.hub.fault("hold", path=SHARD, at=1000)
        node.run(wait_s=0)
        assert os.getsid(node.pid()) == node.pid() != os.getsid(0)
        held.release()
        wait_until(lambda: node.phase() == "done", 120)
        assert node.found() == node.wanted()

    @both
    def test_killed_and_gone_on_with(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        big = gpt_oss(REPO, 5_000_000, shards=2, seed=8)
        hub.add(big)
        hub.fault("hold", at=4_000_000, path="*.safetensors")
        node.run(wait_s=0)
        wait_until(lambda: sum(size > 2_500_000 for size in node.incomplete_sizes()) == 2)
        os.kill(node.pid(), signal.SIGKILL)
        assert not node.destination.exists()
        hub.mend()
        sent = hub.sent(REPO)
        assert node.finish()["changed"]
        assert node.found() == node.wanted()
        total = sum(len(content) for content in node.wanted().values())
        # Each of the two open files may lose a piece that was not on the disk yet, and what was on its way.
        assert hub.sent(REPO) - sent < total - 2 * 2_000_000

    @both
    def test_a_wrong_setting_costs_nothing_of_what_has_come(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        hub.fault("hold", path=SHARD, at=1000)
        node.run(wait_s=0)
        staging = node.models / ".small.inference-fleet-new"
        whole = set(node.wanted()) - {SHARD}
        wait_until(lambda: all((staging / name).exists() for name in whole))
        node.kill()
        before = {path: path.read_bytes() for path in staging.rglob("*") if path.is_file()}
        node.refused(
            "The checkpoint in {name} is in format mxfp4, the recipe needs bf16. Serve another checkpoint or choose a "
            "recipe that takes this one.", format="bf16"
        )  # fmt: skip
        assert {path: path.read_bytes() for path in staging.rglob("*") if path.is_file()} == before
        hub.forget()
        assert node.finish()["changed"] and node.found() == node.wanted()
        assert set(hub.counts()[REPO]) == {SHARD}

    def test_what_came_of_another_revision_is_not_counted(self, node):
        """In check mode as in a run."""
        node.hub.fault("hold", path=SHARD, at=1000)
        node.run(wait_s=0)
        staging = node.models / ".small.inference-fleet-new"
        other = "model-00000-of-00014.safetensors"
        small = {name for name in node.wanted() if not name.endswith(".safetensors")}
        wait_until(lambda: all((staging / name).exists() for name in [other, *small]))
        node.kill()
        repository = node.hub.repositories[REPO]
        files = {**repository.files, other: gpt_oss_files(30_000, seed=4)[other]}
        repository.commit(files, refs=("next",))
        before = node.run(True)["to_fetch_bytes"]
        foreseen = node.run(True, revision="next")
        assert foreseen["to_fetch_bytes"] == before + files[other].size
        node.hub.forget()
        assert node.run(revision="next")["to_fetch_bytes"] == foreseen["to_fetch_bytes"]
        assert node.hub.sent(REPO, other) == files[other].size and not small & set(node.hub.counts()[REPO])

    def test_what_other_patterns_brought_is_no_part_of_it(self, node):
        node.hub.fault("hold", path=SHARD, at=1000)
        node.run(wait_s=0)
        wait_until((node.models / ".small.inference-fleet-new" / "README.md").exists)
        node.kill()
        assert node.run(exclude=["README.md", "original/*", "metal/*"])["changed"]
        wanted = node.wanted()
        del wanted["README.md"]
        assert node.found() == wanted

    def test_a_job_that_dies_at_once_is_told(self, node, tmp_path):
        toolkit = tmp_path / "broken" / "bin"
        toolkit.mkdir(parents=True)
        (toolkit / "python").write_text("#!/bin/sh\necho no such thing >&2\nexit 1\n")
        (toolkit / "python").chmod(0o755)
        failed = node.run(toolkit=str(toolkit.parent))
        assert failed["msg"] == (
            "The job that brings %s to %s did not start. The last lines of %s/log:\nno such thing"
            % (node.name, node.destination, str(node.job()))
        )

    def test_a_job_that_dies_again_and_again_is_told(self, node):
        node.hub.fault("hold", path="*.json", at=0)
        for death in range(4):
            assert not node.run(wait_s=0)["finished"], death
            wait_until(lambda: node.phase() == "downloading")
            os.kill(node.pid(), signal.SIGKILL)
            wait_until(lambda: not jobs.Job(str(node.job().parent), TOOLKIT, str(node.destination)).alive())
        failed = node.run(wait_s=0)
        assert failed["msg"].startswith(
            "The job that brings %s to %s died 4 times without getting further. The last lines of %s/log:\n"
            % (node.name, node.destination, str(node.job()))
        )

    def test_another_job_for_the_same_place(self, node):
        node.hub.fault("hold", path=SHARD, at=1000)
        node.run(wait_s=0)
        pid = node.pid()
        failed = node.run(wait_s=0, exclude=["original/*", "metal/*", "README.md"])
        assert failed["msg"] == (
            "Another job brings weights to %s: %s, process %d. Wait until it has ended, or end it with `kill %d`; "
            "what has come stays." % (node.destination, node.name, pid, pid)
        )
        assert node.finish()["changed"]

    def test_another_way_to_the_same_weights(self, node, monkeypatch):
        """A wrong proxy: the job that tries in vain is ended; its successor goes on and is not ended in turn."""
        monkeypatch.setattr(jobs, "STUCK_S", 0.5)
        node.hub.fault("stall", path=SHARD, at=1000, seconds=600, count=2)
        node.run(wait_s=0, timeout_s=600)
        pid = node.pid()
        wait_until(lambda: node.hub.asked(REPO, SHARD) == 1)
        wait_until(lambda: node.run(wait_s=0, timeout_s=500) and node.pid() != pid)
        second = node.pid()
        wait_until(lambda: node.hub.asked(REPO, SHARD) == 2)
        wait_until(lambda: time.time() - node.kept_state()["moved"] > 1)
        assert not node.run(wait_s=0, timeout_s=600)["finished"] and node.pid() == second
        wait_until(lambda: node.run(wait_s=0) and node.pid() != second)
        last = node.finish()
        assert last.get("changed"), last
        assert node.found() == node.wanted()

    def test_the_worker_needs_nothing_of_this_clone(self, tmp_path):
        """What runs on the node is one file; with -I no other path leads to the collection."""
        script = tmp_path / "worker.pyz"
        script.write_bytes(jobs.packed())
        code = "import sys; sys.path.insert(0, %r); import %s as worker; print(worker.__file__)" % (
            str(script), worker.__name__
        )  # fmt: skip
        done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(str(script))
        assert jobs.packed() == jobs.packed()


class TestLeftBehind:
    """A job that no play was told of: what it says is news, and no more than that."""

    @pytest.mark.parametrize("caller", [None, "second"])
    @pytest.mark.parametrize("verify", ["quick", "full"])
    def test_the_weights_are_gone_again(self, node, verify, caller):
        node.left_behind()
        shutil.rmtree(node.destination)
        result = node.run(verify=verify, caller=caller)
        assert (result["changed"], result["finished"], result["verified"]) == (True, True, "full")
        assert node.found() == node.wanted()

    @pytest.mark.parametrize("before", ["quick", "full"])
    def test_a_byte_rotted_since(self, node, before):
        assert node.left_behind(verify=before, caller="first")["result"]["verified"] == "full"
        rot(node.destination / SHARD)
        result = node.run(verify="full", caller="second")
        assert (result["repaired"], result["verified"]) == ([SHARD], "full")
        assert node.found() == node.wanted()

    def test_it_is_news_where_it_is_still_so_and_nothing_was_read(self, node):
        node.left_behind(caller="first")
        pid = node.pid()
        result = node.run(caller="second")
        assert (result["changed"], result["verified"], node.pid()) == (True, "quick", pid)
        assert result["message"].startswith("brought ")
        for caller in ("third", "second"):
            assert not node.run(caller=caller)["changed"]
        assert node.run(caller="first")["changed"]  # who waited for it is told, once
        assert node.kept_state() is None

    def test_a_new_time_is_looked_into_and_it_is_still_news(self, node):
        node.left_behind(caller="first")
        good = (node.destination / SHARD).read_bytes()
        (node.destination / SHARD).write_bytes(bytes(len(good)))
        result = node.run(caller="second")
        assert (result["changed"], result["repaired"]) == (True, [SHARD])
        assert result["message"].startswith("brought ") and "; repaired in " in result["message"]
        assert (node.destination / SHARD).read_bytes() == good

    def test_read_again_it_is_still_news(self, node):
        node.left_behind(caller="first")
        pid = node.pid()
        result = node.run(verify="full", caller="second")
        assert (result["changed"], result["verified"]) == (True, "full") and node.pid() != pid
        assert result["message"].startswith("brought ") and result["diff"]["before"] == "" != result["diff"]["after"]
        assert not node.run(verify="full", caller="third")["changed"]

    def test_a_listing_of_before_is_asked_for_again(self, node):
        node.run()
        node.left_behind(refresh=True, caller="first")
        node.hub.repositories[REPO].commit({**gpt_oss_files(30_000, seed=3), "README.md": b"new"})
        assert node.run(refresh=True, caller="second")["fetched"] == ["README.md"]

    def test_what_goes_again_and_again_is_an_error(self, node, monkeypatch):
        monkeypatch.setattr(model_weights, "_differs_from_hub", lambda wanted, strict: "config.json is missing")
        assert node.run()["msg"] == (
            "%s came to %s twice, and then config.json is missing. Something else changes that directory; find out "
            "what, and run again." % (node.name, node.destination)
        )
        monkeypatch.undo()
        assert node.run()["message"] == "up to date"

    def test_a_failure_without_the_token_that_is_there_now(self, capsys, tmp_path):
        with Hub([gpt_oss(REPO, 30_000, access="gated", tokens=[TOKEN])]) as hub:
            node = Node(capsys, tmp_path, hub)
            assert node.left_behind()["state"] == "failed"
            assert node.run(token=TOKEN)["changed"]
            assert node.found() == node.wanted()

    def test_a_failure_by_a_proxy_that_is_mended(self, node):
        node.left_behind(environment={"http_proxy": "http://127.0.0.1:9", "no_proxy": ""})
        assert node.run()["changed"]

    def test_a_failure_is_told_to_who_waited_for_it_alone(self, capsys, tmp_path):
        with Hub([gpt_oss(REPO, 30_000, access="gated", tokens=[TOKEN])]) as hub:
            node = Node(capsys, tmp_path, hub)
            node.left_behind(token="not-yet", caller="first")
            pid = node.pid()
            assert node.run(token="not-yet", caller="first")["problem"] == "access" and node.pid() == pid
            node.left_behind(token="not-yet", caller="first")
            hub.repositories[REPO].tokens.add("not-yet")  # the conditions were accepted meanwhile
            assert node.run(token="not-yet", caller="second")["changed"]

    def test_a_failure_between_two_looks_is_reported_once(self, capsys, tmp_path, monkeypatch):
        """The worker has written its end, and is not gone yet."""
        with Hub([gpt_oss(REPO, 30_000, access="gated", tokens=[TOKEN])]) as hub:
            node = Node(capsys, tmp_path, hub)
            given = {"token": "not-yet", "caller": "first"}
            node.left_behind(**given)
            with monkeypatch.context() as patch:
                patch.setattr(jobs.Job, "gone", lambda *_given: False)
                patch.setattr(jobs.Job, "alive", lambda _self: True)
                assert not node.run(wait_s=0, **given)["finished"]
            assert node.run(**given)["problem"] == "access"
            hub.repositories[REPO].tokens.add("not-yet")
            assert node.run(**given)["changed"]

    @pytest.mark.parametrize(("told", "changed"), [([], True), (["first"], False)])
    def test_the_end_of_a_job_that_an_older_version_started(self, node, told, changed):
        node.left_behind(caller="first")
        path = node.job() / "request.json"
        request = json.loads(path.read_text())
        old = {"way": request.pop("settings"), "callers": {"first": ""}, "told": told, "left": [], "owed": {}}
        for key in ("waiting", *jobs.BEFORE):
            del request[key]
        path.write_text(json.dumps({**request, **old}))
        assert node.run(caller="second")["changed"] is changed


class TestTwoPlays:
    """On one node, at the same weights."""

    @pytest.mark.parametrize("changes", [{"workers": 2}, {"environment": {"no_proxy": "*", "http_proxy": "http://p"}}])
    def test_who_wants_another_way_joins(self, node, changes):
        held = node.hub.fault("hold", path=SHARD, at=1000)
        ways, ends, pids = {"first": {}, "second": {**changes, "verify": "full"}}, {}, set()

        def all_told():
            for caller, way in ways.items():
                if caller not in ends:
                    result = node.run(wait_s=0, caller=caller, **way)
                    ends.update({caller: result} if result.get("failed") or result["finished"] else {})
                    pids.add(node.pid())
            held.release()  # now that both have asked
            return len(ends) == 2

        wait_until(all_told)
        assert [ends[caller]["changed"] for caller in ways] == [True, True], ends
        assert [ends[caller]["verified"] for caller in ways] == ["full", "full"]
        assert len(pids) == 1
        assert node.kept_state() is None

    def test_what_was_asked_comes_after_what_was_at_work(self, node, monkeypatch):
        node.run()
        (node.destination / SHARD).unlink()
        held = node.hub.fault("hold", path=SHARD, at=1000)
        assert not node.run(wait_s=0, caller="first")["finished"]
        pid, turn = node.pid(), jobs.Job._turn

        def asked(self, *more):
            try:
                return turn(self, *more)
            finally:
                held.release()

        monkeypatch.setattr(jobs.Job, "_turn", asked)
        rotten = "model-00005-of-00014.safetensors"
        rot(node.destination / rotten)
        result = node.run(verify="full", caller="second")
        assert result["repaired"] == [rotten] and node.pid() != pid
        assert result["message"].startswith("repaired in %s: %s is missing; repaired in " % (node.destination, SHARD))
        assert node.found() == node.wanted()

    @pytest.mark.parametrize("good", [True, False])
    def test_the_failure_of_one_way_is_told_to_who_asked_for_it(self, node, good):
        """And to nobody else; where neither way leads there they are not tried in turn."""
        node.hub.fault("stall", path="*", at=0, seconds=600, on="list", count=1)
        first, second = {"workers": 2, "caller": "first", "timeout_s": 10}, {"workers": 3, "caller": "second"}
        assert not node.run(wait_s=0, **first)["finished"]
        if not good:
            node.hub.fault("page", path="*", on="list")
        ended = node.run(**second)
        assert ended["changed"] if good else ended["problem"] == "foreign", ended
        asked = node.hub.asked(REPO, "", kinds=("list",))
        ended = node.run(**first)
        assert ended["message"] == "up to date" if good else ended["problem"] == "network", ended
        assert node.hub.asked(REPO, "", kinds=("list",)) == asked == 2

    @pytest.mark.parametrize("caller", [None, "each its own"])
    @pytest.mark.parametrize("starter", [True, False])
    def test_one_is_told_the_end_before_the_other_looks(self, node, monkeypatch, starter, caller):
        """Two that wait in their calls: neither is told that the job did not start."""
        given = {
            "include": [], "exclude": ["original/*", "metal/*"], "token": None, "refresh": False, "workers": 8,
            "verify": "quick", "draft": None, "draft_repo": None, "draft_revision": None, "draft_eagle3": False,
            "ca_bundle": None, "sha256sums": None, "sums": None, "min_rate": 0, "min_rate_window_s": 60,
            **node.arguments,
        }  # fmt: skip
        fault = node.hub.fault("hold", path=SHARD, at=1000)
        turn, waits, told, looks, ends = jobs.Job._turn, threading.Event(), threading.Event(), [], {}
        asked = set()

        def held(self, *more):
            """The held call has one look, and the next when the other one has been told."""
            if threading.current_thread().name == "held":
                looks.append(1)
            try:
                return turn(self, *more)
            finally:
                asked.add(threading.current_thread().name)
                if len(asked) == 2:
                    fault.release()

        def pause(seconds):
            if threading.current_thread().name == "held" and looks:
                waits.set()
                told.wait(300)
            else:
                sleep(seconds)

        sleep = time.sleep
        monkeypatch.setattr(jobs.Job, "_turn", held)
        monkeypatch.setattr(jobs.time, "sleep", pause)

        def call(name):
            try:
                ends[name] = model_weights.bring({**given, "caller": caller and name})
            except FleetError as error:
                ends[name] = {"failed": error.message}
            if name == "other":
                told.set()

        def begin(name):
            thread = threading.Thread(target=call, args=(name,), name=name)
            thread.start()
            return thread

        order = ["held", "other"] if starter else ["other", "held"]
        threads = [begin(order[0])]
        wait_until(lambda: list(node.root.glob("var/lib/inference-fleet/jobs/weights-*/pid")))
        threads.append(begin(order[1]))
        for thread in threads:
            thread.join()
        assert waits.is_set()
        assert [end.get("finished") for end in ends.values()] == [True, True], ends
        assert ends["other"]["changed"] and ends["held"]["changed"] == bool(caller)
        assert node.hub.asked(REPO, SHARD) == 1


def test_the_last_state_stays(tmp_path):
    """One that was being made when the job ended does not take its place."""
    reporter = worker.Reporter(str(tmp_path / "state.json"), Progress(), Redactor())
    late = reporter.state("running")
    reporter.end(reporter.state("done"))
    reporter.write(late)
    assert json.loads((tmp_path / "state.json").read_text())["state"] == "done"


class TestTwoNodes:
    """Nodes that share a mount, or two fleet_roots: each has jobs of its own, and they have one destination."""

    @pytest.fixture
    def another(self, node):
        """The second: the same destination, another root."""
        other = Node(node.capsys, node.root.parent, node.hub)
        other.root = node.root.parent / "another-root"
        other.arguments["root"] = str(other.root)
        return other

    def waiting(self, node):
        """What a node says that waits for another."""
        return wait_until(lambda: "waiting" in (found := node.run(wait_s=0))["message"] and found)

    def test_one_brings_the_other_waits(self, node, another):
        held = node.hub.fault("hold", path=SHARD, at=1000)
        assert not node.run(wait_s=0)["finished"]
        wait_until(lambda: node.hub.asked(REPO, SHARD))
        told = self.waiting(another)
        phase = told["progress"]["phase"]
        assert phase.startswith("waiting for %s (process %d, since " % (os.uname().nodename, node.pid()))
        assert told["message"] == "%s to bring %s" % (phase, node.name)
        assert node.hub.asked(REPO, SHARD) == 1
        held.release()
        assert node.finish()["changed"]
        ended = another.finish()
        assert (ended["changed"], ended["message"], ended["fetched"]) == (False, "up to date", [])
        assert node.found() == node.wanted() and node.hub.asked(REPO, SHARD) == 1
        assert os.listdir(node.models) == ["small"]

    @both
    def test_the_other_goes_on_where_a_killed_one_was(self, capsys, tmp_path, source):
        with Hub([gpt_oss(REPO, 5_000_000, shards=2, seed=8)]) as hub:
            node, another = (Node(capsys, tmp_path, hub, source) for _number in range(2))
            another.arguments["root"] = str(tmp_path / "another-root")
            held = hub.fault("hold", at=4_000_000, path="*.safetensors")
            node.run(wait_s=0)
            wait_until(lambda: sum(node.incomplete_sizes()) > 4_000_000)
            self.waiting(another)
            os.kill(node.pid(), signal.SIGKILL)
            held.release()
            assert another.finish()["changed"]
            assert another.found() == another.wanted()
            assert os.listdir(node.models) == ["small"]

    def test_who_waits_is_not_given_up_for_another_way(self, node, another, monkeypatch):
        node.hub.fault("hold", path=SHARD, at=1000)
        node.run(wait_s=0)
        wait_until(lambda: node.hub.asked(REPO, SHARD))
        self.waiting(another)
        monkeypatch.setattr(jobs, "STUCK_S", -1)
        pid = another.pid()
        assert not another.run(wait_s=0, workers=3, caller="another way")["finished"]
        assert another.pid() == pid
        assert node.finish()["changed"] and another.finish()["finished"]


def test_a_destination_that_cannot_be_looked_at(node, monkeypatch):
    """It is told in one sentence before a draft comes, too."""

    def refuse(destination, *_more, **_options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), destination)

    monkeypatch.setattr(model_weights, "own_manifest", refuse)
    assert node.run(draft=str(node.models / "draft"), draft_repo=DRAFT)["msg"] == (
        "Cannot bring %s to %s: [Errno 13] Permission denied: '%s'." % (REPO, node.destination, node.destination)
    )


class TestRefused:
    def test_an_unknown_repository(self, node):
        node.hub.repositories.clear()
        node.refused(
            "{hub} does not know the repository made-up/gpt-oss-small (HTTP 404), or hides it. Check repo; if it is "
            "private, give a token that may read it."
        )

    def test_an_unknown_revision(self, node):
        node.name = REPO + " at revision v9"
        node.refused(
            "{hub} has no revision v9 of made-up/gpt-oss-small (HTTP 404). Check revision: a commit, a tag or a "
            "branch.",
            revision="v9",
        )

    @both
    def test_a_gated_repository(self, capsys, tmp_path, source):
        with Hub([gpt_oss(REPO, 30_000, access="gated", tokens=[TOKEN])]) as hub:
            node = Node(capsys, tmp_path, hub, source)
            failed = node.refused(
                "{hub} does not give {name} without a token that may read it (HTTP 401). Accept the conditions of the "
                "repository on its page, and give such a token."
            )
            assert failed["problem"] == "access"
            assert node.run(token=TOKEN)["changed"]
            assert node.found() == node.wanted()

    def test_no_room(self, node, monkeypatch):
        files = node.hub.repositories[REPO].files
        node.hub.fault("listing", sizes={SHARD: 1 << 50})
        total = (1 << 50) + sum(
            files[path].size for path in files if path != SHARD and not path.startswith(("original/", "metal/"))
        )
        failed = node.run()
        assert (failed["needed_bytes"], failed["free_bytes"] < total) == (total, True)
        assert failed["msg"] == (
            "Not enough space for the weights: %s needs 1048576.0 GiB, and the file system of %s has %s free. "
            "Free some, or choose another destination."
            % (node.destination, node.models, weight_manifest.amount(failed["free_bytes"]))
        )
        assert not node.models.exists()

    def test_another_model(self, node):
        node.run()
        node.refused(
            "{destination} holds another model, made-up/gpt-oss-small (source huggingface), and made-up/other (source "
            "huggingface) is wanted there; it is left as it is. Choose another destination, or remove it.",
            repo="made-up/other",
        )

    def test_files_of_unknown_origin(self, node):
        node.destination.mkdir(parents=True)
        (node.destination / "thesis.txt").write_text("three years")
        node.refused(
            "{destination} holds files that this collection did not put there (thesis.txt); they are left as they are. "
            "Choose another destination, or remove them."
        )

    def test_a_pattern_that_matches_nothing(self, node):
        held = "It holds: .gitattributes, LICENSE, README.md, USAGE_POLICY, chat_template.jinja and 32 more."
        node.refused("include has the pattern '*.bin2', which matches no file of {name}. " + held, include=["*.bin2"])
        node.refused("exclude has the pattern 'orginal/*', which matches no file of {name}. " + held,
                     exclude=["orginal/*"])  # fmt: skip

    def test_patterns_that_leave_nothing(self, node):
        node.refused(
            "include and exclude leave no file of {name}. It holds: .gitattributes, LICENSE, README.md, USAGE_POLICY, "
            "chat_template.jinja and 32 more.", include=["*.bin"]
        )  # fmt: skip

    def test_a_pattern_that_leaves_out_what_every_server_needs(self, node):
        node.refused(
            "include and exclude leave out config.json, tokenizer.json of {name}, and no server can do without them. "
            "Change the patterns.", include=["*.safetensors", "*index.json"]
        )  # fmt: skip

    @both
    def test_a_pattern_that_leaves_out_a_shard(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        node.refused(
            "include and exclude leave out model-00014-of-00014.safetensors of {name}, and its index names it. "
            "Change the patterns.", exclude=["*-00014-of-*", "original/*", "metal/*"]
        )  # fmt: skip
        assert hub.sent(REPO, SHARD) == 0

    def test_a_listing_that_hides_a_shard(self, node):
        node.hub.fault("listing", drop=[SHARD])
        node.refused(
            "{hub} does not list %s for {name}, and its index names it. The checkpoint is incomplete; check repo and "
            "revision." % SHARD
        )

    def test_a_listing_that_lied_is_not_kept(self, node):
        node.hub.fault("listing", sha256={SHARD: "a" * 64})
        good = node.hub.repositories[REPO].files[SHARD].sha256
        node.refused(
            "%s of {name} came 3 times from {hub}, and was of sha256 %s, listed is %s. Nothing was replaced. The hub "
            "or a proxy on the way gives wrong data; try later, or another endpoint." % (SHARD, good, "a" * 64),
            check_too=False,
        )
        node.hub.mend()
        node.hub.forget()
        assert node.run()["changed"] and node.found() == node.wanted()
        assert node.hub.sent(REPO, "config.json") == 0

    @pytest.mark.parametrize("toolkit", [TOOLKIT, "/none"], ids=["the client", "without the toolkit"])
    def test_a_mirror_that_gives_its_own_head_for_every_commit(self, node, toolkit):
        commit = known.GPT_OSS_120B.commit
        mirror = node.hub.add(gpt_oss(known.GPT_OSS_120B.repo, 30_000))
        mirror.resolve = lambda revision: mirror.head
        wanted = {"repo": mirror.name, "revision": commit}
        message = (
            "{hub} lists commit %s for %s at revision %s, which is a commit itself. The hub, a mirror or a proxy does "
            "not keep to the revision that it is asked for; choose another endpoint, or another revision."
            % (mirror.head, mirror.name, commit)
        )
        if toolkit == TOOLKIT:
            node.refused(message, **wanted)
            assert not node.models.exists()
        else:  # of known files nothing is asked there
            wanted["include"] = ["*.json", "*.safetensors"]
            assert node.run(True, toolkit=toolkit, **wanted)["msg"] == message.format(hub=node.called)

    def test_what_such_a_mirror_once_gave_is_replaced(self, node):
        """Of a version of this collection that took it."""
        node.run()
        repository = node.hub.repositories[REPO]
        commit = repository.commit(gpt_oss_files(30_000, seed=9))
        manifest = node.manifest()
        (node.destination / weight_manifest.MANIFEST).write_text(json.dumps({**manifest, "revision": commit}))
        assert node.run(revision=commit)["commit"] == commit
        assert node.found() == node.wanted()

    def test_a_listing_that_such_a_mirror_once_gave_is_asked_for_again(self, node):
        repository = node.hub.repositories[REPO]
        held = node.hub.fault("hold", path=SHARD, at=1000)
        node.run(wait_s=0, revision=repository.head)
        wait_until(lambda: node.phase() == "downloading" and held.happened)
        node.kill()
        record = node.models / ".small.inference-fleet-new" / ".listing.json"
        record.write_text(json.dumps({**json.loads(record.read_text()), "commit": "a" * 40}))
        assert node.finish(revision=repository.head)["commit"] == repository.head
        assert node.found() == node.wanted()

    def test_a_hub_that_names_no_commit(self, hub):
        wanted = hub_package.Desired("huggingface", REPO, "main", "/models/small", hub.endpoint)
        client = huggingface.Client(wanted, None)
        client._json = lambda *_given: ({}, None)
        with pytest.raises(hub_package.HubProblem) as problem:
            client.listing()
        assert (problem.value.kind, problem.value.text) == ("foreign", "no commit")
        assert hub.requests == []

    @both
    def test_a_listing_without_a_checksum(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        hub.fault("listing", path="*", sha256={SHARD: "", "metal/model.bin": ""})
        hub.fault("flip", path=SHARD)
        node.refused(
            "{hub} lists no checksum of %s of {name}, so that nobody could tell whether the right bytes come. Choose "
            "another endpoint, or leave out by exclude what servers do not need." % SHARD
        )
        assert hub.sent() == 0
        hub.mend()
        hub.fault("listing", path="*", sha256={"metal/model.bin": ""})
        assert node.run()["changed"] and node.found() == node.wanted()

    @both
    def test_a_page_of_a_portal_instead_of_a_listing(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        hub.fault("page", on=["info", "list"])
        node.refused(
            "{hub} answers for {name} with something that is no listing (no JSON). A proxy or a portal may stand "
            "in the way; check endpoint and proxies.", check_too=False
        )  # fmt: skip

    def test_a_full_disk_in_the_middle(self, tmp_path):
        problem = hub_package.HubProblem("disk", "No space left on device")
        problem.path = SHARD
        wanted = hub_package.Desired("huggingface", REPO, "main", "/models/small", "https://hub")
        assert hub_package.explained(problem, wanted).message == (
            "Cannot write %s of %s at revision main below /models: No space left on device." % (SHARD, REPO)
        )

    @pytest.mark.parametrize("step", ["open", "write", "close", "rename"])
    def test_what_of_hugging_face_is_the_disks_fault(self, hub, tmp_path, monkeypatch, step):
        wanted = hub_package.Desired("huggingface", REPO, "main", str(tmp_path / "small"), hub.endpoint, timeout_s=60)
        client = huggingface.Client(wanted, None)
        listing = client.listing()

        def full(*_given):
            raise OSError(errno.ENOSPC, "No space left on device")

        class Full(io.BytesIO):
            write = full if step == "write" else io.BytesIO.write
            __exit__ = full if step == "close" else io.BytesIO.__exit__

        if step == "rename":
            monkeypatch.setattr(os, "rename", full)
        else:
            opened = full if step == "open" else lambda *_given: Full()
            monkeypatch.setattr(digest, "open", opened, raising=False)
        with pytest.raises(hub_package.HubProblem) as problem:
            client.fetch(listing, "config.json", str(tmp_path))
        assert (problem.value.kind, problem.value.text) == ("disk", "No space left on device")

    @both
    def test_what_is_not_the_disks_fault(self, source):
        """A library that cannot read a file of its own, while it asks the hub."""
        wanted = hub_package.Desired(source, REPO, "main", "/models/small", "http://127.0.0.1:9")
        module_of = {"huggingface": huggingface, "modelscope": modelscope}[source]
        error = FileNotFoundError(2, "No such file or directory")
        assert module_of.Client(wanted, None)._problem(error).kind != "disk"

    def test_what_of_modelscope_is_the_disks_fault(self):
        wanted = hub_package.Desired("modelscope", REPO, "master", "/models/small", "http://127.0.0.1:9")
        client = modelscope.Client(wanted, None)
        for error, kind in (
            (OSError(errno.ENOSPC, "No space left on device"), "disk"),
            (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "network"),
        ):
            assert client._problem(error, 1, fetching=True).kind == kind

    def test_a_path_that_leads_elsewhere(self, node):
        node.hub.fault("listing", add={"../../evil": 3})
        node.refused('{hub} lists a file "../../evil" for {name}; that is no path.')
        assert not (node.models.parent / "evil").exists()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"endpoint": "ftp://hub"}, "endpoint is 'ftp://hub'; allowed: the http or https address of a hub, without "
             "a user, such as https://huggingface.co."),
            ({"endpoint": "https://me:pw@hub"}, "endpoint is 'https://***@hub'; allowed: the http or https address "
             "of a hub, without a user, such as https://huggingface.co."),
            ({"repo": "gpt-oss"}, "repo is 'gpt-oss'; allowed: a repository of Hugging Face, ORG/NAME."),
            ({"repo": "a/../b"}, "repo is 'a/../b'; allowed: a repository of Hugging Face, ORG/NAME."),
            ({"environment": {"HF_TOKEN": TOKEN}}, "environment sets HF_TOKEN; a token is given by `token`, which "
             "keeps it out of logs. environment is for proxies and the like."),
            ({"workers": 0}, "workers is 0; allowed: 1 or more."),
            ({"retries": -1}, "retries is -1; allowed: 0 or more."),
            ({"destination": "/"}, "destination is '/'; it must be the absolute path of a directory."),
            ({"draft_repo": DRAFT}, "draft_repo is %s, but draft, its directory, is not set." % DRAFT),
            ({"root": "here"}, "root is 'here'; it must be an absolute path, or empty for the system's own folders."),
        ],
    )  # fmt: skip
    def test_wrong_options(self, node, changes, message):
        failed = node.run(**changes)
        assert failed["msg"] == message

    def test_no_toolkit(self, node, tmp_path):
        node.refused("There is no Python environment in %s/none; run the role toolkit first." % tmp_path,
                     check_too=False, toolkit=str(tmp_path / "none"))  # fmt: skip

    def test_a_toolkit_without_the_client(self, node, tmp_path):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
        failed = node.run(toolkit=str(tmp_path / "bare"))
        assert failed["msg"] == (
            "The toolkit's Python environment has no client for %s (No module named 'huggingface_hub'). Run the role "
            "toolkit with this recipe." % node.called
        )


class TestWrongCheckpoint:
    """Refused by config.json, before a shard is asked for."""

    @both
    @pytest.mark.parametrize(
        ("made", "wanted", "message"),
        [
            ({"model_format": "mxfp4"}, "bf16", "The checkpoint in {name} is in format mxfp4, the recipe needs bf16. "
             "Serve another checkpoint or choose a recipe that takes this one."),
            ({"model_format": "bf16"}, "mxfp4", "The checkpoint in {name} is in format bf16, the recipe needs mxfp4. "
             "Serve another checkpoint or choose a recipe that takes this one."),
            ({"model_type": "llama"}, "mxfp4", 'config.json: model_type is "llama", allowed: "gpt_oss". '
             "This collection serves gpt-oss checkpoints only."),
        ],
    )  # fmt: skip
    def test_of_another_kind(self, capsys, tmp_path, source, made, wanted, message):
        with Hub([gpt_oss(REPO, 30_000, **made)]) as hub:
            node = Node(capsys, tmp_path, hub, source)
            node.refused(message, format=wanted)
            foreseen = node.run(True, format=wanted, toolkit=str(tmp_path / "none"))
            assert foreseen["msg"] == message.format(name=node.name)
            assert [path for path in hub.counts().get(REPO, {}) if path.endswith("safetensors")] == []
            assert not node.models.exists()

    def test_of_another_kind_once_it_is_there(self, node):
        node.run()
        for verify in ("quick", "full"):
            node.refused(
                "The checkpoint in {destination} is in format mxfp4, the recipe needs bf16. Serve another checkpoint "
                "or choose a recipe that takes this one.", format="bf16", verify=verify
            )  # fmt: skip

    @both
    def test_small_files_that_do_not_come_in_check_mode(self, capsys, tmp_path, hub, source, monkeypatch):
        """That is said; what the hub refuses is refused."""
        warnings = []
        monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warnings.append(text))
        node = Node(capsys, tmp_path, hub, source)
        for toolkit in (TOOLKIT, str(tmp_path / "none")):
            hub.fault("status", path="config.json", status=503, on=["get", "head", "redirect"])
            foreseen = node.run(True, toolkit=toolkit)
            assert foreseen["message"] == "would bring %s in %s; how much is not known" % (node.name, node.destination)
            assert warnings.pop() == (
                "Not looked at: %s is overloaded or out of order: HTTP 503 for config.json of %s, 1 attempt. What was "
                "downloaded is kept; run again later." % (node.called, node.name)
            )
            hub.mend()
            hub.fault("status", path="config.json", status=404, code="EntryNotFound", on=["get", "head", "redirect"])
            assert node.run(True, toolkit=toolkit)["msg"] == (
                "%s does not have config.json of %s (HTTP 404). Check repo and revision." % (node.called, node.name)
            )
            hub.mend()
        assert not node.models.exists() and not node.root.exists()

    def test_known_files_that_a_hub_lists_otherwise(self, node):
        commit = known.GPT_OSS_120B.commit
        repository = gpt_oss(known.GPT_OSS_120B.repo, 30_000)
        repository.commits[commit] = repository.files
        for path in repository.files:
            repository.changed_in[commit, path] = commit
        node.hub.add(repository)
        failed = node.run(repo=known.GPT_OSS_120B.repo, revision=None)
        assert failed["msg"].startswith(
            "%s does not list the files that openai/gpt-oss-120b commit %s is known to have: .gitattributes has "
            % (node.called, commit)
        )
        assert failed["msg"].endswith(
            "and 20 more. The hub, a mirror or a proxy is not to be trusted; choose another endpoint."
        )


def draft_files(hidden_size=2880, vocab_size=201088):
    config = {"model_type": "llama", "hidden_size": hidden_size, "vocab_size": vocab_size}
    return {"config.json": json.dumps(config).encode(), "model.safetensors": safetensors("fc.weight", 5000, 1).bytes()}


def head_files(tensors=None):
    """An EAGLE3 head for the model of these tests, by its header; its data are few."""
    config = {**heads.CONFIG, "hidden_size": 2880, "vocab_size": 201088, "draft_vocab_size": 201088}
    shapes = {
        name if name in heads.OUTER else "midlayer." + name: shape for name, shape in eagle3.shapes(config).items()
    }
    entries = {
        name: {"dtype": "U8", "shape": shape, "data_offsets": [0, 1 << 20]}
        for name, shape in {**shapes, **(tensors or {})}.items()
    }
    text = json.dumps(entries).encode()
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": Content(len(text).to_bytes(8, "little") + text, 1 << 20, 5),
    }


class TestDraft:
    def test_both_come_by_one_task(self, node):
        node.hub.add(Repository(DRAFT, draft_files()))
        draft = node.models / "draft"
        given = {"draft": str(draft), "draft_repo": DRAFT}
        check, applied = node.four_steps(**given)
        size = sum(map(len, draft_files().values()))
        assert check["to_fetch_bytes"] == size + sum(map(len, node.wanted().values()))
        assert (applied["draft"]["path"], applied["draft"]["commit"]) == (str(draft), node.hub.repositories[DRAFT].head)
        assert (draft / "model.safetensors").read_bytes() == draft_files()["model.safetensors"]
        assert node.found() == node.wanted()
        assert sorted(os.listdir(node.models)) == ["draft", "small"]

    @pytest.mark.parametrize(
        ("sizes", "text"),
        [({"hidden_size": 2048}, "hidden_size 2048, but {name} has 2880"),
         ({"vocab_size": 7}, "vocab_size 7, but {name} has 201088")],
    )  # fmt: skip
    def test_one_that_does_not_fit_is_refused_before_anything_large_comes(self, node, sizes, text):
        node.hub.add(Repository(DRAFT, draft_files(**sizes)))
        node.refused(
            "The draft model %s has " % DRAFT + text + "; speculative decoding with it cannot work. Choose a draft "
            "that was made for this model.", draft=str(node.models / "draft"), draft_repo=DRAFT
        )  # fmt: skip
        assert {path for files in node.hub.counts().values() for path in files} == {
            "config.json", "model.safetensors.index.json"
        }  # fmt: skip

    def test_one_that_went_while_the_model_failed(self, node):
        node.hub.add(Repository(DRAFT, draft_files()))
        fault = node.hub.fault("status", path=SHARD, status=500)
        draft = node.models / "draft"
        given = {"draft": str(draft), "draft_repo": DRAFT}
        assert node.run(**given)["problem"] == "busy" and fault.happened
        shutil.rmtree(draft)
        node.hub.mend()
        result = node.run(**given)
        assert (result["changed"], result["draft"]["verified"]) == (True, "full")
        assert (draft / "model.safetensors").read_bytes() == draft_files()["model.safetensors"]

    def test_one_that_rotted_while_the_model_failed(self, node):
        node.hub.add(Repository(DRAFT, draft_files()))
        node.hub.fault("status", path=SHARD, status=500)
        draft = node.models / "draft"
        given = {"draft": str(draft), "draft_repo": DRAFT, "verify": "full"}
        node.run(**given, caller="first")
        rot(draft / "model.safetensors")
        node.hub.mend()
        result = node.run(**given, caller="second")
        assert (result["repaired"], result["draft"]["verified"]) == (["model.safetensors"], "full")

    def test_one_that_goes_while_the_model_comes(self, node, monkeypatch):
        node.hub.add(Repository(DRAFT, draft_files()))
        draft, real = node.models / "draft", model_weights.ensure_from_hub

        def ensure(wanted, *more):
            result = real(wanted, *more)
            if not wanted.draft:
                (draft / "config.json").unlink()
            return result

        monkeypatch.setattr(model_weights, "ensure_from_hub", ensure)
        assert node.run(draft=str(draft), draft_repo=DRAFT)["msg"] == (
            "The draft model %s at revision main came to %s, and then config.json is missing. Something else changes "
            "that directory; find out what, and run again." % (DRAFT, draft)
        )

    def test_one_that_is_there_already_and_does_not_fit(self, node, tmp_path):
        draft = tmp_path / "draft"
        draft.mkdir()
        for name, content in draft_files(hidden_size=2048).items():
            (draft / name).write_bytes(content)
        node.refused(
            "The draft model %s has hidden_size 2048, but made-up/gpt-oss-small has 2880; speculative decoding with it "
            "cannot work. Choose a draft that was made for this model." % draft, check_too=False, draft=str(draft)
        )  # fmt: skip
        assert node.hub.sent(REPO, SHARD) == 0

    def test_one_that_is_there_already_is_recorded_and_compared(self, node, tmp_path):
        draft = tmp_path / "draft"
        draft.mkdir()
        for name, content in draft_files().items():
            (draft / name).write_bytes(content)
        _check, applied = node.four_steps(draft=str(draft))
        assert (applied["draft"]["changed"], applied["draft"]["verified"]) == (True, "structure")
        rot(draft / "model.safetensors")
        assert not node.run(draft=str(draft))["changed"]
        assert node.run(draft=str(draft), verify="full")["rotted"] == ["model.safetensors"]
        (draft / "model.safetensors").unlink()
        assert node.run(draft=str(draft))["msg"] == (
            "The draft model in %s is incomplete, missing: model.safetensors. Fetch or copy it again." % draft
        )

    @both
    def test_one_that_is_no_whole_checkpoint_on_the_hub_itself(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        hub.add(Repository(DRAFT, {**draft_files(), "model.safetensors": b"x" * 5000}))
        node.refused(
            "The draft model in %s at revision %s is damaged: model.safetensors has no safetensors header (5000 bytes "
            "long). Fetch or copy it again." % (DRAFT, BRANCHES[source]),
            check_too=False, draft=str(node.models / "draft"), draft_repo=DRAFT,
        )  # fmt: skip
        assert hub.sent(REPO, SHARD) == 0 and os.listdir(node.models) == [".draft.inference-fleet-new"]

    @both
    @pytest.mark.parametrize("start", [True, False], ids=["the hub gives the start", "it does not"])
    def test_a_head_that_the_engine_does_not_run(self, capsys, tmp_path, hub, source, start):
        """Told before its weights come where the hub gives the start of a file, else before the model comes."""
        node = Node(capsys, tmp_path, hub, source)
        hub.add(Repository(DRAFT, head_files({"eagle_norm.weight": [2880]})))
        given = {"draft": str(node.models / "draft"), "draft_repo": DRAFT, "draft_eagle3": True}
        if not start:
            hub.fault("status", path="model.safetensors", on=["redirect", "get"], status=404, count=1)
        name = "%s at revision %s" % (DRAFT, BRANCHES[source])
        failed = node.refused(
            "The draft model in %s is no EAGLE3 head that NxD Inference runs: layer eagle_norm.weight is unknown to "
            "it. It runs heads of the Llama 3 dense architecture with the layers %s. %s"
            % (name, eagle3.LAYERS, eagle3.INSTEAD),
            check_too=False, **given,
        )  # fmt: skip
        assert failed["layers"] == ["layer eagle_norm.weight is unknown to it"]
        assert (hub.sent(DRAFT, "model.safetensors") < 1 << 20) == start
        assert hub.sent(REPO, SHARD) == 0
        hub.mend()
        hub.add(Repository(DRAFT, head_files()))
        assert node.run(**given)["draft"]["verified"] == "full"
        assert not node.run(**given)["changed"]

    @both
    def test_a_head_of_another_configuration(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        hub.add(Repository(DRAFT, draft_files()))
        failed = node.run(draft=str(node.models / "draft"), draft_repo=DRAFT, draft_eagle3=True)
        assert failed["msg"].startswith(
            "config.json describes no EAGLE3 head that NxD Inference runs: architectures is "
        )
        assert hub.sent(DRAFT, "model.safetensors") == 0 and not node.models.exists()

    @both
    @pytest.mark.parametrize(
        ("made", "message"),
        [
            ({"model_format": "bf16"}, "The checkpoint in {name} is in format bf16, the recipe needs mxfp4. Serve "
             "another checkpoint or choose a recipe that takes this one."),
            ({"model_type": "llama"}, 'config.json: model_type is "llama", allowed: "gpt_oss". This collection serves '
             "gpt-oss checkpoints only."),
        ],
    )  # fmt: skip
    def test_a_model_of_another_kind_is_told_before_its_draft_comes(self, capsys, tmp_path, source, made, message):
        with Hub([gpt_oss(REPO, 30_000, **made), Repository(DRAFT, draft_files())]) as hub:
            node = Node(capsys, tmp_path, hub, source)
            node.refused(message, draft=str(node.models / "draft"), draft_repo=DRAFT)
            assert hub.sent(DRAFT, "model.safetensors") == 0 and not node.models.exists()

    def test_a_model_that_lacks_a_shard_is_told_before_its_draft_comes(self, node):
        node.hub.add(Repository(DRAFT, draft_files()))
        node.refused(
            "include and exclude leave out %s of {name}, and its index names it. Change the patterns." % SHARD,
            draft=str(node.models / "draft"), draft_repo=DRAFT, exclude=["*-00003-of-*"],
        )  # fmt: skip
        assert node.hub.sent(DRAFT, "model.safetensors") == 0

    def test_another_model_at_the_destination_is_told_before_its_draft_comes(self, node):
        node.run()
        node.hub.add(Repository(DRAFT, draft_files()))
        failed = node.run(repo="made-up/other", draft=str(node.models / "draft"), draft_repo=DRAFT)
        assert failed["msg"].startswith("%s holds another model, %s " % (node.destination, REPO))
        assert node.hub.sent(DRAFT) == 0


class TestCheckMode:
    @both
    def test_without_the_toolkit_the_hub_is_asked_all_the_same(self, capsys, tmp_path, source):
        with Hub([gpt_oss(REPO, 30_000, access="private", tokens=[TOKEN])], page=10) as hub:
            node = Node(capsys, tmp_path, hub, source)
            proxied = {
                "endpoint": "http://hub.example.org", "environment": {"HTTP_PROXY": hub.endpoint, "NO_PROXY": ""}
            }  # fmt: skip
            for ways in ({}, proxied):
                foreseen = node.run(True, toolkit=str(tmp_path / "none"), token=TOKEN, **ways)
                assert foreseen["fetched"] == sorted(node.wanted()), foreseen
                assert foreseen["to_fetch_bytes"] == sum(map(len, node.wanted().values()))
                assert foreseen["commit"] == hub.repositories[REPO].head
            assert [entry["proxied"] for entry in hub.requests if entry["kind"] == "list"][-1]
            assert not node.models.exists() and not node.root.exists()
            refused = node.run(True, toolkit=str(tmp_path / "none"))
            assert refused["problem"] in ("repository", "access")
            missing = node.run(True, toolkit=str(tmp_path / "none"), token=TOKEN, revision="v9")
            assert missing["problem"] == "revision"

    @both
    def test_without_the_toolkit_and_with_the_hub_down_it_says_so(self, capsys, tmp_path, hub, source, monkeypatch):
        warnings = []
        monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warnings.append(text))
        node = Node(capsys, tmp_path, hub, source)
        hub.stop()
        foreseen = node.run(True, toolkit=str(tmp_path / "none"))
        assert foreseen["message"] == "would bring %s in %s; how much is not known" % (node.name, node.destination)
        assert warnings == [
            "Not looked at: %s cannot be reached, or breaks off: [Errno 111] Connection refused for %s, 1 attempt. "
            "What was downloaded is kept; check endpoint, proxies and certificates, and run again."
            % (node.called, node.name)
        ]

    def test_without_the_toolkit_the_known_files_are_told(self, node, tmp_path):
        foreseen = node.run(True, repo="openai/gpt-oss-120b", revision=None, toolkit=str(tmp_path / "none"))
        assert foreseen["to_fetch_bytes"] == 65_276_859_410
        assert len(foreseen["fetched"]) == 26
        assert foreseen["message"] == (
            "would bring openai/gpt-oss-120b at revision b5c939de8f754692c1647ca79fbf85e8c1e70f8a in %s: 26 files, "
            "65276859410 bytes to fetch" % node.destination
        )

    def test_with_the_hub_down_it_says_so(self, node, monkeypatch):
        warnings = []
        monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warnings.append(text))
        node.hub.stop()
        foreseen = node.run(True)
        assert (foreseen["changed"], foreseen["message"]) == (
            True, "would bring %s in %s; how much is not known" % (node.name, node.destination)
        )  # fmt: skip
        assert warnings == [
            "Not looked at: %s cannot be reached, or breaks off: [Errno 111] Connection refused for %s, "
            "1 attempt. What was downloaded is kept; check endpoint, proxies and certificates, and run again."
            % (node.called, node.name)
        ]

    def test_a_hub_that_lets_wait_is_not_waited_for(self, node, monkeypatch):
        warnings = []
        monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warnings.append(text))
        monkeypatch.setattr(jobs, "LOOK_S", 600)
        fault = node.hub.fault("status", path="*", status=429, retry_after=300, on=["info", "list"])

        def give_up_soon():
            wait_until(lambda: fault.happened, 300)
            jobs.LOOK_S = 2

        impatience = threading.Thread(target=give_up_soon)
        impatience.start()
        foreseen = node.run(True, retries=5)
        impatience.join()
        assert foreseen["changed"] and foreseen["message"].endswith("; how much is not known") and fault.happened
        assert warnings == [
            "Not looked at: A look at %s got no further for 2 s and was ended. %s may be overloaded or out of reach; "
            "check endpoint and proxies, or try later." % (node.name, node.called)
        ]
        assert not node.models.exists() and not node.root.exists()

    def test_it_writes_nothing(self, node):
        node.run(True)
        assert not node.models.exists() and not node.root.exists()


class TestSecrets:
    @both
    def test_the_token_is_nowhere(self, capsys, tmp_path, source):
        with Hub([gpt_oss(REPO, 30_000, access="private", tokens=[TOKEN])]) as hub:
            node = Node(capsys, tmp_path, hub, source)
            hub.fault("hold", path=SHARD, at=1000)
            said = [node.run(wait_s=0, token=TOKEN)]
            argv = Path("/proc/%d/cmdline" % node.pid()).read_bytes()
            said.append(node.finish(token=TOKEN))
            assert said[-1]["changed"], said[-1]
            said += [node.run(token=TOKEN, verify="full"), node.run(token=TOKEN + "x", refresh=True)]
            assert said[-1]["problem"] in ("access", "repository")
            assert TOKEN not in json.dumps(said) and TOKEN.encode() not in argv
            for path in [*tmp_path.rglob("*")]:
                assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
            assert [entry for entry in hub.requests if entry.get("on_cdn") and entry.get("token")] == []

    @pytest.mark.parametrize(
        "changes",
        [{"endpoint": "https://me:%s@mirror" % TOKEN}, {"endpoint": "me:%s@mirror" % TOKEN},
         {"endpoint": "https://%s@mirror" % TOKEN}, {"environment": {"HF_TOKEN": TOKEN}},
         {"environment": {"https_proxy": "http://me:%s@proxy" % TOKEN}, "workers": 0},
         {"environment": {"https_proxy": "http://me:a#b/%s?@proxy" % TOKEN}, "workers": 0},
         {"environment": {"https_proxy": "http://me:%s\0@proxy" % TOKEN}},
         {"environment": {"MY_AUTH": TOKEN}}, {"environment": {"A\0B": "x"}}, {"environment": {"AB": "x\0"}},
         {"endpoint": "https://mirror/?token=%s" % TOKEN}, {"endpoint": "https://mirror/a?access_token=%s&b=1" % TOKEN},
         {"token": TOKEN[:9] + "\n" + TOKEN[9:]}, {"token": "\0" + TOKEN}, {"token": TOKEN + "é"},
         {"revision": "main\0"}, {"destination": "/models/a\nb"}, {"repo": "a/b\n"}, {"include": ["*\0"]}],
    )  # fmt: skip
    def test_secrets_in_the_wrong_place(self, capsys, node, changes):
        """Not in what -vvv shows either, which is the module's own arguments."""
        with patch_module_args({**node.arguments, **changes}), pytest.raises(SystemExit):
            module.main()
        said = json.loads(capsys.readouterr().out)
        assert said["failed"] and set(changes) <= set(said["invocation"]["module_args"])
        assert TOKEN not in json.dumps(said) and TOKEN[9:] not in said["msg"] and "Traceback" not in json.dumps(said)

    def test_the_password_of_a_proxy(self, node):
        proxy = "http://me:s3cr3tProxy@127.0.0.1:9"
        failed = node.run(environment={"http_proxy": proxy, "no_proxy": ""})
        assert failed["failed"] and "s3cr3tProxy" not in json.dumps(failed)
        for path in node.root.rglob("*"):
            assert not path.is_file() or b"s3cr3tProxy" not in path.read_bytes(), path


class TestWays:
    @both
    def test_the_start_of_a_file_and_the_token_for_the_hub_alone(self, source):
        with Hub([gpt_oss(REPO, 30_000, access="private", tokens=[TOKEN])]) as hub:
            wanted = hub_package.Desired(source, REPO, BRANCHES[source], "/models/small", hub.endpoint, timeout_s=10)
            client = plain.Client(wanted, TOKEN)
            content = hub.repositories[REPO].files[SHARD].bytes()
            for count in (8, 1000, len(content) + 1):
                assert client.head(client.listing(), SHARD, count) == content[:count]
            assert [entry for entry in hub.requests if entry["on_cdn"]]
            assert [entry for entry in hub.requests if entry["on_cdn"] and entry.get("token")] == []
            assert {bool(entry.get("token")) for entry in hub.requests if not entry["on_cdn"]} == {True}

    @both
    def test_through_a_proxy(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        endpoint = "http://hub.example.org"
        environment = {"HTTP_PROXY": hub.endpoint, "NO_PROXY": ""}
        assert node.run(endpoint=endpoint, environment=environment)["changed"]
        assert {entry["proxied"] for entry in hub.requests if entry["kind"] == "list"} == {True}

    @both
    @pytest.mark.parametrize(
        ("content", "why"),
        [(None, "No such file or directory"), ("hello", "no certificate or crl found"),
         ("", "no certificate or crl found"), ("/", "Is a directory"),
         ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "")],
        ids=["none", "no PEM", "empty", "folder", "broken"],
    )  # fmt: skip
    def test_a_ca_bundle_that_is_none(self, capsys, tmp_path, hub, source, content, why):
        bundle = tmp_path / "ca.pem"
        if content == "/":
            bundle.mkdir()
        elif content is not None:
            bundle.write_text(content)
        node = Node(capsys, tmp_path, hub, source)
        for check_mode in (True, False):
            message = node.run(check_mode, ca_bundle=str(bundle))["msg"]
            start = "ca_bundle is %s, which is no file with certificates (PEM) on this node: %s" % (bundle, why)
            end = ". Give the absolute path of one (in a play: fleet_ca_bundle), or none for the system's own."
            assert message == start + end if why else message.startswith(start) and message.endswith(end)
        assert hub.requests == [] and not node.root.exists()

    @both
    def test_a_private_ca(self, capsys, tmp_path, source, monkeypatch):
        certificate = tmp_path / "ca.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(certificate) + ".key",
             "-out", str(certificate)],
            check=True, capture_output=True,
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, str(certificate) + ".key")
        with Hub([gpt_oss(REPO, 30_000)], context=context) as hub:
            node = Node(capsys, tmp_path, hub, source)
            failed = node.run()
            assert failed["problem"] == "network" and "certificate" in failed["msg"].lower()
            foreseen = node.run(True, toolkit=str(tmp_path / "none"), ca_bundle=str(certificate))
            assert len(foreseen["fetched"]) == 26
            monkeypatch.chdir(tmp_path)
            assert node.run(ca_bundle="ca.pem")["msg"] == (
                "ca_bundle is ca.pem, which is no file with certificates (PEM) on this node: it is relative. Give the "
                "absolute path of one (in a play: fleet_ca_bundle), or none for the system's own."
            )
            assert node.run(ca_bundle=str(certificate))["changed"]
            assert node.found() == node.wanted()


@pytest.mark.parametrize("wait_s", [0, 60])
def test_many_calls_at_once_start_one_job(node, tmp_path, wait_s):
    """Processes, as plays would."""
    held = node.hub.fault("hold", path=SHARD, at=1000)
    code = (
        "import json, os, sys;"
        "from ansible_collections.inference.fleet.plugins.module_utils.weights import ensure as m;"
        "open(sys.argv[1] + str(os.getpid()), 'w').close();"
        "print(json.dumps(m.bring(json.load(sys.stdin))))"
    )
    given = {
        "include": [], "exclude": ["original/*", "metal/*"], "token": None, "refresh": False, "workers": 8,
        "verify": "quick", "draft": None, "draft_repo": None, "draft_revision": None, "draft_eagle3": False,
        "ca_bundle": None, "sha256sums": None, "sums": None, "min_rate": 0, "min_rate_window_s": 60,
        **node.arguments, "wait_s": wait_s,
    }  # fmt: skip
    answers, errors = [], []

    def call():
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "calls-")],
            input=json.dumps(given), capture_output=True, text=True, check=False,
        )  # fmt: skip
        errors.append(done.stderr)
        answers.append(json.loads(done.stdout or "null"))

    threads = [threading.Thread(target=call) for _number in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(list(tmp_path.glob("calls-*"))) == 4 and node.hub.sent(REPO, SHARD) == 1000)
    if wait_s:
        held.release()
    for thread in threads:
        thread.join()
    assert errors == [""] * 4
    answers.append(node.finish())
    assert [answer["changed"] for answer in answers].count(True) == 1
    assert node.hub.asked(REPO, SHARD) == 1


@pytest.mark.parametrize("below", [TimeoutError("timed out"), http.client.RemoteDisconnected("Remote end closed")])
def test_a_timeout_of_modelscope_has_one_text(below):
    """Whichever of its library's two clocks was first."""
    from modelscope_hub import errors

    error = errors.RequestTimeoutError("列表单页请求超过 5s")
    error.__cause__ = below
    problem = modelscope.Client.__new__(modelscope.Client)._problem(error)
    assert (problem.kind, problem.text, problem.retry) == ("network", "TimeoutError: timed out", True)


def test_the_toolkit_installs_what_the_worker_was_written_for():
    from importlib.metadata import version

    for requirement in [name for names in hub_package.PACKAGES.values() for name in names]:
        name, pinned = requirement.split("==")
        assert version(name) == pinned
