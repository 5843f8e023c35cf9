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


def test_faster_is_better():
    assert set(verdicts(benchmark(8, slower=0.8, day=2), benchmark(8)).values()) == {compare.BETTER}


def test_runs_that_lie_apart_hide_what_is_less():
    apart = [benchmark(8, slower=factor, day=day) for day, factor in enumerate((0.7, 1.0, 1.3), 1)]
    assert set(verdicts(benchmark(8, slower=1.2, day=9), *apart).values()) == {compare.UNCLEAR}
    assert set(verdicts(benchmark(8, slower=2.5, day=9), *apart).values()) == {compare.WORSE}


# Of servers that nobody changed: requests, at once, before, now: output tokens/s, p50 and p90 of TTFT, TPOT and E2E.
EQUAL = (
    (16, 2, (159, 81.1, 353.2, 9.5, 11.2, 391.5, 425.9), (137, 98.1, 196.3, 9.0, 16.5, 370.0, 617.5)),
    (16, 2, (137, 98.1, 196.3, 9.0, 16.5, 370.0, 617.5), (133, 90.1, 326.1, 11.7, 16.2, 516.3, 612.2)),
    (64, 8, (332, 165.7, 670.3, 11.6, 24.7, 546.5, 926.5), (324, 421.3, 915.0, 3.9, 11.6, 507.5, 956.5)),
)


@pytest.mark.parametrize(("requests", "at_once", "earlier", "now"), EQUAL)
def test_short_runs_that_were_measured_on_two_cores_are_not_told_apart(requests, at_once, earlier, now):
    def measured(numbers, day):
        one = benchmark(at_once, day=day)
        one["workload"]["requests"] = one["counts"]["asked"] = one["counts"]["completed"] = requests
        rate, *spread = numbers
        one["metrics"]["output_tokens_per_s"] = rate
        for name, p50, p90 in zip(("ttft_ms", "tpot_ms", "e2e_ms"), spread[::2], spread[1::2]):
            one["metrics"][name].update(p50=p50, p90=p90)
        return one

    assert compare.WORSE not in verdicts(measured(now, 2), measured(earlier, 1)).values()


def test_a_throughput_of_few_and_different_requests_is_not_told_apart():
    def wide(one):
        one = copy.deepcopy(one)
        one["metrics"]["e2e_ms"]["p90"] = 1.5 * one["metrics"]["e2e_ms"]["p50"]
        return one

    assert verdicts(wide(benchmark(8, slower=1.3, day=2)), wide(benchmark(8)))["output_tokens_per_s"] == compare.UNCLEAR
    assert verdicts(wide(benchmark(8, slower=2.0, day=2)), wide(benchmark(8)))["output_tokens_per_s"] == compare.WORSE


def test_a_latency_of_few_and_different_requests_is_not_told_apart():
    def wide(one):
        one = copy.deepcopy(one)
        one["metrics"]["ttft_ms"]["p90"] = 3 * one["metrics"]["ttft_ms"]["p50"]
        return one

    found = verdicts(wide(benchmark(8, slower=1.3, day=2)), wide(benchmark(8)))
    assert found["ttft_ms"] == compare.UNCLEAR
    assert found["tpot_ms"] == found["output_tokens_per_s"] == compare.WORSE


def test_the_limit_is_the_one_given():
    assert set(verdicts(benchmark(8, slower=1.2, day=2), benchmark(8), percent=30).values()) == {compare.SAME}


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


@given(FACTORS, FACTORS)
def test_half_as_fast_is_twice_as_slow(one, two):
    rows = compare.compare(benchmark(8, slower=two, day=2), [benchmark(8, slower=one)])
    assert [row["change"] for row in rows] == pytest.approx([(two / one - 1) * 100] * len(rows), abs=1e-6)
