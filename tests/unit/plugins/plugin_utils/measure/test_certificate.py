# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates, comparisons with earlier runs, and evaluations beside published scores."""

from __future__ import annotations

import contextlib
import copy
import json
import pathlib
from unittest import mock

import pytest
import yaml
from ansible.errors import AnsibleError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import certificate, compare, measured_page, points
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import measure
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.fleet import plan_fleet
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report
from ansible_collections.inference.fleet.tests.unit.engines.measured_results import (
    benchmark,
    evaluation,
    failed,
    history,
    plan,
)
from ansible_collections.inference.fleet.tests.unit.engines.plans import LOCAL
from ansible_collections.inference.fleet.tests.unit.plugins.plugin_utils.reporting.test_report import verdict

NOW = "2026-01-09T03:04:05Z"


def verdicts(ok=True):
    deployed = {"servers": [{**one, "role": "server", "port": 8000} for one in plan()]}
    host = report.host_report("trn3-1", "full", [verdict(ok=ok)], NOW, what=deployed)
    return report.merge(None, host, ["trn3-1"], NOW)


def made(fleet=None, results=(), **more):
    return certificate.assemble(fleet, list(results), NOW, "trn3", **more)


def states(value):
    return [value["ok"], *(value["parts"][name]["ok"] for name in certificate.PARTS)]


def run_of(roles):
    """The verdicts of a run for these hosts, each with a server of this role."""
    fleet = {**verdicts(), "run": {"id": "x", "began": NOW, "hosts": list(roles)}}
    for host, role in roles.items():
        servers = [{**one, "role": role, "port": 8000 if role == "server" else None} for one in plan(host)]
        fleet["hosts"].setdefault(host, {})["deployed"] = {"servers": servers}
    return fleet


HOSTS = ("trn3-1", "trn3-2", "trn3-3")
THREE = run_of(dict.fromkeys(HOSTS, "server"))


NO_SCORE = evaluation("basic", "low", 100.0, None, "no-reference")


@pytest.mark.parametrize(
    ("fleet", "results", "expected", "complete"),
    [
        (verdicts(), [benchmark(), evaluation()], [True] * 4, True),
        (None, [], [None] * 4, False),
        (verdicts(), [benchmark()], [None, True, True, None], False),
        (verdicts(False), [benchmark(), evaluation()], [False, False, True, True], False),
        (verdicts(), [failed(benchmark()), evaluation(verdict="too-few")], [False, True, False, None], False),
        (verdicts(), [benchmark(), evaluation(verdict="below")], [False, True, True, False], False),
        (verdicts(), [benchmark(), NO_SCORE], [None, True, True, None], True),
        (verdicts(), [evaluation(verdict="too-few")], [None, True, None, None], False),
        # of several, one that is compared tells of the host; of two hosts each has to have one
        (verdicts(), [benchmark(), evaluation(), NO_SCORE], [True] * 4, True),
        (run_of(dict.fromkeys(HOSTS[:2], "server")), [benchmark(), benchmark(host="trn3-2"), evaluation(),
         evaluation(host="trn3-2", verdict="too-few")], [None, True, True, None], True),
        (run_of(dict.fromkeys(HOSTS[:2], "server")), [benchmark(), benchmark(host="trn3-2"),
         evaluation(verdict="too-few")], [None, True, True, None], False),
        (verdicts(), [benchmark(), benchmark(slower=1.2, day=2), evaluation(day=2)], [False, True, False, True], False),
        ({"hosts": {"x": 5}, "ok": True}, [benchmark(), evaluation()], [None] * 4, False),
        # of other hosts than verified, of some, of other servers, of two recipes
        (THREE, [benchmark(), evaluation()], [None, True, None, None], False),
        (THREE, [one(host=host) for host in HOSTS for one in (benchmark, evaluation)], [True] * 4, True),
        (verdicts(), [benchmark(host="gone"), evaluation(host="gone")], [None, True, None, None], False),
        (verdicts(), [benchmark(plan_hash="c" * 64), evaluation(plan_hash="c" * 64)], [None, True, None, None], False),
        (verdicts(), [benchmark(recipe_hash="d" * 64), evaluation(day=2)], [None, True, None, True], False),
    ],
)  # fmt: skip
def test_a_certificate_says_only_what_was_measured(fleet, results, expected, complete):
    value = made(fleet, results)
    assert (states(value), value["complete"]) == (expected, complete)
    headlines = {True: "Certified", False: "Not certified", None: "Not certified yet"}
    assert certificate.headline(value) == (
        certificate.MEASURED if complete and not value["ok"] else headlines[value["ok"]]
    )
    if results[1:] == [NO_SCORE]:
        assert value["parts"]["evaluate"]["summary"] == "not evaluated"
        assert value["parts"]["evaluate"]["reasons"] == [
            "basic, low effort of trn3-1: " + certificate.WHY_OPEN["no-reference"]
        ]


