# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What clients of the real Dynamo see while a part of it is away; for `make soak`. Prints rows for dynamo.md."""

from __future__ import annotations

import json
import signal
import subprocess
import tarfile

import pytest
from ansible_collections.inference.fleet.tests.unit.engines.small_node import free_port
from ansible_collections.inference.fleet.tools import dynamo_outages, nodes

pytestmark = pytest.mark.soak

ETCD, NATS = "etcd", "nats-server"


class Service:
    """etcd or NATS on loopback, with the data that it had when it was killed."""

    def __init__(self, name, folder):
        (archives,) = {here for here, _there in nodes.share_service_archives()}
        with tarfile.open(archives / json.loads((archives / "archives.json").read_text())[name]["file"]) as archive:
            archive.extractall(folder, filter="data")
        (program,) = folder.glob("*/" + name)
        self.port, self.process = free_port(), None
        url, peers = "http://127.0.0.1:%d" % self.port, "http://127.0.0.1:%d" % free_port()
        own = ["--data-dir", folder / "data", "--listen-client-urls", url, "--advertise-client-urls", url,
               "--listen-peer-urls", peers]  # fmt: skip
        self.argv = [program, *(own if name == ETCD else ["-a", "127.0.0.1", "-p", str(self.port)])]
        self.log = folder / "log"

    def begin(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def end(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    found = {name: Service(name, tmp_path_factory.mktemp(name)) for name in (ETCD, NATS)}
    for one in found.values():
        one.begin()
    yield found
    for one in found.values():
        one.end()


@pytest.fixture(scope="module")
def discovered(dynamo, services):
    """The deployment, its processes finding each other by etcd and telling events by NATS."""
    dynamo.layers["environment"] = {
        "DYN_DISCOVERY_BACKEND": "etcd",
        "DYN_FILE_KV": None,
        "ETCD_ENDPOINTS": "http://127.0.0.1:%d" % services[ETCD].port,
        "DYN_EVENT_PLANE": "nats",
        "NATS_SERVER": "nats://127.0.0.1:%d" % services[NATS].port,
    }
    dynamo.site().ok()
    yield dynamo
    del dynamo.layers["environment"]


def asking(dynamo):
    url = "http://127.0.0.1:%d" % dynamo.ports[0]
    model = dynamo_outages.model_of(url)
    return lambda: dynamo_outages.ask(url, model)


def verified(dynamo):
    run = dynamo.play("playbooks/verify.yml", "-e", "fleet_verify=full").ok()
    assert run.count("changed") == 0


@pytest.mark.parametrize(("name", "seconds"), [(ETCD, 5), (ETCD, 20), (ETCD, 60), (ETCD, 600), (NATS, 5), (NATS, 20)])
def test_a_service_was_away(discovered, services, name, seconds):
    """It answers again without a play, within a minute or twice what a start takes here, however long it was; what is
    away for less than a lease, and NATS, nobody notices."""
    look, service = asking(discovered), services[name]
    dynamo_outages.settle(look)
    seen, back = dynamo_outages.away(seconds, service.end, service.begin, look)
    print("\n" + dynamo_outages.row("%s, %g s" % (name, seconds), seen, back))
    if name == NATS or seconds == 5:
        assert [found for _second, found in seen] == ["200"]
    notes = [json.loads(note.read_text()) for note in (discovered.root / "run/inference-fleet/ready").glob("*.json")]
    assert back - seconds < max([60, *(2 * note["took_s"] for note in notes if note["took_s"])])
    verified(discovered)


@pytest.mark.parametrize("name", dynamo_outages.SERVERS)
def test_a_server_was_killed(discovered, name):
    look = asking(discovered)
    dynamo_outages.settle(look)
    seen, back = dynamo_outages.outage(discovered.root, name, look)
    print("\n" + dynamo_outages.row(name, seen, back))
    verified(discovered)
