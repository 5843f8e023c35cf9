# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""update.yml for four hosts with two servers each, behind two real HAProxies with 50 streams per second (`make soak`).
The tests build on each other."""

from __future__ import annotations

import concurrent.futures
import random
import time

import pytest
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.playbooks.test_update_playbook import SERVERS, updated
from ansible_collections.inference.fleet.tests.unit.test_endpoint_proxy import Load

pytestmark = pytest.mark.soak
HOSTS, ENDPOINTS = ("n1", "n2", "n3", "n4"), ("e1", "e2")
RATE = 50  # streams per second, sent to the endpoints in turns whether or not earlier ones have ended
KILLS = 5


class Streams(Load):
    """Streams at a rate until the end of the `with` statement."""

    timeout = 60

    def __init__(self, ports, rate=RATE):
        super().__init__(None, clients=1)
        self.ports, self.rate, self.pool = ports, rate, concurrent.futures.ThreadPoolExecutor(300)

    def run(self):
        number, began = 0, time.monotonic()
        while not self.stopped.wait(max(0, began + number / self.rate - time.monotonic())):
            self.pool.submit(self.send, self.ports[number % len(self.ports)])
            number += 1

    def __enter__(self):
        self.began = time.monotonic()
        return super().__enter__()

    def __exit__(self, *unused):
        super().__exit__(*unused)
        self.seconds = time.monotonic() - self.began
        self.pool.shutdown()

    def result(self):
        failed = self.failed()
        print("%d streams in %.0f s, %d failed" % (len(self.answers), self.seconds, len(failed)))
        return failed


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with updated(tmp_path_factory.mktemp("load"), HOSTS, ENDPOINTS) as one:
        yield one


def test_an_update_of_all_hosts_fails_no_stream(fleet):
    fleet.plan(*HOSTS, **{"max-num-seqs": 8})
    with Streams(fleet.ports) as streams:
        fleet.update().ok()
    assert streams.result() == []
    assert ([fleet.planned(host) for host in HOSTS], fleet.states()) == ([[8, 8]] * len(HOSTS), {"UP"})


def test_updates_that_are_killed_at_random_are_completed(fleet):
    seconds = 20.0
    with Streams(fleet.ports) as streams:
        for number in range(KILLS):
            fleet.plan("n1", "n2", **{"max-num-seqs": 16 + number})
            after = random.uniform(2, seconds)
            fleet.killed(lambda: False, after)
            began = time.monotonic()
            fleet.update().ok()
            print("killed after %.1f s; the next took %.1f s" % (after, time.monotonic() - began))
            seconds = max(seconds, time.monotonic() - began)
            assert fleet.planned("n1") == fleet.planned("n2") == [16 + number] * 2
            assert fleet.states() == {"UP"}
    assert streams.result() == []


def test_a_host_that_dies_fails_at_most_its_own_streams(fleet):
    """All of it dies at once; the next run brings it back, and no other server restarts."""
    others = {host: [fleet.nodes[host].running(name) for name in SERVERS] for host in HOSTS[:-1]}
    with Streams(fleet.ports, 20) as streams:
        wait_until(lambda: len(streams.answers) > 40)
        fleet.nodes[HOSTS[-1]].end()
        died = time.monotonic()
        wait_until(lambda: "DOWN" in fleet.states())
        print("at the endpoints after %.1f s" % (time.monotonic() - died))
        fleet.update().ok()
    failed = streams.result()
    assert len(failed) <= 20 * 0.5 / len(HOSTS) * 3  # three times what runs on a host on average
    assert {host: [fleet.nodes[host].running(name) for name in SERVERS] for host in others} == others
    wait_until(lambda: fleet.states() == {"UP"})
