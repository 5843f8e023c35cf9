# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of breakages: large enough, and the page says what the tests do."""

from __future__ import annotations

from ansible_collections.inference.fleet.tests.nodes import breakages


def test_there_are_enough_and_none_twice():
    names = [one.name for one in breakages.BREAKAGES]
    assert len(names) >= 40
    assert len(set(names)) == len(names)


def test_the_page_is_up_to_date():
    assert breakages.PAGE.read_text() == breakages.page(), "run .venv/bin/python tests/nodes/breakages.py"
