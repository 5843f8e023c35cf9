# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""False servers, each of which one probe must fail with its cause, and sound ones that must pass all the same."""

from __future__ import annotations

import collections
import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.vllm import ENGINE as VLLM
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import causes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking, probes, runner
from ansible_collections.inference.fleet.tests.unit.engines import scripted_engine
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import Fault, ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import (
    TOGETHER,
    entry_of,
)

GIBBERISH = "zq vrmoo lkj pfft sdkl wq"
NOW = (("Retry-After", "0"),)
LATER = (("Retry-After", "3600"),)


def other_number(content):
    return str(int(content) + 10) if content.isdigit() else content


def verdict_of(faults, model="gpt-oss-120b", engine="vllm", options=None, planned=None, **scripted):
    """The verdict on a scripted engine, which is taken for the planned server. planned: its context."""
    with ScriptedEngine(faults, model=model, together=TOGETHER, **scripted) as one:
        entries = [entry_of(one.port, planned, model_id=model, engine=engine)]
        options = options or asking.Options(timeout=60)
        return runner.verify_servers(entries, options, lambda planned: lambda entry: "ours")["verdicts"][0]


def failing(verdict):
    return {probe["name"]: probe["cause"] for probe in verdict["probes"] if probe["ok"] is False}


WHERE = {  # where a fault is, and the probe that must notice it
    "chat whole text": "chat",
    "stream text": "streaming",
    "responses": "responses",
    "long": "long-prompt",
    "cold": "sampling",
    "bare chat": "sampling",
    "system": "system-message",
}
LATELY = {"chat whole text": "still-right", "stream text": "still-right", "responses": "still-right"}
AT_ONCE = {"whole text": "concurrent", "stream text": "concurrent"}
WRONG = {
    "chat": causes.WRONG_ANSWER,
    "streaming": causes.WRONG_STREAM,
    "responses": causes.WRONG_RESPONSES,
    "long-prompt": causes.WRONG_LONG,
    "sampling": causes.WRONG_SAMPLING,
    "system-message": causes.WRONG_SYSTEM,
    "still-right": causes.WRONG_LATER,
    "concurrent": causes.WRONG_TOGETHER,
}
SAY = {"gibberish": GIBBERISH, "another number": other_number}

ROWS = []  # (Faults, failing probe, its cause)
for where, probe in WHERE.items():
    for kind, value in SAY.items():
        if not (kind == "another number" and probe == "system-message"):
            ROWS.append(([Fault("say", where, value=value)], probe, WRONG[probe]))
    cause = causes.NO_MESSAGE if where == "responses" else causes.EMPTY
    ROWS.append(([Fault("say", where, value=" \n ")], probe, cause))
for where, probe in LATELY.items():
    for value in (GIBBERISH, other_number):
        ROWS.append(([Fault("say", where, "late", value)], probe, WRONG[probe]))
for where, probe in AT_ONCE.items():
    for value in (GIBBERISH, other_number):
        ROWS.append(([Fault("say", where, "together", value)], probe, WRONG[probe]))
    ROWS.append(([Fault("say", where, "together", "")], probe, causes.EMPTY))
ROWS.append(([Fault("swap", "", "together", 2)], "concurrent", causes.MIXED_UP))
ROWS.append(([Fault("swap", "whole", "together", 1)], "concurrent", causes.MIXED_UP))
ROWS.append(([Fault("swap", "stream", "together", 1)], "concurrent", causes.MIXED_UP))
ROWS.append(([Fault("finish", "text", "together", "length")], "concurrent", causes.CUT_OFF))
ROWS.append(([Fault("status", "", "together", (500,))], "concurrent", causes.FAILED))
ROWS.append(([Fault("status", "", "together", (429, NOW))], "concurrent", causes.LIMITED))

# what of harmony is left in an answer, with its brackets or without
RESIDUES = (
    " assistantfinal", " analysisWe need to think.assistantfinal", "<|channel|>final<|message|>", "<|end|>",
    "|channel|final", "<|chan channel|>", " to=functions.get_weather", " commentary to=assistant", "<|return",
    "&lt;|message|&gt;", " assistantanalysis", " assistantcommentary to=functions.x", " !!!!!!!!",
)  # fmt: skip
for residue in RESIDUES:
    ROWS.append(([Fault("insert", "whole text", value=residue)], "harmony-residue", None))
for residue in RESIDUES[:4]:
    ROWS.append(([Fault("insert", "stream text", value=residue)], "streaming", None))
    ROWS.append(([Fault("insert", "responses", value=residue)], "harmony-residue", None))
ROWS.append(([Fault("insert", "after-tool", value="<|end|>")], "tool-round-trip", None))
ROWS.append(([Fault("insert", "long", value=" assistantfinal")], "harmony-residue", None))
ROWS.append(([Fault("reasoning", "whole", value="We add.<|end|><|start|>assistant")], "harmony-residue", None))
ROWS.append(([Fault("reasoning", "stream", value="We add.assistantfinal")], "streaming", None))
ROWS.append(([Fault("reasoning", "responses", value="We add.<|end|>")], "harmony-residue", None))

ROWS.append(([Fault("reasoning", "chat", value="")], "reasoning", VLLM.no_reasoning))
ROWS.append(([Fault("reasoning", "stream", value="")], "streaming", causes.STREAM_REASONING))

# /v1/responses
for status in ("failed", "queued"):
    ROWS.append(([Fault("fields", "responses", value={"status": status})], "responses", causes.RESPONSES_FAILED))
ROWS.append(([Fault("fields", "responses", value={"status": "incomplete"})], "responses", causes.RESPONSES_INCOMPLETE))
ROWS.append(([Fault("fields", "responses", value={"output": []})], "responses", causes.NO_MESSAGE))
ROWS.append(([Fault("call", "responses")], "responses", causes.UNASKED_CALL))
ROWS.append(([Fault("status", "responses", value=(500,))], "responses", causes.FAILED))

