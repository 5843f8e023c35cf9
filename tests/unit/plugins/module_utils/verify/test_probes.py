# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probes, on a good server and on every bad one."""

from __future__ import annotations

import json
import re
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.vllm import ENGINE as VLLM
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import Fault, ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import (
    AT_ONCE,
    CHAT,
    CLOSED,
    CUT,
    DAMAGED,
    DEAD,
    EMPTY,
    ENDLESS,
    EXCLAMATION,
    LEAK,
    LENGTH,
    NO_EFFORT,
    NO_MODELS,
    NO_REASONING,
    SEQUENCE,
    SHAPE,
    TOGETHER,
    VOCABULARY,
    by_name,
    entry_of,
    failing,
    unmeasured,
    verdict_of,
)


def test_a_good_server_passes_everything():
    with ScriptedEngine() as engine:
        verdict = verdict_of(engine)
    assert [probe["name"] for probe in verdict["probes"]] == SEQUENCE
    assert failing(verdict) == {}
    assert unmeasured(verdict) == {}
    assert verdict["ok"] is True
    assert {key: verdict[key] for key in ("schema", "host", "server", "mode", "url", "model_id")} == {
        "schema": 1,
        "host": "node-1",
        "server": "server-0",
        "mode": "full",
        "url": "http://127.0.0.1:%d" % engine.port,
        "model_id": "gpt-oss-120b",
    }
    assert verdict["hash"] == entry_of(engine.port)["hash"]
    assert time.strptime(verdict["at"], "%Y-%m-%dT%H:%M:%SZ")
    for probe in verdict["probes"]:
        assert set(probe) == {"name", "ok", "ms", "sent", "got", "cause"}
        assert isinstance(probe["ms"], int)
        assert probe["got"] or probe["name"] in ("unbuffered", "context")  # what scripted engines cannot show