def test_only_what_this_run_measured_counts_and_each_host_of_it_has_to_be_measured():
    old, new = benchmark(8, day=1), benchmark(4, day=3)
    fleet = run_of({"trn3-1": "server", "trn3-2": "server", "worker": "decode"})
    value = made(fleet, [old, new], since=NOW, kept={new["id"]})
    assert [one["id"] for one in value["benchmarks"]] == [new["id"]]
    assert value["parts"]["evaluate"]["ok"] is None
    assert value["parts"]["benchmark"] == {
        "ok": None, "summary": "1 of 1 points measured", "reasons": ["trn3-2: no result in this run"],
    }  # fmt: skip
    fleet["run"]["hosts"].remove("trn3-2")
    assert made(fleet, [old, new], since=NOW, kept={new["id"]})["parts"]["benchmark"]["ok"] is True
    fleet["run"]["hosts"].append("trn3-2")
    entries = [*plan(), *plan("trn3-2")]
    names = [one["name"] for one in plan()]
    together = benchmark(4, scope="fleet", servers=[*names, *("trn3-2/" + name for name in names)],
                         plan_hash=result.plan_hash(entries))  # fmt: skip
    for one, ok in ((together, True), (benchmark(4, scope="fleet"), None)):
        assert made(fleet, [one], since=NOW, kept={one["id"]})["parts"]["benchmark"]["ok"] is ok


def run(kind, folder, answer, **variables):
    """The result of the operation benchmark_run or evaluation_run for a call to which the node answers so."""
    item = plan_fleet(["trn3-1"], lambda host: LOCAL, deploys=True)["trn3-1"]
    point = points.points(item["servers"], item["deployment"], "quick")[0]["point"]
    asked = {"point": point} if kind == "benchmark" else {"eval": "basic", "effort": "low"}
    given = {"servers": item["servers"], "deployment": item["deployment"], "reports_dir": str(folder), **asked}
    action = mock.Mock(_task=mock.Mock(check_mode=False, _uuid="a-b"))
    action.call.side_effect = answer
    return getattr(measure, kind + "_run")(action, given, {"inventory_hostname": "trn3-1", **variables})


@pytest.mark.parametrize(
    "answer", [[{"failed": True, "msg": "why"}], [{"unreachable": True, "msg": "why"}], AnsibleError("why")]
)
@pytest.mark.parametrize(("part", "kind"), [("benchmark", "benchmark"), ("evaluate", "evaluation")])
def test_a_call_that_fails_without_a_result_is_in_the_certificate(tmp_path, part, kind, answer):
    with contextlib.suppress(AnsibleError):
        run(kind, tmp_path, answer)
    (kept,) = result.history(str(tmp_path))[0]
    good = (benchmark if kind == "benchmark" else evaluation)(host="trn3-1")
    assert set(kept) == set(good)
    value = made(run_of({"trn3-1": "server"}), [good, kept], since=NOW, kept={good["id"], kept["id"]})
    assert (value["ok"], value["parts"][part]["ok"]) == (False, False)
    assert value["parts"][part]["reasons"][0].endswith(": why")
    assert measured_page.render(value, [good, kept])


def test_reports_that_cannot_be_written_do_not_hide_why_a_call_failed(monkeypatch, tmp_path):
    with pytest.raises(AnsibleError, match="why"):
        run("benchmark", "/dev/null", AnsibleError("why"))
    monkeypatch.setattr(report, "void_verdicts", mock.Mock(side_effect=OSError(30, "Read-only file system")))
    found = run("benchmark", tmp_path, [{"restarted": ["server-0"], "document": benchmark()}])
    assert "Read-only file system" in found["warnings"][0] and result.history(str(tmp_path))[0]


def test_results_of_candidates_are_marked_and_only_a_sweep_counts_them(tmp_path):
    def answer(_operation, sent, _vars):
        return {"document": {**benchmark(), **sent["head"]}}

    found = run("benchmark", tmp_path, answer, tune_candidate={"name": "as it is"})
    assert found["document"]["candidate"] == "as it is"
    assert found["fleet_report"]["title"] == "Benchmark of candidates"
    assert found["fleet_report"]["columns"][0] == "candidate" and found["fleet_report"]["rows"][0][0] == "as it is"
    assert result.history(str(tmp_path))[0] == []
    assert len(result.history(str(tmp_path), candidates=True)[0]) == 1


@pytest.mark.parametrize(
    ("hardware", "units", "count"),
    [
        ({"accelerator": "trainium3", "count": 16}, range(64), 16),
        ({"accelerator": "trainium3", "count": 16, "lnc": 1}, range(8, 24), 2),
        ({"accelerator": "b200", "count": 8}, range(4), 4),
        ({}, range(2), 2),
    ],
)
def test_accelerators_are_devices_and_not_logical_cores(hardware, units, count):
    entry = {"name": "server-0", "host": "n1", "hash": "0" * 64, "devices": list(units)}
    elsewhere = {**entry, "host": "n2"}
    head = measure.head_of({"servers": [entry], "elsewhere": [elsewhere], "hardware": hardware}, "n1", None)
    assert head["hardware"]["count"] == 2 * count


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
    (folder / "measurements" / "20260101T000000Z-00000000.json").write_text('{"schema": 2,', encoding="utf-8")
    value = measured_page.write(str(folder), 15.0)
    assert json.loads((folder / "certificate.json").read_text("utf-8")) == value
    text = (folder / "report.html").read_text("utf-8")
    assert value["ok"] is False and value["inventory"] == "trn3"
    assert "20260101T000000Z-00000000.json" in text
    again = measured_page.write(str(folder), 15.0, run_id="another run")
    assert again["benchmarks"] == again["evaluations"] == []
    for other in ([], {"run": {"hosts": 1}}, {"hosts": {"n1": {"deployed": {"servers": [{"name": []}]}}}}):
        (folder / "verdict.json").write_text(json.dumps(other), encoding="utf-8")
        assert measured_page.write(str(folder), 15.0)["parts"]["verify"]["summary"] == "no verdict yet"
        assert "verdict.json is not a record of verdicts" in (folder / "report.html").read_text("utf-8")


