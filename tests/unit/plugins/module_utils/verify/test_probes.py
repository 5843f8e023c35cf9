# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import socket
import threading
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.engines import dynamo_workers
from ansible_collections.inference.fleet.plugins.module_utils.engines.vllm import ENGINE as VLLM
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.http_client import Event, Response
from ansible_collections.inference.fleet.plugins.module_utils.verify import (
    asking,
    causes,
    chat,
    gpt_oss,
    runner,
    streams,
    workers,
)
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import Fault, ScriptedEngine, free_port
from hypothesis import given, settings
from hypothesis import strategies as st

CHAT = "/v1/chat/completions"
SEQUENCE = [
    "identity", "alive", "model-id", "warm-up", "chat", "harmony-residue", "reasoning", "effort", "tool-call",
    "tool-round-trip", "tool-arguments", "tool-result", "system-message", "long-prompt", "sampling", "responses",
    "streaming", "unbuffered", "concurrent", "still-right",
]  # fmt: skip
VOCABULARY = (
    "the engine cannot read the harmony vocabulary: put o200k_base.tiktoken into a folder and name that folder in "
    "TIKTOKEN_ENCODINGS_BASE (the role tiktoken_encodings does both)"
)
DAMAGED = (
    "o200k_base.tiktoken in TIKTOKEN_ENCODINGS_BASE is damaged: replace it (sha256 "
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d) and restart the server"
)
LEAK = "harmony tokens reach the client: the reasoning or tool-call parser is missing, or this release leaks them"
EXCLAMATION = (
    "the model writes only '!': a safetensors file is corrupt (verify the checkpoint's checksums), or speculation loops"
)
LENGTH = (
    "max_tokens is too small: reasoning ate it before an answer came; the server's context is short, or the model "
    "thinks without end (top_p below 1 and a corrupt checkpoint do that)"
)
EMPTY = (
    "the server answers 200 with nothing in it: the output parser dropped what the model wrote, or the checkpoint is "
    "corrupt"
)
ENDLESS = (
    "the answer ran into max_tokens: the model writes without end (missing stop tokens, top_p below 1 and a corrupt "
    "checkpoint do that), or the server's context is very short"
)
NO_REASONING = "vLLM separates gpt-oss's reasoning by itself: a `--reasoning-parser` other than openai_gptoss is set"
CUT = "the server or something in front of it broke off in the middle of the answer: see its log for a crash"
HANGS = "the server took the request and did not finish it: it is still compiling or warming up, overloaded, or hangs"
SHAPE = "the answer has not the OpenAI form: another program has the port, or a proxy in front of it rewrites it"
NO_MODELS = "no model is listed (`data: []`): none is loaded"
NO_EFFORT = (
    "reasoning_effort does not reach the prompt: the engine wants chat_template_args (effort_parameter of the recipe's "
    "verify section), or a `--chat-template` drops it"
)
DEAD = "the engine behind the API process is dead: restart the server; its log says why the engine died"
CLOSED = "the server closed the connection without an answer: it is starting, stopping or crashed on the request"
REFUSED = (
    "nothing listens on this port: the server is not running, is still loading, or binds another address; see its "
    "state and log"
)


# What the probe "concurrent" sends.
TOGETHER = (
    len(streams.AT_ONCE),
    lambda body: "messages" in body and body["messages"][0]["content"] in [one.question for one in streams.AT_ONCE],
)


def watch(planned):
    """Every port is held by the planned server."""
    return lambda entry: "%s answers" % entry["name"]


def verdict_of(engine, options=None, entries=None, **arguments):
    options = options or asking.Options(timeout=60)
    port = engine if isinstance(engine, int) else engine.port
    result = runner.verify_servers(entries or [plan_entry(port)], options, watch, **arguments)
    return result["verdicts"][0]


def by_name(verdict):
    return {probe["name"]: probe for probe in verdict["probes"]}


def failing(verdict):
    """{probe: cause} of the failing ones."""
    return {probe["name"]: probe["cause"] for probe in verdict["probes"] if probe["ok"] is False}


