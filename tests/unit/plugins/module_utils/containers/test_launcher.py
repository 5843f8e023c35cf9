# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launcher of containers, with a stand-in for the engines' clients: what stops a start, and what is left.

All of it is of a root of its own: processes are looked for in the real /proc, and this machine may run servers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import launchers
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers import engine as container_engine
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import container_name
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services import systemd
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import containers as guard_containers
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import state as guard_state
from ansible_collections.inference.fleet.tests.unit.engines import guard_place, small_node
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import container, plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.engines.scripted_docker import ERRORS, ScriptedEngine, image

ROOT = "/nonexistent/root-of-a-test"
NAME = container_name("server-0", ROOT)
IMAGE = "registry.example/app:1"
DIGEST = "sha256:" + "1" * 64


@pytest.fixture
def engine(tmp_path, monkeypatch):
    made = ScriptedEngine(tmp_path, monkeypatch, kinds=["docker", "podman"])
    made.write(images={IMAGE: image("a")})
    return made


def mount(path, read_only=True):
    return {"source": str(path), "target": str(path), "read_only": read_only}


def entry(folder, **changes):
    work = str(folder / "work")  # made by the reconciler, later
    mounts = [mount(work, False), mount(NodePaths(ROOT).engine_lib)]  # so are our modules
    declared = container(**{"image": IMAGE, "mounts": mounts, **changes})
    return plan_entry(8000, launcher="container", container=declared, directories={"work": work})


def held(name=NAME, ident="1", root=ROOT, server="server-0", **others):
    return {"id": ident * 64, "name": name, "state": "running", **others,
            "labels": {"inference.fleet.server": server, "inference.fleet.root": root}}  # fmt: skip


def taken(folder, **changes):
    launchers.prepare(entry(folder, **changes), ROOT)


def refused(folder, **changes):
    return error(taken, folder, **changes)


def test_an_image_of_another_architecture(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "n", "6.1", "1", "x86_64")))
    engine.write(images={IMAGE: image("a", architecture="arm64")})
    found = refused(tmp_path, engine="podman")
    assert found.code == "containers.image-architecture"
    assert found.values == (IMAGE, "arm64", "amd64", "x86_64", "podman")
    engine.write(images={IMAGE: image("a", architecture="amd64")})
    taken(tmp_path)


def test_an_image_that_is_not_here(engine, tmp_path):
    engine.write(images={})
    found = refused(tmp_path)
    assert (found.code, found.values) == ("launch.image-missing", ("Server 'server-0'", IMAGE))
    engine.write(images={IMAGE: image("a", "registry.example/app@sha256:" + "2" * 64)})
    assert refused(tmp_path, digest=DIGEST).values[1] == "registry.example/app@" + DIGEST
    engine.write(images={IMAGE: image("a", "mirror.example/app@" + DIGEST)})
    taken(tmp_path, digest=DIGEST)


def test_a_name_that_is_somebody_elses(engine, tmp_path):
    other = {"id": "7" * 64, "name": NAME, "state": "exited", "labels": {}}
    engine.write(containers=[other])
    found = refused(tmp_path)
    assert (found.code, found.values[1:4]) == ("launch.container-name-taken", (NAME, "docker", "7" * 12))
    assert launchers.stop_leftovers(entry(tmp_path), ROOT) == []
    assert engine.read()["containers"] == [other]
    engine.write(containers=[held()])  # our own, which this start is going to replace
    taken(tmp_path)


def test_mounts_and_devices_that_are_not_there(engine, tmp_path):
    missing = str(tmp_path / "missing")
    devices = ["/dev/null:/dev/x:rw", "nvidia.com/gpu=0", missing + ":/dev/y"]
    for changes, keys in (
        ({"mounts": [mount(missing)]}, "container.mounts"),
        ({"devices": devices}, "container.devices or fleet_hardware"),
    ):
        found = refused(tmp_path, **changes)
        assert (found.code, found.values[1], found.values[3]) == ("launch.path-missing", missing, keys)


CDI_SPECS = {
    "nvidia.yaml": 'devices:\n- containerEdits: {}\n  name: "0"\n- name: GPU-1a:2  # a name\nkind: nvidia.com/gpu\n',
    "other.json": json.dumps({"kind": "other.org/card", "devices": [{"name": "all"}, {"name": "7"}]}),
    "notes.txt": "kind: nvidia.com/gpu\nname: 9\n",
}


