# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""etcd and NATS in containers, pulled by digest from the node's own registry. The tests build on each other."""

from __future__ import annotations

import json
import os

import pytest
import yaml
from ansible_collections.inference.fleet.tests.nodes.test_services import Cluster
from ansible_collections.inference.fleet.tools import nodes as tool

pytestmark = pytest.mark.soak  # in `make test` molecule/dynamo_trtllm has both in containers

UNITS = ("etcd", "nats")
PORTS = (2379, 2380, 4222, 6222, 8222)
# The flags of the guide's compose file.
GUIDE = {
    "etcd_container_flags": ["--env=ALLOW_NONE_AUTHENTICATION=yes"],
    "nats_arguments": ["-js", "--trace", "-m", "8222"],
}
# What Debian's programs are in the images: {image: the folder in the archive's place, programs}.
PROGRAMS = {"etcd": ("etcd", ["etcd", "etcdctl"]), "nats": ("nats-server", ["nats-server"])}
KEY = """
import base64, json, os, ssl, sys, urllib.request
tls, what, value = "/etc/etcd/tls/", *sys.argv[1:]
context = None
if os.path.exists(tls + "tls.crt"):
    context = ssl.create_default_context(cafile=tls + "ca.crt")
    context.load_cert_chain(tls + "tls.crt", tls + "tls.key")
coded = lambda text: base64.b64encode(text.encode()).decode()
def ask(path, **body):
    url = "%s://127.0.0.1:2379/v3/kv/" % ("https" if context else "http")
    return json.load(urllib.request.urlopen(url + path, json.dumps(body).encode(), context=context, timeout=60))
if what == "put":
    ask("put", key=coded("key"), value=coded(value))
print(base64.b64decode(ask("range", key=coded("key"))["kvs"][0]["value"]).decode())
"""


class Services(Cluster):
    """Nodes with Docker in the groups of the services, and the playbook run against them."""

    def __init__(self, names, folder):
        self.names, self.inventory = names, folder / "hosts.yml"
        tool.create(names, "containers", ["service-archives"])
        ((archives, place),) = tool.share_service_archives()
        found = json.loads((archives / "archives.json").read_text())
        self.images = {}
        for name in names:
            for service, (archive, programs) in PROGRAMS.items():
                path = "%s/%s" % (place, found[archive]["file"])
                self.node(name).ssh("tar -xzf %s -C /usr/local/bin --strip-components=1 --no-same-owner" % path)
                paths = " ".join("/usr/local/bin/" + program for program in programs)
                said = self.node(name).ssh("engine-image %s:1 %s && rm %s" % (service, paths, paths), timeout=300)
                self.images[name, service] = "sha256:" + said.split("sha256:")[-1].strip()
        self.archives = {
            "%s_%s" % (service, key): value
            for service, (archive, _programs) in PROGRAMS.items()
            for key, value in (
                ("version", found[archive]["version"]),
                ("checksums", {found[archive]["architecture"]: found[archive]["sha256"]}),
                ("url", "file://%s/%s" % (place, found[archive]["file"])),
            )
        }
        self.write()

    def write(self, **variables):
        """The inventory."""
        variables = {
            "ansible_python_interpreter": "/usr/bin/python3",
            **self.archives,
            **{service + "_install": "container" for service in UNITS},
            **{service + "_image": "127.0.0.1:5000/%s:1" % service for service in UNITS},
            **{service + "_timeout_s": 90 for service in UNITS},
            **GUIDE,
            **variables,
        }
        hosts = {
            name: {
                **self.node(name).variables(),
                **{service + "_image_digest": self.images[name, service] for service in UNITS},
            }
            for name in self.names
        }
        groups = {service: {"hosts": {name: {} for name in self.names}} for service in UNITS}
        self.inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": variables, "children": groups}}))

    def key(self, name, what="get", value=""):
        """The key's value, after it was put."""
        return self.node(name).ssh("python3 -c '%s' %s '%s'" % (KEY, what, value), timeout=120).strip()

    def inspected(self, name, service):
        """What Docker knows of a service's container."""
        return json.loads(self.node(name).ssh("docker inspect inference-fleet." + service))[0]

    def containers(self, name, engine="docker"):
        return sorted(self.node(name).ssh(engine + " ps --all --format '{{.Names}}'").split())

    def listening(self, name):
        """Which of the services' ports are held, with the addresses."""
        lines = [line.split() for line in self.node(name).ssh("ss -Hltn").splitlines()]
        held = [line[3].rpartition(":")[::2] for line in lines]
        return {(address, int(port)) for address, port in held if int(port) in PORTS}