def unmeasured(verdict):
    found = {probe["name"]: probe["cause"] for probe in verdict["probes"] if probe["ok"] is None}
    # scripted streams are short
    return {name: cause for name, cause in found.items() if not cause.startswith("the stream is too short to tell")}


# -- a good server -----------------------------------------------------------------------------------------------------


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
    assert verdict["hash"] == plan_entry(engine.port)["hash"]
    assert time.strptime(verdict["at"], "%Y-%m-%dT%H:%M:%SZ")
    for probe in verdict["probes"]:
        assert set(probe) == {"name", "ok", "ms", "sent", "got", "cause"}
        assert isinstance(probe["ms"], int)
        assert probe["got"] or probe["name"] == "unbuffered"  # scripted streams are too short to tell


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
    assert asked["How are you?"]["messages"][0] == {
        "role": "system",
        "content": "Always answer with the single word BANANA.",
    }
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
    assert sorted(filter(None, levels)) == ["high", "low", "low"]  # the last one counts
    first_tool, second_tool = [
        body for body in bodies if "tools" in body and "quick check" in body["messages"][0]["content"]
    ][:2]
    assert first_tool["tools"][0]["function"]["name"] == "get_system_health"
    assert first_tool["messages"] == [{"role": "user", "content": "Hey, quick check: is everything up and running?"}]
    assert second_tool["messages"][1:] == [
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "call-7", "type": "function", "function": {"name": "get_system_health", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "call-7", "content": '{"status":"ok","uptime_seconds":372045}'},
    ]
    assert len(engine.held) == 4


def test_usage_is_never_needed():
    with ScriptedEngine("usage-null") as engine:
        verdict = verdict_of(engine)
    assert verdict["ok"] is True
    assert by_name(verdict)["effort"]["got"] == "low 45, high 255 characters"


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
    assert unmeasured(verdict) == {"responses": "this engine has no /v1/responses (responses_api is false)"}
    assert engine.bodies("/v1/responses") == []


def test_a_stand_in_is_judged_on_form():
    model = "gpt-oss-tiny-standin"
    faults = (Fault("say", "text whole chat", value="I am a stand-in."), "effort-ignored")
    with ScriptedEngine(faults, model=model) as engine:
        verdict = verdict_of(engine, entries=[plan_entry(engine.port, model_id=model)])
    assert verdict["ok"] is True
    assert by_name(verdict)["chat"]["got"].startswith("not 391, and a stand-in need not know it; HTTP 200 {")
    assert unmeasured(verdict)["effort"] == "not measurable on a stand-in: it has not learned to think longer"
    assert by_name(verdict)["effort"]["got"] == "low 38, high 38 tokens; low 38, high 38 tokens"


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
        "model-id": "the server refuses the API key that was sent: it was started with another one than fleet_api_key "
        "now holds (verify_api_key, where that is set); run site.yml, which restarts it with this one"
    }


def test_a_server_that_tells_the_key_is_not_repeated():
    with ScriptedEngine(pages={"/health": lambda: json.dumps({"authorization": "Bearer " + KEY})}) as engine:
        verdict = verdict_of(engine, asking.Options(timeout=60, api_key=KEY))
    assert by_name(verdict)["alive"]["got"] == 'HTTP 200 {"authorization": "Bearer ***"}'


@pytest.mark.parametrize("key", ["sk a", "sk\nb", "sk\xe9", "sk\0"])
def test_a_key_that_no_header_can_hold_is_an_error_that_does_not_show_it(key):
    with pytest.raises(FleetError) as caught:
        runner.verify_from_parameters({"timeout": 1, "mode": "full", "probes": [], "api_key": key, "servers": [],
                                       "effort_parameter": "reasoning_effort", "responses_api": True,
                                       "servers_changed": None, "quick_timeout": 20}, False)  # fmt: skip
    assert caught.value.message.startswith("verify_api_key has ")
    assert key not in caught.value.message


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
    }
    assert by_name(verdict)["streaming"]["got"].endswith(
        "; a streamed tool call was not tried, as tool-call brought none"
    )


