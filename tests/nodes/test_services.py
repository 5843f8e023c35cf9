# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services that servers share, real ones on three nodes. The tests build on each other; a soak case runs alone too."""

from __future__ import annotations

import json
import os

import pytest
import yaml
from ansible_collections.inference.fleet.tests.runs import play, wait_for
from ansible_collections.inference.fleet.tools import nodes as tool

PLATFORM = "services"
PASSWORD = "a-word\"with 'quotes"
# Writes 1000 keys, or counts those that are read with the value that was written.
KEYS = """
import base64, json, ssl, sys, urllib.request
tls = "/etc/etcd/tls/"
context = ssl.create_default_context(cafile=tls + "ca.crt")
context.load_cert_chain(tls + "tls.crt", tls + "tls.key")
coded = lambda text: base64.b64encode(text.encode()).decode()
def ask(path, **body):
    request = urllib.request.Request("https://127.0.0.1:2379/v3/kv/" + path, json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request, context=context, timeout=60))
if sys.argv[1] == "write":
    for index in range(1000):
        ask("put", key=coded("/k/%04d" % index), value=coded("v%d" % index))
found = ask("range", key=coded("/k/"), range_end=coded("/k0")).get("kvs", [])
print(sum(one["value"] == coded("v%d" % index) for index, one in enumerate(found)))
"""
HEALTH = (
    "ETCDCTL_API=3 /opt/etcd-%s/etcdctl --cacert /etc/etcd/tls/ca.crt --cert /etc/etcd/tls/tls.crt "
    "--key /etc/etcd/tls/tls.key --command-timeout=30s endpoint health --cluster 2>&1"
)
ROUTES = 'import urllib.request as r; print(r.urlopen("http://127.0.0.1:8222/routez").read().decode())'
WITHOUT = """
import ssl, urllib.request
context = ssl.create_default_context(cafile="/etc/etcd/tls/ca.crt")
urllib.request.urlopen("https://%s:2379/version", context=context)
"""


class Cluster:
    """Three nodes in the groups of the services, and the playbook run against them."""

    def __init__(self, names, folder):
        self.names, self.inventory = names, folder / "hosts.yml"
        tool.create(names, PLATFORM)
        (archives,) = {here for here, _there in tool.share_service_archives()}
        self.archives = json.loads((archives / "archives.json").read_text())
        self.write()

    def write(self, **variables):
        """The inventory, of nodes at the addresses that they have now."""
        etcd, nats = self.archives["etcd"], self.archives["nats-server"]
        variables = {
            "ansible_python_interpreter": "/usr/bin/python3",
            "etcd_version": etcd["version"],
            "etcd_checksums": {etcd["architecture"]: etcd["sha256"]},
            "etcd_url": "file://%s/services/%s" % (tool.SHARED, etcd["file"]),
            "etcd_timeout_s": 300,
            "nats_version": nats["version"],
            "nats_checksums": {nats["architecture"]: nats["sha256"]},
            "nats_url": "file://%s/services/%s" % (tool.SHARED, nats["file"]),
            "nats_password": PASSWORD,
            "nats_timeout_s": 300,
            **variables,
        }
        hosts = {name: self.node(name).variables() for name in self.names}
        self.inventory.write_text(
            yaml.safe_dump(
                {"etcd": {"hosts": hosts}, "nats": {"hosts": {name: {} for name in hosts}}, "all": {"vars": variables}}
            )
        )

    def node(self, name):
        return next(node for node in tool.nodes() if node.name == name)

    def play(self, *arguments, playbook="playbooks/services.yml"):
        return play(playbook, self.inventory, *arguments, timeout=900)

    def replace(self, *names):
        """Destroy nodes; others, bare ones, take their names."""
        tool.create(names, PLATFORM)
        self.write()

    def keys(self, name, what="read"):
        """How many of the 1000 keys a node reads with the right value."""
        return int(self.node(name).ssh("python3 -c '%s' %s" % (KEYS, what), timeout=300))

    def routes(self, name):
        """How many other servers of NATS one is connected with."""
        said = self.node(name).ssh("python3 -c '%s'" % ROUTES)
        return len({one.get("remote_id") for one in json.loads(said)["routes"]} - {None})

    def started(self, name, unit="etcd"):
        """(process, when it was started) of a unit."""
        return self.node(name).ssh("systemctl show --property MainPID,ExecMainStartTimestampMonotonic %s" % unit)

    def healthy(self, name):
        """How many members answer a write, asked on a node."""
        said = self.node(name).ssh(HEALTH % self.archives["etcd"]["version"], check=False)
        return said.count(" is healthy")


@pytest.fixture(scope="module")
def cluster(nodes, tmp_path_factory):
    names = ["service-%d-%d" % (os.getpid(), index) for index in range(3)]
    try:
        yield Cluster(names, tmp_path_factory.mktemp("services"))
    finally:
        nodes.destroy(names)


@pytest.fixture
def converged(cluster):
    """Three healthy members and the keys, whatever ran before."""
    first = cluster.names[0]
    cluster.write()
    if cluster.healthy(first) < 3:
        cluster.replace(*cluster.names)
        cluster.play().ok()
    assert cluster.keys(first, "write") == 1000


