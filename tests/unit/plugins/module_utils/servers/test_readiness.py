# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said of a server that is not ready yet."""

from __future__ import annotations

import os
import types

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.http_client import Response
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import observe, readiness
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry, running

NO_WORKERS = "models: 'm' is not listed (none is)"
MODELS = '{"data": [{"id": "gpt-oss-120b"}]}'


@pytest.mark.parametrize(("artifact", "was_ready", "words"), [
    (None, False, "starting"), ("compiles", False, "compiling"), ("loads", False, "loading its artifact"),
    ("loads", True, "it was ready and does not answer any more"),
])  # fmt: skip
def test_what_a_server_does_that_does_not_answer(monkeypatch, artifact, was_ready, words):
    monkeypatch.setattr(readiness.time, "time", lambda: 1180.0)
    entry = plan_entry(8000)
    observed = running(entry, {"artifact": artifact}, was_ready=was_ready)
    found = readiness._problem(entry, observed, "health: no answer")
    assert found == (words + " since 00:16:40Z (180 s), health: no answer", False)


@pytest.mark.parametrize(("role", "was_ready", "final"), [
    ("frontend", True, False), ("frontend", False, True), ("server", True, True),
])  # fmt: skip
def test_a_frontend_that_waits_for_workers_is_not_late(monkeypatch, role, was_ready, final):
    """It started long ago and stays; its workers were restarted just now."""
    entry = plan_entry(8000, role=role)
    monkeypatch.setattr(readiness.time, "time", lambda: 1000.0 + 10 * entry["health"]["budget_s"])
    words, hopeless = readiness._problem(entry, running(entry, was_ready=was_ready), NO_WORKERS)
    assert hopeless is final and (readiness.BUDGET_WORDS in words) is final


@pytest.fixture
def server(monkeypatch):
    """asked: URLs of requests; guarded: whether the server requires a key of requests except for its health; answers:
    {end of a path: its answer, or a list of answers}."""
    made = types.SimpleNamespace(asked=[], guarded=False, answers={})

    def request(method, url, body=None, timeout=30, headers=None):
        made.asked.append(url)
        values = made.answers.get(url.rpartition("/")[2], {})
        values = values.pop(0) if isinstance(values, list) else values
        refused = made.guarded and not headers and "/health" not in url
        return Response(method, url, **{"status": 401 if refused else 200, "text": MODELS, **values})

    monkeypatch.setattr(readiness.http_client, "request", request)
    return made


def test_the_health_path_is_asked_at_its_own_port_and_completions_at_the_servers(server):
    health = {"port": 9000, "path": "/healthz", "budget_s": 300, "poll_s": 2}
    assert readiness.probe(plan_entry(8000, health=health), 1) is None
    assert server.asked == ["http://127.0.0.1:9000/healthz", "http://127.0.0.1:8000/v1/models",
                            "http://127.0.0.1:8000/v1/chat/completions"]  # fmt: skip
    server.asked.clear()
    worker = plan_entry(None, role="decode", ports={"system": 9100}, health=dict(health, port=None))
    assert readiness.probe(worker, 1) is None
    assert server.asked == ["http://127.0.0.1:9100/healthz"]


def test_a_server_that_takes_another_key_than_the_planned_one_is_not_ready(server):
    lack = readiness.probe(plan_entry(8000), 1, {"VLLM_API_KEY": "sk-one"})
    assert lack.startswith(readiness.UNGUARDED) and readiness.is_permanent(lack)
    server.guarded = True
    assert readiness.probe(plan_entry(8000), 1, {"VLLM_API_KEY": "sk-one"}) is None
    lack = readiness.probe(plan_entry(8000), 1)
    assert lack.startswith(readiness.NO_KEY) and readiness.is_permanent(lack)


LOADS = "health: no answer: connection refused"


