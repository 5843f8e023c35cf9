# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a look leaves for the plays that follow."""

from __future__ import annotations

import pytest
from ansible import constants as C
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look


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


def test_the_last_look_counts_and_none_does_in_the_next_playbook():
    run_look.note("n1", ["preflight", "serve"], "serve")
    run_look.note("n1", ["preflight", "serve"], None)
    assert run_look.due(["n1"], "serve") == []
    run_look.forget()
    run_look.forget()
    assert run_look.due(["n1"], "serve") == ["n1"]
    assert not run_look.unchanged("n1")


def test_servers_that_were_not_looked_at_are_not_known_to_be_unchanged():
    run_look.note("n1", ["weights"], None)
    assert not run_look.unchanged("n1")
