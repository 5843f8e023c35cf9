# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role container_engine: packages by distribution, and the settings that it writes below a folder.

Modules that change a system only record their calls. The others run for real, with /etc and /run below a folder.
"""

from __future__ import annotations

import json
import re

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

    def run(self, tasks, check=False, **variables):
        """([calls], the Run) of a file of the role's tasks."""
        given = {
            "container_engine_platform_settings": {}, "container_engine_images": [], "container_engine_mirror": "",
            "container_engine_auth": {}, "container_engine_proxy_env": {}, "container_engine_ca_bundle": "",
            "container_engine_root": str(self.root), **variables,
        }  # fmt: skip
        calls, done = self.role.run(tasks=tasks, variables=given, check_mode=check)
        return [[name, given.get("state") or given.get("name")] for name, given in calls], done

    def docker(self, check=False, found=(), **variables):
        facts = {**FOUND, "daemon_json": "0640" if self.read("etc/docker/daemon.json") else None, **dict(found)}
        given = {"container_engine_" + name: one for name, one in variables.items()}
        return self.run("docker", check, container_engine_found=facts, **given)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


# ---- packages


def installed(node, missing, distribution, version, family, manager, packages=()):
    facts = {"distribution": distribution, "distribution_major_version": version.split(".")[0],
             "distribution_version": version, "os_family": family, "pkg_mgr": manager}  # fmt: skip
    return node.run(
        "install", ansible_facts=facts, container_engine_missing=missing, container_engine_packages=list(packages)
    )


@pytest.mark.parametrize(
    ("missing", "host", "expected"),
    [
        ("docker", ("Debian", "12.9", "Debian", "apt"), [["apt", ["docker.io"]]]),
        ("docker", ("Debian", "13", "Debian", "apt"), [["apt", ["docker.io", "docker-cli"]]]),
        ("docker", ("Amazon", "2023", "RedHat", "dnf"), [["package", ["docker"]]]),
        ("podman", ("RedHat", "9.4", "RedHat", "dnf"), [["package", ["podman"]]]),
        ("docker", ("RedHat", "9.4", "RedHat", "dnf", ["docker-ce"]), [["package", ["docker-ce"]]]),
        ("docker", ("RedHat", "9.4", "RedHat", "dnf"), []),
    ],
)
def test_packages_by_distribution(node, missing, host, expected):
    calls, run = installed(node, [missing], *host)
    assert calls == expected
    if expected:
        run.ok()
    else:
        run.failed("No package of RedHat 9.4 is known for docker.")


# ---- docker

RESTART = ["systemd_service", "restarted"]
RELOAD = ["systemd_service", "reloaded"]


def test_settings_are_added_to_those_of_others_and_reloaded(node):
    node.write("etc/docker/daemon.json", json.dumps(
        {"log-driver": "journald", "registry-mirrors": ["https://old.example"], "runtimes": {"a": {}}}))  # fmt: skip
    calls, run = node.docker(
        platform_settings={"runtimes": {"nvidia": {"path": "x"}}}, settings={"live-restore": True},
        registry_mirrors=["https://new.example"], insecure_registries=["10.0.0.1:5000"],
    )  # fmt: skip
    run.ok()
    assert json.loads(node.read("etc/docker/daemon.json")) == {
        "log-driver": "journald",
        "registry-mirrors": ["https://old.example", "https://new.example"],
        "runtimes": {"a": {}, "nvidia": {"path": "x"}},
        "live-restore": True,
        "insecure-registries": ["10.0.0.1:5000"],
    }
    assert (node.root / "etc/docker/daemon.json").stat().st_mode & 0o777 == 0o640
    assert calls == [RELOAD]


def test_running_containers_are_protected_before_anything_changes(node):
    running = {"stopped": ["database"]}
    calls, run = node.docker(found=running, settings={"log-driver": "journald"})
    run.failed("Docker needs a restart for log-driver, which stops running containers: database")
    assert (calls, node.read("etc/docker/daemon.json")) == ([], None)
    assert node.docker(found=running, settings={"debug": True})[0] == [RELOAD]
    assert node.docker(found=running, settings={"log-driver": "journald"}, restart="always")[0] == [RESTART]


