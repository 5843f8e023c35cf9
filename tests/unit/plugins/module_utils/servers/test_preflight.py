# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
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
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.server_spec import entry_hash
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import registry as accelerators
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import preflight
from ansible_collections.inference.fleet.tests.unit import node_helpers
from ansible_collections.inference.fleet.tests.unit.engines.small_node import port_block

FIXTURES = pathlib.Path(__file__).resolve().parents[3] / "fixtures"
PORT = port_block()
# Listens where it is told, says so, holds some memory, and ends with its input or after 900 s.
LISTENER = """
import select, socket, sys
held = bytearray(int(sys.argv[2]) << 20)
held[::4096] = b"x" * len(held[::4096])
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
select.select([sys.stdin], [], [], 900)
"""


def entry(name="server-0", port=PORT, ports=None):
    made = {
        "schema": 2, "engine": "vllm", "arguments": {},
        "host": "node1", "name": name, "role": "server", "launcher": "process", "platform": "cpu",
        "devices": [0], "bind": "127.0.0.1", "port": port, "ports": ports or {}, "command": ["true"], "environment": {},
        "secrets": {}, "secret_versions": {}, "config": None, "container": None, "launch": ["true"], "directories": {},
        "user": None, "model_id": "m", "reasoning_field": "reasoning",
        "health": {"path": "/health", "budget_s": 300, "poll_s": 2}, "start": {"after": []},
        "cpus": None, "hooks": {}, "weights": [],
    }  # fmt: skip
    return dict(made, hash=entry_hash(made))


@pytest.fixture
def listener():
    """listener(port, root=None, server=None, mib=1): a process that listens; marked as a fleet's server if asked."""
    with contextlib.ExitStack() as stack:

        def start(port, root=None, server=None, mib=1):
            environment = dict(os.environ)
            if server:
                environment.update({processes.MARKER_ROOT: str(root), processes.MARKER_SERVER: server})
            child = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", LISTENER, str(port), str(mib)],
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
    """[(check, message)] of a node that is refused; the whole message is held to them."""
    with pytest.raises(FleetError) as caught:
        check(root, **options)
    problems = caught.value.details["problems"]
    lines = ["%d. %s" % (number, item["message"]) for number, item in enumerate(problems, 1)]
    host = "node1" if options.get("servers") else platform.node()
    assert caught.value.code == "preflight.problems"
    assert caught.value.values == (
        len(problems), "problem" if len(problems) == 1 else "problems", host, "\n".join(" " + line for line in lines)
    )  # fmt: skip
    return [(item["check"], item["message"]) for item in problems]


def run_state(root, name, pid, phase="running", ticks=None):
    """What a guard records of a server's process."""
    path = pathlib.Path(NodePaths(str(root)).server_state(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    ticks = processes.process(pid).ticks if ticks is None else ticks
    path.write_text(json.dumps({"name": name, "pid": pid, "ticks": ticks, "phase": phase}))


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
    with socket.create_server(("127.0.0.1", PORT)), pytest.raises(FleetError) as caught:
        check(
            tmp_path,
            servers=[entry(), entry("server-1", PORT + 1)],
            hardware={"accelerator": "cpu", "count": 4, "cores": 2},
            needs={
                "cpu_flags": ["avx2", "amx_bf16", "sve"],
                "libraries": ["libnone.so.9"],
                "host_memory_gib": 16,
                "disk_gib": 60,
            },
        )
    assert caught.value.code == "preflight.problems"
    assert caught.value.values[:3] == (6, "problems", "node1")
    lines = caught.value.values[3].split("\n")
    assert [line[:4] for line in lines] == [" %d. " % number for number in range(1, 7)]
    assert [item["check"] for item in caught.value.details["problems"]] == [
        "hardware", "cpu_flags", "libraries", "ports", "memory", "disk"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"hardware": {"accelerator": "b200", "count": 8}},
            "The inventory declares the accelerator b200 (fleet_hardware.accelerator), this node has cpu (AMD EPYC). "
            "Correct fleet_hardware, or remove the node from this group.",
        ),
        (
            {"hardware": {"accelerator": "cpu", "count": 1}, "needs": {"accelerators": ["b200", "gb200"]}},
            "The recipe is for b200, gb200 (needs.accelerators), this node has cpu (AMD EPYC). Set fleet_recipe to one "
            "for this node.",
        ),
        (
            {"platform": "abacus"},
            "This version of the collection cannot detect accelerators of 'abacus'; it knows: %s. Use one of these."
            % ", ".join(accelerators.PLATFORMS),
        ),
    ],
)
def test_hardware_of_another_kind(tmp_path, options, message):
    assert refused(tmp_path, **options) == [("hardware", message)]


