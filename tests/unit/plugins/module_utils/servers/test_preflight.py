# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a node can take its plan, and the operations that look at a node."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import socket
import subprocess
import sys
import types

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations import host as host_operations
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations import servers as server_operations
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import registry as accelerators
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import preflight
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import hardware
from ansible_collections.inference.fleet.tests.unit import node_helpers
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.engines.small_node import port_block
from ansible_collections.inference.fleet.tests.unit.operating import operate

FIXTURES = pathlib.Path(__file__).resolve().parents[3] / "fixtures"
PORT = port_block()
# Listens where it is told, says so, and ends with its input or after 900 s.
LISTENER = """
import select, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
select.select([sys.stdin], [], [], 900)
"""


def entry(name="server-0", port=PORT, ports=None, **changes):
    return plan_entry(port, name, host="node1", ports=ports or {}, command=["true"], launch=["true"], **changes)


@pytest.fixture
def listener():
    """listener(port, root=None, server=None): a process that listens; marked as a fleet's server if asked."""
    with contextlib.ExitStack() as stack:

        def start(port, root=None, server=None):
            environment = dict(os.environ)
            if server:
                environment.update({processes.MARKER_ROOT: str(root), processes.MARKER_SERVER: server})
            child = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", LISTENER, str(port)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
                )
            )  # fmt: skip
            assert child.stdout.readline() == b"up\n"
            return child.pid

        yield start


def check(root, **options):
    """The node of tree "one-node": AMD EPYC, 2 cores, 23.5 GiB, 23677 MiB available."""
    options.setdefault("sysroot", str(FIXTURES / "sysroot-one-node"))
    return preflight.preflight(root=str(root), **options)


def refused(root, **options):
    """The problems of a node that is refused."""
    caught = error(check, root, **options)
    problems = caught.details["problems"]
    host = "node1" if options.get("servers") else platform.node()
    count = (len(problems), "problem" if len(problems) == 1 else "problems", host)
    lines = "\n".join(" %d. %s" % (number, item["message"]) for number, item in enumerate(problems, 1))
    assert (caught.code, caught.values) == ("preflight.problems", (*count, lines))
    return problems


def problem(root, kind, *words, **options):
    """The message of the one problem of a node, which is of this kind and has the words."""
    (found,) = refused(root, **options)
    assert found["check"] == kind
    assert [one for one in map(str, words) if one not in found["message"]] == []
    return found["message"]


def run_state(root, pid, phase="running", ticks=None):
    """What a guard records of the process of server-1."""
    path = pathlib.Path(NodePaths(str(root)).server_state("server-1"))
    path.parent.mkdir(parents=True, exist_ok=True)
    ticks = processes.process(pid).ticks if ticks is None else ticks
    path.write_text(json.dumps({"name": "server-1", "pid": pid, "ticks": ticks, "phase": phase}))


def test_a_node_that_can_take_its_plan(tmp_path):
    result = check(
        tmp_path,
        servers=[entry(), entry("server-1", PORT + 1, {"metrics": PORT + 2, "system": None})],
        hardware={"accelerator": "cpu", "count": 2, "memory_gib": 11},
        needs={"accelerators": ["cpu"], "cpu_flags": ["avx2"], "host_memory_gib": 2.5, "disk_gib": 0.001},
    )
    assert (result["changed"], result["problems"], list(tmp_path.iterdir())) == (False, [], [])
    assert result["accelerators"]["devices"] == [
        {"id": 0, "memory_mib": 24105, "cores": 2, "numa": 0, "cpus": "0-1", "health": "ok", "holders": [],
         "core_ids": []}
    ]  # fmt: skip


def test_all_problems_stand_in_one_message(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "free_bytes", lambda path: 3 << 29)
    needs = {"cpu_flags": ["avx2", "amx_bf16", "sve"], "libraries": ["libnone.so.9"], "host_memory_gib": 16,
             "disk_gib": 60}  # fmt: skip
    servers, hardware = [entry(), entry("server-1", PORT + 1)], {"accelerator": "cpu", "count": 4, "cores": 2}
    with socket.create_server(("127.0.0.1", PORT)):
        found = refused(tmp_path, servers=servers, hardware=hardware, needs=needs)
    assert [item["check"] for item in found] == ["hardware", "cpu_flags", "libraries", "ports", "memory", "disk"]


@pytest.mark.parametrize(("options", "words"), [
    ({"hardware": {"accelerator": "b200", "count": 8}}, ["b200", "fleet_hardware.accelerator", "cpu (AMD EPYC)"]),
    ({"hardware": {"accelerator": "cpu", "count": 1}, "needs": {"accelerators": ["b200", "gb200"]}},
     ["b200, gb200 (needs.accelerators)", "cpu (AMD EPYC)", "fleet_recipe"]),
    ({"platform": "abacus"}, ["'abacus'", ", ".join(accelerators.PLATFORMS)]),
])  # fmt: skip
def test_hardware_of_another_kind(tmp_path, options, words):
    problem(tmp_path, "hardware", *words, **options)


