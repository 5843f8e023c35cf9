# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""False servers, each of which one probe must fail with its cause, and sound ones that must pass all the same."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.vllm import ENGINE as VLLM
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import causes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking, probes
from ansible_collections.inference.fleet.tests.unit.engines import scripted_engine
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import Fault, ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import (
    TOGETHER,
    VOCABULARY,
    by_name,
    entry_of,
    failing,
)
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import (
    verdict_of as verdict_on,
)

GIBBERISH = "zq vrmoo lkj pfft sdkl wq"
NOW = (("Retry-After", "0"),)
LATER = (("Retry-After", "3600"),)


def verdict_of(faults, model="gpt-oss-120b", engine="vllm", options=None, planned=None, **scripted):
    """The verdict on a scripted engine. planned: its context."""
    with ScriptedEngine(faults, model=model, together=TOGETHER, **scripted) as one:
        return verdict_on(one, options, [entry_of(one.port, planned, model_id=model, engine=engine)])


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


def choice(**changes):
    return lambda value, _body: dict(value, choices=[dict(value["choices"][0], **changes)])


def usage(**values):
    return lambda value, _body: dict(value, usage=values)


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


def two_calls(message, finish, _body):
    message["tool_calls"] = message["tool_calls"] * 2 if message.get("tool_calls") else None
    return message, finish


def calls(change):
    """change(message, call) for each call."""

    def of(message, finish, _body):
        for call in message.get("tool_calls") or ():
            change(message, call)
        return message, finish

    return of


def says_call(form):
    return calls(lambda message, call: message.update(content=form % call["function"]))


def piece(**delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def added(*more):
    """More chunks at the end of a stream."""
    return lambda chunks: [*chunks, *more]


def of_deltas(key, change):
    """Chunks whose deltas with this key have it changed: change(its string, the strings so far)."""

    def of(chunks):
        text = ""
        for chunk in chunks:
            delta = chunk["choices"][0]["delta"]
            if delta.get(key):
                text += delta[key]
                delta[key] = change(delta[key], text)
        return chunks

    return of


def without_first(key):
    def change(chunks):
        first = next((one for one in chunks if one["choices"][0]["delta"].get(key)), None)
        return [one for one in chunks if one is not first]

    return change


def replaced(one, other):
    return lambda data: data.replace(one, other, 1)


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
LATE_END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
SUM_OF_11 = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 11}

