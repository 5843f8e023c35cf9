# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import multiprocessing
import os

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils import report
from hypothesis import given
from hypothesis import strategies as st

THEN = "2026-01-01T00:00:00Z"
NOW = "2026-01-02T00:00:00Z"


def probe(name, ok=True, ms=5, **more):
    return {"name": name, "ok": ok, "ms": ms, "sent": "POST /", "got": "HTTP 200 {}", "cause": None, **more}


def verdict(server="server-0", ok=True, mode="full", probes=None, port=8000):
    return {
        "schema": 1,
        "host": "node-1",
        "server": server,
        "ok": ok,
        "mode": mode,
        "at": NOW,
        "url": "http://127.0.0.1:%d" % port,
        "model_id": "gpt-oss-120b",
        "hash": "hash of " + server,
        "probes": [probe("chat", ok)] if probes is None else probes,
    }


def entry(name="server-0", role="server", port=8000):
    return {"name": name, "role": role, "port": port, "hash": "hash of " + name}


# -- one host ----------------------------------------------------------------------------------------------------------


def test_a_full_run_is_the_full_evidence_itself():
    assert report.host_report("node-1", "full", [verdict()], NOW) == {
        "schema": 1,
        "host": "node-1",
        "ok": True,
        "generated": NOW,
        "mode": "full",
        "verdicts": [verdict()],
        "last_full": None,
    }


def test_a_quick_run_keeps_the_last_full_one_however_many_follow():
    full = report.host_report("node-1", "full", [verdict(ok=False)], THEN)
    first = report.host_report("node-1", "quick", [verdict(mode="quick")], NOW, full)
    second = report.host_report("node-1", "quick", [verdict(mode="quick")], NOW, first)
    for quick in (first, second):
        assert quick["ok"] is True
        assert quick["last_full"] == {"ok": False, "generated": THEN, "verdicts": [verdict(ok=False)]}
    assert report.host_report("node-1", "full", [verdict()], NOW, second)["last_full"] is None


@pytest.mark.parametrize("previous", [None, [], "x", {}, {"mode": "quick"}])
def test_a_quick_run_after_nothing_has_nothing_to_keep(previous):
    assert report.host_report("node-1", "quick", [verdict(mode="quick")], NOW, previous)["last_full"] is None


@pytest.mark.parametrize(
    ("oks", "expected"),
    [([], None), ([True], True), ([True, None], None), ([True, None, False], False), ([None], None)],
)
def test_a_host_is_ok_where_all_its_servers_are(oks, expected):
    verdicts = [verdict("server-%d" % number, ok) for number, ok in enumerate(oks)]
    assert report.host_report("node-1", "full", verdicts, NOW)["ok"] is expected


# -- auto --------------------------------------------------------------------------------------------------------------

GOOD = report.host_report("node-1", "full", [verdict()], THEN)
BAD = report.host_report("node-1", "full", [verdict(ok=False)], THEN)
QUICK = report.host_report("node-1", "quick", [verdict(mode="quick")], NOW, GOOD)


@pytest.mark.parametrize(
    ("changed", "servers", "previous", "expected"),
    [
        (False, [entry()], GOOD, "quick"),
        (False, [entry()], QUICK, "quick"),
        (False, [entry(), entry("decode-0", "decode", 8001)], GOOD, "quick"),
        (True, [entry()], GOOD, "full"),
        (None, [entry()], GOOD, "full"),
        (False, [entry()], None, "full"),
        (False, [entry()], BAD, "full"),
        (False, [entry(), entry("server-1")], GOOD, "full"),
        (False, [dict(entry(), hash="other")], GOOD, "full"),
        # it passed in full once, never did in full, did not answer last time
        (False, [entry()], report.host_report("node-1", "quick", [verdict()], NOW, BAD), "full"),
        (False, [entry()], report.host_report("node-1", "quick", [verdict()], NOW), "full"),
        (False, [entry()], report.host_report("node-1", "quick", [verdict(ok=False)], NOW, GOOD), "full"),
    ],
)
def test_a_server_that_never_passed_in_full_is_not_asked_quickly(changed, servers, previous, expected):
    assert report.settle_auto(changed, servers, previous) == expected


# -- the fleet ---------------------------------------------------------------------------------------------------------


def host(name, ok=True, verdicts=None):
    return report.host_report(name, "full", [verdict(ok=ok)] if verdicts is None else verdicts, NOW)


def test_the_fleets_file_keeps_evidence_only_where_something_failed():
    failed = verdict(ok=False, probes=[probe("alive"), probe("chat", False, cause="why")])
    fleet = report.merge(None, report.host_report("node-1", "full", [failed], NOW), ["node-1"], NOW)
    assert fleet["hosts"]["node-1"]["verdicts"][0]["probes"] == [
        {"name": "alive", "ok": True, "ms": 5, "cause": None},
        probe("chat", False, cause="why"),
    ]
    assert failed["probes"][0]["got"] == "HTTP 200 {}"


def test_hosts_that_left_the_inventory_are_dropped_and_ok_follows():
    fleet = report.merge(None, host("gone", ok=False), ["gone", "node-1"], THEN)
    fleet = report.merge(fleet, host("node-1"), ["gone", "node-1"], THEN)
    assert (fleet["ok"], sorted(fleet["hosts"])) == (False, ["gone", "node-1"])
    fleet = report.merge(fleet, host("node-2"), ["node-1", "node-2"], NOW)
    assert (fleet["ok"], sorted(fleet["hosts"])) == (True, ["node-1", "node-2"])
    assert (fleet["schema"], fleet["generated"]) == (1, NOW)


