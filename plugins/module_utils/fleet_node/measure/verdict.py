# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparison of a score with a published one: its 95 % interval, and whether the sample is large enough.

Scores are percent of the answers that were correct. Pure functions; docs/using/measure-reference.md explains them.
"""

from __future__ import annotations

import math

Z = 1.959963984540054  # of 95 %, both sides
# Percentage points. If the interval reaches further from the score, the comparison is inconclusive.
TELLING = 15.0


def wilson(correct, asked, z=Z):
    """[low, high] in percent around correct of asked by Wilson's score interval; both may be fractions.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927) 209-212.
    Raises ValueError unless 0 <= correct <= asked and asked > 0.
    """
    if not 0 <= correct <= asked or asked <= 0:
        raise ValueError("%r of %r" % (correct, asked))
    share = correct / asked
    middle = share + z * z / (2 * asked)
    reach = z * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked))
    scale = 1 + z * z / asked
    low, high = (middle - reach) / scale, (middle + reach) / scale
    # rounding must not leave the share itself outside
    return [100 * max(0.0, min(low, share)), 100 * min(1.0, max(high, share))]


def effective(clusters):
    """The number of independent answers: between the number of questions and that of answers.

    clusters: [(correct, asked)], one for each question, with asked > 0. Answers to a question are correlated, so the
    variance is that between questions (Kish's design effect); if all answers are equal, a question counts once.
    """
    asked = sum(count for _correct, count in clusters)
    share = sum(correct for correct, _count in clusters) / asked
    questions = len(clusters)
    if questions < 2 or not 0 < share < 1:
        return float(questions)
    spread = sum((correct - share * count) ** 2 for correct, count in clusters)
    variance = spread * questions / (questions - 1) / asked**2  # of the mean, as a ratio of sums
    if variance <= 0:
        return float(asked)
    return min(float(asked), max(float(questions), share * (1 - share) / variance))


def interval(clusters):
    """[low, high] in percent of (correct, asked) by question; None without answers."""
    clusters = [(correct, asked) for correct, asked in clusters if asked]
    if not clusters:
        return None
    size = effective(clusters)
    share = sum(correct for correct, _asked in clusters) / sum(asked for _correct, asked in clusters)
    return wilson(min(size, share * size), size)


def judge(score, bounds, reference, telling=TELLING):
    """agrees, below, above, too-few or no-reference.

    score: percent or None; bounds: interval() of it; reference: percent or None. A reference outside of the interval is
    a difference; inside, the score agrees if the interval reaches no further from it than `telling` points.
    """
    if reference is None:
        return "no-reference"
    if score is None or bounds is None:
        return "too-few"
    low, high = bounds
    if reference > high:
        return "below"
    if reference < low:
        return "above"
    return "agrees" if max(score - low, high - score) <= telling else "too-few"