def test_a_library_that_a_role_installs_is_no_problem_for_root(tmp_path, monkeypatch):
    needs = {"libraries": ["libnuma.so.1"]}
    installs = {"libnuma.so.1": {"debian": "libnuma1", "redhat": "numactl-libs"}}
    monkeypatch.setattr(preflight, "missing_libraries", list)
    lacks = (
        "The recipe needs the shared library libnuma.so.1 (needs.libraries), this node lacks it. Install the package "
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert check(tmp_path, needs=needs, installs=installs)["problems"] == []
    assert refused(tmp_path, needs=needs) == [("libraries", lacks + "that contains it.")]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert refused(tmp_path, needs=needs, installs=installs) == [
        (
            "libraries",
            lacks + "libnuma1 (debian), numactl-libs (redhat); or run the play with become, which installs it.",
        )
    ]


def test_libraries_that_cannot_be_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert refused(tmp_path, needs={"libraries": ["libc.so.6"]}) == [
        (
            "libraries",
            "The shared libraries libc.so.6 cannot be looked up: /bin/false -c 'import ctypes' fails (exit status 1). "
            "Install the full Python of the distribution.",
        )
    ]


@pytest.mark.parametrize(
    ("server", "ports", "only", "advice"),
    [
        (None, {"metrics": PORT + 3}, (), "Stop it, or"),
        ("old-7", {"metrics": PORT + 3}, ("server-0",), "Add old-7 to the names that this run is limited to, or"),
    ],
)
def test_a_port_that_somebody_else_holds_is_a_problem(tmp_path, listener, server, ports, only, advice):
    pid = listener(PORT + 3, root=tmp_path, server=server) if server else listener(PORT + 3)
    ((check_name, message),) = refused(tmp_path, servers=[entry(ports=ports)], only=only)
    assert check_name == "ports"
    assert message.startswith("server-0: its metrics port %d on 127.0.0.1 is held by " % (PORT + 3))
    assert "process %d of " % pid in message and (server is None or "server '%s'" % server in message)
    assert message.endswith("). " + advice + " set another port in fleet_override.")
    assert check(tmp_path, servers=[entry(ports=ports)], only=["server-9"])["problems"] == []


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
    assert [check for check, _message in found] == ["root"] * 4
    assert found[0][1].startswith("%s/etc/inference-fleet: Read-only file system (EROFS). " % tmp_path)
    assert not [message for _check, message in found if "become" in message]


def memory_of(root, *names, **options):
    """The message about memory where each server needs 10 GiB of 23.1; None where there is none."""
    servers = [entry(name, PORT + number) for number, name in enumerate(names)]
    needs = {"host_memory_gib": options.pop("each", 10)}
    try:
        check(root, servers=servers, needs=needs, **options)
    except FleetError as error:
        assert [item["check"] for item in error.details["problems"]] == ["memory"]
        return error.details["problems"][0]["message"]
    return None


def test_memory_is_needed_by_servers_that_do_not_run(tmp_path, listener):
    three = ("server-0", "server-1", "server-2")
    lacks = (
        "The servers to be started (server-0, server-1, server-2) need 30 GiB of host memory (needs.host_memory_gib, "
        "10 GiB each), this node has 23.1 GiB available. Stop other programs, or give the host fewer servers."
    )
    assert memory_of(tmp_path, *three[:2]) is None
    assert memory_of(tmp_path, *three) == lacks
    assert memory_of(tmp_path, *three, only=["server-2"]) is None
    pid = listener(PORT + 20)
    run_state(tmp_path, "server-1", pid)
    assert memory_of(tmp_path, *three) is None, "server-1 runs and has its memory"
    run_state(tmp_path, "server-1", pid, phase="restarting")
    assert memory_of(tmp_path, *three) == lacks
    run_state(tmp_path, "server-1", pid, ticks=processes.process(pid).ticks - 1)
    assert memory_of(tmp_path, *three) == lacks, "the number belongs to another process by now"
    run_state(tmp_path, "server-1", 2**22 + 1, ticks=1)
    assert memory_of(tmp_path, *three) == lacks


def test_memory_that_cannot_be_read_is_not_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight.System, "memory_available", lambda self: None)
    result = check(tmp_path, servers=[entry()], needs={"host_memory_gib": 1000})
    assert result["unchecked"] == ["Not checked: needs.host_memory_gib; the memory that is available cannot be read."]


