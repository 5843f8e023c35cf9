# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiled artifacts as the guard keeps them: one compilation, and no half of one is ever loaded."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import types

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files, processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import artifacts
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import order
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import state as guard_state
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.tests.unit.engines import guard_place, small_node
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import compile_cache

# Compiles unless model.pt is whole: one half at once, the other when the log has a neighbour LOG.go; then answers.
ENGINE = """
import http.server, os, sys, time
log, path = sys.argv[2], os.path.join(os.environ["NEURON_COMPILED_ARTIFACTS"], "model.pt")
if not (os.path.exists(path) and open(path).read() == "onetwo"):
    open(log, "a").write(os.environ["INFERENCE_FLEET_SERVER"] + "\\n")
    with open(path, "w") as stream:
        stream.write("one")
        stream.flush()
        while not os.path.exists(log + ".go"):
            time.sleep(0.02)
        stream.write("two")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


@pytest.fixture(scope="module", autouse=True)
def watchdog(tmp_path_factory):
    with small_node.watched(tmp_path_factory.getbasetemp()):
        yield


class Fleet(guard_place.Place):
    """Guards of servers that share one artifact, run as a service manager runs them."""

    def __init__(self, folder):
        super().__init__(folder)
        self.artifact, self.log = folder / "artifacts" / "k1", folder / "compiles"
        self.processes = []

    def begin(self, name, after=(), leaders=(), **changes):
        entry = self.node.entry(name)
        entry = small_node.rehash(
            entry, start={"after": list(after)}, hooks=compile_cache("f1", leaders),
            command=small_node.python_command("-c", ENGINE, str(entry["port"]), str(self.log)),
            environment={"NEURON_COMPILED_ARTIFACTS": str(self.artifact)},
            directories=dict(entry["directories"], artifact=str(self.artifact)),
            health={"path": "/", "budget_s": 600, "poll_s": 0.1}, **changes,
        )  # fmt: skip
        self.processes.append(self.start(entry, "--restart-delay", "0.1"))
        return entry

    def finish(self):
        """Compilations end."""
        pathlib.Path("%s.go" % self.log).touch()

    def healthy(self, entry):
        return small_node.wait_until(lambda: order.is_healthy(entry, ""), 60, "%s answers" % entry["name"])

    def compiles(self):
        return self.log.read_text().split() if self.log.exists() else []

    def record(self):
        return files.readable_json(str(self.artifact / artifacts.RECORD)) or {}

    def completed(self):
        return small_node.wait_until(lambda: self.record().get("state") == "complete" and self.record())

    def state_of(self, name):
        return self.state({"name": name})


@pytest.fixture
def fleet(tmp_path):
    fleet = Fleet(tmp_path)
    yield fleet
    for process in fleet.processes:
        if process.poll() is None:  # as a node that loses its power
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
    fleet.node.end()


def test_one_compiles_and_the_other_waits_without_any_order(fleet):
    weights = checkpoint(fleet.folder / "w")
    first = fleet.begin("server-0", weights=[weights])
    small_node.wait_until(lambda: fleet.compiles() == ["server-0"])
    assert fleet.state_of("server-0")["artifact"] == "compiles"
    assert fleet.state_of("server-0")["weights"] == {weights: guard_state.weights_note(weights)}
    second = fleet.begin("server-1")
    small_node.wait_until(lambda: fleet.state_of("server-1").get("phase") == "waiting for server-0")
    assert fleet.state_of("server-1")["reason"] == "it compiles"
    fleet.finish()
    fleet.healthy(first)
    fleet.healthy(second)
    assert fleet.compiles() == ["server-0"]
    assert fleet.state_of("server-1")["artifact"] == "loads"
    record = fleet.completed()
    assert (record["server"], record["files"]) == ("server-0", {"model.pt": 6})
    assert (record["schema"], record["key"]) == (1, "f1")  # the plan's, not the folder's name
    assert record["weights"] == [artifacts.weights_identity(weights)]


def test_what_a_killed_compilation_left_is_cleared(fleet):
    """The process that watches a compilation is nobody's child, and ends with the engine."""
    fleet.begin("server-0")
    (process,) = fleet.processes
    small_node.wait_until(fleet.compiles)
    (watch,) = set(processes.marked_processes(fleet.node.root)["server-0"]) - {process.pid}
    assert processes.process(watch).parent != process.pid
    process.kill()
    process.wait(60)
    small_node.wait_until(lambda: not small_node.alive(watch), what="the watch ends")
    assert artifacts.state_of(str(fleet.artifact))[0] == "abandoned"
    (fleet.artifact / "left").mkdir()
    (fleet.artifact / "left" / "over").write_text("x")
    fleet.finish()
    fleet.healthy(fleet.begin("server-1"))
    assert fleet.completed()["files"] == {"model.pt": 6}
    assert fleet.compiles() == ["server-0", "server-1"]


