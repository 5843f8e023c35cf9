# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdicts of converged hosts are reported in one task."""

from __future__ import annotations

import json
import types

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import verdicts
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look

PROBE = {"name": "completion", "ok": True, "ms": 5, "sent": "", "got": "", "cause": ""}
HOSTS = ["n1", "n2", "n3"]


@pytest.fixture(autouse=True)
def run_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run_look.C, "DEFAULT_LOCAL_TMP", str(tmp_path))


def note(host, folder, ok=True):
    run_look.note(host, list(run_look.STEPS), None)
    verdict = {
        "schema": 1, "host": host, "server": "server-0", "ok": ok, "mode": "quick", "at": "2026-11-24T10:00:00Z",
        "url": "http://127.0.0.1:8000", "model_id": "m", "hash": "a", "not_verified": None, "probes": [PROBE],
    }  # fmt: skip
    run_look.note_verdict(host, {"ok": ok, "mode": "quick", "verdicts": [verdict], "folder": folder, "what": None})


def report(check_mode=False):
    action = types.SimpleNamespace(_task=types.SimpleNamespace(check_mode=check_mode))
    return verdicts.converged(action, {}, {"groups": {"all": HOSTS}})


def test_good_verdicts_are_written_and_their_hosts_omitted_afterwards(tmp_path):
    folder = str(tmp_path / "reports")
    note("n1", folder)
    note("n2", folder)
    note("n3", folder, ok=False)
    result = report()
    assert result["hosts"] == ["n1", "n2"]
    assert run_look.due(HOSTS, "verify") == ["n3"]
    fleet = json.loads((tmp_path / "reports" / "verdict.json").read_text())
    assert sorted(host for host, one in fleet["hosts"].items() if one["ok"]) == ["n1", "n2"]
    assert sorted(path.name for path in (tmp_path / "reports" / "hosts").iterdir()) == ["n1.json", "n2.json"]
    assert sorted(result["ansible_stats"]["data"]["fleet_verdict"]) == ["n1", "n2"]
    assert [one["rows"][0][0] for one in result["fleet_report"]] == ["n1", "n2"]


def test_a_run_with_something_to_do_reports_none(tmp_path):
    note("n1", str(tmp_path))
    run_look.note("n2", list(run_look.STEPS), "serve")
    assert report() == {"hosts": []}
    assert run_look.due(HOSTS, "verify") == HOSTS


def test_check_mode_writes_nothing(tmp_path):
    folder = tmp_path / "reports"
    note("n1", str(folder))
    assert report(check_mode=True)["hosts"] == ["n1"]
    assert not folder.exists()
    assert run_look.due(HOSTS, "verify") == ["n2", "n3"]


def test_reports_that_cannot_be_written_are_left_to_the_play(tmp_path):
    (tmp_path / "file").write_text("")
    note("n1", str(tmp_path / "file"))
    result = report()
    assert result["hosts"] == [] and len(result["warnings"]) == 1
    assert run_look.due(HOSTS, "verify") == HOSTS
