# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that download weights: polled, killed, joined, left behind, shared by plays; two nodes, one destination."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import gpt_oss
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.node_helpers import rot
from ansible_collections.inference.fleet.tests.unit.weights_node import REPO, SHARD, TOKEN, HubWeights

NAME = "%s at revision main" % REPO


@pytest.fixture
def held(node):
    return node.hub.fault("hold", path=SHARD, at=1000)


@pytest.mark.usefixtures("held")
def test_a_job_is_polled_to_its_end_and_told_once(node):
    first, pid = node.begin(), node.pid()
    assert not first["changed"]
    assert {"bytes_done", "bytes_total", "percent", "phase"} < set(first["progress"])
    assert not node.run(wait_s=0)["finished"] and node.pid() == pid
    exclude = ["original/*", "metal/*", "README.md"]
    node.refused("jobs.other-job", NAME, "kill %d" % pid, check_too=False, wait_s=0, exclude=exclude)
    last = node.finish()
    assert (last["changed"], last["finished"]) == (True, True)
    assert not node.run()["changed"]
    assert node.hub.asked(REPO, SHARD) == 1


@pytest.mark.usefixtures("held")
def test_a_wrong_setting_costs_nothing_of_what_has_come(node):
    def staged():
        return {path: path.read_bytes() for path in node.staging.rglob("*") if path.is_file()}

    node.begin()
    wait_until(lambda: all(node.kept(path) == node.size(path) for path in node.wanted() if path != SHARD))
    node.kill()
    before = staged()
    node.refused("checkpoint.does-not-fit", format="bf16")
    assert staged() == before
    node.hub.forget()
    assert node.finish()["changed"] and node.found() == node.wanted()
    assert set(node.hub.counts()[REPO]) == {SHARD}


def test_a_job_that_dies_again_and_again_is_an_error(node):
    for _death in range(4):
        node.hub.fault("hold", path="*.json", at=0)
        node.begin()
        wait_until(lambda: node.job_state().get("progress", {}).get("phase") == "downloading")
        node.kill()
    node.refused("jobs.died", NAME, "died 4 times", check_too=False, wait_s=0)


def test_an_end_is_given_once_to_the_run_that_waited_and_a_job_that_checked_less_does_not_count(node):
    node.left_behind(caller="first")
    changed = [node.run(caller=caller)["changed"] for caller in ("second", "first", "first")]
    assert changed == [False, True, False]
    (node.destination / SHARD).unlink()
    held = node.hub.fault("hold", path=SHARD, at=1000)
    node.begin(caller="first")  # a job that checks less than the next run
    rotten = "model-00005-of-00014.safetensors"
    rot(node.destination / rotten)
    node.begin(verify="full", caller="second")
    held.release()
    result = node.run(verify="full", caller="second")
    assert (result["repaired"], result["verified"]) == ([rotten], "full")
    assert node.found() == node.wanted()


def test_a_failure_counts_only_for_the_run_that_waited(tmp_path):
    with Hub([gpt_oss(REPO, 30_000, access="gated", tokens=[TOKEN])]) as hub:
        node = HubWeights(tmp_path, hub)
        assert node.left_behind(caller="first")["state"] == "failed"
        pid = node.pid()
        assert node.run(caller="first")["problem"] == "access" and node.pid() == pid
        node.left_behind(caller="first")
        assert node.run(token=TOKEN, caller="second")["changed"]
        assert node.found() == node.wanted()


@pytest.mark.parametrize("wait_s", [0, 60])
def test_many_calls_at_once_start_one_job(node, held, tmp_path, wait_s):
    """Processes, as plays would."""
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
    command = [sys.executable, "-c", code, str(tmp_path / "calls-"), program.start(None)]
    answers = []

    def call():
        done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
        answers.append(json.loads(done.stdout) if not done.stderr else {"changed": done.stderr})

    threads = [threading.Thread(target=call) for _number in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(list(tmp_path.glob("calls-*"))) == 4 and node.hub.sent(REPO, SHARD) == 1000)
    if wait_s:
        held.release()
    for thread in threads:
        thread.join()
    answers.append(node.finish())
    assert sorted(answer["changed"] for answer in answers) == [False] * 4 + [True]
    assert node.hub.asked(REPO, SHARD) == 1


def test_a_call_with_other_settings_joins_the_job(node, held):
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


def waiting(node):
    """The result of a node that waits for another."""
    return wait_until(lambda: "waiting" in (found := node.run(wait_s=0))["message"] and found)


def test_of_two_nodes_one_downloads_and_the_other_waits(node, held, tmp_path):
    another = HubWeights(tmp_path, node.hub, root="another")
    node.begin()
    wait_until(lambda: node.hub.asked(REPO, SHARD))
    phase = waiting(another)["progress"]["phase"]
    assert phase.startswith("waiting for %s (process %d, since " % (os.uname().nodename, node.pid()))
    assert node.hub.asked(REPO, SHARD) == 1
    held.release()
    assert node.finish()["changed"]
    ended = another.finish()
    assert (ended["changed"], ended["message"], ended["fetched"]) == (False, "up to date", [])
    assert node.found() == node.wanted() and node.hub.asked(REPO, SHARD) == 1
    assert os.listdir(node.models) == ["small"]


def test_the_other_node_goes_on_where_a_killed_one_was(tmp_path):
    with Hub([gpt_oss(REPO, 5_000_000, shards=2, seed=8)]) as hub:
        node, another = HubWeights(tmp_path, hub), HubWeights(tmp_path, hub, root="another")
        held = hub.fault("hold", at=4_000_000, path="*.safetensors")
        node.begin()
        wait_until(lambda: sum(map(node.kept, node.wanted())) > 4_000_000)
        waiting(another)
        os.kill(node.pid(), signal.SIGKILL)
        held.release()
        assert another.finish()["changed"]
        assert another.found() == another.wanted()
        assert os.listdir(node.models) == ["small"]
