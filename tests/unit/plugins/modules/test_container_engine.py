# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a container engine: when its role has work to do, faults and removal."""

from __future__ import annotations

import os
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers import engine as container_engine
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers import host_settings
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import EngineError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.commands import hangs
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.engines.scripted_docker import ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.operating import operate

DAEMON, DROP_IN, PROXIES = host_settings.DAEMON_JSON, host_settings.DROP_IN, host_settings.PROXY_FILE
NOTHING = {"settings": {}, "registry_mirrors": [], "insecure_registries": [], "registries": [], "ca_bundle": "",
           "proxy_env": {}}  # fmt: skip
SETTINGS = {**NOTHING, "settings": {"log-driver": "journald"}, "proxy_env": {"NO_PROXY": "127.0.0.1"}}
PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


class Node:
    """A node's file system and engine."""

    def __init__(self, folder, monkeypatch, kinds=("docker",)):
        self.root = folder / "sys"
        self.engine = ScriptedEngine(folder, monkeypatch, kinds)
        (self.root / "run/systemd/system").mkdir(parents=True)

    def write(self, path, text=""):
        place = self.root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    def host(self, engine="docker", root=""):
        return host_settings.Host(engine, root, str(self.root))

    def check(self, inputs=None, **host):
        return host_settings.check(self.host(**host), inputs or NOTHING)

    def due(self, inputs):
        return self.check(inputs)["due"]


@pytest.fixture
def node(tmp_path, monkeypatch):
    return Node(tmp_path, monkeypatch)


@pytest.mark.parametrize(("kinds", "engine", "down", "due", "missing"), [
    (["docker"], "docker", False, None, []),
    (["docker"], "docker", True, "docker does not run", []),
    ([], "docker", False, "docker is not installed", ["docker"]),
    ([], "podman", False, "podman is not installed", ["podman"]),
    # `podman run --init` fails where a distribution installed podman alone
    (["podman"], "podman", False, "catatonit is not installed", ["catatonit"]),
])  # fmt: skip
def test_what_is_due_without_settings(tmp_path, monkeypatch, kinds, engine, down, due, missing):
    node = Node(tmp_path, monkeypatch, kinds)
    node.engine.write(errors={"*": "down"} if down else {})
    found = node.check({**NOTHING, "registries": ["a.example"]}, engine=engine)
    assert (found["due"], found["missing"], found["running"]) == (due, missing, due is None)