def test_a_library_that_a_role_installs_is_no_problem_for_root(tmp_path, monkeypatch):
    needs = {"libraries": ["libnuma.so.1"]}
    installs = {"libnuma.so.1": {"debian": "libnuma1", "redhat": "numactl-libs"}}
    monkeypatch.setattr(preflight, "missing_libraries", list)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert check(tmp_path, needs=needs, installs=installs)["problems"] == []
    problem(tmp_path, "libraries", "libnuma.so.1 (needs.libraries)", "the package that contains it", needs=needs)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    advice = "libnuma1 (debian), numactl-libs (redhat); or run the play with become"
    problem(tmp_path, "libraries", advice, needs=needs, installs=installs)


def test_libraries_that_cannot_be_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    problem(tmp_path, "libraries", "libc.so.6", "/bin/false", "exit status 1", needs={"libraries": ["libc.so.6"]})


@pytest.mark.parametrize(("server", "only", "advice"), [
    (None, (), "Stop it, or"),
    ("old-7", ("server-0",), "Add old-7 to the names that this run is limited to, or"),
])  # fmt: skip
def test_a_port_that_somebody_else_holds_is_a_problem(tmp_path, listener, server, only, advice):
    pid, servers = listener(PORT + 3, root=tmp_path, server=server), [entry(ports={"metrics": PORT + 3})]
    words = ["server-0: its metrics port %d on 127.0.0.1" % (PORT + 3), "process %d of " % pid, "). " + advice]
    words += ["server '%s'" % server] if server else []
    problem(tmp_path, "ports", *words, servers=servers, only=only)
    assert check(tmp_path, servers=servers, only=["server-9"])["problems"] == []


def test_a_port_held_by_our_own_server(tmp_path, listener):
    listener(PORT, root=tmp_path, server="server-0")
    listener(PORT + 1, root=tmp_path, server="old-7")
    servers = [entry(), entry("server-1", PORT + 1)]
    assert check(tmp_path, servers=servers)["problems"] == [], "old-7 is removed before server-1 is started"
    assert check(tmp_path, servers=servers, only=["server-0"])["problems"] == []
    assert check(tmp_path, servers=servers, only=["server-1", "old-7"])["problems"] == []


def test_a_read_only_file_system_is_called_that(tmp_path, monkeypatch):
    """As root, whom no mode keeps from writing: more rights are no remedy."""
    flags = types.SimpleNamespace(f_flag=os.ST_RDONLY, f_bavail=1, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda path: flags)
    for folder in ("etc/inference-fleet", "var/lib/inference-fleet"):
        (tmp_path / folder).mkdir(parents=True)
    found = refused(tmp_path)
    assert [item["check"] for item in found] == ["root"] * 4
    assert found[0]["message"].startswith("%s/etc/inference-fleet: Read-only file system (EROFS). " % tmp_path)
    assert not [item for item in found if "become" in item["message"]]


def test_memory_is_needed_by_servers_that_do_not_run(tmp_path, listener):
    """Each needs 10 GiB of 23.1."""
    names = ("server-0", "server-1", "server-2")
    three = [entry(name, PORT + number) for number, name in enumerate(names)]
    needs = {"host_memory_gib": 10}

    def fits(*servers, only=None):
        return check(tmp_path, servers=servers, needs=needs, only=only)["problems"] == []

    def lacks():
        words = [", ".join(names), "30 GiB", "needs.host_memory_gib, 10 GiB each", "23.1 GiB"]
        return problem(tmp_path, "memory", *words, servers=three, needs=needs)

    assert fits(*three[:2]) and lacks() and fits(*three, only=["server-2"])
    fronts = [entry("front-%d" % number, PORT + 10 + number, devices=[]) for number in range(3)]
    assert fits(*three[:2], fronts[0]), "next to servers with devices it needs little"
    assert problem(tmp_path, "memory", "30 GiB", servers=fronts, needs=needs)
    pid = listener(PORT + 20)
    run_state(tmp_path, pid)
    assert fits(*three), "server-1 runs and has its memory"
    run_state(tmp_path, pid, phase="restarting")
    assert lacks()
    run_state(tmp_path, pid, ticks=processes.process(pid).ticks - 1)
    assert lacks(), "the number belongs to another process by now"


def test_memory_that_cannot_be_read_is_not_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight.System, "memory_available", lambda self: None)
    result = check(tmp_path, servers=[entry()], needs={"host_memory_gib": 1000})
    assert result["unchecked"] == ["Not checked: needs.host_memory_gib; the memory that is available cannot be read."]


