# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from xml.etree import ElementTree

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import certificate, measured_page
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import charts
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import page as page_module
from ansible_collections.inference.fleet.tests.unit.engines.measured_results import (
    benchmark,
    evaluation,
    failed,
    history,
    others,
)
from hypothesis import given, settings
from hypothesis import strategies as st

NOW = "2026-01-09T03:04:05Z"
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror='alert(1)'>{{ 7*7 }} \x00\x1b[31m \u202egnp \ud83d \u2028"


def page(results, **more):
    return measured_page.render(certificate.assemble(None, results, NOW, "trn3"), results, **more)


def contents(results, theirs=()):
    return measured_page.contents(certificate.assemble(None, results, NOW, "trn3"), results, theirs)


def test_each_chart_has_its_numbers_as_a_table():
    found = contents(history(), others())
    assert set(found["charts"]) == {
        "throughput", "ttft", "tpot", "percentiles-ttft", "percentiles-tpot", "percentiles-e2e", "change", "platforms",
        "accuracy",
    }  # fmt: skip
    assert set(found["charts"]) <= set(measured_page.CAPTIONS)
    assert {name: len(section["table"]["rows"]) for name, section in found["sections"].items()} == {
        "speed": 10, "percentiles": 24, "change": 24, "platforms": 3, "accuracy": 3,
    }  # fmt: skip


def test_a_point_that_failed_is_in_the_table_and_not_in_a_chart():
    found = contents([benchmark(1), failed(benchmark(2)), benchmark(4, void="server-0 restarted")])
    assert [row["concurrency"] for row in found["charts"]["throughput"]["rows"]] == [1]
    results = [row[-1] for row in found["sections"]["speed"]["table"]["rows"]]
    assert results[0] == {"text": "good", "state": "passed"}
    assert results[1]["text"].startswith("7 of 24 requests failed") and results[1]["state"] == "failed"
    assert results[2] == {"text": "server-0 restarted", "state": "unknown"}


def test_cards_have_a_number_only_of_what_was_measured_and_compare_it_with_the_run_before():
    def cards(results):
        return {tile["title"]: tile for tile in contents(results)["tiles"]}

    before, now = benchmark(day=1), benchmark(slower=1.25, day=2)
    found = cards([before, now, evaluation(score=80.0, day=1), evaluation(score=78.5, day=2)])
    # 140 x 8 / 1.5 tokens/s are 747, and a latency of 1.25 times as much leaves 597
    assert found["Speed"]["value"] == "597"
    assert found["Speed"]["change"].startswith("-20 % against 747 on 1 Jan 2026, ")
    assert (found["Accuracy"]["value"], found["Accuracy"]["word"]) == ("78.5 %", "good")
    assert found["Accuracy"]["change"].startswith("-1.5 points against 80.0 % on 1 Jan 2026, ")
    assert (found["Answers"]["state"], found["Answers"]["word"], found["Answers"]["change"]) == (
        "unknown", "not verified", ""
    )  # fmt: skip

    smoke = evaluation("basic", "low", 100.0, None, "no-reference")
    for results in ([now, smoke], [now, evaluation(verdict="too-few")], [now]):
        found = cards(results)
        assert found["Speed"]["change"] == ""
        card = found["Accuracy"]
        assert (card["state"], card["word"], card["value"], card["what"]) == (
            "unknown", "not evaluated", "", "not evaluated"
        ), card  # fmt: skip
        assert "100" not in "".join(card["reasons"])


def test_what_is_null_is_a_dash_and_no_error():
    one = benchmark()
    one["workload"].update(input_tokens=None, output_tokens=None, concurrency=None)
    for name, value in one["metrics"].items():
        one["metrics"][name] = dict.fromkeys(value) if isinstance(value, dict) else None
    other = evaluation(score=0.0, reference=None, verdict="no-reference", effort=None)
    other.update(score=None, interval=None, correct=None)
    text = page([one, other])
    assert "–" in text and "None" not in text


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (0, "0"), (0.123, "0.12"), (12.34, "12.3"), (123.4, "123")])
def test_numbers(value, text):
    assert measured_page.number(value) == text


