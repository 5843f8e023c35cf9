# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""False servers, each of which one probe must fail with its cause, and sound ones that must pass all the same."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.vllm import ENGINE as VLLM
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.model import gpt_oss
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import causes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking, probes, streams
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import Fault, ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify import verdicts
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import by_name, failing

GIBBERISH = "zq vrmoo lkj pfft sdkl wq"
NOW = (("Retry-After", "0"),)
LATER = (("Retry-After", "3600"),)


def verdict_of(faults, model="gpt-oss-120b", engine="vllm", options=None, planned=None, **scripted):
    """The verdict on a scripted engine. planned: its context."""
    with ScriptedEngine(faults, model=model, together=verdicts.TOGETHER, **scripted) as one:
        return verdicts.verdict_of(one, options, [verdicts.entry_of(one.port, planned, model_id=model, engine=engine)])


# -- values of faults: functions of what a good server would send ------------------------------------------------------


def other_number(content):
    return str(int(content) + 10) if content.isdigit() else content


def more(text):
    return lambda content: content + text


def lines(change):
    return lambda text: "\n".join(change(text.split("\n")))


def arguments(**changes):
    """Changed arguments of a call, as JSON."""
    return lambda given: json.dumps({**given, **{key: change(given[key]) for key, change in changes.items()}})


def second_choice(value, _body):
    return dict(value, choices=[dict(value["choices"][0], index=1)])


def prompt_shown(message, finish, body):
    """The message repeats the prompt."""
    prompt = "\n".join(one["content"] for one in body["messages"] if one.get("content"))
    return dict(message, content=message.get("content") and "%s\n%s" % (prompt, message["content"])), finish


def thinks_aloud(message, finish, _body):
    if message.get("content"):
        message["content"] = "%s %s" % (message.get("reasoning") or "The user asks for it.", message["content"])
    return message, finish


def in_words(_message, _finish, _body):
    return {"role": "assistant", "content": "It rains."}, "stop"


def calls(change):
    """change(message, call) for each call."""

    def of(message, finish, _body):
        for call in message.get("tool_calls") or ():
            change(message, call)
        return message, finish

    return of


def says_call(form):
    return calls(lambda message, call: message.update(content=form % call["function"]))


def added(*more):
    """More chunks at the end of a stream."""
    return lambda chunks: [*chunks, *more]


def without_first(key):
    def change(chunks):
        first = next((one for one in chunks if one["choices"][0]["delta"].get(key)), None)
        return [one for one in chunks if one is not first]

    return change


# -- false servers -----------------------------------------------------------------------------------------------------

CHAT, STREAM, RESPONSE = "chat whole text", "stream text", "responses"
WHERE = {  # where a fault is, and the probe that must notice it
    CHAT: ("chat", causes.WRONG_ANSWER), STREAM: ("streaming", causes.WRONG_STREAM),
    RESPONSE: ("responses", causes.WRONG_RESPONSES), "long": ("long-prompt", causes.WRONG_LONG),
    "cold": ("sampling", causes.WRONG_SAMPLING), "bare chat": ("sampling", causes.WRONG_SAMPLING),
    "system": ("system-message", causes.WRONG_SYSTEM), "turns": ("multi-turn", causes.WRONG_TURNS),
    "developer": ("developer-message", causes.WRONG_DEVELOPER),
}  # fmt: skip
TO_PARIS = '{"city": "Paris", "days": 3}'
TO_ROME = '{"city": "Rome", "days": 3}'
CALL = "%(name)s(%(arguments)s)"
LATE_PIECE = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}

