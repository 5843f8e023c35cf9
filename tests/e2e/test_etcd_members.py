# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Members of a real etcd on loopback addresses: replaced by an empty one, removed for good; for `make soak`."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import tarfile
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.called import operation_of
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import http_client
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.shared_services import etcd_member
from ansible_collections.inference.fleet.tests.runs import wait_for
from ansible_collections.inference.fleet.tools import nodes

pytestmark = pytest.mark.soak
ETCD = operation_of("etcd_member")
ADDRESSES = {"a": "127.0.0.1", "b": "127.0.0.2", "c": "127.0.0.3"}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def coded(text):
    return base64.b64encode(text.encode()).decode()


class Cluster:
    """Members as the role runs them, without units and TLS."""

    def __init__(self, folder):
        (archives,) = {here for here, _there in nodes.share_service_archives()}
        with tarfile.open(archives / json.loads((archives / "archives.json").read_text())["etcd"]["file"]) as archive:
            archive.extractall(folder, filter="data")
        (self.program,) = folder.glob("*/etcd")
        self.folder, self.ports, self.processes = folder, (free_port(), free_port()), {}

    def call(self, name, state, names="abc", **more):
        members = [{"name": one, "address": ADDRESSES[one]} for one in names]
        params = {option: spec.get("default") for option, spec in ETCD.arguments.items()}
        params.update(dict(zip(("client_port", "peer_port"), self.ports)), name=name, members=members, state=state)
        params.update(data_dir=str(self.folder / name), initial=str(self.folder / (name + ".env")), timeout_s=60)
        return ETCD.run({**params, **more}, False)

    def begin(self, name):
        client, peer = ("http://%s:%d" % (ADDRESSES[name], port) for port in self.ports)
        argv = [self.program, "--name", name, "--data-dir", self.folder / name, "--listen-client-urls", client]
        argv += ["--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        initial = (self.folder / (name + ".env")).read_text().splitlines()
        environment = {**os.environ, **dict(line.split("=", 1) for line in initial)}
        with (self.folder / (name + ".log")).open("ab") as log:
            self.processes[name] = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def lose(self, name):
        self.kill(name)
        shutil.rmtree(self.folder / name)
        time.sleep(1.1)  # the ID of a member is made of its URL and the second
        left = [one for one in self.processes if one != name]
        wait_for(lambda: not any(map(self.fault, left)), 60, "a leader of %s" % left)

    def ask(self, name, path, **body):
        url = "http://%s:%d/v3/%s" % (ADDRESSES[name], self.ports[0], path)
        answer = http_client.request("POST", url, body, 60)
        assert answer.ok, answer.describe()
        return answer.json()

    def write(self):
        for index in range(1000):
            self.ask("a", "kv/put", key=coded("/k/%04d" % index), value=coded("v%d" % index))

    def keys(self, name):
        found = self.ask(name, "kv/range", key=coded("/k/"), range_end=coded("/k0"))["kvs"]
        return sum(one["value"] == coded("v%d" % index) for index, one in enumerate(found))

    def healthy(self, names):
        """Wait until these and no others are members, and each of them has a quorum."""

        def answer():
            listed = {one.get("name") for one in self.ask(names[0], "cluster/member/list")["members"]}
            return listed == set(names) and all(not self.fault(name) for name in names)

        wait_for(answer, 60, "healthy members %s" % names)

    def fault(self, name):
        answer = http_client.request("GET", "http://%s:%d/health" % (ADDRESSES[name], self.ports[0]), None, 10)
        return "" if answer.ok and answer.json()["health"] == "true" else answer.describe()


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(etcd_member, "shown", lambda unit: {"MainPID": "0"})
    one = Cluster(tmp_path)
    for name in ADDRESSES:
        assert one.call(name, "joined", empty=list(ADDRESSES))["action"] == "bootstrap"
    for name in ADDRESSES:
        one.begin(name)
    wait_for(lambda: not any(map(one.fault, ADDRESSES)), 60, "a new cluster")
    one.write()
    yield one
    for name in one.processes:
        one.kill(name)


def test_a_member_is_replaced_by_an_empty_one_and_removed_for_good(cluster, monkeypatch):
    others = [cluster.processes[name].pid for name in "ab"]
    cluster.lose("c")
    with monkeypatch.context() as stopped, pytest.raises(OSError):  # a run that ends before the new member starts
        stopped.setattr(etcd_member, "write_atomic", lambda *_arguments: (never for never in ()).throw(OSError()))
        cluster.call("c", "joined", empty=["c"])
    assert cluster.call("c", "joined", empty=["c"])["action"] == "join"
    cluster.begin("c")
    cluster.healthy("abc")
    assert [cluster.keys(name) for name in "abc"] == [1000, 1000, 1000]

    cluster.lose("c")
    assert cluster.call("c", "joined", empty=["c"])["action"] == "replace"
    cluster.begin("c")
    cluster.healthy("abc")
    assert cluster.keys("c") == 1000

    cluster.lose("c")
    left = {"names": "ab", "leaving": {"name": "c", "address": ADDRESSES["c"]}}
    assert cluster.call("a", "removed", **left)["changed"]
    assert not cluster.call("b", "removed", **left)["changed"]
    cluster.healthy("ab")
    assert [cluster.keys(name) for name in "ab"] == [1000, 1000]
    assert [cluster.processes[name].pid for name in "ab"] == others
    assert [cluster.processes[name].poll() for name in "ab"] == [None, None]

    cluster.kill("b")  # without it, the other one has no quorum
    with pytest.raises(FleetError) as caught:
        cluster.call("a", "removed", names="a", leaving={"name": "b", "address": ADDRESSES["b"]})
    assert caught.value.code == "service.no-quorum"