def test_a_compiler_of_another_host_is_believed_for_its_budget(tmp_path, monkeypatch):
    (tmp_path / "machine-id").write_text("here\n")
    monkeypatch.setattr(artifacts, "MACHINE_ID", str(tmp_path / "machine-id"))
    record = artifacts.compiling_record({"name": "server-3", "health": {"budget_s": 60}})
    past = record["since"] - 61
    for changes, state in (
        ({}, "compiling"), ({"boot": "another"}, "abandoned"), ({"host": "node-2", "pid": 1, "ticks": 0}, "compiling"),
        ({"host": "node-2", "since": past}, "abandoned"),
        ({"machine": "there"}, "compiling"), ({"machine": "there", "since": past}, "abandoned"),  # with the same name
        ({"since": past}, "compiling"),
    ):  # fmt: skip
        files.write_json(str(tmp_path / artifacts.RECORD), {**record, **changes})
        assert artifacts.state_of(str(tmp_path))[0] == state, changes


def test_a_record_on_a_full_disk_is_written_again_and_that_of_another_host_never(tmp_path, monkeypatch):
    path = str(tmp_path)
    entry = {"name": "server-0", "environment": {}, "health": {"budget_s": 60}}
    begun = artifacts.compiling_record(entry)
    files.write_json(os.path.join(path, artifacts.RECORD), begun)
    (tmp_path / "model.pt").write_text("x")
    monkeypatch.setattr(artifacts, "is_healthy", lambda *_unused: True)
    monkeypatch.setattr(artifacts, "AGAIN_S", 0)
    options = types.SimpleNamespace(state="", secrets="")

    def full(*_unused):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(artifacts, "write_json", full)
        assert not artifacts._completed(path, entry, options, begun)
    assert artifacts.state_of(path)[0] == "compiling"
    assert artifacts._completed(path, entry, options, begun)
    assert artifacts.state_of(path)[0] == "complete"
    theirs = dict(begun, host="node-2", server="server-3")  # it considered this compilation dead
    files.write_json(os.path.join(path, artifacts.RECORD), theirs)
    assert artifacts._completed(path, entry, options, begun)
    assert files.readable_json(os.path.join(path, artifacts.RECORD)) == theirs


