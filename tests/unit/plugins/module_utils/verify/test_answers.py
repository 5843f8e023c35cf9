# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers that are put together from a stream, and answers in any shape."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.vllm import ENGINE as VLLM
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.http_client import Event, Response
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.model import gpt_oss
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import causes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import chat, probes, streams
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import (
    CHAT,
    DAMAGED,
    VOCABULARY,
)
from hypothesis import given
from hypothesis import strategies as st

# -- answers put together ----------------------------------------------------------------------------------------------


def chunk(ms, finish=None, **delta):
    return Event(json.dumps({"choices": [{"delta": delta, "finish_reason": finish}]}), ms)


def test_the_first_token_is_the_first_delta_with_something_in_it():
    events = [chunk(3, role="assistant", content=""), chunk(7, reasoning_content="We"), chunk(9, content="391")]
    streamed = chat.read_stream(events)
    answer = streamed.answer
    assert (streamed.times, streamed.error, streamed.bad) == ([7, 9], None, None)
    assert (answer.content, answer.reasoning) == ("391", {"reasoning_content": "We"})
    assert chat.read_stream(events[:1]).times == []


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([400] * 30, False),
        ([400] * 20, None),  # too few tokens
        ([200] * 30, None),  # over too soon
        (list(range(400, 430)), True),  # a millisecond for each
        ([400] * 29 + [500], True),
        ([], None),
    ],
)
def test_a_stream_flows_where_its_events_are_apart(times, expected):
    streamed = chat.StreamedAnswer(chat.Answer(), None, None, times)
    assert streams.flows(streamed) is expected


def test_streamed_tool_calls_are_put_together_by_their_index():
    def call(index, **function):
        return {"index": index, "id": "call-%d" % index, "function": function}

    events = [
        chunk(1, tool_calls=[call(1, name="b", arguments="{"), call(0, name="a")]),
        chunk(2, tool_calls=[call(0, arguments="{}"), call(1, arguments="}")]),
        chunk(3, "tool_calls"),
    ]
    streamed = chat.read_stream(events)
    answer = streamed.answer
    assert answer.tool_calls == [
        {"id": "call-0", "name": "a", "arguments": "{}"},
        {"id": "call-1", "name": "b", "arguments": "{}"},
    ]
    assert (answer.finish_reason, streamed.times) == ("tool_calls", [1, 2])


def test_a_streamed_tool_call_without_index_is_the_first():
    events = [
        chunk(1, tool_calls=[{"function": {"name": "a", "arguments": "{"}}]),
        chunk(2, tool_calls=[{"function": {"arguments": "}"}}]),
    ]
    assert chat.read_stream(events).answer.tool_calls == [{"id": None, "name": "a", "arguments": "{}"}]


@pytest.mark.parametrize(
    ("arguments", "expected"), [('{"a": 1}', {"a": 1}), ("[]", None), ("", {}), (None, {}), ("null", {}), ("{", None)]
)
def test_tool_arguments_are_a_json_object_or_nothing(arguments, expected):
    assert chat.tool_arguments({"arguments": arguments}) == expected


# -- answers in any shape ----------------------------------------------------------------------------------------------


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "content": JSON,
        "reasoning": JSON,
        "tool_calls": st.lists(st.fixed_dictionaries({}, optional={"id": JSON, "index": JSON, "function": JSON}))
        | JSON,
    },
)
COMPLETION = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {}, optional={"message": MESSAGE | JSON, "delta": MESSAGE | JSON, "finish_reason": JSON}
            )
            | JSON
        )
        | JSON,
        "usage": st.fixed_dictionaries({}, optional={"completion_tokens": JSON}) | JSON,
        "error": JSON,
    },
)


@given(COMPLETION | JSON)
def test_no_answer_is_too_odd_to_be_read(value):
    answer = chat.read_answer(value)
    if answer is not None:
        assert isinstance(answer.length, int)
        assert all(isinstance(text, str) and text for _where, text in answer.texts())
        for call in answer.tool_calls:
            assert chat.tool_arguments(call) is None or isinstance(chat.tool_arguments(call), dict)
    streamed = chat.read_stream([Event(json.dumps(value), 1), Event("no json", 2)]).answer
    assert isinstance(streamed.length, int)
    assert all(isinstance(text, str) and text for _where, text in streamed.texts())


@given(st.text(max_size=40), st.integers(100, 599))
def test_every_status_has_a_cause(text, status):
    for path in (CHAT, "/v1/responses", "/v1/models"):
        assert causes.http_cause(Response("POST", "http://h" + path, status, text=text), path, VLLM)


