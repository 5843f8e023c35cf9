# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import subprocess

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report, runs
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.plugins.plugin_utils.reporting.test_report import verdict

HOSTS = ["node-1", "node-2"]
VERSIONS = {"collection": "1.2.3", "inventory": "abc"}


def record(number=1, **more):
    """A record as it is on disk, of the minute `number`."""
    began = "2026-01-02T03:%02d:04Z" % number
    hosts = {"node-1": {"ok": True, "mode": "full", "servers": {"server-0": {"ok": True, "url": "x", "failed": {}}}}}
    return {
        "schema": 1, "ok": True, "generated": began,
        "run": {"id": "%012x" % number, "began": began, "hosts": ["node-1"]},
        "hosts": hosts, "versions": {**VERSIONS, "software": ["a==1"]}, **more,
    }  # fmt: skip


def test_a_run_is_kept_from_its_begin_to_its_last_verdict(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "versions", lambda sources: {"collection": "1.2.3", "inventory": sources[0]})
    entries = [plan_entry(8000), plan_entry(None, "decode-0", role="decode")]
    what = report.deployed(entries, {"venv": {"packages": ["a==1"]}})
    run = report.begin_run(str(tmp_path), "a" * 12, HOSTS, HOSTS, lambda: dict.fromkeys(HOSTS, what), ["abc"])
    (begun,), warnings = runs.history(str(tmp_path))
    assert (begun["run"], begun["ok"], warnings) == (run, None, [])
    assert begun["versions"] == {**VERSIONS, "software": ["a==1"]}
    assert [(one["servers"], one["problem"]) for one in begun["hosts"].values()] == [
        ({"server-0": {"ok": None}}, report.MISSED)
    ] * 2
    verified = {"node-1": ("full", [verdict()], what, None), "node-2": ("quick", [verdict(ok=False)], what, "late")}
    report.write_all(str(tmp_path), verified, HOSTS)
    report.void_verdicts(str(tmp_path), "node-1", {"server-0": "restarted"})  # the verdict of that run remains
    (kept,), _warnings = runs.history(str(tmp_path))
    assert (kept["ok"], kept["versions"]) == (False, begun["versions"])
    assert kept["hosts"]["node-1"]["servers"]["server-0"]["ok"] is True
    assert [kept["hosts"]["node-2"][key] for key in ("mode", "problem")] == ["quick", "late"]
    assert kept["hosts"]["node-2"]["servers"]["server-0"]["failed"] == {"chat": None}
    # the next run is only of the one host
    report.begin_run(str(tmp_path), "b" * 12, HOSTS[:1], HOSTS[:1], lambda: dict.fromkeys(HOSTS, what), ["def"])
    found, _warnings = runs.history(str(tmp_path))
    assert sorted((list(one["hosts"]), one["versions"]["inventory"]) for one in found) == [
        (["node-1"], "def"), (HOSTS, "abc")
    ]  # fmt: skip


def test_the_oldest_go_and_files_of_others_stay(tmp_path):
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "0-mine.json").write_text("{}")
    for number in range(runs.KEPT + 3):
        runs.keep(str(tmp_path), record(number))
    found, warnings = runs.history(str(tmp_path))
    assert [one["run"]["id"] for one in found] == ["%012x" % number for number in range(3, runs.KEPT + 3)]
    assert warnings == ["%s is not the record of a run. Remove the file." % (tmp_path / "history" / "0-mine.json")]
    assert len(os.listdir(tmp_path / "history")) == runs.KEPT + 1


@pytest.mark.parametrize("run", [{}, {"id": "../../e", "began": "2026-01-02T03:04:05Z"}, {"id": "a" * 12, "began": 1}])
def test_a_run_with_another_id_or_time_is_not_kept(tmp_path, run):
    runs.keep(str(tmp_path), record(run=run))
    assert os.listdir(tmp_path) == []


BAD = ["", "[]", "{", json.dumps({**record(), "schema": 2})]


@pytest.mark.parametrize("content", BAD)
def test_other_content_is_left_out_with_its_name(tmp_path, content):
    runs.keep(str(tmp_path), record(1))
    path = tmp_path / "history" / "20260102T030404Z-000000000004.json"
    path.write_text(content)
    os.mkfifo(tmp_path / "history" / "20260102T030504Z-000000000005.json")
    found, warnings = runs.history(str(tmp_path))
    assert found == [record(1)]
    assert [str(path) in line for line in warnings] == [True, False]
    runs.keep(str(tmp_path), record(4, versions={"software": []}))
    assert runs.history(str(tmp_path))[0][1]["versions"] == {"collection": None, "inventory": None, "software": []}


def test_the_revision_of_the_inventory_is_that_of_its_repository(tmp_path):
    file = tmp_path / "hosts.yml"
    file.write_text("all:")
    assert runs.versions(["a,", str(file), str(tmp_path / "gone" / "x.yml")])["inventory"] is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.invalid"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "-am", "x", "v1"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout[:12]
    assert runs.versions([str(tmp_path)]) == {"collection": runs.collection_version(), "inventory": head}
    file.write_text("all: {}")
    assert runs.versions(["a,b", str(file)])["inventory"] == head + "-dirty"
