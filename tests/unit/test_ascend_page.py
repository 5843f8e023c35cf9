# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/using/ascend.md shows every mount, device, variable and argument of the tutorial beside what is started."""

from __future__ import annotations

import re

import pytest
from ansible_collections.inference.fleet.tests import doc_examples
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.guide_lines import by_key

PAGE = (doc_examples.USING / "ascend.md").read_text(encoding="utf-8")
# The tutorial's own lines: its container, and the script that is started inside.
CONTAINER = [
    "--rm", "--name vllm-ascend-env", "--shm-size=1g", "--net=host",
    *("--device /dev/davinci%d" % number for number in range(8)),
    "--device /dev/davinci_manager", "--device /dev/devmm_svm", "--device /dev/hisi_hdc",
    "-v /usr/local/dcmi:/usr/local/dcmi",
    "-v /usr/local/Ascend/driver/tools/hccn_tool:/usr/local/Ascend/driver/tools/hccn_tool",
    "-v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi",
    "-v /usr/local/Ascend/driver/lib64/:/usr/local/Ascend/driver/lib64/",
    "-v /usr/local/Ascend/driver/version.info:/usr/local/Ascend/driver/version.info",
    "-v /etc/ascend_install.info:/etc/ascend_install.info", "-v /root/.cache:/root/.cache",
    "-it", "quay.io/ascend/vllm-ascend:v0.20.2rc1-a3", "bash",
]  # fmt: skip
VARIABLES = [
    "VLLM_USE_MODELSCOPE=True", "HCCL_OP_EXPANSION_MODE=AIV", "HCCL_BUFFSIZE=512", "NPU_MEMORY_FRACTION=0.95",
    "ASCEND_RT_VISIBLE_DEVICES=0,1,2,3", "OMP_PROC_BIND=false", "VLLM_USE_V1=1", "TASK_QUEUE_ENABLE=1",
    "OMP_NUM_THREADS=1", "TIKTOKEN_ENCODINGS_BASE=/${PWD}/tiktoken_encodings",
]  # fmt: skip
SERVE = """vllm serve unsloth/gpt-oss-120b-BF16 --served-model-name gpt-oss-120b-bf16 --port 8000 --trust-remote-code
    --max-num-seqs 4 --gpu-memory-utilization 0.90 --tensor-parallel-size 4 --max-model-len 4096
    --max-num-batched-tokens 4096 --enable-expert-parallel --compilation-config
    {"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[1,2,3,4]}"""


def entry(overlays=()):
    return plans.entries_of("ascend-a3", overlays=overlays)[0]


def launch_lines():
    """The words of `docker run` up to the image, without the engine's variables, which the other table has."""
    launch = entry()["launch"]
    image = launch.index(entry()["container"]["image"])
    own = ["--env=%s=%s" % pair for pair in entry()["environment"].items()]
    return [word for word in launch[2 : image + 1] if word not in own]


def lines_of(words, variables):
    """{flag or variable: its line}; "" is `vllm serve MODEL`."""
    return {**by_key(words, {}, 3), **{line.partition("=")[0]: line for line in variables}}


def started(overlays=()):
    one = entry(overlays)
    return lines_of(one["command"], ["%s=%s" % pair for pair in one["environment"].items()])


def as_ours(line):
    """A line of the tutorial's `docker run` in the form that ours has."""
    if line.startswith("-v "):
        source, _colon, target = line[3:].partition(":")
        return "--mount=type=bind,source=%s,target=%s,readonly" % (source.rstrip("/"), target.rstrip("/"))
    return line.replace("--net=", "--network=").replace("--device ", "--device=").replace("--name ", "--name=")


def test_the_container_is_started_as_the_page_says():
    rows = doc_examples.guide_rows(doc_examples.USING / "ascend.md", "The container")
    assert sorted(as_ours(row[0]) for row in rows if row[0]) == sorted(map(as_ours, CONTAINER))
    assert sorted(row[1] for row in rows if row[1]) == sorted(launch_lines())
    for theirs, ours, why in rows:
        same = as_ours(theirs) == ours
        assert why and why.startswith("the same") is same, (theirs, ours)


def test_the_engine_is_started_as_the_page_says():
    rows = doc_examples.guide_rows(doc_examples.USING / "ascend.md", "The engine")
    doc_examples.check_rows(rows, lines_of(SERVE.split(), VARIABLES), started(("guide",)), started())


@pytest.mark.parametrize("kind", ["ascend-a2", "ascend-a3"])
def test_each_overlay_is_in_the_table_of_recipes(kind):
    section = PAGE.partition("| Recipe, overlay |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.MULTILINE)) == sorted(plans.OWN[kind]["overlays"])
