# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node with servers and a member of etcd dies under 20 streams a second; one command puts an empty one there."""

from __future__ import annotations

import csv
import io
import os

import pytest
import yaml
from ansible_collections.inference.fleet.tests.nodes.conftest import bring_engine, fingerprint, host_key
from ansible_collections.inference.fleet.tests.nodes.test_services import Cluster
from ansible_collections.inference.fleet.tests.runs import CLONE, play, wait_for
from ansible_collections.inference.fleet.tests.unit.playbooks.test_update_load import Streams
from ansible_collections.inference.fleet.tests.unit.test_endpoint_proxy import MODEL
from ansible_collections.inference.fleet.tools import nodes as tool

pytestmark = pytest.mark.soak
HERE = CLONE / "tests" / "nodes"
RATE = 20  # streams per second
UNITS = ("inference-fleet-server-0", "inference-fleet-server-1", "etcd")
STATISTICS = "echo 'show stat' | socat - /run/haproxy/admin.sock"


class Fleet(Cluster):
    """The three nodes of the services with two servers each, and a host of the endpoint. Host keys are checked."""

    def __init__(self, names, proxy, folder):
        self.proxy, self.folder, self.known = proxy, folder, folder / "known_hosts"
        tool.create([proxy], "endpoint")
        super().__init__(names, folder)
        for name in names:
            self.furnish(name)
        self.known.write_text("".join("%s %s\n" % (name, host_key(self.node(name))) for name in (*names, proxy)))

    def furnish(self, name):
        """What the step prepare installs from a network."""
        node = self.node(name)
        node.ssh("useradd --system --user-group inference-fleet")
        bring_engine(node)

    def write(self):
        super().write(fleet_reports_dir=str(self.folder / "reports"), endpoint_keys={"alice": "key-of-alice"})
        groups = yaml.safe_load(self.inventory.read_text())
        del groups["nats"]
        groups["vllm"] = {"children": {"cpu": {}}}
        groups["endpoint"] = {"hosts": {self.proxy: self.node(self.proxy).variables()}}
        groups["cpu"] = {
            **groups["etcd"],
            "vars": {
                "fleet_recipe": "node-small",
                "fleet_recipe_paths": [str(HERE / "recipes")],
                "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2},
                "fleet_bind_address": "0.0.0.0",
                "fleet_api_key": "key-of-the-servers",
                "fleet_override": {
                    "arguments": {"host": "0.0.0.0"},
                    "environment": {"ENGINE_STREAM_SECONDS": "0.5"},
                    "model": {"id": MODEL},
                },
                "fleet_verify": "quick",
            },
        }
        lines = ["IdentitiesOnly yes", "StrictHostKeyChecking yes", "UserKnownHostsFile %s" % self.known]
        for name in (*self.names, self.proxy):
            lines += ["Host " + name, "  HostName " + self.node(name).address, "  HostKeyAlias " + name]
            host = groups["endpoint" if name == self.proxy else "cpu"]["hosts"][name]
            host.update(ansible_host=name, ansible_ssh_common_args="-F %s" % (self.folder / "ssh_config"))
        (self.folder / "ssh_config").write_text("\n".join(lines) + "\n")
        self.inventory.write_text(yaml.safe_dump(groups))

    def run(self, playbook, *arguments):
        return play(playbook, self.inventory, "--skip-tags", "prepare,weights", *arguments, timeout=900)

    def statistics(self, host):
        """[(status, most streams at the same time)] of a host's servers at the endpoint."""
        text = self.node(self.proxy).ssh(STATISTICS)
        rows = csv.DictReader(io.StringIO(text.removeprefix("# ")))
        return [(row["status"], int(row["smax"])) for row in rows if row["svname"].startswith(host + ".")]


@pytest.fixture(scope="module")
def fleet(nodes, tmp_path_factory):
    names, proxy = ["dies-%d-%d" % (os.getpid(), index) for index in range(3)], "dies-%d-endpoint" % os.getpid()
    try:
        one = Fleet(names, proxy, tmp_path_factory.mktemp("dies"))
        one.write()
        one.run("site.yml").ok()
        yield one
    finally:
        nodes.destroy([*names, proxy])


def test_a_node_dies_under_streams_and_an_empty_one_takes_its_place(fleet, nodes):
    dead, *others = fleet.names
    assert fleet.keys(others[0], "write") == 1000
    before = [fleet.started(name, unit) for name in others for unit in UNITS]
    streams = Streams([8080], RATE)
    streams.host = fleet.node(fleet.proxy).address
    with streams:
        wait_for(lambda: len(streams.answers) > 5 * RATE, 60, "streams")
        most = sum(count for _status, count in fleet.statistics(dead))
        nodes.docker("rm", "--force", "--volumes", nodes.container_name(dead))
        wait_for(lambda: "DOWN" in {status for status, _count in fleet.statistics(dead)}, 60, "the end of its servers")
        fleet.replace(dead)
        fleet.furnish(dead)
        command = ("-e", "fleet_node=%s" % dead, "-e", "fleet_host_key=%s" % fingerprint(fleet.node(dead)))
        fleet.run("playbooks/replace_node.yml", *command).ok()
        wait_for(lambda: {status for status, _most in fleet.statistics(dead)} == {"UP"}, 60, "its servers")
        answered = len(streams.answers)
        wait_for(lambda: len(streams.answers) > answered + 5 * RATE, 60, "more streams")
    failed = streams.result()
    print("at most %d at the same time on the node" % most)
    assert len(failed) <= most
    assert [fleet.started(name, unit) for name in others for unit in UNITS] == before
    assert fleet.healthy(others[0]) == 3
    assert [fleet.keys(name) for name in fleet.names] == [1000, 1000, 1000]
    assert fleet.run("playbooks/replace_node.yml", *command).ok().count("changed") == 0
