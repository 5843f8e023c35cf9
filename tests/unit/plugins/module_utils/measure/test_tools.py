# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded output of benchmark tools, read into one form, and the command of each tool."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import types

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.tools import benchmarks, llmperf_worker
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.tools.reading import (
    environment,
    expand,
    measured,
    number,
    progress,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.points import engine_arguments, tools

SAMPLES = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "measure"
POINT = {
    "tool": "aiperf", "spec": tools()["aiperf"], "model": "gpt-oss", "tokenizer": "/srv/models/m",
    "urls": ["http://127.0.0.1:8000", "http://127.0.0.1:8001"], "input_tokens": 64, "output_tokens": 32, "requests": 8,
    "concurrency": 2, "request_rate": None, "warmup_requests": 0, "seed": 0, "endpoint": "/v1/chat/completions",
    "ignore_eos": True, "server_token_count": True, "sampling": {}, "arguments": [],
    "limits": {"ttft_ms": 500, "tpot_ms": 20}, "timeout_s": 600,
}  # fmt: skip
AISBENCH = "20261122_120000"
DIED = "Exception in thread Thread-1:\nTraceback:\nZeroDivisionError: division by zero\n" * 2


def of(tool, **more):
    return {**POINT, "tool": tool, "spec": tools()[tool], **more}


def argv_of(point, folder):
    return expand(point["spec"]["template"], benchmarks.values(point, folder))


# Real output: (tool, {file: sample}, concurrency, requests, completed, failed, {metric: value}, [errors])
RECORDED = [
    ("aiperf", {"profile_export_aiperf.json": "aiperf-profile_export_aiperf.json"}, 2, 12, 12, 0,
     {"ttft_ms.mean": 50.784, "tpot_ms.mean": 9.0613, "itl_ms.p99": 50.631, "e2e_ms.mean": 250.13,
      "output_tokens_per_s": 346.43, "total_tokens_per_s": 1310.4, "goodput_requests_per_s": None,
      "input_tokens": 64, "output_tokens": 23}, []),
    # exit status 0
    ("aiperf", {"profile_export_aiperf.json": "aiperf-half-failed.json"}, 2, 8, 4, 4, {},
     [("ConnectionRefusedError(111, \"Connect call failed ('127.0.0.1', 9699)\")", 4)]),
    # 24 requests, each of which the server answered with 400: no profile
    ("aiperf", {"profile_export.jsonl": "aiperf-all-failed.jsonl"}, 2, 24, 0, 24, {"output_tokens_per_s": None},
     [("Unsupported parameter: nvext.ignore_eos", 24)]),
    ("vllm-bench", {"result.json": "vllm-bench-serve.json"}, 2, 8, 8, 0,
     {"ttft_ms.p95": 24.73, "e2e_ms.mean": 226.42, "output_tokens_per_s": 280.90, "input_tokens": 131,
      "output_tokens": 32}, []),
    # exit status 0, and zeros for all metrics
    ("vllm-bench", {"result.json": "vllm-bench-serve-all-failed.json"}, 2, 2, 0, 2,
     {"ttft_ms.mean": None, "requests_per_s": None}, []),
    ("llmperf", {"m_summary.json": "llmperf-fixed.summary.json",
                 "m_individual_responses.json": "llmperf-fixed.individual_responses.json"}, 2, 8, 8, 0,
     {"ttft_ms.mean": 40.5, "tpot_ms.p90": 8.895, "itl_ms.mean": None, "requests_per_s": 2.862, "input_tokens": 100,
      "output_tokens": 22, "total_tokens_per_s": 349.14}, []),
    # one of two addresses is dead
    ("llmperf", {"m_summary.json": "llmperf-half-failed.summary.json",
                 "m_individual_responses.json": "llmperf-half-failed.individual_responses.json"}, 2, 8, 4, 4,
     {}, [("Connection refused", 4)]),
    ("aisbench", {AISBENCH: "evals/aisbench/perf/20261122_120000"}, 4, 8, 8, 0,
     {"ttft_ms.mean": 25.4, "ttft_ms.p90": 28.2, "ttft_ms.p95": None, "tpot_ms.mean": 7.3, "itl_ms.p50": 7.4,
      "e2e_ms.p99": 259.2, "output_tokens_per_s": 487.7871, "requests_per_s": 15.2433, "input_tokens": 117,
      "output_tokens": 32}, []),
    # exit status 0
    ("aisbench", {AISBENCH: "evals/aisbench/perf-half-failed/20261123_120000"}, 4, 8, 4, 4, {"e2e_ms.p95": 189.1},
     [("Internal Server Error", 4)]),
    # the latency of a batch is that of its requests; p90 as the tool computes it
    ("vllm-latency", {"result.json": "vllm-bench-latency.json"}, 4, 20, 20, 0,
     {"e2e_ms.mean": 280.94, "e2e_ms.p90": 292.33, "e2e_ms.p99": 295.72, "ttft_ms.mean": None,
      "output_tokens_per_s": 4 * 32 / 0.28094, "output_tokens_per_s_per_user": 32 / 0.28094}, []),
    ("vllm-throughput", {"result.json": "vllm-bench-throughput.json"}, 2, 16, 16, 0,
     {"e2e_ms.mean": None, "requests_per_s": 16.52, "total_tokens_per_s": 1586.27,
      "output_tokens_per_s": 16.52 * 32}, []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tool", "samples", "concurrency", "requests", "completed", "failed", "metrics", "errors"), RECORDED
)
def test_recorded_output(tmp_path, tool, samples, concurrency, requests, completed, failed, metrics, errors):
    for name, sample in samples.items():
        copy = shutil.copytree if (SAMPLES / sample).is_dir() else shutil.copy
        copy(SAMPLES / sample, tmp_path / name)
    reading = benchmarks.read(of(tool, concurrency=concurrency, requests=requests), str(tmp_path), "")
    assert (reading.completed, reading.failed) == (completed, failed)
    for name, value in metrics.items():
        key, _dot, statistic = name.partition(".")
        found = getattr(reading, key) if key.endswith("put_tokens") else reading.metrics[key]
        assert (found[statistic] if statistic else found) == (value and pytest.approx(value, rel=1e-3)), name
    assert len(reading.errors) == len(errors)
    for found, (message, count) in zip(reading.errors, errors):
        assert message in found["message"] and found["count"] == count


def test_records_of_a_warm_up_and_lines_of_a_killed_writer_are_ignored(tmp_path):
    lines = (SAMPLES / "aiperf-all-failed.jsonl").read_text(encoding="utf-8").splitlines()
    lines = [lines[0].replace('"profiling"', '"warmup"'), lines[1], "[]", "null", lines[2][:90]]
    (tmp_path / "profile_export.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert (benchmarks.read(POINT, str(tmp_path), "").failed, benchmarks.done(POINT, str(tmp_path), "")) == (1, 1)


def test_exceptions_in_the_log_of_llmperf_are_errors(tmp_path):
    reading = benchmarks.read(of("llmperf"), str(tmp_path), DIED)
    assert (reading.completed, reading.failed) == (0, 0)
    assert reading.errors == [{"message": "ZeroDivisionError: division by zero", "count": 2}]


@pytest.mark.parametrize("tool", tools())
@pytest.mark.parametrize("text", [None, "[]", "{", "{}"])
def test_a_run_without_output_has_no_answers(tool, text, tmp_path):
    if text:
        (tmp_path / "result.json").write_text(text, encoding="utf-8")
        (tmp_path / "profile_export_aiperf.json").write_text(text, encoding="utf-8")
    assert benchmarks.read(of(tool), str(tmp_path), "").completed == 0


@pytest.mark.parametrize(
    ("value", "found"),
    [(1.5, 1.5), ("252.6 ms", 252.6), ("1.5 s", 1500), ("15.2 req/s", 15.2), (float("nan"), None), (True, None),
     (float("inf"), None), ("3", None), ("3 furlongs", None), (None, None)],
)  # fmt: skip
def test_a_number_is_finite_and_may_have_a_unit(value, found):
    assert number(value) == found


@pytest.mark.parametrize(
    ("expression", "found"),
    [("a.b", 3), ("list.1.c", 7), ("a.b * 1000", 3000), ("list.1.c / a.b", 7 / 3), ("a.b / zero", None),
     ("a.b / 0", None), ("nothing", None), ("list.9.c", None), ("a", None), (["nothing", "a.b"], 3), ("spaced key", 1)],
)  # fmt: skip
def test_an_expression_is_a_path_with_a_factor_or_divisor(expression, found):
    data = {"a": {"b": 3}, "list": [{}, {"c": 7}], "zero": 0, "spaced key": 1}
    assert measured(data, expression) == found


def test_a_template_leaves_out_and_repeats_groups():
    values = {"urls": ["a", "b"], "rate": None, "eos": True, "off": False, "words": ["x", 1], "empty": [], "n": 3}
    template = ["--url ${urls}", "--rate ${rate}", "--eos ${eos}", "--off ${off}", "--w ${*words}", "--u ${empty}",
                ["--at=${urls}/${n}"], ["two words"], "${*empty}"]  # fmt: skip
    assert expand(template, values) == [
        "--url", "a", "--url", "b", "--eos", "--w", "x", "1", "--at=a/3", "--at=b/3", "two words"
    ]  # fmt: skip


def test_progress_is_read_from_the_last_bar():
    assert progress("0%| | 0/8 [00:00<?]\r 25%|##| 2/8 [00:01<00:02]") == (2, 8)
    assert progress("loading") == (None, None)
    assert (
        benchmarks.done(of("vllm-latency", concurrency=4), "", "3/3 [\nProfiling iterations: 40%|#| 2/5 [00:01<") == 8
    )


def test_what_tools_are_given():
    argv = argv_of(POINT, "/out")
    assert argv.count("--url") == 2 and "round_robin" in argv
    assert argv[argv.index("--goodput") + 1] == "time_to_first_token:500 inter_token_latency:20"
    assert "ignore_eos:true" in argv and "--use-server-token-count" in argv
    # a configuration file gets all values as JSON
    point = of("aisbench", request_rate=2.5, sampling={"temperature": 0.5})
    assert argv_of(point, "/o") == ["--mode", "perf", "--num-warmups", "1"]
    values = json.loads(environment(point["spec"], benchmarks.values(point, "/o"))["FLEET_VALUES"])
    wanted = {"output": "/o", "tokenizer": "/srv/models/m", "host": "127.0.0.1", "port": 8000, "request_rate": 2.5,
              "sampling": {"temperature": 0.5}}  # fmt: skip
    assert {name: values[name] for name in wanted} == wanted


def test_an_engine_of_a_tools_own_is_started_like_the_servers():
    arguments = {
        "model": "/m", "host": "127.0.0.1", "port": 8000, "served-model-name": "m", "tensor-parallel-size": 4,
        "tool-call-parser": "openai", "enable-auto-tool-choice": True, "enable-expert-parallel": True,
        "enable-prefix-caching": False, "compilation-config": {"cudagraph_mode": "FULL"}, "data-parallel-size": 2,
        "ssl-keyfile": "/k", "max-model-len": 4096, "m": "vllm.entrypoints.openai.api_server",
    }  # fmt: skip
    argv = engine_arguments({"arguments": arguments}, ENGINES["vllm"], "/srv/m")
    assert argv == [
        "--model", "/srv/m", "--tensor-parallel-size", "4", "--enable-expert-parallel", "--no-enable-prefix-caching",
        "--compilation-config", '{"cudagraph_mode": "FULL"}', "--max-model-len", "4096",
    ]  # fmt: skip


def test_aiperf_gets_a_key_in_its_process_and_not_in_its_arguments(tmp_path):
    package = tmp_path / "aiperf"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cli.py").write_text("import sys\n\n\ndef app():\n    print(sys.argv)\n", encoding="utf-8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "aiperf").touch()
    program = benchmarks.program("aiperf", POINT["spec"], str(tmp_path), None, "", "", key=True)[0]
    argv = [*program, *argv_of(POINT, "/out")]
    assert argv[0] == str(tmp_path / "bin" / "python") and argv[3] == "profile" and "sk-secret" not in " ".join(argv)
    environment = {"OPENAI_API_KEY": "sk-secret", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, *argv[1:5]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "['aiperf', 'profile', '--model', '--api-key', 'sk-secret']\n"


PARTS = [{"reasoning": "one "}, {"reasoning_content": "two "}, {"content": "three"}, {"role": "assistant"}]
LINES = [b"data: " + json.dumps({"choices": [{"delta": part}]}).encode() for part in PARTS] + [b"", b"data: [DONE]"]


@pytest.mark.parametrize(("status", "lines", "text", "code", "message"), [
    (200, LINES, "one two three", None, ""),
    (404, [], "", 404, "no such model"),
    (OSError("Connection refused"), [], "", -1, "Connection refused"),
    (200, [b"data: [DONE]"], "", -1, "the answer was empty"),
    (200, [b'data: {"error": {"code": 500, "message": "out of memory"}}'], "", 500, "out of memory"),
])  # fmt: skip
def test_requests_of_llmperf_go_to_all_servers_and_each_is_a_record(monkeypatch, status, lines, text, code, message):
    asked = []

    def post(address, **given):
        asked.append((address, given))
        if isinstance(status, Exception):
            raise status
        return contextlib.nullcontext(
            types.SimpleNamespace(status_code=status, text="no such model", iter_lines=lambda chunk_size: lines)
        )

    monkeypatch.setitem(sys.modules, "requests", types.SimpleNamespace(post=post))
    monkeypatch.setitem(sys.modules, "numpy", types.SimpleNamespace(float64=float))
    monkeypatch.setenv("OPENAI_API_BASE", "http://a/v1;http://b/v1/")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    made = []
    clients = llmperf_worker.Clients(types.SimpleNamespace(remote=made.append))
    clients.remote()
    clients.remote()
    client = llmperf_worker.actor(object)(made[1])
    request = types.SimpleNamespace(prompt=("Hello", 5), model="m", sampling_params={"max_tokens": 3})
    for _turn in range(3):
        metrics, found, same = client.llm_request(request)
        assert (found, metrics["error_code"], metrics["error_msg"], same) == (text, code, message, request)
        assert 0 <= metrics["ttft_s"] <= metrics["end_to_end_latency_s"] and metrics["end_to_end_latency_s"] > 0
        assert metrics["number_input_tokens"] == 5
    assert [address for address, _given in asked] == ["http://%s/v1/chat/completions" % one for one in ("b", "a", "b")]
    given = asked[0][1]
    assert given["json"]["max_tokens"] == 3 and given["headers"] == {"Authorization": "Bearer sk-x"}


def test_what_llmperf_is_given_in_place_of_its_own(tmp_path, monkeypatch):
    loader = types.SimpleNamespace(from_pretrained=lambda path: path)
    assert llmperf_worker.one_tokenizer(loader, "/m").from_pretrained("another") == "/m"
    begun = []
    llmperf_worker.without_environment(lambda **given: begun.append(given))(runtime_env={"env_vars": {"A": "sk-x"}})
    assert begun == [{"include_dashboard": False}]
    source = tmp_path / "token_benchmark_ray.py"
    source.write_text("--llm-api")
    monkeypatch.setattr(sys, "argv", ["program", str(source)])
    with pytest.raises(SystemExit, match="without the Neuron SDK's patches"):
        llmperf_worker.main()
