# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import tables


def test_rows_of_several_hosts_are_one_table():
    reports = {}
    tables.gather(reports, {"title": "Plan", "columns": ["host"], "rows": [["a"]]})
    tables.gather(reports, None)
    tables.gather(reports, {"title": "Plan", "columns": ["host"], "rows": [["b"]]})
    assert reports == {"Plan": {"title": "Plan", "columns": ["host"], "rows": [["a"], ["b"]]}}


def test_one_result_may_carry_several_tables():
    reports = {}
    tables.gather(
        reports, [{"title": "Plan", "columns": ["a"], "rows": [[1]]}, {"title": "X", "columns": ["b"], "rows": []}]
    )
    assert reports == {
        "Plan": {"title": "Plan", "columns": ["a"], "rows": [[1]]},
        "X": {"title": "X", "columns": ["b"], "rows": []},
    }


def test_columns_are_as_wide_as_their_widest_cell():
    lines = tables.render(["host", "ok", "details"], [["node1", True, None], ["n", False, "two\n lines"]])
    assert lines == ["host   ok   details", "node1  yes  -", "n      no   two lines"]


def test_progress_names_who_is_waited_for_and_why():
    servers = [
        {"name": "server-0", "ready": True},
        {"name": "server-1", "ready": False, "reason": "compiling for 34 s"},
    ]
    assert tables.progress_line({"servers": servers}) == "1 of 2 ready; server-1: compiling for 34 s"
    many = [{"name": "server-%d" % index, "state": "waiting"} for index in range(8)]
    assert tables.progress_line({"servers": many}) == (
        "0 of 8 ready; server-0: waiting; server-1: waiting; server-2: waiting; server-3: waiting; and 4 more"
    )
    assert tables.progress_line({"servers": []}) is None
    assert tables.progress_line({"msg": "x"}) is None


def test_status_is_readable():
    differences = [{"kind": "stopped", "text": "it is stopped"}, {"kind": "config", "text": "changed: port"}]
    report = tables.status_report(
        "node1",
        [
            {"name": "server-0", "port": 8000, "state": "running", "ready": True, "since": "2026-01-01T00:00:00Z",
             "restarts": 1, "memory_mib": 2048, "drift": None, "differences": [], "notes": ["the drop-in /x stays"]},
            {"name": "server-1", "port": 8001, "state": "stopped", "differences": differences},
            {"name": "server-2", "state": "running", "differences": None},
        ],
    )  # fmt: skip
    rows = [*report["rows"], *tables.unreachable_report("node2")["rows"]]
    assert tables.render(report["columns"], rows) == [
        "host   server    port  state    ready  since                 restarts  memory   drift",
        "node1  server-0  8000  running  yes    2026-01-01T00:00:00Z  1         2.0 GiB  as planned",
        "                                                                                note: the drop-in /x stays",
        "node1  server-1  8001  stopped  -      -                     -         -        it is stopped",
        "                                                                                changed: port",
        "node1  server-2  -     running  -      -                     -         -        no plan",
        "node2  -         -     -        -      -                     -         -        unreachable",
    ]


GIB = 1 << 30


@pytest.mark.parametrize(
    "progress, line",
    [
        ({"phase": "listing"}, "listing"),
        ({"phase": "listing", "percent": 0.0, "bytes_done": 0, "bytes_total": 0}, "listing"),
        (
            {"phase": "downloading", "percent": 45.9, "bytes_done": 27.4 * GIB, "bytes_total": 60.79 * GIB,
             "rate_bytes_s": 312 << 20, "eta_s": 109.2, "file": "model-00006-of-00014.safetensors"},
            "downloading 45 %, 27.4 of 60.8 GiB, 312.0 MiB/s, 1 min 49 s left, model-00006-of-00014.safetensors",
        ),
        (
            {"phase": "downloading", "percent": 0, "bytes_done": 0, "bytes_total": 1000, "rate_bytes_s": 0,
             "eta_s": None, "file": None},
            "downloading 0 %, 0 of 1000 B, 0 B/s",
        ),
        ({"phase": "verifying", "percent": 99.99, "bytes_done": 1 << 20}, "verifying 99 %, 1.0 MiB"),
        ({}, "working"),
    ],
)  # fmt: skip
def test_a_transfer_is_one_line(progress, line):
    assert tables.transfer_line(progress) == line


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (109, "1 min 49 s"), (3600, "1 h 0 min"), (7500, "2 h 5 min")],
)
def test_durations(seconds, text):
    assert tables.duration(seconds) == text


def test_progress_counts_those_that_wait_for_another():
    leader = {"name": "server-0", "ready": False, "reason": "compiling since 10:32:05Z (180 s), health: no answer"}
    followers = [{"name": "server-%d" % index, "reason": "waiting for server-0 since 10:32"} for index in range(1, 8)]
    assert tables.progress_line({"servers": [leader, *followers]}) == (
        "0 of 8 ready; server-0: compiling since 10:32:05Z (180 s), health: no answer; 7 wait for server-0"
    )
    assert tables.progress_line({"servers": [leader, followers[0]]}) == (
        "0 of 2 ready; server-0: compiling since 10:32:05Z (180 s), health: no answer; "
        "server-1: waiting for server-0 since 10:32"
    )
