# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that are dead or slow; the quick look, check mode, and many servers at once."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import causes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking, runner
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine, free_port
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import (
    CHAT,
    CLOSED,
    HANGS,
    REFUSED,
    SEQUENCE,
    by_name,
    failing,
    unmeasured,
    verdict_of,
    watch,
)

# -- servers that are dead, dying or slow ------------------------------------------------------------------------------


def test_a_dead_server_is_found_once_and_at_once():
    started = time.monotonic()
    verdict = verdict_of(free_port(), asking.Options(timeout=1200))
    assert time.monotonic() - started < 600  # less than the timeout of one request
    assert failing(verdict) == {"alive": REFUSED}
    rest = dict.fromkeys(SEQUENCE[2:], "not run: alive failed")
    nothing = dict.fromkeys(("harmony-residue", "form", "echo"), "not run: no probe got an answer")
    assert unmeasured(verdict) == {**rest, **nothing}
    assert by_name(verdict)["alive"]["got"] == "no answer: connection refused"
    assert verdict["ok"] is False


def test_a_server_that_dies_on_the_way_is_not_asked_further():
    with ScriptedEngine("dies-at-tools") as engine:
        verdict = verdict_of(engine)
    bad = failing(verdict)
    assert bad.pop("tool-call") == CLOSED
    assert set(bad) <= {
        "responses", "responses-stream", "responses-tools", "system-message", "developer-message", "multi-turn",
        "stop-sequence", "long-prompt", "sampling", "exact-text", "long-answer", "tool-round-trip", "streaming",
    }  # fmt: skip
    assert set(bad.values()) <= {REFUSED, CLOSED}
    later = unmeasured(verdict)
    assert later["concurrent"].startswith("not run: ")
    assert later["still-right"].startswith("not run: ")


class Patient(asking.Options):
    """A minute for each request, and half a second once hangs() is true: what does not hang may take its time."""

    def __init__(self, hangs):
        self.hangs = hangs
        super().__init__()

    @property
    def timeout(self):
        return 0.5 if self.hangs() else 60

    @timeout.setter
    def timeout(self, seconds):
        pass


def test_a_hanging_server_costs_two_timeouts_not_ten():
    with ScriptedEngine("hangs-later") as engine:
        verdict = verdict_of(engine, Patient(lambda: len(engine.bodies(CHAT)) >= 1))
    assert len(engine.bodies(CHAT)) < 26  # chat beside effort's twelve, then what is asked side by side
    assert set(failing(verdict)) <= {"chat", "effort", "tool-call", "system-message", "sampling", "exact-text"}
    assert set(failing(verdict).values()) == {HANGS}
    assert unmeasured(verdict)["concurrent"].startswith("not run: ")


def test_the_first_completion_may_take_five_times_as_long():
    with ScriptedEngine("hangs") as engine:
        verdict = verdict_of(
            engine, Patient(lambda: "/v1/models" in [path for _method, path, *_rest in engine.requests])
        )
    assert failing(verdict) == {"warm-up": HANGS}
    assert by_name(verdict)["warm-up"]["got"] == "no answer: no complete answer in time (2.5 s)"
    assert by_name(verdict)["warm-up"]["ms"] >= 2500


@pytest.mark.parametrize("seconds", [0.3, 0.15])
def test_a_sequence_that_takes_too_long_fails_where_it_stands(monkeypatch, seconds):
    monkeypatch.setattr(asking, "TOTAL_FACTOR", 1)
    with ScriptedEngine(seconds=seconds) as engine:
        verdict = verdict_of(engine, asking.Options(timeout=1))
    assert verdict["ok"] is False
    cause = next(iter(failing(verdict).values()))
    assert set(failing(verdict).values()) == {cause}  # of all that were asked side by side
    assert cause == causes.too_slow(1, "1 times the timeout")
    assert unmeasured(verdict)["still-right"].startswith("not run: ")