# {(the probes that must fail, their cause, None for any): [Fault, its name, or several of them]}
FALSE = {
    **{(probe, cause): [Fault("say", where, value=GIBBERISH) for where in WHERE if WHERE[where] == (probe, cause)]
       for probe, cause in WHERE.values()},
    ("still-right", causes.WRONG_LATER): [
        Fault("say", where, "late", value) for where, value in
        ((CHAT, GIBBERISH), (STREAM, other_number), (RESPONSE, GIBBERISH))],
    ("concurrent", causes.WRONG_TOGETHER): [
        Fault("say", "whole text", "together", other_number), Fault("say", STREAM, "together", GIBBERISH)],
    ("concurrent", causes.EMPTY): [Fault("say", where, "together", "") for where in ("whole text", STREAM)],
    ("concurrent", causes.MIXED_UP): [
        Fault("swap", where, "together", number) for where, number in (("", 2), ("whole", 1), ("stream", 1))],
    ("concurrent", causes.CUT_OFF): [Fault("finish", "text", "together", "length")],
    ("concurrent", causes.FAILED): [Fault("status", "", "together", (500,))],
    ("concurrent", None): ["one-at-a-time"],
    # harmony in an answer, and tokens of other models; test_judging.py has all of them
    ("harmony-residue", None): [
        Fault("insert", CHAT, value=" assistantfinal"), Fault("insert", RESPONSE, value="<|end|>"),
        Fault("insert", "long", value=" assistantfinal"), "leak-in-arguments", "responses-leak",
        Fault("reasoning", "whole", value="We add.<|end|><|start|>assistant"),
        Fault("reasoning", RESPONSE, value="We add.<|end|>"),
        Fault("arguments", "weather whole", value=arguments(city=more("<|im_end|>")))],
    ("harmony-residue streaming", None): ["leak"],
    ("harmony-residue tool-round-trip streaming", None): ["leak-in-reasoning"],
    ("harmony-residue reasoning effort streaming", None): ["leak-stripped"],
    ("chat harmony-residue streaming", None): ["exclamation"],
    ("harmony-residue", causes.FOREIGN): [
        *(Fault("insert", where, value=" </s>") for where in (CHAT, RESPONSE, "long")),
        *(Fault("reasoning", where, value="We add them up. </s> And so on.") for where in ("chat whole", RESPONSE)),
        Fault("say", "exact whole", value=lambda text: text.encode().decode("latin-1"))],
    ("streaming", causes.FOREIGN): [
        Fault("insert", STREAM, value=" <|im_end|>"), Fault("reasoning", "stream", value="We add. [PAD] And so on.")],
    ("exact-text", causes.FOREIGN): [Fault("say", "exact stream", value=lambda text: text.encode().decode("latin-1"))],
    ("streaming", None): [
        Fault("insert", STREAM, value=" assistantfinal"), "stream-leak", "stream-cut", "stream-drops-tool-call",
        Fault("reasoning", "stream", value="We add.assistantfinal"),
        Fault("arguments", "weather stream", value=arguments(city=more("<|im_end|>")))],
    ("tool-round-trip", None): [Fault("insert", "after-tool", value="<|end|>"), "leak-after-tool", "mute-after-tool"],
    ("tool-arguments", None): [Fault("say", "weather tools", value="to=functions.get_weather {}")],
    # reasoning
    ("reasoning", VLLM.no_reasoning): [
        Fault("reasoning", "chat", value=""),
        *(Fault("message", where, value=thinks_aloud) for where in (
            CHAT, STREAM, "after-tool", "system", "long", "count stream", "developer", "turns", "exact")),
        *(Fault("say", where, value=lambda text: "We need to compute it. " + text)
          for where in (CHAT, STREAM, "after-tool"))],
    ("reasoning effort", None): ["no-reasoning"],
    ("reasoning", None): ["reasoning-in-content"],
    ("effort", None): ["effort-ignored", "strict"],
    ("streaming", causes.STREAM_REASONING): [Fault("reasoning", "stream", value=""), "stream-no-reasoning"],
    # ends
    ("chat", causes.EMPTY): [Fault("say", CHAT, value=" \n ")],
    ("streaming", causes.EMPTY): [
        Fault("say", STREAM, value=" \n "),
        Fault("deltas", STREAM, value=lambda deltas: [one for one in deltas if "content" not in one[0]])],
    ("long-prompt", causes.EMPTY): [Fault("say", "long", value="")],
    ("chat tool-round-trip streaming concurrent", None): ["length"],
    ("chat streaming concurrent", None): ["empty"],
    ("chat tool-round-trip streaming", None): ["endless"],
    ("chat effort tool-call streaming", None): [("endless", "words", "effort-ignored")],
    ("chat effort tool-call streaming concurrent", None): [("length", "words", "effort-ignored")],
    ("streaming", causes.CUT_OFF): [Fault("finish", STREAM, value="length")],
    ("streaming", causes.NOT_STOPPED): [
        Fault("finish", STREAM), Fault("chunks", "chat stream text", value=lambda chunks: chunks[:-1])],
    # more than the answer
    ("chat", causes.SURPLUS): [Fault("say", CHAT, value=more(" zq vrmoo lkj"))],
    ("streaming", causes.SURPLUS): [Fault("say", STREAM, value=more(" 12 77 45"))],
    ("responses", causes.SURPLUS): [Fault("say", RESPONSE, value=more("\n\nParis is the capital of France."))],
    ("long-prompt", causes.SURPLUS): [Fault("say", "long", value=more(" is what the box says, dear friend"))],
    ("developer-message", causes.SURPLUS): [Fault("say", "developer", value="I am fine, ORANGE.")],
    ("multi-turn", causes.SURPLUS): [Fault("say", "turns", value=more(" banana"))],
    ("echo", causes.PROMPT_SHOWN): [
        *(Fault("message", where, value=prompt_shown) for where in (
            CHAT, "chat stream text", "long", "system", "developer", "exact stream", "count stream", "after-tool")),
        Fault("say", RESPONSE, value=lambda text: "What is 17*23? Answer with the number. " + text)],
    ("echo", causes.OTHER_ROLES): [Fault("say", where, value=more("\nUser: And 18*23?"))
                                   for where in (CHAT, STREAM, RESPONSE)],
    # /v1/responses
    ("responses", causes.RESPONSES_FAILED): [Fault("fields", RESPONSE, value={"status": "failed"})],
    ("responses", causes.RESPONSES_INCOMPLETE): [Fault("fields", RESPONSE, value={"status": "incomplete"})],
    ("responses", causes.NO_MESSAGE): [
        Fault("say", RESPONSE, value=" \n "), Fault("fields", RESPONSE, value={"output": []}), "responses-empty"],
    ("responses", causes.UNASKED_CALL): [Fault("call", RESPONSE)],
    ("responses", causes.FAILED): [Fault("status", RESPONSE, value=(500,))],
    ("responses", causes.RESPONSES_MISSING): ["no-responses"],
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
    ("responses-stream", causes.FAILED): [Fault("status", "responses stream", value=(500,))],
    ("responses-tools", causes.FAILED): [Fault("status", "responses tools", value=(500,))],
    ("responses-tools", causes.RESPONSES_NO_CALL): [Fault("no-call", "responses tools")],
    ("responses-tools", causes.TOOL_ARGUMENTS): [Fault("arguments", "responses tools", value="{")],
    ("responses-tools", causes.TOOL_ARGUMENTS_LOST): [Fault("arguments", "responses tools", value=TO_ROME)],
    ("responses-tools", causes.TOOL_ID): [Fault("call-keys", "responses tools", value={"id": ""})],
    ("responses-tools", causes.TOOL_NAME): [
        Fault("call-keys", "responses tools", value={"function": {"name": one, "arguments": ""}}) for one in ("x", 5)],
    # tools
    ("tool-call", None): ["drop-tool-call", "words", "tool-bad-arguments", "tool-finish-stop"],
    ("tool-call", causes.TOOL_ARGUMENTS_LOST): [Fault("arguments", "tools whole", value='{"verbose": true}')],
    ("tool-call", causes.TOOL_ID): [Fault("call-keys", "tools whole", value={"id": ""})],
    ("tool-call", causes.TOOL_FINISH): [Fault("finish", "tools whole", value="stop")],
    ("tool-call", causes.CALL_IN_CONTENT): [Fault("message", "tools whole", value=says_call(CALL))],
    ("tool-arguments", causes.TOOL_ARGUMENTS_LOST): [
        Fault("arguments", "weather whole", value=arguments(days=str)), Fault("twice", "weather whole")],
    ("tool-arguments", causes.TOOL_ARGUMENTS): [
        Fault("arguments", "weather whole", value=lambda given: given),
        *(Fault("arguments", "weather whole", value=text) for text in (
            '{"city": "Oslo"', '{"city": "Paris", "days": 3, "days": 3}', '{"city": "Paris", "days": NaN}'))],
    ("tool-arguments", causes.TOOL_ID): [Fault("call-keys", "weather whole", value={"id": None})],
    ("tool-arguments", causes.NO_TOOL_CALL): [
        Fault("call-keys", "weather", value={"function": {"name": "get_system_health", "arguments": "{}"}})],
    ("tool-arguments", causes.CALL_IN_CONTENT): [Fault("message", "weather whole", value=says_call(
        'I call it. {"name": "%(name)s", "arguments": %(arguments)s}'))],
    ("tool-result", causes.TOOL_RESULT_IGNORED): [
        Fault("say", "tools weather after-tool", value="It will be sunny, says report 12345."),
        Fault("say", "after-tool", value="I have no idea.")],
    ("second-tool-round", causes.TOOL_ARGUMENTS_LOST): [Fault("arguments", "second", value=TO_PARIS)],
    ("second-tool-round", causes.TOOL_RESULT_IGNORED): [Fault("say", "second after-tool", value="It is sunny.")],
    ("second-tool-round", causes.FAILED): [Fault("status", "second", value=(500,))],
    ("second-tool-round", None): [Fault("message", "second tools", value=in_words)],
    ("tool-choice", causes.CHOICE_IGNORED): [
        "choice-ignored", Fault("message", "named", value=in_words), Fault("message", "required", value=in_words)],
    ("tool-choice", causes.FAILED): [Fault("status", where, value=(500,)) for where in ("none", "required")],
    ("tool-choice", causes.TOOL_ARGUMENTS_LOST): [Fault("arguments", "named", value='{"city": "Rome", "days": 1}')],
    ("streaming", causes.TOOL_ID): [Fault("call-keys", "tools stream", value={"id": None})],
    ("streaming", causes.TOOL_FINISH): [Fault("finish", "tools stream", value="stop")],
    ("streaming", causes.TOOL_ARGUMENTS_LOST): [Fault("arguments", "weather stream", value="{}")],
    ("streaming", causes.TOOL_ARGUMENTS): [
        Fault("arguments", "weather stream", value="not JSON"),
        Fault("deltas", "stream weather", value=lambda deltas: deltas[:-9] + deltas[-1:])],
    ("streaming", causes.CALL_IN_CONTENT): [Fault("message", "weather stream", value=says_call(CALL))],
    ("streaming", VLLM.dropped_tool_call): [
        Fault("deltas", "stream tools", value=lambda all_: [one for one in all_ if "tool_calls" not in one[0]])],
    ("warm-up", causes.UNASKED_CALL): [Fault("call", CHAT)],
    ("streaming", causes.UNASKED_CALL): [Fault("call", STREAM)],
    # streams
    ("streaming", causes.STREAM_NOT_JSON): [
        Fault("before", "stream", value="data: not JSON\n\n"), Fault("before", "stream", value="data: [3]\n\n"),
        Fault("after", "stream", value="data: oops\n\n")],
    ("streaming", causes.NO_EVENTS): [Fault("form", "stream", value="%s\n"), "stream-empty"],
    ("streaming", causes.NO_DONE): [Fault("no-done", "stream"), "stream-no-done"],
    ("streaming", causes.STREAM_ERROR): [
        Fault("chunks", "chat stream text", value=added({"error": {"message": "boom"}})),
        Fault("chunks", "chat stream text", value=added({"object": "error", "message": "boom"}))],
    ("streaming", VLLM.output_parser): ["stream-error"],
    ("streaming", causes.WRONG_STREAM): [
        Fault("say", STREAM, value=GIBBERISH),
        Fault("deltas", STREAM, value=lambda deltas: [one for one in deltas for _twice in range(2)])],
    ("unbuffered", causes.BUFFERED): [Fault("buffer", "stream", value=0.05)],
    ("keep-alive", None): [Fault("claim", "kept", value=-4)],
    ("keep-alive", causes.WRONG_ANSWER): [Fault("say", "kept", value=other_number)],
    ("keep-alive", causes.WRONG_STREAM): [Fault("say", "kept stream", value="1078")],
    # requests that are refused, and servers that do not answer as servers do
    ("alive", None): ["health-503", "health-404", "not-http"],
    ("model-id", None): ["models-odd"],
    ("warm-up", None): ["vocab-missing", "vocab-corrupt", "engine-dead", "not-json", "odd-shape", "reset", "cut"],
    ("warm-up", causes.REFUSED): [Fault("status", CHAT, value=(400,))],
    ("warm-up", causes.LIMITED): [Fault("status", "chat", value=(429, when)) for when in (NOW, LATER)],
    ("streaming", causes.LIMITED): [Fault("status", "stream", value=(429, NOW))],
    **{(probe, causes.REFUSED): [Fault("status", where, value=(400,))] for where, probe in (
        (STREAM, "streaming"), (RESPONSE, "responses"), ("tools weather whole", "tool-arguments"))},
    ("still-right", causes.FAILED): [Fault("status", where, "late", (500,)) for where in (RESPONSE, "chat whole")],
    # long answers, other alphabets, stop sequences
    ("long-answer", causes.WRONG_COUNT): [
        *(Fault("say", "count " + where, value=lines(lambda all_: all_[:63] + all_[64:]))
          for where in ("whole", "stream")),
        Fault("chunks", "count stream", value=without_first("content"))],
    ("exact-text", causes.WRONG_TEXT): [
        *(Fault("say", "exact " + where, value=lambda text: text.replace("ü", "u")) for where in ("whole", "stream")),
        Fault("chunks", "exact stream", value=without_first("content")),
        Fault("chunks", "chat stream text", value=of_deltas("content", lambda one, _all: one.replace(" ", "")))],
    ("stop-sequence", causes.STOP_IGNORED): [
        "stop-ignored", Fault("say", "stop", value=lines(lambda all_: [*all_, "57", "58"]))],
    ("stop-sequence", causes.CUT_OFF): [Fault("finish", "stop", value="length")],
    # the form of answers
    ("form", causes.OTHER_CHOICE): [
        *(Fault("json", where, value=choice(index=1)) for where in (CHAT, "tools", "long")),
        Fault("json", CHAT, value=lambda value, _body: dict(value, choices=value["choices"] * 2)),
        Fault("chunks", "chat stream text", value=lambda chunks: [
            {"choices": [{**one["choices"][0], "index": 1}]} for one in chunks])],
    ("form", causes.ERROR_INSIDE): [
        Fault("json", "chat whole text", value=lambda value, _body: dict(value, error={"message": "oops"}))],
    ("form", causes.USAGE): [
        Fault("json", "tools", value=usage(prompt_tokens=9, completion_tokens=40, total_tokens=50)),
        *(Fault("json", "long", value=usage(prompt_tokens=9, completion_tokens=count, total_tokens=total))
          for count, total in ((-1, 8), ("40", 49), (0, 9))),
        Fault("chunks", "chat stream text", value=added({"choices": [], "usage": SUM_OF_11}))],
    ("form", causes.NO_END): [Fault("json", CHAT, value=choice(finish_reason="eos")),
                              Fault("json", "system", value=choice(finish_reason=None))],
    ("form", causes.SHAPE): [
        Fault("message", CHAT, value=lambda message, finish, _body: (dict(message, role="user"), finish)),
        Fault("chunks", "chat stream text", value=lambda chunks: [piece(role="user"), *chunks])],
    ("form", causes.NO_SPACES): [
        Fault("reasoning", where, value="Weneedtocompute" * 10) for where in ("chat whole", "stream")],
    ("form", causes.NOT_STRICT): [
        Fault("bytes", CHAT, value=replaced(b'"object"', b'"object": "x", "object"')),
        Fault("bytes", "after-tool", value=lambda data: data[:-1] + b', "logprob": -Infinity}'),
        *(Fault("sse", "chat stream text", value=replaced(b'"index": 0', b'"index": 0, ' + other))
          for other in (b'"x": NaN', b'"index": 0'))],
    ("form", causes.NOT_UTF8): [
        Fault("bytes", CHAT, value=lambda data: data[:-1] + b', "more": "\xff\xfe"}'),
        Fault("sse", "chat stream text", value=replaced(b'"delta"', b'"x": "\xff", "delta"'))],
    ("responses", causes.NOT_STRICT): [Fault("bytes", RESPONSE, value=lambda data: data[:-1] + b', "logprob": NaN}')],
    ("responses", causes.NOT_UTF8): [Fault("bytes", RESPONSE, value=lambda data: data[:-1] + b', "x": "\xe2\x82"}')],
    ("form", None): [Fault("chunks", "chat stream text", value=of_deltas("content", lambda _one, all_: all_))],
    ("form", causes.CUMULATIVE): [
        Fault("chunks", "chat stream text", value=of_deltas("reasoning", lambda _one, all_: all_))],
    ("form", causes.AFTER_END): [
        Fault("chunks", "chat stream text", value=added(piece(content="x"))),
        Fault("chunks", "chat stream", value=added(piece(reasoning="x"))),
        Fault("chunks", "chat stream text", value=added(LATE_END))],
    ("form", causes.AFTER_DONE): [Fault("sse", "chat stream", value=lambda data: data + b'data: {"error": "x"}\n\n')],
    ("form", causes.SAME_ID): [
        Fault("message", "tools whole", value=two_calls), Fault("call-keys", "tools", value={"id": "call_0"}),
        tuple(Fault("call-keys", where, value={"id": "call_0"}) for where in ("second", "stream"))],
}  # fmt: skip