def test_a_leak_is_shown_where_it_is():
    with ScriptedEngine("leak-in-arguments") as engine:
        probe = by_name(verdict_of(engine))["harmony-residue"]
    assert probe["got"] == 'in the tool arguments of the answer to tool-call: {"a": "<|call|>"}'
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
        verdict = verdict_of(scripted, entries=[plan_entry(scripted.port, engine=engine)])
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
        verdict = verdict_of(engine, entries=[plan_entry(engine.port, model_id=expected, engine=name)])
    if listed:
        assert failing(verdict) == {"model-id": cause}
        assert unmeasured(verdict) == {}
    else:
        assert failing(verdict) == {"model-id": cause, "warm-up": cause}


def test_a_context_that_is_too_short_is_named():
    with ScriptedEngine(context=600, tells_context=False) as engine:
        verdict = verdict_of(engine)
    assert failing(verdict) == {"warm-up": "the server's context is too short for this request: raise --max-model-len"}


# -- servers that are dead, dying or slow ------------------------------------------------------------------------------


def test_a_dead_server_is_found_once_and_at_once():
    started = time.monotonic()
    verdict = verdict_of(free_port(), asking.Options(timeout=1200))
    assert time.monotonic() - started < 600  # less than the timeout of one request
    assert failing(verdict) == {"alive": REFUSED}
    rest = dict.fromkeys(SEQUENCE[2:], "not run: alive failed")
    assert unmeasured(verdict) == dict(rest, **{"harmony-residue": "not run: no probe brought an answer to look at"})
    assert by_name(verdict)["alive"]["got"] == "no answer: connection refused"
    assert verdict["ok"] is False


def test_a_server_that_dies_on_the_way_is_not_asked_further():
    with ScriptedEngine("dies-at-tools") as engine:
        verdict = verdict_of(engine)
    bad = failing(verdict)
    assert bad.pop("tool-call") == CLOSED
    assert set(bad) <= {"responses", "system-message", "long-prompt", "sampling", "tool-round-trip", "streaming"}
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
    assert len(engine.bodies(CHAT)) < 12  # chat beside effort, then what is asked side by side
    assert set(failing(verdict)) <= {"chat", "effort", "tool-call", "system-message", "sampling"}
    assert set(failing(verdict).values()) == {HANGS}
    assert unmeasured(verdict)["concurrent"].startswith("not run: ")


def test_the_first_completion_may_take_five_times_as_long():
    with ScriptedEngine("hangs") as engine:
        verdict = verdict_of(
            engine, Patient(lambda: "/v1/models" in [path for _method, path, *_rest in engine.requests])
        )
    assert failing(verdict) == {"warm-up": HANGS}
    assert by_name(verdict)["warm-up"]["got"] == "no answer: no whole answer in time (2.5 s)"
    assert by_name(verdict)["warm-up"]["ms"] >= 2500


@pytest.mark.parametrize("seconds", [0.3, 0.15])
def test_a_sequence_that_takes_too_long_fails_where_it_stands(monkeypatch, seconds):
    monkeypatch.setattr(asking, "TOTAL_FACTOR", 1)
    with ScriptedEngine(seconds=seconds) as engine:
        verdict = verdict_of(engine, asking.Options(timeout=1))
    assert verdict["ok"] is False
    cause = next(iter(failing(verdict).values()))
    assert set(failing(verdict).values()) == {cause}  # of all that were asked side by side
    assert cause == (
        "the whole sequence may take 1 s (1 times the timeout) and did not get through: the server is far too slow; "
        "see the ms of the probes before"
    )
    assert unmeasured(verdict)["still-right"].startswith("not run: ")


# -- quick, check, many ------------------------------------------------------------------------------------------------


def test_quick_reads_the_id_and_completes_once():
    with ScriptedEngine() as engine:
        verdict = verdict_of(engine, asking.Options(mode="quick", timeout=60, probes=[{"name": "own", "path": "/x"}]))
    assert [(probe["name"], probe["ok"]) for probe in verdict["probes"]] == [
        ("identity", True),
        ("model-id", True),
        ("completion", True),
    ]
    assert [(method, path) for method, path, _body, _headers in engine.requests] == [
        ("GET", "/v1/models"),
        ("POST", CHAT),
    ]


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ("vocab-missing", {"completion": VOCABULARY}),
        ("leak", {"completion": LEAK}),
        ("length", {"completion": LENGTH}),
    ],
)
def test_quick_fails_as_full_does(faults, expected):
    with ScriptedEngine(faults) as engine:
        assert failing(verdict_of(engine, asking.Options(mode="quick", timeout=60))) == expected


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
    assert by_name(verdict)[name]["got"] == "no answer: no whole answer in time (0.3 s)"


