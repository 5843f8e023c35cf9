# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report with drawn charts in a real browser, without a network: wide and narrow, light and dark."""

from __future__ import annotations

import functools
import json
import re

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import certificate, measured_page
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report
from ansible_collections.inference.fleet.tests.e2e import test_page
from ansible_collections.inference.fleet.tests.unit.engines.measured_results import history
from ansible_collections.inference.fleet.tests.unit.plugins.plugin_utils.reporting.test_report import record

browser, chromium = test_page.browser, test_page.chromium  # fixtures
NOW = "2026-01-09T03:04:05Z"
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
CHARTS = 3
# The contrast of each text with what is behind it, what is wider than the window, the order of focus.
MEASURE = """
<script>
function parts(text) { return text.match(/[0-9.]+/g).map(Number); }
function light(color) {
  var part = color.slice(0, 3).map(function (v) {
    v /= 255; return v <= .03928 ? v / 12.92 : Math.pow((v + .055) / 1.055, 2.4);
  });
  return .2126 * part[0] + .7152 * part[1] + .0722 * part[2];
}
function behind(node) {
  for (; node; node = node.parentElement) {
    var color = parts(getComputedStyle(node).backgroundColor);
    if (color.length < 4 || color[3] > .99) { return color; }
  }
  return [255, 255, 255];
}
addEventListener("load", function () {
  var worst = 99, where = "", walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), count = 0;
  while (walk.nextNode()) {
    var node = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || node.closest("style, script")) { continue; }
    var style = getComputedStyle(node), svg = node.closest("svg");
    var own = light(parts(svg ? style.fill : style.color)), back = light(behind(node));
    var ratio = (Math.max(own, back) + .05) / (Math.min(own, back) + .05);
    count += 1;
    if (ratio < worst) { worst = ratio; where = walk.currentNode.data.trim(); }
  }
  var edge = document.documentElement.getBoundingClientRect().right;
  var tables = Array.from(document.querySelectorAll(".wide"));
  function left(one) { return one.getBoundingClientRect().left; }
  tables.forEach(function (one) { one.scrollLeft = 150; });
  var focus = Array.from(document.querySelectorAll("a[href], summary, [tabindex]"));
  var wide = Array.from(document.querySelectorAll("main *")).filter(function (one) {
    return !one.closest(".wide") && !one.closest("svg") && one.getBoundingClientRect().right > edge + 1;
  });
  document.title = JSON.stringify({
    worst: worst, where: where, count: count, width: edge, scroll: document.documentElement.scrollWidth,
    wide: wide.map(function (one) { return one.tagName + "." + one.className; }).slice(0, 5),
    out: focus.filter(function (one) { return one.tabIndex !== 0; }).length,
    first: focus[0].className, stops: focus.length,
    drawn: Array.from(document.querySelectorAll("svg.chart")).map(function (one) {
      var box = one.getBoundingClientRect(); return Math.round(Math.min(box.width, 3 * box.height)); }),
    smallest: Math.min.apply(null, Array.from(document.querySelectorAll("svg text")).map(function (one) {
      return parseFloat(getComputedStyle(one).fontSize) * one.ownerSVGElement.getScreenCTM().a; })),
    wider: tables.filter(function (one) { return one.scrollLeft; }).length,
    stuck: tables.filter(function (one) { return left(one.querySelector("tbody th")) === left(one); }).length,
    scrolled: Array.from(document.querySelectorAll("figure")).filter(function (one) {
      return one.scrollWidth > one.clientWidth; }).length,
    paper: getComputedStyle(document.body).backgroundColor
  });
});
</script>"""


@pytest.fixture(scope="module")
def text():
    """The page of a made-up history with all its charts."""
    probe = {"name": "chat", "ok": True, "ms": 5, "sent": "", "got": "", "cause": None}
    start = {"started": "2026-01-09T03:00:00Z", "ready": "2026-01-09T03:02:00Z"}
    verdicts = [
        {"host": "trn3-1", "server": "server-%d" % number, "ok": True, "mode": "full", "at": NOW, "hash": "0" * 64,
         "url": "http://127.0.0.1:%d" % (8000 + number), "model_id": "gpt-oss-120b", "probes": [probe],
         "start": start}
        for number in range(8)
    ]  # fmt: skip
    fleet = report.merge(None, report.host_report("trn3-1", "full", verdicts, NOW), ["trn3-1"], NOW)
    results = history()
    value = certificate.assemble(fleet, results, NOW, "trn3")
    runs = [record(number) for number in range(4)]
    return measured_page.render(value, results, fleet, ["one.json is no result."], runs)


