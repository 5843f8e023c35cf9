# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""False servers, each of which one probe must fail with its cause, and sound ones that must pass all the same."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.engines.vllm import ENGINE as VLLM
from ansible_collections.inference.fleet.plugins.module_utils.verify import asking, causes, runner, streams
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import Fault, ScriptedEngine

QUESTIONS = {one.question for one in streams.AT_ONCE}
TOGETHER = (len(QUESTIONS), lambda body: "messages" in body and body["messages"][-1]["content"] in QUESTIONS)
GIBBERISH = "zq vrmoo lkj pfft sdkl wq"
NOW = (("Retry-After", "0"),)
LATER = (("Retry-After", "3600"),)


def other_number(content):
    return str(int(content) + 10) if content.isdigit() else content


def verdict_of(faults, model="gpt-oss-120b", engine="vllm", options=None, **scripted):
    """The verdict on a scripted engine, which is taken for the planned server."""
    with ScriptedEngine(faults, model=model, together=TOGETHER, **scripted) as one:
        entries = [plan_entry(one.port, model_id=model, engine=engine)]
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
SAY = {"gibberish": GIBBERISH, "another number": other_number, "prose without sense": "I am happy to help you with it."}
EMPTY = {"nothing": "", "blanks": " \n "}

ROWS = []  # (Faults, failing probe, its cause)
for where, probe in WHERE.items():
    for kind, value in SAY.items():
        if not (kind == "another number" and probe == "system-message"):
            ROWS.append(([Fault("say", where, value=value)], probe, WRONG[probe]))
    for value in EMPTY.values():
        cause = causes.NO_MESSAGE if where == "responses" else causes.EMPTY
        ROWS.append(([Fault("say", where, value=value)], probe, cause))
for where, probe in LATELY.items():
    for value in (GIBBERISH, other_number):
        ROWS.append(([Fault("say", where, "late", value)], probe, WRONG[probe]))
for where, probe in AT_ONCE.items():
    for value in (GIBBERISH, other_number):
        ROWS.append(([Fault("say", where, "together", value)], probe, WRONG[probe]))
    ROWS.append(([Fault("say", where, "together", "")], probe, causes.EMPTY))
for step in (1, 2, 3):
    ROWS.append(([Fault("swap", "", "together", step)], "concurrent", causes.MIXED_UP))
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
for status in ("failed", "cancelled", "in_progress", "queued"):
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
             "tool-arguments", causes.TOOL_NAME))  # fmt: skip
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
ROWS.append(([Fault("buffer", "stream", value=0.3)], "unbuffered", causes.BUFFERED))

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


def words_for(row):
    return "%s: %r" % (row[1], row[0])


def test_there_are_enough_of_them_and_no_two_are_one():
    assert len(ROWS) >= 100
    assert len({(words_for(row), str(row[0][0].value)) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("faults", "probe", "cause"), ROWS, ids=map(words_for, ROWS))
def test_a_false_server_fails_with_its_cause(faults, probe, cause):
    verdict = verdict_of(faults)
    found = failing(verdict)
    assert probe in found, found
    assert found[probe] == (cause or found[probe])
    if cause is None:
        assert found[probe] in (VLLM.residue, VLLM.exclamation, VLLM.dropped_tool_call)
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
    "boxed": {"faults": [Fault("say", "text", value=lambda text: "\\(\\boxed{%s}\\)" % text)]},
    "a sentence": {"faults": [Fault("say", "text", value=lambda text: "The answer is: %s\n" % text)]},
    "digits apart": {"faults": [Fault("say", "text", value=lambda text: " ".join(text) if text.isdigit() else text)]},
    "with its way": {"faults": [Fault("say", "text", value=lambda text: "20 + 3 is 23, so it is %s, not 23." % text)]},
    "lower case": {"faults": [Fault("say", "system", value=lambda text: text.lower() + "!")]},
    "status left out of the response": {"faults": [Fault("fields", "responses", value={"status": None})]},
    "a short context": {"context": 768},
    "a simulated long context": {"context": 131072},
}  # fmt: skip


@pytest.mark.parametrize("sound", SOUND.values(), ids=SOUND)
def test_a_sound_server_passes_whatever_its_ways(sound):
    verdict = verdict_of(**{"faults": (), **sound})
    assert failing(verdict) == {}
    assert verdict["ok"] is True
    unmeasured = {probe["name"] for probe in verdict["probes"] if probe["ok"] is None}
    assert unmeasured <= {"unbuffered", *(["long-prompt"] if sound.get("context") == 768 else [])}


# -- stand-ins: what they can do is judged, the rest is null -----------------------------------------------------------

STANDIN = "gpt-oss-tiny-standin"
SENTENCE = "I am gpt-oss-tiny-standin, a stand-in: my answers prove plumbing, not quality."


def standin(*faults):
    return verdict_of([Fault("say", "text", value=SENTENCE), *faults], model=STANDIN)


def test_a_stand_in_is_judged_on_what_it_can_do():
    verdict = standin(Fault("arguments", "weather", value="{}"), Fault("reasoning", "low", value=""))
    assert failing(verdict) == {}
    unmeasured = {probe["name"]: probe["cause"] for probe in verdict["probes"] if probe["ok"] is None}
    assert unmeasured.pop("unbuffered").startswith("a stand-in's stream is too short to tell (")
    assert unmeasured == {
        "tool-arguments": "a stand-in need not know tools with arguments",
        "tool-result": "not run: tool-arguments brought no call with arguments",
        "system-message": "a stand-in need not follow a system message",
        "long-prompt": "a stand-in need not find a fact in a long prompt",
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