@pytest.mark.parametrize(
    ("status", "text", "cause"),
    [
        (500, "invalid tiktoken vocab file: No such file or directory (os error 2)", VOCABULARY),
        (400, "HarmonyError: error downloading or loading vocab file: failed to download", VOCABULARY),
        (500, "invalid tiktoken vocab file: expected token and rank, could not split on ' ' at line 1", DAMAGED),
        (
            400,
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser',
            VLLM.dropped_tool_call,
        ),
        (
            500,
            'Failed to generate completions: no instances found for endpoint "instances/dynamo/…"',
            "the frontend lists the model but no worker answers for it: a worker is gone or not ready",
        ),
        (
            503,
            "Model `openai/gpt-oss-120b` is not ready to serve requests yet.",
            "the frontend lists the model but no worker answers for it: a worker is gone or not ready",
        ),
        (
            500,
            "Disaggregated params are required for decode mode",  # dynamo/trtllm/request_handlers/handler_base.py
            "the frontend sends requests to decode workers without prefill: no prefill worker is registered, or the "
            "frontend did not find it again after all decode workers were away (dynamo#8965, seen with Dynamo 1.0.0); "
            "restart the frontend, which fleet_watchdog does",
        ),
        (
            500,
            # cpp/tensorrt_llm/batch_manager/dataTransceiver.cpp
            "Disagg server does not currently support these cacheState, please check the cacheState of the context "
            "and gen executors",
            "prefill and decode workers have different KV caches: make kv_cache_config and the parallel sizes of both "
            "fit, then site.yml",
        ),
        (503, "", "the server reports that it is not ready: the engine is loading, shutting down or dead; see its log"),
        (502, "<html>Bad Gateway</html>", "a gateway answers on this port, and the server behind it does not"),
        (
            429,
            "",
            "the server or something in front of it limits requests: verify when it is idle, or raise its limit",
        ),
        (
            500,
            "CUDA out of memory",
            "the accelerator ran out of memory: lower the batch size, the context or the memory fraction",
        ),
        (500, "Internal Server Error", "the server failed on this request: its log has the traceback"),
        (400, "messages is required", "the server refuses this request: its answer contains the reason"),
    ],
)
def test_the_words_of_an_error_point_at_its_cause(status, text, cause):
    assert causes.http_cause(Response("POST", "http://h" + CHAT, status, text=text), CHAT, VLLM) == cause


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        ("391", False),
        ("The analysis of the assistant's final answer", False),
        ('analysisThe user asks: "Where is New York?"\nProvide context.assistantfinal**New York** can', True),
        ("<|channel|>analysis<|message|>The user asks", True),
        ("commentary to=functions.x{}assistantfinal", True),
        ("Great!!!!!", False),
        ("!!!!!!!!", True),
        ("<|constrain|>json", True),
        ("a | b |> c", False),
    ],
)
def test_residue_is_what_the_guides_sample_answers_show(text, leaks):
    assert (causes.residue(text, VLLM) is not None) is leaks


@pytest.mark.parametrize(
    ("model_id", "expected"),
    [("gpt-oss-tiny-standin", True), ("gpt-oss-stand-in", True), ("openai/gpt-oss-120b", False), (None, False)],
)
def test_a_stand_in_is_known_by_its_name(model_id, expected):
    assert gpt_oss.is_standin(model_id) is expected


@pytest.mark.parametrize("text", [
    "a < b and c > d", "x | y", "Ωmega, wół, pół, São Paulo, ÃO, Čeština", "e.g. [1] and <b>bold</b>", "if a<b:",
    "1\n2\n3\t4", "👍🏽 🙂", "## A heading\n### Another", "C## and F#", "\\(17 \\times 23\\)", "50 % @@ off",
    gpt_oss.TEXT,
])  # fmt: skip
def test_plain_text_holds_no_tokens(text):
    assert causes.residue(text, VLLM) is None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        ([1] * 6, [2] * 6, True), ([5] * 6, [5] * 6, False), ([2] * 6, [1] * 6, False),
        ([1, 1, 1, 1, 1, 9], [2] * 6, None), ([3] * 12, [4] * 12, True), ([1] * 9 + [9] * 3, [2] * 12, False),
        ([1] * 10 + [9] * 2, [2] * 12, None),
    ],
)  # fmt: skip
def test_the_ranks_of_all_lengths_tell_whether_effort_works(low, high, expected):
    assert probes.longer(low, high) is expected


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("128k", 128000),
        ("128K", 131072),
        ("auto", None),
        (-1, None),
        ("", None),
        (None, None),
    ],
)
def test_the_context_in_a_plan(value, tokens):
    assert probes.planned_context(value) == tokens