# {(the probes that must fail, their cause, None for any): [Fault, its name, or several of them]}; each probe with each
# way to its cause. test_judging.py has all forms, texts and tokens.
FALSE = {
    **{(probe, cause): [Fault("say", where, value=GIBBERISH) for where in WHERE if WHERE[where] == (probe, cause)]
       for probe, cause in WHERE.values()},
    ("still-right", causes.WRONG_LATER): [
        Fault("say", where, "late", value) for where, value in
        ((CHAT, GIBBERISH), (STREAM, other_number), (RESPONSE, GIBBERISH))],
    ("concurrent", causes.WRONG_TOGETHER): [Fault("say", STREAM, "together", GIBBERISH)],
    ("concurrent", causes.MIXED_UP): [Fault("swap", "", "together", 2)],
    ("concurrent", causes.FAILED): [Fault("status", "", "together", (500,))],
    # harmony in an answer, and tokens of other models
    ("harmony-residue", VLLM.residue): [
        Fault("insert", CHAT, value=" assistantfinal"), Fault("insert", RESPONSE, value="<|end|>"),
        Fault("reasoning", "whole", value="We add.<|end|><|start|>assistant"),
        Fault("reasoning", RESPONSE, value="We add.<|end|>")],
    ("harmony-residue", causes.FOREIGN): [
        Fault("insert", CHAT, value=" </s>"),
        Fault("arguments", "weather whole", value=arguments(city=more("<|im_end|>")))],
    ("streaming", causes.FOREIGN): [Fault("insert", STREAM, value=" <|im_end|>")],
    ("streaming", VLLM.residue): [Fault("reasoning", "stream", value="We add.assistantfinal")],
    ("tool-round-trip", VLLM.residue): [Fault("insert", "after-tool", value="<|end|>")],
    ("tool-arguments", VLLM.dropped_tool_call): [Fault("say", "weather tools", value="to=functions.get_weather {}")],
    ("chat", VLLM.exclamation): [Fault("say", CHAT, value="!" * 40)],
    # reasoning
    ("reasoning", VLLM.no_reasoning): [
        Fault("reasoning", "chat", value=""),
        *(Fault("message", where, value=thinks_aloud) for where in (CHAT, STREAM, "after-tool"))],
    ("effort", verdicts.NO_EFFORT): ["effort-ignored"],
    ("effort", causes.PARAMETER): ["strict"],
    ("streaming", causes.STREAM_REASONING): [Fault("reasoning", "stream", value="")],
    # ends
    ("chat", causes.EMPTY): [Fault("say", CHAT, value=" \n ")],
    ("tool-round-trip", causes.EMPTY): [Fault("say", "after-tool", value="")],
    ("chat effort tool-call streaming", causes.CUT_OFF): [("endless", "words", "effort-ignored")],
    ("chat effort tool-call streaming concurrent", causes.LENGTH): [("length", "words", "effort-ignored")],
    ("streaming", causes.NOT_STOPPED): [Fault("chunks", "chat stream text", value=lambda chunks: chunks[:-1])],
    # more than the answer
    ("chat", causes.SURPLUS): [Fault("say", CHAT, value=more(" zq vrmoo lkj"))],
    ("responses", causes.SURPLUS): [Fault("say", RESPONSE, value=more("\n\nParis is the capital of France."))],
    ("developer-message", causes.SURPLUS): [Fault("say", "developer", value="I am fine, ORANGE.")],
    ("echo", causes.PROMPT_SHOWN): [
        *(Fault("message", where, value=prompt_shown) for where in (CHAT, "chat stream text", "after-tool")),
        Fault("say", RESPONSE, value=lambda text: "What is 17*23? Answer with the number. " + text)],
    ("echo", causes.OTHER_ROLES): [Fault("say", CHAT, value=more("\nUser: And 18*23?"))],
    # /v1/responses
    ("responses", causes.RESPONSES_FAILED): [Fault("fields", RESPONSE, value={"status": "failed"})],
    ("responses", causes.RESPONSES_INCOMPLETE): [Fault("fields", RESPONSE, value={"status": "incomplete"})],
    ("responses", causes.NO_MESSAGE): [Fault("fields", RESPONSE, value={"output": []})],
    ("responses", causes.UNASKED_CALL): [Fault("call", RESPONSE)],
    ("responses", causes.RESPONSES_MISSING): ["no-responses"],
    ("responses", causes.NOT_STRICT): [Fault("bytes", RESPONSE, value=lambda data: data[:-1] + b', "logprob": NaN}')],
    ("responses", causes.NOT_UTF8): [Fault("bytes", RESPONSE, value=lambda data: data[:-1] + b', "x": "\xe2\x82"}')],
    ("responses-stream", causes.WRONG_STREAM): [Fault("say", "responses stream", value=GIBBERISH)],
    ("responses-stream", causes.RESPONSES_CUT): [Fault("chunks", "responses stream", value=lambda all_: all_[:-1])],
    ("responses-stream", causes.NO_MESSAGE): [
        Fault("chunks", "responses stream", value=lambda all_: [*all_[:-1], dict(all_[-1], response="x")])],
    ("responses-stream", causes.STREAMED_OTHERWISE): [
        Fault("chunks", "responses stream", value=lambda all_: [all_[0], *all_[2:]])],
    ("responses-stream", causes.STREAM_ERROR): [
        Fault("chunks", "responses stream", value=added({"type": "error", "message": "x"}))],
    ("responses-stream", causes.AFTER_END): [
        Fault("chunks", "responses stream", value=lambda all_: [*all_, all_[1]])],
    ("responses-tools", causes.FAILED): [Fault("status", "responses tools", value=(500,))],
    ("responses-tools", causes.RESPONSES_NO_CALL): [Fault("no-call", "responses tools")],
    ("responses-tools", causes.TOOL_ARGUMENTS_LOST): [Fault("arguments", "responses tools", value=TO_ROME)],
    ("responses-tools", causes.TOOL_ID): [Fault("call-keys", "responses tools", value={"id": ""})],
    ("responses-tools", causes.TOOL_NAME): [
        Fault("call-keys", "responses tools", value={"function": {"name": 5, "arguments": ""}})],
    # tools
    ("tool-call", VLLM.dropped_tool_call): ["drop-tool-call"],
    ("tool-call", causes.NO_TOOL_CALL): ["words"],
    ("tool-call", causes.TOOL_ARGUMENTS_LOST): [Fault("arguments", "tools whole", value='{"verbose": true}')],
    ("tool-call", causes.TOOL_ID): [Fault("call-keys", "tools whole", value={"id": ""})],
    ("tool-call", causes.TOOL_FINISH): [Fault("finish", "tools whole", value="stop")],
    ("tool-call", causes.CALL_IN_CONTENT): [Fault("message", "tools whole", value=says_call(CALL))],
    ("tool-arguments", causes.TOOL_ARGUMENTS_LOST): [
        Fault("arguments", "weather whole", value=arguments(days=str)), Fault("twice", "weather whole")],
    ("tool-arguments", causes.TOOL_ARGUMENTS): [Fault("arguments", "weather whole", value=lambda given: given)],
    ("tool-arguments", causes.NO_TOOL_CALL): [
        Fault("call-keys", "weather", value={"function": {"name": "get_system_health", "arguments": "{}"}})],
    ("tool-arguments", causes.CALL_IN_CONTENT): [Fault("message", "weather whole", value=says_call(
        'I call it. {"name": "%(name)s", "arguments": %(arguments)s}'))],
    ("tool-result", causes.TOOL_RESULT_IGNORED): [
        Fault("say", "tools weather after-tool", value="It will be sunny, says report 12345.")],
    ("second-tool-round", causes.TOOL_ARGUMENTS_LOST): [Fault("arguments", "second", value=TO_PARIS)],
    ("second-tool-round", causes.TOOL_RESULT_IGNORED): [Fault("say", "second after-tool", value="It is sunny.")],
    ("second-tool-round", None): [Fault("message", "second tools", value=in_words)],
    ("tool-choice", causes.CHOICE_IGNORED): [
        Fault("call", "none"), *(Fault("message", where, value=in_words) for where in ("named", "required"))],
    ("tool-choice", causes.FAILED): [Fault("status", "required", value=(500,))],
    ("tool-choice", causes.TOOL_ARGUMENTS_LOST): [Fault("arguments", "named", value='{"city": "Rome", "days": 1}')],
    ("streaming", causes.TOOL_FINISH): [Fault("finish", "tools stream", value="stop")],
    ("streaming", causes.TOOL_ARGUMENTS_LOST): [Fault("arguments", "weather stream", value="{}")],
    ("streaming", causes.TOOL_ARGUMENTS): [
        Fault("deltas", "stream weather", value=lambda deltas: deltas[:-9] + deltas[-1:])],
    ("streaming", VLLM.dropped_tool_call): [
        Fault("deltas", "stream tools", value=lambda all_: [one for one in all_ if "tool_calls" not in one[0]])],
    ("warm-up", causes.UNASKED_CALL): [Fault("call", CHAT)],
    # streams
    ("streaming", causes.STREAM_NOT_JSON): [Fault("before", "stream", value="data: [3]\n\n")],
    ("streaming", causes.NO_EVENTS): [Fault("form", "stream", value="%s\n")],
    ("streaming", causes.NO_DONE): [Fault("no-done", "stream"), "stream-cut"],
    ("streaming", causes.STREAM_ERROR): [
        Fault("chunks", "chat stream text", value=added({"object": "error", "message": "boom"}))],
    ("streaming", VLLM.output_parser): [
        Fault("chunks", "chat stream text", value=added({"error": {"message": "HarmonyError: unexpected tokens"}}))],
    ("streaming", causes.WRONG_STREAM): [
        Fault("say", STREAM, value=GIBBERISH),
        Fault("deltas", STREAM, value=lambda deltas: [one for one in deltas for _twice in range(2)])],
    ("unbuffered", causes.BUFFERED): [Fault("buffer", "stream", value=0.05)],
    ("keep-alive", None): [Fault("claim", "kept", value=-4)],
    ("keep-alive", causes.WRONG_ANSWER): [Fault("say", "kept", value=other_number)],
    # requests that are refused, and servers that do not answer as servers do
    ("alive", None): ["health-503", "not-http"],
    ("model-id", causes.SHAPE): ["models-odd"],
    ("warm-up", None): ["engine-dead", "not-json", "reset"],
    ("warm-up", causes.REFUSED): [Fault("status", CHAT, value=(400,))],
    ("warm-up", causes.LIMITED): [Fault("status", "chat", value=(429, when)) for when in (NOW, LATER)],
    # long answers, other alphabets, stop sequences
    ("long-answer", causes.WRONG_COUNT): [
        Fault("say", "count whole", value=lines(lambda all_: all_[:63] + all_[64:])),
        Fault("chunks", "count stream", value=without_first("content"))],
    ("exact-text", causes.WRONG_TEXT): [
        Fault("say", "exact whole", value=lambda text: text.replace("ü", "u")),
        Fault("chunks", "exact stream", value=without_first("content"))],
    ("stop-sequence", causes.STOP_IGNORED): [Fault("say", "stop", value=lines(lambda all_: [*all_, "57", "58"]))],
    ("stop-sequence", causes.CUT_OFF): [Fault("finish", "stop", value="length")],
    # the form of answers
    ("form", causes.OTHER_CHOICE): [Fault("json", CHAT, value=second_choice)],
    ("form", causes.AFTER_END): [Fault("chunks", "chat stream text", value=added(LATE_PIECE))],
    ("form", causes.NOT_UTF8): [
        Fault("bytes", CHAT, value=lambda data: data[:-1] + b', "more": "\xff\xfe"}'),
        Fault("sse", "chat stream text", value=lambda data: data.replace(b'"delta"', b'"x": "\xff", "delta"', 1))],
    ("form", causes.AFTER_DONE): [Fault("sse", "chat stream", value=lambda data: data + b'data: {"error": "x"}\n\n')],
    ("form", causes.SAME_ID): [
        tuple(Fault("call-keys", where, value={"id": "call_0"}) for where in ("second", "stream"))],
}  # fmt: skip