def test_nothing_that_a_result_says_gets_through():
    results = [
        benchmark(8, host=HOSTILE, recipe=HOSTILE, servers=[HOSTILE], scope="server", ok=False, reason=HOSTILE),
        evaluation(name=HOSTILE, effort=HOSTILE, host=HOSTILE),
    ]
    results[0]["tool"] = {"name": HOSTILE, "version": HOSTILE, "command": [HOSTILE]}
    text = page(results, problems=[HOSTILE])
    assert "<script" not in text and "<img" not in text and "49" not in text.split("<main", 1)[1]
    assert not [mark for mark in "\x00\x1b\u202e\ud83d\u2028" if mark in text]


NAMES = st.text(st.characters(exclude_categories=()), max_size=20)
AMOUNTS = st.none() | st.floats(0, 1e12)


@settings(max_examples=60)
@given(NAMES, NAMES, st.lists(AMOUNTS, min_size=6, max_size=6), st.none() | st.integers(0, 10**6))
def test_any_result_makes_a_page(host, tool, amounts, concurrency):
    one = benchmark(concurrency or 1, host=host)
    one["workload"]["concurrency"] = concurrency
    one["tool"]["name"] = tool
    one["metrics"].update(zip(list(one["metrics"])[-6:], amounts))
    assert page([one]).endswith("</html>\n")


# -- charts ------------------------------------------------------------------------------------------------------------


def test_charts_are_svg_with_only_elements_that_draw():
    found = contents(history(), others())
    drawn = charts.draw(found["charts"])
    assert set(drawn) == set(found["charts"])
    for name, text in drawn.items():
        root = ElementTree.fromstring(text)
        assert root.attrib["aria-label"] == found["charts"][name]["label"]
        assert {one.tag.rpartition("}")[2] for one in root.iter()} <= {"svg", "path", "text", "line", "rect"}
        marks = [one for one in root.iter() if one.attrib.get("role") == "graphics-symbol"]
        assert len(marks) == len(found["charts"][name]["rows"])


def test_charts_escape_what_they_show():
    rows = [{"series": HOSTILE, "concurrency": 1, "throughput": 0}]
    text = charts.draw({"throughput": charts.specification("throughput", rows, HOSTILE)})["throughput"]
    ElementTree.fromstring(text)
    assert "<script" not in text and "<img" not in text and not [mark for mark in "\x00\x1b\u202e" if mark in text]


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [(0, 100, [0, 20, 40, 60, 80, 100]), (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1]), (-12, 26, [-20, -10, 0, 10, 20, 30])],
)
def test_axes_have_round_numbers(low, high, marks):
    assert charts.ticks(low, high) == pytest.approx(marks)


def verdict(start, memory_gib=2.5):
    """The content of verdict.json with one server."""
    one = {"host": "n1", "server": "server-0", "ok": True, "url": "http://127.0.0.1:8000", "probes": [], "start": start}
    deployed = {"memory_gib": memory_gib, "servers": []}
    return {"hosts": {"n1": {"ok": True, "generated": NOW, "verdicts": [one], "deployed": deployed}}, "ok": True}


START = {
    "installed": "2026-01-01T00:00:00Z", "weights": "2026-01-02T00:00:00Z", "started": "2026-01-03T00:00:00Z",
    "ready": "2026-01-03T00:01:30Z", "artifact": "loads", "memory_mib": 2048,
}  # fmt: skip


@pytest.mark.parametrize(
    ("start", "cells"),
    [
        (START, ["1 Jan 2026, 00:00:00 UTC", "2 Jan 2026, 00:00:00 UTC", "3 Jan 2026, 00:00:00 UTC", "loaded",
                 "3 Jan 2026, 00:01:30 UTC", "90 s", "2.5", "2.0"]),
        ({**START, "ready": None, "artifact": None, "installed": None},
         ["–", "2 Jan 2026, 00:00:00 UTC", "3 Jan 2026, 00:00:00 UTC", "–", "–", "–", "2.5", "2.0"]),
        (dict.fromkeys(START, HOSTILE), ["–", "–", "–", "–", "–", "–", "2.5", "–"]),
    ],
)  # fmt: skip
def test_the_start_of_a_server_and_its_memory(start, cells):
    hosts = page_module.view(verdict(start))["hosts"]
    (row,) = measured_page._start(hosts)["table"]["rows"]
    assert [cell["text"] for cell in row] == ["n1 / server-0", *cells]
    text = page([benchmark()], fleet=verdict(start))
    assert 'id="start"' in text and HOSTILE not in text


def test_a_verdict_without_a_start_has_no_such_table():
    assert 'id="start"' not in page([benchmark()], fleet=verdict({}))
    assert 'id="start"' not in page([benchmark()])