def changes(now, *earlier, percent=compare.LIMIT):
    found = compare.before(now, [now, *earlier])
    return {row["metric"]: row["verdict"] for row in compare.compare(now, found, percent)}


def test_a_throughput_of_few_and_different_requests_is_not_told_apart():
    def wide(one):
        one = copy.deepcopy(one)
        one["metrics"]["e2e_ms"]["p90"] = 1.5 * one["metrics"]["e2e_ms"]["p50"]
        return one

    assert changes(wide(benchmark(8, slower=1.3, day=2)), wide(benchmark(8)))["output_tokens_per_s"] == compare.UNCLEAR
    assert changes(wide(benchmark(8, slower=2.0, day=2)), wide(benchmark(8)))["output_tokens_per_s"] == compare.WORSE
    same, better = (changes(benchmark(8, slower=one, day=2), benchmark(8)) for one in (0.99, 0.8))
    assert (set(same.values()), set(better.values())) == ({compare.SAME}, {compare.BETTER})


def test_before_is_the_same_point_that_counts():
    now = benchmark(8, day=5)
    fine = benchmark(8, day=1)
    hardware = {"accelerator": "trainium3", "count": 4}
    unlike = [
        benchmark(4), benchmark(8, recipe="other"), benchmark(8, hardware=hardware), benchmark(8, scope="fleet"),
        benchmark(8, tool={**now["tool"], "name": "other"}), failed(benchmark(8)), benchmark(8, void="restarted"),
        benchmark(8, inventory="other"), benchmark(8, workload={**now["workload"], "load": "f" * 64}),
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
    assert set(changes(now, earlier)) == {"output_tokens_per_s", "e2e_ms"}


CLONE = pathlib.Path(__file__).resolve().parents[5]
REFERENCES = yaml.safe_load((CLONE / "roles/evaluate/vars/main.yml").read_text(encoding="utf-8"))["evaluate_references"]
BIG, SMALL, BF16 = "openai/gpt-oss-120b", "openai/gpt-oss-20b", "unsloth/gpt-oss-120b-BF16"
DEPLOYMENT = {"name": "r", "platform": "cpu", "engine": "x", "model": {"repo": BIG}}


@pytest.mark.parametrize(
    ("name", "effort", "model", "platform", "score"),
    [
        ("gpqa", "low", BIG, "nvidia", 65.3), ("aime25", "high", SMALL, "nvidia", 85.8),
        ("gpqa", "high", BF16, "ascend", 79.4), ("mmlu", "medium", BF16, "ascend", 89.5),
        # the platform's score for the default effort, and the general one for another
        ("gpqa", "medium", BIG, "neuron", 72.22), ("gpqa", "high", BIG, "neuron", 79.4),
        # not published
        ("mmlu", "low", BF16, "nvidia", None), ("mmlu", "medium", SMALL, "nvidia", None),
        ("basic", "low", BIG, "nvidia", None),
    ],
)  # fmt: skip
def test_published_scores(name, effort, model, platform, score):
    one = measure.reference_of(REFERENCES, name, effort, model, platform)
    assert (one and one["score"]) == score
    if one:
        assert one["source"] and one["model"] == model and (one["effort"] is None) == (score in (72.22, 89.5))


@pytest.mark.parametrize(("name", "right", "asked", "judged", "ok", "difference"), [
    ("gpqa", 143, 198, "agrees", True, -0.18), ("gpqa", 99, 198, "below", False, -22.4),
    ("basic", 1, 1, "no-reference", True, None),
])  # fmt: skip
def test_a_score_is_compared_with_the_published_one(name, right, asked, judged, ok, difference):
    numbers = {"questions": asked, "score": 100 * right / asked, "interval": result.wilson(right, asked)}
    document = {**evaluation(name, "medium", reference=None), **numbers}
    document = measure.compared(document, REFERENCES, DEPLOYMENT)
    assert (document["verdict"], document["ok"]) == (judged, ok)
    assert document["difference"] == (difference and pytest.approx(difference, abs=0.01))
    table = measure.table(document)
    assert len(table["rows"][0]) == len(table["columns"])
    document = measure.compared({**document, "ok": True}, REFERENCES, DEPLOYMENT, complete=False)
    assert (document["verdict"], document["reference"], document["ok"]) == ("no-reference", None, True)
