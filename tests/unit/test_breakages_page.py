# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/developing/breakages.md and the faults that test_breakages.py combines follow the table."""

from __future__ import annotations

from ansible_collections.inference.fleet.tests.nodes import breakages
from ansible_collections.inference.fleet.tests.nodes.test_breakages import TOGETHER


def test_names_are_unique_and_those_that_are_combined_exist():
    names = [one.name for one in breakages.BREAKAGES]
    assert len(set(names)) == len(names)
    assert {name for group in TOGETHER for name in group} <= set(names)


def test_the_page_is_up_to_date():
    assert breakages.PAGE.read_text() == breakages.page(), "run .venv/bin/python tests/nodes/breakages.py"