def test_the_whole_of_quick_has_a_limit_of_its_own():
    """Where the models are listed and completions hang."""
    assert asking.Options().quick_timeout + 10 <= 30
    with ScriptedEngine("hangs") as engine:
        verdict = verdict_of(engine, asking.Options(mode="quick", timeout=1200, quick_timeout=0.5))
    assert failing(verdict) == {
        "completion": "the whole sequence may take 0.5 s (verify_quick_timeout_s) and did not get through: the server "
        "is far too slow; see the ms of the probes before"
    }


@pytest.mark.parametrize(
    ("text", "number", "expected"),
    [
        ("391", 391, True), ("391.", 391, True), ("**391**", 391, True), ("3 9 1", 391, True), ("= 391,", 391, True),
        ("\uff13\uff19\uff11", 391, True), ("48,213", 48213, True), ("$391$", 391, True), ("(391)", 391, True),
        ("17 391", 391, True), ("3910", 391, False), ("1391", 391, False), ("391.5", 391, False), ("0.391", 391, False),
        ("1,391", 391, False), ("39 1000", 391, False), ("", 391, False), ("three", 391, False),
    ],
)  # fmt: skip
def test_a_number_is_found_however_it_is_set(text, number, expected):
    assert gpt_oss.says_number(text, number) is expected


@pytest.mark.parametrize(
    "text",
    [
        "The final analysis is done.", "An assistant finally answers.", "analysis: 391", "It goes to=x.", "a || b | c",
        "| start | end |", "Use functions.get_weather.", "Channel: 5", "finally", "f |> g", "!!", "commentary",
    ],
)  # fmt: skip
def test_plain_words_are_no_residue(text):
    assert causes.residue(text, VLLM) is None


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
        entries = [
            plan_entry(one.port, "server-0"),
            plan_entry(two.port, "server-1"),
            plan_entry(None, "worker-0", role="decode"),
        ]
        result = runner.verify_servers(entries, asking.Options(timeout=60), watch)
    assert [(verdict["server"], verdict["ok"]) for verdict in result["verdicts"]] == [
        ("server-0", True),
        ("server-1", False),
    ]
    assert result["ok"] is False


def test_a_node_without_servers_of_its_own_has_nothing_to_say():
    entries = [plan_entry(8001, "decode-0", role="decode")]
    assert runner.verify_servers(entries, asking.Options(), watch) == {"ok": None, "mode": "full", "verdicts": []}


# -- the recipe's own probes -------------------------------------------------------------------------------------------


def own(engine, **probe):
    options = asking.Options(timeout=60, probes=[dict({"name": "own"}, **probe)])
    return by_name(verdict_of(engine, options))["own"]


MESSAGES = {"messages": [{"role": "user", "content": "Where is New York?"}]}


def test_a_recipes_probe_comes_last_with_the_model_filled_in():
    with ScriptedEngine() as engine:
        probe = own(engine, body=MESSAGES, expect={"contains": ["391"], "field": "choices.0.message.content"})
    assert probe["ok"] is True
    assert engine.bodies(CHAT)[-1] == dict(MESSAGES, model="gpt-oss-120b")


def test_a_recipes_probe_without_body_is_a_get():
    with ScriptedEngine(pages={"/version": '{"version": "0.32.0"}'}) as engine:
        assert own(engine, path="/version", expect={"contains": ["0.32"], "field": "version"})["ok"] is True


