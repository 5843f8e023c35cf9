# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What benchmark tools wrote when they were run for real, read into one form; each one's way of hiding failures."""

from __future__ import annotations

import pathlib
import shutil

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.measure.tools import (
    aiperf,
    llmperf,
    trtllm_serving,
    vllm_bench,
)
from ansible_collections.inference.fleet.plugins.module_utils.measure.tools.base import Point, counted
from ansible_collections.inference.fleet.plugins.module_utils.measure.tools.registry import TOOLS

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
def test_argv_is_strings_with_the_lengths(tool):
    argv = tool.command(POINT, ["tool"], "/out")
    assert argv[0] == "tool" and all(isinstance(word, str) for word in argv)
    assert {"64", "32", "8", "2", "/out"} <= set(argv)


def test_aiperf_is_given_every_address_and_the_limits():
    argv = aiperf.command(POINT, ["aiperf"], "/out")
    assert argv.count("--url") == 2 and "round_robin" in argv
    assert argv[argv.index("--goodput") + 1] == "time_to_first_token:500 inter_token_latency:20"
    assert "ignore_eos:true" in argv and "--use-server-token-count" in argv


def test_progress_is_read_from_the_last_bar():
    assert counted("0%| | 0/8 [00:00<?]\r 25%|##| 2/8 [00:01<00:02]") == 2
    assert counted("loading") is None
