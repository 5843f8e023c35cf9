# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Charts as inline SVG: positions are computed here, templates/chart.svg.j2 draws them."""

from __future__ import annotations

import math

from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.page import template
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.page_values import cut, visible

try:
    from markupsafe import Markup
except ImportError:
    Markup = None  # without jinja2, which ansible-core requires: only if the sanity tests import this file alone

SHAPES = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z", "M-3.5,-3.5h7v7h-7Z", "M0,-4.5L4.5,3.5L-4.5,3.5Z", "M0,-5L5,0L0,5L-5,0Z",
)  # fmt: skip
TICKS = 5
LEFT, RIGHT, HEIGHT = 62, 340, 200  # of the plot
LEGEND = 18  # height of an entry
LONGEST = 46  # characters of the name of a line


def lines(rows, label, x_title, y_title):
    """Return the SVG of rows {series, x, y, concurrency}. label: its description for screen readers. If x is the
    concurrency, its steps are equal; otherwise each point shows its concurrency."""
    rows = [{**row, "series": visible(row["series"])} for row in rows]
    names = list(dict.fromkeys(row["series"] for row in rows))
    top = LEGEND * len(names) + 12
    y_marks = ticks(max(row["y"] for row in rows))
    at_y = _scale(y_marks, top + HEIGHT, top)
    equal = all(row["x"] == row["concurrency"] for row in rows)
    if equal:
        steps = sorted({row["x"] for row in rows})
        width = (RIGHT - LEFT) / len(steps)
        x_marks = [(round(LEFT + width * (number + 0.5), 1), str(step)) for number, step in enumerate(steps)]
        at_x = dict(zip(steps, (place for place, _text in x_marks))).get
    else:
        marks = ticks(max(row["x"] for row in rows))
        at_x = _scale(marks, LEFT, RIGHT)
        x_marks = [(at_x(mark), text_of(mark)) for mark in marks]
    drawn = []
    for number, name in enumerate(names):
        points = [
            {
                "x": at_x(row["x"]), "y": at_y(row["y"]), "note": "" if equal else str(row["concurrency"]),
                "label": "%s; %s: %s; %s: %s; concurrent requests: %s" % (
                    name, x_title, text_of(row["x"]), y_title, text_of(row["y"]), row["concurrency"]
                ),
            }
            for row in sorted(rows, key=lambda row: row["concurrency"]) if row["series"] == name
        ]  # fmt: skip
        drawn.append(
            {"name": cut(name, LONGEST), "color": "var(--s%d)" % (number % 4 + 1), "shape": SHAPES[number % 4],
             "points": points, "legend": 14 + LEGEND * number}
        )  # fmt: skip
    values = {
        "label": label, "width": RIGHT + 20, "height": top + HEIGHT + 42, "left": LEFT, "right": RIGHT, "top": top,
        "bottom": top + HEIGHT, "x_title": x_title, "y_title": y_title, "x_marks": x_marks,
        "y_marks": [(at_y(mark), text_of(mark)) for mark in y_marks], "lines": drawn,
    }  # fmt: skip
    return Markup(template("chart.svg.j2").render(values))


def ticks(high):
    """Return round numbers from 0 to at least `high`, about TICKS steps."""
    high = high or 1
    step = 10 ** math.floor(math.log10(high / TICKS))
    step *= next(factor for factor in (1, 2, 5, 10) if high / (step * factor) <= TICKS)
    return [step * number for number in range(math.ceil(high / step) + 1)]


def text_of(number):
    """Return a number on an axis as a string."""
    return "{:,.10g}".format(round(number, 6))


def _scale(marks, begin, end):
    return lambda value: round(begin + (end - begin) * value / marks[-1], 1)