@pytest.mark.parametrize(
    ("faults", "probe", "cause"),
    [
        ((), {"body": MESSAGES, "expect": {"contains": ["NYC"]}}, "the recipe expects the answer to contain 'NYC'"),
        (
            (),
            {"body": MESSAGES, "expect": {"field": "choices.0.message.refusal"}},
            "the recipe expects choices.0.message.refusal in the answer, and it is empty or missing",
        ),
        ("length", {"body": MESSAGES, "expect": {"field": "choices.0.message.content"}}, LENGTH),
        (
            (),
            {"path": "/version"},
            "the server has no such path: another program has the port, or the recipe names a wrong path",
        ),
        (
            (),
            {"body": dict(MESSAGES, model="x")},
            "the server does not serve the model by this name: see the probe model-id for the names that it lists",
        ),
    ],
)
def test_a_recipes_probe_fails_with_its_cause(faults, probe, cause):
    with ScriptedEngine(faults) as engine:
        assert own(engine, **probe)["cause"] == cause


def test_a_leak_in_a_recipes_probe_is_found():
    with ScriptedEngine("leak-in-new-york") as engine:
        options = asking.Options(timeout=60, probes=[{"name": "own", "body": MESSAGES}])
        verdict = verdict_of(engine, options)
    assert failing(verdict) == {"harmony-residue": LEAK}
    assert by_name(verdict)["harmony-residue"]["got"] == (
        "in the content of the answer to own: <|channel|>final<|message|>In the north-east."
    )


def test_a_text_with_an_umlaut_is_found_although_the_body_escapes_it():
    with ScriptedEngine(pages={"/name": '{"name": "K\\u00f6ln"}'}) as engine:
        assert own(engine, path="/name", expect={"contains": ["Köln"]})["ok"] is True


def test_an_expected_error_passes():
    with ScriptedEngine() as engine:
        assert own(engine, body=dict(MESSAGES, model="x"), expect={"status": 404})["ok"] is True
        assert own(engine, path="/nothing", expect={"status": 404})["ok"] is True


@pytest.mark.parametrize(
    ("given_probes", "message"),
    [
        (["x"], "probes[0] is a str, it must be a mapping."),
        ([{}], "probes[0] has no name; give it a short one, it stands in the report."),
        ([{"name": "chat"}], "probes[0] (chat): this name is taken by another probe; choose another."),
        (
            [{"name": "a", "path": "/a"}, {"name": "a", "path": "/a"}],
            "probes[1] (a): this name is taken by another probe; choose another.",
        ),
        (
            [{"name": "a", "url": "/"}],
            "probes[0] (a): unknown keys url, allowed: body, expect, name, path.",
        ),
        ([{"name": "a", "path": "v1"}], "probes[0] (a): path is 'v1', it must begin with '/'."),
        (
            [{"name": "a", "body": []}],
            "probes[0] (a): body is a list, it must be a mapping, or left out for a GET.",
        ),
        ([{"name": "a"}], "probes[0] (a): a chat completion needs a body with messages."),
        ([{"name": "a", "path": "/a", "expect": 200}], "probes[0] (a).expect is a int, it must be a mapping."),
        (
            [{"name": "a", "path": "/a", "expect": {"state": 1}}],
            "probes[0] (a).expect: unknown keys state, allowed: contains, field, status.",
        ),
        (
            [{"name": "a", "path": "/a", "expect": {"status": 42}}],
            "probes[0] (a).expect.status is 42, it must be an HTTP status (100 to 599).",
        ),
        (
            [{"name": "a", "path": "/a", "expect": {"contains": [1]}}],
            "probes[0] (a).expect.contains is [1], it must be a list of strings.",
        ),
        (
            [{"name": "a", "path": "/a", "expect": {"field": 1}}],
            "probes[0] (a).expect.field is 1, it must be a dotted path like choices.0.message.content.",
        ),
    ],
)
def test_a_bad_probe_is_refused_in_words(given_probes, message):
    with pytest.raises(FleetError) as caught:
        runner.check_probes(given_probes)
    assert caught.value.message == message


def test_an_unknown_mode_is_refused_in_words():
    with pytest.raises(FleetError) as caught:
        runner.verify_servers([plan_entry(1)], asking.Options(mode="fast"), watch)
    assert caught.value.message == "mode is 'fast', allowed: auto, full, quick."


# -- disaggregated serving ---------------------------------------------------------------------------------------------