@pytest.mark.parametrize(
    ("names", "cause", "faults"),
    [pytest.param(*key, one, id="%s: %r" % (key[0], one)) for key, found in FALSE.items() for one in found],
)
def test_a_false_server_fails_with_its_cause(monkeypatch, names, cause, faults):
    monkeypatch.setattr(streams, "SHORT_STREAM_MS", 10)  # the scripted engine is faster than an engine
    verdict = verdict_of(faults if isinstance(faults, tuple) else (faults,), context=8192)
    found = failing(verdict)
    assert verdict["ok"] is False
    for name in names.split():
        assert found.get(name) and cause in (None, found[name]), found
        probe = by_name(verdict)[name]
        assert probe["got"] and probe["sent"] and len(probe["sent"]) < 450 and len(probe["got"]) < 900


# -- sound servers -----------------------------------------------------------------------------------------------------


USAGE = "data: %s\n\n" % json.dumps({"choices": [], "usage": {"completion_tokens": 40}})
ROME = '{"city": "Rome", "days": 1}'
SLIPS = [  # of a model, one of each
    *(Fault("say", where, when, value) for where, when, value in (
        ("cold", "once", more(" dear friend")), ("text stream", "together-once", GIBBERISH),
        ("text whole", "late-once", other_number), ("responses", "late-once", other_number),
        ("count whole", "once", lines(lambda all_: all_[:-1])), ("exact whole", "once", str.lower),
        ("developer", "once", "I am fine."), ("turns", "once", "12345"),
        ("weather after-tool", "once", "It will be sunny."))),
    *(Fault("arguments", where, "once", value) for where, value in (
        ("weather whole", TO_ROME), ("weather stream", '{"city": "Oslo"}'), ("second", ROME), ("named", ROME))),
    *(Fault("other-tool-first", where, "once") for where in ("weather whole", "second")),
    Fault("call-again", "after-tool", "once"),
]  # fmt: skip
SOUND = {  # a Fault, its name, or arguments of verdict_of()
    **{"slip %d: %r" % (number, slip): slip for number, slip in enumerate(SLIPS)},
    **{"%s ends streamed calls with stop" % engine: {
        "faults": [Fault("finish", "tools stream", value="stop")], "engine": engine}
       for engine in ("trtllm", "unheard-of")},
    "no reasoning at low effort": Fault("reasoning", "low", value=""),
    "the answer to chat skips reasoning": Fault("reasoning", "chat whole text", "once", ""),
    "the first stream skips reasoning": Fault("reasoning", "stream text", "once", ""),
    "arguments are null": Fault("arguments", "tools whole", value=lambda a: json.dumps(a) if a else None),
    "429 once": Fault("status", "chat", "once", (429, NOW)),
    "429 once in a stream": Fault("status", "stream", "once", (429, NOW)),
    "an alias": {"listed": ["gpt-oss-120b", "gpt-4"]},
    "reasoning_content": {"reasoning_field": "reasoning_content"},
    "an empty event": Fault("before", "stream", value="data: \n\n"),
    "a chunk of usage at the end": Fault("after", "stream", value=USAGE),
    "null in deltas": Fault("deltas", "stream", value=lambda deltas: [
        ({"content": None, "tool_calls": None, **one}, end) for one, end in deltas]),
    "the whole answer in one delta": Fault("deltas", "stream text", value=lambda ds: [
        ({"content": "".join(one.get("content", "") for one, _end in ds), "reasoning": "Hm."}, None), ds[-1]]),
    "a sentence": Fault("say", "text", value=lambda text: "The answer is: %s\n" % text),
    "status left out of the response": Fault("fields", "responses", value={"status": None}),
    "health is 204": "health-204",
    "no Content-Length": "no-length",
    "each connection is closed": "closes",
    "stop sequences stay in the answer": "stop-kept",
    "no tool_choice required": Fault("refuse", "required", value="tool_choice is not supported"),
    "no streams of /v1/responses": Fault("refuse", "responses stream", value="Unsupported: stream"),
    "streams of /v1/responses of another kind": {
        "faults": [Fault("chunks", "responses stream", value=lambda events: events[:-1])], "engine": "trtllm"},
    "no tools in /v1/responses": Fault("refuse", "responses tools", value="tools are not supported"),
    "a response without its output at the end": Fault("chunks", "responses stream", value=lambda events: [
        *events[:-1], {"type": "response.completed", "response": {"status": "completed"}}]),
    "two events in a block": Fault("sse", "chat stream", value=lambda data: [data]),
    "comments between events": Fault("form", "stream", value=": ping\n\ndata: %s\n\n"),
    "thinking aloud in a long answer": Fault("say", "low", value=lambda text: (
        text if text != "391" else "Let's compute them. We must count pairs.")),
    "words before a call": Fault("message", "tools", value=calls(
        lambda message, call: message.update(content="I look that up."))),
    "a draft in the reasoning": Fault("message", "system", value=lambda message, finish, _body: (
        dict(message, reasoning="Simple, one word. I answer with this word alone: BANANA"), finish)),
    "a context that is planned as 4k": {"context": 4000, "planned": "4k"},
    "a context window": {"context": 4096, "planned": 4096, "tells_context": "context_window"},
    "a short context": {"context": 768},
}  # fmt: skip


