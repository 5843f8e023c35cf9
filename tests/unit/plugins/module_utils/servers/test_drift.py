# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each difference between a server and its plan has its line, and one as planned has none; signals of a drain."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import Container
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.registry import ENGINES, OTHER_API_KEYS
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import apply, drift, observe
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import DesiredServer, Observed
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.base import Status
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import containers
from ansible_collections.inference.fleet.tests.unit.engines import plan_entries
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.scripted_docker import ScriptedEngine, image

PATH = "/etc/systemd/system/inference-fleet-server-0.service"
FILES = [("/e", 0o644, 0, 0), ("/s", 0o600, 0, None)]
MODES = {"/e": (0o644, 0, 0), "/s": (0o600, 0, 0)}


def both(**changes):
    """(DesiredServer, Observed) of a server that runs as planned, except for the changes."""
    entry = plan_entry(8000, secrets={"TOKEN": "v"}, secret_versions={"TOKEN": "1"})
    desired = DesiredServer(entry, {"TOKEN": "t0p"}, None, "d", None, FILES, PATH)
    return desired, plan_entries.running(entry, **{"secrets": {"TOKEN": "t0p"}, "modes": MODES, **changes})


def lines(desired, observed):
    return [(one.kind, one.text, one.action) for one in drift.compare(desired, observed)]


@pytest.mark.parametrize(("changes", "expected"), [
    ({"faults": ["it is vi"]}, ("process", "it is vi", "restart")),
    ({"definition": "d # edited"}, ("definition", "its service definition differs (%s)" % PATH, "redefine")),
    ({"definition": None}, ("definition", "its service definition is missing", "redefine")),
    ({"modes": {**MODES, "/s": (0o644, 0, 0)}}, ("file mode", "/s has mode 0644 instead of 0600", "redefine")),
    ({"modes": {**MODES, "/e": (0o644, 400, 0)}}, ("file owner", "/e belongs to 400:0 instead of 0:0", "redefine")),
    ({"secrets": {}}, ("changed", "changed: secrets", "change")),
    ({"secrets": {"TOKEN": "t0p", "X": "y"}}, ("changed", "changed: secrets", "change")),
    ({"secrets": {"TOKEN": "other"}}, ("changed", "changed: secrets", "change")),
    ({"service": Status("up", 7, enabled=False)},
     ("not enabled", "its unit is not enabled, so a reboot would not start it", "enable")),
    ({}, None),
    ({"service": Status("up", 7, drop_ins=["/run/systemd/system/service.d/a.conf"])}, None),
])  # fmt: skip
def test_each_difference_has_its_line(changes, expected):
    desired, observed = both(**changes)
    assert lines(desired, observed) == [expected] * (expected is not None)
    assert "t0p" not in repr(drift.compare(desired, observed))


def test_secrets_that_are_not_known_here_are_compared_by_name():
    desired, observed = both(secrets={"TOKEN": "other"})
    desired.secrets = {}
    assert lines(desired, observed) == []
    observed.secrets = {}
    assert lines(desired, observed) == [("changed", "changed: secrets", "change")]
    observed.secrets_read = False
    assert lines(desired, observed) == []


def test_a_server_of_one_api_key_lacks_no_others_and_one_of_several_does():
    desired, observed = both()
    desired.entry["secrets"][OTHER_API_KEYS[0]] = "fleet_api_key"
    assert lines(desired, observed) == []
    desired.secrets[OTHER_API_KEYS[0]] = "second"
    assert lines(desired, observed) == [("changed", "changed: secrets", "change")]


# ---- the process of a unit


@pytest.mark.parametrize(("variables", "arguments", "age", "words"), [
    ({"A": "1"}, [], 1000, "is not a server"),
    ({"A": "1"}, [], 1, None),  # it may become the guard
    ({"INFERENCE_FLEET_SERVER": "server-0", "INFERENCE_FLEET_ROOT": "/"}, [], 1, "the record of its start is gone"),
    ({"INFERENCE_FLEET_SERVER": "server-0", "INFERENCE_FLEET_ROOT": "/other"}, [], 1000, "is not a server"),
    ({"A": "1"}, ["/l/program/current"], 1000, None),  # the guard
    ({}, [], 1000, None),  # not this account's to read
])  # fmt: skip
def test_a_process_without_a_record(monkeypatch, variables, arguments, age, words):
    monkeypatch.setattr(observe.time, "time", lambda now=time.time: now() + age)
    command = [sys.executable, "-c", "input()", *arguments, "--token=t0p"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, env=variables)
    try:
        found = observe._unrecorded(NodePaths(""), "server-0", child.pid)
        assert (found is None) == (words is None) and (words or "") in (found or "")
        assert "t0p" not in (found or "")
    finally:
        child.communicate(b"\n")


