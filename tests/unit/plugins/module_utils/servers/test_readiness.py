# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said of a server that is not ready yet."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import observe, readiness
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import Observed
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.base import Status
from ansible_collections.inference.fleet.tests.unit.engines import plan_entries


@pytest.mark.parametrize(
    "artifact,doing", [(None, "starting"), ("compiles", "compiling"), ("loads", "loading its artifact")]
)
def test_a_server_that_compiles_is_told_apart(monkeypatch, artifact, doing):
    entry = plan_entries.plan_entry(8000)
    monkeypatch.setattr(readiness.time, "time", lambda: 1180.0)
    record = {"phase": "running", "since": 1000.0, "hash": entry["hash"], "starts": [1000.0], "count": 1, "pid": 7,
              "artifact": artifact}  # fmt: skip
    observed = Observed("server-0", entry=entry, state=record, fresh=True, service=Status("up", 7))
    words, final = readiness._problem(None, entry, observed, "health: no answer")
    assert (words, final) == ("%s since 00:16:40Z (180 s), health: no answer" % doing, False)


@pytest.mark.parametrize("artifact", [None, "compiles", "loads"])
def test_a_server_that_was_ready_long_ago_neither_starts_nor_loads(monkeypatch, artifact):
    entry = plan_entries.plan_entry(8000)
    monkeypatch.setattr(readiness.time, "time", lambda: 1180.0)
    record = {"phase": "running", "since": 1000.0, "hash": entry["hash"], "starts": [1000.0], "count": 1, "pid": 7,
              "artifact": artifact}  # fmt: skip
    observed = Observed("server-0", entry=entry, state=record, fresh=True, service=Status("up", 7))
    observed.was_ready = True
    words, _final = readiness._problem(None, entry, observed, "health: no answer")
    assert words == "it was ready and does not answer any more since 00:16:40Z (180 s), health: no answer"


@pytest.mark.parametrize(("role", "was_ready", "final"), [
    ("frontend", True, False), ("frontend", False, True), ("server", True, True),
])  # fmt: skip
def test_a_frontend_that_waits_for_workers_is_not_late(monkeypatch, role, was_ready, final):
    """It started long ago and stays; its workers were restarted just now."""
    entry = plan_entries.plan_entry(8000, role=role)
    monkeypatch.setattr(readiness.time, "time", lambda: 1000.0 + 10 * entry["health"]["budget_s"])
    record = {"phase": "running", "since": 1000.0, "hash": entry["hash"], "starts": [1000.0], "count": 1, "pid": 7}
    observed = Observed("server-0", entry=entry, state=record, fresh=True, service=Status("up", 7))
    observed.was_ready = was_ready
    words, hopeless = readiness._problem(None, entry, observed, "models: 'm' is not listed (none is)")
    assert hopeless is final and (readiness.BUDGET_WORDS in words) is final


def test_the_health_path_is_asked_at_its_own_port_and_completions_at_the_servers(monkeypatch):
    health = {"port": 9000, "path": "/healthz", "budget_s": 300, "poll_s": 2}
    asked = []

    def request(method, url, body=None, timeout=30, headers=None):
        asked.append(url)
        text = '{"data": [{"id": "gpt-oss-120b"}]}'
        return readiness.http_client.Response(method, url, status=200, text=text)

    monkeypatch.setattr(readiness.http_client, "request", request)
    assert readiness.probe(plan_entries.plan_entry(8000, health=health), 1) is None
    assert asked == ["http://127.0.0.1:9000/healthz", "http://127.0.0.1:8000/v1/models",
                     "http://127.0.0.1:8000/v1/chat/completions"]  # fmt: skip
    asked.clear()
    worker = plan_entries.plan_entry(None, role="decode", ports={"system": 9100}, health=dict(health, port=None))
    assert readiness.probe(worker, 1) is None
    assert asked == ["http://127.0.0.1:9100/healthz"]


@pytest.mark.parametrize("asks", [True, False])
def test_a_server_that_answers_without_its_planned_key_is_not_ready(monkeypatch, asks):
    def request(method, url, body=None, timeout=30, headers=None):
        if url.endswith("/health"):
            return readiness.http_client.Response(method, url, status=204)
        status = 200 if headers or not asks else 401
        return readiness.http_client.Response(method, url, status=status, text='{"data": [{"id": "gpt-oss-120b"}]}')

    monkeypatch.setattr(readiness.http_client, "request", request)
    lack = readiness.probe(plan_entries.plan_entry(8000), 1, {"VLLM_API_KEY": "sk-one"})
    assert (lack or "").startswith("" if asks else readiness.UNGUARDED)
    assert (lack is None) is asks
    assert asks or readiness.is_permanent(lack)


LOADS = "health: no answer: connection refused"


@pytest.mark.parametrize(
    ("changes", "lack", "last", "words"),
    [
        ({}, LOADS, 159, "loading, 47 s of at most 300 (last time 159)"),
        ({}, "health: HTTP 503 {\"status\": \"notready\"}", None, "loading, 47 s of at most 300"),
        ({"artifact": "compiles"}, LOADS, None, "compiling, 47 s of at most 300"),
        ({"count": 3}, LOADS, None, "loading, 47 s of at most 300, 2 restarts"),
        ({}, "completion: HTTP 500 busy", 9, "loading, 47 s of at most 300 (last time 9): completion: HTTP 500 busy"),
        ({"role": "frontend"}, "models: 'm' is not listed (none is)", None, "waiting for workers, 47 s of at most 300"),
        ({"was_ready": True}, LOADS, 159, None),
        ({"phase": "waiting for etcd"}, None, 159, None),
    ],
)  # fmt: skip
def test_how_far_a_start_is(monkeypatch, changes, lack, last, words):
    entry = plan_entries.plan_entry(8000, role=changes.get("role", "server"))
    monkeypatch.setattr(readiness.time, "time", lambda: 1047.0)
    record = {"phase": "running", "since": 1000.0, "hash": entry["hash"], "starts": [1000.0], "count": 1, "pid": 7}
    record.update({key: value for key, value in changes.items() if key in ("artifact", "count", "phase")})
    observed = Observed("server-0", entry=entry, state=record, fresh=True, service=Status("up", 7))
    observed.was_ready = changes.get("was_ready", False)
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
    with open(paths.ready("server-0"), "w", encoding="utf-8") as stream:
        stream.write('["hostile"]')
    assert observe.last_start_s(paths, "server-0") is None


def test_one_budget_for_a_series_of_starts():
    now = 10000.0
    assert readiness.waiting_since({}, 100) is None
    # restarted every 90 s: one attempt; the run before it lasted for hours
    assert readiness.waiting_since({"starts": [100.0, now, now + 90, now + 180]}, 100) == now
    assert readiness.waiting_since({"starts": [now, now + 106]}, 100) == now + 106