@pytest.mark.parametrize("time", [1, *(pytest.param(time, marks=pytest.mark.soak) for time in (2, 3))])
@pytest.mark.parametrize("sound", SOUND.values(), ids=SOUND)
def test_a_sound_server_passes_three_times_in_a_row(sound, time):
    given = sound if isinstance(sound, dict) else {"faults": [sound]}
    verdict = verdict_of(**{"faults": (), **given})
    assert failing(verdict) == {}
    assert verdict["ok"] is True
    if "reasoning_field" in given:  # another one than the planned one
        assert by_name(verdict)["reasoning"]["got"].startswith("reasoning_content, 84 characters (the plan expects")
    unmeasured = {probe["name"] for probe in verdict["probes"] if probe["ok"] is None}
    lacks = {"closes": "keep-alive", "no-length": "keep-alive", "responses stream": "responses-stream",
             "responses tools": "responses-tools"}  # fmt: skip
    faults = [" ".join(sorted(one.where)) if isinstance(one, Fault) else one for one in given.get("faults", ())]
    short = ["long-prompt", "long-answer"] if given.get("context") == 768 else []
    assert unmeasured <= {"unbuffered", "context", *short, *(lacks[one] for one in faults if one in lacks)}


@pytest.mark.parametrize(("fault", "cause"), [
    (Fault("say", value=more(" zq vrmoo")), causes.SURPLUS),
    (Fault("insert", value=" <|im_end|>"), causes.FOREIGN),
    (Fault("message", value=prompt_shown), causes.PROMPT_SHOWN),
    (Fault("message", value=thinks_aloud), VLLM.no_reasoning),
    (Fault("json", value=second_choice), causes.OTHER_CHOICE),
    (Fault("say", value=other_number), causes.WRONG_ANSWER),
    ("vocab-missing", gpt_oss.ENCODINGS),
], ids=repr)  # fmt: skip
def test_a_quick_verdict_judges_the_complete_answer_too(fault, cause):
    verdict = verdict_of([fault], options=asking.Options(timeout=60, mode="quick"))
    assert failing(verdict) == {"completion": cause}