def test_disk_is_asked_for_until_the_deployment_is_there(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(preflight, "free_bytes", lambda path: asked.append(path) or 5 << 30)
    venv, model = tmp_path / "venv", tmp_path / "model"
    both, needs = [str(venv), str(model)], {"disk_gib": 6}
    words = "needs 6 GiB of free disk (needs.disk_gib), %s has 5.0 GiB"

    def lacks(place, **options):
        problem(tmp_path, "disk", words % place, "fleet_root", needs=needs, **options)

    assert check(tmp_path, needs={"disk_gib": 5}, satisfied_by=both)["problems"] == []
    lacks(tmp_path)
    venv.mkdir()
    lacks(tmp_path, satisfied_by=both)
    (tmp_path / "var/lib").mkdir(parents=True)
    lacks(tmp_path / "var/lib")
    model.mkdir()
    asked.clear()
    assert check(tmp_path, needs=needs, satisfied_by=both)["problems"] == asked == []


def test_folders_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "etc").mkdir()
    closed = [str(tmp_path / "etc"), str(tmp_path)]
    monkeypatch.setattr(os, "access", lambda path, mode: path not in closed)
    problem(tmp_path, "root", processes.user_name(os.geteuid()), ", ".join(closed), "become", "fleet_root")


def test_a_file_where_a_folder_must_be(tmp_path):
    (tmp_path / "var/lib").mkdir(parents=True)
    (tmp_path / "var/lib/inference-fleet").write_text("")
    problem(tmp_path, "root", "%s/var/lib/inference-fleet is in the way" % tmp_path)


def test_a_model_of_the_node_must_be_there_and_whole(tmp_path):
    root, folder = tmp_path / "r", tmp_path / "model"
    model = {"source": "path", "path": str(folder), "format": "bf16"}

    def refuses(*words, **changes):
        return problem(root, "model", *words, models=[dict(model, **changes)])

    def accepts(**changes):
        return check(root, models=[dict(model, **changes)])["problems"] == []

    refuses()
    node_helpers.build_checkpoint(folder, quantization_config=None)
    assert accepts()
    refuses("its format is bf16, the recipe needs mxfp4", format="mxfp4")
    draft = {"path": str(tmp_path / "draft")}
    refuses("%s is incomplete, missing: config.json" % draft["path"], draft=draft)
    assert accepts(source_path=str(tmp_path / "gone"))  # copied earlier from a mount that is gone now
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    refuses(shard.name)
    assert accepts(source="standin")  # what is fetched is checked when it comes
    other = tmp_path / "other"
    node_helpers.build_checkpoint(other, model_type="llama")
    refuses(other, "llama", "gpt_oss", path=str(other))


# ---- as operations


def test_accelerator_info_warns(monkeypatch):
    tree = str(FIXTURES / "sysroot-offline-cpus")
    form = accelerators.detect(sysroot=tree).as_dict()
    monkeypatch.setattr(host_operations, "detect", lambda vendor: accelerators.detect(vendor, tree))
    warned = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warned.append(text))
    assert form.pop("warnings") == ["CPUs 3,7 are offline and are not counted."]
    assert operate("accelerator_info") == dict(form, changed=False)
    assert warned == ["CPUs 3,7 are offline and are not counted."]


@pytest.mark.parametrize("check_mode", [True, False])
def test_node_preflight(tmp_path, check_mode):
    result = operate(
        "node_preflight", check_mode, root=str(tmp_path), platform="cpu", servers=[],
        hardware={"accelerator": "cpu", "count": "1"}, needs={"accelerators": ["cpu"], "host_memory_gib": 0.1},
    )  # fmt: skip
    found = accelerators.detect().as_dict()
    assert result == {"changed": False, "accelerators": found, "problems": [], "unchecked": []}
    assert list(tmp_path.iterdir()) == []
    result = operate("node_preflight", check_mode, root=str(tmp_path), platform="abacus", needs={"cpu_flags": ["warp"]})
    assert [problem["check"] for problem in result["problems"]] == ["hardware", "cpu_flags"]
    assert (result["failed"], result["code"]) == (True, "preflight.problems")
    result = operate("node_preflight", platform="cpu", needs={"teraflops": 7})
    assert result["failed"] and "needs.teraflops" in result["msg"]
    assert operate("node_preflight", platform="cpu", root="here")["code"] == "node.root-not-absolute"
    assert operate("node_preflight", platform="cpu", servers=[dict(entry(), port=1)])["code"] == "entry.invalid"


def test_preflight_takes_all_that_fleet_hardware_may_have():
    """A key that the plan takes and the operation refuses would end every play of the host."""
    options = server_operations.NODE_PREFLIGHT["hardware"]["options"]
    assert set(options) == set(hardware.KEYS)
