# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/using/errors.md lists every error of the source with its code, meaning and remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.tools import errors_page

CLONE = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def errors():
    return errors_page.Reader().errors()


def read(folder, text):
    (folder / "made_up.py").write_text(text)
    return errors_page.Reader(folder).errors()


def test_the_page_is_current(errors):
    current = errors_page.PAGE.read_text(encoding="utf-8") == errors_page.render(errors)
    assert current, "run: .venv/bin/python tools/errors_page.py"


def test_every_code_has_a_heading_and_a_message(errors):
    sections = re.findall(r"^### (\S+)\n\n(.*)$", errors_page.render(errors), re.MULTILINE)
    assert [code for code, _message in sections] == sorted(errors)
    assert all(len(message.split()) > 2 for _code, message in sections)


def test_every_area_has_its_own_heading(errors):
    assert {code.partition(".")[0] for code in errors} <= set(errors_page.AREAS)


def test_each_code_has_its_own_remedy(errors):
    """In its template, or in IN_VALUES where the template gets it as a value."""
    without = {code for code, messages in errors.items() if not any(errors_page.halves(one)[1] for one in messages)}
    assert without == set(errors_page.IN_VALUES)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def f(x):\n    raise FleetError(x, 'no')", "made_up.py:2: the code is no literal: FleetError(x, 'no')"),
        ("class Busy(FleetError): pass\nBusy(code())", "made_up.py:2: the code is no literal: Busy(code())"),
        ("FleetError('Plan.wrong', 'no')", "made_up.py:1: Plan.wrong is not area.what-is-wrong"),
        ("FleetError('plan.too_big', 'no')", "made_up.py:1: plan.too_big is not area.what-is-wrong"),
        ("FleetError('elsewhere.wrong', 'no')", "the area of elsewhere.wrong is not in AREAS of tools/errors_page.py"),
        ("mistakes.add('plan.', 'no')", "made_up.py:1: plan. is not area.what-is-wrong"),
    ],
)
def test_an_error_that_cannot_be_listed(tmp_path, text, problem):
    with pytest.raises(errors_page.Problem) as caught:
        read(tmp_path, text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "text", ["FleetError(one.code, change(one.message))", "staging.add(path, text)", "names.add('plan.x')"]
)
def test_what_is_no_error_of_its_own(tmp_path, text):
    assert read(tmp_path, text) == {}


def test_values_are_shown_by_their_names(tmp_path):
    text = """
MODES = ("full", "quick")
FleetError("plan.a", "%s: mode is %r, allowed: %s, 5 %% of %g.", (where, entry["mode"], ", ".join(MODES), one.size))
FleetError("plan.c", "%s-%s", (", ".join(map(str, lacking)), show(found.get("old_name"))))
mistakes.add("plan.a", "no values: 5 %")
def f():
    text = "a message of some length: %s" % error
    raise FleetError("plan.b", text + HOW)
HOW = ". Set it."
"""
    assert read(tmp_path, text) == {
        "plan.a": ["*place*: mode is *mode*, allowed: full, quick, 5 % of *size*.", "no values: 5 %"],
        "plan.b": ["a message of some length: *error*. Set it."],
        "plan.c": ["*lacking*-*old name*"],
    }
