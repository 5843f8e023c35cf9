# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends that a service manager asks for."""

from __future__ import annotations

import pathlib

from ansible_collections.inference.fleet.tests.unit.engines import small_node


def test_stops_that_were_asked_for_do_not_count(place):
    """More of them than the limit allows; count goes on, since a person wants to know of every start."""
    entry = place.node.entry("server-0")
    for number in range(1, 5):
        process = place.running(entry)
        assert (len(place.state(entry)["starts"]), place.state(entry)["count"]) == (1, number)
        state = place.ended(entry, SERVICE_RESULT="success")
        assert (state["starts"], state["count"], state["phase"]) == ([], number, "running")
        assert place.ended(entry) == state
        process.terminate()
        process.wait(60)
    # a server that is up and dies every time is given up, whatever systemd calls its end
    for _start in range(2):
        process = place.running(entry)
        process.terminate()
        process.wait(60)
        place.ended(entry, SERVICE_RESULT="success")
    assert place.run(entry, "--burst", "2", "--restart-delay", "0.05").returncode == 194


def test_systemd_ending_an_engine_itself_does_count(place):
    entry = place.node.entry("server-0")
    process = place.running(entry)
    assert len(place.ended(entry, SERVICE_RESULT="oom-kill")["starts"]) == 1
    process.terminate()
    process.wait(60)


def test_the_stop_of_a_guard_that_waits_takes_nothing_back(place):
    leader = place.node.entry("leader", health={"path": "/health", "budget_s": 600, "poll_s": 0.1})
    place.write(leader)
    entry = place.node.entry("server-0", start={"after": ["leader"]})
    process = place.start(entry)
    small_node.wait_until(lambda: place.state(entry).get("phase") == "waiting for leader")
    before = place.state(entry)
    assert place.ended(entry) == before
    process.kill()
    process.wait(60)
    pathlib.Path(place.node.paths.server_state("server-0")).write_text("{", encoding="utf-8")
    assert place.ended(entry) == {}
