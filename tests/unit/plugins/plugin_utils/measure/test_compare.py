# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import copy

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import compare
from ansible_collections.inference.fleet.tests.unit.engines.measured_results import benchmark, evaluation, failed
from hypothesis import given
from hypothesis import strategies as st


def verdicts(now, *earlier, percent=compare.LIMIT):
    found = compare.before(now, [now, *earlier])
    return {row["metric"]: row["verdict"] for row in compare.compare(now, found, percent)}


@pytest.mark.parametrize("pair", range(10))
def test_twenty_percent_is_flagged_and_noise_is_not(pair):
    earlier = benchmark(8, noise=0.04, seed=2 * pair)
    equal = benchmark(8, noise=0.04, seed=2 * pair + 1, day=2)
    assert set(verdicts(equal, earlier).values()) == {compare.SAME}
    found = verdicts(benchmark(8, slower=1.2, day=2), benchmark(8))
    assert set(found.values()) == {compare.WORSE} and len(found) == 4


# Of servers that nobody changed: requests, at once, before, now: output tokens/s, p50 and p90 of TTFT, TPOT and E2E.


def test_a_throughput_of_few_and_different_requests_is_not_told_apart():
    def wide(one):
        one = copy.deepcopy(one)
        one["metrics"]["e2e_ms"]["p90"] = 1.5 * one["metrics"]["e2e_ms"]["p50"]
        return one

    assert verdicts(wide(benchmark(8, slower=1.3, day=2)), wide(benchmark(8)))["output_tokens_per_s"] == compare.UNCLEAR
    assert verdicts(wide(benchmark(8, slower=2.0, day=2)), wide(benchmark(8)))["output_tokens_per_s"] == compare.WORSE


def test_before_is_the_same_point_that_counts():
    now = benchmark(8, day=5)
    fine = benchmark(8, day=1)
    hardware = {"accelerator": "trainium3", "count": 4}
    unlike = [
        benchmark(4), benchmark(8, recipe="other"), benchmark(8, hardware=hardware), benchmark(8, scope="fleet"),
        benchmark(8, tool={**now["tool"], "name": "other"}), failed(benchmark(8)), benchmark(8, void="restarted"),
        benchmark(8, inventory="other"), benchmark(8, workload={**now["workload"], "input_tokens_asked": 1}),
        benchmark(8, day=6), evaluation(),
    ]  # fmt: skip
    assert compare.before(now, [now, *unlike]) == []
    assert compare.before(now, [now, fine, *unlike]) == [fine]


def test_before_is_of_one_plan_and_of_five_runs():
    old = [benchmark(8, day=1, plan_hash="c" * 64) for _number in range(3)]
    new = [benchmark(8, day=2) for _number in range(7)]
    assert compare.before(benchmark(8, day=3), [*new, *old]) == new[-compare.BEFORE :]


def test_what_a_tool_does_not_tell_is_not_compared():
    now, earlier = benchmark(8, day=2), benchmark(8)
    now["metrics"]["ttft_ms"] = dict.fromkeys(now["metrics"]["ttft_ms"])
    earlier["metrics"]["tpot_ms"]["p50"] = 0
    assert set(verdicts(now, earlier)) == {"output_tokens_per_s", "e2e_ms"}


FACTORS = st.floats(0.05, 20)


@given(FACTORS, st.lists(FACTORS, min_size=1, max_size=7), st.floats(0.1, 500))
def test_verdicts_follow_the_statistic(factor, before, percent):
    earlier = [benchmark(8, slower=one, day=day) for day, one in enumerate(before, 1)]
    now = benchmark(8, slower=factor, day=20)
    rows = compare.compare(now, compare.before(now, earlier), percent)
    assert len(rows) == len(compare.COMPARED)
    for row in rows:
        assert (row["verdict"] == compare.WORSE) == (row["change"] > max(percent, row["noise"]))
        if row["verdict"] == compare.BETTER:
            assert row["change"] < 0