# tools
for where, probe in (("weather whole", "tool-arguments"), ("weather stream", "streaming")):
    for change in (
        lambda arguments: "{}",
        lambda arguments: "",
        lambda arguments: json.dumps({"city": arguments["city"]}),
        lambda arguments: json.dumps({"days": arguments["days"]}),
        lambda arguments: json.dumps(dict(arguments, city="Berlin")),
        lambda arguments: json.dumps(dict(arguments, days=arguments["days"] + 1)),
        lambda arguments: json.dumps(dict(arguments, days=str(arguments["days"]))),
        lambda arguments: json.dumps(dict(arguments, days=True)),
        lambda arguments: json.dumps(dict(arguments, unit="celsius")),
        lambda arguments: json.dumps({key.upper(): value for key, value in arguments.items()}),
    ):
        ROWS.append(([Fault("arguments", where, value=change)], probe, causes.TOOL_ARGUMENTS_LOST))
    for text in ('{"city": "Oslo"', "not JSON", '["Paris", 3]', '"{}"', '{"city": "Paris", "days": 3}{}'):
        ROWS.append(([Fault("arguments", where, value=text)], probe, causes.TOOL_ARGUMENTS))
ROWS.append(([Fault("arguments", "weather whole", value=lambda arguments: arguments)], "tool-arguments",
             causes.TOOL_ARGUMENTS))  # fmt: skip
ROWS.append(([Fault("twice", "weather whole")], "tool-arguments", causes.TOOL_ARGUMENTS_LOST))
ROWS.append(([Fault("arguments", "tools whole", value='{"verbose": true}')], "tool-call", causes.TOOL_ARGUMENTS_LOST))
ROWS.append(([Fault("call-keys", "tools whole", value={"id": None})], "tool-call", causes.TOOL_ID))
ROWS.append(([Fault("call-keys", "tools whole", value={"id": ""})], "tool-call", causes.TOOL_ID))
ROWS.append(([Fault("call-keys", "weather whole", value={"id": None})], "tool-arguments", causes.TOOL_ID))
ROWS.append(([Fault("call-keys", "tools stream", value={"id": None})], "streaming", causes.TOOL_ID))
ROWS.append(([Fault("call-keys", "weather", value={"function": {"name": "get_system_health", "arguments": "{}"}})],
             "tool-arguments", causes.NO_TOOL_CALL))  # fmt: skip
ROWS.append(([Fault("call", "chat whole text")], "warm-up", causes.UNASKED_CALL))
ROWS.append(([Fault("call", "stream text")], "streaming", causes.UNASKED_CALL))
ROWS.append(([Fault("call", "long")], "long-prompt", causes.UNASKED_CALL))
ROWS.append(([Fault("call", "system")], "system-message", causes.UNASKED_CALL))
ROWS.append(([Fault("call", "text", "together")], "concurrent", causes.UNASKED_CALL))
ROWS.append(([Fault("finish", "tools whole", value="stop")], "tool-call", causes.TOOL_FINISH))
ROWS.append(([Fault("finish", "tools stream", value="stop")], "streaming", causes.TOOL_FINISH))
ROWS.append(([Fault("say", "tools weather after-tool", value="It will be sunny, says report 12345.")], "tool-result",
             causes.TOOL_RESULT_IGNORED))  # fmt: skip
ROWS.append(([Fault("say", "after-tool", value="I have no idea.")], "tool-result", causes.TOOL_RESULT_IGNORED))
ROWS.append(([Fault("say", "weather tools", value="to=functions.get_weather {}")], "tool-arguments", None))

# streams
for data in ("not JSON", "{", "[]", "3", '{"choices": [{"delta"', "<html>502 Bad Gateway</html>"):
    ROWS.append(([Fault("before", "stream", value="data: %s\n\n" % data)], "streaming", causes.STREAM_NOT_JSON))
ROWS.append(([Fault("after", "stream", value="data: oops\n\n")], "streaming", causes.STREAM_NOT_JSON))
ROWS.append(([Fault("form", "stream", value="%s\n")], "streaming", causes.NO_EVENTS))
ROWS.append(([Fault("no-done", "stream")], "streaming", causes.NO_DONE))
ROWS.append(([Fault("finish", "stream text", value="length")], "streaming", causes.CUT_OFF))
ROWS.append(([Fault("finish", "stream text")], "streaming", causes.NOT_STOPPED))
ROWS.append(([Fault("deltas", "stream text", value=lambda deltas: [one for one in deltas for _twice in range(2)])],
             "streaming", causes.WRONG_STREAM))  # fmt: skip
ROWS.append(([Fault("deltas", "stream text", value=lambda deltas: [one for one in deltas if "content" not in one[0]])],
             "streaming", causes.EMPTY))  # fmt: skip
ROWS.append(([Fault("deltas", "stream tools", value=lambda all_: [one for one in all_ if "tool_calls" not in one[0]])],
             "streaming", VLLM.dropped_tool_call))  # fmt: skip
ROWS.append(([Fault("deltas", "stream weather", value=lambda deltas: deltas[:-9] + deltas[-1:])], "streaming",
             causes.TOOL_ARGUMENTS))  # fmt: skip
ROWS.append(([Fault("buffer", "stream", value=0.5)], "unbuffered", causes.BUFFERED))

# requests that are refused
for where, probe in {**WHERE, "tools weather whole": "tool-arguments", "after-tool": "tool-round-trip"}.items():
    if probe == "chat":
        probe = "warm-up"
    ROWS.append(([Fault("status", where, value=(400,))], probe, causes.REFUSED))
ROWS.append(([Fault("status", "chat", value=(429, NOW))], "warm-up", causes.LIMITED))
ROWS.append(([Fault("status", "chat", value=(429, LATER))], "warm-up", causes.LIMITED))
ROWS.append(([Fault("status", "stream", value=(429, NOW))], "streaming", causes.LIMITED))
ROWS.append(([Fault("status", "responses", "late", (500,))], "still-right", causes.FAILED))
ROWS.append(([Fault("status", "chat whole", "late", (500,))], "still-right", causes.FAILED))


# -- complete answers --------------------------------------------------------------------------------------------------