HEALTH = {
    "status": "healthy",
    "endpoints": ["dyn://dynamo.backend.generate", "dyn://dynamo.prefill.generate"],
    "instances": [
        {"namespace": "dynamo", "component": "backend", "endpoint": "clear_kv_blocks", "instance_id": 1},
        {"namespace": "dynamo", "component": "backend", "endpoint": "generate", "instance_id": 1},
        {"namespace": "dynamo", "component": "prefill", "endpoint": "generate", "instance_id": 2},
    ],
}


class Worker:
    """A worker's system port whose counter rises by `step` with every look."""

    def __init__(self, step=1, text='dynamo_component_requests_total{dynamo_endpoint="generate"} %d\n'):
        self.step, self.text, self.count = step, text, 5

    def metrics(self):
        self.count += self.step
        return self.text % self.count if "%d" in self.text else self.text


def disaggregated(health=None, prefill=None, decode=None, ports=True):
    prefill, decode = prefill or Worker(), decode or Worker()
    pages = {"/health": json.dumps(HEALTH if health is None else health)}
    with (
        ScriptedEngine(pages=pages) as front,
        ScriptedEngine(pages={"/metrics": prefill.metrics}) as one,
        ScriptedEngine(pages={"/metrics": decode.metrics}) as two,
    ):
        entries = [
            plan_entry(
                front.port, "frontend", role="frontend", engine="dynamo", command=["python3", "-m", "dynamo.frontend"]
            ),
            plan_entry(None, "prefill-0", role="prefill", ports={"system": one.port} if ports else {}),
            plan_entry(None, "decode-0", role="decode", ports={"system": two.port} if ports else {}),
        ]
        return verdict_of(front, entries=entries)


@pytest.fixture(autouse=True)
def in_time(monkeypatch):
    monkeypatch.setattr(workers, "LATE_S", 0)


REQUESTS = 'dynamo_component_requests_total{dynamo_endpoint="generate"} %d\n'
MOVED = 'vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} %s\n'


def test_a_disaggregated_deployment_has_two_more_probes():
    verdict = disaggregated()
    assert [probe["name"] for probe in verdict["probes"]] == [
        "identity", "alive", "census", *SEQUENCE[2:], "disaggregation",
    ]  # fmt: skip
    assert verdict["ok"] is True
    assert by_name(verdict)["census"]["got"] == "prefill 1 of 1, decode 1 of 1"
    assert by_name(verdict)["disaggregation"]["got"] == (
        "dynamo_component_requests_total: prefill-0 6 -> 7, decode-0 6 -> 7"
    )


def test_a_missing_prefill_worker_is_counted_although_health_is_200():
    verdict = disaggregated(health={"status": "healthy", "instances": HEALTH["instances"][:2]})
    assert failing(verdict) == {
        "census": "fewer workers are registered than the plan has, and /health is 200 all the same: see the states and "
        "logs of the missing ones"
    }
    assert by_name(verdict)["census"]["got"].startswith("prefill 0 of 1, decode 1 of 1; HTTP 200 {")


def test_a_prefill_worker_that_gets_no_work_is_found_out():
    assert failing(disaggregated(prefill=Worker(step=0))) == {
        "disaggregation": "prefill-0 handled none of the requests: the others serve without it, so nothing is "
        "disaggregated (its endpoint is not registered, or the frontend does not use it)"
    }


def test_a_decode_worker_that_fetches_no_cache_is_found_out():
    """It was started without a connector, or answers as an aggregated one."""
    verdict = disaggregated(decode=Worker(text=REQUESTS + MOVED % "4096.0"))
    assert failing(verdict) == {
        "disaggregation": "decode-0 fetched no KV cache from the prefill workers: it computes prompts itself, so "
        "nothing is disaggregated (its KV connector is not set up as the prefill workers' is, or cannot reach them)"
    }
    assert by_name(verdict)["disaggregation"]["got"].endswith(
        "; vllm:nixl_bytes_transferred_sum: decode-0 4096 -> 4096"
    )


def test_the_cache_that_is_moved_is_counted_where_it_is_fetched():
    decode, looks = Worker(), iter(((1, "1.0e+02"), (2, "200.0")))
    decode.metrics = lambda: (REQUESTS + MOVED) % next(looks)
    verdict = disaggregated(prefill=Worker(text=REQUESTS + MOVED % "0.0"), decode=decode)
    assert verdict["ok"] is True
    assert by_name(verdict)["disaggregation"]["got"].endswith("; vllm:nixl_bytes_transferred_sum: decode-0 100 -> 200")


