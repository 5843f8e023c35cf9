# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a look leaves for the plays that follow."""

from __future__ import annotations

import pytest
from ansible import constants as C
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look

VERDICT = {"ok": True, "mode": "quick", "verdicts": [], "folder": None, "what": None}


@pytest.fixture(autouse=True)
def run_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(C, "DEFAULT_LOCAL_TMP", str(tmp_path))


def test_hosts_begin_at_the_first_step_that_differs():
    run_look.note("n1", list(run_look.STEPS), None)
    run_look.note("n2", ["preflight", "prepare", "weights"], "weights")
    run_look.note("n3", ["preflight"], "preflight")
    hosts = ["n1", "n2", "n3", "n4"]  # nobody has looked at n4
    assert {step: run_look.due(hosts, step) for step in run_look.STEPS} == {
        "preflight": ["n3", "n4"],
        "prepare": ["n3", "n4"],
        "weights": ["n2", "n3", "n4"],
        "serve": ["n2", "n3", "n4"],
    }
    assert [run_look.unchanged(host) for host in hosts] == [True, False, False, False]


def test_the_last_look_counts():
    run_look.note("n1", ["preflight", "serve"], "serve")
    run_look.note("n1", ["preflight", "serve"], None)
    assert run_look.due(["n1"], "serve") == []


def test_nothing_counts_in_the_next_playbook():
    run_look.note("n1", list(run_look.STEPS), None)
    run_look.note_verdict("n1", VERDICT)
    run_look.note_reported(["n1"])
    run_look.note_stopped("n1")
    for _turn in range(2):
        run_look.forget()
        assert [run_look.due(["n1"], step) for step in ("serve", "verify")] == [["n1"], ["n1"]]
        assert (run_look.unchanged("n1"), run_look.verdicts(), run_look.stopped()) == (False, {}, None)


def test_servers_that_were_not_looked_at_are_not_known_to_be_unchanged():
    run_look.note("n1", ["weights"], None)
    assert not run_look.unchanged("n1")


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


def test_a_host_that_could_not_be_checked_is_not_the_one_that_goes_first():
    for host in ("busy1", "idle1", "busy2"):
        run_look.note(host, ["serve"], "serve", serving=host.startswith("busy"))
    assert run_look.in_turn(["down", "busy1", "idle1", "busy2"]) == ["idle1", "busy1", "busy2", "down"]


def test_servers_that_could_not_be_changed_stop_the_run():
    assert run_look.stopped() is None
    run_look.note_stopped("n1")
    assert run_look.stopped() == "n1"


def test_verdicts_count_while_the_run_changes_nothing_anywhere():
    run_look.note("n1", list(run_look.STEPS), None)
    run_look.note_verdict("n1", VERDICT)
    run_look.note("n2", list(run_look.STEPS), None)
    assert run_look.verdicts() == {"n1": VERDICT}
    run_look.note("n2", list(run_look.STEPS), "serve")
    assert run_look.verdicts() == {}


def test_reported_hosts_are_not_verified_again():
    assert run_look.due(["n1", "n2"], "verify") == ["n1", "n2"]
    run_look.note_reported(["n1"])
    assert run_look.due(["n1", "n2"], "verify") == ["n2"]
