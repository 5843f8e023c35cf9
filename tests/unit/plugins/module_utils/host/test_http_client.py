# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import socket
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import http_client
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine, free_port
from hypothesis import given
from hypothesis import strategies as st

CHAT = "/v1/chat/completions"
QUESTION = {"model": "gpt-oss-120b", "messages": [{"role": "user", "content": "×"}]}


def ask(engine, timeout=60, **more):
    return http_client.request("POST", "http://127.0.0.1:%d%s" % (engine.port, CHAT), dict(QUESTION, **more), timeout)


def test_a_whole_answer_comes_back_with_status_headers_json_and_time():
    before = time.monotonic()
    with ScriptedEngine() as engine:
        answer = ask(engine)
    assert answer.ok
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["choices"][0]["message"]["content"] == "391"
    assert 0 <= answer.ms <= 1000 * (time.monotonic() - before) + 1
    assert engine.bodies(CHAT) == [QUESTION]


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("reset", "reset", "no answer: the connection was closed before an answer"),
        ("cut", "cut", 'HTTP 200, then the answer was cut off (13 of 113 bytes) after 13 characters: {"choices": ['),
        ("hangs", "timeout", "no answer: no complete answer in time (0.3 s)"),
        ("drips", "timeout", "HTTP 200, then no complete answer in time (5 s) after N characters: "),
    ],
)
def test_what_goes_wrong_is_a_value(fault, error, words):
    with ScriptedEngine(fault) as engine:
        answer = ask(engine, timeout={"hangs": 0.3, "drips": 5}.get(fault, 60))
    assert answer.error == error
    assert not answer.ok
    if fault == "drips":
        words = words.replace("N", str(len(answer.text)))
        assert answer.text
    assert answer.describe() == words


def test_an_address_of_another_machine_is_unreachable(monkeypatch):
    def unknown(*_given, **_more):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # the name server here may be slow, or make something up
    answer = http_client.request("GET", "http://no-such-host.invalid:18299/", timeout=60)
    assert answer.error == "unreachable"


def test_a_body_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(http_client, "MAX_BODY", 50)
    with ScriptedEngine() as engine:
        answer = ask(engine)
    assert answer.error == "too-large"


def test_no_proxy_is_ever_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:%d" % free_port())
    with ScriptedEngine() as engine:
        assert ask(engine).ok


def test_a_stream_is_read_to_its_mark_with_the_time_of_the_first_event():
    with ScriptedEngine() as engine:
        url = "http://127.0.0.1:%d%s" % (engine.port, CHAT)
        stream = http_client.stream("POST", url, dict(QUESTION, stream=True), 5)
    assert stream.done
    assert stream.response.ok
    assert stream.events[0].json()["choices"][0]["delta"] == {"role": "assistant"}
    assert "".join(event.json()["choices"][0]["delta"].get("content", "") for event in stream.events) == "391"
    assert 0 <= stream.events[0].ms <= stream.response.ms


def test_a_stream_that_breaks_keeps_the_events_before_it():
    with ScriptedEngine("stream-cut") as engine:
        url = "http://127.0.0.1:%d%s" % (engine.port, CHAT)
        stream = http_client.stream("POST", url, dict(QUESTION, stream=True), 5)
    assert (len(stream.events), stream.done, stream.response.error) == (1, False, "cut")


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1).filter(
            lambda text: text.strip() and text.strip() != "[DONE]" and not text.startswith(" ")
        )
    ),
    st.integers(1, 50),
    st.sampled_from(["\n", "\r\n"]),
)
def test_events_do_not_depend_on_where_the_blocks_end(texts, size, newline):
    raw = "".join(": ping%sdata: %s%s%s" % (newline, text, newline, newline) for text in texts)
    raw = (raw + "data: [DONE]%s%s" % (newline, newline)).encode("utf-8")
    reader = http_client._EventReader()
    for start in range(0, len(raw), size):
        reader.feed(raw[start : start + size], 0)
    assert [event.data for event in reader.events] == texts
    assert reader.done


def test_an_event_of_several_lines_is_one():
    reader = http_client._EventReader()
    reader.feed(b"event: message\ndata: a\ndata:b\n\n", 7)
    assert [(event.data, event.ms) for event in reader.events] == [("a\nb", 7)]


@pytest.mark.parametrize(
    ("bind", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("", "http://127.0.0.1:8000"),
        (None, "http://127.0.0.1:8000"),
        ("*", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("[::]", "http://[::1]:8000"),
        ("10.0.0.7", "http://10.0.0.7:8000"),
        ("fd00::7", "http://[fd00::7]:8000"),
        ("node-1", "http://node-1:8000"),
    ],
)
def test_a_wildcard_bind_is_reached_over_loopback(bind, url):
    assert http_client.base_url(bind, 8000) == url


def test_https_is_refused_in_words():
    with pytest.raises(
        ValueError, match=r"^http_client requests http:// URLs, or https:// with a context, got 'https://x/'$"
    ):
        http_client.request("GET", "https://x/")


def test_cut_keeps_one_line_and_marks_what_is_missing():
    assert http_client.cut("a\n b", 10) == "a b"
    assert http_client.cut("abcdef", 4) == "abc…"


def test_the_timeout_holds_for_the_whole_exchange():
    with ScriptedEngine("drips") as engine:
        assert ask(engine, timeout=0.4).error == "timeout"  # each of its thousand bytes comes in time