@pytest.mark.parametrize(("kind", "old", "new"), [("docker", "20.10.24", "28.2.2"), ("podman", "4.0.3", "4.10.1")])
def test_cdi_devices_that_an_engine_does_not_know(engine, tmp_path, monkeypatch, kind, old, new):
    engine.write(info={"CDISpecDirs": []}, version=old)
    found = refused(tmp_path, engine=kind, devices=["/dev/null", "nvidia.com/gpu=0"])
    assert (found.code, found.values[1]) == ("launch.cdi-device-missing", "nvidia.com/gpu=0")
    assert "%s %s does not accept" % (kind, old) in found.values[2]
    taken(tmp_path, engine=kind, devices=["/dev/null:/dev/a=b"])

    folders = [str(tmp_path / "missing"), str(tmp_path / "cdi")]
    monkeypatch.setattr(container_engine, "CDI_FOLDERS", folders)
    engine.write(info={"CDISpecDirs": folders}, version=new)
    (tmp_path / "cdi").mkdir()
    for name, text in CDI_SPECS.items():
        (tmp_path / "cdi" / name).write_text(text)
    there = ["nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1a:2", "other.org/card=all", "other.org/card=7"]
    taken(tmp_path, engine=kind, devices=there)
    for device in ("nvidia.com/gpu=9", "nvidia.com/gpu=7"):  # of a file of another kind
        found = refused(tmp_path, engine=kind, devices=[there[0], device])
        assert (found.code, found.values[1]) == ("launch.cdi-device-missing", device)
        assert " or ".join(folders) in found.values[2]


def test_links_that_lead_nowhere_inside(engine, tmp_path):
    """A hub's cache: snapshots/REVISION/FILE is a link to ../../blobs/SHA."""
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "1", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "ab").write_text("x")
    (snapshot / "config.json").symlink_to("../../blobs/ab")
    (snapshot / "same.json").symlink_to("config.json")
    found = refused(tmp_path, mounts=[mount(snapshot)])
    assert (found.code, found.values[1]) == ("launch.path-missing", "%s/config.json" % snapshot)
    assert "%s/ab" % blobs in found.values[2]
    taken(tmp_path, mounts=[mount(snapshot), mount(blobs)])


@pytest.mark.parametrize(
    ("scripted", "words"),
    [("down", "systemctl start docker"), ("permission", "The user somebody may not use docker"), ("other", "failed")],
)
def test_an_engine_that_does_not_answer(engine, tmp_path, monkeypatch, scripted, words):
    monkeypatch.setattr(processes, "user_name", lambda uid: "somebody")
    engine.write(errors={"*": scripted})
    found = refused(tmp_path)
    where, message = found.values
    assert (found.code, where) == ("containers.engine-problem", "Server 'server-0': ")
    assert words in message and ERRORS[scripted].rpartition("daemon: ")[2].rstrip("?") in message
    found = error(launchers.stop_leftovers, entry(tmp_path), ROOT)  # that nothing runs cannot be proven
    assert (found.code, found.values) == ("launch.container-end-unknown", ("server-0", message, "have ended"))
    assert container_engine.our_containers(ROOT, [entry(tmp_path)]) == {}
    assert container_engine.silent_engine(entry(tmp_path)) == message  # which status says
    engine.write(errors={})
    assert container_engine.silent_engine(entry(tmp_path)) is None


@pytest.fixture
def marked(tmp_path):
    """(root, process) of a process that the node's /proc shows as the server's, as one in a container is."""
    with small_node.watched(tmp_path):
        root = str(tmp_path / "r")
        environment = {processes.MARKER_SERVER: "server-0", processes.MARKER_ROOT: root}
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], env=environment)
        reaper = threading.Thread(target=child.wait)  # the stand-in of the container's init
        reaper.start()
        try:
            small_node.wait_until(lambda: processes.markers_of(child.pid) == (root, "server-0"))
            yield root, child
        finally:
            child.kill()
            reaper.join(60)


def test_an_engine_that_does_not_answer_keeps_no_process_alive(engine, tmp_path, marked):
    root, child = marked
    engine.write(errors={"*": "down"})
    found = error(launchers.stop_leftovers, entry(tmp_path), root)
    assert child.wait(60) == -signal.SIGTERM
    assert (found.code, found.values[2]) == ("launch.container-end-unknown", "have ended")


