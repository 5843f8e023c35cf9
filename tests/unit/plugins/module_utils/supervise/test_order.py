# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server waits for those before it."""

from __future__ import annotations

import json
import subprocess

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import order
from ansible_collections.inference.fleet.tests.unit.engines import small_node


def test_a_guard_that_waits_can_be_found_and_gives_up_after_the_leaders_budget(place):
    leader = place.node.entry("leader", health={"path": "/health", "budget_s": 600, "poll_s": 0.1})
    place.write(leader)
    follower = place.node.entry("server-0", start={"after": ["leader"]})
    process = place.start(follower)
    small_node.wait_until(lambda: place.state(follower).get("phase") == "waiting for leader")
    assert place.node.running("server-0") == [process.pid]
    assert process.poll() is None
    place.write(small_node.rehash(leader, health=dict(leader["health"], budget_s=0.1)))
    assert process.wait(60) == 1
    # waiting is no start
    assert place.state(follower)["count"] == 0

    server = place.start(leader)
    process = place.start(follower)
    small_node.wait_until(lambda: place.state(follower).get("phase") == "running")
    assert place.state(follower)["started"] > place.state(leader)["started"]
    for one in (server, process):
        one.terminate()
        one.wait(60)


def test_a_leader_that_is_not_deployed_or_has_no_port(place):
    follower = place.node.entry("server-0", start={"after": ["leader"]})
    process = place.start(follower)
    small_node.wait_until(lambda: place.state(follower).get("phase") == "waiting for leader")
    assert place.state(follower)["reason"] == "leader is not deployed on this node"
    process.kill()
    process.wait()
    worker = small_node.rehash(
        place.node.entry("leader"), port=None, role="decode", command=["sleep", "900"],
        health={"path": "/health", "budget_s": 60, "poll_s": 0.1},
    )  # fmt: skip
    follower = small_node.rehash(follower, command=["true"])
    server = place.start(worker)
    assert place.run(follower).returncode == 0
    assert place.state(follower)["count"] == 1
    server.kill()
    server.wait()


def test_a_follower_asks_its_leader_with_the_leaders_key(place):
    entry = place.node.entry("leader", "--guards-health", "--wants-key", "sk-leader")
    secrets = place.folder / "leader-secrets.json"
    secrets.write_text(json.dumps({"VLLM_API_KEY": "sk-leader"}), encoding="utf-8")
    engine = subprocess.Popen(entry["command"], start_new_session=True)
    try:
        small_node.wait_until(lambda: order.is_healthy(entry, "", str(secrets)), what="the leader")
        assert not order.is_healthy(entry, "")
        for broken in ('{"VLLM_API_KEY": "a\\nb"}', '{"VLLM_API_KEY": "\\u00e9"}', "[]", "no JSON"):
            secrets.write_text(broken, encoding="utf-8")
            assert not order.is_healthy(entry, "", str(secrets))
    finally:
        engine.kill()
        engine.wait()
