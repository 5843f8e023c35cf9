# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/using/nvidia-recipes.md shows the guides' own lines next to what is started; examples of nvidia.md work."""

from __future__ import annotations

import re

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides, tuning
from ansible_collections.inference.fleet.tests import doc_examples
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.guide_lines import by_key, variables

PAGE = doc_examples.USING / "nvidia-recipes.md"
# Dynamo has pages of its own, and so have models of other families (models/test_families.py).
NVIDIA = sorted(
    name
    for name, own in plans.OWN.items()
    if own["platform"] == "nvidia"
    and own["engine"] in ("trtllm", "vllm")
    and own["model"].get("family", "gpt_oss") == "gpt_oss"
)
# They have the lines of h100-vllm and h200-vllm on GPUs that the project's recipe does not name.
OTHER_GPUS = ("a100-vllm", "l40s-vllm", "rtx-pro-6000-vllm")
GUIDED = [name for name in NVIDIA if name not in OTHER_GPUS]

# The guides' own lines: the command, and the YAML file. Where the guide has a line for each number of GPUs, for 8.
QUICKSTART = """trtllm-serve openai/gpt-oss-120b --host 0.0.0.0 --port 8000 --backend pytorch --max_batch_size 720
    --max_num_tokens 16384 --kv_cache_free_gpu_memory_fraction 0.9 --tp_size 8 --ep_size 8 --trust_remote_code
    --extra_llm_api_options ${EXTRA_LLM_API_FILE}"""
SERVER = """mpirun -n 1 --oversubscribe --allow-run-as-root trtllm-serve openai/gpt-oss-120b --host 0.0.0.0 --port 8000
    --backend pytorch --tp_size 8 --ep_size 8 %s--trust_remote_code --extra_llm_api_options %s.yaml
    --kv_cache_free_gpu_memory_fraction %s"""
VLLM = "vllm serve openai/gpt-oss-120b --tensor-parallel-size 1 %s--max-cudagraph-capture-size 2048 " \
       "--max-num-batched-tokens 8192 --stream-interval 20"  # fmt: skip
LOW_YAML = """
enable_attention_dp: false
enable_mixed_sampler: true
cuda_graph_config:
    max_batch_size: 8
    enable_padding: true
moe_config:
    backend: %s
"""
THROUGHPUT_YAML = """
enable_attention_dp: true
cuda_graph_config:
    max_batch_size: 640
    enable_padding: true
stream_interval: 10
moe_config:
    backend: %s
"""
QUICKSTART_YAML = """
enable_attention_dp: %s
cuda_graph_config:
  enable_padding: true
  max_batch_size: 720
moe_config:
    backend: %s
stream_interval: 20
num_postprocess_workers: 4
"""
ATTENTION_DP = """
attention_dp_config:
    enable_balance: true
    batching_wait_iters: 50
    timeout_iters: 1
"""
PDL = {"TRTLLM_ENABLE_PDL": "1", "TRT_LLM_DISABLE_LOAD_WEIGHTS_IN_PARALLEL": "True"}
LOW, THROUGHPUT = SERVER % ("", "low_latency", "0.75"), SERVER % ("--max_batch_size 640 ", "max_throughput", "0.9")
# recipe: (the overlay that is the guide's version, its command, its YAML, its variables)
GUIDES = {
    "blackwell-quickstart-low-latency": ((), QUICKSTART, QUICKSTART_YAML % ("false", "TRTLLM"), {}),
    "blackwell-quickstart-max-throughput": ((), QUICKSTART, QUICKSTART_YAML % ("true", "CUTLASS") + ATTENTION_DP, {}),
    "b200-low-latency": (("guide",), LOW, LOW_YAML % "TRTLLM", PDL),
    "b200-max-throughput": (("guide",), THROUGHPUT, THROUGHPUT_YAML % "CUTLASS", PDL),
    "gb200-low-latency": (("guide",), LOW.replace("size 8", "size 4"), LOW_YAML % "TRTLLM", PDL),
    "gb200-max-throughput": (("guide",), THROUGHPUT.replace("size 8", "size 4"), THROUGHPUT_YAML % "CUTLASS", PDL),
    "h200-low-latency": (("guide",), LOW, LOW_YAML % "TRITON", PDL),
    "h200-max-throughput": (("guide",), THROUGHPUT, THROUGHPUT_YAML % "TRITON", PDL),
    "h100-vllm": (("synthetic-benchmark",), VLLM % "--no-enable-prefix-caching ", "", {}),
    "h200-vllm": (("synthetic-benchmark",), VLLM % "--no-enable-prefix-caching ", "", {}),
    "b200-vllm": (
        ("synthetic-benchmark",), VLLM % "--kv-cache-dtype fp8 --no-enable-prefix-caching ", "",
        {"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": "1"},
    ),
}  # fmt: skip


def lines_of(words, content, environment):
    """{flag, key of the YAML or variable: its line}; "" is the first argv words."""
    serve = next(number for number, word in enumerate(words) if word in ("trtllm-serve", "serve"))
    return {**by_key(words, content, serve + 2), **variables(environment)}


def started(name, overlays=()):
    entry = plans.entries_of(name, overlays=overlays)[0]
    return lines_of(entry["command"], (entry["config"] or {}).get("content") or {}, entry["environment"])


def guides(name):
    _overlays, command, content, environment = GUIDES[name]
    return lines_of(command.split(), yaml.safe_load(content) or {}, environment)