def test_an_implicit_localhost_stays_although_the_inventory_does_not_name_it():
    assert list(report.merge(None, host("localhost"), [], NOW)["hosts"]) == ["localhost"]


def test_a_host_without_servers_does_not_keep_the_fleet_from_being_ok():
    fleet = report.merge(None, host("decode-node", verdicts=[]), ["decode-node", "node-1"], NOW)
    assert fleet["ok"] is None
    assert report.merge(fleet, host("node-1"), ["decode-node", "node-1"], NOW)["ok"] is True


@pytest.mark.parametrize("fleet", [None, [], "x", {}, {"hosts": None}])
def test_a_file_of_another_form_is_begun_anew(fleet):
    assert list(report.merge(fleet, host("node-1"), ["node-1"], NOW)["hosts"]) == ["node-1"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([True, False, None])), min_size=1), st.randoms())
def test_the_fleet_is_the_last_report_of_each_host_in_whatever_order(runs, random):
    fleet = None
    for name, ok in runs:
        fleet = report.merge(fleet, host(name, ok), "abcd", NOW)
    last = dict(runs)
    assert {name: value["ok"] for name, value in fleet["hosts"].items()} == last
    assert fleet["ok"] == (False if False in last.values() else True if set(last.values()) == {True} else None)
    shuffled = list(last.items())
    random.shuffle(shuffled)
    again = None
    for name, ok in shuffled:
        again = report.merge(again, host(name, ok), "abcd", NOW)
    assert again == fleet


# -- files -------------------------------------------------------------------------------------------------------------


def read(path):
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


def test_the_files_that_are_written(tmp_path):
    folder = str(tmp_path / "deep" / "reports")
    written = report.write_reports(folder, "node-1", "full", [verdict()], ["node-1"])
    assert read(os.path.join(folder, "hosts", "node-1.json")) == written
    fleet = read(os.path.join(folder, "verdict.json"))
    assert (fleet["ok"], list(fleet["hosts"])) == (True, ["node-1"])
    quick = report.write_reports(folder, "node-1", "quick", [verdict(mode="quick")], ["node-1"])
    assert quick["last_full"]["verdicts"] == [verdict()]
    assert read(os.path.join(folder, "verdict.json"))["hosts"]["node-1"]["last_full"]["ok"] is True
    assert sorted(os.listdir(folder)) == [".verdict.lock", "hosts", "verdict.json"]


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_damaged_files_are_replaced(tmp_path, content):
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / "node-1.json").write_text(content)
    (tmp_path / "verdict.json").write_text(content)
    report.write_reports(str(tmp_path), "node-1", "quick", [verdict()], ["node-1"])
    assert read(tmp_path / "hosts" / "node-1.json")["ok"] is True
    assert list(read(tmp_path / "verdict.json")["hosts"]) == ["node-1"]


@pytest.mark.parametrize("name", ["../../evil", "a/b", "fd00::1", "node 1", "[::1]", ".."])
def test_any_host_name_is_one_file_in_the_folder(tmp_path, name):
    path = report.host_path(str(tmp_path), name)
    assert os.path.dirname(os.path.abspath(path)) == str(tmp_path / "hosts")


def _write(folder, number, hosts):
    report.write_reports(folder, "node-%d" % number, "full", [verdict()] * 8, hosts)


def test_hosts_that_report_at_once_lose_nothing(tmp_path):
    hosts = ["node-%d" % number for number in range(24)]
    context = multiprocessing.get_context("fork")  # as Ansible's own workers are
    workers = [context.Process(target=_write, args=(str(tmp_path), number, hosts)) for number in range(24)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0] * 24
    assert sorted(read(tmp_path / "verdict.json")["hosts"]) == sorted(hosts)


# -- for people --------------------------------------------------------------------------------------------------------


def test_the_table():
    verdicts = [
        verdict(probes=[probe("alive", ms=2), probe("warm-up", ms=812)]),
        verdict("server-1", False, probes=[probe("alive"), probe("chat", False), probe("effort", None)], port=8001),
        verdict("server-2", None, probes=[probe("alive", None, cause="not verified (check)")], port=8002),
    ]
    assert report.table("node-1", verdicts) == {
        "title": "Verdicts",
        "columns": ["host", "server", "port", "verdict", "probes", "details"],
        "rows": [
            ["node-1", "server-0", 8000, "ok", "2/2", "slowest: warm-up 812 ms"],
            ["node-1", "server-1", 8001, "FAILED", "1/2", "failed: chat; not measured: effort"],
            ["node-1", "server-2", 8002, "not verified", "0/0", "not verified (check)"],
        ],
    }


def test_the_message_of_a_failure():
    verdicts = [
        verdict(),
        verdict(
            "server-1",
            False,
            port=8001,
            probes=[
                probe("alive"),
                probe("warm-up", False, 31, got="no answer: connection refused", cause="nothing listens"),
                probe("chat", None, sent=None, got=None, cause="not run: warm-up failed"),
                probe("effort", None, cause="not measurable on a stand-in"),
            ],
        ),
    ]
    assert report.failure_message("node-1", verdicts) == (
        "1 of 2 servers on node-1 did not pass the verification.\n"
        "server-1 at http://127.0.0.1:8001 (gpt-oss-120b), full:\n"
        "  warm-up failed after 31 ms\n"
        "    sent:  POST /\n"
        "    got:   no answer: connection refused\n"
        "    cause: nothing listens\n"
        "  not run after that: chat"
    )
