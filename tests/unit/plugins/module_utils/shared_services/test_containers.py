# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the image of a service is there, whether a stopped one is gone, and arguments that contradict."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.called import operation_of
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import EngineError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.shared_services import (
    containers,
    etcd_member,
    nats_server,
    units,
)

etcd_module = operation_of("etcd_member")
nats_module = operation_of("nats_server")

CONTAINER = {"engine": "docker", "image": "r.example/etcd:1", "digest": None, "name": "inference-fleet.etcd"}


@pytest.fixture
def node(monkeypatch):
    """A node with docker, its images, and what is left of containers and ports: lists that a test changes."""

    class Node:
        def __init__(self):
            self.docker, self.images, self.containers, self.held, self.pings = True, [], [], {}, 0

    node = Node()

    class Engine:
        kind, label = "docker", "docker"

        def __init__(self, kind):
            assert kind == "docker"

        def program(self):
            if not node.docker:
                raise EngineError("missing", "there is no program docker")
            return "/usr/bin/docker"

        def holder_of_name(self, name):
            if node.containers is None:
                raise EngineError("down", "no daemon")
            return (node.containers.pop(0), {}) if node.containers else None

    def ensure(image, digest, engine, check_mode):
        assert check_mode
        return {"changed": (image, digest) not in node.images}

    monkeypatch.setattr(containers, "Engine", Engine)
    monkeypatch.setattr(containers, "ensure_image", ensure)
    monkeypatch.setattr(containers, "port_holder", lambda address, port: node.held.get(port))
    monkeypatch.setattr(containers, "GONE_S", 0.5)
    monkeypatch.setattr(containers, "POLL_S", 0.01)
    monkeypatch.setattr(units, "shown", lambda unit: {"MainPID": "0"})
    monkeypatch.setattr(units, "port_holder", lambda address, port: None)
    monkeypatch.setattr(units, "ensure_stopped", lambda unit, check_mode: True)
    return node


def params_of(module, **changed):
    params = {name: option.get("default") for name, option in module.arguments.items()}
    return {**params, "name": "a", "members": [{"name": "a", "address": "127.0.0.1"}], **changed}


@pytest.mark.parametrize(("module", "code"), [(etcd_module, etcd_member), (nats_module, nats_server)])
def test_an_image_that_is_not_here_is_due(node, module, code):
    given = params_of(module, state="looked", container=CONTAINER)
    assert code.run(given, False)["due"]["programs"] == "the image r.example/etcd:1 is not on this node"
    pinned = {**given, "container": {**CONTAINER, "digest": "sha256:1"}}
    assert code.run(pinned, False)["due"]["programs"] == "the image r.example/etcd@sha256:1 is not on this node"
    node.images.append(("r.example/etcd:1", None))
    assert "programs" not in code.run(given, False)["due"]
    assert "programs" not in code.run(params_of(module, state="looked"), False)["due"]


@pytest.mark.parametrize(("module", "code"), [(etcd_module, etcd_member), (nats_module, nats_server)])
def test_a_look_says_whether_the_engine_is_missing(node, module, code):
    given = params_of(module, state="looked", container=CONTAINER)
    assert code.run(given, False)["engine_missing"] is False
    node.docker = False
    assert code.run(given, False)["engine_missing"] is True
    assert code.run(params_of(module, state="looked"), False)["engine_missing"] is False


@pytest.mark.parametrize(
    ("module", "code", "what"), [(etcd_module, etcd_member, "Member 'a'"), (nats_module, nats_server, "Server 'a'")]
)
def test_a_stop_is_proven(node, module, code, what):
    given = params_of(module, state="stopped", container=CONTAINER)
    node.containers[:] = ["0123456789abcdef"] * 3  # gone after some time
    assert code.run(given, False) == {"changed": True}
    node.containers[:] = ["0123456789abcdef"] * 1000
    with pytest.raises(FleetError) as caught:
        code.run(given, False)
    assert (caught.value.code, caught.value.message) == (
        "service.still-runs",
        what + " was stopped, but container inference-fleet.etcd (0123456789ab) is still there. Look at what it is and "
        "end it, then run again.",
    )
    assert code.run(given, True) == {"changed": True}
    node.containers[:] = []
    node.held[given["client_port"]] = {"pid": 7, "user": "me"}
    with pytest.raises(FleetError) as caught:
        code.run({**given, "container": {}}, False)
    assert caught.value.values[1] == "process 7 of me, which holds port %d" % given["client_port"]


def test_a_daemon_that_does_not_answer_proves_nothing(node):
    node.containers = None
    with pytest.raises(FleetError) as caught:
        etcd_member.run(params_of(etcd_module, state="stopped", container=CONTAINER), False)
    assert caught.value.code == "containers.engine-problem"
    assert caught.value.message.startswith("Member 'a': docker does not answer (no daemon). Start it:")


@pytest.mark.parametrize(
    "arguments", [["-js", "--trace", "-m", "8222"], ["--http_port=8222", "-p", "4222"], ["-DV", "--trace"], []]
)
def test_arguments_that_say_what_the_configuration_says(arguments):
    nats_server.check_arguments("a", params_of(nats_module, arguments=arguments, jetstream=True))


@pytest.mark.parametrize(
    ("arguments", "jetstream", "words"),
    [
        (["-m", "9999"], True, "-m with the value 9999, but the configuration says 8222. Set nats_monitor_port to"),
        (["--port=1"], True, "--port=1 with the value 1, but the configuration says 4222. Set nats_client_port to"),
        (["-m"], True, "-m with the value nothing, but the configuration says 8222. Set nats_monitor_port to"),
        (["-js"], False, "-js with the value true, but the configuration says false. Set nats_jetstream to"),
    ],
)
def test_arguments_that_contradict(arguments, jetstream, words):
    with pytest.raises(FleetError) as caught:
        nats_server.check_arguments("a", params_of(nats_module, arguments=arguments, jetstream=jetstream))
    assert (caught.value.code, caught.value.message) == (
        "nats.argument-contradicts",
        "Server 'a': nats_arguments holds %s the same, or remove the argument." % words,
    )


@pytest.mark.parametrize("argument", ["-c", "--config=/x", "-a", "--user=x", "-sl"])
def test_arguments_that_are_the_roles(argument):
    with pytest.raises(FleetError) as caught:
        nats_server.run(params_of(nats_module, state="looked", arguments=[argument]), False)
    assert (caught.value.code, caught.value.message) == (
        "nats.argument-reserved",
        "Server 'a': nats_arguments holds %s, which the role sets or which starts no server. Remove it; use the role's "
        "variables, or nats_settings." % argument,
    )
