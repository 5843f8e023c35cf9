# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A configuration file is shown to the image's own reader before anything is stopped.

The image's Python is this machine's, with a strict stand-in for TensorRT-LLM's module (tests/nodes/trtllm_llmapi.py).
"""

from __future__ import annotations

import pathlib
import shutil

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.engines import trtllm
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.servers import config_check
from ansible_collections.inference.fleet.plugins.module_utils.servers.config_text import config_text
from ansible_collections.inference.fleet.plugins.module_utils.servers.model import Desired, Node
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
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

    def check(self, *contents, **changes):
        config_check.check_configs(self.node, [desired(content, **changes) for content in contents])

    @property
    def asked(self):
        return self.docker.called("run")


@pytest.fixture
def place(tmp_path, monkeypatch):
    return Place(tmp_path, monkeypatch)


def desired(content, name="server-0", **changes):
    container = {"engine": "docker", "address": None, "image": IMAGE, "digest": None, "devices": [], "flags": [],
                 "workdir": "/", "entrypoint": None, "user": None,
                 "mounts": [{"source": "/srv/a", "target": "/models/a", "read_only": True},
                            {"source": "/srv/work", "target": "/work", "read_only": False}]}  # fmt: skip
    config = {"path": "/etc/x.yml", "format": "yaml", "content": content} if content is not None else None
    entry = plan_entry(
        8000, name, engine="trtllm", launcher="container", config=config, weights=["/models/a"], devices=[0, 1],
        container=container, arguments={"tensor-parallel-size": "2", "max-batch-size": 8}, **changes,
    )  # fmt: skip
    return Desired(entry, config=config_text(config))


def test_what_the_image_takes_is_asked_once(place):
    place.check(FINE, FINE)
    assert len(place.asked) == 1
    place.check(FINE)
    assert len(place.asked) == 1
    place.check({**FINE, "stream_interval": 10})
    assert len(place.asked) == 2
    place.docker.write(images={IMAGE: image("b")})  # the tag is another image now
    place.check(FINE)
    assert len(place.asked) == 3
    assert place.node.warnings == []


def test_how_it_is_asked(place):
    """Without network and devices, and nothing that it could write to."""
    place.check(FINE)
    (call,) = place.asked
    options = call["argv"][2 : call["argv"].index("-c")]
    name = next(word for word in options if word.startswith("--name=inference-fleet-check-"))
    assert options == [
        "--rm", "--interactive", "--pull=never", "--network=none", name, "--volume=/srv/a:/models/a:ro",
        "--entrypoint=python3", IMAGE,
    ]  # fmt: skip
    assert call["argv"][-1] == '{"gpus_per_node": 2, "model": "gpt-oss-120b", "tensor_parallel_size": 2}'


def test_what_the_image_refuses(place):
    with pytest.raises(FleetError) as caught:
        place.check(FINE, WRONG)
    assert caught.value.message == (
        "Server 'server-0': trtllm, asked in the image nvcr.io/nvidia/tensorrt-llm/release:1.2.1, refuses its "
        "configuration: enable_mixed_sampler: Extra inputs are not permitted; moe_config.backend: Input should be "
        "'CUTLASS', 'CUTEDSL', 'WIDEEP', 'TRTLLM', 'DEEPGEMM', 'VANILLA' or 'TRITON'. Correct config.content or take "
        "an image that has it. Nothing was changed."
    )
    with pytest.raises(FleetError):
        place.check(WRONG)  # a refusal is not remembered


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("raise ImportError('libcuda.so.1: cannot open shared object file')",
         "ImportError: libcuda.so.1: cannot open shared object file"),
        ("TorchLlmArgs = None", "ImportError: cannot import name 'update_llm_args_with_extra_dict'"),
        ("def update_llm_args_with_extra_dict(): pass\nTorchLlmArgs = 1",
         "TypeError: update_llm_args_with_extra_dict()"),
        ("def update_llm_args_with_extra_dict(one, other): return {}\ndef TorchLlmArgs(): raise ValueError('\\n'.join("
         "['1 validation error for TorchLlmArgs', 'dtype', '  Found no NVIDIA driver on your system']))",
         "dtype: Found no NVIDIA driver on your system"),
        ("import os\nos._exit(3)", "no words"),
        ("import os\nprint('inference-fleet-verdict: nonsense', flush=True)\nos._exit(0)", "it printed no verdict"),
        ("import os\nos._exit(0)", "it printed no verdict"),
    ],
)  # fmt: skip
def test_an_image_that_cannot_say_is_no_verdict(place, module, words):
    place.module.write_text(module + "\n")
    place.check(WRONG)
    (warning,) = place.node.warnings
    assert warning.startswith(
        "server-0: whether trtllm takes its configuration could not be asked of the image %s (%s" % (IMAGE, words)
    )
    place.check(WRONG)
    assert len(place.asked) == 2  # it may be able to next time


def test_an_engine_that_does_not_answer_is_no_verdict(place):
    place.docker.write(errors={"*": "down"})
    place.check(FINE)
    assert "Cannot connect to the Docker daemon" in place.node.warnings[0]


def test_an_image_that_hangs(place, monkeypatch):
    monkeypatch.setattr(config_check, "CHECK_S", 0.5)
    place.module.write_text("import time\ntime.sleep(5)\n")
    place.check(FINE)
    assert "docker run did not end within 0 s" in place.node.warnings[0]
    (removed,) = place.docker.called("rm")
    assert "--name=" + removed["argv"][-1] in place.asked[0]["argv"]


def test_a_worker_of_dynamo_is_asked_as_its_engine_is(place):
    one = desired(FINE)
    one.entry.update(engine="dynamo", command=["python3", "-m", "dynamo.trtllm"])
    config_check.check_configs(place.node, [one])
    assert len(place.asked) == 1
    one.entry["command"] = ["python3", "-m", "dynamo.vllm"]
    config_check.check_configs(place.node, [one])
    assert len(place.asked) == 1


@pytest.mark.parametrize("changes", [{"engine": "vllm"}, {"launcher": "process", "container": None}])
def test_others_are_not_asked(place, changes):
    one = desired(FINE)
    one.entry.update(changes)
    config_check.check_configs(place.node, [one, desired(None)])
    assert place.asked == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("Invalid decoding type: X", "Invalid decoding type: X"),
        ("", "it says nothing"),
        ("2 validation errors for A\na.b\n  Field required [type=missing, input_value={}, input_type=dict]\n    For "
         "further information visit x\nc\n  Value error, no [type=value_error, input_value=1, input_type=int]",
         "a.b: Field required; c: Value error, no"),
    ],
)  # fmt: skip
def test_words_of_validation(words, line):
    assert trtllm.validation_words(words) == line