@pytest.mark.parametrize("name", GUIDED)
def test_the_page_shows_the_guides_lines_beside_ours(name):
    theirs, on_its_version, ours = guides(name), started(name, GUIDES[name][0]), started(name)
    rows = doc_examples.with_common(PAGE, name, theirs.values(), on_its_version.values(), ours.values())
    doc_examples.check_rows(rows, theirs, on_its_version, ours, renamed="VLLM_USE_FLASHINFER")


def options(launch):
    image = next(number for number, word in enumerate(launch) if word.startswith(("nvcr.io/", "docker.io/")))
    return {re.sub(r"=\d+$", "", word.partition("=")[0]) for word in launch[:image] if word.startswith("--")}


def test_the_page_shows_how_the_containers_are_started():
    rows = doc_examples.guide_rows(PAGE, "The containers")
    shown = {re.split("[= ]", row[1])[0] for row in rows if row[1].startswith("--")}
    launches = [plans.entries_of(name)[0]["launch"] for name in NVIDIA]
    assert shown == set().union(*map(options, launches))
    words = " ".join(plans.entries_of("b200-low-latency")[0]["launch"])
    for row in rows:
        if row[1].startswith("--") and "…" not in row[1] and "vLLM" not in row[2]:
            assert row[1] in words, row


EACH = [(name, kind, size) for name in NVIDIA for kind in plans.OWN[name]["needs"]["accelerators"]
        for size in (1, 2, 4, 8) if size <= plans.COUNTS.get(kind, 8) and (kind, size) != ("l40s", 1)]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "size"), EACH)
def test_each_recipe_plans_on_its_gpus(name, kind, size):
    layer = {"servers": {"server": {"devices": size}}}
    entries, _deployment, found, *_inputs = plans.planned(name, kind, layer)
    assert len(entries) == plans.COUNTS.get(kind, 8) // size
    assert [entry["devices"] for entry in entries][-1][-1] == plans.COUNTS.get(kind, 8) - 1
    for entry in entries:
        assert entry["container"]["devices"] == ["nvidia.com/gpu=%d" % number for number in entry["devices"]]
        assert entry["arguments"]["tensor-parallel-size"] == str(size)
    assert all(one["refusal"] is None and one["verdict"] in ("ok", "warning") for one in found)


ACCURACY = [(kind, size, effort, *limits) for kind, effort, limits in (
    ("tp", "", (1024, 32768)), ("tp", "-high", (720, 133120)), ("dep", "", (128, 32768)), ("dep", "-high", (2, 133120)),
) for size in (8, 4)]  # fmt: skip


@pytest.mark.parametrize(("kind", "size", "effort", "batch", "tokens"), ACCURACY)
def test_the_guides_settings_for_evaluations(kind, size, effort, batch, tokens):
    name = "blackwell-quickstart-" + ("low-latency" if kind == "tp" else "max-throughput")
    (entry, *_others), found, *_more = plans.planned(
        name, overlays=("current", "accuracy-%s%d%s" % (kind, size, effort))
    )
    given = entry["arguments"]
    assert (given["max-batch-size"], given["max-num-tokens"], len(entry["devices"])) == (batch, tokens, size)
    assert given["enable-attention-dp"] is (kind == "dep")
    assert entry["config"]["content"]["cuda_graph_config"]["max_batch_size"] == batch
    assert entry["container"]["image"].endswith(":1.2.1")
    efforts = ["high"] if effort else ["low", "medium"]
    expected = {"evals": ["gpqa", "aime25"], "efforts": efforts, "concurrency": found["benchmark"]["concurrency"]}
    assert expected.items() <= found["evaluate"].items()


@pytest.mark.parametrize("name", ["b200-low-latency", "h200-max-throughput"])
def test_every_measured_setting_is_one_that_the_release_takes(name):
    base, seen = plans.resolved(name), 0
    kind = base["needs"]["accelerators"][0]
    for point in tuning.points(plans.OWN[name]["tuning"]):
        if point["accelerator"] == kind:
            tuned = overrides.apply(base, tuning.override_of(point, point))
            tuned = overrides.apply(tuned, {"servers": {"server": {"devices": point["devices"]}}})
            assert {one["refusal"] for one in plans.planned(tuned).capacity} == {None}
            seen += 1
    assert seen > 60


@pytest.mark.parametrize(
    ("inventory", "servers"), [("b200_trtllm", 1), ("h200_trtllm", 1), ("h200_vllm", 8)]
)  # fmt: skip
def test_the_inventories_plan(inventory, servers):
    folder = doc_examples.USING.parents[1] / "inventories" / inventory
    hosts = yaml.safe_load((folder / "hosts.yml").read_text())["nvidia"]["hosts"]
    variables = yaml.safe_load((folder / "group_vars" / "nvidia.yml").read_text())
    found = fleet.plan_fleet(list(hosts), lambda host: {**variables, **hosts[host]}, deploys=True)
    assert [len(item["servers"]) for item in found.values()] == [servers]
    assert {one["verdict"] for item in found.values() for one in item["capacity"]} == {"ok"}


@pytest.mark.parametrize("name", NVIDIA)
def test_the_page_lists_each_overlay(name):
    section = PAGE.read_text(encoding="utf-8").partition("\n## Overlays\n")[2].partition("\n## ")[0]
    assert {overlay for overlay in plans.OWN[name]["overlays"] if "`%s`" % overlay not in section} == set()
