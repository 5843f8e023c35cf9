# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The targets of make test run two at a time; one that fails fails the run."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "tools" / "checks.py"
STEP = "import sys; print('at ' + ' '.join(sys.argv[1:])); raise SystemExit(3 if sys.argv[1] == 'bad' else 0)"


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(PATH.parent)
    spec = importlib.util.spec_from_file_location("checks_of_this_test", PATH)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.nodes, "end_engine", lambda: None)
    return module


def run(tool, capsys, *arguments):
    status = tool.main(arguments, make=(sys.executable, "-c", STEP))
    shown = re.sub(r" +", " ", capsys.readouterr().out)
    return status, re.sub(r" \d+ s, \d+ s of CPU ", " N s ", shown).splitlines()


def test_all_pass(tool, capsys):
    status, lines = run(tool, capsys, "a", "b/part", "c")
    assert status == 0
    assert lines[-3:] == ["checks: a N s ok", "checks: part N s ok", "checks: c N s ok"]
    assert sorted(lines[:-3]) == ["[a] ==", "[a] at a", "[c] ==", "[c] at c", "[part] ==", "[part] at b SCENARIO=part"]


def test_a_failure_fails_the_run_and_stops_no_other_target(tool, capsys):
    status, lines = run(tool, capsys, "bad", "b", "c")
    assert status == 1
    assert lines[-5:] == [
        "checks: bad N s FAILED, exit status 3",
        "checks: b N s ok",
        "checks: c N s ok",
        "checks: the end of bad:",
        "at bad",
    ]


def test_a_star_is_every_scenario_of_make_test(tool):
    names = [step.arguments for step in tool.parse(["molecule/*"])]
    assert ["molecule", "SCENARIO=default"] in names
    assert not [name for name in names if "soak" in name[1]]