@pytest.mark.parametrize(
    ("names", "cause", "faults"),
    [pytest.param(*key, one, id="%s: %r" % (key[0], one)) for key, found in FALSE.items() for one in found],
)
@pytest.mark.usefixtures("short_streams")
def test_a_false_server_fails_with_its_cause(names, cause, faults):
    verdict = verdict_of(faults if isinstance(faults, tuple) else (faults,), context=8192)
    found = failing(verdict)
    assert verdict["ok"] is False
    for name in names.split():
        assert found.get(name) and cause in (None, found[name]), found
        probe = by_name(verdict)[name]
        assert probe["got"] and probe["sent"] and len(probe["sent"]) < 450 and len(probe["got"]) < 900


# -- sound servers -----------------------------------------------------------------------------------------------------


def in_deltas(**more):
    """What deltas lack is added to them."""
    return lambda deltas: [({**more, **one}, end) for one, end in deltas]


USAGE = "data: %s\n\n" % json.dumps({"choices": [], "usage": {"completion_tokens": 40}})
ROME = '{"city": "Rome", "days": 1}'
SLIPS = [  # of a model, one of each
    *(Fault("say", where, when, value) for where, when, value in (
        ("cold", "once", GIBBERISH), ("cold", "once", more(" dear friend")), ("stream text", "once", GIBBERISH),
        ("text whole", "together-once", other_number), ("text stream", "together-once", GIBBERISH),
        ("text whole", "late-once", other_number), ("text stream", "late-once", other_number),
        ("responses", "late-once", other_number), ("count whole", "once", lines(lambda all_: all_[:-1])),
        ("count stream", "once", lines(lambda all_: all_[1:])), ("exact whole", "once", str.lower),
        ("developer", "once", "I am fine."), ("turns", "once", "12345"),
        ("weather after-tool", "once", "It will be sunny."))),
    *(Fault("arguments", where, "once", value) for where, value in (
        ("weather whole", TO_ROME), ("weather whole", arguments(days=str)), ("weather stream", '{"city": "Oslo"}'),
        ("second", ROME), ("named", ROME))),
    *(Fault("other-tool-first", where, "once") for where in ("weather whole", "weather stream", "second")),
    *(Fault("call-again", where, "once") for where in ("after-tool", "second")),
]  # fmt: skip
SOUND = {  # a Fault, its name, or arguments of verdict_of()
    "as scripted": {},
    **{"slip %d: %r" % (number, slip): slip for number, slip in enumerate(SLIPS)},
    **{"%s ends streamed calls with stop" % engine: {
        "faults": [Fault("finish", "tools stream", value="stop")], "engine": engine}
       for engine in ("trtllm", "unheard-of")},
    "no reasoning at low effort": Fault("reasoning", "low", value=""),
    "the answer to chat skips reasoning": Fault("reasoning", "chat whole text", "once", ""),
    "the first stream skips reasoning": Fault("reasoning", "stream text", "once", ""),
    "arguments are an empty string": Fault("arguments", "tools", value=lambda a: json.dumps(a) if a else ""),
    "arguments are null": Fault("arguments", "tools whole", value=lambda a: json.dumps(a) if a else None),
    "429 once": Fault("status", "chat", "once", (429, NOW)),
    "429 once in a stream": Fault("status", "stream", "once", (429, NOW)),
    "429 once in /v1/responses": Fault("status", "responses", "once", (429, NOW)),
    "429 once of /v1/models": Fault("status", "models", "once", (429, NOW)),
    "an alias": {"listed": ["gpt-oss-120b", "gpt-4"]},
    "a LoRA adapter": {"listed": ["gpt-oss-120b", "sql-lora"]},
    "usage is null": "usage-null",
    "reasoning_content": {"reasoning_field": "reasoning_content"},
    "an empty event": Fault("before", "stream", value="data: \n\n"),
    "a chunk of usage at the end": Fault("after", "stream", value=USAGE),
    "null in deltas": Fault("deltas", "stream", value=in_deltas(content=None, tool_calls=None)),
    "the whole answer in one delta": Fault("deltas", "stream text", value=lambda ds: [
        ({"content": "".join(one.get("content", "") for one, _end in ds), "reasoning": "Hm."}, None), ds[-1]]),
    "a sentence": Fault("say", "text", value=lambda text: "The answer is: %s\n" % text),
    "status left out of the response": Fault("fields", "responses", value={"status": None}),
    "gzip": "gzip",
    "health is 204": "health-204",
    "no Content-Length": "no-length",
    "each connection is closed": "closes",
    "stop sequences stay in the answer": "stop-kept",
    "no tool_choice required": Fault("refuse", "required", value="tool_choice is not supported"),
    "no named tool_choice": Fault("refuse", "named", value="tool_choice: input should be 'auto'"),
    "no streams of /v1/responses": Fault("refuse", "responses stream", value="Unsupported: stream"),
    "streams of /v1/responses of another kind": {
        "faults": [Fault("chunks", "responses stream", value=lambda events: events[:-1])], "engine": "trtllm"},
    "no tools in /v1/responses": Fault("refuse", "responses tools", value="tools are not supported"),
    "a response without its output at the end": Fault("chunks", "responses stream", value=lambda events: [
        *events[:-1], {"type": "response.completed", "response": {"status": "completed"}}]),
    "two events in a block": Fault("sse", "chat stream", value=lambda data: [data]),
    "comments between events": Fault("form", "stream", value=": ping\n\ndata: %s\n\n"),
    "extra fields": Fault("json", "chat", value=lambda value, _body: dict(
        value, system_fingerprint=None, service_tier=None, kv_transfer_params={"a": [1.5, True]})),
    "null in the message": Fault("message", "chat whole", value=lambda message, finish, _body: (
        dict({"tool_calls": [], "refusal": None, "annotations": None, "function_call": None}, **message), finish)),
    "no index in choices": Fault("json", "chat", value=lambda value, _body: dict(value, choices=[
        {key: one for key, one in value["choices"][0].items() if key != "index"}])),
    "usage in full": Fault("json", "chat", value=usage(
        prompt_tokens=90, completion_tokens=140, total_tokens=230, prompt_tokens_details=None)),
    "escaped text": Fault("bytes", "chat whole", value=lambda data: json.dumps(
        json.loads(data), ensure_ascii=True).encode()),
    "blanks around the JSON": Fault("bytes", "chat whole", value=lambda data: b"\n " + data + b"\n"),
    "both names of the reasoning": Fault("message", "chat", value=lambda message, finish, _body: (
        dict(message, reasoning_content=message.get("reasoning")), finish)),
    "a list after a tool": Fault("say", "after-tool", value=lambda text: "System: up\nTool: ok\n" + text),
    "thinking aloud in a long answer": Fault("say", "low", value=lambda text: (
        text if text != "391" else "Let's compute them. We must count pairs.")),
    "words before a call": Fault("message", "tools", value=calls(
        lambda message, call: message.update(content="I look that up."))),
    "a draft in the reasoning": Fault("message", "system", value=lambda message, finish, _body: (
        dict(message, reasoning="Simple, one word. I answer with this word alone: BANANA"), finish)),
    "a context that is listed as planned": {"context": 4096, "planned": 4096},
    "a context that is planned as 4k": {"context": 4000, "planned": "4k"},
    "a context window": {"context": 4096, "tells_context": "context_window"},
    "a short context": {"context": 768},
    "a simulated long context": {"context": 131072},
}  # fmt: skip


