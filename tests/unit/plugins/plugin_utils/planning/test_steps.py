# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the plan says of the steps of a run: the roles' tasks with their arguments, and nothing else that they do."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.called import operation_of
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet, run_look, steps
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import Hosts
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms.base import Platform
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tools import known_tasks

CLONE = pathlib.Path(__file__).resolve().parents[5]
SECRET = "NotToBeSeen"
LOGIN = {"registry.example.com": {"username": "me", "password": SECRET}}
# Everything that a site says of the network, and of what the servers need.
SITE = {
    "fleet_root": "/srv/fleet",
    "fleet_proxy_env": {"HTTPS_PROXY": "http://me:%s@proxy:3128" % SECRET},
    "fleet_ca_bundle": "/etc/ssl/site.pem",
    "fleet_pip_index_url": "https://me:%s@pip.example.com/simple" % SECRET,
    "fleet_registry_mirror": "mirror.example.com/x",
    "fleet_registry_auth": LOGIN,
    "fleet_hf_token": "hf_" + SECRET,
    "fleet_hf_endpoint": "https://me:%s@hub.example.com" % SECRET,
    "fleet_api_key": "sk-" + SECRET,
    "fleet_weights_min_rate": 1000,
    "fleet_artifact_source": "/srv/artifacts",
    "fleet_watchdog": "yes",
    "fleet_start_on_boot": True,
    "fleet_changes": "together",
    "container_engine_restart": "always",
    "fleet_override": {"secrets": {"HF_TOKEN": "fleet_hf_token", "OTHER": "not_set"}},
}
# Variables of roles, each other than its default.
ROLES = {
    "fleet_container_engine": "podman", "toolkit_root": "/tools", "toolkit_user": "somebody", "toolkit_python": "3.12",
    "toolkit_packages": ["uv"], "toolkit_find_links": ["https://me:%s@wheels" % SECRET], "neuron_reboot": "yes",
    "toolkit_index_url": "https://me:%s@pip" % SECRET, "vllm_torch": "torch==2.13.0+cpu",
    "vllm_torch_index_url": "https://me:%s@torch" % SECRET, "vllm_extra_index_urls": ["https://me:%s@e" % SECRET],
    "neuron_packages": {"aws-neuronx-dkms": {"version": "2.99", "least": "2.98"}},
    "vllm_environment": {"HTTP_PROXY": "http://me:%s@p" % SECRET}, "vllm_packages": ["a==1"], "vllm_create": False,
    "cpu_packages": {}, "container_engine_settings": {"features": {"more": True}, "proxies": {"http-proxy": SECRET}},
    "container_engine_registry_mirrors": ["https://me:%s@m" % SECRET], "container_engine_auth": LOGIN,
    "nvidia_repositories": {"apt": {"url": "https://me:%s@apt" % SECRET}},
    "tiktoken_encodings_controller": "/here/o200k_base.tiktoken", "tiktoken_encodings_names": [],
    "model_weights_source": "modelscope", "model_weights_path": "/elsewhere", "model_weights_poll_s": 3,
    "model_weights_token": SECRET, "model_weights_site_endpoint": "https://me:%s@h" % SECRET,
    "model_weights_verify": "full", "serve_state": "restarted", "serve_toolkit": "/st", "serve_watchdog_failures": 4,
    "serve_watchdog": False, "serve_start_on_boot": "No", "serve_reports_dir": "/rd",
}  # fmt: skip
HOSTS = {
    "cpu": {"fleet_recipe": "cpu-tiny"},
    "cpu, site": {"fleet_recipe": "cpu-dynamo", **SITE},
    "cpu, empty": {"fleet_recipe": "cpu-tiny", **dict.fromkeys(
        ("fleet_proxy_env", "fleet_pip_index_url", "fleet_hf_token", "fleet_hf_endpoint", "fleet_ca_bundle"))},
    "nvidia, models": {"fleet_recipe": "b200-vllm",
                       "fleet_override": {"model": {"adapters": [{"name": "sql", "path": "/srv/sql"}]}}},
    "cpu, roles": {"fleet_recipe": "cpu-tiny", **SITE, **ROLES},
    "neuron": {"fleet_recipe": "trn3-eagle3", **SITE},
    "neuron, roles": {"fleet_recipe": "trn3-vllm-neuron", **ROLES},
    "nvidia": {"fleet_recipe": "b200-vllm"},
    "nvidia, site": {"fleet_recipe": "b200-dynamo-vllm", **SITE},
    "nvidia, roles": {"fleet_recipe": "b200-max-throughput", **SITE, **ROLES},
    "nvidia, service": {"fleet_recipe": "b200-dynamo-disagg", "fleet_overlay": "etcd", "fleet_cluster": "one",
                        "groups": {"etcd": ["n2"], "nats": ["n2"], "monitoring": ["n2"]}},
    "ascend": {"fleet_recipe": "ascend-a2", "model_weights_begin": True, "serve_only": ["server-0"]},
}  # fmt: skip
OTHER = {"ansible_host": "192.0.2.2", "group_names": ["etcd", "nats"], "etcd_tls": True}


