# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role container_engine: packages by distribution, and the settings that it writes below a folder.

Modules that change a system only record their calls. The others run for real, with /etc and /run below a folder.
"""

from __future__ import annotations

import json
import re
from unittest.mock import ANY

import pytest
import yaml
from ansible_collections.inference.fleet.tests.runs import CLONE
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import (
    CPU,
    LOCAL,
    Tasks,
    hosts_file,
    play_tasks,
)

RECORDED = ("apt", "package", "systemd_service", "node")
FOUND = {"engine": "docker", "due": "x", "missing": [], "running": True, "daemon_json": None, "cdi": False,
         "stopped": [], "proxies": False}  # fmt: skip
ANSWER = """
import os
answer.update(finished=True, failed=os.path.exists(folder + "/sys/run/fails"))
"""
PROXY = {"HTTPS_PROXY": 'http://user:pass\\"word@proxy:3128', "NO_PROXY": "127.0.0.1"}


class Node:
    """A folder in the place of /, and the role whose tasks refer to it."""

    def __init__(self, folder):
        self.root = folder / "sys"
        (self.root / "run").mkdir(parents=True)
        self.role = Tasks(folder, "container_engine", RECORDED, ANSWER, self.below)

    def below(self, text):
        """Tasks with the folder's /etc; the facts of the host are those that tests give."""
        text = re.sub(r"(?m)^- name: [^\n]+\n  ansible\.builtin\.setup:\n(?:(?: .*)?\n)*", "", text)
        return re.sub(r"(?<![\w.}-])/(etc|run)/", r"%s/\1/" % self.root, text)

    def write(self, path, text):
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def read(self, path):
        return (self.root / path).read_text() if (self.root / path).exists() else None

    def runs(self, *cases, check=False):
        """[[calls, and the message of a failure] of each (file of the role's tasks, variables)], and the Run."""
        shared = {"fleet_servers": [], "fleet_root": str(self.root)}
        turns, run = self.role.turns([(name, {**shared, **given}) for name, given in cases], *["--check"] * check)
        seen = [[[name, given.get("state") or given.get("failed") or given.get("name")] for name, given in calls]
                for calls in turns]  # fmt: skip
        return seen, run

    def docker(self, *cases, check=False):
        """runs() of docker.yml for (what the comparison found, variables without the role's prefix)."""
        before = "0640" if self.read("etc/docker/daemon.json") else None
        return self.runs(*[
            ("docker", {"container_engine_found": {**FOUND, "daemon_json": before, **found},
                        **{"container_engine_" + name: one for name, one in variables.items()}})
            for found, variables in cases
        ], check=check)  # fmt: skip


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


IMAGE = {"image": "a.example/x:1", "digest": "", "engine": "docker", "address": ""}


def installing(missing, distribution, version, family, manager, packages=()):
    """The tasks for a missing program on a distribution, as a case of Node.runs."""
    facts = {"distribution": distribution, "distribution_major_version": version.split(".")[0],
             "distribution_version": version, "os_family": family, "pkg_mgr": manager}  # fmt: skip
    return "install", {
        "ansible_facts": facts, "container_engine_missing": [missing], "container_engine_packages": list(packages),
    }  # fmt: skip


def test_packages_by_distribution_and_a_time_for_pulls_that_is_a_string_as_from_the_command_line(node):
    calls, _run = node.runs(
        installing("docker", "Debian", "12.9", "Debian", "apt"),
        installing("docker", "Debian", "13", "Debian", "apt"),
        installing("podman", "RedHat", "9.4", "RedHat", "dnf"),
        installing("docker", "RedHat", "9.4", "RedHat", "dnf", ["docker-ce"]),
        installing("docker", "RedHat", "9.4", "RedHat", "dnf"),
        installing("podman", "Amazon", "2023", "RedHat", "dnf"),
        ("images", {"container_engine_images": [IMAGE], "container_engine_pull_timeout": "30"}),
    )
    refused = [*calls.pop(4), *calls.pop(4)]
    assert calls == [
        [["apt", ["docker.io"]]], [["apt", ["docker.io", "docker-cli"]]], [["package", ["podman"]]],
        [["package", ["docker-ce"]]], [["container_image", None]],
    ]  # fmt: skip
    assert [name for name, _said in refused] == ["turn", "turn"]


# ---- docker

RESTART = ["systemd_service", "restarted"]
RELOAD = ["systemd_service", "reloaded"]
RUNNING = {"stopped": ["database"]}