# -- what only the plan tells ------------------------------------------------------------------------------------------

KEY = "sk-a-long-key-that-nobody-knows"


@pytest.mark.parametrize(("where", "opens", "modes"), [
    ("chat", None, ("full", "quick")), ("models", None, ("full", "quick")),
    ("chat whole", lambda key: not key, ("full", "quick")),
    ("chat whole", lambda key: len(key) == len("Bearer " + KEY), ("full", "quick")),
    ("models", lambda key: key.startswith("Bearer"), ("full", "quick")),
    ("chat stream", None, ("full",)), ("responses", None, ("full",)),
    ("chat", lambda key: key.startswith("Bearer " + KEY), ("full",)),
    ("chat", lambda key: key and ("Bearer " + KEY).startswith(key), ("full",)),
])  # fmt: skip
def test_a_server_that_answers_without_the_planned_key_fails(where, opens, modes):
    for mode in modes:
        options = asking.Options(timeout=60, api_key=KEY, mode=mode)
        verdict = verdict_of([Fault("open", where, value=opens)], options=options, api_key=KEY)
        assert failing(verdict)["api-key"] == causes.OPEN
        assert KEY not in json.dumps(verdict)


@pytest.mark.parametrize(("planned", "listed"), [(8192, 4096), (4096, 131072)])
def test_a_context_that_is_not_the_planned_one_fails(planned, listed):
    assert failing(verdict_of((), context=listed, planned=planned)) == {"context": causes.OTHER_CONTEXT}


