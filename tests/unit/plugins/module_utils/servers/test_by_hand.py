# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that were started by hand: recognised by their command, and written as a recipe."""

from __future__ import annotations

import subprocess

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import by_hand
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.imported import recipe_of
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.engines.scripted_docker import ScriptedEngine

ENTRY = plan_entry(
    8000, host="n1", model_id="tiny", weights=["/models/tiny"],
    arguments={"m": "vllm.entrypoints.openai.api_server", "model": "/models/tiny", "port": "8000", "max-num-seqs": 8,
               "enforce-eager": True},
)  # fmt: skip
IDENT = "a" * 64


class Commands:
    """Processes {pid: words} and containers {id: inspected}; control groups {pid: id}."""

    def __init__(self, monkeypatch):
        self.words, self.containers, self.groups = {}, {}, {}
        monkeypatch.setattr(by_hand.processes, "argv", lambda pid: self.words[pid])
        monkeypatch.setattr(by_hand, "read_text", lambda path: self.groups.get(int(path.split("/")[2]), ""))
        monkeypatch.setattr(by_hand.Engine, "container", lambda _self, ident: self.containers.get(ident))
        monkeypatch.setattr(by_hand.Engine, "call", lambda *_arguments: IDENT + "\n")

    def add(self, pid, command, image=None):
        self.words[pid] = command.split()
        if image:
            self.containers[IDENT] = {"State": {"Pid": pid}, "Config": {"Image": image}}

    def found(self, pid):
        return by_hand.recognise({"pid": pid, "user": "root", "command": "x", "server": None})


@pytest.fixture
def commands(monkeypatch):
    return Commands(monkeypatch)


@pytest.mark.parametrize(("command", "engine", "words"), [
    ("/usr/bin/python3 /venv/bin/vllm serve m --port 8000", "vllm", "m --port 8000"),
    ("python -m vllm.entrypoints.openai.api_server --model m", "vllm", "--model m"),
    ("python3 -m sglang.launch_server --model-path m", "sglang", "--model-path m"),
    ("trtllm-serve m --tp_size 2", "trtllm", "m --tp_size 2"),
    ("trtllm-serve serve m", "trtllm", "m"),
    ("vllm serve m --api-key k1 k3 --api-key=k2 --max-num-seqs 64 --hf-token x --tokenizer t", "vllm",
     "m --api-key ******** ******** --api-key=******** --max-num-seqs 64 --hf-token ******** --tokenizer t"),
])  # fmt: skip
def test_engines_are_recognised_by_their_commands(commands, command, engine, words):
    commands.add(7, command)
    found = commands.found(7)
    assert (found["engine"], " ".join(found["words"])) == (engine, words)
    assert (found["pid"], found["image"], found["container"]) == (7, None, None)


def test_other_programs_are_not(commands):
    commands.add(7, "nginx -g daemon")
    assert commands.found(7) is None
    assert commands.found(None) is None


def test_containers_are_recognised_by_a_published_port_and_by_the_control_group(commands):
    commands.add(9, "vllm serve m", image="vllm/vllm-openai:v0.10.0")
    commands.add(7, "/usr/bin/docker-proxy -proto tcp -host-port 8000 -container-port 8000")
    commands.add(8, "/usr/bin/conmon --api-version 1 -c %s" % IDENT)  # holds the ports that podman publishes
    commands.groups[8] = "0::/machine.slice/libpod-conmon-%s.scope" % IDENT
    commands.groups[9] = "0::/system.slice/docker-%s.scope" % IDENT
    for pid, kind in ((7, "docker"), (8, "podman"), (9, "docker")):
        found = commands.found(pid)
        assert (found["pid"], found["image"], found["container"]) == (9, "vllm/vllm-openai:v0.10.0", (kind, IDENT))


def test_a_container_is_ended_by_its_engine_and_not_started_again(tmp_path, monkeypatch):
    docker = ScriptedEngine(tmp_path, monkeypatch)
    docker.write(containers=[{"id": IDENT, "name": "old", "labels": {}, "state": "running"}])
    with subprocess.Popen(["/bin/sleep", "900"]) as left:
        assert by_hand.end({"container": ("docker", IDENT), "pid": left.pid})
    calls = [call["argv"][1:] for call in docker.called(IDENT)]
    assert calls == [["update", "--restart=no", IDENT], ["stop", "--time", "60", IDENT]]


def written(command, image=None, **entry):
    found = {"engine": "vllm", "words": by_hand.masked(command.split()), "image": image}
    text = recipe_of("mine", "cpu-tiny", {**ENTRY, **entry}, found)
    assert text.startswith("# Of server-0 on n1, ")
    return yaml.safe_load(text), text


BASE = {"schema": 1, "name": "mine", "extends": "cpu-tiny"}


@pytest.mark.parametrize(("command", "recipe"), [
    ("--model /models/tiny --served-model-name tiny --port 8000 --max-num-seqs 8 --enforce-eager", {}),
    ("/models/tiny --served-model-name tiny --max_num_seqs=16 --kv-cache-dtype fp8",
     {"arguments": {"kv-cache-dtype": "fp8", "max-num-seqs": 16, "enforce-eager": None}}),
    ("org/tiny --max-num-seqs 8 --enforce-eager --api-key k", {"model": {"id": "org/tiny"}}),
    ("org/other --max-num-seqs 8 --enforce-eager",
     {"model": {"repo": "org/other", "revision": None, "path": "${models}/other", "id": "org/other"}}),
    ("/data/m --served-model-name tiny --max-num-seqs 8 --enforce-eager",
     {"model": {"source": "path", "path": "/data/m"}}),
    ('--served-model-name tiny --max-num-seqs 8 --enforce-eager --hf-overrides {"a":1}',
     {"arguments": {"hf-overrides": {"a": 1}}}),
])  # fmt: skip
def test_a_recipe_has_what_differs(command, recipe):
    found, text = written(command)
    assert found == {**BASE, **recipe}
    assert ("fleet_api_key" in text) is ("--api-key" in command)


def test_the_image_of_a_container():
    planned = {"image": "r/vllm:1", "digest": None}
    same = "--served-model-name tiny --max-num-seqs 8 --enforce-eager"
    assert written(same, "r/vllm:1", container=planned)[0] == BASE
    assert written(same, "r/vllm:2@sha256:0", container=planned)[0]["container"] == {
        "image": "r/vllm:2",
        "digest": "sha256:0",
    }


def test_another_engine_needs_another_recipe():
    assert error(written, "m", engine="sglang").code == "recipe.other-engine"
