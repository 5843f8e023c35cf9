# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import (
    platform as neuron_preflight,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import preflight
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.neuron_node import NeuronNode, records
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.weights import (
    test_draft_heads as heads,
)

SCRIPT = """#!/bin/bash
# serves on port 8000 by itself
export NEURON_RT_VISIBLE_CORES=${NEURON_RT_VISIBLE_CORES:-0-7}
exec vllm serve --model m --port 8000 "$@"
"""


class Node:
    """A node of four chips below a folder: its neuron-ls, image's environment, checkpoint, draft, and its plan."""

    def __init__(self, folder):
        self.folder = folder
        self.home = folder / "image"
        self.driver = "2.25.4.0"
        self.packages = None
        self.root = str(folder / "root")
        self.system, self.records = NeuronNode(folder), records("trn3-4")
        self.venv = self.home / "venv"
        (self.venv / "lib/python3.11/site-packages/vllm").mkdir(parents=True)
        (self.venv / "bin").mkdir()
        (self.venv / "bin/vllm").write_text("#!/bin/sh\n")
        (self.venv / "bin/vllm").chmod(0o755)
        self.model = self.home / "models" / "gpt-oss-120b"
        heads.write(self.model, {"x": [1]}, model_type="gpt_oss", quantization_config={"quant_method": "mxfp4"})
        (self.model / "tokenizer.json").write_text("{}")
        self.draft = self.home / "models" / "eagle3"
        heads.write(self.draft)
        self.script = self.home / "start_vllm_server.sh"
        self.script.write_text(SCRIPT)

    def layers(self, name):
        layers = {
            "model": {"path": str(self.model), "id": "m", "draft": {"path": str(self.draft)}},
            "venv": {"path": str(self.venv)},
            "servers": {"server": {"port": 18460}},
        }
        if name == "trn3-start-script":
            layers["command"] = ["/bin/bash", str(self.script)]
        return layers

    def plan(self, name="trn3-eagle3", **override):
        layer = overrides.apply(self.layers(name), override)
        hardware = {"accelerator": "trainium3", "count": 4, "cores": 8, "lnc": 2, "memory_gib": 144}
        found = plans.planned(name, hardware, layer, root=self.root)
        return found.entries, found.deployment, hardware

    def check(self, name="trn3-eagle3", only=(), change=None, **override):
        entries, deployment, hardware = self.plan(name, **override)
        self.system.lists(self.records)
        self.system.loads(self.driver)
        return preflight.preflight(
            root=self.root, servers=entries, only=list(only), hardware={**hardware, **(change or {})},
            needs=deployment["needs"], platform="neuron", models=deployment["models"], venvs=deployment["venvs"],
            sysroot=str(self.folder), installs=self.packages,
        )  # fmt: skip

    def problems(self, *args, **kwargs):
        error = plans.error(self.check, *args, **kwargs)
        return [(item["check"], item["message"]) for item in error.details["problems"]]


PACKAGES = {
    "aws-neuronx-dkms": {"version": "2.30.2.0", "least": "2.25"},
    "aws-neuronx-runtime-lib": {"version": "2.34.10.0", "least": "2.29"},
}


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.mark.parametrize("name", ["trn3-eagle3", "trn3-start-script"])
def test_a_node_that_can_take_its_plan(node, name):
    result = node.check(name)
    assert result["problems"] == []
    assert result["accelerators"]["lnc"] == 2
    assert len(result["accelerators"]["devices"]) == 4


@pytest.fixture
def holder():
    """holder(root=None, server=None, **variables): the pid of a process that lives, as a fleet's server if asked."""
    children = []

    def start(root=None, server=None, **variables):
        environment = {**os.environ, **variables}
        if server:
            environment.update({processes.MARKER_ROOT: root, processes.MARKER_SERVER: server})
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()", "training"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        child.stdout.readline()
        children.append(child)
        return child.pid

    yield start
    for child in children:
        child.communicate()