@pytest.mark.parametrize(("command", "shown"), [
    ("vllm serve --api-key sk-1234 --port 1", "vllm serve --api-key ******** --port 1"),
    ("vllm serve --api-key one two --port 1", "vllm serve --api-key ******** --port 1"),
    ("x --hf-token=hf_abcdef y", "x --hf-token=******** y"),
    ("curl -H 'Authorization: Bearer abcdefgh'", "curl -H 'Authorization: ********'"),
    ("proxy http://me:pass@host/", "proxy http://********@host/"),
    ("nc -l 8000", "nc -l 8000"),
    ("run x-api-key=abc --a--token b", "run x-api-key=******** --a--token ********"),
])  # fmt: skip
def test_a_strangers_command_is_shown_without_its_secrets(command, shown):
    assert processes.masked(command) == shown


@pytest.mark.parametrize("word", ["-", "-a", "-key", "--key a", "a-", "key"])
def test_a_long_command_of_a_stranger_is_masked_in_linear_time(word):
    assert processes.masked(word * 100_000)


# ---- the image of a container


def test_a_tag_that_leads_to_another_image_by_now(tmp_path, monkeypatch):
    name = "registry.example/team/app:1"
    planned = {"container": plan_entries.container(image=name), "launch": [], "command": []}
    runs = [Container("c1", "inference-fleet-server-0", True, "server-0", "/", "h")]
    engine = ScriptedEngine(tmp_path, monkeypatch)
    engine.write(images={name: image("1"), "old": image("2")})

    def moved(image_id):
        engine.write(containers=[{"id": "c1", "name": "c1", "labels": {}, "state": "running",
                                  "image": "sha256:" + image_id * 64, "host": {}}])  # fmt: skip
        return observe.container_faults(planned, runs)

    assert moved("1") == []
    assert moved("2") == ["%s is another image by now (111111111111) than its container runs (222222222222)" % name]
    assert moved("9") == []  # the engine does not know it any more
    engine.write(images={"old": image("2")})
    assert moved("2") == []  # the name is gone: another step restores it
    assert observe.container_faults(planned, []) == []
    assert observe.container_faults({"container": None}, runs) == []
    engine.write(errors={"*": "down"})
    assert observe.container_faults(planned, runs) == []


# ---- signals of a drain, and the PYTHONPATH that brings their handlers into a container


CLIENT, INIT, ENGINE, WORKER = 10, 20, 30, 40
BOTH = {signal.SIGUSR1, signal.SIGUSR2}
# {pid: signals that it catches}; the client of a container engine catches all, a worker perhaps one
CAUGHT = {CLIENT: BOTH, INIT: set(), WORKER: {signal.SIGUSR1}, ENGINE: BOTH}


@pytest.mark.parametrize(("launcher", "pids", "expected"), [
    ("container", [CLIENT, INIT, WORKER, ENGINE], [(ENGINE, signal.SIGUSR1)]),
    ("container", [CLIENT, INIT, WORKER], []),
    ("process", [CLIENT], [(CLIENT, signal.SIGUSR1)]),
])  # fmt: skip
def test_the_engine_and_not_the_client_of_its_container_gets_the_signal(monkeypatch, launcher, pids, expected):
    sent = []
    monkeypatch.setattr(processes, "contained", lambda pid: pid != CLIENT)
    monkeypatch.setattr(processes, "catches", lambda pid, sign: sign in CAUGHT[pid])
    monkeypatch.setattr(os, "kill", lambda *given: sent.append(given))
    one = Observed("server-0", plan_entry(8000, launcher=launcher), service=Status("up", CLIENT), pids=pids)
    assert apply._signal(one, signal.SIGUSR1) is bool(expected)
    assert sent == expected


@pytest.mark.parametrize(("number", "requests"), [("3.0", 3), ("1e999", None), ("1e", None)])
def test_the_requests_of_a_server_by_its_metrics(number, requests):
    assert ENGINES["vllm"].requests('vllm:num_requests_running{engine="0"} %s\n' % number) == requests


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root makes namespaces")
def test_a_process_of_another_pid_namespace_is_contained():
    program = "import sys; print(flush=True); sys.stdin.read()"
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as unshare:
        unshare.stdout.readline()
        inner = processes.with_children([unshare.pid]) - {unshare.pid}
        assert [processes.contained(pid) for pid in (os.getpid(), unshare.pid, *inner)] == [False, False, True]
        unshare.stdin.close()
    assert processes.contained(2**22 + 1) is False


@pytest.mark.parametrize(("ours", "image", "expected"), [
    (NodePaths("").engine_lib, {"PYTHONPATH": "/cann"}, NodePaths("").engine_lib + ":/cann"),
    (NodePaths("").engine_lib, {"PATH": "/bin"}, NodePaths("").engine_lib),
    ("/of/the/recipe", {"PYTHONPATH": "/cann"}, "/of/the/recipe"),
])  # fmt: skip
def test_an_image_keeps_its_pythonpath(monkeypatch, ours, image, expected):
    engine = mock.Mock(**{"find_image.return_value": {"reference": "sha256:1", "environment": image}})
    monkeypatch.setattr(containers, "engine_of_entry", lambda entry: engine)
    entry = plan_entry(8000, container=plan_entries.container(), command=["serve"],
                       launch=["docker", "run", "--env=PYTHONPATH=" + ours, "app:1", "serve"])  # fmt: skip
    assert "--env=PYTHONPATH=" + expected in containers.launch_command(entry, "")
