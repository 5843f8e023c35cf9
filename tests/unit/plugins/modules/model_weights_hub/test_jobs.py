# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that download weights: polled, killed, joined, left behind, shared by plays; two nodes, one destination."""

from __future__ import annotations

import concurrent.futures
import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.called import operation_of
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import pipeline
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
def test_many_calls_at_once_start_one_job(node, held, wait_s):
    options = operation_of("model_weights").arguments.items()
    given = {**{name: option.get("default") for name, option in options}, **node.arguments, "wait_s": wait_s}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(pipeline.model_weights, given) for _number in range(4)]
        wait_until(lambda: node.hub.sent(REPO, SHARD) == 1000)
        if wait_s:
            held.release()
        answers = [call.result() for call in calls]
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


def test_of_two_nodes_one_downloads_and_the_other_waits(node, held, tmp_path):
    another = HubWeights(tmp_path, node.hub, root="another")
    node.begin()
    wait_until(lambda: node.hub.asked(REPO, SHARD))
    phase = wait_until(lambda: (found := another.run(wait_s=0)["progress"]["phase"]).startswith("waiting") and found)
    assert phase.startswith("waiting for %s (process %d, since " % (os.uname().nodename, node.pid()))
    assert node.hub.asked(REPO, SHARD) == 1
    held.release()
    assert node.finish()["changed"]
    ended = another.finish()
    assert (ended["changed"], ended["message"], ended["fetched"]) == (False, "up to date", [])
    assert node.found() == node.wanted() and node.hub.asked(REPO, SHARD) == 1
    assert os.listdir(node.models) == ["small"]
