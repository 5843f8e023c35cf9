# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command lines for Dynamo before its real argument parsers: the recipe's, the gpt-oss guide's, and NVIDIA's recipes'.

https://docs.nvidia.com/dynamo, "gpt-oss-120b with TensorRT-LLM"; ai-dynamo/dynamo, recipes/gpt-oss-120b.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import stays_registered, text_only
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import dynamo
from ansible_collections.inference.fleet.tests.e2e.conftest import JUDGE, said_by
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tools import engine_venv
from packaging.version import Version

RECORDER = Path(__file__).parents[2] / "tools" / "engine_flags.py"
# Environments with older releases, without any engine: their frontend and dynamo.trtllm can be loaded. To make one:
#   pip install --no-deps ai-dynamo==1.0.2 ai-dynamo-runtime==1.0.2
#   pip install uvloop 'pydantic>=2.10.6,<=2.13' packaging pyyaml tokenizers msgspec
OLDER = {"1.0.2": "FLEET_TEST_DYNAMO_VENV_1_0_2", "1.3.1": "FLEET_TEST_DYNAMO_VENV_1_3_1"}
RUNNERS = (stays_registered.MODULE, text_only.MODULE)  # run the module that is named after them
PARSERS = "--dyn-reasoning-parser gpt_oss --dyn-tool-call-parser harmony "
GUIDE = (
    "dynamo.trtllm --model-path /model --served-model-name openai/gpt-oss-120b --extra-engine-args /config/%s.yaml "
    + PARSERS + "--disaggregation-mode %s --max-num-tokens %d %s --free-gpu-memory-fraction 0.9 "
    "--tensor-parallel-size 4 --expert-parallel-size 4"
)  # fmt: skip
WORKER = (
    "dynamo.vllm --model openai/gpt-oss-120b --served-model-name openai/gpt-oss-120b --quantization mxfp4 "
    "--kv-cache-dtype fp8 --max-model-len 131072 --gpu-memory-utilization 0.9 --block-size 64 --tensor-parallel-size 1 "
    "--enable-chunked-prefill --enable-prefix-caching --async-scheduling --no-disable-hybrid-kv-cache-manager "
    "--enable-flashinfer-autotune --max-num-batched-tokens 32768 " + PARSERS + "--speculative-config "
    """'{"method": "eagle3", "model": "nvidia/gpt-oss-120b-Eagle3-v3", "num_speculative_tokens": 3}' """
)
DISAGGREGATED = (
    """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}' --disaggregation-mode """
)
LINES = {
    "guide frontend": "dynamo.frontend --router-mode round-robin --http-port 8000",
    "guide prefill": GUIDE % ("prefill", "prefill", 20000, "--max-batch-size 32"),
    "guide decode": GUIDE % ("decode", "decode", 16384, ""),
    "nvidia frontend": "dynamo.frontend --router-mode kv --router-kv-events --kv-cache-block-size 64 --http-port 8000",
    "nvidia aggregated": WORKER,
    "nvidia prefill": WORKER + DISAGGREGATED + "prefill",
    "nvidia decode": WORKER + DISAGGREGATED + "decode",
    "nvidia h200": WORKER + "--moe-backend=flashinfer_cutlass",
}
WRONG = {
    "unrecognized arguments: --tensor-paralel-size": WORKER + "--tensor-paralel-size 1",
    "argument --disaggregation-mode: invalid choice: 'both'": WORKER + "--disaggregation-mode both",
    "--router-mode": "dynamo.frontend --router-mode kvv",
}


@pytest.fixture(scope="module")
def verdicts():
    """{line: verdict} of one process of Dynamo's environment."""
    lines = {name: shlex.split(line) for name, line in {**LINES, **WRONG}.items()}
    for entry in plans.entries_of("cpu-dynamo", plans.CPU):
        lines[entry["name"]] = [word for word in entry["command"][2:] if word not in RUNNERS]
    return judged(engine_venv.ensure("cpu-dynamo"), lines)


def judged(venv, lines):
    return dict(zip(lines, said_by(venv, JUDGE, given=list(lines.values()))))


def release(fields, table, version):
    """{option: what it takes} of a table in a recorded release."""
    found = {name: fields.at(table, name, Version(version)) for name in fields.data["models"][table]}
    return {name: spec for name, spec in found.items() if spec}


def older(version):
    variable = OLDER[version]
    if variable not in os.environ:
        pytest.skip("%s names no environment with Dynamo %s" % (variable, version))
    return os.environ[variable]


@pytest.mark.parametrize("version", ["1.6.1", *OLDER])
def test_the_record_of_flags_is_what_the_parsers_know(version):
    """By it the plan refuses what they would."""
    venv = older(version) if version in OLDER else engine_venv.ensure("cpu-dynamo")
    found = said_by(venv, RECORDER, "dynamo", "--print")
    assert found["version"] == version
    for table, names in found["tables"].items():
        assert names == release(dynamo.ENGINE.flags, table, version), table


@pytest.mark.parametrize("version", OLDER)
def test_older_releases_take_the_guides_lines(version):
    """Those of vLLM are left out: dynamo.vllm cannot be loaded without a vLLM of the same month."""
    lines = {name: shlex.split(line) for name, line in {**LINES, **WRONG}.items() if not line.startswith("dynamo.vllm")}
    found = judged(older(version), lines)
    assert {name for name, verdict in found.items() if verdict["refused"]} == {"--router-mode"}


def test_every_line_is_taken(verdicts):
    taken = [name for name in verdicts if name not in WRONG]
    assert {name: verdicts[name]["refused"] for name in taken} == dict.fromkeys(taken)
    assert {"frontend-0", "prefill-0", "decode-0"} < set(taken)


@pytest.mark.parametrize("complaint", WRONG)
def test_a_mistake_is_refused(verdicts, complaint):
    """Otherwise the test above says nothing."""
    refused = verdicts[complaint]["refused"]
    assert refused is not None and complaint in refused
