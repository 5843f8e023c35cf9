# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import html
import re
from xml.etree import ElementTree

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import certificate, measured_page
from ansible_collections.inference.fleet.tests.unit.engines.measured_results import (
    benchmark,
    evaluation,
    failed,
    history,
)
from ansible_collections.inference.fleet.tests.unit.plugins.plugin_utils.reporting.test_report import record
from hypothesis import example, given
from hypothesis import strategies as st

NOW = "2026-01-09T03:04:05Z"
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror='alert(1)'>{{ 7*7 }} \x00\x1b[31m \u202egnp \ud83d \u2028"


def page(results, **more):
    return measured_page.render(certificate.assemble(None, results, NOW, "trn3"), results, **more)


def rows(text, section):
    """The texts of the cells of a section's table, by row."""
    body = text.partition('<section id="%s"' % section)[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in body.split("<tr>")[1:]]


def test_each_section_has_a_table():
    text = page(history())
    assert {name: len(rows(text, name)) for name in ("speed", "percentiles", "change", "accuracy", "start")} == {
        "speed": 10, "percentiles": 40, "change": 24, "accuracy": 3, "start": 0,
    }  # fmt: skip
    assert text.count('<svg xmlns="http://www.w3.org/2000/svg" class="chart"') == 3


def test_a_point_that_failed_is_in_the_table_and_not_in_a_chart():
    text = page([benchmark(1), failed(benchmark(2)), benchmark(4, void="server-0 restarted")])
    assert [row[-1] for row in rows(text, "speed")] == [
        "good", "7 of 24 requests failed: Connection refused", "server-0 restarted"
    ]  # fmt: skip
    assert text.count('role="graphics-symbol"') == 3  # a point in each chart
    assert '<td class="failed">7 of 24' in text and '<td class="unknown">server-0' in text


def values(text):
    """The numbers of the parts of the verdict."""
    return re.findall(r'<p class="value">(.*?)</p>', text)


def test_parts_have_a_number_only_if_something_was_measured():
    # 140 x 8 / 1.5 tokens/s are 747, and a latency of 1.25 times as much leaves 597
    now = benchmark(slower=1.25, day=2)
    found = page([benchmark(day=1), now, evaluation(score=80.0, day=1), evaluation(score=78.5, day=2)])
    assert values(found) == ["597", "78.5 %"]
    smoke = evaluation("basic", "low", 100.0, None, "no-reference")
    for results in ([now, smoke], [now, evaluation(verdict="too-few")], [now]):
        found = page(results)
        assert values(found) == ["597"] and "not evaluated" in found
        assert '<td class="passed">agrees' not in found
    assert '<td class="unknown">inconclusive' in page([evaluation(verdict="too-few")])


def test_everything_in_a_result_is_escaped():
    results = [
        benchmark(8, host=HOSTILE, recipe=HOSTILE, servers=[HOSTILE], scope="server", ok=False, reason=HOSTILE),
        benchmark(8, host=HOSTILE),
        evaluation(name=HOSTILE, effort=HOSTILE, host=HOSTILE),
    ]
    results[0]["tool"] = {"name": HOSTILE, "version": HOSTILE, "command": [HOSTILE]}
    run = record(versions={"collection": HOSTILE, "inventory": HOSTILE, "software": [HOSTILE]})
    run["hosts"] = {HOSTILE: {"ok": False, "mode": HOSTILE, "servers": {HOSTILE: {"ok": False}}}}
    text = page(results, problems=[HOSTILE], runs=[run])
    assert "<script>alert" not in text and "<img" not in text
    assert "49" not in text.split("<main", 1)[1].split("{{ 7*7 }}")[0]
    assert not [mark for mark in "\x00\x1b\u202e\ud83d\u2028" if mark in text]


NAMES = st.text(st.characters(exclude_categories=()), max_size=20)
AMOUNTS = st.none() | st.floats(0, 1e12)


@given(NAMES, NAMES, st.lists(AMOUNTS, min_size=6, max_size=6), st.none() | st.integers(1, 10**6))
@example("", "", [None, 5e-324, None, None, None, None], 1)
def test_any_result_makes_a_page(host, tool, amounts, concurrency):
    one = benchmark(concurrency or 1, host=host)
    one["workload"]["concurrency"] = concurrency
    one["tool"]["name"] = tool
    one["metrics"].update(zip(list(one["metrics"])[-6:], amounts))
    assert page([one]).endswith("</html>\n")


def test_charts_are_svg_with_elements_that_draw():
    points = [
        {"series": HOSTILE, "x": 1.5, "y": 0, "concurrency": 1},
        {"series": "b", "x": 3, "y": 7, "concurrency": 2},
    ]
    root = ElementTree.fromstring(measured_page.lines(points, HOSTILE, "output tokens/s", "ms"))
    assert {one.tag.rpartition("}")[2] for one in root.iter()} <= {"svg", "path", "text", "line"}
    marks = [one.attrib["aria-label"] for one in root.iter() if one.attrib.get("role") == "graphics-symbol"]
    assert marks[1] == "b; output tokens/s: 3; ms: 7; concurrent requests: 2" and len(marks) == 2
    text = page([benchmark(1, host="node-%d" % number) for number in range(measured_page.SERIES + 1)])
    assert text.count('role="graphics-symbol"') == 3 * measured_page.SERIES


def verdict(start):
    """The content of verdict.json with one server."""
    one = {"host": "n1", "server": "server-0", "ok": True, "url": "http://127.0.0.1:8000", "probes": [], "start": start}
    deployed = {"memory_gib": 2.5, "servers": []}
    return {"hosts": {"n1": {"ok": True, "generated": NOW, "verdicts": [one], "deployed": deployed}}, "ok": True}


START = {
    "started": "2026-01-03T00:00:00Z", "ready": "2026-01-03T00:01:30Z", "artifact": "loads", "memory_mib": 2048,
}  # fmt: skip
STARTED = "3 Jan 2026, 00:00:00 UTC"


@pytest.mark.parametrize(
    ("start", "cells"),
    [
        (START, [STARTED, "loaded", "90 s", "2.5", "2.0"]),
        ({**START, "ready": None, "artifact": None}, [STARTED, "–", "–", "2.5", "2.0"]),
        (dict.fromkeys(START, HOSTILE), ["–", "–", "–", "2.5", "–"]),
    ],
)  # fmt: skip
def test_the_start_of_a_server_and_its_memory(start, cells):
    text = page([benchmark()], fleet=verdict(start))
    assert rows(text, "start") == [["n1 / server-0", *cells]]
    assert 'id="start"' not in page([benchmark()], fleet=verdict({}))


def runs(*oks, **more):
    """Records of a minute each; oks: of the servers of node-1."""
    found = [record(number, ok=all(states)) for number, states in enumerate(oks)]
    for run, states in zip(found, oks):
        servers = {"server-%d" % number: {"ok": ok} for number, ok in enumerate(states)}
        run["hosts"] = {"node-1": {"ok": all(states), "mode": "full", "servers": servers}}
        run.update(generated="2026-01-02T03:59:04Z")
        run["versions"] = {**run["versions"], **more}
    return found


def test_runs_are_compared_with_the_run_before_of_the_same_hosts():
    first, second, third = runs([True, True], [True, False], [True, True])
    image = "example.com/x/vllm@sha256:" + "0123456789abcdef" * 4
    other = record(3, hosts={"node-2": {"ok": None, "mode": None, "servers": {}}}, ok=None)
    third["versions"] = {"collection": None, "inventory": "def", "software": [image]}
    text = page([], runs=[first, second, other, third])
    assert rows(text, "runs") == [
        ["2 Jan 2026, 03:02:04 UTC", "verified", "2 / 2", "+1", "full", "57 min 0 s", "–", "def", "vllm@0123456789ab"],
        ["2 Jan 2026, 03:03:04 UTC", "not verified: node-2", "0 / 0", "–", "–", "0 ms", "1.2.3", "abc", "a==1"],
        ["2 Jan 2026, 03:01:04 UTC", "failed: node-1", "1 / 2", "-1", "full", "58 min 0 s", "1.2.3", "abc", "same"],
        ["2 Jan 2026, 03:00:04 UTC", "verified", "2 / 2", "–", "full", "59 min 0 s", "1.2.3", "abc", "a==1"],
    ]
    assert re.findall(r'<rect class="(\w+)" x="\d+" y="(\d+)"', text) == [
        ("passed", "0"), ("failed", "9"), ("unknown", "18"), ("passed", "0")
    ]  # fmt: skip
    assert text.count('class="new"') == 3  # the versions of the last run
    assert "<dd><code>unknown</code></dd>" in text and "<dd><code>def</code></dd>" in text
    assert 'id="runs"' not in page([]) and len(rows(page([], runs=runs(*[[True]] * 25)), "runs")) == measured_page.RUNS


@pytest.mark.parametrize(
    ("values", "points", "change"),
    [
        ([1.0, 3.0, 2.0], [(0.0, 20.0), (45.0, 0.0), (90.0, 10.0)], "-33 %"),
        ([5, 5], [(0.0, 10), (90.0, 10)], "0 %"),
        ([0, 5], [(0.0, 20.0), (90.0, 0.0)], ""),
    ],
)
def test_a_sparkline_reaches_from_the_lowest_to_the_highest_value(values, points, change):
    found = measured_page.spark(values)
    assert (found["points"], found["last"], found["change"]) == (points, points[-1], change)
    assert measured_page.spark(values, points=True)["change"] == "%+.1f points" % (values[-1] - values[-2])
    assert measured_page.spark(values[:1]) is None


def test_numbers_have_the_trend_of_comparable_results_that_count():
    void = benchmark(day=3, slower=9, void="restarted")
    other = [benchmark(4, day=1), benchmark(day=1, host="other", slower=9), failed(benchmark(day=3))]
    text = page([benchmark(day=1), benchmark(day=2, slower=0.8), *other, void, benchmark(day=4, slower=1.25)])
    assert 'aria-label="last 3 runs: 747, 933, 597"' in text
    assert "-36 % since the run before" in text
    text = page([evaluation(score=80.0, day=1), evaluation("aime25", day=1), evaluation(score=78.5, day=2)])
    assert "-1.5 points since the run before" in text


def test_starts_are_bars_and_those_far_apart_are_separate():
    def server(name, started, ready):
        return {"name": name, "start": {"started": started, "ready": ready}}

    day = "2026-01-0%dT00:%02d:%02dZ"
    hosts = [
        {"name": "n1", "servers": [server("b", day % (2, 1, 0), day % (2, 3, 20)), server("c", None, day % (2, 0, 0))]},
        {"name": "n2", "servers": [server("a", day % (2, 0, 0), day % (2, 1, 40))]},
        {"name": "n2", "servers": [server("a", day % (1, 0, 0), day % (1, 0, 5))]},
        {"name": "n3", "servers": [server("x", day % (2, 9, 9), day % (2, 8, 8)), server("y", HOSTILE, [])]},
    ]
    old, new = measured_page.timelines(hosts)
    assert old == {
        "caption": "From 1 Jan 2026, 00:00:00 UTC",
        "rows": [{"name": "n2 / a", "x": 0.0, "width": 100.0, "took": "5.0 s"}],
        "marks": [(20.0 * number, "%d s" % number) for number in range(6)],
    }  # fmt: skip
    assert [tuple(row.values()) for row in new["rows"]] == [
        ("n2 / a", 0.0, 50.0, "1 min 40 s"), ("n1 / b", 30.0, 70.0, "2 min 20 s")
    ]  # fmt: skip


def test_the_page_as_markdown_has_its_tables_and_no_markup_of_a_result():
    text = html.unescape(page([benchmark(host="a|b*<i>`x`\nc", day=2)], runs=runs([True], [False])))
    lines = text.partition('aria-label="Markdown">')[2].partition("</pre>")[0].splitlines()
    assert lines[0] == "# Not certified yet"
    assert "- **Speed**: good, 747 output tokens/s, aiperf of a\\|b\\*\\<i\\>\\`x\\` c, 8 at once" in lines
    assert [line for line in lines if line.startswith("| aiperf, a\\|b\\*\\<i\\>\\`x\\` c | 8 | 24 | 0 |")]
    place = lines.index("## The last runs, each compared with the run before of the same hosts")
    assert lines[place + 3 : place + 5] == [
        "| --- | --- | ---: | ---: | --- | ---: | --- | --- | --- |",
        "| 2 Jan 2026, 03:01:04 UTC | failed: node-1 | 0 / 1 | -1 | full | 58 min 0 s | 1.2.3 | abc | same |",
    ]