def test_disk_is_asked_for_until_the_deployment_is_there(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(preflight, "free_bytes", lambda path: asked.append(path) or 5 << 30)
    venv, model = tmp_path / "venv", tmp_path / "model"
    both = [str(venv), str(model)]
    lacks = (
        "disk",
        "A first deployment needs 6 GiB of free disk (needs.disk_gib), %s has 5.0 GiB. Free space there, or set "
        "fleet_root to a folder on a larger disk.",
    )
    assert check(tmp_path, needs={"disk_gib": 5}, satisfied_by=both)["problems"] == []
    assert refused(tmp_path, needs={"disk_gib": 6}) == [(lacks[0], lacks[1] % tmp_path)]
    venv.mkdir()
    assert refused(tmp_path, needs={"disk_gib": 6}, satisfied_by=both) == [(lacks[0], lacks[1] % tmp_path)]
    (tmp_path / "var/lib").mkdir(parents=True)
    assert refused(tmp_path, needs={"disk_gib": 6}) == [(lacks[0], lacks[1] % (tmp_path / "var/lib"))]
    model.mkdir()
    del asked[:]
    assert check(tmp_path, needs={"disk_gib": 6}, satisfied_by=both)["problems"] == []
    assert asked == []


def test_folders_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "etc").mkdir()
    closed = [str(tmp_path / "etc"), str(tmp_path)]
    monkeypatch.setattr(os, "access", lambda path, mode: path not in closed)
    assert refused(tmp_path) == [
        (
            "root",
            "The user %s cannot write to %s, %s. Run the play with become, or set fleet_root to a folder that this "
            "user can write to." % (processes.user_name(os.geteuid()), *closed),
        )
    ]


def test_a_file_where_a_folder_must_be(tmp_path):
    (tmp_path / "var/lib").mkdir(parents=True)
    (tmp_path / "var/lib/inference-fleet").write_text("")
    assert refused(tmp_path) == [
        (
            "root",
            "%s/var/lib/inference-fleet is in the way: it must be a folder. Remove it, or set another fleet_root."
            % tmp_path,
        )
    ]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"root": "here"}, "node.root-not-absolute"),
        ({"root": "/r", "servers": [dict(entry(), port=1)]}, "entry.invalid"),
    ],
)
def test_an_invalid_plan_is_refused(options, code):
    with pytest.raises(FleetError) as caught:
        check(**options)
    assert caught.value.code == code


def test_a_model_of_the_node_must_be_there_and_whole(tmp_path):
    folder = tmp_path / "model"
    model = {"source": "path", "path": str(folder), "format": "bf16"}
    assert [item[0] for item in refused(tmp_path / "r", models=[model])] == ["model"]

    node_helpers.build_checkpoint(folder, quantization_config=None)
    assert check(tmp_path / "r", models=[model])["problems"] == []
    ((_name, message),) = refused(tmp_path / "r", models=[dict(model, format="mxfp4")])
    assert "its format is bf16, the recipe needs mxfp4" in message
    draft = {"path": str(tmp_path / "draft")}
    ((_name, message),) = refused(tmp_path / "r", models=[dict(model, draft=draft)])
    assert "%s is incomplete, missing: config.json" % draft["path"] in message
    # Copied earlier from a mount that is gone now.
    assert check(tmp_path / "r", models=[dict(model, source_path=str(tmp_path / "gone"))])["problems"] == []

    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    (problem,) = refused(tmp_path / "r", models=[model])
    assert shard.name in problem[1]
    # What is fetched is checked when it comes.
    assert check(tmp_path / "r", models=[dict(model, source="standin")])["problems"] == []


def test_a_model_that_is_no_gpt_oss(tmp_path):
    node_helpers.build_checkpoint(tmp_path / "model", model_type="llama")
    ((name, message),) = refused(tmp_path / "r", models=[{"source": "path", "path": str(tmp_path / "model")}])
    assert name == "model"
    assert str(tmp_path / "model") in message
    assert "llama" in message
    assert "gpt_oss" in message