def test_the_role_runs_again_if_arguments_or_files_differ(node, tmp_path):
    """The latest arguments of several callers are recorded side by side."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text(PEM)
    inputs = {**SETTINGS, "ca_bundle": str(bundle)}
    assert node.due(inputs) == "the settings of docker differ"
    node.write(DAEMON, "{}")
    others = [{**NOTHING, "settings": {"max-concurrent-downloads": number}} for number in range(20)]
    for given in (*others, inputs, SETTINGS):
        host_settings.record(node.host(), given)
    assert len(node.host().recorded()) == host_settings.RECORDS
    assert [node.due(given) for given in (others[-1], inputs, SETTINGS)] == [None, None, None]
    assert node.due(NOTHING)  # proxies that are no longer set are to be removed
    bundle.write_text(PEM + PEM)
    assert (bool(node.due(inputs)), node.due(SETTINGS)) == (True, None)
    (node.root / DAEMON[1:]).chmod(0o666)
    assert node.due(SETTINGS)


def test_the_facts_that_the_role_decides_by(node):
    node.write(DAEMON, "{}").chmod(0o640)
    node.write(PROXIES)
    containers = [{"id": name, "name": name, "state": "running", "labels": {}} for name in ("one", "another")]
    node.engine.write(containers=containers, info={"CDISpecDirs": ["/etc/cdi"]})
    found = node.check(SETTINGS)
    assert found["stopped"] == ["another", "one"]
    assert (found["daemon_json"], found["proxies"], found["cdi"]) == ("0640", True, True)
    node.engine.write(live_restore=True)
    assert node.check(SETTINGS)["stopped"] == []


def test_a_docker_that_hangs_is_an_error(node, monkeypatch):
    monkeypatch.setattr(container_engine, "HANGS", {})
    (node.engine.bin / "docker").write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    monkeypatch.setattr(container_engine.Engine.__init__, "__defaults__", ("docker", None, None, 0.5))
    found = error(node.check)
    assert (found.code, hangs(found)) == ("containers.engine-problem", True)
    began = time.monotonic()
    with pytest.raises(EngineError) as again:
        container_engine.Engine("docker", call_s=600).containers("")
    assert (again.value.kind, time.monotonic() < began + 60) == ("timeout", True)
    assert hangs(error(host_settings.faults, "docker", sysroot=str(node.root)))


@pytest.mark.parametrize(("daemon", "bundle", "code"), [
    *((text, "", "containers.daemon-json-invalid") for text in ("{", "[]", '"a"')),
    *(("{}", path, "containers.ca-bundle-unreadable") for path in (os.devnull, "/nowhere")),
])  # fmt: skip
def test_files_that_cannot_be_used_are_errors(node, daemon, bundle, code):
    node.write(DAEMON, daemon)
    assert error(node.check, {**NOTHING, "ca_bundle": bundle}).code == code


def test_the_operation_shows_no_proxy_and_refuses_names_that_no_variable_has(node):
    result = operate("container_engine", proxy_env={"HTTPS_PROXY": "http://user:password@proxy:3128"})
    assert "password" not in str(result)
    assert operate("container_engine", proxy_env={"A B": "x"})["code"] == "environment.invalid"


# ---- faults before a run


@pytest.mark.parametrize(("fault", "daemon", "prepares", "problem", "warning"), [
    (None, "{}", True, "", ""),
    ("down", "{}", True, "", "the step prepare starts it"),
    ("down", "{}", False, "docker does not answer", ""),
    ("permission", "{}", True, "may not use docker", ""),
    ("down", "{", True, "daemon.json is not valid JSON", ""),
    ("gone", "{}", True, "", "the step prepare installs it"),
    ("gone", "{}", False, "There is no docker on this node", ""),
])  # fmt: skip
def test_faults_are_problems_or_what_prepare_solves(node, monkeypatch, fault, daemon, prepares, problem, warning):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    node.engine.write(errors={"*": fault} if fault else {})
    if fault == "gone":
        (node.engine.bin / "docker").unlink()
    node.write(DAEMON, daemon)
    found = host_settings.faults("docker", prepares=prepares, sysroot=str(node.root))
    for words, messages in zip((problem, warning), found):
        assert len(messages) == bool(words) and words in "".join(messages)


@pytest.mark.parametrize("info", [{"ServerErrors": ["Cannot connect to the Docker daemon."]}, {"ServerVersion": ""}])
def test_docker_info_without_a_daemon_is_no_docker_without_cdi(node, info):
    """The client returns 0 although no daemon answers."""
    node.engine.write(info=info)
    with pytest.raises(EngineError) as caught:
        container_engine.Engine("docker").cdi()
    assert caught.value.kind == "down"


# ---- removal


def test_removal_leaves_daemon_json_and_files_of_others(node):
    ours = [node.write(path) for path in (PROXIES, DROP_IN, "/etc/docker/certs.d/a.example/inference-fleet.crt")]
    theirs = [node.write(DAEMON, "no JSON"), node.write("/etc/docker/certs.d/a.example/theirs.crt")]
    host_settings.record(node.host(), SETTINGS)
    node.engine.write(errors={"*": "down"})
    removed = host_settings.remove(node.host(), check_mode=True)
    assert sorted(removed) == sorted(map(str, ours)) and ours[0].exists()
    assert host_settings.remove(node.host(), check_mode=False) == removed
    assert not any(path.exists() for path in [*ours, node.root / "var/lib/inference-fleet/container_engine.json"])
    assert all(path.exists() for path in theirs)
    assert host_settings.remove(node.host(), check_mode=False) == []


def test_removal_under_a_root_without_settings_removes_nothing(node):
    node.write(host_settings.PODMAN_REGISTRIES)
    host = node.host("podman", "/srv/fleet")
    assert host_settings.remove(host, check_mode=False) == []
    host_settings.record(host, SETTINGS)
    assert len(host_settings.remove(host, check_mode=False)) == 1
