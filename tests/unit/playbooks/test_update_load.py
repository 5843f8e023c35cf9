# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""update.yml for four hosts with two servers each, behind two real HAProxies with 50 streams per second (`make soak`).
The tests build on each other."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.tests.runs import BIN, CLONE, play
from ansible_collections.inference.fleet.tests.unit.engines import proxy
from ansible_collections.inference.fleet.tests.unit.engines.small_node import (
    SUPERVISED,
    SmallNode,
    free_port,
    host_variables,
    wait_until,
    watched,
)
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import LOCAL, hosts_file
from ansible_collections.inference.fleet.tests.unit.playbooks.test_update_playbook import SERVERS, override_of
from ansible_collections.inference.fleet.tests.unit.test_endpoint_proxy import DEPLOYMENT, KEYS, Load

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


class Fleet:
    """Roots of this machine as hosts, and two HAProxies as the hosts of the group endpoint."""

    def __init__(self, folder):
        self.folder = folder
        self.nodes = {name: SmallNode(folder / name) for name in HOSTS}
        for name in (*ENDPOINTS, "model"):
            (folder / name).mkdir()
        ports = [free_port() for _number in range(len(HOSTS) * len(SERVERS))]
        first = dict(zip(HOSTS, ports[:: len(SERVERS)]))
        self.hosts = {
            name: host_variables(self.nodes[name].root, fleet_override=override_of(folder, first[name]))
            for name in HOSTS
        }
        # role variables have precedence over those of hosts
        sockets = {"endpoint_socket": str(folder) + "/{{ item }}/admin.sock"}
        self.arguments = ["--skip-tags", "endpoint,prepare,weights", "-e", json.dumps(sockets)]
        self.plan(*HOSTS)

    def plan(self, *hosts, **arguments):
        """Plan these arguments of the engine for some hosts."""
        for name in hosts:
            self.hosts[name]["fleet_override"]["arguments"] = arguments
        variables = {**SUPERVISED, "ansible_become": False, "fleet_verify": "quick", "endpoint_address": "127.0.0.1",
                     "fleet_reports_dir": str(self.folder / "reports")}  # fmt: skip
        found = {name: {**variables, **one} for name, one in self.hosts.items()}
        endpoints = {"hosts": {name: {**LOCAL, "ansible_become": False} for name in ENDPOINTS}}
        self.inventory = hosts_file(self.folder, found, endpoint=endpoints)

    def update(self):
        return play("playbooks/update.yml", self.inventory, *self.arguments, timeout=1800)

    def entries(self, host):
        return [json.loads(Path(self.nodes[host].paths.entry(name)).read_text()) for name in SERVERS]

    def planned(self):
        """The argument of each server."""
        return {host: [one["arguments"].get("max-num-seqs") for one in self.entries(host)] for host in HOSTS}

    @contextlib.contextmanager
    def endpoints(self):
        """Run the endpoints and return their ports."""
        self.proxies, ports = [], []
        # the proxies are other hosts, to which servers on loopback would not be reachable
        plans = [([{**one, "bind": "0.0.0.0"} for one in self.entries(host)], DEPLOYMENT) for host in HOSTS]
        variables = {host: {"ansible_host": "127.0.0.1"} for host in HOSTS}
        with contextlib.ExitStack() as stack:
            for name in ENDPOINTS:
                port, metrics = proxy.open_ports(2)
                given = {"endpoint_address": "127.0.0.1", "endpoint_port": port, "endpoint_metrics_port": metrics}
                path = proxy.rendered(self.folder / name, plans, variables, name, endpoint_keys=KEYS, **given)
                self.proxies.append(stack.enter_context(proxy.Proxy(path)))
                ports.append(port)
            yield ports

    def states(self):
        """The states of all servers at all endpoints."""
        found = [state for one in self.proxies for server, state in one.states().items() if server.startswith("model.")]
        assert len(found) >= len(ENDPOINTS) * len(HOSTS) * len(SERVERS)
        return set(found)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    proxy.require_haproxy()
    folder = tmp_path_factory.mktemp("load")
    with watched(folder):
        one = Fleet(folder)
        try:
            one.update().ok()  # no endpoint runs yet
            with one.endpoints() as one.ports:
                wait_until(lambda: one.states() == {"UP"})
                yield one
        finally:
            for node in one.nodes.values():
                node.end()


def test_an_update_of_all_hosts_fails_no_stream(fleet):
    fleet.plan(*HOSTS, **{"max-num-seqs": 8})
    with Streams(fleet.ports) as streams:
        fleet.update().ok()
    assert streams.result() == []
    assert (set(map(tuple, fleet.planned().values())), fleet.states()) == ({(8, 8)}, {"UP"})


def test_updates_that_are_killed_at_random_are_completed(fleet):
    seconds = 20.0
    with Streams(fleet.ports) as streams:
        for number in range(KILLS):
            fleet.plan("n1", "n2", **{"max-num-seqs": 16 + number})
            command = [BIN / "ansible-playbook", "playbooks/update.yml", "-i", fleet.inventory, *fleet.arguments]
            killed = subprocess.Popen(command, cwd=CLONE, stdout=subprocess.DEVNULL, start_new_session=True)
            after = random.uniform(2, seconds)
            with contextlib.suppress(subprocess.TimeoutExpired):
                killed.wait(after)
            if killed.poll() is None:
                os.killpg(killed.pid, signal.SIGKILL)
                killed.wait()
            began = time.monotonic()
            fleet.update().ok()
            print("killed after %.1f s; the next took %.1f s" % (after, time.monotonic() - began))
            seconds = max(seconds, time.monotonic() - began)
            assert fleet.planned()["n1"] == fleet.planned()["n2"] == [16 + number] * 2
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