def test_settings_are_added_to_those_of_others_and_registries_with_tls_get_the_certificates(node, tmp_path):
    node.write("etc/docker/daemon.json", json.dumps(
        {"log-driver": "journald", "registry-mirrors": ["https://old.example"], "runtimes": {"a": {}}}))  # fmt: skip
    (tmp_path / "ca.pem").write_text("certificate")
    mirrors = ["https://mirror.example:5000/", "mirror.example", "http://plain.example"]
    (calls,), _run = node.docker(({}, {
        "platform_settings": {"runtimes": {"nvidia": {"path": "x"}}}, "settings": {"live-restore": True},
        "registry_mirrors": mirrors, "insecure_registries": ["10.0.0.1:5000"],
        "ca_bundle": str(tmp_path / "ca.pem"), "images": [IMAGE],
    }))  # fmt: skip
    assert json.loads(node.read("etc/docker/daemon.json")) == {
        "log-driver": "journald",
        "registry-mirrors": ["https://old.example", *mirrors],
        "runtimes": {"a": {}, "nvidia": {"path": "x"}},
        "live-restore": True,
        "insecure-registries": ["10.0.0.1:5000"],
    }
    assert (node.root / "etc/docker/daemon.json").stat().st_mode & 0o777 == 0o640
    assert calls == [RELOAD]
    folder = node.root / "etc/docker/certs.d"
    assert sorted(path.name for path in folder.iterdir()) == ["a.example", "mirror.example", "mirror.example:5000"]
    assert (folder / "a.example" / "inference-fleet.crt").read_text() == "certificate"


def test_a_restart_is_for_settings_that_docker_cannot_reload_and_stops_no_containers(node):
    """Of the features, cdi is served already."""
    written, cdi = {"daemon_json": "0644"}, {"daemon_json": "0644", "cdi": True}
    calls, _run = node.docker(
        (RUNNING, {"settings": {"log-driver": "journald"}}),
        (RUNNING, {"settings": {"debug": True}}),
        ({**RUNNING, **written}, {"settings": {"log-driver": "journald"}, "restart": "always"}),
        (cdi, {"settings": {"features": {"cdi": True}}}),
        (cdi, {"settings": {"features": {"cdi": True, "x": True}}}),
        ({**written, "running": False}, {}),
    )
    ((name, said),), *others = calls
    assert name == "turn"
    assert said.startswith("Docker needs a restart for log-driver, which stops running containers: database")
    assert others == [[RELOAD], [RESTART], [RELOAD], [RESTART], [["systemd_service", "started"]]]


def test_proxies_are_in_a_private_file_and_no_run_forgets_the_restart_for_them(node):
    node.write("run/fails", "")
    calls, failed = node.docker(({}, {"proxy_env": PROXY}))
    assert calls == [[RESTART, ["turn", ANY]]]
    (node.root / "run/fails").unlink()
    calls, run = node.docker((RUNNING, {"proxy_env": PROXY}), *[({}, {"proxy_env": PROXY})] * 2)
    ((_name, said),), *others = calls
    assert said.startswith("Docker needs a restart for changes of an earlier run")
    assert others == [[RESTART], []]
    assert "word" not in failed.output + run.output
    path = node.root / "etc/inference-fleet/docker-proxy.env"
    assert path.read_text().splitlines()[1:] == [
        'HTTPS_PROXY="http://user:pass\\\\\\"word@proxy:3128"', 'NO_PROXY="127.0.0.1"',
    ]  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o600
    drop_in = "etc/systemd/system/docker.service.d/inference-fleet.conf"
    assert "EnvironmentFile=-/etc/inference-fleet/docker-proxy.env" in node.read(drop_in)
    # and removed when they are no longer set
    assert node.docker(({"proxies": True}, {}))[0] == [[RESTART]]
    assert (path.exists(), node.read(drop_in)) == (False, None)


def test_check_mode_changes_nothing(node):
    (node.root / "etc/docker").mkdir(parents=True)
    node.docker(({}, {"settings": {"log-driver": "journald"}, "proxy_env": PROXY}), check=True)
    assert not [path for path in node.root.rglob("*") if path.is_file()]


def test_podman_has_a_file_of_mirrors_and_registries_without_tls(node):
    given = {"container_engine_registry_mirrors": ["http://m.example:5000/"],
             "container_engine_insecure_registries": ["i.example"]}  # fmt: skip
    node.runs(("podman", given))
    path = "etc/containers/registries.conf.d/inference-fleet.conf"
    assert node.read(path).splitlines()[1:] == [
        "[[registry]]", 'prefix = "docker.io"', 'location = "docker.io"',
        "[[registry.mirror]]", 'location = "m.example:5000"', "insecure = true",
        "[[registry]]", 'location = "i.example"', "insecure = true",
    ]  # fmt: skip
    node.runs(("podman", {}))
    assert node.read(path) is None


# ---- a service in a container


def test_a_service_configures_an_engine_that_no_server_of_its_host_uses(tmp_path):
    """The step prepare does not configure it."""
    (task,) = yaml.safe_load((CLONE / "roles/shared_service/tasks/image.yml").read_text())
    chosen = {"ansible.builtin.debug": {"msg": "chosen: " + task["ansible.builtin.include_role"]["tasks_from"]}}
    containers = {**CPU, "fleet_recipe": "node-container", "fleet_recipe_paths": [str(CLONE / "tests/nodes/recipes")]}
    hosts = {"etcd": {}, "processes": CPU, "containers": containers}
    inventory = hosts_file(tmp_path, {name: {**LOCAL, **given} for name, given in hosts.items()})
    given = {"shared_service_container": {"engine": "docker"}, "shared_service_found": {"engine_missing": False}}
    run = play_tasks(tmp_path, [{**chosen, "vars": given}], inventory=inventory, hosts="all").ok()
    found = dict(re.findall(r"\[(\w+)\] => \n    msg: 'chosen: (\w+)", run.output))
    assert found == {"etcd": "main", "processes": "main", "containers": "images"}
