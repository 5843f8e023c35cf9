# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Roles for real on this machine: environments, sources of tools, libraries, units of services, and what is brought.

vllm has two package indexes with the pinned list of docs/using/trainium.md; benchmark a stand-in for LLMPerf's source.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tarfile
from pathlib import Path

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program
from ansible_collections.inference.fleet.tests import doc_examples
from ansible_collections.inference.fleet.tests.nodes import package_indexes
from ansible_collections.inference.fleet.tests.runs import CLONE, play
from ansible_collections.inference.fleet.tests.unit.node_helpers import script
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import (
    LOCAL,
    Tasks,
    flat,
    hosts_file,
    play_tasks,
    tasks_play,
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
    play_tasks(tmp_path, [role_task("vllm")], variables=variables).ok()
    # vLLM and PyTorch are in the one index only, the vendor's packages in the other
    wheels = {"%s-%s.dist-info" % wheel for wheels in package_indexes.WHEELS.values() for wheel in wheels}
    assert {path.name for path in venv.glob("lib/python3*/site-packages/*.dist-info")} == wheels
    assert (venv / "bin" / "vllm").exists()


def test_libraries_of_the_role_cpu(tmp_path):
    packages = {
        "there": {"libc.so.6": {"debian": "libc6"}},
        "missing": {"libc.so.6": {}, "libnone.so.9": {"debian": "libnone9"}},
        "unknown": {"libnone.so.9": {"abacus": "libnone9"}},
    }
    hosts = {name: {**LOCAL, "cpu_packages": one} for name, one in packages.items()}

    def run(*arguments):
        return play_tasks(tmp_path, [role_task("cpu")], *arguments, inventory=hosts_file(tmp_path, hosts), hosts="all")

    checked = run("--check").ok()
    assert (checked.count("changed"), checked.count("skipped")) == (2, 3)
    changed = run("--limit", "there,unknown").failed("No package is known for libnone.so.9 on ")
    assert (changed.count("changed"), changed.count("skipped")) == (0, 1)


# -- the source of LLMPerf that the operator names ---------------------------------------------------------------------

PATCH = "--- a/token_benchmark_ray.py\n+++ b/token_benchmark_ray.py\n@@ -1 +1 @@\n-%s\n+%s\n"


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_named_source_is_unpacked_and_patched_once_and_no_other(tmp_path):
    (tmp_path / "token_benchmark_ray.py").write_text("one\n")
    with tarfile.open(tmp_path / "source.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "token_benchmark_ray.py", "llmperf-f1d6bed/token_benchmark_ray.py")
    patches = [tmp_path / "first", tmp_path / "second"]
    for path, change in zip(patches, (("one", "two"), ("two", "three"))):
        path.write_text(PATCH % change)
    given = [{"source": str(path), "checksum": sha256(path)} for path in patches]
    variables = {
        "benchmark_root": str(tmp_path / "root"),
        "benchmark_llmperf_source": os.path.relpath(tmp_path / "source.tar.gz", CLONE),  # the working directory
        "benchmark_llmperf_checksum": sha256(tmp_path / "source.tar.gz"),
        "benchmark_llmperf_patches": given,
    }
    patched = tmp_path / "root/var/lib/inference-fleet/venvs/llmperf-f1d6bed-source/token_benchmark_ray.py"

    def run(**more):
        return play_tasks(tmp_path, [role_task("benchmark", "llmperf.yml")], variables={**variables, **more})

    assert "set benchmark_llmperf_source to" in flat(run(benchmark_llmperf_source="").failed().output)
    assert not (tmp_path / "root").exists()
    run().ok()
    assert patched.read_text() == "three\n"
    assert run().ok().count("changed") == 0
    run(benchmark_llmperf_patches=given[:1]).ok()
    assert patched.read_text() == "two\n"
    patches[1].write_text("x")
    run().failed(str(patches[1]), sha256(patches[1]), given[1]["checksum"], "benchmark_llmperf_patches")
    assert patched.read_text() == "two\n"


# -- etcd and nats -----------------------------------------------------------------------------------------------------

CONTAINER = {"etcd_install": "container", "etcd_certificates": {"ca": "/pki/a/ca", "key": "/pki/b/key"},
             "etcd_container_flags": ["--env=ALLOW_NONE_AUTHENTICATION=yes", "--env=A=$b 5%"]}  # fmt: skip
PODMAN = {"nats_install": "container", "fleet_container_engine": "podman", "nats_arguments": ["-m", 8222],
          "nats_image_digest": "sha256:" + "0" * 64}  # fmt: skip
NATS = {"nats_arguments": ["-js", "-m", 8222], "nats_password": "\u00e4\"\\8MB", "nats_settings": {
    "max_payload": "8MB", "ping_interval": "2m", "jetstream": {"max_mem": "1MiB", "max_file": "1G"}}}  # fmt: skip


UNITS = [
    ("etcd", CONTAINER,
     ["--cap-drop=ALL", "--security-opt=no-new-privileges", "--env-file=/etc/etcd/initial.env", "--env=A=$b 5%",
      "--mount=type=bind,source=/etc/etcd,target=/etc/etcd,readonly",
      *("--mount=type=bind,source=/pki/%s,target=/pki/%s,readonly" % (one, one) for one in "ab")],
     ["--entrypoint=etcd", "gcr.io/etcd-development/etcd:v3.6.14"]),
    ("nats", NATS, [], ["-c", "/etc/nats/nats.conf", "-js", "-m", "8222"]),
    # the tag is one that a pull keeps
    ("nats", PODMAN, ["--cap-drop=ALL", "--security-opt=label=disable", "--entrypoint=nats-server"],
     ["docker.io/library/nats:sha256-" + "0" * 64, "-c", "/etc/nats/nats.conf", "-m", "8222"]),
]  # fmt: skip


def test_units(tmp_path):
    """The arguments of the units' commands, after systemd's expansions."""
    plays = []
    for number, (role, variables, _words, _end) in enumerate(UNITS):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "templates").symlink_to(CLONE / "roles" / role / "templates")
        contents = {"unit": "{{ %s_files['/etc/systemd/system/%s.service'] }}" % (role, role)}
        if role == "nats":
            contents["conf"] = "{{ nats_login ~ nats_files['/etc/nats/nats.conf'] }}"
        copies = [{"content": text, "dest": str(tmp_path / str(number) / name)} for name, text in contents.items()]
        files = [str(CLONE / "roles" / role / part / "main.yml") for part in ("defaults", "vars")]
        keys = {"hosts": role, "connection": "local", "vars_files": files, "vars": LOCAL}
        play_of = tasks_play([{"ansible.builtin.copy": one, "vars": variables} for one in copies], **keys)
        (tmp_path / str(number) / "play.yml").write_text(json.dumps([play_of]))
        plays.append({"ansible.builtin.import_playbook": "%d/play.yml" % number})
    (tmp_path / "hosts").write_text("[etcd]\nn1\n[nats]\nn1\n")
    (tmp_path / "play.yml").write_text(json.dumps(plays))
    play(str(tmp_path / "play.yml"), tmp_path / "hosts").ok()
    for number, (role, _variables, words, end) in enumerate(UNITS):
        unit = (tmp_path / str(number) / "unit").read_text()
        text = re.search(r"(?m)^ExecStart=((?:.*\\\n)*.*)$", unit)[1].replace("\\\n", " ")
        found = [word.replace("$$", "$").replace("%%", "%") for word in shlex.split(text)]
        assert (set(words) - set(found), found[-len(end) :]) == (set(), end)
        engine = {"etcd": "docker", "nats": "podman"}[role]
        assert not words or ("exec %s " % engine in found[2] and '--user="$(id -u %s):' % role in found[2])
    lines = (tmp_path / "1" / "conf").read_text().splitlines()
    assert lines[0] == 'authorization { user: "fleet", password: "\u00e4\\"\\\\8MB" }'
    assert lines[-4:-2] == ['jetstream: {"max_mem": 1MiB, "max_file": "1G"}', "max_payload: 8MB"]
    assert lines[-2:] == ['ping_interval: "2m"', "include 'login.conf'"]


def test_programs_that_were_not_unpacked_completely_do_not_count(tmp_path):
    """The run ended, or the disk was full."""
    programs, archive = tmp_path / "nats-server-1", tmp_path / "archive.tar.gz"
    (tmp_path / "nats-server").write_text("complete")
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "nats-server", "nats-server-v1/nats-server")
    (tmp_path / "bin").mkdir()
    unpacks = '[ "$1" = --extract ] || exec %s "$@"\necho part >"$3/nats-server"\nexit 1\n' % shutil.which("tar")
    script(tmp_path / "bin" / "tar", unpacks)

    def edited(text):
        return text.replace("/var/cache", str(tmp_path)).replace("root", getpass.getuser())

    recorder = Tasks(tmp_path, "shared_service", ("package",), edited=edited)
    given = {"name": "nats", "programs": str(programs), "url": archive.as_uri(), "version": "1",
             "checksums": dict.fromkeys(("amd64", "arm64"), sha256(archive))}  # fmt: skip
    variables = {"shared_service_" + name: one for name, one in given.items()}
    ends = {"PATH": "%s:%s" % (tmp_path / "bin", os.environ["PATH"])}
    recorder.run(variables=variables, tasks="archive", environment=ends)[1].failed()
    assert not programs.exists()
    recorder.run(variables=variables, tasks="archive")[1].ok()
    assert {path.name: path.read_text() for path in programs.iterdir()} == {"nats-server": "complete"}