@pytest.mark.parametrize("time", [1, *(pytest.param(time, marks=pytest.mark.soak) for time in (2, 3))])
@pytest.mark.parametrize("sound", SOUND.values(), ids=SOUND)
def test_a_sound_server_passes_three_times_in_a_row(sound, time):
    given = sound if isinstance(sound, dict) else {"faults": [sound]}
    verdict = verdict_of(**{"faults": (), **given})
    assert failing(verdict) == {}
    assert verdict["ok"] is True
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
    (Fault("say", value=more("\nUser: more")), causes.OTHER_ROLES),
    (Fault("json", value=choice(index=1)), causes.OTHER_CHOICE),
    (Fault("bytes", "chat", value=lambda data: data[:-1] + b', "x": NaN}'), causes.NOT_STRICT),
    (Fault("say", value=other_number), causes.WRONG_ANSWER), ("length", causes.LENGTH),
    ("vocab-missing", VOCABULARY), ("leak", VLLM.residue),
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


def test_a_server_that_refuses_other_keys_passes_and_without_a_planned_key_nobody_asks():
    for key in (KEY, None):
        verdict = verdict_of((), options=asking.Options(timeout=60, api_key=key or ""), api_key=key)
        assert verdict["ok"] is True
        assert {probe["name"]: probe["ok"] for probe in verdict["probes"]}.get("api-key") is (True if key else None)


