# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the look of node_state takes from playbooks and roles: the tasks that the steps run, with their arguments."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
import yaml
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.inference.fleet.plugins.module_utils.platforms.shipped_operations import operation_of
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import step_tasks
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.run_look import STEPS
from ansible_collections.inference.fleet.tools import platforms as tool

CLONE = pathlib.Path(__file__).resolve().parents[5]
SHIPPED = CLONE / "plugins/module_utils/platforms/shipped_operations.py"
PLATFORMS, ENGINES = ({path.stem for path in (CLONE / "plugins/plugin_utils" / kind).iterdir()}
                      for kind in ("platforms", "engines"))  # fmt: skip
MODEL = {"source": "path", "repo": "a/b", "format": "mxfp4", "path": "/models/b"}


def server(name="server-0", container=None, hooks=None):
    return {"name": name, "secrets": {}, "container": container, "hooks": hooks or {}}


def deployment(platform="cpu", engine="vllm", venvs=({"path": "/venv", "packages": ["vllm==1"]},), models=(MODEL,)):
    return {"name": "made-up", "platform": platform, "engine": engine, "venvs": list(venvs), "models": list(models),
            "needs": {}, "hub_packages": []}  # fmt: skip


# Templates of roles look up files and variables, and plugins are found in a process that is Ansible's from its start.
# One for all tests: it answers a line for each line.
CHILD = """
import json, sys, traceback
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader()
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.inference.fleet.plugins.lookup import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.step_tasks import StepTasks
loader = DataLoader()
plan.LookupModule.run = lambda self, terms, variables=None, **kwargs: [planned[kwargs.get("field", "servers")]]
for line in sys.stdin:
    arguments, steps, planned = json.loads(line)
    try:
        found = StepTasks(loader, lambda given: Templar(loader, given), *arguments)
        answer = {step: list(found.of(step)) for step in steps}
    except Exception:
        answer = traceback.format_exc()
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="module")
def child():
    argv = [sys.executable, "-c", CHILD]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def asked(child):
    """asked(steps, …): {step: [[module, its arguments]]} of a host with this plan."""

    def ask(steps, servers=None, deployed=None, variables=None, tags=("all",), skip=(), **extra):
        plan = {"servers": servers or [server()], "deployment": deployed or deployment()}
        host = {
            "inventory_hostname": "n1", "ansible_check_mode": False, "ansible_run_tags": list(tags),
            "ansible_skip_tags": list(skip), "playbook_dir": str(CLONE / "playbooks/steps"), "fleet_hardware": {},
            "fleet_root": "/r",
        }  # fmt: skip
        given = [[{**host, **(variables or {})}, extra, tags, skip], steps, plan]
        child.stdin.write(json.dumps(given) + "\n")
        child.stdin.flush()
        answer = json.loads(child.stdout.readline())
        assert isinstance(answer, dict), answer
        return answer

    return ask


def names(found):
    return {step: [name.rpartition(".")[2] for name, _arguments in tasks] for step, tasks in found.items()}


CPU = {
    "preflight": ["node_preflight"],
    "prepare": ["node_layout", "python_environment", "shared_libraries", "python_environment"],
    "weights": ["tiktoken_encodings", "model_weights"],
    "serve": ["engine_servers"],
}


def test_what_a_cpu_node_is_asked(asked):
    assert names(asked(STEPS)) == CPU


def test_what_a_node_with_containers_is_asked(asked):
    engines = [{"engine": kind, "address": None, "image": "a/b:1", "digest": None} for kind in ("docker", "podman")]
    servers = [server("server-%d" % number, {**one, "user": None}) for number, one in enumerate(engines)]
    found = asked(["prepare", "serve"], servers, deployment(venvs=[]))
    assert names(found)["prepare"] == CPU["prepare"][:3] + ["container_engine"] * 2 + ["container_image"] * 2
    given = [(name.rpartition(".")[2], arguments.get("engine")) for name, arguments in found["serve"]]
    assert given == [("container_engine", "docker"), ("engine_servers", None)]


def test_a_vendor_that_compiles_is_asked_for_its_packages_and_artifacts(asked):
    servers = [server(hooks={"compile_cache": {}})]
    plan = deployment("neuron", models=[MODEL, {**MODEL, "path": "/models/c"}])
    found = names(asked(["prepare", "weights"], servers, plan))
    assert found["prepare"] == ["node_layout", "python_environment", "neuron_packages", "python_environment"]
    assert found["weights"] == ["tiktoken_encodings", "model_weights", "model_weights", "compiled_artifact"]


def test_arguments_are_those_of_the_tasks_by_the_precedence_of_ansible(asked):
    given = {"vllm_uv": "/of/the/host/uv", "serve_engine_restart": "of the host", "serve_log_rate": 1}
    found = asked(["prepare", "serve"], variables=given, serve_log_rate=2)
    _layout, _tools, _libraries, (_name, engine) = found["prepare"]
    assert (engine["path"], engine["uv"], engine["packages"]) == ("/venv", "/of/the/host/uv", ["vllm==1"])
    assert "python" not in engine  # omitted by the task
    ((_name, servers),) = found["serve"]
    assert (servers["logs"]["rate"], servers["root"], servers["restarted"]) == (2, "/r", [])
    assert "watchdog" not in servers


@pytest.mark.parametrize(
    ("tags", "skip", "steps"),
    [
        (["all"], [], list(STEPS)),
        (["serve"], [], ["preflight", "serve"]),
        (["weights", "verify"], [], ["weights"]),
        (["verify"], [], []),
        (["all"], ["prepare", "weights"], ["serve"]),
        (["tagged"], [], list(STEPS)),
        (["untagged"], [], []),
    ],
)
def test_steps_that_are_no_part_of_the_run_are_not_looked_at(asked, tags, skip, steps):
    assert [step for step, found in asked(STEPS, tags=tags, skip=skip).items() if found] == steps


@pytest.mark.parametrize("role", sorted(path.name for path in (CLONE / "roles").iterdir()))
def test_every_task_of_a_role_that_is_looked_at_has_an_operation(asked, role):
    """Else the step would run each time, on every node."""
    if role == "verify":
        return
    kind = "engine" if role in ENGINES else "platform"
    servers = [server(container={"engine": "docker", "address": None, "image": "a/b:1", "digest": None, "user": None})]
    found = asked(STEPS, servers, deployment(**({kind: role} if role in ENGINES or role in PLATFORMS else {})))
    tasks = [task for step in STEPS for task in found[step]]
    assert [name for name, _arguments in tasks if operation_of(name.rpartition(".")[2]) is None] == []
    for name, arguments in tasks:
        options = operation_of(name.rpartition(".")[2]).ARGUMENTS
        assert set(arguments) <= set(options), name


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """made_up(tasks of the role tried): what StepTasks makes of them."""
    monkeypatch.setattr(step_tasks, "COLLECTION", str(tmp_path))
    (tmp_path / "playbooks/steps").mkdir(parents=True)
    play = {"hosts": "all", "tasks": [{"name": "x", "ansible.builtin.import_role": {"name": "inference.fleet.tried"}}]}
    (tmp_path / "playbooks/steps/serve.yml").write_text(yaml.safe_dump([play]))
    (tmp_path / "roles/tried/tasks").mkdir(parents=True)
    (tmp_path / "roles/tried/tasks/more.yml").write_text("[{name: z, inference.fleet.deeper: {}}]")

    def read(text):
        (tmp_path / "roles/tried/tasks/main.yml").write_text(text)
        loader = DataLoader()
        host = {"inventory_hostname": "n1"}
        tasks = step_tasks.StepTasks(loader, lambda given: Templar(loader, given), host, {}, ["all"], [])
        return list(tasks.of("serve"))

    return read


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[{name: a, ansible.builtin.apt: {name: b}}]", [("ansible.builtin.apt", None)]),
        ("[{name: a, ansible.builtin.apt: {name: b}, when: false}]", []),
        ("[{name: a, ansible.builtin.debug: {msg: b}}]", []),
        (
            "[{name: a, inference.fleet.b: {}, register: c}, {name: d, ansible.builtin.apt: {}, when: c.due}]",
            [("inference.fleet.b", {})],
        ),
        (
            "[{name: a, inference.fleet.b: {c: '{{ d }}', e: '{{ omit }}'}, loop: [1, 2],"
            " loop_control: {loop_var: d}}]",
            [("inference.fleet.b", {"c": 1}), ("inference.fleet.b", {"c": 2})],
        ),
        ("[{block: [{name: a, inference.fleet.b: {}}], when: [true, false]}]", []),
        ("[{block: [{name: a, inference.fleet.b: {c: '{{ d }}'}}], vars: {d: 3}}]", [("inference.fleet.b", {"c": 3})]),
        ("[{name: a, ansible.builtin.include_tasks: more.yml}]", [("inference.fleet.deeper", {})]),
        ("[{name: a, ansible.builtin.import_tasks: {file: more.yml}}]", [("inference.fleet.deeper", {})]),
    ],
)
def test_what_is_made_of_tasks(made_up, text, found):
    assert made_up(text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[{name: a, inference.fleet.b: {}, delegate_to: c}]", "a task says delegate_to"),
        ("[{name: a, inference.fleet.b: {}, environment: {}}]", "a task says environment"),
        ("[{name: a, inference.fleet.b: {c: '{{ nobody }}'}}]", "'nobody' is undefined"),
        ("[{name: a, ansible.builtin.include_role: {name: other.one.role}}]", "other.one.role is none of this"),
        ("[{name: a, ansible.builtin.include_tasks: none.yml}]", "none.yml"),
    ],
)
def test_what_is_not_understood_is_an_error(made_up, text, words):
    with pytest.raises(AnsibleError, match=words):
        made_up(text)


def test_every_operation_is_shipped():
    assert SHIPPED.read_text() == tool.operations_text(tool.operations())
    assert {"neuron_packages": "platforms.neuron.operations", "node_layout": "operations"}.items() <= (
        tool.operations().items()
    )
    assert operation_of("nobody") is None