@pytest.mark.parametrize(("record", "others", "lack", "last", "words"), [
    ({}, {}, LOADS, 159, "loading, 47 s of at most 300 (last time 159)"),
    ({}, {}, 'health: HTTP 503 {"status": "notready"}', None, "loading, 47 s of at most 300"),
    ({"artifact": "compiles"}, {}, LOADS, None, "compiling, 47 s of at most 300"),
    ({"count": 3}, {}, LOADS, None, "loading, 47 s of at most 300, 2 restarts"),
    ({}, {}, "completion: HTTP 500 busy", 9,
     "loading, 47 s of at most 300 (last time 9): completion: HTTP 500 busy"),
    ({}, {"role": "frontend"}, NO_WORKERS, None, "waiting for workers, 47 s of at most 300"),
    ({}, {"was_ready": True}, LOADS, 159, None),
    ({"phase": "waiting for etcd"}, {}, None, 159, None),
])  # fmt: skip
def test_how_far_a_start_is(monkeypatch, record, others, lack, last, words):
    monkeypatch.setattr(readiness.time, "time", lambda: 1047.0)
    entry = plan_entry(8000, role=others.get("role", "server"))
    observed = running(entry, record, was_ready=others.get("was_ready", False))
    assert readiness._progress(entry, observed, lack, last) == words


def test_the_seconds_of_the_last_start_are_recorded(tmp_path):
    paths = NodePaths(str(tmp_path))
    assert observe.last_start_s(paths, "server-0") is None
    observe.note_ready(paths, "server-0", {"pid": 7, "ticks": 1}, 159.4)
    assert observe.last_start_s(paths, "server-0") == 159
    # no run waited for the next start, so the seconds remain
    observe.note_ready(paths, "server-0", {"pid": 8, "ticks": 2})
    assert observe.was_ready(paths, "server-0", {"pid": 8, "ticks": 2})
    assert observe.last_start_s(paths, "server-0") == 159


@pytest.mark.parametrize(("starts", "seconds"), [
    ([], 0), ([9901.0], 0), ([9899.0], 101),
    ([100.0, 9700.0, 9790.0, 9880.0], 300),  # restarted every 90 s: one attempt; the run before it lasted for hours
    ([9800.0, 9906.0], 0),
])  # fmt: skip
def test_one_budget_for_a_series_of_starts(monkeypatch, starts, seconds):
    monkeypatch.setattr(readiness.time, "time", lambda: 10000.0)
    assert readiness.overdue({"starts": starts}, 100) == seconds


HANG = {"status": None, "error": "timeout", "detail": "10 s"}
TOKENS = [{"text": "vllm:tokens_total %d" % number} for number in (1, 2)]
LATE = "completion: no answer: no complete answer in time (10 s)"


@pytest.mark.parametrize(("answers", "expected"), [
    ({}, None),
    ({"health": HANG}, "health: no answer: no complete answer in time (10 s)"),
    ({"health": {"status": 503, "text": "dead"}}, "health: HTTP 503 dead"),
    *(({"health": {"status": status}}, None) for status in (401, 404)),  # who asks for a key lives
    *(({"completions": {"status": status}}, None) for status in (401, 500)),  # it answers; the verdict has the reason
    ({"completions": {"status": None, "error": "reset"}}, None),
    ({"completions": HANG, "metrics": TOKENS}, None),  # busy
    *(({"completions": HANG, "metrics": metrics}, LATE)
      for metrics in ({"status": 404}, TOKENS[0], [TOKENS[0], {"status": 404}])),
])  # fmt: skip
def test_what_hangs_and_what_only_refuses_or_is_busy(server, monkeypatch, answers, expected):
    monkeypatch.setattr(readiness, "HEALTH_S", 0)
    server.answers = {key: list(one) if isinstance(one, list) else one for key, one in answers.items()}
    entry = plan_entry(8000)
    seen = running(entry, pids=[os.getpid()], secrets={"VLLM_API_KEY": "k"})
    assert readiness._hangs(entry, seen) == expected
    server.asked.clear()
    assert readiness._hangs(dict(entry, role="decode"), seen) == (expected if "health" in answers else None)
    assert server.asked == ["http://127.0.0.1:8000/health"]
    assert readiness._hangs(dict(entry, port=None), seen) is None