def test_a_cache_beside_the_compiled_graphs_is_no_part_of_the_artifact(tmp_path):
    for name in ("cache/modelinfo.json", "cache/neuron/compile_cache/a1/graph.neff", artifacts.RECORD, "x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("12")
    entry = {"environment": {"VLLM_CACHE_ROOT": str(tmp_path / "cache")}}
    assert artifacts.files_of(str(tmp_path), entry) == {"cache/neuron/compile_cache/a1/graph.neff": 2, "x": 2}


def test_a_follower_of_a_whole_artifact_needs_no_leader(fleet):
    """server-0 is not even there; a server that the recipe itself puts before this one is waited for."""
    fleet.artifact.mkdir(parents=True)
    (fleet.artifact / "model.pt").write_text("onetwo")
    (fleet.artifact / "notes").write_text("mine")
    fleet.healthy(fleet.begin("server-1", after=["server-0"], leaders=["server-0"]))
    assert artifacts.state_of(str(fleet.artifact))[0] == "foreign"  # somebody else's is never cleared
    assert (fleet.state_of("server-1")["artifact"], fleet.compiles()) == ("loads", [])
    fleet.begin("server-3", after=["server-0", "front-0"], leaders=["server-0"])
    small_node.wait_until(lambda: fleet.state_of("server-3").get("phase") == "waiting for front-0")
    assert fleet.state_of("server-3")["artifact"] is None


def checkpoint(folder, shards=("one", "two"), manifest=True, config="{}"):
    """A folder that looks like weights, with the manifest that the collection writes."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config)
    (folder / "README.md").write_text("about")
    for number, text in enumerate(shards):
        (folder / ("model-%d.safetensors" % number)).write_text(text)
    if manifest:
        names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
        records = {name: {"size": (folder / name).stat().st_size, "sha256": digest} for name, digest in
                   weight_manifest.hash_files(str(folder), names).items()}  # fmt: skip
        weight_manifest.write_manifest(str(folder), records, repo="r", revision=None, source="path")
    return str(folder)


def environment(folder, **versions):
    """A virtual environment in which these packages are installed; its interpreter."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    if not (folder / "bin" / "python").exists():
        (folder / "bin" / "python").symlink_to(sys.executable)
    packages = folder / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    for old in packages.iterdir():
        old.rmdir()
    for name, version in versions.items():
        (packages / ("%s-%s.dist-info" % (name, version))).mkdir()
    (packages / "requests-2.0.dist-info").mkdir()
    return str(folder / "bin" / "python")


def test_what_weights_are(tmp_path):
    one = artifacts.weights_identity(checkpoint(tmp_path / "a"))
    assert artifacts.weights_identity(checkpoint(tmp_path / "b")) == one
    plain = artifacts.weights_identity(checkpoint(tmp_path / "c", manifest=False))
    assert plain == {"files": one["files"], "content": None}
    changed = artifacts.weights_identity(checkpoint(tmp_path / "b", shards=("one", "TWO")))
    assert (changed["files"] == one["files"], changed["content"] == one["content"]) == (True, False)
    assert artifacts.weights_identity(checkpoint(tmp_path / "b", shards=("one", "three")))["files"] != one["files"]
    assert artifacts.weights_identity(checkpoint(tmp_path / "b", config='{"a": 1}'))["files"] != one["files"]
    (tmp_path / "a" / "README.md").write_text("more")
    assert artifacts.weights_identity(str(tmp_path / "a")) == one
    assert artifacts.weights_identity(str(tmp_path / "nothing")) is None
    (tmp_path / "a" / weight_manifest.MANIFEST).write_text('{"files": ["x"]}')
    assert guard_state.weights_note(str(tmp_path / "a")) is None


def test_an_artifact_for_anything_else_does_not_fit(tmp_path):
    python = environment(tmp_path / "v", vllm="0.11.1", neuronx_cc="2.21")
    path = checkpoint(tmp_path / "w")
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    entry = {"name": "server-0", "launcher": "process", "command": [python], "hooks": compile_cache("f1", ["leader"]),
             "environment": {"NEURON_COMPILED_ARTIFACTS": str(artifact)}, "directories": {"artifact": str(artifact)},
             "weights": [path, str(tmp_path / "draft")], "health": {"budget_s": 60}}  # fmt: skip
    record = artifacts.compiling_record(entry)
    files.write_json(str(artifact / artifacts.RECORD), dict(record, state="complete"))
    assert artifacts.StartHook.of(entry, None).replaces("leader")
    assert record["versions"] == {"vllm": "0.11.1", "neuronx-cc": "2.21"}
    assert (record["weights"][1], artifacts.misfit_of(entry, record)) == (None, None)
    assert "key f1" in artifacts.misfit_of(dict(entry, hooks=compile_cache("f2")), record)
    environment(tmp_path / "v", vllm="0.11.1", neuronx_cc="2.22", vllm_neuron="0.2")
    assert "neuronx-cc 2.21, vllm-neuron none" in artifacts.misfit_of(entry, record)
    assert artifacts.misfit_of(entry, dict(record, versions={})) is None
    assert artifacts.misfit_of(entry, {"key": "f1"}) is None  # of a version that wrote none
    environment(tmp_path / "v", vllm="0.11.1", neuronx_cc="2.21")
    checkpoint(tmp_path / "w", shards=("one", "TWO"))
    assert record["weights"][0]["content"][:12] in artifacts.misfit_of(entry, record)
    assert artifacts.assess(str(artifact), entry)[0] == "unfit"  # it is cleared as an abandoned one is
    assert not artifacts.StartHook.of(entry, None).replaces("leader")  # which compiles first, as on an empty node
    (tmp_path / "w" / guard_state.WEIGHT_MANIFEST).unlink()
    assert artifacts.misfit_of(entry, record) is None  # the same sizes, and nothing else is known
    checkpoint(tmp_path / "w", shards=("one", "three"), manifest=False)
    assert record["weights"][0]["files"][:12] in artifacts.misfit_of(entry, record)