def test_what_is_sent():
    with ScriptedEngine(together=TOGETHER) as engine:
        verdict_of(engine)
    bodies = engine.bodies(CHAT)
    asked = {body["messages"][-1]["content"]: body for body in bodies}
    assert {
        "model": "gpt-oss-120b",
        "messages": [{"role": "user", "content": "What is 19*24? Answer with the number."}],
        "temperature": 0,
        "top_p": 1.0,
        "max_tokens": 1024,
    } in bodies
    assert {
        "model": "gpt-oss-120b",
        "messages": [{"role": "user", "content": "What is 16*47? Answer with the number."}],
    } in bodies
    orders = [body["messages"][0] for body in bodies if body["messages"][-1]["content"] == "How are you?"]
    assert orders == [
        {"role": "system", "content": "Always answer with the single word BANANA."},
        {"role": "developer", "content": "Always answer with the single word ORANGE."},
    ]
    assert len(max(asked, key=len)) > 4000
    weather = [body for body in bodies if body["messages"][0]["content"].startswith("What will the weather be in")]
    assert [tool["function"]["name"] for tool in weather[0]["tools"]] == ["get_weather", "get_system_health"]
    assert weather[0]["tools"][0]["function"]["parameters"]["required"] == ["city", "days"]
    assert bodies[0]["messages"][0]["content"] == "Say hello in one short sentence."
    assert {
        "model": "gpt-oss-120b",
        "messages": [{"role": "user", "content": "What is 17*23? Answer with the number."}],
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": 1024,
        "stream": True,
    } in bodies
    assert {
        "model": "gpt-oss-120b",
        "messages": [{"role": "user", "content": "What is 17*23? Answer with the number."}],
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": 1024,
    } in bodies
    levels = [body.get("reasoning_effort") for body in bodies if not body.get("tools")]
    assert levels.count("high") == 6
    assert levels.count("low") >= 6 + 5  # and the long answer, the exact text and the stop sequence
    first_tool, second_tool = [
        body for body in bodies if "tools" in body and "quick check" in body["messages"][0]["content"]
    ][:2]
    assert first_tool["tools"][0]["function"]["name"] == "get_system_health"
    assert first_tool["messages"] == [{"role": "user", "content": "Hey, quick check: is everything up and running?"}]
    called = second_tool["messages"][1]["tool_calls"][0]["id"]
    assert re.fullmatch(r"call-\d+", called)
    assert second_tool["messages"][1:] == [
        {
            "role": "assistant",
            "tool_calls": [
                {"id": called, "type": "function", "function": {"name": "get_system_health", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": called, "content": '{"status":"ok","uptime_seconds":372045}'},
    ]
    assert len(engine.held) == AT_ONCE


def test_usage_is_never_needed():
    with ScriptedEngine("usage-null") as engine:
        verdict = verdict_of(engine)
    assert verdict["ok"] is True
    assert by_name(verdict)["effort"]["got"] == (
        "low 45 45 45 45 45 45 characters; high 255 255 255 255 255 255 characters"
    )


def test_the_other_name_of_the_reasoning_field_passes_with_a_note():
    with ScriptedEngine(reasoning_field="reasoning_content") as engine:
        verdict = verdict_of(engine)
    assert verdict["ok"] is True
    assert by_name(verdict)["reasoning"]["got"] == (
        "reasoning_content, 84 characters (the plan expects the name reasoning; this engine version uses the other)"
    )


def test_dynamos_way_to_set_the_effort():
    with ScriptedEngine(effort="chat_template_args") as engine:
        good = verdict_of(engine, asking.Options(timeout=60, effort_parameter="chat_template_args"))
        bad = verdict_of(engine)
    assert good["ok"] is True
    assert failing(bad) == {"effort": NO_EFFORT}


def test_an_engine_without_responses_is_not_measured_there():
    with ScriptedEngine("no-responses") as engine:
        verdict = verdict_of(engine, asking.Options(timeout=60, responses_api=False))
    assert verdict["ok"] is True
    assert unmeasured(verdict) == {
        "responses": "this engine has no /v1/responses (responses_api is false)",
        "responses-stream": "not run: responses brought no answer",
        "responses-tools": "not run: responses brought no answer",
    }
    assert engine.bodies("/v1/responses") == []


def test_a_stand_in_is_judged_on_form():
    model = "gpt-oss-tiny-standin"
    faults = (Fault("say", "text chat", value="I am a stand-in."), "effort-ignored")
    with ScriptedEngine(faults, model=model) as engine:
        verdict = verdict_of(engine, entries=[entry_of(engine.port, model_id=model)])
    assert verdict["ok"] is True
    assert by_name(verdict)["chat"]["got"].startswith("not 391, and a stand-in need not know it; HTTP 200 {")
    assert unmeasured(verdict)["effort"] == "not measurable on a stand-in: it has not learned to think longer"
    assert by_name(verdict)["effort"]["got"] == "low 100 characters; high 100 characters"


def test_a_stand_in_that_is_forced_to_call_a_tool_is_not_judged_on_it():
    """Dynamo holds it to a form that it has not learned: it writes to its limit, and the answer has no end."""
    model = "gpt-oss-tiny-standin"
    endless = {"role": "assistant", "content": None}, None
    fault = Fault("message", "required", value=lambda *_answer: endless)
    with ScriptedEngine((fault,), model=model) as engine:
        verdict = verdict_of(engine, entries=[entry_of(engine.port, model_id=model)])
    assert failing(verdict) == {}
    assert by_name(verdict)["tool-choice"]["got"] == "none; named; required is not measurable on a stand-in"


def test_a_short_context_bounds_the_tokens_asked_for():
    with ScriptedEngine(context=768) as engine:
        verdict = verdict_of(engine)
    assert verdict["ok"] is True
    assert by_name(verdict)["model-id"]["got"] == "HTTP 200, lists gpt-oss-120b, context 768"
    assert {body["max_tokens"] for body in engine.bodies(CHAT) if "max_tokens" in body} == {512}
    assert len([body for body in engine.bodies(CHAT) if "max_tokens" not in body]) == 1


def test_a_model_that_answers_in_words_first_is_asked_again():
    with ScriptedEngine("words-first") as engine:
        verdict = verdict_of(engine)
    assert verdict["ok"] is True
    assert by_name(verdict)["tool-call"]["sent"].startswith(
        'POST /v1/chat/completions {"model":"gpt-oss-120b","messages":[{"role":"user","content":'
        '"Call get_system_health now and tell me what it says."}]'
    )


def test_a_streaming_model_that_answers_in_words_first_is_asked_again_too():
    with ScriptedEngine("stream-words-first") as engine:
        verdict = verdict_of(engine)
    assert verdict["ok"] is True
    assert len([body for body in engine.bodies(CHAT) if body.get("stream") and body.get("tools")]) == 3


def test_whether_the_answer_mentions_the_tools_result_is_told():
    for faults, words in (((), "mentions the result; "), ("aloof-after-tool", "does not mention the result; ")):
        with ScriptedEngine(faults) as engine:
            verdict = verdict_of(engine)
        assert verdict["ok"] is True
        assert by_name(verdict)["tool-round-trip"]["got"].startswith(words)


KEY = 'sk-a"b\\c/%41&'


def test_an_api_key_is_sent_and_never_told():
    with ScriptedEngine(api_key=KEY) as engine:
        good = verdict_of(engine, asking.Options(timeout=60, api_key=KEY))
        asked = len(engine.requests)
        bad = verdict_of(engine)
        assert len(engine.requests) == asked + 2  # after the first 401 nothing more is asked
        other = verdict_of(engine, asking.Options(timeout=60, api_key="sk-other"))
    assert good["ok"] is True
    assert failing(bad) == {"model-id": "the server asks for an API key and none was sent: set fleet_api_key to it"}
    assert failing(other) == {
        "model-id": "the server refuses the API key in its file of secrets: it was started with another one, or a "
        "proxy in front of it asks for one; run site.yml, which restarts it with this key"
    }


def test_a_server_that_tells_the_key_is_not_repeated():
    with ScriptedEngine(pages={"/health": lambda: json.dumps({"authorization": "Bearer " + KEY})}) as engine:
        verdict = verdict_of(engine, asking.Options(timeout=60, api_key=KEY))
    assert by_name(verdict)["alive"]["got"] == 'HTTP 200 {"authorization": "Bearer ***"}'


# -- every way to misbehave: the failing probes, each with its cause ---------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ("vocab-missing", {"warm-up": VOCABULARY}),
        ("vocab-corrupt", {"warm-up": DAMAGED}),
        (
            "engine-dead",
            {"warm-up": DEAD},
        ),
        (
            "health-503",
            {"alive": DEAD},
        ),
        (
            "health-404",
            {"alive": "the server has no such path: another program has the port, or the recipe names a wrong path"},
        ),
        ("models-odd", {"model-id": SHAPE}),
        ("not-http", {"alive": "what listens on this port does not speak HTTP: another program has the port"}),
        ("not-json", {"warm-up": SHAPE}),
        ("odd-shape", {"warm-up": SHAPE}),
        ("reset", {"warm-up": CLOSED}),
        ("cut", {"warm-up": CUT}),
        (
            "wrong-answer",
            {
                "chat": "the model runs but does not compute: a corrupt or wrongly converted checkpoint, or a kernel "
                "that is wrong on this accelerator"
            },
        ),
        (
            "length",
            {"chat": LENGTH, "tool-round-trip": ENDLESS, "streaming": LENGTH, "concurrent": LENGTH},
        ),
        ("empty", {"chat": EMPTY, "streaming": EMPTY, "concurrent": EMPTY}),
        ("endless", {"chat": ENDLESS, "tool-round-trip": ENDLESS, "streaming": ENDLESS}),
        (
            ("endless", "words", "effort-ignored"),
            {"chat": ENDLESS, "effort": ENDLESS, "tool-call": ENDLESS, "streaming": ENDLESS},
        ),
        (
            ("length", "words", "effort-ignored"),
            {"chat": LENGTH, "effort": LENGTH, "tool-call": LENGTH, "streaming": LENGTH, "concurrent": LENGTH},
        ),
        ("exclamation", {"chat": EXCLAMATION, "harmony-residue": EXCLAMATION, "streaming": EXCLAMATION}),
        ("leak", {"harmony-residue": LEAK, "streaming": LEAK}),
        ("leak-in-reasoning", {"harmony-residue": LEAK, "tool-round-trip": LEAK, "streaming": LEAK}),
        ("leak-in-arguments", {"harmony-residue": LEAK}),
        ("leak-after-tool", {"tool-round-trip": LEAK}),
        (
            "leak-stripped",
            {"harmony-residue": LEAK, "reasoning": NO_REASONING, "effort": NO_EFFORT, "streaming": LEAK},
        ),
        ("no-reasoning", {"reasoning": NO_REASONING, "effort": NO_EFFORT}),
        ("reasoning-in-content", {"reasoning": NO_REASONING}),
        ("effort-ignored", {"effort": NO_EFFORT}),
        (
            "strict",
            {
                "effort": "this engine does not know a parameter of the request: the recipe's verify section names the "
                "one that sets the reasoning effort (effort_parameter)"
            },
        ),
        (
            "drop-tool-call",
            {"tool-call": "the server was started without `--tool-call-parser openai --enable-auto-tool-choice`"},
        ),
        (
            "words",
            {
                "tool-call": "the model answered in words both times: the tools do not reach it (a `--chat-template` "
                "that knows no tools), or the checkpoint is no gpt-oss"
            },
        ),
        (
            "tool-bad-arguments",
            {
                "tool-call": "the arguments of the call are no JSON object: the tool-call parser is not the one for "
                "gpt-oss"
            },
        ),
        (
            "tool-finish-stop",
            {
                "tool-call": "the call is there but finish_reason is not tool_calls: clients that wait for that will "
                "not call the tool"
            },
        ),
        ("mute-after-tool", {"tool-round-trip": EMPTY}),
        (
            "no-responses",
            {
                "responses": "this engine has no /v1/responses: set responses_api: false in the recipe's verify "
                "section if it is not wanted"
            },
        ),
        (
            "responses-empty",
            {"responses": "no message with text in output: the engine's responses parser dropped what the model wrote"},
        ),
        ("responses-leak", {"harmony-residue": LEAK}),
        (
            "stream-no-done",
            {
                "streaming": "the stream ended without `data: [DONE]`: the engine broke off, or a proxy in front of it "
                "cuts long answers"
            },
        ),
        (
            "stream-cut",
            {
                "streaming": "the stream ended without `data: [DONE]`: the engine broke off, or a proxy in front of it "
                "cuts long answers"
            },
        ),
        ("stream-leak", {"streaming": LEAK}),
        (
            "stream-empty",
            {"streaming": "a 200 without a single event: the engine or a proxy in front of it does not stream"},
        ),
        (
            "stream-error",
            {"streaming": VLLM.output_parser},
        ),
        (
            "stream-no-reasoning",
            {
                "streaming": "the whole answer had reasoning and the stream has none: the streaming parser is not the "
                "one for gpt-oss"
            },
        ),
        (
            "stream-drops-tool-call",
            {"streaming": "the server was started without `--tool-call-parser openai --enable-auto-tool-choice`"},
        ),
        (
            "one-at-a-time",
            {
                "concurrent": "the server says that it is not ready: the engine is loading, shutting down or dead; see "
                "its log"
            },
        ),
    ],
)
def test_each_misbehaviour_fails_its_probes_and_names_its_cause(faults, expected):
    with ScriptedEngine(faults, together=TOGETHER if faults == "one-at-a-time" else None) as engine:
        verdict = verdict_of(engine)
    assert expected.items() <= failing(verdict).items()
    assert verdict["ok"] is False
    for name in expected:
        probe = by_name(verdict)[name]
        assert probe["got"]
        assert probe["sent"]
        assert len(probe["sent"]) < 450
        assert len(probe["got"]) < 900


def test_a_failing_probe_says_what_it_sent_and_what_came_back():
    with ScriptedEngine("drop-tool-call") as engine:
        verdict = verdict_of(engine)
    probe = by_name(verdict)["tool-call"]
    assert probe["sent"] == (
        'POST /v1/chat/completions {"model":"gpt-oss-120b","messages":[{"role":"user","content":"Hey, quick check: is '
        'everything up and running?"}],"temperature":1.0,"top_p":1.0,"max_tokens":1024,"tools":[{"type":"function",'
        '"function":{"name":"get_system_health","description":"Returns the current health status of the LLM runtime—'
        'use before critical operations to verify the service is live.","parameters":{"type":"object","propertie…'
    )
    assert probe["got"] == (
        'HTTP 200 {"object": "chat.completion", "model": "gpt-oss-120b", "choices": [{"index": 0, "message": {"role": '
        '"assistant", "content": null, "reasoning": "17*20 is 340 and 17*3 is 51, together 391."}, "finish_reason": '
        '"stop"}], "usage": {"completion_tokens": 24}}'
    )
    assert unmeasured(verdict) == {
        "tool-round-trip": "not run: tool-call brought no tool call",
        "tool-arguments": "not run: tool-call brought no tool call",
        "tool-result": "not run: tool-arguments brought no call with arguments",
        "second-tool-round": "not run: tool-result brought no answer",
        "tool-choice": "not run: tool-call brought no tool call",
    }
    assert by_name(verdict)["streaming"]["got"].endswith(
        "; a streamed tool call was not tried, as tool-call brought none"
    )


def test_a_leak_is_shown_where_it_is():
    with ScriptedEngine("leak-in-arguments") as engine:
        probe = by_name(verdict_of(engine))["harmony-residue"]
    assert probe["got"] == 'in the answer to tool-call: in the tool arguments: {"a": "<|call|>"}'
    assert '"tools":' in probe["sent"]


def test_a_broken_stream_shows_its_end():
    with ScriptedEngine("stream-no-done") as engine:
        got = by_name(verdict_of(engine))["streaming"]["got"]
    assert "3 characters of content, finish_reason stop; the stream's end: " in got
    assert got.endswith('data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}')


@pytest.mark.parametrize(
    ("engine", "cause"),
    [
        ("vllm", "the server was started without `--tool-call-parser openai --enable-auto-tool-choice`"),
        (
            "dynamo",
            "the workers were started without `--dyn-tool-call-parser harmony`; or, where no reasoning comes either, "
            "the frontend has no o200k_base.tiktoken where TIKTOKEN_ENCODINGS_BASE points",
        ),
        (
            "trtllm",
            "trtllm-serve lost the tool call: DISABLE_HARMONY_ADAPTER is set, or the release drops calls under Eagle3 "
            "speculation (TensorRT-LLM#16377)",
        ),
        ("unheard-of", "the server was started without a tool-call parser for gpt-oss"),
    ],
)
def test_a_dropped_tool_call_names_the_engines_own_flag(engine, cause):
    with ScriptedEngine("drop-tool-call") as scripted:
        verdict = verdict_of(scripted, entries=[entry_of(scripted.port, engine=engine)])
    assert failing(verdict) == {"tool-call": cause}


@pytest.mark.parametrize(
    ("expected", "listed", "cause"),
    [
        (
            "gpt-oss-120b",
            [],
            NO_MODELS,
        ),
        (
            "openai/gpt-oss-120b",
            ["gpt-oss-120b"],
            "the server lists the basename gpt-oss-120b instead of openai/gpt-oss-120b: trtllm-serve names a local "
            "checkpoint by its folder; make that the recipe's model id, or pass a served model name",
        ),
        (
            "gpt-oss-120b",
            ["/mnt/models/gpt-oss-120b"],
            "the server lists the path /mnt/models/gpt-oss-120b instead of gpt-oss-120b: it was started without a "
            "served model name (`--served-model-name gpt-oss-120b`)",
        ),
        (
            "gpt-oss-120b",
            ["gpt-oss-20b"],
            "the server lists gpt-oss-20b instead of gpt-oss-120b: its served model name is another, or another server "
            "has the port",
        ),
    ],
)
def test_the_model_id_must_be_the_planned_one_and_the_rest_is_still_measured(expected, listed, cause):
    with ScriptedEngine(listed=listed) as engine:
        name = "trtllm" if "basename" in cause else "vllm"
        verdict = verdict_of(engine, entries=[entry_of(engine.port, model_id=expected, engine=name)])
    if listed:
        assert failing(verdict) == {"model-id": cause}
        assert unmeasured(verdict) == {}
    else:
        assert failing(verdict) == {"model-id": cause, "warm-up": cause}


def test_a_context_that_is_too_short_is_named():
    with ScriptedEngine(context=600, tells_context=False) as engine:
        verdict = verdict_of(engine)
    assert failing(verdict) == {"warm-up": "the server's context is too short for this request: raise --max-model-len"}