@pytest.mark.parametrize(("planned", "listed"), [(8192, 4096), ("8k", 8192), (4096, 131072)])
def test_a_context_that_is_not_the_planned_one_fails(planned, listed):
    assert failing(verdict_of((), context=listed, planned=planned)) == {"context": causes.OTHER_CONTEXT}


@pytest.mark.parametrize("number", range(8))
def test_a_server_that_ignores_the_effort_does_not_pass_by_chance(number, monkeypatch):
    monkeypatch.setattr(scripted_engine, "SEED", number)
    with ScriptedEngine("effort-by-chance") as one:
        acceptance = probes.Acceptance(entry_of(one.port), [], asking.Options(timeout=60), None)
        acceptance.results_of = {}
        acceptance._run("effort", acceptance._effort)
    assert acceptance.results_of["effort"]["ok"] is not True


# -- stand-ins: what they can do is judged, the rest is null -----------------------------------------------------------

STANDIN = "gpt-oss-tiny-standin"
SENTENCE = "I am gpt-oss-tiny-standin, a stand-in: my answers prove plumbing, not quality."


def standin(*faults):
    return verdict_of([Fault("say", "text", value=SENTENCE), *faults], model=STANDIN)


def test_a_stand_in_is_judged_on_what_it_can_do():
    verdict = standin(Fault("arguments", "weather", value="{}"), Fault("reasoning", "low", value=""))
    assert failing(verdict) == {}
    unmeasured = {probe["name"]: probe["cause"] for probe in verdict["probes"] if probe["ok"] is None}
    assert unmeasured.pop("unbuffered").startswith("a stand-in's stream is too short (")
    assert unmeasured == {
        "context": "not measurable: the server does not list it",
        "tool-arguments": "a stand-in need not know tools with arguments",
        "tool-result": "not run: tool-arguments got no call with arguments",
        "second-tool-round": "not run: tool-result got no answer",
        "system-message": "a stand-in need not follow a system message",
        "developer-message": "a stand-in need not follow a developer message",
        "multi-turn": "a stand-in need not know earlier answers",
        "long-prompt": "a stand-in need not find a fact in a long prompt",
        "long-answer": "a stand-in has not learned to count",
        "exact-text": "a stand-in cannot repeat a string",
    }


@pytest.mark.parametrize(("fault", "probe", "cause"), [
    (Fault("arguments", "weather", value=TO_ROME), "tool-arguments",
     causes.TOOL_ARGUMENTS_LOST),
    (Fault("arguments", "weather", value='{"city": "Paris"}'), "tool-arguments", causes.TOOL_ARGUMENTS_LOST),
    (Fault("arguments", "weather stream", value=TO_ROME), "streaming",
     causes.TOOL_ARGUMENTS_LOST),
], ids=repr)  # fmt: skip
def test_a_stand_in_that_returns_arguments_must_return_the_right_ones(fault, probe, cause):
    assert failing(standin(fault)) == {probe: cause}


@pytest.mark.parametrize("where", [CHAT, STREAM, RESPONSE, "cold"])
def test_a_stand_in_that_talks_gibberish_fails(where):
    verdict = verdict_of([Fault("say", where, value=GIBBERISH)], model=STANDIN)
    assert failing(verdict)[WHERE[where][0]] == causes.NO_SENSE