ROWS.extend(
    ([Fault("say", where, value=lambda text, more=more: text + more)], probe, causes.SURPLUS)
    for where, probe in (("chat whole text", "chat"), ("stream text", "streaming"), ("responses", "responses"))
    for more in (
        " zq vrmoo lkj", "\n\nParis is the capital of France.", " 391 391", " 12 77 45", " 答案",
    )
)  # fmt: skip
ROWS.extend([
    ([Fault("say", "cold", value=lambda text: text + " Bonjour")], "sampling", causes.SURPLUS),
    ([Fault("say", "long", value=lambda text: text + " is what the box says, dear friend")], "long-prompt",
     causes.SURPLUS),
    ([Fault("say", "system", value=lambda text: text + " and more")], "system-message", causes.SURPLUS),
    ([Fault("say", "developer", value=lambda text: "I am fine, ORANGE.")], "developer-message", causes.SURPLUS),
    ([Fault("say", "turns", value=lambda text: text + " banana")], "multi-turn", causes.SURPLUS),
    ([Fault("say", "text whole", "late", lambda text: text + " blah")], "still-right", causes.SURPLUS),
    ([Fault("say", "text stream", "together", lambda text: text + " blah")], "concurrent", causes.SURPLUS),
])  # fmt: skip


def shows(what):
    """A message that also says what(body)."""

    def of(message, finish, body):
        content = message.get("content")
        return dict(message, content=content and "%s\n%s" % (what(body), content)), finish

    return of


def prompt_of(body):
    return "\n".join(message["content"] for message in body["messages"] if message.get("content"))


ROWS.extend(
    ([Fault("message", where, value=shows(prompt_of))], "echo", causes.PROMPT_SHOWN)
    for where in (
        "chat whole text",
        "chat stream text",
        "long",
        "system",
        "developer",
        "exact stream",
        "count stream",
        "after-tool",
    )
)
ROWS.append(([Fault("say", "responses", value=lambda text: "What is 17*23? Answer with the number. " + text)], "echo",
             causes.PROMPT_SHOWN))  # fmt: skip
ROWS.extend(
    ([Fault("say", where, value=lambda text, role=role: text + role)], "echo", causes.OTHER_ROLES)
    for where in ("chat whole text", "stream text", "responses")
    for role in (
        "\nUser: And 18*23?", "\n\nHuman: thanks", "\nassistant", "\n### Response:\n391", " user",
    )
)  # fmt: skip
TOKENS = (
    "<|im_end|>", "</s>", "<think>", "[INST]", "<|eot_id|>", "<|endoftext|>", "<end_of_turn>", "<pad>", "[PAD]",
    "<<SYS>>", "Ġ", "Ċ", "▁", "\ufffd", "<0x0A>", "âĢĻ", "Ã¼", "&lt;/s&gt;", "<tool_call>", "<|im_end", "\x00",
    "\x1b[31m",
)  # fmt: skip
ROWS.extend(
    ([Fault("insert", "chat whole text", value=" " + token)], "harmony-residue", causes.FOREIGN) for token in TOKENS
)
ROWS.extend(
    ([Fault("insert", where, value=" " + token)], probe, causes.FOREIGN)
    for where, probe in (("stream text", "streaming"), ("responses", "harmony-residue"), ("long", "harmony-residue"))
    for token in TOKENS[::5]
)
ROWS.extend(
    ([Fault("reasoning", where, value="We add them up. %s And so on." % token)], probe, causes.FOREIGN)
    for where, probe in (("chat whole", "harmony-residue"), ("stream", "streaming"), ("responses", "harmony-residue"))
    for token in TOKENS[::8]
)
ROWS.extend(
    ([Fault("arguments", "weather " + where, value=lambda a, token=token: json.dumps(
        dict(a, city=a["city"] + token), ensure_ascii=False))], probe, None)
    for where, probe in (("whole", "harmony-residue"), ("stream", "streaming"))
    for token in ("<|im_end|>", "</s>", "Ġ", "\ufffd", "<|call|>")
)  # fmt: skip

# -- long answers, other alphabets -------------------------------------------------------------------------------------


def lines(change):
    return lambda text: "\n".join(change(text.split("\n")))


LONG = {
    "cut": lambda all_: all_[:80],
    "one lost": lambda all_: all_[:63] + all_[64:],
    "first lost": lambda all_: all_[1:],
    "twice": lambda all_: all_[:9] * 2 + all_[9:],
    "garbled": lambda all_: [*all_[:70], "zq vr", *all_[71:]],
    "joined": lambda all_: ["".join(all_)],
    "more": lambda all_: [*all_, "121"],
    "words": lambda all_: [*all_, "And so on."],
    "a digit": lambda all_: [one.replace("77", "71") for one in all_],
}
ROWS.extend(
    ([Fault("say", "count " + where, value=lines(change))], "long-answer", causes.WRONG_COUNT)
    for where in ("whole", "stream")
    for change in LONG.values()
)
ROWS.extend(
    ([Fault("say", "exact " + where, value=change)], "exact-text", causes.WRONG_TEXT)
    for where in ("whole", "stream")
    for change in (
        lambda text: text.encode("ascii", "ignore").decode(), lambda text: text.replace("ü", "u"),
        lambda text: text.replace(" ", ""), lambda text: text.replace("東京", "东京"),
        lambda text: text.replace("🚀", ""), lambda text: text[:40], json.dumps,
    )
)  # fmt: skip
ROWS.extend(
    ([Fault("say", "exact " + where, value=lambda text: text.encode().decode("latin-1"))], probe, causes.FOREIGN)
    for where, probe in (("whole", "harmony-residue"), ("stream", "exact-text"))
)

# -- reasoning in the content ------------------------------------------------------------------------------------------


def leaks(message, finish, _body):
    if message.get("content"):
        message["content"] = "%s %s" % (message.get("reasoning") or "The user asks for it.", message["content"])
    return message, finish


