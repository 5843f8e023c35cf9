# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES


@pytest.mark.parametrize(
    ("engine", "flag", "value", "argv"),
    [
        ("vllm", "enforce-eager", True, ["--enforce-eager"]),
        ("vllm", "enforce-eager", False, []),
        ("vllm", "enforce-eager", None, []),
        ("vllm", "O", 3, ["-O", "3"]),
        ("vllm", "gpu-memory-utilization", 0.9, ["--gpu-memory-utilization", "0.9"]),
        # argparse takes several values after one flag, click the flag several times.
        ("vllm", "served-model-name", ["a", "b"], ["--served-model-name", "a", "b"]),
        ("trtllm", "custom_module_dirs", ["a", "b"], ["--custom_module_dirs", "a", "--custom_module_dirs", "b"]),
        ("vllm", "compilation-config", {"sizes": [1, 2]}, ["--compilation-config", '{"sizes": [1, 2]}']),
    ],
)  # fmt: skip
def test_flags(engine, flag, value, argv):
    assert ENGINES[engine].flag_argv(flag, value) == argv


@pytest.mark.parametrize(
    ("engine", "command", "arguments", "content", "expected"),
    [
        ("vllm", ["vllm", "--tp=2"], {"max_num_seqs": 4}, {}, {"max-num-seqs": 4, "tensor-parallel-size": "2"}),
        ("vllm", ["x"], {"max-num-seqs": 4}, {"max_num_seqs": 8}, {"max-num-seqs": 4}),
        ("vllm", ["x"], {"no-async": True, "eager": False, "gone": None}, {}, {"async": False}),
        ("trtllm", ["x"], {"tp_size": 4}, {"tensor_parallel_size": 8}, {"tensor-parallel-size": 8}),
        ("dynamo.trtllm", ["-m", "mine"], {"tp": 4}, {"tensor_parallel_size": 8},
         {"m": "mine", "tensor-parallel-size": 8}),
        ("dynamo.vllm", ["-m", "mine"], {"tp": 4}, {"tensor_parallel_size": 8},
         {"m": "mine", "tensor-parallel-size": 4}),
    ],
)  # fmt: skip
def test_what_an_engine_runs_with(engine, command, arguments, content, expected):
    name, _dot, backend = engine.partition(".")
    assert ENGINES[name].running(backend).effective(command, arguments, {"content": content}) == expected
