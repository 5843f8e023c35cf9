# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
from unittest import mock

import pytest
from ansible_collections.inference.fleet.plugins.action import node


def act(arguments, answer, check_mode=False):
    """Run the action plugin with a module that answers `answer`: (result, arguments that the module got)."""
    task = mock.Mock(args=arguments, action="inference.fleet.endpoint_verify", async_val=0, check_mode=check_mode)
    action = node.ActionModule(task, mock.Mock(), mock.Mock(), mock.Mock(), mock.Mock(), mock.Mock())
    action.call = mock.Mock(return_value=answer)
    result = action.run(task_vars={"inventory_hostname": "node-1", "groups": {"all": ["node-1"]}})
    return result, action.call.call_args.args[1]


FAILED_PROBE = {"name": "chat", "ok": False, "ms": 1, "sent": "POST /", "got": "HTTP 500", "cause": "why"}
VERDICT = {"server": "server-0", "ok": False, "url": "http://127.0.0.1:1", "model_id": "m", "mode": "full"}
ANSWER = {"changed": False, "ok": False, "mode": "full", "verdicts": [dict(VERDICT, probes=[FAILED_PROBE])]}
MESSAGE = (
    "1 of 1 servers on node-1 did not pass the verification.\nserver-0 at http://127.0.0.1:1 (m), full:\n"
    "  chat failed after 1 ms\n    sent:  POST /\n    got:   HTTP 500\n    cause: why"
)


def test_the_message_names_the_file_with_all_of_it(tmp_path):
    result, _arguments = act({"servers": [], "reports_dir": str(tmp_path)}, dict(ANSWER))
    assert result["failed"] is True
    assert result["msg"] == MESSAGE + (
        "\nThe complete report: %s/hosts/node-1.json\nThe same as a page: %s/verdict.html" % (tmp_path, tmp_path)
    )
    assert result["fleet_report"]["rows"] == [["node-1", "server-0", 1, "FAILED", "0/1", "failed: chat"]]


def test_a_problem_is_told_by_the_report_and_left_to_the_caller(tmp_path):
    answer = dict(ANSWER, ok=None, verdicts=[])
    result, _arguments = act({"servers": [], "reports_dir": str(tmp_path), "problem": "0 of 1 servers ready"}, answer)
    assert not result.get("failed")
    host = json.loads((tmp_path / "hosts" / "node-1.json").read_text())
    assert (host["ok"], host["problem"]) == (False, "0 of 1 servers ready")


def test_a_failure_of_the_module_is_passed_on_and_nothing_is_written(tmp_path):
    answer = {"failed": True, "msg": "Plan entry 'server-0': its hash does not fit its content."}
    result, _arguments = act({"servers": "?", "reports_dir": str(tmp_path)}, dict(answer))
    assert {key: result[key] for key in answer} == answer
    assert "fleet_report" not in result
    assert os.listdir(tmp_path) == []


NOT_WRITTEN = (
    "No report could be written to reports_dir %s/reports: Not a directory. The verdicts are in the run's statistics "
    "(fleet_verdict); set fleet_reports_dir to a folder that can be written."
)
SUMMARY = {
    "mode": "full",
    "problem": None,
    "servers": {"server-0": {"ok": False, "url": "http://127.0.0.1:1", "failed": {"chat": "why"}}},
}


@pytest.mark.parametrize("ok", [False, True])
def test_reports_that_cannot_be_written_are_a_warning(tmp_path, ok):
    """The outcome of a run is that of its servers."""
    (tmp_path / "reports").write_text("a file")
    answer = dict(ANSWER, ok=ok)
    result, _arguments = act({"servers": [], "reports_dir": str(tmp_path / "reports"), "mode": "auto"}, answer)
    assert result["warnings"] == [NOT_WRITTEN % tmp_path]
    assert (result.get("failed", False), result.get("msg")) == ((True, MESSAGE) if not ok else (False, None))
    assert result["verdict"].pop("generated")
    assert result["verdict"].pop("ok") is False
    assert result["verdict"] == SUMMARY


def test_the_verdict_is_there_without_reports():
    result, _arguments = act({"servers": []}, dict(ANSWER))
    assert "warnings" not in result
    assert result["verdict"]["servers"] == SUMMARY["servers"]
    assert "verdict" not in act({"servers": []}, dict(ANSWER), check_mode=True)[0]


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        ({"servers": [], "servers_changed": False}, "auto"),
        ({"servers": [], "servers_changed": "no", "reports_dir": "R"}, "full"),
        ({"servers": [], "reports_dir": "R", "mode": "quick"}, "quick"),
    ],
)
def test_auto_is_settled_by_the_reports_where_there_are_any(tmp_path, arguments, mode):
    if "reports_dir" in arguments:
        arguments = dict(arguments, reports_dir=str(tmp_path))
    _result, sent = act(arguments, dict(ANSWER, ok=None, verdicts=[]))
    assert sent.get("mode", "auto") == mode