# -- quick, check, many ------------------------------------------------------------------------------------------------


def test_quick_reads_the_id_and_completes_once():
    with ScriptedEngine() as engine:
        verdict = verdict_of(engine, asking.Options(mode="quick", timeout=60, probes=[{"name": "own", "path": "/x"}]))
    names = ["identity", "model-id", "completion"]
    assert [(probe["name"], probe["ok"]) for probe in verdict["probes"]] == [(name, True) for name in names]
    assert [request[:2] for request in engine.requests] == [("GET", "/v1/models"), ("POST", CHAT)]


def test_quick_finds_a_dead_server():
    verdict = verdict_of(free_port(), asking.Options(mode="quick", timeout=60))
    assert failing(verdict) == {"model-id": REFUSED}
    assert unmeasured(verdict) == {"completion": "not run: model-id failed"}


@pytest.mark.parametrize("mode", ["quick", "full"])
def test_health_and_models_have_a_short_timeout_of_their_own(monkeypatch, mode):
    """A server that takes connections and never answers, as one that was stopped by a signal does."""
    assert asking.LOOK_S == 10
    monkeypatch.setattr(asking, "LOOK_S", 0.3)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        verdict = verdict_of(deaf.getsockname()[1], asking.Options(mode=mode, timeout=1200))
    name = {"quick": "model-id", "full": "alive"}[mode]
    assert failing(verdict) == {name: HANGS}
    assert by_name(verdict)[name]["got"] == "no answer: no complete answer in time (0.3 s)"


def test_the_whole_of_quick_has_a_limit_of_its_own():
    """Where the models are listed and completions hang."""
    assert asking.Options().quick_timeout + 10 <= 30
    with ScriptedEngine("hangs") as engine:
        verdict = verdict_of(engine, asking.Options(mode="quick", timeout=1200, quick_timeout=0.5))
    assert failing(verdict) == {"completion": causes.too_slow(0.5, "verify_quick_timeout_s")}


@pytest.mark.parametrize(
    ("mode", "changed", "expected"),
    [
        ("auto", None, "full"), ("auto", True, "full"), ("auto", False, "quick"),
        ("full", False, "full"), ("quick", True, "quick"),
    ],
)  # fmt: skip
def test_auto_is_quick_only_where_nothing_changed_for_certain(mode, changed, expected):
    assert runner.settle_mode(mode, changed) == expected


def test_check_mode_says_that_it_could_not_verify_what_is_not_there():
    port = free_port()
    result = runner.verify_servers([plan_entry(port)], asking.Options(timeout=60), watch, check_mode=True)
    verdict = result["verdicts"][0]
    assert result["ok"] is None
    assert verdict["ok"] is None
    assert unmeasured(verdict) == dict.fromkeys(SEQUENCE, "not verified (check)")


def test_check_mode_verifies_what_is_there_and_stays():
    with ScriptedEngine() as engine:
        assert verdict_of(engine, check_mode=True, servers_changed=False)["ok"] is True
        engine.requests.clear()
        about_to_change = verdict_of(engine, check_mode=True, servers_changed=True)
    assert about_to_change["ok"] is None
    assert engine.requests == []


def test_all_servers_of_a_node_at_once_and_only_those_with_a_port_of_their_own():
    both = threading.Barrier(2)
    pages = {"/health": lambda: "ok" if both.wait(60) in (0, 1) else ""}  # neither answers before both are asked
    with ScriptedEngine(pages=pages) as one, ScriptedEngine("drop-tool-call", pages=pages) as two:
        entries = [plan_entry(one.port), plan_entry(two.port, "server-1"), plan_entry(None, "worker-0", role="decode")]
        result = runner.verify_servers(entries, asking.Options(timeout=60), watch)
    found = {verdict["server"]: verdict["ok"] for verdict in result["verdicts"]}
    assert found == {"server-0": True, "server-1": False}
    assert result["ok"] is False
