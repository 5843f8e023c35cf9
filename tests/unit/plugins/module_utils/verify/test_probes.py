# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probes, on a good server and on every bad one."""

from __future__ import annotations

import json
import re
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import Fault, ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import (
    AT_ONCE,
    CHAT,
    NO_EFFORT,
    NO_MODELS,
    SEQUENCE,
    TOGETHER,
    by_name,
    entry_of,
    failing,
    unmeasured,
    verdict_of,
)

pytestmark = pytest.mark.usefixtures("short_streams")


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
        "responses-stream": "not run: responses got no answer",
        "responses-tools": "not run: responses got no answer",
    }
    assert engine.bodies("/v1/responses") == []


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


KEY = 'sk-a"b\\c/%41&'


def test_an_api_key_is_sent_and_never_told():
    with ScriptedEngine(api_key=KEY) as engine:
        good = verdict_of(engine, asking.Options(timeout=60, api_key=KEY))
        asked = len(engine.requests)
        bad = verdict_of(engine)
        assert len(engine.requests) == asked + 2  # after the first 401 nothing more is asked
        other = verdict_of(engine, asking.Options(timeout=60, api_key="sk-other"))
    assert good["ok"] is True
    assert set(failing(bad)) == set(failing(other)) == {"model-id"}
    assert failing(bad) != failing(other)


def test_a_server_that_tells_the_key_is_not_repeated():
    with ScriptedEngine(pages={"/health": lambda: json.dumps({"authorization": "Bearer " + KEY})}) as engine:
        verdict = verdict_of(engine, asking.Options(timeout=60, api_key=KEY))
    assert by_name(verdict)["alive"]["got"] == 'HTTP 200 {"authorization": "Bearer ***"}'


# -- every way to misbehave: the failing probes, each with its cause ---------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ("vocab-missing", "warm-up"),
        ("vocab-corrupt", "warm-up"),
        ("engine-dead", "warm-up"),
        ("health-503", "alive"),
        ("health-404", "alive"),
        ("models-odd", "model-id"),
        ("not-http", "alive"),
        ("not-json", "warm-up"),
        ("odd-shape", "warm-up"),
        ("reset", "warm-up"),
        ("cut", "warm-up"),
        ("wrong-answer", "chat"),
        ("length", "chat tool-round-trip streaming concurrent"),
        ("empty", "chat streaming concurrent"),
        ("endless", "chat tool-round-trip streaming"),
        (("endless", "words", "effort-ignored"), "chat effort tool-call streaming"),
        (("length", "words", "effort-ignored"), "chat effort tool-call streaming concurrent"),
        ("exclamation", "chat harmony-residue streaming"),
        ("leak", "harmony-residue streaming"),
        ("leak-in-reasoning", "harmony-residue tool-round-trip streaming"),
        ("leak-in-arguments", "harmony-residue"),
        ("leak-after-tool", "tool-round-trip"),
        ("leak-stripped", "harmony-residue reasoning effort streaming"),
        ("no-reasoning", "reasoning effort"),
        ("reasoning-in-content", "reasoning"),
        ("effort-ignored", "effort"),
        ("strict", "effort"),
        ("drop-tool-call", "tool-call"),
        ("words", "tool-call"),
        ("tool-bad-arguments", "tool-call"),
        ("tool-finish-stop", "tool-call"),
        ("mute-after-tool", "tool-round-trip"),
        ("no-responses", "responses"),
        ("responses-empty", "responses"),
        ("responses-leak", "harmony-residue"),
        ("stream-no-done", "streaming"),
        ("stream-cut", "streaming"),
        ("stream-leak", "streaming"),
        ("stream-empty", "streaming"),
        ("stream-error", "streaming"),
        ("stream-no-reasoning", "streaming"),
        ("stream-drops-tool-call", "streaming"),
        ("one-at-a-time", "concurrent"),
    ],
)
def test_each_misbehaviour_fails_its_probes(faults, expected):
    with ScriptedEngine(faults, together=TOGETHER if faults == "one-at-a-time" else None) as engine:
        verdict = verdict_of(engine)
    assert verdict["ok"] is False
    assert set(expected.split()) <= set(failing(verdict))
    for name in expected.split():
        probe = by_name(verdict)[name]
        assert probe["got"] and probe["sent"] and probe["cause"]
        assert len(probe["sent"]) < 450 and len(probe["got"]) < 900


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