@pytest.fixture(scope="module")
def one(nodes, tmp_path_factory):
    names = ["service-container-%d" % os.getpid()]
    try:
        yield Services(names, tmp_path_factory.mktemp("services"))
    finally:
        nodes.destroy(names)


def test_a_bare_node_gets_both_as_containers(one):
    """Check mode, the run, check mode, and a run that changes nothing at one look of each service."""
    (name,) = one.names
    checked = one.play("--check", "--diff").ok()
    assert checked.count("changed") == 2
    assert "docker.service" in checked.output
    assert one.containers(name) == []
    one.play().ok()
    assert one.key(name, "put", "first") == "first"
    for again in (one.play("--check"), one.play()):
        assert (again.ok().count("changed"), again.count("ok")) == (0, 9)


def test_they_run_as_the_guide_says_but_on_loopback_and_as_their_accounts(one):
    (name,) = one.names
    etcd, nats = (one.inspected(name, service) for service in UNITS)
    assert nats["Args"] == ["-c", "/etc/nats/nats.conf", "-js", "--trace", "-m", "8222"]
    assert "ALLOW_NONE_AUTHENTICATION=yes" in etcd["Config"]["Env"]
    assert {one["HostConfig"]["NetworkMode"] for one in (etcd, nats)} == {"host"}
    for service, found in zip(UNITS, (etcd, nats)):
        assert found["Image"] in one.node(name).ssh("docker image inspect 127.0.0.1:5000/%s@%s"
                                                    % (service, one.images[name, service]))  # fmt: skip
        user = one.node(name).ssh("echo $(id -u %s):$(id -g %s)" % (service, service)).strip()
        assert found["Config"]["User"] == user
        program = one.node(name).ssh("ps -o user= -p $(pgrep -f '^(/usr/local/bin/)?%s( |$)' | head -1)"
                                     % PROGRAMS[service][0])  # fmt: skip
        assert program.strip() == service
    assert {address for address, _port in one.listening(name)} == {"127.0.0.1"}
    assert {port for _address, port in one.listening(name)} == {2379, 2380, 4222, 8222}


def test_from_container_to_archive_and_back(one):
    """NATS with podman, as on an inference host, whose engines the step prepare sets up: only the image is pulled."""
    (name,) = one.names
    one.write()
    one.play().ok()
    one.key(name, "put", "first")
    one.node(name).ssh("systemctl stop etcd nats")
    assert (one.containers(name), one.listening(name)) == ([], set())
    one.write(etcd_install="archive", nats_install="archive")
    one.play().ok()
    assert (one.containers(name), one.key(name)) == ([], "first")
    assert one.play().ok().count("changed") == 0
    one.write(nats_container_engine="podman", fleet_recipe="node-small")
    run = one.play().ok()
    assert "Make the container engine ready" not in run.output
    assert "Pull the images" in run.output
    assert (one.containers(name), one.key(name)) == (["inference-fleet.etcd"], "first")
    assert one.containers(name, "podman") == ["inference-fleet.nats"]
    assert one.play().ok().count("changed") == 0
    one.node(name).ssh("systemctl stop nats")
    assert one.containers(name, "podman") == []
