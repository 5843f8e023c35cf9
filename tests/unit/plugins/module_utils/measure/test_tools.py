# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What benchmark tools wrote when they were run for real, read into one form; each one's way of hiding failures."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.tools import (
    aiperf,
    aisbench_perf,
    llmperf,
    trtllm_serving,
    vllm_bench,
    vllm_offline,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.tools.base import (
    Point,
    counted,
    scaled,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.tools.registry import TOOLS
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.points import points
from ansible_collections.inference.fleet.tests.unit.engines.recipe_profiles import GUIDES, planned
from ansible_collections.inference.fleet.tests.unit.engines.recipe_profiles import NAMES as RECIPES

SAMPLES = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "measure"
POINT = Point(
    tool="aiperf",
    model="gpt-oss",
    tokenizer="/srv/models/m",
    urls=("http://127.0.0.1:8000", "http://127.0.0.1:8001"),
    input_tokens=64,
    output_tokens=32,
    requests=8,
    concurrency=2,
    limits={"ttft_ms": 500, "tpot_ms": 20},
)


def read(tool, tmp_path, log="", **samples):
    """The Reading of a folder with these samples: {name in the folder: sample}."""
    for name, sample in samples.items():
        shutil.copy(SAMPLES / sample, tmp_path / name.replace("__", "."))
    return tool.read(POINT, str(tmp_path), log)


def test_aiperf_is_read_in_our_words(tmp_path):
    reading = read(aiperf, tmp_path, profile_export_aiperf__json="aiperf-profile_export_aiperf.json")
    assert (reading.completed, reading.failed, reading.errors) == (12, 0, [])
    assert reading.metrics["ttft_ms"]["mean"] == pytest.approx(50.78, abs=0.01)
    assert reading.metrics["tpot_ms"]["mean"] == pytest.approx(9.06, abs=0.01)
    assert reading.metrics["itl_ms"]["p99"] > reading.metrics["itl_ms"]["p50"] > 0
    assert reading.metrics["e2e_ms"]["mean"] == pytest.approx(250.13, abs=0.01)
    assert reading.metrics["output_tokens_per_s"] == pytest.approx(346.43, abs=0.01)
    assert reading.metrics["total_tokens_per_s"] == pytest.approx(1310.42, abs=0.01)
    assert reading.metrics["goodput_requests_per_s"] is None
    assert (reading.input_tokens, reading.output_tokens) == (64.0, 23.0)


def test_aiperf_ends_with_0_when_half_of_the_requests_failed(tmp_path):
    reading = read(aiperf, tmp_path, profile_export_aiperf__json="aiperf-half-failed.json")
    assert (reading.completed, reading.failed) == (4, 4)
    assert reading.errors == [
        {"message": "ConnectionRefusedError(111, \"Connect call failed ('127.0.0.1', 9699)\")", "count": 4}
    ]


def test_aiperf_writes_no_profile_when_all_requests_failed(tmp_path):
    # recorded: 24 requests against a server that answers 400 to each
    reading = read(aiperf, tmp_path, profile_export__jsonl="aiperf-all-failed.jsonl")
    assert (reading.completed, reading.failed) == (0, 24)
    (error,) = reading.errors
    assert error["count"] == 24 and "Unsupported parameter: nvext.ignore_eos" in error["message"]
    assert reading.metrics["output_tokens_per_s"] is None
    # a line that a killed writer left is no record, nor is one of the warm-up
    path = tmp_path / "profile_export.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines = [lines[0].replace('"profiling"', '"warmup"'), lines[1], "[]", "null", lines[2][:90]]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert (aiperf.read(POINT, str(tmp_path), "").failed, aiperf.done(POINT, str(tmp_path), "")) == (1, 1)


def test_what_is_no_number_was_not_measured():
    assert [scaled(one, 2) for one in (1.5, float("nan"), float("inf"), True, "3", None)] == [3.0] + [None] * 5


def test_vllm_bench_is_read_in_our_words(tmp_path):
    reading = read(vllm_bench, tmp_path, result__json="vllm-bench-serve.json")
    assert (reading.completed, reading.failed) == (8, 0)
    assert reading.metrics["ttft_ms"]["p95"] == pytest.approx(24.73, abs=0.01)
    assert reading.metrics["e2e_ms"]["mean"] == pytest.approx(226.42, abs=0.01)
    assert reading.metrics["output_tokens_per_s"] == pytest.approx(280.90, abs=0.01)
    assert (reading.input_tokens, reading.output_tokens) == (131.0, 32.0)


def test_vllm_bench_ends_with_0_and_zeros_when_all_failed(tmp_path):
    reading = read(vllm_bench, tmp_path, result__json="vllm-bench-serve-all-failed.json")
    assert (reading.completed, reading.failed) == (0, 2)
    assert reading.metrics["ttft_ms"]["mean"] is None and reading.metrics["requests_per_s"] is None


def test_a_tool_without_failed_is_counted_by_what_was_asked(tmp_path):
    (tmp_path / "result.json").write_text(
        '{"num_prompts": 8, "completed": 5, "request_goodput:": 1.5}', encoding="utf-8"
    )
    reading = trtllm_serving.read(POINT, str(tmp_path), "")
    assert (reading.completed, reading.failed) == (5, 3)
    assert reading.metrics["goodput_requests_per_s"] == 1.5


def test_llmperf_is_read_in_milliseconds(tmp_path):
    reading = read(
        llmperf,
        tmp_path,
        m_summary__json="llmperf-fixed.summary.json",
        m_individual_responses__json="llmperf-fixed.individual_responses.json",
    )
    assert (reading.completed, reading.failed, reading.errors) == (8, 0, [])
    assert reading.metrics["ttft_ms"]["mean"] == pytest.approx(40.5, abs=0.01)
    assert reading.metrics["tpot_ms"]["p90"] == pytest.approx(8.895, abs=0.001)
    assert reading.metrics["itl_ms"]["mean"] is None
    assert reading.metrics["requests_per_s"] == pytest.approx(2.862, abs=0.001)
    assert (reading.input_tokens, reading.output_tokens) == (100.0, 22.0)


def test_llmperf_whose_threads_died_wrote_nothing(tmp_path):
    log = "Exception in thread Thread-1:\nTraceback:\nZeroDivisionError: division by zero\n" * 2
    reading = llmperf.read(POINT, str(tmp_path), log)
    assert (reading.completed, reading.failed) == (0, 0)
    assert reading.errors == [{"message": "ZeroDivisionError: division by zero", "count": 2}]


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_nothing_written_is_nothing_answered(tool, tmp_path):
    reading = tool.read(POINT, str(tmp_path), "")
    assert reading.completed == 0
    (tmp_path / "result.json").write_text("[]", encoding="utf-8")
    assert tool.read(POINT, str(tmp_path), "").completed == 0


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_argv_is_strings_with_the_lengths(tool, tmp_path):
    argv = tool.command(POINT, ["tool"], str(tmp_path))
    assert argv[0] == "tool" and all(isinstance(word, str) for word in argv)
    if tool is aisbench_perf:  # its arguments are a file
        argv += re.findall(r"\w+", (tmp_path / "values.json").read_text(encoding="utf-8"))
    wanted = {"64", "32", "8", "2"}
    if tool.NAME == "vllm-latency":
        wanted = {"64", "32", "4", "2"}  # four batches of two are eight requests
    elif tool.NAME == "vllm-throughput":
        wanted = {"64", "32", "8"}
    assert wanted <= set(argv)
    assert any(str(tmp_path) in word for word in argv)


def test_aiperf_is_given_every_address_and_the_limits():
    argv = aiperf.command(POINT, ["aiperf"], "/out")
    assert argv.count("--url") == 2 and "round_robin" in argv
    assert argv[argv.index("--goodput") + 1] == "time_to_first_token:500 inter_token_latency:20"
    assert "ignore_eos:true" in argv and "--use-server-token-count" in argv


def test_progress_is_read_from_the_last_bar():
    assert counted("0%| | 0/8 [00:00<?]\r 25%|##| 2/8 [00:01<00:02]") == 2
    assert counted("loading") is None


def test_aisbench_is_read_in_our_words():
    reading = aisbench_perf.read(POINT, str(SAMPLES / "evals" / "aisbench" / "perf"), "")
    assert (reading.completed, reading.failed, reading.errors) == (8, 0, [])
    assert reading.metrics["ttft_ms"] == {"mean": 25.4, "p50": 25.7, "p90": 28.2, "p95": None, "p99": 30.7}
    said = [reading.metrics[key][one] for key, one in (("tpot_ms", "mean"), ("itl_ms", "p50"), ("e2e_ms", "p99"))]
    assert said == [7.3, 7.4, 259.2]
    assert (reading.metrics["output_tokens_per_s"], reading.metrics["requests_per_s"]) == (487.7871, 15.2433)
    assert (reading.input_tokens, reading.output_tokens) == (117.0, 32.0)


def test_aisbench_ends_with_0_when_half_of_the_requests_failed():
    reading = aisbench_perf.read(POINT, str(SAMPLES / "evals" / "aisbench" / "perf-half-failed"), "")
    assert (reading.completed, reading.failed) == (4, 4)
    assert reading.errors == [{"message": "Internal Server Error", "count": 4}]
    assert reading.metrics["e2e_ms"]["p95"] == 189.1  # which it tells when it is asked to


def test_what_aisbench_wrote_and_cannot_be_read_is_said(tmp_path):
    folder = tmp_path / "20261122_120000" / "performances" / "fleet"
    folder.mkdir(parents=True)
    (folder / "synthetic.csv").write_text("Performance Parameters,Stage\n", encoding="utf-8")
    reading = aisbench_perf.read(POINT, str(tmp_path), "")
    assert reading.completed == 0
    assert reading.errors == [{"message": "its files cannot be read: KeyError('Success Requests')", "count": 8}]


def test_what_aisbench_runs_is_a_configuration_with_its_values_beside(tmp_path):
    point = dataclasses.replace(POINT, tool="aisbench", request_rate=2.5, sampling={"temperature": 0.5})
    argv = aisbench_perf.command(point, ["/v/bin/ais_bench"], str(tmp_path))
    assert argv == ["/v/bin/ais_bench", "%s/config.py" % tmp_path, "--mode", "perf", "--num-warmups", "1"]
    assert json.loads((tmp_path / "values.json").read_text(encoding="utf-8")) == {
        "work_dir": str(tmp_path),
        "model": {
            "path": "/srv/models/m", "model": "gpt-oss", "host_ip": "127.0.0.1", "host_port": 8000,
            "request_rate": 2.5, "max_out_len": 32, "batch_size": 2,
            "generation_kwargs": {"ignore_eos": True, "temperature": 0.5},
        },
        "dataset": {
            "Type": "tokenid", "RequestCount": 8, "TrustRemoteCode": False,
            "TokenIdConfig": {"RequestSize": 64, "PrefixLen": 0},
        },
    }  # fmt: skip
    compile((tmp_path / "config.py").read_text(encoding="utf-8"), "config.py", "exec")
    assert aisbench_perf.variables(point, str(tmp_path))["FLEET_AISBENCH"] == "%s/values.json" % tmp_path


def test_aisbench_writes_a_key_where_nobody_else_reads_it(tmp_path):
    argv = aisbench_perf.with_key([sys.executable, "-c", "open('params.py', 'w').write('sk-secret')"])
    subprocess.run(argv, env={"HOME": str(tmp_path)}, check=True)
    assert (tmp_path / "params.py").stat().st_mode & 0o777 == 0o600


def test_the_latency_of_batches_is_read_as_that_of_their_requests(tmp_path):
    shutil.copy(SAMPLES / "vllm-bench-latency.json", tmp_path / "result.json")
    point = dataclasses.replace(POINT, concurrency=4, requests=20)
    reading = vllm_offline.LATENCY.read(point, str(tmp_path), "")
    assert (reading.completed, reading.failed) == (20, 0)
    assert reading.metrics["e2e_ms"]["mean"] == pytest.approx(280.94, abs=0.01)
    assert reading.metrics["e2e_ms"]["p90"] == pytest.approx(292.33, abs=0.01)  # as the tool has it
    assert reading.metrics["e2e_ms"]["p99"] == pytest.approx(295.72, abs=0.01)
    assert reading.metrics["ttft_ms"]["mean"] is None
    assert reading.metrics["output_tokens_per_s"] == pytest.approx(4 * 32 / 0.28094, rel=1e-4)
    assert reading.metrics["output_tokens_per_s_per_user"] == pytest.approx(32 / 0.28094, rel=1e-4)
    assert vllm_offline.LATENCY.done(point, str(tmp_path), "Profiling iterations: 40%|#| 2/5 [00:01<") == 8


def test_throughput_is_read_without_latencies(tmp_path):
    shutil.copy(SAMPLES / "vllm-bench-throughput.json", tmp_path / "result.json")
    reading = vllm_offline.THROUGHPUT.read(dataclasses.replace(POINT, requests=16), str(tmp_path), "")
    assert reading.completed == 16 and reading.metrics["e2e_ms"]["mean"] is None
    assert reading.metrics["requests_per_s"] == pytest.approx(16.52, abs=0.01)
    assert reading.metrics["total_tokens_per_s"] == pytest.approx(1586.27, abs=0.01)
    assert reading.metrics["output_tokens_per_s"] == pytest.approx(16.52 * 32, abs=0.2)


def test_an_engine_of_a_tools_own_is_started_like_the_servers():
    arguments = {
        "model": "/m", "host": "127.0.0.1", "port": 8000, "served-model-name": "m", "tensor-parallel-size": 4,
        "tool-call-parser": "openai", "enable-auto-tool-choice": True, "enable-expert-parallel": True,
        "enable-prefix-caching": False, "compilation-config": {"cudagraph_mode": "FULL"}, "data-parallel-size": 2,
        "ssl-keyfile": "/k", "max-model-len": 4096, "m": "vllm.entrypoints.openai.api_server",
    }  # fmt: skip
    argv = vllm_offline.engine_arguments({"arguments": arguments}, ENGINES["vllm"], "/srv/m")
    assert argv == [
        "--model", "/srv/m", "--tensor-parallel-size", "4", "--enable-expert-parallel", "--no-enable-prefix-caching",
        "--compilation-config", '{"cudagraph_mode": "FULL"}', "--max-model-len", "4096",
    ]  # fmt: skip


def test_aiperf_gets_a_key_in_its_process_and_not_in_its_arguments(tmp_path):
    package = tmp_path / "aiperf"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cli.py").write_text("import sys\n\n\ndef app():\n    print(sys.argv)\n", encoding="utf-8")
    argv = aiperf.command(POINT, aiperf.with_key(["/v/bin/aiperf"]), "/out")
    assert argv[0] == "/v/bin/python" and argv[3] == "profile" and "sk-secret" not in " ".join(argv)
    done = subprocess.run(
        [sys.executable, *argv[1:5]],
        env={"OPENAI_API_KEY": "sk-secret", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['aiperf', 'profile', '--model', '--api-key', 'sk-secret']\n"


# What benchmark_serving.py has an argument for, and with how many values, at 0228a71 of its repository; no other here.
SERVING = {
    **dict.fromkeys(("ignore-eos", "random-ids", "tokenize-on-client", "save-result", "no-test-input"), 0),
    **dict.fromkeys((
        "backend", "base-url", "host", "port", "endpoint", "dataset-name", "max-concurrency", "model", "tokenizer",
        "num-prompts", "request-rate", "seed", "result-dir", "result-filename", "percentile-metrics",
        "metric-percentiles", "random-input-len", "random-output-len", "random-prefix-len", "top-p", "top-k", "min-p",
        "temperature", "served-model-name",
    ), 1),
    "goodput": 2,
}  # fmt: skip


def simulated_serving(argv):
    """{flag: values} as strictly as benchmark_serving, which is not here: it ends at a flag that it does not know."""
    found, words = {}, list(argv)
    while words:
        flag = words.pop(0)
        assert flag.startswith("--") and flag[2:] in SERVING, "unrecognized arguments: %s" % flag
        found[flag[2:]] = [words.pop(0) for _number in range(SERVING[flag[2:]])]
    assert found["backend"][0] in ("openai", "openai-chat") and {"model", "dataset-name"} <= set(found)
    return found


@pytest.mark.parametrize("name", [name for name in RECIPES if GUIDES[name][0] == "trtllm-bench"])
def test_the_sweeps_of_the_guides_are_what_a_simulated_benchmark_serving_takes(name):
    for one in points(*planned(name)):
        point = Point(**{**one["point"], "sampling": {"temperature": 0.5}, "limits": {"ttft_ms": 100, "tpot_ms": 9}})
        found = simulated_serving(trtllm_serving.command(point, [], "/out"))
        assert (found["random-input-len"], found["random-output-len"]) == (["1024"], ["1024"])
        assert found["num-prompts"] == [str(5 * point.concurrency)] and found["temperature"] == ["0.5"]
        assert {"random-ids", "tokenize-on-client", "ignore-eos"} <= set(found)
        assert found["goodput"] == ["ttft:100", "tpot:9"]


def test_llmperf_with_a_dead_address_of_two_says_which_half_failed(tmp_path):
    reading = read(
        llmperf,
        tmp_path,
        m_summary__json="llmperf-half-failed.summary.json",
        m_individual_responses__json="llmperf-half-failed.individual_responses.json",
    )
    assert reading.completed + reading.failed == 8 and reading.completed > 0
    assert sum(one["count"] for one in reading.errors) == reading.failed > 0
    assert all("Connection refused" in one["message"] for one in reading.errors)
    assert reading.metrics["ttft_ms"]["mean"] > 0 and reading.metrics["tpot_ms"]["mean"] > 0
