# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real tools against real servers, for `make soak`: what docs/developing/measuring.md says of them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import compare
from ansible_collections.inference.fleet.tests.runs import BIN, CLONE
from ansible_collections.inference.fleet.tests.unit.engines.tiny_datasets import tiny_datasets

pytestmark = pytest.mark.soak

LOAD = {"input_tokens": 64, "output_tokens": 32, "concurrency": 4, "requests": 48, "scope": "server"}
PAIRS = 10
AGREE = 0.25  # of token throughput, by which two tools may differ on cores that they share with the servers
BUSY = 0.9  # of a run, in which as many requests as asked for are under way
ROUNDS = 3


def rate(document):
    return document["metrics"]["output_tokens_per_s"]


def busy(document):
    """How much of a run as many requests as asked for were under way: its throughput beside its latencies."""
    metrics = document["metrics"]
    return metrics["requests_per_s"] * metrics["e2e_ms"]["mean"] / 1000 / document["workload"]["concurrency"]


def test_two_tools_agree_on_the_throughput_of_one_server(measured):
    """In turns, so that what else the machine does falls on both; the medians are compared."""
    rates, arrived = {"aiperf": [], "vllm-bench": []}, set()
    for _round in range(ROUNDS):
        for tool, found in rates.items():
            run, results = measured.benchmark(tool, {"tool": tool, **LOAD})
            run.ok()
            assert [one["servers"] for one in results] == [["server-0"], ["server-1"]]
            assert {one["workload"]["output_tokens"] for one in results} == {32.0}
            arrived |= {one["workload"]["input_tokens"] for one in results}
            assert all(BUSY <= busy(one) <= 1 for one in results)
            found += [rate(one) for one in results]
    print("output tokens/s:", {tool: [round(value) for value in found] for tool, found in rates.items()})
    assert len(arrived) == 1
    one, two = (statistics.median(found) for found in rates.values())
    assert abs(one / two - 1) <= AGREE


def test_noise_between_equal_runs_is_no_regression(measured):
    """Ten pairs, five of each server: each run against those before it, as the report compares them."""
    found = []
    for _run in range(PAIRS // 2 + 1):
        run, results = measured.benchmark("noise", {"tool": "vllm-bench", **LOAD})
        run.ok()
        found += results
    print("output tokens/s:", [round(rate(one)) for one in found])
    pairs = [(one, compare.before(one, found)) for one in found]
    assert sum(bool(earlier) for _one, earlier in pairs) == PAIRS
    rows = [row for one, earlier in pairs for row in compare.compare(one, earlier)]
    print("changes, percent:", ["%s %.0f" % (row["metric"], row["change"]) for row in rows if row["verdict"] != "same"])
    assert [row for row in rows if row["verdict"] == compare.WORSE] == []


def test_every_evaluation_asks_real_servers(measured, tmp_path):
    """The stand-in knows no answers: what counts is that all of them came, by both tools."""
    questions = {"basic": 1, "gpqa": 3, "aime25": 4, "mmlu": 12, "gsm8k": 1}
    variables = {
        "evaluate_datasets": str(tiny_datasets(tmp_path / "data")), "evaluate_evals": list(questions),
        "evaluate_efforts": ["low"], "evaluate_max_tokens": 256, "evaluate_concurrency": 8,
    }  # fmt: skip
    known = {one["id"] for one in measured.history()}
    run = measured.play("playbooks/evaluate.yml", "-e", json.dumps(variables)).ok()
    found = {one["eval"]: one for one in measured.history() if one["id"] not in known}
    print(run.output[run.output.index("EVALUATION *") :].partition("PLAY RECAP")[0], "%.0f s" % run.seconds)
    assert {name: one["questions"] for name, one in found.items()} == questions
    assert [(one["ok"], one["failed"], one["answered"] >= one["questions"]) for one in found.values()] == (
        [(True, 0, True)] * len(questions)
    )
    assert {name: one["tool"]["name"] for name, one in found.items()} == {
        **dict.fromkeys(("basic", "gpqa", "aime25"), "gpt_oss.evals"), "mmlu": "AISBench", "gsm8k": "AISBench",
    }  # fmt: skip


def test_an_interrupted_sweep_goes_on_writes_the_best_and_puts_back_what_was_there(measured, tmp_path):
    """max-num-seqs 8, which is what there is, and 4; the play is ended after the first point of the first."""
    known = {one["id"] for one in measured.history()}
    variables = {"fleet_override_e2e": measured.layers, "fleet_reports_dir": str(measured.reports)}
    argv = [BIN / "ansible-playbook", "playbooks/tune.yml", "-i", "inventories/local", "-e", json.dumps(variables)]
    environment = {**os.environ, "FLEET_ROOT": str(measured.root)}
    with open(tmp_path / "log", "wb") as log:
        play = subprocess.Popen(argv, cwd=CLONE, env=environment, stdin=subprocess.DEVNULL, stdout=log)
    try:
        measured.wait_for(
            lambda: play.poll() is not None or {one["id"] for one in measured.history()} - known, 900, "a result"
        )
        assert play.poll() is None, (tmp_path / "log").read_text()
    finally:
        play.terminate()
        play.wait(60)
    first = next(one for one in measured.history() if one["id"] not in known)

    run = measured.play("playbooks/tune.yml", cold=True).ok()
    results = [one for one in measured.history() if one["id"] not in known]
    assert first in results and all(one["ok"] for one in results)
    assert sorted(one["workload"]["concurrency"] for one in results) == [2, 2, 8, 8]
    assert len({one["plan_hash"] for one in results}) == 2
    best = max(results, key=rate)
    as_it_is = best["plan_hash"] == first["plan_hash"]
    file = measured.reports / "tuned.yml"
    users = 8 if as_it_is else 4
    assert yaml.safe_load(file.read_text()) == {"fleet_override_tuned": {"arguments": {"max-num-seqs": users}}}
    print(run.output[run.output.index("TUNING") :].partition("PLAY RECAP")[0], "%.0f s" % run.seconds)
    assert measured.site(cold=True).ok().count("changed") == 0
    assert measured.play("playbooks/tune.yml").ok().count("changed") == 0
