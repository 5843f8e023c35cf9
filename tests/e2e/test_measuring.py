# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real tools against real servers, for `make soak`: what docs/developing/measuring.md says of them."""

from __future__ import annotations

import statistics

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import compare
from ansible_collections.inference.fleet.tests.e2e.conftest import killed_while_asked

pytestmark = pytest.mark.soak

LOAD = {"input_tokens": 64, "output_tokens": 32, "concurrency": 4, "requests": 48, "scope": "server"}
PAIRS = 10
AGREE = 0.15  # of token throughput, by which two tools may differ
ROUNDS = 3


def rate(document):
    return document["metrics"]["output_tokens_per_s"]


def test_two_tools_agree_on_the_throughput_of_one_server(measured):
    """In turns, so that what else the machine does falls on both; the medians are compared."""
    rates = {"aiperf": [], "vllm-bench": []}
    for _round in range(ROUNDS):
        for tool, found in rates.items():
            run, results = measured.benchmark(tool, {"tool": tool, **LOAD})
            run.ok()
            assert [one["servers"] for one in results] == [["server-0"], ["server-1"]]
            assert {one["workload"]["output_tokens"] for one in results} == {32.0}
            found += [rate(one) for one in results]
    print("output tokens/s:", {tool: [round(value) for value in found] for tool, found in rates.items()})
    one, two = (statistics.median(found) for found in rates.values())
    assert abs(one / two - 1) <= AGREE


def test_noise_between_equal_runs_is_no_regression(measured):
    """Ten pairs: each run against those before it, as the report compares them."""
    found = []
    for _run in range(PAIRS + 1):
        run, results = measured.benchmark("noise", {"tool": "vllm-bench", **LOAD, "requests": 64})
        run.ok()
        found.append(results[0])
    print("output tokens/s:", [round(rate(one)) for one in found])
    worse = [
        (one["id"], row)
        for one in found[1:]
        for row in compare.compare(one, compare.before(one, found))
        if row["verdict"] == compare.WORSE
    ]
    assert worse == []


def test_a_killed_server_fails_a_benchmark_of_the_node_which_says_how_many_requests(measured):
    profile = {"tool": "aiperf", "input_tokens": 64, "output_tokens": 64, "concurrency": 4, "requests": 300}
    with killed_while_asked(measured, measured.pids()["server-1"], 300):
        run, (document,) = measured.benchmark("killed", profile)
    counts = document["counts"]
    assert 0 < counts["completed"] == 300 - counts["failed"] < 300
    assert document["void"] == "server-1 changed or restarted during the run"
    assert (document["ok"], sum(one["count"] for one in document["errors"])) == (False, counts["failed"])
    run.failed(
        "The benchmark of server-0, server-1 by aiperf failed: %d of 300 requests completed. Server-1 changed or "
        "restarted during the run. %d of 300 requests failed." % (counts["completed"], counts["failed"])
    )
    measured.site().ok()