def test_cores_that_another_process_holds(node, holder):
    pid = holder()
    for number in (1, 2):
        node.records[number]["neuron_processes"] = [{"pid": pid, "command": "python -c imp..."}]
    ((check, message),) = node.problems()
    assert check == "cores" and message.startswith("pid %d (%s -c import" % (pid, sys.executable))
    assert "holds Neuron device 1-2 (cores 4-11), assigned to server-0, server-1." in message
    node.records[2]["neuron_processes"] = []
    assert node.check(only=["server-1"])["problems"] == []
    assert "holds Neuron device 1 (cores 4-7), assigned to server-0." in node.problems(only=["server-0"])[0][1]
    node.records[1]["neuron_processes"] = [{"pid": holder(node.root, "server-0"), "command": "vllm"}]
    assert node.check()["problems"] == [], "our own servers may hold their cores"
    other = holder("/elsewhere", "server-7")
    node.records[3]["neuron_processes"] = [{"pid": other, "command": "vllm"}]
    ((_check, message),) = node.problems()
    words = ", server server-7 below the root /elsewhere) holds Neuron device 3 (cores 12-15), assigned to server-1"
    assert message.startswith("pid %d (" % other) and words in message


HALF = {"servers": {"server": {"devices": 2, "count": 1}}}  # cores 0-1 of chip 0


@pytest.mark.parametrize(("variables", "cores"), [
    ({"NEURON_VISIBLE_DEVICES": "2,3"}, None),
    ({"NEURON_RT_VISIBLE_CORES": "2-3", "NEURON_VISIBLE_DEVICES": "0-3"}, "0-3"),
    ({"NEURON_RT_VISIBLE_CORES": "all of them"}, "0-3"),
    ({"NEURON_RT_VISIBLE_CORES": "40-43"}, "0-3"),  # of a container's own counting
])  # fmt: skip
def test_cores_count_and_not_chips_where_the_holder_tells(node, holder, variables, cores):
    pid = holder("/elsewhere", "server-7", **variables)
    node.records[0]["neuron_processes"] = [{"pid": pid, "command": "vllm"}]
    if cores is None:
        assert node.check(**HALF)["problems"] == []
    else:
        ((_check, message),) = node.problems(**HALF)
        assert ") holds Neuron device 0 (cores %s), assigned to server-0." % cores in message


def test_a_server_that_runs_as_planned_is_not_refused_for_who_shares_its_chip(node, holder):
    stranger, (entry,) = holder(), node.plan(**HALF)[0]
    node.records[0]["neuron_processes"] = [{"pid": stranger, "command": "training"}]
    own = holder(node.root, "server-0")
    state = {"name": "server-0", "phase": "running", "pid": own, "ticks": processes.process(own).ticks,
             "hash": entry["hash"]}  # fmt: skip
    path = pathlib.Path(NodePaths(node.root).server_state("server-0"))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**state, "hash": "another"}))
    assert len(node.problems(**HALF)) == 1, "it is to be restarted"
    path.write_text(json.dumps(state))
    assert node.check(**HALF)["problems"] == []
    path.write_text(json.dumps({**state, "phase": "waiting for server-1"}))
    assert len(node.problems(**HALF)) == 1, "it has no cores yet"


def test_a_chip_that_is_missing_between_others(node):
    node.records = [one for one in records("trn3-16") if one["neuron_device"] != 3]
    assert [check for check, _message in node.problems()] == ["hardware"]
    undeclared = {"count": None}
    ((check, message),) = node.problems(change=undeclared)
    assert check == "cores" and message.startswith("server-1: assigned cores 12-15")
    assert "0-2,4-15 have cores 0-11,16-63." in message
    assert node.check(only=["server-0"], change=undeclared)["problems"] == []