def test_charts_are_drawn_and_nothing_is_asked_for(browser, text):
    dom, console, requests = browser.open(text)
    assert (console, requests) == ([], [])
    drawn = dom.all("svg", "chart")
    assert len(drawn) == len(dom.all("figure")) - 1 == CHARTS
    for chart in drawn:
        assert chart["attributes"]["role"] == "graphics-document" and chart["attributes"]["aria-label"]
    assert "output tokens/s" in drawn[0]["text"] and "aiperf, trn3-1" in drawn[0]["text"]
    labels = [element["attributes"].get("aria-label", "") for element in dom.all("path")]
    assert [label for label in labels if "output tokens/s: " in label and "concurrent requests: 8" in label]


def test_headings_landmarks_and_tables_for_who_cannot_see_it(browser, text):
    dom, _console, _requests = browser.open(text)
    assert [len(dom.all(tag)) for tag in ("h1", "main", "header", "footer", "nav")] == [1] * 5
    assert dom.all("html")[0]["attributes"]["lang"] == "en"
    levels = [int(one["tag"][1]) for one in dom.elements if re.fullmatch("h[1-6]", one["tag"])]
    assert levels[0] == 1 and all(after - before <= 1 for before, after in zip(levels, levels[1:]))
    for section in dom.all("section"):
        assert dom.by_id(section["attributes"]["aria-labelledby"])["text"].strip()
    tables = dom.all("table")
    assert len(tables) == len(dom.all("caption")) == 6
    assert all(one["attributes"].get("scope") in ("col", "row") for one in dom.all("th"))
    for link in dom.all("a"):
        place = link["attributes"]["href"]
        assert not place.startswith("#") or dom.by_id(place[1:])
    regions = [one for one in dom.elements if one["attributes"].get("tabindex") == "0"]
    assert regions and all(one["attributes"].get("aria-label") for one in regions)


def measured(browser, text, dark, width):
    """What MEASURE finds. The colours of the dark page are chosen by leaving out the condition in its style."""
    changed = POLICY.sub("", text).replace("</body>", MEASURE + "</body>")
    if dark:
        changed = changed.replace("@media screen and (prefers-color-scheme: dark)", "@media screen")
    if width < 500:  # a window cannot be narrower
        changed = changed.replace("<body>", "<body><style>html { width: %dpx; }</style>" % width)
    dom, console, requests = browser.open(changed, "", "--window-size=%d,900" % max(width, 500))
    assert (console, requests) == ([], [])
    return json.loads(dom.all("title")[0]["text"])


def test_the_report_is_chosen_as_markdown_where_it_cannot_be_copied(browser, text):
    """The headless browser refuses the clipboard."""
    click = "<script>document.getElementById('copy').click()</script></body>"
    dom, _console, requests = browser.open(POLICY.sub("", text).replace("</body>", click))
    assert requests == [] and not dom.by_id("copy")["hidden"]
    assert "open" in dom.by_id("markdown")["attributes"] or dom.by_id("copy")["text"] == "Copied"
    assert dom.by_id("text")["text"].startswith("# Not certified")
    dom, console, _requests = browser.open(text)
    assert console == [] and "open" not in dom.by_id("markdown")["attributes"]


@functools.lru_cache
def parts(color):
    return [int(part) for part in re.findall("[0-9]+", color)]


@pytest.mark.parametrize(("dark", "width"), [(True, 390), (False, 1280)], ids=["dark and narrow", "light and wide"])
def test_it_can_be_read_wide_and_narrow_light_and_dark(browser, text, dark, width):
    found = measured(browser, text, dark, width)
    assert found["worst"] >= 4.5 and found["count"] > 300, found["where"]
    assert found["wide"] == [] and found["scroll"] <= max(500, found["width"])
    assert width - 20 < found["width"] <= width  # without a bar for scrolling
    assert found["stuck"] == 6 and (found["wider"] == 6 or width != 390)
    assert len(found["drawn"]) == CHARTS and min(found["drawn"]) > 200
    assert found["smallest"] >= 11 and found["scrolled"] == 0
    assert (found["out"], found["first"]) == (0, "skip") and found["stops"] > 10
    assert (max(parts(found["paper"])) < 60) == dark


def test_the_policy_lets_a_chart_run_nothing(browser, text):
    away = "http://" + browser.recorder.address
    hostile = '<svg><script>document.title = "owned"</script><image href="%s/x"/></svg></figure>' % away
    dom, console, requests = browser.open(text.replace("</figure>", hostile, 1))
    assert requests == [] and console
    assert dom.all("title")[0]["text"] == "Not certified: trn3"
