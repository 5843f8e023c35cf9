# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the control node for servers: verifications are reported, and changes void verdicts."""

from __future__ import annotations

import contextlib
import json
import os
import types
from unittest import mock

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.inference.fleet.plugins.action import node
from ansible_collections.inference.fleet.plugins.plugin_utils.operations.servers import engine_servers_info
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.plugins.plugin_utils.reporting.test_report import entry, verdict


def act(operation, arguments, answer, check_mode=False):
    """Run the operation with a node that answers `answer`: (the task's result, the arguments that the node got)."""
    given = {"operation": operation, "arguments": arguments}
    task = mock.Mock(args=given, action="inference.fleet.node", async_val=0, check_mode=check_mode)
    action = node.ActionModule(task, mock.Mock(), mock.Mock(), mock.Mock(), mock.Mock(), mock.Mock())
    action.call = mock.Mock(side_effect=[answer])
    result = action.run(task_vars={"inventory_hostname": "node-1", "groups": {"all": ["node-1"]}})
    return result, action.call.call_args.args[1]


def verify(arguments, answer, check_mode=False):
    return act("endpoint_verify", {"servers": [], **arguments}, answer, check_mode)


FAILED_PROBE = {"name": "chat", "ok": False, "ms": 1, "sent": "POST /", "got": "HTTP 500", "cause": "why"}
VERDICT = {"server": "server-0", "ok": False, "url": "http://127.0.0.1:1", "model_id": "m", "mode": "full"}
ANSWER = {"changed": False, "ok": False, "mode": "full", "verdicts": [dict(VERDICT, probes=[FAILED_PROBE])]}


def test_a_problem_is_told_by_the_report_and_left_to_the_caller(tmp_path):
    answer = dict(ANSWER, ok=None, verdicts=[])
    result, _arguments = verify({"reports_dir": str(tmp_path), "problem": "0 of 1 servers ready"}, answer)
    assert not result.get("failed")
    host = json.loads((tmp_path / "hosts" / "node-1.json").read_text())
    assert (host["ok"], host["problem"]) == (False, "0 of 1 servers ready")


def test_a_failure_of_the_module_is_passed_on_and_nothing_is_written(tmp_path):
    answer = {"failed": True, "msg": "Plan entry 'server-0': its hash does not fit its content."}
    result, _arguments = verify({"servers": "?", "reports_dir": str(tmp_path)}, dict(answer))
    assert {key: result[key] for key in answer} == answer
    assert "fleet_report" not in result
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("folder", "warned"), [("file", 1), ("reports", 0), (None, 0)])
@pytest.mark.parametrize("ok", [False, True])
def test_the_outcome_of_a_run_is_that_of_its_servers(tmp_path, ok, folder, warned):
    """Reports that cannot be written are a warning; the message names those that were."""
    (tmp_path / "file").write_text("")
    where = {"reports_dir": str(tmp_path / folder)} if folder else {}
    result, sent = verify({**where, "mode": "auto"}, dict(ANSWER, ok=ok))
    assert sent["mode"] == ("full" if folder else "auto")  # reports settle it
    assert (len(result.get("warnings", [])), result.get("failed", False)) == (warned, not ok)
    assert ok or "server-0 at http://127.0.0.1:1 (m), full" in result["msg"]
    files = ["%s/reports/%s" % (tmp_path, name) for name in ("hosts/node-1.json", "verdict.html")]
    assert ok or all((path in result["msg"]) == (folder == "reports") for path in files)
    assert result["fleet_report"]["rows"] == [["node-1", "server-0", 1, "FAILED", "0/1", "failed: chat"]]
    server = {"ok": False, "url": "http://127.0.0.1:1", "failed": {"chat": "why"}}
    expected = {"mode": "full", "problem": None, "ok": False, "servers": {"server-0": server}}
    assert expected.items() <= result["verdict"].items()
    assert "verdict" not in verify(where, dict(ANSWER), check_mode=True)[0]


ASKED = {
    "probes": [{"name": "mine", "path": "/x"}],
    "effort_parameter": "reasoning_effort",
    "responses_api": True,
    "timeout": 120,
}


@pytest.mark.parametrize(
    ("change", "mode"),
    [
        ({}, "quick"), ({"timeout": "120"}, "quick"), ({"simulated": "no"}, "quick"),
        ({"probes": [{"name": "mine", "path": "/y"}]}, "full"), ({"probes": []}, "full"),
        ({"responses_api": False}, "full"), ({"responses_api": False, "mode": "quick"}, "quick"),
    ],
)  # fmt: skip
def test_auto_is_full_if_the_recipe_asks_something_else(tmp_path, change, mode):
    server = plan_entry(8000)
    given = {**ASKED, "servers": [server], "servers_changed": False, "reports_dir": str(tmp_path), "mode": "auto"}
    answer = {"changed": False, "ok": True, "mode": "full", "verdicts": [{**verdict(), "hash": server["hash"]}]}
    assert verify(given, dict(answer))[1]["mode"] == "full"
    assert verify({**given, **change}, dict(answer))[1]["mode"] == mode


