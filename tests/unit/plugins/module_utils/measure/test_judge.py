# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Intervals of scores, and what they say beside a published score."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from hypothesis import assume, given
from hypothesis import strategies as st

CLUSTERS = st.lists(
    st.integers(1, 8).flatmap(lambda asked: st.tuples(st.integers(0, asked), st.just(asked))), min_size=1, max_size=40
)


def total(clusters):
    return sum(one for one, _asked in clusters), sum(asked for _one, asked in clusters)


@pytest.mark.parametrize(
    ("correct", "asked", "low", "high"),
    # R: prop.test(x, n, correct = FALSE)
    [(0, 10, 0.0, 27.75), (5, 10, 23.66, 76.34), (10, 10, 72.25, 100.0), (895, 1000, 87.45, 91.25)],
)
def test_the_interval_is_wilsons(correct, asked, low, high):
    assert [round(value, 2) for value in result.wilson(correct, asked)] == [low, high]


@pytest.mark.parametrize(("correct", "asked"), [(1, 0), (-1, 5), (6, 5)])
def test_counts_that_cannot_be_are_refused(correct, asked):
    with pytest.raises(ValueError):
        result.wilson(correct, asked)


@given(CLUSTERS)
def test_the_score_is_in_the_interval(clusters):
    correct, asked = total(clusters)
    low, high = result.interval(clusters)
    assert 0 <= low <= high <= 100 and low - 1e-9 <= 100 * correct / asked <= high + 1e-9


@given(CLUSTERS)
def test_an_answer_counts_between_its_share_of_a_question_and_one(clusters):
    assert len(clusters) <= result.effective(clusters) <= total(clusters)[1]


@given(st.lists(st.booleans(), min_size=2, max_size=30), st.integers(2, 8))
def test_the_same_answer_again_and_again_says_nothing_more(right, repeats):
    once = [(int(one), 1) for one in right]
    again = [(one * repeats, repeats) for one, _asked in once]
    assume(0 < sum(right) < len(right))
    assert result.effective(again) <= len(right) * 1.01
    width = [high - low for low, high in (result.interval(once), result.interval(again))]
    assert width[1] >= width[0] * 0.99


def test_answers_that_differ_within_questions_narrow_the_interval():
    low, high = result.interval([(4, 8)] * 25)
    assert (round(low, 1), round(high, 1)) == (43.1, 56.9)  # as of 200 answers
    low, high = result.interval([(8, 8), (0, 8)] * 12)
    assert high - low > 37  # as of 24


@pytest.mark.parametrize(
    ("score", "bounds", "reference", "said"),
    [
        (89.0, [87.0, 91.0], 89.5, "agrees"),
        (80.0, [77.0, 83.0], 89.5, "below"),
        (95.0, [93.0, 97.0], 89.5, "above"),
        (75.0, [47.0, 91.0], 89.5, "too-few"),
        (0.0, [0.0, 24.0], 89.5, "below"),
        (50.0, [20.0, 80.0], None, "no-reference"),
        (None, None, 89.5, "too-few"),
        (None, None, None, "no-reference"),
    ],
)
def test_what_a_score_says_beside_a_published_one(score, bounds, reference, said):
    assert result.judge(score, bounds, reference) == said


def test_nothing_asked_has_no_interval():
    assert result.interval([]) is result.interval([(0, 0)]) is None