def test_a_unit_ends_in_time_though_its_engine_hangs(engine, tmp_path, marked):
    """As systemd calls it: nothing runs any more when it is through. Its longest time is below TimeoutStopSec."""
    root, child = marked
    (tmp_path / "server-0.json").write_text(json.dumps(entry(tmp_path)))
    program = guard_place.altered(
        tmp_path, ("host/paths.py", 'PATH = "', 'PATH = "%s:' % engine.bin),
        ("supervise/containers.py", "CALL_S = 6 ", "CALL_S = 1 "),
    )  # fmt: skip
    (engine.bin / "docker").write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    argv = [sys.executable, "-I", program, "end", str(tmp_path / "server-0.json"), "--root", root]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (child.wait(60), done.returncode) == (-signal.SIGTERM, 1)
    assert "docker: docker ps did not end within 1 s; the container may be left there" in done.stdout
    most = 3 * guard_containers.CALL_S + guard_state.TERM_S + guard_state.KILL_S
    assert most < systemd.CONTAINER_STOP_WAIT_S


def test_an_engine_that_is_not_installed(engine, tmp_path):
    (engine.bin / "docker").unlink()
    assert refused(tmp_path).code == "containers.engine-problem"
    taken(tmp_path, engine="podman")


def test_what_is_left_is_ended_and_what_cannot_be_ended_is_told(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "GONE_S", 0.1)
    others = [held("x", "2", root="/srv/fleet"), held("y", "3", server="server-1")]
    engine.write(containers=[held(), held("renamed", "4"), *others])
    assert launchers.stop_leftovers(entry(tmp_path), ROOT) == []
    assert engine.read()["containers"] == others
    (stop,) = engine.called("stop")
    assert stop["argv"] == ["docker", "stop", "--time", "15", "1" * 64, "4" * 64]
    engine.write(containers=[held(immortal=True)])
    assert launchers.stop_leftovers(entry(tmp_path), ROOT) == ["container %s (111111111111)" % NAME]
    engine.write(errors={"stop": "other"})
    assert error(launchers.stop_leftovers, entry(tmp_path), ROOT).code == "launch.container-end-unknown"


def test_a_container_that_the_engine_is_removing_is_waited_for(engine, tmp_path, monkeypatch):
    """`rm` says "already in progress" then, and the list still has it."""
    engine.write(containers=[held(immortal=True)], errors={"rm": "removal of container 1 is already in progress"})
    turns, listed = [], container_engine.Engine.containers

    def containers(*given):
        turns.append(given)
        if len(turns) == 4:
            engine.write(containers=[])
        return listed(*given)

    monkeypatch.setattr(container_engine.Engine, "containers", containers)
    assert launchers.stop_leftovers(entry(tmp_path), ROOT) == []
    assert len(turns) == 4


@pytest.mark.parametrize("errors", [
    {}, {"stop": "Error: can only stop created or running containers. 1 is in state paused: container state improper"},
])  # fmt: skip
def test_podman_kills_what_it_removes(engine, errors):
    """Its `rm --force` waits as long as --stop-timeout, which is longer than a unit's end may take."""
    engine.write(containers=[held()], errors=errors)
    podman = container_engine.Engine("podman")
    podman.remove(podman.containers(ROOT))
    (stop,) = engine.called("stop")
    assert stop["argv"] == ["podman", "stop", "--time", "0", "1" * 64]
    assert podman.containers(ROOT) == []


def test_a_published_port_is_its_servers_though_a_process_of_the_engine_listens(engine, tmp_path, monkeypatch):
    ports = "8/tcp, 127.0.0.1:18000->18000/tcp, 0.0.0.0:19000-19001->19000-19001/tcp"
    # in the words of both engines
    states = {"Exited (0) 2 hours ago": False, "Up 5 seconds ago": True, "exited": False, "running": True}
    engine.write(containers=[held(name=state, state=state, ports=ports) for state in states])
    found = container_engine.our_containers(ROOT, [entry(tmp_path), {"name": "b", "container": {}}])["server-0"]
    assert {one.name: one.running for one in found} == states
    assert found[0].ports == {18000, 19000, 19001}
    proxy = {"pid": 5, "command": "docker-proxy", "user": "root", "server": None, "root": None}
    monkeypatch.setattr(processes, "port_holder", lambda bind, port, sockets: dict(proxy))
    holder = dict(proxy, server="server-0", root=ROOT)
    for port, expected in ((19001, holder), (18001, proxy)):
        assert container_engine.port_holder("127.0.0.1", port, ROOT, {"server-0": found}) == expected
