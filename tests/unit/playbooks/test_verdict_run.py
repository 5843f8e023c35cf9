# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reports say after runs that did not come to every host, or whose servers never became ready."""

from __future__ import annotations

import json
import sys

from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.engines.small_fleet import Fleet
from ansible_collections.inference.fleet.tests.unit.engines.small_node import SmallNode, watched
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import play_tasks


def test_a_host_that_a_run_did_not_come_to_is_not_called_well(tmp_path):
    with (
        ScriptedEngine(model="gpt-oss-small") as first,
        ScriptedEngine(model="gpt-oss-small") as second,
        Fleet(tmp_path, None, None, None).deployed(first, second, second) as fleet,
    ):
        fleet.play(broken=["n3"]).failed("fatal: [n3]")
        one = fleet.verdict
        assert (one["ok"], one["run"]["hosts"], fleet.missing) == (None, ["n1", "n2", "n3"], ["n3"])
        assert one["hosts"]["n3"]["missing"]["last"] is None
        (server,) = one["hosts"]["n3"]["deployed"]["servers"]
        assert server["port"] == fleet.hosts["n3"]["fleet_override"]["servers"]["server"]["port"]

        # Hosts outside of --limit are left as they are.
        fleet.play("--limit", "n2", broken=["n2"]).failed("fatal: [n2]")
        two = fleet.verdict
        assert (two["ok"], two["run"]["hosts"], fleet.missing) == (None, ["n2"], ["n2", "n3"])
        assert two["run"]["id"] != one["run"]["id"] and two["hosts"]["n1"] == one["hosts"]["n1"]

        before = (fleet.reports / "verdict.json").read_bytes()
        fleet.play("--check").ok()
        assert (fleet.reports / "verdict.json").read_bytes() == before


def test_a_run_in_which_every_host_fails_before_it_is_asked_is_told_where_the_run_was_started(tmp_path):
    """No play comes after one in which all hosts failed, so the report is not written at the end. They are not in the
    installed collection, which goes with them when it is installed again."""
    fleet = Fleet(tmp_path, 18001)
    fleet.reports = tmp_path / "reports" / tmp_path.name
    started = {"playbook": "inference.fleet.site", "broken": ["n1"], "folder": tmp_path, "variables": {}}
    fleet.play(**started).failed()
    assert (fleet.verdict["ok"], fleet.missing) == (None, ["n1"])
    (fleet.reports / "verdict.json").unlink()
    # A run that verifies nothing says nothing about verdicts.
    fleet.play("--tags", "preflight", **started).failed()
    assert not (fleet.reports / "verdict.json").exists()


def test_servers_that_never_become_ready_fail_the_play(tmp_path):
    """A decode worker is asked nothing by itself, so the verdicts alone cannot tell that it is dead."""
    with watched(tmp_path):
        node = SmallNode(tmp_path / "root")
        health = {"path": "/health", "budget_s": 2, "poll_s": 1}
        entry = node.entry("decode-0", role="decode", command=["/bin/sleep", "600"], health=health)
        variables = {
            "fleet_root": node.root, "fleet_servers": [entry], "fleet_reports_dir": str(tmp_path / "reports"),
            "serve_manager": "supervisord", "serve_toolkit": sys.prefix,
        }  # fmt: skip
        try:
            run = play_tasks(tmp_path, [], roles=["inference.fleet.serve"], variables=variables)
        finally:
            node.end()
    run.failed("0 of 1 servers ready")
    assert run.count("failed") == 1
    verdict = json.loads((tmp_path / "reports" / "verdict.json").read_text())
    host = verdict["hosts"]["localhost"]
    assert (verdict["ok"], host["ok"], host["verdicts"]) == (False, False, [])
    assert "0 of 1 servers ready" in host["problem"]
    assert "decode-0: " in (tmp_path / "reports" / "verdict.html").read_text()
