# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a container engine: when its role has work to do, pending restarts, faults and removal."""

from __future__ import annotations

import os
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers import engine as container_engine
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers import host_settings
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import EngineError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.images import ensure_image
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.commands import hangs
from ansible_collections.inference.fleet.tests.unit.engines.scripted_docker import ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.operating import operate

DAEMON, DROP_IN, PROXIES = host_settings.DAEMON_JSON, host_settings.DROP_IN, host_settings.PROXY_FILE
NOTHING = {"settings": {}, "registry_mirrors": [], "insecure_registries": [], "registries": [], "ca_bundle": "",
           "proxy_env": {}}  # fmt: skip
SETTINGS = {**NOTHING, "settings": {"log-driver": "journald"}, "proxy_env": {"NO_PROXY": "127.0.0.1"}}
PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
OURS = {"id": "1", "name": "inference-fleet-server-0", "state": "running",
        "labels": {"inference.fleet.server": "server-0", "inference.fleet.root": "/"}}  # fmt: skip
FOREIGN = {"id": "2", "name": "database", "state": "running", "labels": {}}


class Node:
    """A node's file system and engine. systemctl is a script that records its arguments."""

    def __init__(self, folder, engine):
        self.root = folder / "sys"
        self.engine = engine
        self.log = folder / "systemctl"
        (self.root / "run/systemd/system").mkdir(parents=True)
        self.shown = folder / "shown"
        self.shown.write_text("NeedDaemonReload=no\n")
        self.broken = folder / "broken"
        self.script(
            "systemctl",
            'if [ "$1" = show ]; then read -r line < %s; echo "$line"; exit; fi\necho "$@" >> %s\n'
            "if [ -e %s ]; then echo no >&2; exit 1; fi\n" % (self.shown, self.log, self.broken),
        )
        self.write("/run/docker.pid", "1\n")

    def script(self, name, text):
        (self.engine.bin / name).write_text("#!/bin/sh\n" + text)
        (self.engine.bin / name).chmod(0o755)

    def write(self, path, text=""):
        place = self.root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    @property
    def systemctl(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def host(self, engine="docker", root=""):
        return host_settings.Host(engine, root, str(self.root))

    def check(self, inputs=None, **host):
        return host_settings.check(self.host(**host), inputs or NOTHING)

    def waits(self, keys="log-driver, proxies"):
        """Docker was started before the role noted that it needs a restart for these keys."""
        os.utime(self.root / "run/docker.pid", (1, 1))
        return self.write("/run/inference-fleet/docker-restart", keys + "\n")

    def restart(self, restart="auto", check_mode=False):
        return host_settings.apply_pending(self.host(), restart, check_mode)

    def mask(self, unit="docker.service"):
        link = self.root / "etc/systemd/system" / unit
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("/dev/null")


@pytest.fixture
def node(tmp_path, monkeypatch):
    return Node(tmp_path, ScriptedEngine(tmp_path, monkeypatch))


def test_an_engine_without_settings_needs_nothing(node):
    found = node.check({**NOTHING, "registries": ["a.example"]})
    assert (found["due"], found["running"], found["missing"]) == (None, True, [])


def test_the_role_runs_again_if_arguments_or_files_differ(node, tmp_path):
    """Arguments of several callers are recorded side by side."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text(PEM)
    inputs = {**SETTINGS, "ca_bundle": str(bundle)}
    assert node.check(inputs)["due"] == "the settings of docker differ"
    node.write(DAEMON, "{}")
    for given in (inputs, SETTINGS):
        host_settings.record(node.host(), given)
    assert (node.check(inputs)["due"], node.check(SETTINGS)["due"]) == (None, None)
    assert node.check(NOTHING)["due"]  # proxies that are no longer set are to be removed
    bundle.write_text(PEM + PEM)
    assert (bool(node.check(inputs)["due"]), node.check(SETTINGS)["due"]) == (True, None)
    (node.root / DAEMON[1:]).chmod(0o666)
    assert node.check(SETTINGS)["due"]


def test_the_record_keeps_the_latest_arguments(node):
    for number in range(20):
        host_settings.record(node.host(), {**NOTHING, "settings": {"max-concurrent-downloads": number}})
    assert len(node.host().recorded()) == host_settings.RECORDS
    assert node.check({**NOTHING, "settings": {"max-concurrent-downloads": 19}})["due"] is None


def test_the_facts_that_the_role_decides_by(node):
    node.write(DAEMON, "{}").chmod(0o640)
    node.write(PROXIES)
    node.engine.write(containers=[OURS, FOREIGN], info={"CDISpecDirs": ["/etc/cdi"]})
    found = node.check(SETTINGS)
    assert (found["servers"], found["others"]) == (["inference-fleet-server-0"], ["database"])
    assert (found["daemon_json"], found["proxies"], found["cdi"]) == ("0640", True, True)
    node.engine.write(live_restore=True)
    assert node.check(SETTINGS)["others"] == []


def test_docker_that_does_not_run_is_due_to_be_started(node):
    node.engine.write(errors={"*": "down"})
    found = node.check()
    assert (found["due"], found["running"]) == ("docker does not run", False)
    (node.root / "run/systemd/system").rmdir()
    assert code_of(node.check) == "containers.no-systemd"


@pytest.mark.parametrize("unit", ["docker.service", "docker.socket"])
def test_a_masked_docker_that_does_not_run_is_an_error(node, unit):
    node.mask(unit)
    assert node.check()["due"] is None
    node.engine.write(errors={"*": "down"})
    assert code_of(node.check) == "containers.unit-masked"


def test_a_docker_that_hangs_is_an_error_and_a_starting_docker_is_not(node, monkeypatch):
    monkeypatch.setattr(container_engine, "HANGS", {})
    node.script("docker", "exec /bin/sleep 600\n")
    monkeypatch.setattr(container_engine.Engine.__init__, "__defaults__", ("docker", None, None, 0.5))
    node.shown.write_text("ActiveState=activating\n")
    assert node.check()["due"] == "docker does not run"
    node.shown.write_text("ActiveState=active\n")
    with pytest.raises(FleetError) as caught:
        node.check()
    assert (caught.value.code, hangs(caught.value)) == ("containers.engine-problem", True)
    began = time.monotonic()
    with pytest.raises(EngineError) as again:
        container_engine.Engine("docker", call_s=600).containers("")
    assert (again.value.kind, time.monotonic() < began + 60) == ("timeout", True)
    with pytest.raises(FleetError) as caught:
        host_settings.faults("docker", sysroot=str(node.root))
    assert hangs(caught.value)


@pytest.mark.parametrize(
    ("kinds", "engine", "program"),
    [([], "docker", "docker"), ([], "podman", "podman"), (["podman"], "podman", "catatonit")],
)
def test_missing_programs_are_due(tmp_path, monkeypatch, kinds, engine, program):
    """`podman run --init` fails where a distribution installed podman alone."""
    node = Node(tmp_path, ScriptedEngine(tmp_path, monkeypatch, kinds=kinds))
    found = node.check(engine=engine)
    assert (found["due"], found["missing"]) == ("%s is not installed" % program, [program])


def code_of(function, *arguments):
    with pytest.raises(FleetError) as caught:
        function(*arguments)
    return caught.value.code


@pytest.mark.parametrize("text", ["{", "[]", '"a"'])
def test_a_damaged_daemon_json_is_an_error(node, text):
    node.write(DAEMON, text)
    assert code_of(node.check) == "containers.daemon-json-invalid"


def test_a_bundle_without_certificates_is_an_error(node, tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    assert code_of(node.check, {**NOTHING, "ca_bundle": str(tmp_path / "ca.pem")}) == "containers.ca-bundle-unreadable"
    assert code_of(node.check, {**NOTHING, "ca_bundle": "/nowhere"}) == "containers.ca-bundle-unreadable"


def test_the_operation_shows_no_proxy_and_refuses_names_that_no_variable_has(node):
    result = operate("container_engine", proxy_env={"HTTPS_PROXY": "http://user:password@proxy:3128"})
    assert "password" not in str(result)
    assert operate("container_engine", proxy_env={"A B": "x"})["code"] == "environment.invalid"


# ---- pending restarts


def test_a_pending_restart_is_made_once(node):
    node.engine.write(containers=[OURS])
    marker = node.waits()
    assert node.restart("never") == ""
    assert node.restart(check_mode=True) == "log-driver, proxies"
    assert (node.systemctl, marker.exists()) == ([], True)
    assert node.restart() == "log-driver, proxies"
    assert node.systemctl == ["daemon-reload", "restart docker.service"]
    assert (node.restart(), marker.exists()) == ("", False)


def test_containers_of_others_are_not_stopped(node):
    node.waits()
    node.engine.write(containers=[OURS, FOREIGN])
    assert code_of(node.restart) == "containers.restart-would-end-others"
    assert node.systemctl == []
    assert node.restart("always", check_mode=True)
    node.engine.write(live_restore=True)
    assert node.restart()


def test_a_start_of_docker_applies_what_was_pending(node):
    """Unless systemd had not read the new unit."""
    os.utime(node.waits(), (1, 1))
    os.utime(node.root / "run/docker.pid", (2, 2))
    assert node.restart() == ""
    node.shown.write_text("NeedDaemonReload=yes\n")
    assert node.restart() == "log-driver, proxies"


def test_a_docker_that_does_not_run_is_not_restarted(node):
    node.waits()
    node.engine.write(errors={"*": "down"})
    assert (node.restart(), node.systemctl) == ("", [])


def test_a_restart_that_fails_reports_docker_and_stays_pending(node):
    node.waits()
    node.broken.touch()
    node.script(
        "journalctl",
        "echo 'Starting docker.service'\necho 'unable to configure the Docker daemon with file x: nope'\n"
        "echo 'docker.service: Failed with result x.'\necho 'Failed to start docker.service'\n",
    )
    with pytest.raises(FleetError) as caught:
        node.restart()
    assert caught.value.code == "containers.systemctl-failed"
    assert caught.value.values[2].endswith("unable to configure the Docker daemon with file x: nope.")
    node.broken.unlink()
    assert node.restart()


@pytest.mark.parametrize(("address", "named"), [(None, True), ("unix:///x", False)])
def test_a_pull_that_fails_names_the_pending_settings(node, monkeypatch, address, named):
    """Those of the docker that pulls."""
    monkeypatch.setattr(host_settings, "DOCKER_PID", "/nonexistent")
    node.waits("proxies")
    with pytest.raises(FleetError) as caught:
        ensure_image("nvcr.io/team/app:1", engine="docker", address=address, root=str(node.root))
    assert ("Docker needs a restart for proxies" in caught.value.message) == named


# ---- faults before a run

FAULTS = [
    # state, whether prepare is part of the run, words of problems, words of warnings
    ({}, True, [], []),
    ({"errors": {"*": "down"}}, True, [], ["the step prepare starts it"]),
    ({"errors": {"*": "down"}}, False, ["docker does not answer"], []),
    ({"errors": {"*": "permission"}}, True, ["may not use docker"], []),
    ({"errors": {"*": "down"}, "mask": True}, True, ["its unit docker.service is masked"], []),
    ({"mask": True}, True, [], ["docker.service is masked"]),
    ({"errors": {"*": "down"}, "daemon": "{"}, True, ["daemon.json is no valid JSON"], []),
    ({"daemon": "[]"}, True, ["daemon.json is no valid JSON"], []),
    ({"gone": True}, True, [], ["the step prepare installs it"]),
    ({"gone": True}, False, ["There is no docker on this node"], []),
]


@pytest.mark.parametrize(("state", "prepares", "problems", "warnings"), FAULTS)
def test_faults_are_problems_or_what_prepare_solves(node, monkeypatch, state, prepares, problems, warnings):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    node.engine.write(errors=state.get("errors", {}))
    if state.get("gone"):
        (node.engine.bin / "docker").unlink()
    if "daemon" in state:
        node.write(DAEMON, state["daemon"])
    if state.get("mask"):
        node.mask()
    found = host_settings.faults("docker", prepares=prepares, sysroot=str(node.root))
    for words, messages in zip((problems, warnings), found):
        assert len(words) == len(messages)
        assert all(one in message for one, message in zip(words, messages))


@pytest.mark.parametrize(
    "info", [{"ServerErrors": ["Cannot connect to the Docker daemon at unix:///x."]}, {"ServerVersion": ""}]
)
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
    marker = node.waits()
    host_settings.record(node.host(), SETTINGS)
    node.engine.write(errors={"*": "down"})
    removed = host_settings.remove(node.host(), check_mode=True)
    assert sorted(removed) == sorted(map(str, [*ours, marker])) and ours[0].exists()
    assert host_settings.remove(node.host(), check_mode=False) == removed
    assert not any(
        path.exists() for path in [*ours, marker, node.root / "var/lib/inference-fleet/container_engine.json"]
    )
    assert all(path.exists() for path in theirs)
    assert host_settings.remove(node.host(), check_mode=False) == []


def test_removal_under_a_root_without_settings_removes_nothing(node):
    node.write(host_settings.PODMAN_REGISTRIES)
    assert host_settings.remove(node.host("podman", "/srv/fleet"), check_mode=False) == []
    host_settings.record(node.host("podman", "/srv/fleet"), SETTINGS)
    assert len(host_settings.remove(node.host("podman", "/srv/fleet"), check_mode=False)) == 1
