# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lanes of make test: a failure ends its lane and the whole, and no other lane."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "tools" / "checks.py"
STEP = "import sys; print('at ' + sys.argv[1]); raise SystemExit(3 if sys.argv[1] == 'bad' else 0)"
LONG = "import sys; print('FAILED x::y - ' + 500 * 'z', *range(40), sep='\\n'); raise SystemExit(1)"


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("checks_of_this_test", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def run(tool, capsys, *arguments):
    status = tool.main(arguments, make=(sys.executable, "-c", STEP))
    shown = re.sub(r" +", " ", capsys.readouterr().out)
    return status, re.sub(r" \d+ s, \d+ s of CPU ", " N s ", shown).splitlines()


def test_all_pass(tool, capsys):
    status, lines = run(tool, capsys, "one=a,b", "two=c")
    assert status == 0
    assert sorted(lines) == sorted(
        ["[one] == a", "[one] at a", "[one] == b", "[one] at b", "[two] == c", "[two] at c",
         "checks: one a N s ok", "checks: one b N s ok", "checks: two c N s ok"]
    )  # fmt: skip


def test_a_failure_ends_its_lane(tool, capsys):
    status, lines = run(tool, capsys, "one=bad,b", "two=c")
    assert status == 1
    assert lines[-5:] == [
        "checks: one bad N s FAILED, exit status 3",
        "checks: one b N s left out",
        "checks: two c N s ok",
        "checks: the end of bad:",
        "at bad",
    ]
    assert "[one] == b" not in lines


def test_the_end_of_a_failure_is_repeated_last(tool, capsys):
    assert tool.main(["one=a"], make=(sys.executable, "-c", LONG)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-32:-1] == ["checks: the end of a:", *map(str, range(10, 40))]
    assert lines[-1] == "checks: a: FAILED x::y - " + 186 * "z"


@pytest.mark.parametrize("word", ["nodes", "=a", "one=", "one=a,,b"])
def test_what_is_no_lane(tool, capsys, word):
    assert tool.main([word]) == 2
    assert capsys.readouterr().err == "checks: %r is no lane; write LANE=TARGET,TARGET, each lane once.\n" % word