INVENTORY = ["node-1", "node-2"]
BOTH = ("server-0", "server-1")


@pytest.fixture
def reports(tmp_path):
    """Two hosts with two verified servers each; of the first the last look was quick."""
    folder = str(tmp_path / "reports")
    full = ("full", [verdict(name) for name in BOTH], None, None)
    report.write_all(folder, dict.fromkeys(INVENTORY, full), INVENTORY)
    quick = ("quick", [verdict(name, mode="quick") for name in BOTH], None, None)
    report.write_all(folder, {"node-1": quick}, INVENTORY)
    return tmp_path / "reports"


def change(folder, answer, check_mode=False):
    return act("engine_servers", {"reports_dir": str(folder)}, answer, check_mode)


def answer(*actions, **more):
    return {"changed": bool(actions), "actions": [
        {"name": name, "kind": kind, "reason": "why"} for name, kind in actions], **more}  # fmt: skip


def states(folder):
    """{server: (ok, why it was voided)} as both files have it, the last full verdict included."""
    host = json.loads((folder / "hosts" / "node-1.json").read_text())
    fleet = json.loads((folder / "verdict.json").read_text())
    found = {one["server"]: (one["ok"], one.get("void")) for one in host["verdicts"]}
    for other in (host["last_full"]["verdicts"], fleet["hosts"]["node-1"]["verdicts"]):
        assert {one["server"]: (one["ok"], one.get("void")) for one in other} == found
    assert host["ok"] == fleet["hosts"]["node-1"]["ok"]
    return found, host, fleet


@pytest.mark.parametrize(("kind", "word"), [("create", "started"), ("change", "restarted"), ("remove", "removed")])
def test_what_changes_a_server_voids_its_verdict_and_no_other(reports, kind, word):
    change(reports, answer(("server-1", kind)))
    found, host, fleet = states(reports)
    assert found["server-0"] == (True, None)
    ok, why = found["server-1"]
    assert ok is None and why.startswith(word + " at ")
    assert (host["ok"], host["last_full"]["ok"], fleet["ok"]) == (None, None, None)
    assert fleet["hosts"]["node-2"]["ok"] is True
    assert why in (reports / "verdict.html").read_text()
    # quick is not enough until it was verified in full again
    assert report.settle_auto(False, [entry(name) for name in BOTH], host) == "full"


@pytest.mark.parametrize(
    ("actions", "check_mode"),
    [([("server-0", "redefine"), ("server-1", "enable")], False), ([], False), ([("server-0", "restart")], True)],
)
def test_what_leaves_the_processes_alone_voids_nothing(reports, actions, check_mode):
    before = {path: path.read_bytes() for path in reports.rglob("*") if path.is_file()}
    change(reports, answer(*actions), check_mode)
    assert {path: path.read_bytes() for path in reports.rglob("*") if path.is_file()} == before


def test_a_module_that_fails_on_the_way_voids_what_it_had_begun_and_a_second_change_does_not_hide_when(reports):
    result, _arguments = change(reports, answer(("server-0", "restart"), failed=True, msg="no"))
    first = states(reports)[0]
    assert (result["failed"], first["server-0"][0]) == (True, None)
    change(reports, answer(("server-0", "stop")))
    assert states(reports)[0] == first


@pytest.mark.parametrize("end", [{"failed": True, "msg": "MODULE FAILURE"}, AnsibleConnectionFailure("lost")])
def test_a_change_without_an_answer_voids_the_verdicts_of_its_servers(reports, end):
    given = {"reports_dir": str(reports), "servers": [{"name": name} for name in BOTH], "only": ["server-1"]}
    with contextlib.suppress(AnsibleConnectionFailure):
        act("engine_servers", given, end)
    assert {name: ok for name, (ok, _why) in states(reports)[0].items()} == {"server-0": True, "server-1": None}


def test_missing_reports_are_not_made_and_those_that_cannot_be_changed_are_a_warning(tmp_path, reports, monkeypatch):
    for folder in (tmp_path / "none", ""):
        change(folder, answer(("server-0", "restart")))
    assert list(tmp_path.iterdir()) == [reports]
    monkeypatch.setattr(report, "write_atomic", mock.Mock(side_effect=OSError(30, "Read-only file system")))
    (warning,) = change(reports, answer(("server-0", "restart")))[0]["warnings"]
    assert "server-0" in warning and str(reports) in warning and "Read-only file system" in warning


LOADING = {"name": "server-1", "ready": False, "reason": "loading"}
READY = {"name": "server-0", "ready": True}


@pytest.mark.parametrize(
    ("probe", "servers", "reason"),
    [(True, [READY, LOADING], "server-1: loading"), (True, [READY], None), (False, [READY, LOADING], None)],
)
def test_a_task_that_polls_has_a_reason_when_its_retries_end(probe, servers, reason):
    action = types.SimpleNamespace(
        _task=types.SimpleNamespace(register="seen"), call=lambda *_given: {"servers": servers}
    )
    found = engine_servers_info(action, {"probe": probe, "secrets": {}}, {"inventory_hostname": "node"})
    assert ("msg" in found) == bool(reason)
    assert reason is None or reason in found["msg"]
