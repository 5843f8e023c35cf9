# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible_collections.inference.fleet.plugins.plugin_utils import tables


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
    report = tables.status_report(
        "node1",
        [
            {"name": "server-0", "port": 8000, "state": "running", "ready": True, "since": "2026-01-01T00:00:00Z",
             "restarts": 1, "memory_mib": 2048, "drift": None, "reason": None},
            {"name": "server-1", "port": 8001, "state": "missing", "drift": "not deployed"},
        ],
    )  # fmt: skip
    assert tables.render(report["columns"], report["rows"]) == [
        "host   server    port  state    ready  since                 restarts  memory   plan          reason",
        "node1  server-0  8000  running  yes    2026-01-01T00:00:00Z  1         2.0 GiB  as planned    -",
        "node1  server-1  8001  missing  -      -                     -         -        not deployed  -",
    ]
