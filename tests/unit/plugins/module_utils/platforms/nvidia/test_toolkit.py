# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is due on a node until containers get its GPUs, by what dpkg knows of, CDI's descriptions and the record."""

from __future__ import annotations

import json
import os
from unittest import mock

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import Engine, EngineError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.nvidia import (
    operations as nvidia_toolkit,
)
from ansible_collections.inference.fleet.tests.unit.detected_node import DetectedNode
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.engines.scripted_docker import ScriptedEngine

NAMES = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools",
         "libnvidia-container1")  # fmt: skip
PACKAGES = {name: {"version": "1.20.0", "least": "1.17.8"} for name in NAMES}
# As nvidia-ctk 1.17 writes it, shortened.
SPEC = """---
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  hooks:
  - args: [create-symlinks, --link, "libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so"]
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /inside/alone
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08
devices:
- containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}
- containerEdits: {deviceNodes: [{path: /dev/nvidia1}]}
"""
NAMED = ("/dev/nvidiactl", "/usr/bin/nvidia-cdi-hook", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08")


def server(devices=("nvidia.com/gpu=0",), engine="docker", flags=(), address=None):
    container = {"engine": engine, "address": address, "image": "r/i:1", "digest": None, "devices": list(devices),
                 "flags": list(flags)}  # fmt: skip
    return plan_entry(8000, platform="nvidia", container=container)


class Node(DetectedNode):
    """A root with an os-release, what dpkg knows of, and two GPUs."""

    def __init__(self, root):
        super().__init__(root)
        self.write("/etc/os-release", "ID=debian\n")
        self.write("/proc/sys/kernel/random/boot_id", "boot-1\n")
        for path in ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm", *NAMED):
            self.write(path)

    def have(self, version="1.20.0-1", **others):
        self.installed({**dict.fromkeys(NAMES, version), **others})

    def be_ready(self):
        self.have()
        self.write("/etc/cdi/nvidia.yaml", SPEC)

    def look(self, servers=None, packages=PACKAGES, **more):
        return nvidia_toolkit.compare([server()] if servers is None else servers, packages, sysroot=self.root, **more)

    def fails(self, code, **more):
        found = error(self.look, **more)
        assert found.code == code
        return found.values


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(nvidia_toolkit, "holders", lambda engine: [])
    return Node(tmp_path)


@pytest.fixture
def engine(monkeypatch):
    """A container engine in which nvidia-smi lists two GPUs."""
    made = mock.Mock()
    made.cdi.return_value = ("26.1", ["/etc/cdi"])
    made.find_image.return_value = {"reference": "id-of-r/i:1"}
    made.call.return_value = "GPU 0: NVIDIA B200 (UUID: GPU-a)\nGPU 1: NVIDIA B200 (UUID: GPU-b)\n"
    monkeypatch.setattr(nvidia_toolkit, "Engine", lambda kind: made)
    return made


def test_a_bare_node(node):
    found = node.look()
    assert list(found["due"]) == ["packages", "cdi", "proof"]
    assert found["due"]["packages"] == dict.fromkeys(NAMES, "1.20.0")
    assert (found["manager"], found["cdi"]) == ("apt", ["/etc/cdi/nvidia.yaml"])
    assert (found["keep"], found["changed"]) == (False, False)
    checked = node.look(check_mode=True)
    assert (checked["changed"], checked["due"]) == (True, found["due"])
    assert checked["diff"]["after"].startswith("packages: libnvidia-container-tools 1.20.0, ")
    node.write("/etc/docker/daemon.json", "{}")
    assert node.look()["keep"] is True
    node.be_ready()
    assert node.look()["keep"] is False


@pytest.mark.parametrize(
    "servers",
    [[], [plan_entry(8000)], [server(["/dev/nvidia0"])], [server(address="unix:///x")]],
    ids=["none", "process", "paths", "elsewhere"],
)
def test_servers_without_gpus_in_containers_need_nothing(node, servers):
    assert node.look(servers)["due"] == {}


def test_packages_stay_where_they_fit_and_are_of_one_version(node):
    node.have("1.17.8-1")
    assert "packages" not in node.look()["due"]
    node.have("1.20.0-1", **{"libnvidia-container1": "1.18.0-1"})
    assert node.look()["due"]["packages"] == dict.fromkeys(NAMES, "1.20.0")


@pytest.mark.parametrize(("change", "why"), [
    ({}, None),
    ({"/dev/nvidia2": ""}, "it lacks /dev/nvidia2"),
    ({"/usr/bin/nvidia-cdi-hook": None}, "it names /usr/bin/nvidia-cdi-hook, which does not exist"),
    ({NAMED[2]: None}, "it names %s, which does not exist" % NAMED[2]),
])  # fmt: skip
def test_a_description_is_written_again_after_a_change_of_the_driver(node, change, why):
    node.be_ready()
    for path, text in change.items():
        (node.path / path[1:]).unlink() if text is None else node.write(path, text)
    expected = None if why is None else "/etc/cdi/nvidia.yaml: " + why
    assert node.look()["due"].get("cdi") == expected


def test_a_gpu_that_cannot_be_described_is_left_out_until_the_next_boot(node, engine):
    node.be_ready()
    node.write("/dev/nvidia2", "")
    assert "cdi" in node.look()["due"]
    assert node.look(installed=True)["due"] == node.look()["due"] == {}  # of the two that are described
    node.write("/proc/sys/kernel/random/boot_id", "boot-2\n")
    assert "cdi" in node.look()["due"]


def test_a_container_lists_the_gpus_once(node, engine):
    node.be_ready()
    assert node.look()["due"] == {"proof": "no container of docker has listed the present GPUs"}
    done = node.look(installed=True)
    assert (done["due"], done["changed"]) == ({}, True)
    assert [one.args for one in engine.call.mock_calls] == [
        ("run", "--rm", "--pull=never", "--network=none", "--device=nvidia.com/gpu=all", "--entrypoint=nvidia-smi",
         "id-of-r/i:1", "-L")
    ]  # fmt: skip
    again = node.look()
    assert (again["due"], again["changed"], engine.call.call_count) == ({}, False, 1)
    assert node.look([server(), server(engine="podman")])["due"].keys() == {"proof"}
    label = "--security-opt=label=disable"  # without it SELinux denies podman's containers the devices
    node.look([server(engine="podman", flags=["--ipc=host", label])], installed=True)
    assert label in engine.call.call_args.args and "--ipc=host" not in engine.call.call_args.args
    node.write("/etc/cdi/nvidia.yaml", SPEC + "# another\n")
    assert node.look()["due"].keys() == {"proof"}


def test_fewer_gpus_in_the_container_than_on_the_node(node, engine):
    node.be_ready()
    engine.call.return_value = "GPU 0: NVIDIA B200\n"
    assert node.fails("nvidia.container-lacks-gpus", installed=True)[:3] == ("docker", 1, 2)
    engine.call.side_effect = EngineError("other", "unresolvable CDI devices nvidia.com/gpu=all")
    values = node.fails("nvidia.container-lacks-gpus", installed=True)
    assert (values[1], values[3]) == (0, "unresolvable CDI devices nvidia.com/gpu=all")
    assert node.look()["due"].keys() == {"proof"}


def test_an_engine_that_is_restarted_later_is_proven_later(node, engine):
    node.be_ready()
    engine.cdi.return_value = ("26.1", [])
    done = node.look(installed=True)
    assert (done["due"], done["changed"], engine.call.mock_calls) == ({}, False, [])
    assert "docker" in done["message"]
    assert node.look()["due"].keys() == {"proof"}


def test_settings_that_an_installation_left_aside(node):
    node.be_ready()
    node.write("/etc/docker/daemon.json.before-nvidia-toolkit", "{}")
    assert next(iter(node.look()["due"])) == "settings"


def test_containers_that_would_lose_their_gpus(node, monkeypatch):
    monkeypatch.setattr(nvidia_toolkit, "holders", lambda engine: ["training"])
    assert node.fails("nvidia.install-takes-gpus") == ("1.20.0", "training")
    node.be_ready()
    assert node.look()["due"].keys() == {"proof"}


def test_who_loses_gpus_by_a_reload(tmp_path, monkeypatch):
    """A container that ends meanwhile hides no other."""

    def one(name, runtime="runc", driver=None):
        requests = None if driver is None else [{"Driver": driver}]
        return {"Name": "/" + name, "HostConfig": {"Runtime": runtime, "DeviceRequests": requests}}

    known = json.dumps([one("plain"), one("cdi", driver="cdi"), one("gpus", driver=""), one("old", runtime="nvidia")])
    engine = ScriptedEngine(tmp_path, monkeypatch)
    (engine.bin / "docker").write_text(
        "#!/bin/sh\n[ $1 = ps ] && echo a gone || { echo '%s'; echo 'no such object: gone' >&2; exit 1; }\n" % known
    )
    assert nvidia_toolkit.holders(Engine("docker")) == ["gpus", "old"]
    (engine.bin / "docker").unlink()
    assert nvidia_toolkit.holders(Engine("docker")) == []


@pytest.mark.parametrize(("version", "code"), [("new", "packages.invalid"), ("1.19.0", "packages.versions-differ")])
def test_packages_that_are_wrong(node, version, code):
    node.fails(code, packages={**PACKAGES, "libnvidia-container1": {"version": version}})


def test_a_node_without_driver(monkeypatch):
    monkeypatch.setattr(nvidia_toolkit.shutil, "which", lambda *arguments, **more: None)
    assert error(nvidia_toolkit.compare, [server()], PACKAGES).code == "nvidia.driver-missing"
    assert nvidia_toolkit.compare([], PACKAGES)["due"] == {}
