# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Charts as inline SVG: positions are computed here, templates/chart.svg.j2 draws them."""

from __future__ import annotations

import math

from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.page import template
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.page_values import cut, visible

# name: (field of x, its title, field of y, its title, field of the lines); an x that is a concurrency has equal steps.
LINES = {
    "throughput": ("concurrency", "concurrent requests", "throughput", "output tokens/s", "series"),
    "latency": ("throughput", "output tokens/s", "latency", "ms", "series"),
    "percentiles": ("concurrency", "concurrent requests", "ms", "ms", "percentile"),
}
# name: (field of the bar's length, title of the axis)
BARS = {
    "change": ("change", "better  ←  change, %  →  worse"),
    "platforms": ("throughput", "output tokens/s for each accelerator"),
    "accuracy": ("score", "right answers, %"),
}
VERDICTS = {"worse": "var(--bad)", "better": "var(--good)", "same": "var(--s1)"}
SHAPES = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z", "M-3.5,-3.5h7v7h-7Z", "M0,-4.5L4.5,3.5L-4.5,3.5Z", "M0,-5L5,0L0,5L-5,0Z",
)  # fmt: skip
TICKS = 5
LEFT, RIGHT, ROW = 62, 340, 26  # of the plot of lines; height of a bar with its gap
LEGEND, HEIGHT = 18, 200  # of an entry; of the plot
NAMES, BARS_RIGHT = 300, 600  # where bars begin and end
LONGEST = 46  # characters of the name of a bar or a line


def specification(name, rows, label, titles=None):
    """A chart of LINES or BARS. label: its description for people who cannot see it; titles: {axis: title}."""
    rows = [{key: visible(value) for key, value in row.items()} for row in rows]
    return {"name": name, "rows": rows, "label": label, "titles": titles or {}}


def draw(specifications):
    """{name: SVG} of the specifications by their names."""
    return {name: _drawn(one) for name, one in specifications.items()}


def _drawn(chart):
    values = _lines(chart) if chart["name"] in LINES else _bars(chart)
    return template("chart.svg.j2").render(label=chart["label"], **values)


def ticks(low, high):
    """Round numbers from at most `low` to at least `high`, about TICKS steps."""
    high = max(high, low + 1e-9) if high or low else 1
    span = high - low
    step = 10 ** math.floor(math.log10(span / TICKS))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= TICKS)
    return [step * number for number in range(math.floor(low / step), math.ceil(high / step) + 1)]


def text_of(number):
    """A number as an axis shows it."""
    return "{:,.10g}".format(round(number, 6))


def _scale(marks, begin, end):
    low, high = marks[0], marks[-1]
    return lambda value: round(begin + (end - begin) * (value - low) / (high - low), 1)


def _lines(chart):
    x, x_title, y, y_title, of = LINES[chart["name"]]
    x_title, y_title = chart["titles"].get("x", x_title), chart["titles"].get("y", y_title)
    rows = chart["rows"]
    names = list(dict.fromkeys(row[of] for row in rows))
    top = LEGEND * len(names) + 12
    y_marks = ticks(0, max((row[y] for row in rows), default=1))
    at_y = _scale(y_marks, top + HEIGHT, top)
    if x == "concurrency":
        steps = sorted({row[x] for row in rows})
        width = (RIGHT - LEFT) / max(1, len(steps))
        x_marks = [(round(LEFT + width * (number + 0.5), 1), str(step)) for number, step in enumerate(steps)]
        at_x = dict(zip(steps, (place for place, _text in x_marks))).get
    else:
        marks = ticks(0, max((row[x] for row in rows), default=1))
        at_x = _scale(marks, LEFT, RIGHT)
        x_marks = [(at_x(mark), text_of(mark)) for mark in marks]
    lines = []
    for number, name in enumerate(names):
        own = sorted((row for row in rows if row[of] == name), key=lambda row: row["concurrency"])
        points = [
            {
                "x": at_x(row[x]), "y": at_y(row[y]), "note": str(row["concurrency"]) if x != "concurrency" else "",
                "label": "%s: %s; %s: %s; %s: %s; concurrent requests: %s" % (
                    of, name, x_title, text_of(row[x]), y_title, text_of(row[y]), row["concurrency"]
                ),
            }
            for row in own
        ]  # fmt: skip
        lines.append(
            {"name": cut(name, LONGEST), "color": "var(--s%d)" % (number % 4 + 1), "shape": SHAPES[number % 4],
             "points": points, "legend": 14 + LEGEND * number}
        )  # fmt: skip
    return {
        "width": RIGHT + 20, "height": top + HEIGHT + 42, "left": LEFT, "right": RIGHT, "top": top,
        "bottom": top + HEIGHT, "x_title": x_title, "y_title": y_title, "x_marks": x_marks,
        "y_marks": [(at_y(mark), text_of(mark)) for mark in y_marks], "lines": lines, "bars": [],
    }  # fmt: skip


def _bars(chart):
    field, title = BARS[chart["name"]]
    rows = chart["rows"]
    numbers = [row[key] for row in rows for key in (field, "limit") if row.get(key) is not None]
    low, high = (0, 100) if chart["name"] == "accuracy" else (min([0, *numbers]), max([0, *numbers]))
    marks = ticks(low, high)
    at = _scale(marks, NAMES, BARS_RIGHT)
    bars = []
    for number, row in enumerate(rows):
        value = row[field]
        bars.append(
            {
                "name": cut(row["what"], LONGEST), "y": ROW * number + 10,
                "value": None if value is None else at(value),
                "color": VERDICTS.get(row.get("verdict", "same"), "var(--none)"),
                "note": text_of(float("%.3g" % value)) if chart["name"] == "platforms" else "",
                "label": "%s: %s" % (row["what"], "no value" if value is None else text_of(value)),
                **{key: None if row.get(key) is None else at(row[key])
                   for key in ("low", "high", "reference", "limit")},
            }
        )  # fmt: skip
    bottom = ROW * len(rows) + 8
    return {
        "width": BARS_RIGHT + 70, "height": bottom + 42, "left": NAMES, "right": BARS_RIGHT, "top": 0, "bottom": bottom,
        "x_title": title, "y_title": "", "x_marks": [(at(mark), text_of(mark)) for mark in marks], "y_marks": [],
        "lines": [], "bars": bars, "zero": at(max(0, marks[0])), "points": chart["name"] == "accuracy",
    }  # fmt: skip
