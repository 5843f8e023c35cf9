# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two plays at one job, and two nodes with one destination."""

from __future__ import annotations

import errno
import json
import os
import signal

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.redact import Redactor
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import pipeline, worker
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.progress import Progress
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import gpt_oss
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.node_helpers import rot
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_hub.hub_node import (
    DRAFT,
    REPO,
    SHARD,
    Node,
)


class TestTwoPlays:
    """On one node, at the same weights."""

    def test_a_call_with_other_settings_joins_the_job(self, node):
        held = node.hub.fault("hold", path=SHARD, at=1000)
        ways, ends, pids = {"first": {}, "second": {"workers": 2, "verify": "full"}}, {}, set()

        def all_ended():
            for caller, way in ways.items():
                if caller not in ends:
                    result = node.run(wait_s=0, caller=caller, **way)
                    ends.update({caller: result} if result.get("failed") or result["finished"] else {})
                    pids.add(node.pid())
            held.release()  # now that both have asked
            return len(ends) == 2

        wait_until(all_ended)
        assert [(end["changed"], end["verified"]) for end in ends.values()] == [(True, "full")] * 2, ends
        assert len(pids) == 1

    def test_a_job_that_checked_less_does_not_count(self, node):
        node.run()
        (node.destination / SHARD).unlink()
        held = node.hub.fault("hold", path=SHARD, at=1000)
        assert not node.run(wait_s=0, caller="first")["finished"]
        rotten = "model-00005-of-00014.safetensors"
        rot(node.destination / rotten)
        assert not node.run(wait_s=0, verify="full", caller="second")["finished"]
        held.release()
        result = node.run(verify="full", caller="second")
        assert (result["repaired"], result["verified"]) == ([rotten], "full")
        assert node.found() == node.wanted()


def test_the_last_state_stays(tmp_path):
    """A state that is written after the end does not replace it."""
    reporter = worker.Reporter(str(tmp_path / "state.json"), Progress(), Redactor())
    reporter.write("done", result={})
    reporter.write("running")
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
        assert node.hub.asked(REPO, SHARD) == 1
        held.release()
        assert node.finish()["changed"]
        ended = another.finish()
        assert (ended["changed"], ended["message"], ended["fetched"]) == (False, "up to date", [])
        assert node.found() == node.wanted() and node.hub.asked(REPO, SHARD) == 1
        assert os.listdir(node.models) == ["small"]

    def test_the_other_goes_on_where_a_killed_one_was(self, capsys, tmp_path):
        with Hub([gpt_oss(REPO, 5_000_000, shards=2, seed=8)]) as hub:
            node, another = (Node(capsys, tmp_path, hub) for _number in range(2))
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


def test_a_destination_that_cannot_be_read(node, monkeypatch):
    """The error comes before a draft is downloaded."""

    def refuse(destination, *_more, **_options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), destination)

    monkeypatch.setattr(pipeline, "own_manifest", refuse)
    node.refused(
        "weights.cannot-install", "Permission denied", check_too=False,
        draft=str(node.models / "draft"), draft_repo=DRAFT,
    )  # fmt: skip