ROWS.extend(
    ([Fault("message", where, value=leaks)], "reasoning", VLLM.no_reasoning)
    for where in (
        "chat whole text",
        "stream text",
        "after-tool",
        "system",
        "long",
        "count stream",
        "developer",
        "turns",
        "exact",
    )
)
ROWS.extend(
    ([Fault("say", where, value=lambda text, thought=thought: thought + text)], "reasoning", VLLM.no_reasoning)
    for where in ("chat whole text", "stream text", "after-tool")
    for thought in (
        "The user asks for a product. ", "We need to compute it. ", "Let's think. ", "I should answer: ",
        "According to the developer message: ",
    )
)  # fmt: skip

# -- the form of answers -----------------------------------------------------------------------------------------------


def choice(**changes):
    return lambda value, _body: dict(value, choices=[dict(value["choices"][0], **changes)])


def usage(**values):
    return lambda value, _body: dict(value, usage=values)


ROWS.extend(
    ([Fault("json", where, value=change)], "form", cause)
    for where in ("chat whole text", "tools", "long")
    for change, cause in (
        (choice(index=1), causes.OTHER_CHOICE),
        (lambda value, _body: dict(value, choices=value["choices"] * 2), causes.OTHER_CHOICE),
        (lambda value, _body: dict(value, error={"message": "oops"}), causes.ERROR_INSIDE),
        (usage(prompt_tokens=9, completion_tokens=40, total_tokens=50), causes.USAGE),
        (usage(prompt_tokens=9, completion_tokens=-1, total_tokens=8), causes.USAGE),
        (usage(prompt_tokens=9, completion_tokens="40", total_tokens=49), causes.USAGE),
        (usage(prompt_tokens=9, completion_tokens=0, total_tokens=9), causes.USAGE),
    )
)
ROWS.append(([Fault("json", "chat whole text", value=choice(finish_reason="eos"))], "form", causes.NO_END))
ROWS.append(([Fault("json", "system", value=choice(finish_reason=None))], "form", causes.NO_END))
ROWS.append(([Fault("message", "chat whole text", value=lambda message, finish, _body: (
    dict(message, role="user"), finish))], "form", causes.SHAPE))  # fmt: skip
ROWS.append(([Fault("reasoning", "chat whole", value="Weneedtocompute" * 10)], "form", causes.NO_SPACES))
ROWS.append(([Fault("reasoning", "stream", value="Weneedtocompute" * 10)], "form", causes.NO_SPACES))
ROWS.extend(
    ([Fault("bytes", where, value=change)], probe, cause)
    for where, probe in (("chat whole text", "form"), ("responses", "responses"), ("after-tool", "form"))
    for change, cause in (
        (lambda data: data.replace(b'"object"', b'"object": "x", "object"', 1), causes.NOT_STRICT),
        (lambda data: data[:-1] + b', "logprob": NaN}', causes.NOT_STRICT),
        (lambda data: data[:-1] + b', "logprob": -Infinity}', causes.NOT_STRICT),
        (lambda data: data[:-1] + b', "more": "\xff\xfe"}', causes.NOT_UTF8),
        (lambda data: data[:-1] + b', "more": "\xe2\x82"}', causes.NOT_UTF8),
    )
)


def each(change):
    """Chunks of a stream, changed one by one."""
    return lambda chunks: [change(json.loads(json.dumps(one))) for one in chunks]


def set_index(chunk):
    chunk["choices"][0]["index"] = 1
    return chunk


def growing(key):
    def change(chunks):
        text = ""
        for chunk in chunks:
            delta = chunk["choices"][0]["delta"]
            if delta.get(key):
                text += delta[key]
                delta[key] = text
        return chunks

    return change  # fmt: skip


def without_blanks(chunks):
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        for key in ("content", "reasoning"):
            if delta.get(key):
                delta[key] = delta[key].replace(" ", "")
    return chunks


def without_first(key):
    def change(chunks):
        first = next((one for one in chunks if one["choices"][0]["delta"].get(key)), None)
        return [one for one in chunks if one is not first]

    return change  # fmt: skip


def piece(**delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def late_end(chunks):
    return [*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}]


