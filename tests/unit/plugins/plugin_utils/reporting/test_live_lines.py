# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import io
import os

from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import LiveLines
from ansible_collections.inference.fleet.tests.unit.node_helpers import terminal_screen


def shown(stream):
    return terminal_screen(stream.getvalue())


def test_lines_are_written_again_and_make_way():
    stream = io.StringIO()
    live = LiveLines(stream, lambda: os.terminal_size((80, 24)))
    stream.write("TASK\n")
    live.update("a", "a: 1 %")
    live.update("b", "b: 5 %")
    live.update("a", "a: 2 %")
    assert shown(stream) == ["TASK", "a: 2 %", "b: 5 %"]
    live.clear()
    stream.write("WARNING\n")
    assert shown(stream) == ["TASK", "WARNING"]
    live.update("b", "b: 6 %")
    assert shown(stream) == ["TASK", "WARNING", "a: 2 %", "b: 6 %"]
    live.drop("a")
    stream.write("ok: [a]\n")
    live.update("b", "b: 7 %")
    assert shown(stream) == ["TASK", "WARNING", "ok: [a]", "b: 7 %"]
    live.drop("b")
    live.drop("b")
    live.clear()
    assert shown(stream) == ["TASK", "WARNING", "ok: [a]"]


def test_no_line_wraps_and_no_block_is_longer_than_the_terminal():
    stream = io.StringIO()
    live = LiveLines(stream, lambda: os.terminal_size((10, 4)))
    for number in range(5):
        live.update("host%d" % number, "host%d: a long line" % number)
    assert shown(stream) == ["host0: a ", "host1: a ", "and 3 mor"]
    live.update("host0", "done")
    assert shown(stream) == ["done", "host1: a ", "and 3 mor"]
