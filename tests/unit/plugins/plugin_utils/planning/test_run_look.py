# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan's steps in one run: its tags, and results for the following plays."""

from __future__ import annotations

import pathlib

import pytest
import yaml
from ansible import constants as C
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look

CLONE = pathlib.Path(__file__).resolve().parents[5]
STEPS = [{"step": step, "operation": step, "arguments": {}} for step in run_look.STEPS]
VERDICT = {"ok": True, "mode": "quick", "verdicts": [], "folder": None, "what": None}


@pytest.fixture(autouse=True)
def run_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(C, "DEFAULT_LOCAL_TMP", str(tmp_path))


def test_hosts_begin_at_the_first_step_that_differs():
    run_look.note("n1", list(run_look.STEPS), "serve")
    run_look.note("n1", list(run_look.STEPS), None)  # the last look counts
    run_look.note("n2", ["preflight", "prepare", "weights"], "weights")
    run_look.note("n3", ["preflight"], "preflight")
    run_look.note("n5", ["weights"], None)  # its servers were not looked at
    hosts = ["n1", "n2", "n3", "n4", "n5"]  # nobody has looked at n4
    assert {step: run_look.due(hosts, step) for step in run_look.STEPS} == {
        "preflight": ["n3", "n4"],
        "prepare": ["n3", "n4"],
        "weights": ["n2", "n3", "n4"],
        "serve": ["n2", "n3", "n4"],
    }
    assert [run_look.unchanged(host) for host in hosts] == [True, False, False, False, False]


def test_nothing_counts_in_the_next_playbook():
    run_look.note("n1", list(run_look.STEPS), None)
    run_look.note_verdict("n1", VERDICT)
    run_look.note_reported(["n1"])
    run_look.note_stopped("n1")
    assert run_look.stopped() == "n1"
    assert run_look.due(["n1", "n2"], "verify") == ["n2"]
    for _turn in range(2):
        run_look.forget()
        assert [run_look.due(["n1"], step) for step in ("serve", "verify")] == [["n1"], ["n1"]]
        assert (run_look.unchanged("n1"), run_look.verdicts(), run_look.stopped()) == (False, {}, None)


@pytest.mark.parametrize(
    ("hosts", "serial", "together", "expected"),
    [
        ("idle1 idle2", "100%", "", ["100%"]),
        ("idle1 idle2 busy1 busy2 new", 2, "", [2, 1, 2]),
        ("busy1 busy2", [1, "50%"], "", [1, 1, "50%"]),
        ("new", "100%", "", [1, "100%"]),
        ("idle1 busy1 busy2", "100%", "busy1 busy2", ["100%"]),
        ("busy1 busy2", "10%", "busy1", [1, "10%"]),
    ],
)
def test_the_first_host_whose_servers_run_goes_alone(hosts, serial, together, expected):
    for host in hosts.split():
        if host != "new":  # nobody has looked at it
            run_look.note(host, ["serve"], "serve", serving=host.startswith("busy"))
    assert run_look.batches(hosts.split(), serial, together.split()) == expected


def test_a_host_that_failed_is_not_the_one_that_goes_first():
    for host in ("idle1", "idle2", "busy1", "busy2", "rescued"):
        run_look.note(host, ["serve"], "serve", serving=not host.startswith("idle"))
        run_look.note_failed(host, host.endswith("1") or host == "rescued")
    run_look.note_failed("rescued", False)
    hosts = ["idle1", "idle2", "busy1", "busy2", "rescued"]
    assert run_look.in_turn(["new", *hosts]) == ["idle2", "busy2", "rescued", "new", "idle1", "busy1"]
    assert run_look.batches(hosts, "100%") == [1, 1, "100%"]
    assert run_look.batches(["idle2", "busy1"], "100%") == ["100%"]


def test_verdicts_count_while_the_run_changes_nothing_anywhere():
    run_look.note("n1", list(run_look.STEPS), None)
    run_look.note_verdict("n1", VERDICT)
    run_look.note("n2", list(run_look.STEPS), None)
    assert run_look.verdicts() == {"n1": VERDICT}
    run_look.note("n2", list(run_look.STEPS), "serve")
    assert run_look.verdicts() == {}


# -- what is looked at -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "skip", "steps"),
    [
        (["all"], [], list(run_look.STEPS)),
        (["serve"], [], ["preflight", "serve"]),
        (["always"], [], []),
        (["all"], ["prepare", "weights"], ["serve"]),
        (["all"], ["all"], []),
        (["tagged"], [], list(run_look.STEPS)),
        (["untagged"], [], []),
    ],
)
def test_steps_that_are_no_part_of_the_run_are_not_looked_at(tags, skip, steps):
    """A changed playbook may have other tags."""
    changed = {"step": "prepare", "reason": "it was changed", "changed": True}
    assert [one["step"] for one in run_look.of_run([*STEPS, changed], tags, skip)] == [*steps, "prepare"]


def test_the_tags_are_those_of_the_playbooks():
    for step in run_look.STEPS:
        (play,) = yaml.safe_load((CLONE / "playbooks/steps" / (step + ".yml")).read_text())
        tasks = [set(task.get("tags", ())) | set(play.get("tags", ())) for task in play["tasks"]]
        assert tasks == [set(run_look.TAGS[step])] * len(tasks)