def test_three_bare_nodes_become_a_cluster(cluster):
    cluster.play().ok()
    assert cluster.keys(cluster.names[0], "write") == 1000
    assert [cluster.keys(name) for name in cluster.names] == [1000, 1000, 1000]
    assert cluster.healthy(cluster.names[1]) == 3
    wait_for(lambda: {cluster.routes(name) for name in cluster.names} == {2}, 300, "a connection of each with each")


def test_status_reports_when_certificates_expire(cluster):
    hardware = {"accelerator": "cpu", "count": 1, "cores": 2}
    cluster.write(fleet_recipe="cpu-tiny", fleet_hardware=hardware, fleet_status_strict=False)
    output = cluster.play(playbook="playbooks/status.yml").output
    cluster.write()
    assert [output.count("%s: the certificate expires " % unit) for unit in ("etcd", "nats")] == [3, 3]


def test_a_client_without_a_certificate_is_refused(cluster):
    address = cluster.node(cluster.names[0]).address
    said = cluster.node(cluster.names[1]).ssh("python3 -c '%s' 2>&1" % (WITHOUT % address), check=False)
    assert "ssl" in said.lower() and "Error" in said


def test_a_dead_member_comes_back_empty_and_takes_its_place_in_one_run(cluster):
    """The first one: no host is special."""
    dead, *others = cluster.names
    address = cluster.node(dead).address
    before = {(name, unit): cluster.started(name, unit) for name in others for unit in ("etcd", "nats")}
    cluster.replace(dead)
    if cluster.node(dead).address != address:  # which another container has now: it is in the configuration of NATS
        before = {(name, unit): started for (name, unit), started in before.items() if unit == "etcd"}
    assert PASSWORD not in cluster.play("--diff").ok().output
    assert [cluster.keys(name) for name in cluster.names] == [1000, 1000, 1000]
    assert cluster.healthy(others[0]) == 3
    assert {(name, unit): cluster.started(name, unit) for name, unit in before} == before
    wait_for(lambda: {cluster.routes(name) for name in cluster.names} == {2}, 300, "a connection of each with each")
    assert cluster.play().ok().count("changed") == 0


@pytest.mark.soak
@pytest.mark.usefixtures("converged")
def test_a_configuration_that_the_server_refuses_does_not_replace_the_old(cluster):
    name = cluster.names[0]
    before = cluster.started(name, "nats"), cluster.node(name).ssh("cat /etc/nats/nats.conf")
    cluster.write(nats_settings={"no_such_key": 1})
    cluster.play("--limit", name).failed("failed to validate", "no_such_key")
    assert (cluster.started(name, "nats"), cluster.node(name).ssh("cat /etc/nats/nats.conf")) == before
    cluster.write()


@pytest.mark.soak
@pytest.mark.usefixtures("converged")
def test_a_killed_member_comes_back_by_itself(cluster):
    name, *others = cluster.names
    before = [cluster.started(other) for other in others]
    old = cluster.started(name)
    cluster.node(name).ssh("systemctl kill --signal KILL etcd")
    # where it was the leader the others elect one, and refuse reads until then
    wait_for(lambda: cluster.healthy(others[0]) >= 2, 120, "a quorum of the others")
    assert cluster.keys(others[0]) == 1000
    wait_for(lambda: cluster.started(name) != old and cluster.healthy(others[0]) == 3, 600, "a third healthy member")
    assert [cluster.started(other) for other in others] == before


@pytest.mark.soak
@pytest.mark.usefixtures("converged")
def test_another_setting_restarts_one_after_the_other(cluster):
    before = [cluster.started(name) for name in cluster.names]
    certificates = [cluster.node(name).ssh("cat /etc/etcd/tls/tls.crt") for name in cluster.names]
    cluster.write(etcd_settings={"snapshot-count": 5000})
    cluster.play().ok()
    assert [cluster.node(name).ssh("cat /etc/etcd/tls/tls.crt") for name in cluster.names] == certificates
    after = [cluster.started(name) for name in cluster.names]
    assert all(old != new for old, new in zip(before, after))
    assert cluster.keys(cluster.names[0]) == 1000
    assert cluster.play().ok().count("changed") == 0
    cluster.write()
    cluster.play().ok()


@pytest.mark.soak
@pytest.mark.usefixtures("converged")
def test_a_dead_node_leaves_for_good_and_another_host_joins(cluster, nodes):
    dead, added = cluster.names[2], cluster.names[2] + "-new"
    others = cluster.names[:2]
    tool.create([added], PLATFORM)
    try:
        cluster.names.append(added)
        cluster.write(fleet_recipe="cpu-tiny", fleet_hardware={"accelerator": "cpu", "count": 1, "cores": 2})
        before = [cluster.started(name) for name in others]
        nodes.destroy([dead])
        removal = ("-e", "fleet_node=%s" % dead, "-e", "fleet_remove=true")
        run = cluster.play(*removal, playbook="playbooks/replace_node.yml").ok()
        cluster.names.remove(dead)
        assert dead + " " not in run.output.partition("PLAY RECAP")[2]
        assert cluster.healthy(others[0]) == 3
        assert [cluster.keys(name) for name in cluster.names] == [1000, 1000, 1000]
        assert [cluster.started(name) for name in others] == before
        wait_for(lambda: {cluster.routes(name) for name in cluster.names} == {2}, 300, "routes of each with each")
        assert dead not in cluster.node(others[0]).ssh("cat /etc/nats/nats.conf")
        assert cluster.play(*removal, playbook="playbooks/replace_node.yml").ok().count("changed") == 0
    finally:
        nodes.destroy([added])