ROWS.extend([
    ([Fault("chunks", "chat stream text", value=each(set_index))], "form", causes.OTHER_CHOICE),
    ([Fault("chunks", "chat stream text", value=lambda chunks: [set_index(piece(content="x")), *chunks])], "form",
     causes.OTHER_CHOICE),
    ([Fault("chunks", "chat stream text", value=growing("content"))], "form", None),
    ([Fault("chunks", "chat stream text", value=growing("reasoning"))], "form", causes.CUMULATIVE),
    ([Fault("chunks", "chat stream text", value=without_blanks)], "exact-text", causes.WRONG_TEXT),
    ([Fault("chunks", "count stream", value=without_first("content"))], "long-answer", causes.WRONG_COUNT),
    ([Fault("chunks", "exact stream", value=without_first("content"))], "exact-text", causes.WRONG_TEXT),
    ([Fault("chunks", "chat stream text", value=lambda chunks: [*chunks, piece(content="x")])], "form",
     causes.AFTER_END),
    ([Fault("chunks", "chat stream", value=lambda chunks: [*chunks, piece(reasoning="x")])], "form", causes.AFTER_END),
    ([Fault("chunks", "chat stream text", value=late_end)], "form", causes.AFTER_END),
    ([Fault("chunks", "chat stream text", value=lambda chunks: [*chunks, {"error": {"message": "boom"}}])],
     "streaming", causes.STREAM_ERROR),
    ([Fault("chunks", "chat stream text", value=lambda chunks: [*chunks, {"object": "error", "message": "boom"}])],
     "streaming", causes.STREAM_ERROR),
    ([Fault("chunks", "chat stream text", value=lambda chunks: chunks[:-1])], "streaming", causes.NOT_STOPPED),
    ([Fault("chunks", "chat stream text", value=lambda chunks: [piece(role="user"), *chunks])], "form", causes.SHAPE),
    ([Fault("chunks", "chat stream text", value=lambda chunks: [*chunks, {"choices": [], "usage": {
        "prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 11}}])], "form", causes.USAGE),
    ([Fault("sse", "chat stream", value=lambda data: data + b'data: {"error": "late"}\n\n')], "form",
     causes.AFTER_DONE),
    ([Fault("sse", "chat stream", value=lambda data: data + b'data: {"choices": []}\n\n')], "form",
     causes.AFTER_DONE),
    ([Fault("sse", "chat stream text", value=lambda data: data.replace(b'"index": 0', b'"index": 0, "x": NaN', 1))],
     "form", causes.NOT_STRICT),
    ([Fault("sse", "chat stream text", value=lambda data: data.replace(b'"index": 0', b'"index": 0, "index": 0', 1))],
     "form", causes.NOT_STRICT),
    ([Fault("sse", "chat stream text", value=lambda data: data.replace(b'"delta"', b'"x": "\xff", "delta"', 1))],
     "form", causes.NOT_UTF8),
])  # fmt: skip

# -- tools, once more --------------------------------------------------------------------------------------------------


def calls(change):
    def of(message, finish, _body):
        for number, call in enumerate(message.get("tool_calls") or ()):
            change(message, call, number)
        return message, finish

    return of  # fmt: skip


def says_call(message, call, _number):
    message["content"] = "%(name)s(%(arguments)s)" % call["function"]


def shows_arguments(message, call, _number):
    message["content"] = 'I call it. {"name": "%(name)s", "arguments": %(arguments)s}' % call["function"]


def in_words(_message, _finish, _body):
    return {"role": "assistant", "content": "It rains."}, "stop"


def two_calls(message, finish, _body):
    message["tool_calls"] = message["tool_calls"] * 2 if message.get("tool_calls") else None
    return message, finish


ROWS.extend([
    ([Fault("message", "tools whole", value=calls(says_call))], "tool-call", causes.CALL_IN_CONTENT),
    ([Fault("message", "weather whole", value=calls(shows_arguments))], "tool-arguments", causes.CALL_IN_CONTENT),
    ([Fault("message", "weather stream", value=calls(says_call))], "streaming", causes.CALL_IN_CONTENT),
    ([Fault("message", "tools whole", value=two_calls)], "form", causes.SAME_ID),
    ([Fault("call-keys", "tools", value={"id": "call_0"})], "form", causes.SAME_ID),
    ([Fault("call-keys", "second", value={"id": "call_0"}), Fault("call-keys", "stream", value={"id": "call_0"})],
     "form", causes.SAME_ID),
    ([Fault("arguments", "second", value='{"city": "Paris", "days": 3}')], "second-tool-round",
     causes.TOOL_ARGUMENTS_LOST),
    ([Fault("say", "second after-tool", value="It is sunny.")], "second-tool-round", causes.TOOL_RESULT_IGNORED),
    ([Fault("status", "second", value=(500,))], "second-tool-round", causes.FAILED),
    ([Fault("message", "second tools", value=in_words)], "second-tool-round", None),
    (["choice-ignored"], "tool-choice", causes.CHOICE_IGNORED),
    ([Fault("status", "none", value=(500,))], "tool-choice", causes.FAILED),
    ([Fault("status", "required", value=(500,))], "tool-choice", causes.FAILED),
    ([Fault("message", "named", value=in_words)], "tool-choice", causes.CHOICE_IGNORED),
    ([Fault("message", "required", value=in_words)], "tool-choice", causes.CHOICE_IGNORED),
    ([Fault("arguments", "named", value='{"city": "Rome", "days": 1}')], "tool-choice", causes.TOOL_ARGUMENTS_LOST),
    ([Fault("arguments", "weather whole", value='{"city": "Paris", "days": 3, "days": 3}')], "tool-arguments",
     causes.TOOL_ARGUMENTS),
    ([Fault("arguments", "weather whole", value='{"city": "Paris", "days": NaN}')], "tool-arguments",
     causes.TOOL_ARGUMENTS),
    ([Fault("arguments", "weather whole", value=lambda a: json.dumps(dict(a, days=float(a["days"]) + 0.5)))],
     "tool-arguments", causes.TOOL_ARGUMENTS_LOST),
    ([Fault("arguments", "weather whole", value=lambda a: json.dumps(dict(a, days=[a["days"]])))], "tool-arguments",
     causes.TOOL_ARGUMENTS_LOST),
    ([Fault("arguments", "weather whole", value=lambda a: json.dumps(dict(a, city=None)))], "tool-arguments",
     causes.TOOL_ARGUMENTS_LOST),
])  # fmt: skip

# -- what was never asked ----------------------------------------------------------------------------------------------

ROWS.extend(
    ([Fault(kind, where, value=value)], probe, cause)
    for where, probe, wrong in (
        ("developer", "developer-message", causes.WRONG_DEVELOPER), ("turns", "multi-turn", causes.WRONG_TURNS),
    )
    for kind, value, cause in (
        ("say", "I am happy to help you.", wrong), ("say", "", causes.EMPTY), ("status", (400,), causes.REFUSED),
    )
)  # fmt: skip
ROWS.extend([
    ([Fault("say", "turns", value="12345")], "multi-turn", causes.WRONG_TURNS),
    (["stop-ignored"], "stop-sequence", causes.STOP_IGNORED),
    ([Fault("say", "stop", value=lines(lambda all_: [*all_, "57", "58"]))], "stop-sequence", causes.STOP_IGNORED),
    ([Fault("finish", "stop", value="length")], "stop-sequence", causes.CUT_OFF),
    ([Fault("status", "stop", value=(400,))], "stop-sequence", causes.REFUSED),
    ([Fault("claim", "kept", value=-4)], "keep-alive", None),
    ([Fault("say", "kept", value=other_number)], "keep-alive", causes.WRONG_ANSWER),
    ([Fault("status", "kept", value=(500,))], "keep-alive", causes.FAILED),
    ([Fault("say", "kept stream", value="1078")], "keep-alive", causes.WRONG_STREAM),
    ([Fault("say", "responses stream", value=GIBBERISH)], "responses-stream", causes.WRONG_STREAM),
    ([Fault("chunks", "responses stream", value=lambda events: events[:-1])], "responses-stream",
     causes.RESPONSES_CUT),
    ([Fault("chunks", "responses stream", value=lambda events: [events[0], *events[2:]])], "responses-stream",
     causes.STREAMED_OTHERWISE),
    ([Fault("chunks", "responses stream", value=lambda events: [*events, {"type": "error", "message": "x"}])],
     "responses-stream", causes.STREAM_ERROR),
    ([Fault("chunks", "responses stream", value=lambda events: [*events, events[1]])], "responses-stream",
     causes.AFTER_END),
    ([Fault("status", "responses stream", value=(500,))], "responses-stream", causes.FAILED),
    ([Fault("status", "responses tools", value=(500,))], "responses-tools", causes.FAILED),
    ([Fault("no-call", "responses tools")], "responses-tools", causes.RESPONSES_NO_CALL),
    ([Fault("arguments", "responses tools", value="{")], "responses-tools", causes.TOOL_ARGUMENTS),
    ([Fault("arguments", "responses tools", value='{"city": "Rome", "days": 3}')], "responses-tools",
     causes.TOOL_ARGUMENTS_LOST),
    ([Fault("call-keys", "responses tools", value={"id": ""})], "responses-tools", causes.TOOL_ID),
    ([Fault("call-keys", "responses tools", value={"function": {"name": "x", "arguments": "{}"}})], "responses-tools",
     causes.TOOL_NAME),
])  # fmt: skip


def false_servers():
    """ROWS as parameters: of each kind of fault at a place with its probe and cause one always, more under soak."""
    seen = collections.Counter()
    for faults, probe, cause in ROWS:
        kind = tuple(one if isinstance(one, str) else (one.kind, one.where) for one in faults)
        seen[kind, probe, cause] += 1
        marks = [pytest.mark.soak] if seen[kind, probe, cause] > 1 else []
        yield pytest.param(faults, probe, cause, marks=marks, id="%s: %r" % (probe, faults))


@pytest.mark.parametrize(("faults", "probe", "cause"), list(false_servers()))
def test_a_false_server_fails_with_its_cause(faults, probe, cause):
    verdict = verdict_of(faults, context=8192)
    found = failing(verdict)
    assert probe in found, found
    assert found[probe] == (cause or found[probe])
    assert verdict["ok"] is False


# -- sound servers -----------------------------------------------------------------------------------------------------


def usage_chunk(deltas):
    return "data: %s\n\n" % json.dumps({"choices": [], "usage": {"completion_tokens": 40}})


SOUND = {
    "as scripted": {},
    "TensorRT-LLM ends streamed calls with stop": {
        "faults": [Fault("finish", "tools stream", value="stop")],
        "engine": "trtllm",
    },
    "an unknown engine ends streamed calls with stop": {
        "faults": [Fault("finish", "tools stream", value="stop")],
        "engine": "unheard-of",
    },
    "no reasoning at low effort": {"faults": [Fault("reasoning", "low", value="")]},
    "the answer to chat skips reasoning": {"faults": [Fault("reasoning", "chat whole text", "once", "")]},
    "the first stream skips reasoning": {"faults": [Fault("reasoning", "stream text", "once", "")]},
    "one wrong answer of all": {"faults": [Fault("say", "cold", "once", GIBBERISH)]},
    "one wrong stream of all": {"faults": [Fault("say", "stream text", "once", GIBBERISH)]},
    "arguments are an empty string": {
        "faults": [Fault("arguments", "tools", value=lambda a: json.dumps(a) if a else "")]
    },
    "arguments are null": {"faults": [Fault("arguments", "tools whole", value=lambda a: json.dumps(a) if a else None)]},
    "arguments are the word null": {"faults": [Fault("arguments", "tools", value=lambda a: json.dumps(a or None))]},
    "arguments are an empty object": {
        "faults": [Fault("arguments", "tools whole", value=lambda a: json.dumps(a) if a else {})]
    },
    "arguments with blanks": {
        "faults": [Fault("arguments", "tools", value=lambda a: " %s \n" % json.dumps(a, indent=1))]
    },
    "a city with its country": {
        "faults": [Fault("arguments", "weather", value=lambda a: json.dumps(dict(a, city=a["city"] + ", Somewhere")))]
    },
    "429 once": {"faults": [Fault("status", "chat", "once", (429, NOW))]},
    "429 once in a stream": {"faults": [Fault("status", "stream", "once", (429, NOW))]},
    "429 once in /v1/responses": {"faults": [Fault("status", "responses", "once", (429, NOW))]},
    "429 once under concurrency": {"faults": [Fault("status", "", "once", (429, NOW))]},
    "429 once of /v1/models": {"faults": [Fault("status", "models", "once", (429, NOW))]},
    "an alias": {"listed": ["gpt-oss-120b", "gpt-4"]},
    "an alias before it": {"listed": ["gpt-4", "gpt-oss-120b"]},
    "a LoRA adapter": {"listed": ["gpt-oss-120b", "sql-lora"]},
    "usage is null": {"faults": ["usage-null"]},
    "reasoning_content": {"reasoning_field": "reasoning_content"},
    "keep-alive comments": {"faults": [Fault("before", "stream", value=": ping\n\n: ping\n\n")]},
    "an empty event": {"faults": [Fault("before", "stream", value="data: \n\n")]},
    "named events": {"faults": [Fault("form", "stream", value="event: message\nid: 7\ndata: %s\n\n")]},
    "no blank after data:": {"faults": [Fault("form", "stream", value="data:%s\n\n")]},
    "carriage returns": {"faults": [Fault("form", "stream", value="data: %s\r\n\r\n")]},
    "many blank lines": {"faults": [Fault("form", "stream", value="\n\n\ndata: %s\n\n\n\n")]},
    "a chunk of usage at the end": {"faults": [Fault("after", "stream", value=usage_chunk(()))]},
    "roles in all deltas": {
        "faults": [Fault("deltas", "stream", value=lambda ds: [({**one, "role": "assistant"}, end) for one, end in ds])]
    },
    "null in deltas": {
        "faults": [
            Fault("deltas", "stream", value=lambda ds: [
                ({"content": None, "tool_calls": None, **one}, end) for one, end in ds])
        ]
    },
    "the whole answer in one delta": {
        "faults": [
            Fault("deltas", "stream text", value=lambda ds: [
                ({"content": "".join(one.get("content", "") for one, _end in ds), "reasoning": "Hm."}, None), ds[-1]])
        ]
    },
    "a full stop": {"faults": [Fault("say", "text", value=lambda text: text + ".")]},
    "bold": {"faults": [Fault("say", "text", value=lambda text: "**%s**" % text)]},
    "boxed": {"faults": [Fault("say", "text", value=lambda text: (
        "\\(\\boxed{%s}\\)" % text if text.isdigit() else text))]},
    "a sentence": {"faults": [Fault("say", "text", value=lambda text: "The answer is: %s\n" % text)]},
    "digits apart": {"faults": [Fault("say", "text", value=lambda text: " ".join(text) if text.isdigit() else text)]},
    "with its way": {"faults": [Fault("say", "text", value=lambda text: (
        "20 + 3 is 23, so it is %s, not 23." % text if text.isdigit() else text))]},
    "lower case": {"faults": [Fault("say", "system", value=lambda text: text.lower() + "!")]},
    "status left out of the response": {"faults": [Fault("fields", "responses", value={"status": None})]},
    "one wrong sum of those at once": {"faults": [Fault("say", "text whole", "together-once", other_number)]},
    "one wrong stream of those at once": {"faults": [Fault("say", "text stream", "together-once", GIBBERISH)]},
    "one wrong sum at the end": {"faults": [Fault("say", "text whole", "late-once", other_number)]},
    "one wrong stream at the end": {"faults": [Fault("say", "text stream", "late-once", other_number)]},
    "one wrong response at the end": {"faults": [Fault("say", "responses", "late-once", other_number)]},
    "one answer that says more": {"faults": [Fault("say", "cold", "once", lambda text: text + " dear friend")]},
    "one wrong count": {"faults": [Fault("say", "count whole", "once", lines(lambda all_: all_[:-1]))]},
    "one wrong count, streamed": {"faults": [Fault("say", "count stream", "once", lines(lambda all_: all_[1:]))]},
    "one letter of the text": {"faults": [Fault("say", "exact whole", "once", lambda text: text.lower())]},
    "one instruction forgotten": {"faults": [Fault("say", "developer", "once", "I am fine.")]},
    "one turn forgotten": {"faults": [Fault("say", "turns", "once", "12345")]},
    "another tool first": {"faults": [Fault("other-tool-first", "weather whole", "once")]},
    "another tool first, streamed": {"faults": [Fault("other-tool-first", "weather stream", "once")]},
    "another tool first in the second round": {"faults": [Fault("other-tool-first", "second", "once")]},
    "one slip in an argument": {"faults": [Fault("arguments", "weather whole", "once", '{"city": "Rome", "days": 3}')]},
    "one slip in a streamed argument": {"faults": [Fault("arguments", "weather stream", "once", '{"city": "Oslo"}')]},
    "one slip in the second round": {"faults": [Fault("arguments", "second", "once", '{"city": "Rome", "days": 1}')]},
    "one slip of a named tool": {"faults": [Fault("arguments", "named", "once", '{"city": "Rome", "days": 1}')]},
    "one number as a string": {"faults": [Fault("arguments", "weather whole", "once", lambda a: json.dumps(
        dict(a, days=str(a["days"]))))]},
    "one more call after the result": {"faults": [Fault("call-again", "after-tool", "once")]},
    "one more call after the second result": {"faults": [Fault("call-again", "second", "once")]},
    "one result that is not named": {"faults": [Fault("say", "weather after-tool", "once", "It will be sunny.")]},
    "[DONE] without a blank line": {"faults": [Fault("sse", "chat stream", value=lambda data: data[:-1])]},
    "[DONE] without a line's end": {"faults": [Fault("sse", "chat stream", value=lambda data: data[:-2])]},
    "gzip": {"faults": ["gzip"]},
    "health is 204": {"faults": ["health-204"]},
    "no Content-Length": {"faults": ["no-length"]},
    "each connection is closed": {"faults": ["closes"]},
    "stop sequences stay in the answer": {"faults": ["stop-kept"]},
    "no tool_choice required": {"faults": [Fault("refuse", "required", value="tool_choice is not supported")]},
    "no named tool_choice": {"faults": [Fault("refuse", "named", value="tool_choice: input should be 'auto'")]},
    "no streams of /v1/responses": {"faults": [Fault("refuse", "responses stream", value="Unsupported: stream")]},
    "streams of /v1/responses of another kind": {
        "faults": [Fault("chunks", "responses stream", value=lambda events: events[:-1])],
        "engine": "trtllm",
    },
    "no tools in /v1/responses": {"faults": [Fault("refuse", "responses tools", value="tools are not supported")]},
    "a response without its output at the end": {"faults": [Fault("chunks", "responses stream", value=lambda events: [
        *events[:-1], {"type": "response.completed", "response": {"status": "completed"}}])]},
    "bytes one by one": {"faults": [Fault("sse", "exact stream", value=lambda data: [
        data[start : start + 1] for start in range(len(data))])]},
    "two events in a block": {"faults": [Fault("sse", "chat stream", value=lambda data: [data])]},
    "comments between events": {"faults": [Fault("form", "stream", value=": ping\n\ndata: %s\n\n")]},
    "carriage returns alone": {"faults": [Fault("form", "stream", value="data: %s\r\r")]},
    "data on two lines": {"faults": [Fault("sse", "chat stream", value=lambda data: data.replace(
        b'data: {"choices": ', b'data: {"choices":\ndata: '))]},
    "extra fields": {"faults": [Fault("json", "chat", value=lambda value, _body: dict(
        value, system_fingerprint=None, service_tier=None, kv_transfer_params={"a": [1.5, True]}))]},
    "null in the message": {"faults": [Fault("message", "chat whole", value=lambda message, finish, _body: (
        dict({"tool_calls": [], "refusal": None, "annotations": None, "function_call": None}, **message), finish))]},
    "no index in choices": {"faults": [Fault("json", "chat", value=lambda value, _body: dict(value, choices=[
        {key: one for key, one in value["choices"][0].items() if key != "index"}]))]},
    "usage in full": {"faults": [Fault("json", "chat", value=usage(
        prompt_tokens=90, completion_tokens=140, total_tokens=230, prompt_tokens_details=None))]},
    "escaped text": {"faults": [Fault("bytes", "chat whole", value=lambda data: json.dumps(
        json.loads(data), ensure_ascii=True).encode())]},
    "plain text": {"faults": [Fault("bytes", "chat whole", value=lambda data: json.dumps(
        json.loads(data), ensure_ascii=False).encode())]},
    "blanks around the JSON": {"faults": [Fault("bytes", "chat whole", value=lambda data: b"\n " + data + b"\n")]},
    "both names of the reasoning": {"faults": [Fault("message", "chat", value=lambda message, finish, _body: (
        dict(message, reasoning_content=message.get("reasoning")), finish))]},
    "a list after a tool": {"faults": [Fault("say", "after-tool", value=lambda text: "System: up\nTool: ok\n" + text)]},
    "thinking aloud in a long answer": {"faults": [Fault("say", "low", value=lambda text: (
        text if text != "391" else "Let's compute them. We must count pairs."))]},
    "words before a call": {"faults": [Fault("message", "tools", value=calls(
        lambda message, call, _number: message.update(content="I look that up.")))]},
    "a draft in the reasoning": {"faults": [Fault("message", "system", value=lambda message, finish, _body: (
        dict(message, reasoning="Simple, one word. I answer with this word alone: BANANA"), finish))]},
    "LaTeX": {"faults": [Fault("say", "text", value=lambda text: (
        "\\[ 17 \\times 23 = \\boxed{%s} \\]" % text if text.isdigit() else text))]},
    "a check mark": {"faults": [Fault("say", "cold", value=lambda text: "%s \u2705" % text)]},
    "quotes around the text": {"faults": [Fault("say", "exact", value=lambda text: '"%s"' % text)]},
    "a context that is listed as planned": {"context": 4096, "planned": 4096},
    "a context that is planned as 4k": {"context": 4000, "planned": "4k"},
    "a context window": {"context": 4096, "tells_context": "context_window"},
    "a short context": {"context": 768},
    "a simulated long context": {"context": 131072},
}  # fmt: skip


@pytest.mark.parametrize("time", [1, *(pytest.param(time, marks=pytest.mark.soak) for time in (2, 3))])
@pytest.mark.parametrize("sound", SOUND.values(), ids=SOUND)
def test_a_sound_server_passes_three_times_in_a_row(sound, time):
    verdict = verdict_of(**{"faults": (), **sound})
    assert failing(verdict) == {}
    assert verdict["ok"] is True
    unmeasured = {probe["name"] for probe in verdict["probes"] if probe["ok"] is None}
    lacks = {"closes": "keep-alive", "no-length": "keep-alive", "responses stream": "responses-stream",
             "responses tools": "responses-tools"}  # fmt: skip
    faults = [" ".join(sorted(one.where)) if isinstance(one, Fault) else one for one in sound.get("faults", ())]
    short = ["long-prompt", "long-answer"] if sound.get("context") == 768 else []
    assert unmeasured <= {"unbuffered", "context", *short, *(lacks[one] for one in faults if one in lacks)}


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault("say", value=lambda text: text + " zq vrmoo"), causes.SURPLUS),
        (Fault("insert", value=" <|im_end|>"), causes.FOREIGN),
        (Fault("message", value=shows(prompt_of)), causes.PROMPT_SHOWN),
        (Fault("message", value=leaks), VLLM.no_reasoning),
        (Fault("say", value=lambda text: text + "\nUser: more"), causes.OTHER_ROLES),
        (Fault("json", value=choice(index=1)), causes.OTHER_CHOICE),
        (Fault("bytes", "chat", value=lambda data: data[:-1] + b', "x": NaN}'), causes.NOT_STRICT),
        (Fault("say", value=other_number), causes.WRONG_ANSWER),
    ],
    ids=repr,
)
def test_a_quick_verdict_judges_the_complete_answer_too(fault, cause):
    verdict = verdict_of([fault], options=asking.Options(timeout=60, mode="quick"))
    assert failing(verdict) == {"completion": cause}


# -- what only the plan tells ------------------------------------------------------------------------------------------

KEY = "sk-a-long-key-that-nobody-knows"


@pytest.mark.parametrize(
    ("where", "opens", "modes"),
    [
        ("chat", None, ("full", "quick")),
        ("models", None, ("full", "quick")),
        ("chat whole", lambda key: not key, ("full", "quick")),
        ("chat whole", lambda key: len(key) == len("Bearer " + KEY), ("full", "quick")),
        ("models", lambda key: key.startswith("Bearer"), ("full", "quick")),
        ("chat stream", None, ("full",)),
        ("responses", None, ("full",)),
        ("chat", lambda key: key.startswith("Bearer " + KEY), ("full",)),
        ("chat", lambda key: key and ("Bearer " + KEY).startswith(key), ("full",)),
    ],
)
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


@pytest.mark.parametrize(
    ("fault", "probe", "cause"),
    [
        (Fault("arguments", "weather", value='{"city": "Rome", "days": 3}'), "tool-arguments",
         causes.TOOL_ARGUMENTS_LOST),
        (Fault("arguments", "weather", value='{"city": "Paris"}'), "tool-arguments", causes.TOOL_ARGUMENTS_LOST),
        (Fault("arguments", "weather stream", value='{"city": "Rome", "days": 3}'), "streaming",
         causes.TOOL_ARGUMENTS_LOST),
    ],
    ids=repr,
)  # fmt: skip
def test_a_stand_in_that_returns_arguments_must_return_the_right_ones(fault, probe, cause):
    assert failing(standin(fault)) == {probe: cause}


@pytest.mark.parametrize("where", ["chat whole text", "stream text", "responses", "cold"])
def test_a_stand_in_that_talks_gibberish_fails(where):
    verdict = verdict_of([Fault("say", where, value=GIBBERISH)], model=STANDIN)
    assert failing(verdict)[WHERE[where]] == causes.NO_SENSE