# -- stand-ins: what they can do is judged, the rest is null -----------------------------------------------------------

STANDIN = "gpt-oss-tiny-standin"
SENTENCE = "I am gpt-oss-tiny-standin, a stand-in: my answers prove plumbing, not quality."


def test_a_stand_in_is_judged_on_what_it_can_do():
    faults = [Fault("say", "text", value=SENTENCE), Fault("reasoning", "low", value="")]
    verdict = verdict_of(faults, model=STANDIN)
    assert failing(verdict) == {}
    unmeasured = {probe["name"]: probe["cause"] for probe in verdict["probes"] if probe["ok"] is None}
    assert unmeasured.pop("unbuffered").startswith("a stand-in's stream is too short (")
    assert unmeasured == {
        "context": "not measurable: the server does not list it",
        "tool-result": "not run: tool-arguments did not pass",
        "second-tool-round": "not run: tool-result did not pass",
        **{name: "a stand-in has not learned this" for name in probes.UNLEARNED if name in by_name(verdict)},
    }


def test_a_stand_in_that_is_forced_to_call_a_tool_is_not_judged_on_it():
    """Dynamo holds it to a form that it has not learned: it writes to its limit, and the answer has no end."""
    fault = Fault("message", "required", value=lambda *_answer: ({"role": "assistant", "content": None}, None))
    verdict = verdict_of([fault], model=STANDIN)
    assert failing(verdict) == {}
    assert by_name(verdict)["tool-choice"]["got"] == "none; named; required is not measurable on a stand-in"


@pytest.mark.parametrize("where", [CHAT, RESPONSE])
def test_a_stand_in_that_talks_gibberish_fails(where):
    verdict = verdict_of([Fault("say", where, value=GIBBERISH)], model=STANDIN)
    assert failing(verdict)[WHERE[where][0]] == causes.NO_SENSE
