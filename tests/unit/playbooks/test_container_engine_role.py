# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages the role container_engine installs on which distribution, with modules that only write down calls."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.inference.fleet.tests.runs import play

ROLE = Path(__file__).resolve().parents[3] / "roles" / "container_engine"
MODULE = """#!%s
# WANT_JSON
import json, sys
name, arguments = sys.argv[0].rsplit("stand_in_", 1)[-1].split(".")[0], json.load(open(sys.argv[1]))
if name == "node":
    name, arguments = arguments["operation"], arguments["arguments"]
with open(%r, "a") as stream:
    stream.write(json.dumps([name, arguments.get("name")]))
    stream.write("\\n")
print(json.dumps({"changed": True}))
"""


@pytest.fixture
def install(tmp_path):
    """Plays the role's install.yml on a host with these facts: ([calls], the Run)."""
    calls = tmp_path / "calls"
    tasks = yaml.safe_load((ROLE / "tasks" / "install.yml").read_text())[1:]  # the first gathers the facts
    text = json.dumps(tasks)
    (tmp_path / "library").mkdir()
    for module in ("ansible.builtin.apt", "ansible.builtin.package", "inference.fleet.node"):
        name = module.rpartition(".")[2]
        (tmp_path / "library" / ("stand_in_%s.py" % name)).write_text(MODULE % (sys.executable, str(calls)))
        text = text.replace('"%s":' % module, '"stand_in_%s":' % name)
    plays = [{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": json.loads(text),
              "vars_files": [str(ROLE / "vars" / "main.yml")]}]  # fmt: skip
    (tmp_path / "play.yml").write_text(json.dumps(plays))

    def run(missing, distribution, version, family, manager, packages=()):
        calls.write_text("")
        facts = {"distribution": distribution, "distribution_major_version": version.split(".")[0],
                 "distribution_version": version, "os_family": family, "pkg_mgr": manager}  # fmt: skip
        variables = {"ansible_facts": facts, "container_engine_missing": missing, "container_engine_names": ["docker"],
                     "container_engine_packages": list(packages), "container_engine_settings": {},
                     "container_engine_platform_settings": {},
                     "container_engine_registry_mirrors": [], "container_engine_insecure_registries": [],
                     "container_engine_images": [], "container_engine_mirror": "", "container_engine_ca_bundle": "",
                     "container_engine_proxy_env": {}, "container_engine_restart": "auto", "container_engine_root": "",
                     "ansible_python_interpreter": sys.executable}  # fmt: skip
        done = play(str(tmp_path / "play.yml"), "localhost,", variables=variables)
        return [json.loads(line) for line in calls.read_text().splitlines()], done

    return run


@pytest.mark.parametrize(
    ("missing", "host", "call"),
    [
        (["docker"], ("Debian", "12.9", "Debian", "apt"), ["apt", ["docker.io"]]),
        (["docker"], ("Debian", "13", "Debian", "apt"), ["apt", ["docker.io", "docker-cli"]]),
        (["docker"], ("Ubuntu", "24.04", "Debian", "apt"), ["apt", ["docker.io"]]),
        (["docker"], ("Amazon", "2023", "RedHat", "dnf"), ["package", ["docker"]]),
        (["podman"], ("RedHat", "9.4", "RedHat", "dnf"), ["package", ["podman"]]),
        (["catatonit"], ("Debian", "13", "Debian", "apt"), ["apt", ["catatonit"]]),
        (["docker"], ("RedHat", "9.4", "RedHat", "dnf", ["docker-ce"]), ["package", ["docker-ce"]]),
    ],
)
def test_packages_by_distribution(install, missing, host, call):
    calls, run = install(missing, *host)
    run.ok()
    assert calls == [call, ["container_engine", None]]


def test_a_distribution_without_a_known_package(install):
    calls, run = install(["docker"], "RedHat", "9.4", "RedHat", "dnf")
    assert calls == []
    run.failed("No package of RedHat 9.4 is known that holds docker.")
