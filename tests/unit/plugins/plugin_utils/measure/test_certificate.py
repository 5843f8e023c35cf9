# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import certificate, measured_page
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report
from ansible_collections.inference.fleet.tests.unit.engines.measured_results import (
    benchmark,
    evaluation,
    failed,
    history,
)

NOW = "2026-01-09T03:04:05Z"


def verdicts(ok=True):
    probe = {"name": "chat", "ok": ok, "ms": 5, "sent": "", "got": "", "cause": None if ok else "no answer"}
    verdict = {"host": "trn3-1", "server": "server-0", "ok": ok, "mode": "full", "at": NOW, "model_id": "gpt-oss-120b",
               "url": "http://127.0.0.1:8000", "hash": "0" * 64, "probes": [probe]}  # fmt: skip
    return report.merge(None, report.host_report("trn3-1", "full", [verdict], NOW), ["trn3-1"], NOW)


def made(fleet=None, results=(), **more):
    return certificate.assemble(fleet, list(results), NOW, "trn3", **more)


def states(value):
    return [value["ok"], *(value["parts"][name]["ok"] for name in certificate.PARTS)]


@pytest.mark.parametrize(
    ("fleet", "results", "expected"),
    [
        (verdicts(), [benchmark(), evaluation()], [True] * 4),
        (None, [], [None, None, None, None]),
        (verdicts(), [], [None, True, None, None]),
        (verdicts(False), [benchmark(), evaluation()], [False, False, True, True]),
        (verdicts(), [failed(benchmark()), evaluation()], [False, True, False, True]),
        (verdicts(), [benchmark(), evaluation(verdict="below")], [False, True, True, False]),
        (verdicts(), [benchmark(), evaluation("basic", "low", 100.0, None, "no-reference")], [None, True, True, None]),
        # of several, one that is compared tells of the host; of two hosts each has to have one
        (verdicts(), [benchmark(), evaluation(), evaluation("basic", "low", 100.0, None, "no-reference")], [True] * 4),
        (verdicts(), [benchmark(), evaluation(), evaluation(host="b", verdict="too-few")], [None, True, True, None]),
        (verdicts(), [benchmark(), benchmark(slower=1.2, day=2), evaluation(day=2)], [False, True, False, True]),
        ({"hosts": {"x": 5}, "ok": True}, [benchmark(), evaluation()], [None, None, True, True]),
    ],
)
def test_what_is_good_what_is_missing_and_what_fails(fleet, results, expected):
    assert states(made(fleet, results)) == expected


@pytest.mark.parametrize(
    ("fleet", "results", "words", "complete"),
    [
        (verdicts(), [benchmark(), evaluation()], "Certified", True),
        (verdicts(), [benchmark(), evaluation(verdict="no-reference", reference=None)], certificate.MEASURED, True),
        (verdicts(), [benchmark()], "Not certified yet", False),
        (verdicts(), [evaluation(verdict="too-few")], "Not certified yet", False),
        (verdicts(), [failed(benchmark()), evaluation(verdict="too-few")], "Not certified", False),
    ],
)
def test_a_certificate_says_only_what_was_measured(fleet, results, words, complete):
    value = made(fleet, results)
    assert (certificate.headline(value), value["complete"]) == (words, complete)
    if words == certificate.MEASURED:
        assert value["parts"]["evaluate"]["summary"] == "not evaluated"
        (reason,) = value["parts"]["evaluate"]["reasons"]
        assert reason == "gpqa, high effort of trn3-1: " + certificate.WHY_OPEN[results[1]["verdict"]]


def test_an_evaluation_that_is_missing_on_a_host_is_more_than_one_that_tells_nothing():
    fleet = {**verdicts(), "run": {"id": "x", "began": NOW, "hosts": ["trn3-1", "trn3-2"]}}
    for host in ("trn3-1", "trn3-2"):
        fleet["hosts"].setdefault(host, {})["deployed"] = {"servers": [{"role": "server", "port": 8000}]}
    results = [benchmark(host=host) for host in ("trn3-1", "trn3-2")] + [evaluation(verdict="too-few")]
    value = made(fleet, results, since=NOW, kept={one["id"] for one in results})
    assert (states(value), value["complete"]) == ([None, True, True, None], False)
    assert value["parts"]["evaluate"]["reasons"][-1] == "trn3-2: no result in this run"


def test_only_what_this_run_measured_counts_and_each_host_of_it_has_to_be_measured():
    old, new = benchmark(8, day=1), benchmark(4, day=3)
    fleet = {**verdicts(), "run": {"id": "x", "began": NOW, "hosts": ["trn3-1", "trn3-2", "worker"]}}
    servers = {"server": {"role": "server", "port": 8000}, "decode": {"role": "decode", "port": None}}
    for host, role in (("trn3-1", "server"), ("trn3-2", "server"), ("worker", "decode")):
        fleet["hosts"].setdefault(host, {})["deployed"] = {"servers": [servers[role]]}
    value = made(fleet, [old, new], since=NOW, kept={new["id"]})
    assert [one["id"] for one in value["benchmarks"]] == [new["id"]]
    assert value["parts"]["evaluate"]["ok"] is None
    assert value["parts"]["benchmark"] == {
        "ok": None, "summary": "1 of 1 points measured", "reasons": ["trn3-2: no result in this run"],
    }  # fmt: skip
    fleet["run"]["hosts"].remove("trn3-2")
    assert made(fleet, [old, new], since=NOW, kept={new["id"]})["parts"]["benchmark"]["ok"] is True
    everywhere = benchmark(4, scope="fleet")
    fleet["run"]["hosts"].append("trn3-2")
    assert made(fleet, [everywhere], since=NOW, kept={everywhere["id"]})["parts"]["benchmark"]["ok"] is True


def test_without_a_run_the_newest_of_each_point_counts():
    first, second, third = benchmark(8, day=1), benchmark(4, day=2), benchmark(8, day=3)
    assert [one["id"] for one in made(None, [third, second, first])["benchmarks"]] == [third["id"], second["id"]]
    other = benchmark(2, day=4, recipe_hash="d" * 64)
    assert [one["id"] for one in made(None, [first, second, other])["benchmarks"]] == [other["id"]]


def test_files_in_the_folder_of_reports(tmp_path):
    folder = tmp_path / "reports" / "trn3"
    for one in history():
        result.keep(str(folder), one)
    (folder / "verdict.json").write_text(json.dumps(verdicts()), encoding="utf-8")
    (folder / "measurements" / "20260101T000000Z-00000000.json").write_text('{"schema": 1,', encoding="utf-8")
    value = measured_page.write(str(folder), 15.0)
    assert json.loads((folder / "certificate.json").read_text("utf-8")) == value
    text = (folder / "report.html").read_text("utf-8")
    assert value["ok"] is False and value["inventory"] == "trn3"
    assert "20260101T000000Z-00000000.json" in text
    again = measured_page.write(str(folder), 15.0, run_id="another run")
    assert again["benchmarks"] == again["evaluations"] == []
