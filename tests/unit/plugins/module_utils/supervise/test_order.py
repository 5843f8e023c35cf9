# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server waits for those before it and for the services that it needs; outages do not count as failed starts."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import order
from ansible_collections.inference.fleet.tests.unit.engines import certificates, guard_place, small_node
from ansible_collections.inference.fleet.tests.unit.engines.certificates import serving

OK, UNAUTHORIZED, UNAVAILABLE = (b"HTTP/1.1 %d \r\n\r\n" % status for status in (200, 401, 503))


def test_a_guard_that_waits_can_be_found_and_gives_up_after_the_leaders_budget(place):
    leader = place.node.entry("leader", health={"path": "/health", "budget_s": 600, "poll_s": 0.1})
    place.write(leader)
    follower = place.node.entry("server-0", start={"after": ["leader"]})
    process = place.started(follower, "waiting for leader")
    assert place.node.running("server-0") == [process.pid]
    assert process.poll() is None
    place.write(small_node.rehash(leader, health=dict(leader["health"], budget_s=0.1)))
    assert process.wait(60) == 1
    # waiting is no start
    assert place.state(follower)["count"] == 0

    server = place.start(leader)
    process = place.started(follower, "running")
    assert place.state(follower)["started"] > place.state(leader)["started"]
    for one in (server, process):
        guard_place.end(one)


def test_a_leader_that_is_not_deployed_or_has_no_port(place):
    follower = place.node.entry("server-0", start={"after": ["leader"]})
    process = place.started(follower, "waiting for leader")
    assert place.state(follower)["reason"] == "leader is not deployed on this node"
    guard_place.end(process, signal.SIGKILL)
    worker = small_node.rehash(
        place.node.entry("leader"), port=None, role="decode", command=["sleep", "900"],
        health={"path": "/health", "budget_s": 60, "poll_s": 0.1},
    )  # fmt: skip
    follower = small_node.rehash(follower, command=["true"])
    server = place.start(worker)
    assert place.run(follower).returncode == 0
    assert place.state(follower)["count"] == 1
    guard_place.end(server, signal.SIGKILL)


def test_a_follower_asks_its_leader_with_the_leaders_key(place):
    entry = place.node.entry("leader", "--guards-health", "--wants-key", "sk-leader")
    secrets = place.folder / "leader-secrets.json"
    secrets.write_text(json.dumps({"VLLM_API_KEY": "sk-leader"}), encoding="utf-8")
    engine = subprocess.Popen(entry["command"], start_new_session=True)
    try:
        small_node.wait_until(lambda: order.is_healthy(entry, "", str(secrets)), what="the leader")
        assert not order.is_healthy(entry, "")
    finally:
        guard_place.end(engine, signal.SIGKILL)


def etcd(*ports, scheme="http", **more):
    return {"name": "etcd", "urls": ["%s://127.0.0.1:%d/health" % (scheme, port) for port in ports], **more}


def test_starts_that_end_while_a_service_is_away_do_not_count(place):
    """More often than the start limit allows; the server returns by itself when the service does."""
    place.guard = guard_place.altered(place.folder, ("supervise/order.py", "POLL_S = 2.0", "POLL_S = 0.1"))
    port = small_node.free_port()
    base = place.node.entry("server-0")
    entry = small_node.rehash(base, command=["true"], start={**base["start"], "needs": [etcd(port)]})
    for _outage in range(3):
        process = place.started(entry, "waiting for etcd", "--burst", "2", "--restart-delay", "0.05")
        state = place.state(entry)
        assert state["starts"] == [] and "127.0.0.1:%d/health: connection refused" % port in state["reason"]
        assert process.poll() is None
        with serving(port, OK):
            assert process.wait(60) == 0
        assert place.state(entry)["phase"] == "running"
    # who waits is forgiven one start, not those before it
    with serving(port, OK):
        assert place.run(entry, "--burst", "2", "--restart-delay", "0.05").returncode == 0
        assert place.run(entry, "--burst", "2", "--restart-delay", "0.05").returncode == 194
    for _guard in range(2):
        process = place.started(entry, "waiting for etcd", "--burst", "2", "--restart-delay", "0.05")
        guard_place.end(process, signal.SIGKILL)
    assert len(place.state(entry)["starts"]) == 2


def test_any_address_is_enough_and_a_service_that_is_ill_is_away():
    with serving(answer=OK) as well, serving(answer=UNAVAILABLE) as ill:
        assert order.away(etcd(small_node.free_port(), ill, well), {}) is None
        assert order.away(etcd(ill), {}) == "http://127.0.0.1:%d/health: HTTP 503" % ill
    with serving(answer=UNAUTHORIZED) as guarded:
        assert order.away(etcd(guarded), {}) is None


@pytest.mark.parametrize(("text", "available"), [(b"INFO {}\r\n", True), (b"-ERR x\r\n", False), (b"", False)])
def test_a_service_that_greets(text, available):
    with serving(answer=text) as port:
        words = order.away({"name": "nats", "urls": ["tcp://127.0.0.1:%d" % port], "greeting": "INFO "}, {})
    assert (words is None) is available


def test_certificates_of_clients(tmp_path):
    names = {"ca": "CA", "certificate": "CERTIFICATE", "key": "KEY"}
    folder = certificates.write(tmp_path)
    given = {name: (folder / file).read_text() for name, file in zip(names.values(), ("ca.crt", "tls.crt", "tls.key"))}
    with serving(answer=OK, folder=folder) as port:
        need = etcd(port, scheme="https", tls=names)
        assert order.away(need, given) is None
        assert order.away(need, {"CA": given["CA"]}) is not None
        assert "certificate verify failed" in order.away(need, {})