def planned(given):
    """(the plan of a host, its HostVariables)."""
    recipe = given["fleet_recipe"]
    hardware = plans.node_of(plans.OWN[recipe])
    given = plans.Lazy({"fleet_capacity": "warn", "fleet_hardware": hardware, **given})
    if recipe.startswith(("cpu-dynamo", "b200")):  # their engines have no API keys
        given.pop("fleet_api_key", None)
    others = Hosts({"n1": given, "n2": plans.Lazy(OTHER)}.get)
    return fleet.plan_hosts(["n1"], others, True)["n1"], others("n1")


def reasons(given=None):
    return {one["step"]: one["reason"] for one in planned(given or HOSTS["cpu"])[0]["steps"] if "reason" in one}


# ---- the roles' tasks ------------------------------------------------------------------------------------------------

PREFLIGHT, SERVE = "playbooks/steps/preflight.yml", "roles/serve/tasks/main.yml"
# (operation, file of its task)
TASKS = {
    ("node_preflight", PREFLIGHT),
    ("node_layout", "roles/toolkit/tasks/main.yml"),
    ("python_environment", "roles/toolkit/tasks/main.yml"),
    ("shared_libraries", "roles/cpu/tasks/main.yml"),
    ("node_exporter", "roles/monitoring/tasks/exporter.yml"),
    ("neuron_packages", "roles/neuron/tasks/main.yml"),
    ("compiled_artifact", "roles/neuron/tasks/artifacts.yml"),
    ("nvidia_toolkit", "roles/nvidia/tasks/main.yml"),
    ("container_engine", "roles/container_engine/tasks/main.yml"),
    ("container_image", "roles/container_engine/tasks/images.yml"),
    ("python_environment", "roles/vllm/tasks/main.yml"),
    ("tiktoken_encodings", "roles/tiktoken_encodings/tasks/main.yml"),
    ("model_weights", "roles/model_weights/tasks/main.yml"),
    ("service_certificate", "roles/serve/tasks/certificates.yml"),
    ("engine_servers", SERVE),
    ("endpoint_verify", "roles/verify/tasks/main.yml"),
}
NODE = "inference.fleet.node"
HARMLESS = {"ansible.builtin." + name for name in ("assert", "debug", "fail", "set_fact")}
INCLUDES = ("ansible.builtin.include_tasks", "ansible.builtin.include_role", "ansible.builtin.import_role")


def load(path):
    return yaml.safe_load((CLONE / path).read_text(encoding="utf-8"))


def tasks_in(tasks, conditions=()):
    """(task, the texts of its and its blocks' conditions) of all tasks that run unless another one finds something."""
    for task in tasks or ():
        texts = [*conditions, json.dumps([task.get("when"), task.get("loop"), task.get("vars")])]
        if "block" in task:  # rescue and always come after it
            yield from tasks_in(task["block"], texts)
        else:
            yield task, texts


def module_of(task):
    """The module of a task; of one that runs an operation, inference.fleet. and the operation's name."""
    (module,) = [word for word in task if "." in word]
    return "inference.fleet." + task[module]["operation"] if module == NODE else module


def runs(path, role):
    """{(operation, file)} of what a file of tasks runs by itself; a task that is neither that nor follows from one is
    an error."""
    content = load(path)
    tasks = content[0]["tasks"] if path.startswith("playbooks") else content
    found, registered = set(), set()
    for task, texts in tasks_in(tasks):
        module = module_of(task)
        name = module.removeprefix("inference.fleet.")
        follows = any(one in text for one in registered for text in texts)
        if (name, path) in TASKS and not follows:
            found.add((name, path))
        elif module in INCLUDES and not follows:
            given = task[module]
            if module == INCLUDES[0]:
                found |= runs("roles/%s/tasks/%s" % (role, given), role)
        else:
            assert follows or module in HARMLESS, "%s: %s is not in the plan" % (path, task["name"])
        if "register" in task and (follows or name in {one for one, _file in TASKS}):
            registered.add(task["register"])
    return found


def test_every_task_is_in_the_plan_or_follows_from_one_that_is():
    files = {"%s/tasks/main.yml" % place: place[6:] for place in steps.known() if place.startswith("roles/")}
    del files["roles/monitoring/tasks/main.yml"]  # they run on the hosts of Prometheus
    files |= {"roles/monitoring/tasks/exporter.yml": "monitoring", "roles/neuron/tasks/artifacts.yml": "neuron"}
    files |= {steps.PLAYBOOK % step: None for step in steps.STEPS}
    assert set().union(*(runs(path, role) for path, role in files.items())) == TASKS