def test_no_member_of_a_new_cluster_starts_if_another_was_not_installed(tmp_path):
    changes = 'answer = {"changed": True, "failed": given.get("name") == "fails", "msg": "It fails."}'
    recorder = Tasks(tmp_path, "etcd", ("copy", "include_role", "node"), changes, lambda text: text.replace(
        "inference.fleet.shared_service", '"{{ installation }}"'))  # fmt: skip
    hosts = {name: {**LOCAL, "installation": "fails" if name == "b" else "works"} for name in "abc"}
    variables = {"etcd_members": [{"host": name, "name": name, "address": "127.0.0.1"} for name in hosts],
                 "etcd_tls": False, "etcd_found": {"name": "a", "data": False}}  # fmt: skip
    inventory = hosts_file(tmp_path, hosts, ["etcd"])
    calls, run = recorder.run(variables=variables, tasks="changed", inventory=inventory, hosts="etcd")
    assert "does not include b" in flat(run.failed().output)
    assert [name for name, _given in calls] == ["include_role"] * 3


def test_no_member_gets_files_before_its_turn(tmp_path):
    """But the configuration of NATS, which its server has validated."""
    given = {"members": [{"host": "localhost", "name": "a", "address": "127.0.0.1"}], "tls": False,
             "found": {"name": "a", "data": True}}  # fmt: skip
    variables = {"%s_%s" % (role, name): one for role in ("etcd", "nats") for name, one in given.items()}
    recorder = Tasks(tmp_path, ["etcd", "nats"], ("copy", "include_role", "node"))
    turns, _run = recorder.turns([("changed", {}, "etcd"), ("changed", {}, "nats")], variables=variables)
    copied = [[one["dest"] for name, one in calls if name == "copy"] for calls in turns]
    assert copied == [[], ["/etc/nats/login.conf", "/etc/nats/nats.conf"]]
    states = [[one["state"] for _name, one in calls if "state" in one] for calls in turns]
    assert states == [["joined", "started", "ready", "restarted"], ["started", "ready", "restarted"]]