def test_a_driver_and_a_runtime_that_do_not_fit(node, monkeypatch):
    """It is the role's own rules that say whether this run mends that."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    node.driver = "2.30.2.0"
    node.system.installed({"aws-neuronx-dkms": "2.30.2.0", "aws-neuronx-runtime-lib": "2.20.0.0"})
    ((check, message),) = node.problems()
    assert check == "hardware" and "aws-neuronx-runtime-lib 2.20.0.0" in message, "nobody installs anything"
    node.packages = PACKAGES
    result = node.check()
    assert result["problems"] == []
    (warning,) = result["warnings"]
    assert warning == message + " This run installs aws-neuronx-runtime-lib 2.34.10.0."
    assert (result["accelerators"]["driver"], result["accelerators"]["runtime"]) == ("2.30.2.0", "2.20.0.0")
    # of an image whose runtime stays
    node.system.installed({"aws-neuronx-dkms": "2.30.2.0", "aws-neuronx-runtime-lib": "2.29.40.0"})
    ((check, message),) = node.problems()
    assert check == "packages" and "neuron_packages" in message


def test_an_environment_that_is_not_there_or_has_no_vllm(node, monkeypatch):
    monkeypatch.setattr(neuron_preflight, "_others", lambda path: "; this node has /opt/aws_neuronx_venv_x")
    other = str(node.home / "other")
    ((check, message),) = node.problems(venv={"path": other})
    assert check == "environment" and other in message and "/opt/aws_neuronx_venv_x" in message
    (node.venv / "bin/vllm").unlink()
    ((check, message),) = node.problems()
    assert check == "environment" and str(node.venv / "bin/vllm") in message
    (node.venv / "lib/python3.11/site-packages/vllm").rmdir()
    ((check, message),) = node.problems()
    assert check == "environment" and str(node.venv) in message and "/opt/aws_neuronx_venv_x" in message
    assert node.check(venv={"create": True})["problems"] == []  # made later


@pytest.mark.parametrize("line", [
    "NEURON_RT_VISIBLE_CORES=0-7 NEURON_X=1 \\", "x=1; export NEURON_COMPILED_ARTIFACTS=/tmp/a",
])  # fmt: skip
def test_a_script_that_sets_what_the_plan_sets(node, line):
    node.script.write_text(SCRIPT.replace("export NEURON_RT_VISIBLE_CORES=${NEURON_RT_VISIBLE_CORES:-0-7}", line))
    name = next(name for name in neuron_preflight.PLANNED if name in line)
    ((check, message),) = node.problems("trn3-start-script")
    assert check == "script"
    assert message.startswith("%s line 3 sets %s itself (%s)" % (node.script, name, line))


def test_a_script_that_ignores_its_arguments_or_is_missing(node):
    node.script.write_text("exec vllm serve --port 8000  # $@\n")
    ((check, message),) = node.problems("trn3-start-script")
    assert check == "script" and "ignores its arguments" in message
    override = {"arguments": {"host": None, "port": None}, "environment": {"PORT": "${port}", "HOST": "${bind}"}}
    node.script.write_text('exec vllm serve --port "${PORT:-8000}" --host $HOST\n')
    assert node.check("trn3-start-script", **override)["problems"] == []
    node.script.unlink()
    ((check, message),) = node.problems("trn3-start-script")
    assert check == "script" and str(node.script) in message
    entry = node.plan("trn3-start-script")[0][0]  # in an image it is not looked for
    assert list(neuron_preflight.script_faults({"server-0": dict(entry, container={"image": "x"})})) == []


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [({"d2t": [96]}, {}, ["layer d2t"]), ({}, {"hidden_size": 64}, ["hidden_size is 64", "is 32"])],
)
def test_a_draft_of_another_architecture(node, tensors, config, words):
    heads.write(node.draft, {**heads.names(), **tensors}, **config)
    ((check, message),) = node.problems()
    assert check == "draft" and [word for word in (str(node.draft), *words) if word not in message] == []