@pytest.mark.parametrize(
    ("settings", "call"),
    [
        ({"log-driver": "journald", "debug": True}, RESTART),
        ({"features": {"cdi": True}}, RELOAD),  # which it serves already
        ({"features": {"cdi": True, "x": True}}, RESTART),
    ],
)
def test_settings_that_docker_cannot_reload_restart_it(node, settings, call):
    assert node.docker(found={"cdi": True}, settings=settings)[0] == [call]


def test_proxies_are_in_a_private_file_and_removed_when_they_are_no_longer_set(node):
    calls, run = node.docker(proxy_env=PROXY)
    assert "word" not in run.ok().output
    path = node.root / "etc/inference-fleet/docker-proxy.env"
    assert path.read_text().splitlines()[1:] == [
        'HTTPS_PROXY="http://user:pass\\\\\\"word@proxy:3128"', 'NO_PROXY="127.0.0.1"',
    ]  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o600
    drop_in = "etc/systemd/system/docker.service.d/inference-fleet.conf"
    assert "EnvironmentFile=-/etc/inference-fleet/docker-proxy.env" in node.read(drop_in)
    assert calls == [RESTART]
    assert node.docker(proxy_env=PROXY)[0] == []
    assert node.docker(found={"proxies": True})[0] == [RESTART]
    assert (path.exists(), node.read(drop_in)) == (False, None)


def test_a_restart_is_not_forgotten_if_a_run_ends_before_it(node):
    node.write("run/fails", "")
    node.docker(proxy_env=PROXY)[1].failed("Restart docker")
    (node.root / "run/fails").unlink()
    running = {"stopped": ["database"]}
    node.docker(found=running, proxy_env=PROXY)[1].failed("Docker needs a restart for changes of an earlier run")
    assert node.docker(proxy_env=PROXY)[0] == [RESTART]
    assert node.docker(proxy_env=PROXY)[0] == []


def test_certificates_are_trusted_for_registries_and_mirrors_with_tls(node, tmp_path):
    (tmp_path / "ca.pem").write_text("certificate")
    mirrors = ["https://mirror.example:5000/", "mirror.example", "http://plain.example"]
    image = {"image": "a.example/x:1", "digest": "", "engine": "docker", "address": ""}
    node.docker(ca_bundle=str(tmp_path / "ca.pem"), images=[image], registry_mirrors=mirrors)[1].ok()
    folder = node.root / "etc/docker/certs.d"
    assert sorted(path.name for path in folder.iterdir()) == ["a.example", "mirror.example", "mirror.example:5000"]
    assert (folder / "a.example" / "inference-fleet.crt").read_text() == "certificate"


def test_docker_that_does_not_run_is_started_and_check_mode_changes_nothing(node):
    (node.root / "etc/docker").mkdir(parents=True)
    node.docker(check=True, settings={"log-driver": "journald"}, proxy_env=PROXY)[1].ok()
    assert not [path for path in node.root.rglob("*") if path.is_file()]
    calls, run = node.docker(found={"running": False})
    run.ok()
    assert calls == [["systemd_service", "started"]]


def test_podman_has_a_file_of_mirrors_and_registries_without_tls(node):
    given = {"container_engine_registry_mirrors": ["http://m.example:5000/"],
             "container_engine_insecure_registries": ["i.example"]}  # fmt: skip
    node.run("podman", **given)[1].ok()
    path = "etc/containers/registries.conf.d/inference-fleet.conf"
    assert node.read(path).splitlines()[1:] == [
        "[[registry]]", 'prefix = "docker.io"', 'location = "docker.io"',
        "[[registry.mirror]]", 'location = "m.example:5000"', "insecure = true",
        "[[registry]]", 'location = "i.example"', "insecure = true",
    ]  # fmt: skip
    node.run("podman")[1].ok()
    assert node.read(path) is None


def test_the_time_for_a_pull_may_be_a_string_as_from_the_command_line(node):
    image = {"image": "a.example/x:1", "digest": "", "engine": "docker", "address": ""}
    calls, run = node.run("images", container_engine_images=[image], container_engine_pull_timeout="30")
    run.ok()
    assert calls == [["container_image", None]]


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
