# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import socket
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import http_client
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine, free_port

CHAT = "/v1/chat/completions"
QUESTION = {"model": "gpt-oss-120b", "messages": [{"role": "user", "content": "×"}]}


def ask(engine, timeout=60):
    return http_client.request("POST", "http://127.0.0.1:%d%s" % (engine.port, CHAT), QUESTION, timeout)


def test_a_complete_answer_has_status_headers_json_and_time(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):  # never used
        monkeypatch.setenv(name, "http://127.0.0.1:%d" % free_port())
    before = time.monotonic()
    with ScriptedEngine() as engine:
        answer = ask(engine)
    assert answer.ok
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["choices"][0]["message"]["content"] == "391"
    assert 0 <= answer.ms <= 1000 * (time.monotonic() - before) + 1
    assert engine.bodies(CHAT) == [QUESTION]


@pytest.mark.parametrize(("fault", "error", "words"), [
    ("reset", "reset", "no answer: the connection was closed before an answer"),
    ("cut", "cut", 'HTTP 200, then the answer was cut off (13 of 113 bytes) after 13 characters: {"choices": ['),
    ("hangs", "timeout", "no answer: no complete answer in time (0.8 s)"),
    ("drips", "timeout", "HTTP 200, then no complete answer in time (0.8 s) after N characters: "),
])  # fmt: skip
def test_failures_are_values(fault, error, words):
    with ScriptedEngine(fault) as engine:  # each of the thousand bytes that drip comes in time
        answer = ask(engine, timeout=0.8 if error == "timeout" else 60)
    assert (answer.error, answer.ok) == (error, False)
    assert answer.describe() == words.replace("N", str(len(answer.text)))


def test_an_address_of_another_machine_is_unreachable(monkeypatch):
    def unknown(*_given, **_more):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # the name server here may be slow, or make something up
    answer = http_client.request("GET", "http://no-such-host.invalid:18299/", timeout=60)
    assert answer.error == "unreachable"


def test_a_body_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(http_client, "MAX_BODY", 50)
    with ScriptedEngine() as engine:
        assert ask(engine).error == "too-large"


@pytest.mark.parametrize(("fault", "ends", "text"), [((), (True, None), "391"), ("stream-cut", (False, "cut"), "")])
def test_a_stream_is_read_to_its_mark_with_the_time_of_the_first_event(fault, ends, text):
    with ScriptedEngine(fault) as engine:
        url = "http://127.0.0.1:%d%s" % (engine.port, CHAT)
        stream = http_client.stream("POST", url, {**QUESTION, "stream": True}, 5)
    assert (stream.done, stream.response.error) == ends
    deltas = [event.json()["choices"][0]["delta"] for event in stream.events]
    assert deltas[0] == {"role": "assistant"}
    assert "".join(delta.get("content", "") for delta in deltas) == text
    assert 0 <= stream.events[0].ms <= stream.response.ms


@pytest.mark.parametrize("size", [1, 99])
@pytest.mark.parametrize(("raw", "events", "done", "after"), [
    (b"event: message\nid: 7\ndata: a\ndata:b\n\n", ["a\nb"], False, None),
    (b"\n\n: ping\n\ndata:a\n\n\n\ndata: b\n\n", ["a", "b"], False, None),
    (b"data: a\r\rdata: b\r\r", ["a", "b"], False, None),
    (b"data: a\r\ndata: b\r\n\r\ndata: [DONE]\n", ["a\nb"], True, None),
    (b"data: a\n\ndata: [DONE]", ["a"], True, None),
    (b"data: a\n\ndata: [DONE]\n\ndata: b\n\n", ["a"], True, "b"),
])  # fmt: skip
def test_forms_of_events(raw, events, done, after, size):
    reader = http_client.Stream()
    for start in range(0, len(raw), size):
        reader.feed(raw[start : start + size], 7)
    reader.end(7)
    assert [(event.data, event.ms) for event in reader.events] == [(data, 7) for data in events]
    assert (reader.done, reader.after) == (done, after)


@pytest.mark.parametrize(("binds", "host"), [
    (["0.0.0.0", "", None, "*"], "127.0.0.1"), (["::", "[::]"], "[::1]"), (["10.0.0.7"], "10.0.0.7"),
    (["fd00::7"], "[fd00::7]"), (["node-1"], "node-1"),
])  # fmt: skip
def test_a_wildcard_bind_is_reached_over_loopback(binds, host):
    assert {http_client.base_url(bind, 8000) for bind in binds} == {"http://%s:8000" % host}


@pytest.mark.parametrize(("read", "text", "value"), [
    (http_client.whole_number, "17", 17), (http_client.whole_number, "9" * 18, 10**18 - 1),
    *((http_client.whole_number, text, None) for text in ("9" * 19, "²", "٣", "-1", "")),
    (http_client.parsed, "[1]", [1]), (http_client.parsed, "[" * 200000, None), (http_client.parsed, "{", None),
])  # fmt: skip
def test_what_is_no_number_or_json_has_no_value(read, text, value):
    assert read(text) == value
