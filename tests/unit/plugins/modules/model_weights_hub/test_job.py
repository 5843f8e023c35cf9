# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job that brings weights: watched, killed, timed out, left behind, started once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import jobs, manifest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.transfer import bytes_of, part_of
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import gpt_oss
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.node_helpers import rot
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_hub.hub_node import (
    REPO,
    SHARD,
    TOKEN,
    Node,
)


def complete(node, path):
    """Whether a file of the head has come completely."""
    content = node.hub.repositories[REPO].files[path]
    staging = node.models / ".small.inference-fleet-new"
    try:
        record = json.loads((staging / manifest.LISTING).read_text())["files"][path]
    except FileNotFoundError:
        return False
    part = part_of(str(staging), path, record)
    return os.path.exists(part) and bytes_of(part, content.size) == content.size


class TestJob:
    def test_polled_to_its_end_and_told_once(self, node):
        node.hub.fault("hold", path=SHARD, at=1000)
        first, pid = node.run(wait_s=0), node.pid()
        assert (first["changed"], first["finished"]) == (False, False)
        assert {"bytes_done", "bytes_total", "percent", "phase"} < set(first["progress"])
        assert not node.run(wait_s=0)["finished"] and node.pid() == pid
        last = node.finish()
        assert (last["changed"], last["finished"]) == (True, True)
        assert not node.run()["changed"]
        assert node.hub.asked(REPO, SHARD) == 1

    def test_a_wrong_setting_costs_nothing_of_what_has_come(self, node, hub):
        hub.fault("hold", path=SHARD, at=1000)
        node.run(wait_s=0)
        staging = node.models / ".small.inference-fleet-new"
        whole = set(node.wanted()) - {SHARD}
        wait_until(lambda: all(complete(node, name) for name in whole))
        node.kill()
        before = {path: path.read_bytes() for path in staging.rglob("*") if path.is_file()}
        node.refused("checkpoint.does-not-fit", format="bf16")
        assert {path: path.read_bytes() for path in staging.rglob("*") if path.is_file()} == before
        hub.forget()
        assert node.finish()["changed"] and node.found() == node.wanted()
        assert set(hub.counts()[REPO]) == {SHARD}

    def test_a_job_that_dies_again_and_again_is_told(self, node):
        node.hub.fault("hold", path="*.json", at=0)
        for death in range(4):
            assert not node.run(wait_s=0)["finished"], death
            wait_until(lambda: node.phase() == "downloading")
            os.kill(node.pid(), signal.SIGKILL)
            wait_until(lambda: not jobs.Job(str(node.job().parent), str(node.destination)).alive())
        node.refused("jobs.died", node.name, "died 4 times", check_too=False, wait_s=0)

    def test_another_job_for_the_same_place(self, node):
        node.hub.fault("hold", path=SHARD, at=1000)
        node.run(wait_s=0)
        pid = node.pid()
        exclude = ["original/*", "metal/*", "README.md"]
        node.refused("jobs.other-job", node.name, "kill %d" % pid, check_too=False, wait_s=0, exclude=exclude)
        assert node.finish()["changed"]


class TestLeftBehind:
    """A job that ended while no play waited for it: the files themselves count."""

    def test_a_byte_rotted_since(self, node):
        node.left_behind(caller="first")
        rot(node.destination / SHARD)
        result = node.run(verify="full", caller="second")
        assert (result["repaired"], result["verified"]) == ([SHARD], "full")
        assert node.found() == node.wanted()

    def test_the_end_is_given_once_to_the_run_that_waited(self, node):
        node.left_behind(caller="first")
        assert not node.run(caller="second")["changed"]
        assert node.run(caller="first")["changed"]
        assert not node.run(caller="first")["changed"]

    def test_a_failure_counts_only_for_the_run_that_waited(self, capsys, tmp_path):
        with Hub([gpt_oss(REPO, 30_000, access="gated", tokens=[TOKEN])]) as hub:
            node = Node(capsys, tmp_path, hub)
            assert node.left_behind(caller="first")["state"] == "failed"
            pid = node.pid()
            assert node.run(caller="first")["problem"] == "access" and node.pid() == pid
            node.left_behind(caller="first")
            assert node.run(token=TOKEN, caller="second")["changed"]
            assert node.found() == node.wanted()


@pytest.mark.parametrize("wait_s", [0, 60])
def test_many_calls_at_once_start_one_job(node, tmp_path, wait_s):
    """Processes, as plays would."""
    held = node.hub.fault("hold", path=SHARD, at=1000)
    code = (
        "import json, os, sys; sys.path.insert(0, sys.argv[2]); from fleet_node.weights import pipeline as m;"
        "open(sys.argv[1] + str(os.getpid()), 'w').close();"
        "print(json.dumps(m.model_weights(json.load(sys.stdin))))"
    )
    given = {
        "include": [], "exclude": ["original/*", "metal/*"], "token": None, "refresh": False, "workers": 8,
        "family": "gpt_oss", "adapter": {},
        "verify": "quick", "draft": None, "draft_repo": None, "draft_revision": None, "draft_eagle3": False,
        "ca_bundle": None, "sha256sums": None, "sums": None, "min_rate": 0, "min_rate_window_s": 60, "archive": None,
        **node.arguments, "wait_s": wait_s,
    }  # fmt: skip
    answers, errors = [], []

    def call():
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "calls-"), program.start(None)],
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
