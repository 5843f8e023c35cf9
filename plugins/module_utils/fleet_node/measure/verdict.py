# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a score means beside a published one: its interval of 95 %, and whether the sample is large enough to tell.

Scores are percent of the answers that were correct. Pure functions; docs/using/measure-reference.md explains them.
"""

from __future__ import annotations

import math

Z = 1.959963984540054  # of 95 %, both sides
# Percentage points: where the interval reaches further from the score than this, an agreement says nothing.
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
    """How many independent answers these are worth: between the number of questions and that of answers.

    clusters: [(correct, asked)], one for each question, with asked > 0. Answers to one question resemble each other, so
    their variance is taken between questions (Kish's design effect); where all are alike, a question counts once.
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
    """[low, high] in percent of (correct, asked) by question; None where nothing was asked."""
    clusters = [(correct, asked) for correct, asked in clusters if asked]
    if not clusters:
        return None
    size = effective(clusters)
    share = sum(correct for correct, _asked in clusters) / sum(asked for _correct, asked in clusters)
    return wilson(min(size, share * size), size)


def judge(score, bounds, reference, telling=TELLING):
    """agrees, below, above, too-few or no-reference.

    score: percent or None; bounds: interval() of it; reference: percent or None. A reference outside of the interval is
    a difference; inside, the score agrees where the interval reaches no further from it than `telling` points.
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


def stratified(strata):
    """[low, high] in percent around the mean of the shares of strata, each counting alike; None without any.

    strata: [(correct, asked)], each question asked once. The shares vary as (correct + 1) of (asked + 2) would, so that
    a small stratum of right answers alone does not count as certain.
    """
    strata = [(correct, asked) for correct, asked in strata if asked]
    if not strata:
        return None
    total = sum(asked for _correct, asked in strata)
    share = sum(correct / asked for correct, asked in strata) / len(strata)
    smooth = [((correct + 1) / (asked + 2), asked) for correct, asked in strata]
    variance = sum(one * (1 - one) / asked for one, asked in smooth) / len(strata) ** 2
    size = float(total)
    if 0 < share < 1:
        size = min(size, max(1.0, share * (1 - share) / variance))
    return wilson(min(size, share * size), size)