# -- check mode on a host without anything -----------------------------------------------------------------------------

FILE = {"source": "http://x/y", "checksum": "0" * 64}
FOUND = {"found": {"stdout_lines": []}}
BARE = [
    ("endpoint", "changed", {"unit_content": "", "configuration_content": "", "secrets": {}, **FOUND}),
    ("monitoring", "changed", {"files": {"/x/y.yml": ""}, "configuration": "/x/y.yml", **FOUND}),
    ("evaluate", "datasets", {"files": [{"key": "a", "value": "http://x/y"}], "of_aisbench": ["gsm8k"], "evals": []}),
    ("evaluate", "datasets", {"files": [{"key": "a.csv", "value": "http://x/y"}], "of_aisbench": [], "evals": [],
                              "datasets": "data"}),
    ("benchmark", "llmperf", {"llmperf_files": [FILE], "llmperf_source": "http://x/y", "llmperf_patches": [FILE]}),
]  # fmt: skip


def test_a_check_needs_nothing_that_the_role_would_install(tmp_path):
    """Datasets of the operator are below the working directory."""
    absent = ("systemd_service", "get_url", "unarchive")
    recorder = Tasks(tmp_path, sorted({role for role, *_case in BARE}), ("package", "file", "copy", "node", *absent))
    cases = [(tasks, {"%s_%s" % (role, name): one for name, one in given.items()}, role)
             for role, tasks, given in BARE]  # fmt: skip
    turns, _run = recorder.turns(cases, "--check")
    assert len(turns) == len(BARE)
    for calls in turns:
        assert calls and not [name for name, _arguments in calls if name in (*absent, "turn")]
    assert [one["src"] for name, one in turns[3] if name == "copy"] == [str(CLONE / "data" / "a.csv")]


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
        {"ansible.builtin.debug": {"msg": "found {{ [first, second] | map(attribute='missing') | to_json }}"}},
        {**node("shared_libraries", libraries=[], nobody_knows="this"), **behind},
    ]
    run = play_tasks(tmp_path, tasks, variables={"fleet_root": str(root)}).failed(
        "unknown arguments: nobody_knows. Supported parameters include: libraries."
    )
    assert 'found [[], ["libnone.so.9"]]' in run.output
    kept = root / "var/lib/inference-fleet/program"
    assert program.own_version() in {one.name for one in kept.iterdir()}