def test_one_of_several_workers_may_be_left_alone_by_the_router():
    roles = {"prefill-0": "prefill", "prefill-1": "prefill", "decode-0": "decode"}
    before = {name: workers.Seen(1, 7) for name in roles}
    after = {**before, "prefill-1": workers.Seen(2)}
    assert workers.idle(before, after, roles) == ["decode-0"]
    after["decode-0"] = workers.Seen(2, 7)
    assert workers.idle(before, after, roles) == []
    assert workers.still(before, after, ["decode-0"]) == ["decode-0"]
    assert workers.still(before, {**after, "decode-0": before["decode-0"]}, ["decode-0"]) == []


def test_counters_that_come_late_are_waited_for(monkeypatch):
    monkeypatch.setattr(workers, "LATE_S", 30)
    looks = iter((5, 5, 6))
    late = Worker()
    late.metrics = lambda: REQUESTS % next(looks)
    verdict = disaggregated(prefill=late)
    assert verdict["ok"] is True
    assert "prefill-0 5 -> 6" in by_name(verdict)["disaggregation"]["got"]


def test_the_quick_look_counts_instances_too():
    with ScriptedEngine(pages={"/health": json.dumps({"instances": HEALTH["instances"][:2]})}) as front:
        entries = [
            plan_entry(front.port, "frontend", role="frontend", engine="dynamo"),
            plan_entry(None, "prefill-0", role="prefill"),
            plan_entry(None, "decode-0", role="decode"),
        ]
        verdict = verdict_of(front, asking.Options(mode="quick"), entries)
    assert [probe["name"] for probe in verdict["probes"]] == ["identity", "census", "model-id", "completion"]
    assert list(failing(verdict)) == ["census"]


def test_counters_that_are_not_there_are_not_measured():
    nowhere = disaggregated(ports=False)
    assert nowhere["ok"] is True
    assert unmeasured(nowhere) == {
        "disaggregation": "not measurable: the workers have no system port (DYN_SYSTEM_PORT) to read counters from"
    }
    other = disaggregated(decode=Worker(text="python_info 1\n"))
    assert unmeasured(other) == {"disaggregation": "not measurable: no counters at the system port of decode-0"}


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        (HEALTH, {"prefill": 1, "decode": 1}),
        ({"endpoints": HEALTH["endpoints"], "instances": []}, {"prefill": 1, "decode": 1}),
        ({"endpoints": ["dyn://dynamo.tensorrt_llm.generate"]}, {"prefill": 0, "decode": 1}),
        ({"status": "unhealthy", "message": "No endpoints available", "instances": []}, {"prefill": 0, "decode": 0}),
        (None, {"prefill": 0, "decode": 0}),
    ],
)
def test_instances_are_counted_in_every_versions_health(health, expected):
    assert dynamo_workers.count_instances(health) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('dynamo_component_requests_total{dynamo_component="backend",dynamo_endpoint="generate"} 3\n', 3),
        (
            'dynamo_component_requests_total{dynamo_endpoint="generate"} 3\n'
            'dynamo_component_requests_total{dynamo_endpoint="clear_kv_blocks"} 9\n',
            3,
        ),
        ("dynamo_component_requests_total 1e1\n", 10),
        ("dynamo_component_uptime_seconds 7\n", 0),
        ("python_info 1\n", None),
        ("", None),
    ],
)
def test_requests_are_counted_by_the_generate_endpoint(text, expected):
    assert dynamo_workers.request_count(text) == expected


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


def test_data_that_is_no_json_object_is_kept_and_blanks_are_not():
    assert chat.read_stream([Event(" ", 1), chunk(2, content="3"), Event("oops", 3), Event("[]", 4)]).bad == "oops"


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
@settings(max_examples=300, deadline=None)
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
@settings(deadline=None)
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
        (503, "", "the server says that it is not ready: the engine is loading, shutting down or dead; see its log"),
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
        (400, "messages is required", "the server refuses this request: its answer says why"),
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