# Each line is [[arguments of a task, its loop, the loop's variable, all variables]], each answer the arguments of each
# turn. Templates use filters, whose plugins are found in a process that is Ansible's.
CHILD = """
import json, sys
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader()
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
loader = DataLoader()
for line in sys.stdin:
    found = []
    for arguments, loop, name, values in loader.load(trust_as_template(line)):
        turns = [{name: one} for one in Templar(loader, values).template(loop)] if loop else [{}]
        found.append([Templar(loader, {**values, **one}).template(arguments) for one in turns])
    print(json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def child():
    argv = [sys.executable, "-c", CHILD]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def tasks_of(plan, host, only):
    """[(operation, what CHILD reads)] of the tasks that the roles of this collection run on a host."""
    deployment = plan["deployment"]
    shared = {
        **{name: host.peek(name) for name in host.names}, "fleet_servers": plan["servers"], "inventory_hostname": "n1",
        "fleet_deployment": deployment, "ansible_run_tags": only, "playbook_dir": str(CLONE / "playbooks/steps"),
        "role_path": "",
    }  # fmt: skip

    def task(path, operation, **more):
        content, lower = load(path), {}
        if path == PREFLIGHT:
            lower, content = content[0]["vars"], content[0]["tasks"]
        else:
            lower = load(path.partition("/tasks/")[0] + "/defaults/main.yml")
        module = "inference.fleet." + operation
        own = next(one for one, _texts in tasks_in(content) if module_of(one) == module)
        arguments = own[NODE].get("arguments", {}) if NODE in own else own[module]
        values = {**lower, **shared, **more, **own.get("vars", {})}
        return operation, [arguments, own.get("loop"), own.get("loop_control", {}).get("loop_var"), values]

    def role(name, *operations, file="main", **more):
        return [task("roles/%s/tasks/%s.yml" % (name, file), one, **more) for one in operations]

    platform = {"cpu": "shared_libraries", "neuron": "neuron_packages", "nvidia": "nvidia_toolkit"}
    found = [task(PREFLIGHT, "node_preflight"), *role("toolkit", "node_layout", "python_environment")]
    if deployment["platform"] in platform:
        found += role(deployment["platform"], platform[deployment["platform"]])
    if any(one["container"] for one in plan["servers"]):
        found += role("container_engine", "container_engine")
        found += role("container_engine", "container_image", file="images")
    for venv in deployment["venvs"]:
        found += role("vllm", "python_environment", fleet_deployment={**deployment, "venv": venv})
    if "monitoring" in shared.get("groups", ()):
        found += role("monitoring", "node_exporter", file="exporter")
    for number, model in enumerate(deployment["models"]):
        given = {**deployment, "model": model}
        found += role("tiktoken_encodings", "tiktoken_encodings", fleet_deployment=given) if not number else []
        found += role("model_weights", "model_weights", fleet_deployment=given)
    if any("compile_cache" in one["hooks"] for one in plan["servers"]):
        found += role("neuron", "compiled_artifact", file="artifacts")
    for client in deployment["service_clients"]:
        found += role("serve", "service_certificate", file="certificates", serve_client=client)
    verified = role("verify", "endpoint_verify", ansible_inventory_sources=[])
    return found + role("serve", "engine_servers") + verified


@pytest.mark.parametrize(("name", "only"), [*((name, ["all"]) for name in HOSTS), ("neuron", ["serve"])])
def test_the_arguments_are_those_of_the_roles_tasks(child, name, only):
    plan, host = planned(HOSTS[name])
    asked = tasks_of(plan, host, only)
    child.stdin.write(json.dumps([given for _operation, given in asked]) + "\n")
    child.stdin.flush()
    answer = json.loads(child.stdout.readline())
    told = [[operation, arguments] for (operation, _given), each in zip(asked, answer) for arguments in each]
    found = [[one["operation"], run_look.filled(one["arguments"], plan, host, only)] for one in plan["steps"]]
    for operation, arguments in told:
        if operation == "endpoint_verify" and "fleet_reports_dir" not in HOSTS[name]:
            assert arguments.pop("reports_dir") == "reports/inventory"  # of the run's inventory, not of the plan
    given = {key: one for _operation, arguments in told for key, one in arguments.items() if one is None}
    assert set(given) <= {"reports_dir", "servers_changed"}  # None is not given
    assert found == [[one, {key: value for key, value in given.items() if value is not None}] for one, given in told]


# ---- what is no part of the plan -------------------------------------------------------------------------------------


def test_operations_are_known_on_nodes_with_their_arguments_and_no_argument_has_a_secret():
    found = set()
    for plan, _host in map(planned, HOSTS.values()):
        assert SECRET not in json.dumps(plan["steps"])
        assert json.loads(json.dumps(plan["steps"])) == plan["steps"]
        for one in plan["steps"]:
            options = operation_of(one["operation"]).arguments
            found.add(one["operation"])
            assert run_look.LATER in one["arguments"].get("servers", {run_look.LATER})  # not every entry again
            assert set(one["arguments"]) <= set(options), one["operation"]
            for argument in (name for name, option in options.items() if "no_log" in option):
                value = one["arguments"].get(argument)
                assert not value or run_look.LATER in json.dumps(value)
    assert found == {name for name, _file in TASKS}


@pytest.mark.parametrize(
    ("given", "default"),
    [
        ({"serve_start_on_boot": RuntimeError("'fleet_deployment' is undefined")}, ""),
        ({"serve_servers": [{"name": "mine"}]}, ""),
        ({}, "{{ lookup('env', 'A') }}"),
        ({}, "{{ fleet_servers is changed }}"),
        ({}, "{{ fleet_lack }}"),
        ({}, "{{ fleet_lack or omit }}"),
    ],
)
def test_what_only_a_play_can_work_out_lets_its_step_run_each_time(monkeypatch, given, default):
    known = steps.defaults_of
    monkeypatch.setattr(steps, "defaults_of", lambda role: {**known(role), "serve_state": default})
    plan, host = planned({**HOSTS["cpu"], "vllm_packages": ["a"], **given})
    (found,) = [one for one in plan["steps"] if "reason" in one]
    assert (found["step"], found["changed"]) == ("serve", False)
    assert found["reason"].startswith("it cannot be looked at: ")
    assert "vllm_packages" in host.read
    assert "serve_start_on_boot" not in host.read  # its message may be another in each play


def test_a_platform_that_does_not_say_what_it_runs_runs_each_time(monkeypatch):
    monkeypatch.setattr(type(PLATFORMS["cpu"]), "operations", Platform.operations)
    assert reasons() == {"prepare": "what the role cpu does is known to no plan, so it is run each time"}


def forget():
    for one in (steps.is_known, steps.defaults_of, steps.tasks_of):
        one.cache_clear()


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The roles and playbooks as an operator has them, in a folder of their own."""
    for place in ("roles", "playbooks/steps"):
        shutil.copytree(CLONE / place, tmp_path / place, ignore=shutil.ignore_patterns("files", "__pycache__"))
    monkeypatch.setattr(steps, "COLLECTION", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def test_a_task_of_an_operator_runs_each_time(copy):
    assert reasons() == {}
    for place in ("roles/toolkit/README.md", "roles/toolkit/files/one", "roles/toolkit/.main.yml.swp",
                  "roles/toolkit/tasks/main.yml~",
                  "roles/neuron/tasks/main.yml"):  # fmt: skip
        (copy / place).parent.mkdir(exist_ok=True)
        (copy / place).write_text("[]")
    forget()
    assert reasons() == {}
    (copy / "roles/vllm/tasks/mine.yml").write_text("[]")
    with (copy / "roles/serve/tasks/main.yml").open("a") as stream:
        stream.write("- name: Mine\n  ansible.builtin.command: /mine\n  environment: {TOKEN: !vault x}\n")
    with (copy / "playbooks/steps/weights.yml").open("a") as stream:
        stream.write("    - name: Mine\n      ansible.builtin.command: /mine\n")
    forget()
    text = "%s differs from the collection, so it is run each time"
    assert reasons() == {"prepare": text % "roles/vllm", "weights": text % "playbooks/steps/weights.yml",
                         "serve": text % "roles/serve"}  # fmt: skip
    (copy / "roles/vllm/tasks/mine.yml").unlink()
    forget()
    assert set(reasons()) == {"weights", "serve"}


def test_the_known_roles_and_playbooks_are_those_of_the_collection():
    """After a change of a task: python tools/run.py python tools/known_tasks.py"""
    assert pathlib.Path(steps.KNOWN).read_text() == known_tasks.text()


def test_a_secret_that_is_locked_is_an_error_when_it_is_sent():
    given = {**HOSTS["cpu"], "fleet_proxy_env": RuntimeError("Decryption failed")}
    plan, host = planned(given)
    assert [one for one in plan["steps"] if "reason" in one] == []
    tools = next(one for one in plan["steps"] if one["operation"] == "python_environment")
    assert "fleet_proxy_env" in plans.error(run_look.filled, tools["arguments"], plan, host, []).message
