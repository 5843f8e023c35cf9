# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The examples of the roles' READMEs, played as they stand, with modules that only say what they were given."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.inference.fleet.tests import runs, warm_playbooks
from ansible_collections.inference.fleet.tests.unit.playbooks import stand_ins

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = {
    path.parent.name: re.findall(r"```yaml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    for path in sorted((ROOT / "roles").glob("*/README.md"))
    # a part of etcd and nats; install and start services on this machine
    if path.parent.name not in ("shared_service", "endpoint", "monitoring")
}
# An answer that every role goes on with.
ANSWER = (
    """answer = {"changed": False, "answering": True, "reboot": False, "due": {}, "finished": True, "missing": []}"""
)
# A host for each platform, and one whose servers run in containers.
CPU = {**stand_ins.CPU, **stand_ins.LOCAL}
NEURON = {"fleet_recipe": "trn3-eagle3", "fleet_hardware": {"accelerator": "trainium3", "count": 16}, **stand_ins.LOCAL}
NVIDIA = {"fleet_recipe": "b200-low-latency", "fleet_hardware": {"accelerator": "b200", "count": 8}, **stand_ins.LOCAL}
CONTAINERS = {"fleet_recipe": "node-container", "fleet_recipe_paths": [str(ROOT / "tests/nodes/recipes")]}
SECRET = {
    "fleet_override_secret": {"secrets": {"ENGINE_KEY": "vault_key"}},
    "vault_key": "k",
    "vault_registry_password": "p",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with the collection, its modules and the actions that need them replaced."""
    folder = tmp_path_factory.mktemp("examples")
    fleet = folder / "collections" / "ansible_collections" / "inference" / "fleet"
    (fleet / "plugins" / "action").mkdir(parents=True)
    (fleet / "plugins" / "modules").mkdir()
    (fleet / "meta").mkdir()
    (fleet / "meta" / "runtime.yml").write_text("requires_ansible: '>=2.19.0'\n")  # no action plugins
    for name in ("galaxy.yml", "recipes", "roles"):
        (fleet / name).symlink_to(ROOT / name)
    for name in ("filter", "lookup", "module_utils", "plugin_utils"):
        (fleet / "plugins" / name).symlink_to(ROOT / "plugins" / name)
    for path in (ROOT / "plugins" / "modules").glob("*.py"):
        (fleet / "plugins" / "modules" / path.name).write_text(stand_ins.module(folder, ANSWER, path.stem))
    server = warm_playbooks.Server(without_clone(folder), folder)
    runs.warm.append(server)
    yield folder
    runs.warm.remove(server)
    server.stop()


@pytest.fixture
def collections(whole):
    (whole / "calls").write_text("")
    return whole


def without_clone(folder):
    """This process's environment with the folder's collection in place of the clone's, and its settings."""
    home = {"ANSIBLE_COLLECTIONS_PATH": str(folder / "collections"), "ANSIBLE_HOME": str(folder / "home")}
    return runs.without_ansible(**home)


def play(folder, collections, plays, host):
    """(screen, [(module or operation, arguments)]) of plays of an example, on one host of their groups."""
    groups = {play["hosts"]: {"hosts": {"node-1": {**host, **SECRET}}} for play in plays}
    (folder / "hosts.json").write_text(json.dumps(groups))
    # Root is not needed to be told what a module was given.
    (folder / "play.yml").write_text(
        yaml.safe_dump([{"gather_facts": False, **play, "become": False} for play in plays])
    )
    environment = {**dict.fromkeys(os.environ), **without_clone(collections), "ANSIBLE_NOCOLOR": "1"}
    run = runs.ansible_playbook(["-i", "hosts.json", "play.yml"], environment=environment, folder=folder)
    assert run.status == 0, run.output
    return run.output, stand_ins.called(collections)


def modules_of(role):
    """The collection's modules and operations that the role's tasks name."""
    tasks = "".join(path.read_text() for path in (ROOT / "roles" / role / "tasks").glob("*.yml"))
    modules = set(re.findall(r"^ +inference\.fleet\.([a-z_]+):", tasks, re.MULTILINE)) - {"node"}
    return modules | set(re.findall(r"^ +inference\.fleet\.node:\n +operation: ([a-z_]+)$", tasks, re.MULTILINE))


def test_every_role_has_an_example():
    assert [role for role, examples in EXAMPLES.items() if not examples] == []


@pytest.mark.parametrize("role", EXAMPLES)
def test_the_examples_of_the_readme_work(tmp_path, collections, role):
    plays = [play for example in EXAMPLES[role] for play in yaml.safe_load(example)]
    contained = {**CPU, **CONTAINERS}
    host = {"neuron": NEURON, "nvidia": NVIDIA, "container_engine": contained, "serve": contained}.get(role, CPU)
    _output, given = play(tmp_path, collections, plays, host)
    # Waiting for servers that answer already is left out, and so are certificates of one that is alone.
    assert {module for module, _arguments in given} >= modules_of(role) - {"engine_ready", "service_certificate"}


@pytest.mark.parametrize(
    ("role", "host", "variable", "module"),
    [
        ("serve", CPU, "serve_servers", "engine_servers"),
        ("verify", CPU, "verify_servers", "endpoint_verify"),
        ("neuron", NEURON, "neuron_servers", "neuron_packages"),
    ],
)
def test_a_role_takes_its_servers_by_its_own_variable_alone(tmp_path, collections, role, host, variable, module):
    servers = {variable: "{{ lookup('inference.fleet.plan') }}"}
    plays = [{"hosts": "vllm", "vars": servers, "roles": ["inference.fleet." + role]}]
    _output, given = play(tmp_path, collections, plays, host)
    arguments = dict(given)[module]
    assert arguments["servers"][0]["name"] == "server-0"
    if role == "serve":
        assert arguments["secrets"] == {"vault_key": "k"}


def test_account_and_tools_follow_the_root_of_the_toolkit(tmp_path, collections):
    plays = [{"hosts": "cpu", "vars": {"toolkit_root": "/srv/fleet"}, "roles": ["inference.fleet.toolkit"]}]
    _output, given = play(tmp_path, collections, plays, CPU)
    arguments = dict(given)
    assert arguments["node_layout"] == {"root": "/srv/fleet"}
    assert arguments["python_environment"]["path"] == "/srv/fleet/var/lib/inference-fleet/toolkit"


def test_the_container_engine_gets_what_the_platform_needs_under_what_the_site_sets(tmp_path, collections):
    variables = {"fleet_deployment": {"engine_settings": {"features": {"cdi": True}, "debug": False}},
                 "fleet_servers": "{{ lookup('inference.fleet.plan') }}",
                 "container_engine_settings": {"features": {"x": True}, "debug": True}}  # fmt: skip
    plays = [{"hosts": "cpu", "vars": variables, "roles": ["inference.fleet.container_engine"]}]
    _output, given = play(tmp_path, collections, plays, {**CPU, **CONTAINERS})
    assert dict(given)["container_engine"]["settings"] == {"features": {"cdi": True, "x": True}, "debug": True}


@pytest.mark.parametrize("begun", [True, False])
def test_weights_begin_to_come_before_the_engine(tmp_path, collections, begun):
    (step,) = yaml.safe_load((ROOT / "playbooks/steps/prepare.yml").read_text())
    model = {"source": "huggingface", "repo": "openai/gpt-oss-20b"}
    step.update(hosts="vllm", vars={**step["vars"], "prepare_weights": begun})
    step.pop("tags")
    _output, given = play(tmp_path, collections, [step], {**CPU, "fleet_override": {"model": model}})
    calls = [module for module, _arguments in given if module in ("python_environment", "model_weights")]
    assert calls == ["python_environment", *["model_weights"] * begun, "python_environment"]
    assert not begun or dict(given)["model_weights"]["wait_s"] == 0


def test_only_the_servers_are_sent_the_key(tmp_path, collections):
    key = ["sk-1\n", "sk-2"]
    plays = [
        {
            "hosts": "vllm",
            "vars": {"fleet_servers": "{{ lookup('inference.fleet.plan') }}"},
            "roles": ["inference.fleet.serve", "inference.fleet.verify"],
        }
    ]
    output, given = play(tmp_path, collections, plays, {**CPU, "fleet_api_key": key})
    arguments = dict(given)
    assert arguments["engine_servers"]["secrets"] == {"vault_key": "k", "fleet_api_key": key}
    assert "sk-1" not in json.dumps({name: one for name, one in given if name != "engine_servers"})
    assert "sk-1" not in output
