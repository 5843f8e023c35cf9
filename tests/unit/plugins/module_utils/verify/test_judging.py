# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read in answers, complete and streamed, and how their texts are judged; no server is asked."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import dynamo
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.vllm import ENGINE as VLLM
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.http_client import Event, Response
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.model import gpt_oss
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import causes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking, chat, probes, streams
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import CHAT
from hypothesis import given
from hypothesis import strategies as st

# -- answers put together ----------------------------------------------------------------------------------------------


def chunk(ms, finish=None, **delta):
    return Event(json.dumps({"choices": [{"delta": delta, "finish_reason": finish}]}), ms)


def test_the_first_token_is_the_first_delta_with_something_in_it():
    events = [chunk(3, role="assistant", content=""), chunk(7, reasoning_content="We"), chunk(9, content="391")]
    answer = chat.read_stream(events)
    assert (answer.times, answer.error, answer.bad) == ([7, 9], None, None)
    assert (answer.content, answer.reasoning) == ("391", {"reasoning_content": "We"})
    assert chat.read_stream(events[:1]).times == []


@pytest.mark.parametrize(("times", "expected"), [
    ([400] * 30, False), ([400] * 29 + [500], True), ([], None),
    ([400] * 20, None),  # too few tokens
    ([200] * 30, None),  # over too soon
    (list(range(400, 430)), True),  # a millisecond for each
])  # fmt: skip
def test_a_stream_flows_where_its_events_are_apart(times, expected):
    answer = chat.Answer()
    answer.times = times
    assert streams.flows(answer) is expected


def call(index, **function):
    return {"index": index, "id": "call-%d" % index, "function": function}


@pytest.mark.parametrize(("chunks", "calls"), [
    (
        [[call(1, name="b", arguments="{"), call(0, name="a")],
         [call(0, arguments="{}"), call(1, arguments="}")]],
        [{"id": "call-0", "name": "a", "arguments": "{}"}, {"id": "call-1", "name": "b", "arguments": "{}"}],
    ),
    (
        [[{"function": {"name": "a", "arguments": "{"}}], [{"function": {"arguments": "}"}}]],
        [{"id": None, "name": "a", "arguments": "{}"}],
    ),
], ids=["by their index", "without index"])  # fmt: skip
def test_streamed_tool_calls_are_put_together(chunks, calls):
    events = [chunk(ms, tool_calls=one) for ms, one in enumerate(chunks, 1)]
    streamed = chat.read_stream([*events, chunk(3, "tool_calls")])
    assert (streamed.tool_calls, streamed.finish_reason) == (calls, "tool_calls")
    assert streamed.times == [1, 2]


MESSAGE = {"role": "assistant", "content": "391", "reasoning": "17*20 and 17*3"}
CHOICE = {"index": 0, "message": MESSAGE, "finish_reason": "stop"}


def choice(finish="stop", **message):
    return {"choices": [{**CHOICE, "message": {**MESSAGE, **message}, "finish_reason": finish}]}


def usage(prompt, completion, total):
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}}


@pytest.mark.parametrize(("value", "cause"), [
    ({}, None), (usage(90, 140, 230), None), ({"usage": None, "system_fingerprint": None}, None),
    ({"choices": [{"message": MESSAGE, "finish_reason": "stop"}]}, None),  # without an index
    (choice(tool_calls=[], refusal=None, function_call=None), None),
    ({"choices": [{**CHOICE, "index": 1}]}, causes.OTHER_CHOICE), ({"choices": [CHOICE] * 2}, causes.OTHER_CHOICE),
    ({"error": {"message": "oops"}}, causes.ERROR_INSIDE),
    (usage(9, 40, 50), causes.USAGE), (usage(9, -1, 8), causes.USAGE), (usage(9, "40", 49), causes.USAGE),
    (usage(9, 0, 9), causes.USAGE), (usage(0, 40, 40), causes.USAGE),
    (choice("eos"), causes.NO_END), (choice(None), causes.NO_END), (choice("tool_calls"), causes.NO_CALLS),
    (choice(role="user"), causes.SHAPE), (choice(content=["391"]), causes.SHAPE),
    (choice(reasoning="Weneedtocompute" * 10), causes.NO_SPACES),
    (choice("tool_calls", tool_calls=[{"id": "a", "function": {"name": "b"}}] * 2), causes.SAME_ID),
    ({"x": float("nan")}, causes.NOT_STRICT),
])  # fmt: skip
def test_flaws_of_a_complete_answer(value, cause):
    found = chat.read_answer(json.dumps({"choices": [CHOICE], **value})).flaws
    assert [flaw for flaw, _words in found] == ([cause] if cause else [])


PIECES = [chunk(1, content="39"), chunk(2, content="1"), chunk(3, "stop")]
AGAIN = [chunk(number, content="1 2 3 4"[: number + 1]) for number in range(1, 6)]
IDS = [chunk(ms, tool_calls=[{**call(0), "id": name}]) for ms, name in enumerate(("a", "a", "b"))]


@pytest.mark.parametrize(("events", "cause"), [
    (PIECES, None), ([chunk(0, role="assistant", content=None), *PIECES], None),
    ([*PIECES, chunk(4, content="x")], causes.AFTER_END), ([*PIECES, chunk(4, reasoning="x")], causes.AFTER_END),
    ([*PIECES, chunk(4, "length")], causes.AFTER_END),
    ([*IDS[:2], chunk(3, "tool_calls")], None), ([*IDS, chunk(3, "tool_calls")], causes.OTHER_ID),
    ([*AGAIN, chunk(6, "stop")], causes.CUMULATIVE), ([chunk(0, role="user"), *PIECES], causes.SHAPE),
    ([*PIECES, Event(json.dumps({"choices": [], **usage(5, 5, 11)}), 4)], causes.USAGE),
    ([Event('{"choices": [], "x": 1, "x": 2}', 0), *PIECES], causes.NOT_STRICT),
])  # fmt: skip
def test_flaws_of_a_stream(events, cause):
    assert [flaw for flaw, _words in chat.read_stream(events).flaws] == ([cause] if cause else [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def mappings(**values):
    """Mappings with some of these keys."""
    return st.fixed_dictionaries({}, optional=values)


MESSAGES = mappings(content=JSON, reasoning=JSON,
                    tool_calls=st.lists(mappings(id=JSON, index=JSON, function=JSON)) | JSON)  # fmt: skip
CHOICES = mappings(message=MESSAGES | JSON, delta=MESSAGES | JSON, finish_reason=JSON)
USAGE = mappings(completion_tokens=JSON)
COMPLETION = mappings(choices=st.lists(CHOICES | JSON) | JSON, usage=USAGE | JSON, error=JSON)


@given(COMPLETION | JSON)
def test_no_answer_is_too_odd_to_be_read(value):
    streamed = chat.read_stream([Event(json.dumps(value), 1), Event("no json", 2)])
    for answer in filter(None, (chat.read_answer(json.dumps(value)), streamed)):
        assert isinstance(answer.length, int)
        assert all(isinstance(text, str) and text for _where, text in answer.texts())
        for one in answer.tool_calls:
            assert chat.tool_arguments(one) is None or isinstance(chat.tool_arguments(one), dict)


# -- causes of errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "text", "cause"), [
    (500, "invalid tiktoken vocab file: No such file or directory (os error 2)", gpt_oss.ENCODINGS),
    (400, "HarmonyError: error downloading or loading vocab file: failed to download", gpt_oss.ENCODINGS),
    (500, "invalid tiktoken vocab file: hash mismatch: computed=00, expected=446a", gpt_oss.DAMAGED_ENCODINGS),
    (500, "expected token and rank, could not split on ' ' at line 1", gpt_oss.DAMAGED_ENCODINGS),
    (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser', VLLM.dropped_tool_call),
    (500, 'Failed to generate completions: no instances found for endpoint "instances/dynamo/…"', "no worker answers"),
    (503, "Model `openai/gpt-oss-120b` is not ready to serve requests yet.", "no worker answers"),
    # dynamo/trtllm/request_handlers/handler_base.py, cpp/tensorrt_llm/batch_manager/dataTransceiver.cpp
    (500, "Disaggregated params are required for decode mode", "no prefill worker is registered"),
    (500, "Disagg server does not currently support these cacheState, please check the cacheState of the context "
     "and gen executors", "different KV caches"),
    (503, "", causes.NOT_READY),
    (502, "<html>Bad Gateway</html>", causes.GATEWAY),
    (429, "", causes.LIMITED),
    (500, "CUDA out of memory", causes.MEMORY),
    (500, "Internal Server Error", causes.FAILED),
    (400, "messages is required", causes.REFUSED),
])  # fmt: skip
def test_the_words_of_an_error_point_at_its_cause(status, text, cause):
    assert cause in causes.http_cause(Response("POST", "http://h" + CHAT, status, text=text), CHAT, VLLM)


# -- texts -------------------------------------------------------------------------------------------------------------

HARMONY = (
    " assistantfinal", " analysisWe need to think.assistantfinal", "<|channel|>final<|message|>", "<|end|>",
    "|channel|final", "<|chan channel|>", " to=functions.get_weather", " commentary to=assistant", "<|return",
    "&lt;|message|&gt;", " assistantanalysis", " assistantcommentary to=functions.x", "<|constrain|>json",
    'analysisThe user asks: "Where is New York?"\nProvide context.assistantfinal**New York** can',
)  # fmt: skip
FOREIGN = (
    "<|im_end|>", "</s>", "<think>", "[INST]", "<|eot_id|>", "<|endoftext|>", "<end_of_turn>", "<pad>", "[PAD]",
    "<<SYS>>", "Ġ", "Ċ", "▁", "\ufffd", "<0x0A>", "âĢĻ", "Ã¼", "&lt;/s&gt;", "<tool_call>", "<|im_end", "\x00",
    "\x1b[31m", gpt_oss.TEXT.encode().decode("latin-1"),
)  # fmt: skip
PLAIN = (
    "391", "The analysis of the assistant's final answer", "Great!!!!!", "!!", "The final analysis is done.",
    "An assistant finally answers.", "analysis: 391", "It goes to=x.", "a || b | c", "a | b |> c", "f |> g",
    "| start | end |", "Use functions.get_weather.", "Channel: 5", "finally", "commentary", "a < b and c > d",
    "Ωmega, wół, pół, São Paulo, ÃO, Čeština", "e.g. [1] and <b>bold</b>", "if a<b:", "1\n2\n3\t4", "👍🏽 🙂",
    "## A heading\n### Another", "C## and F#", "\\(17 \\times 23\\)", "50 % @@ off", gpt_oss.TEXT,
)  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "cause"),
    [(HARMONY, VLLM.residue), (FOREIGN, causes.FOREIGN), (["!!!!!!!!"], VLLM.exclamation), (PLAIN, None)],
)
def test_residue(texts, cause):
    found = {text: causes.residue(text, VLLM) for text in texts}
    assert {text: one and one[1] for text, one in found.items()} == dict.fromkeys(texts, cause)


TOOLS = {"tools": [{}]}


@pytest.mark.parametrize(("content", "body", "cause"), [
    *((content, {}, causes.OTHER_ROLES) for content in (
        "391\nUser: And 18*23?", "391\n\nHuman: thanks", "391\nassistant", "391\n### Response:\n391", "391 user")),
    ("It is up.\nassistant:", TOOLS, causes.OTHER_ROLES),
    ("System: up\nTool: ok", TOOLS, None),
    ("What is 17*23? It is 391.", {}, causes.PROMPT_SHOWN),
    ("391, the product", {}, None),
    ("What is 17*23?", None, None),
])  # fmt: skip
def test_an_echo_is_the_prompt_or_another_turn(content, body, cause):
    answer = chat.Answer(content)
    answer.body = body if body is None else {"messages": [{"content": "What is 17*23?"}], **body}
    found = asking.echoes(answer)
    assert (found and found[1]) == cause


ALOUD = ("The user asks for a product. ", "We need to compute it. ", "Let's think. ", "I should answer: ",
         "According to the developer message: ")  # fmt: skip
THOUGHT = "17*20 is 340 and 17*3 is 51, together that is 391."


@pytest.mark.parametrize(
    ("content", "reasoning", "found"),
    [*((thought + "391", "", True) for thought in ALOUD), (THOUGHT + " 391", THOUGHT, True), ("391", THOUGHT, False),
     ("That is short: 391", "That is short: 391", False)],
)  # fmt: skip
def test_reasoning_in_the_content(content, reasoning, found):
    answer = chat.Answer(content, {"reasoning": reasoning} if reasoning else None)
    answer.body = {}
    assert asking.mixed(answer) is found


@pytest.mark.parametrize(("text", "number", "expected"), [
    ("391", 391, True), ("391.", 391, True), ("**391**", 391, True), ("3 9 1", 391, True), ("= 391,", 391, True),
    ("\uff13\uff19\uff11", 391, True), ("48,213", 48213, True), ("$391$", 391, True), ("(391)", 391, True),
    ("17 391", 391, True), ("3910", 391, False), ("1391", 391, False), ("391.5", 391, False), ("0.391", 391, False),
    ("1,391", 391, False), ("39 1000", 391, False), ("", 391, False), ("three", 391, False),
])  # fmt: skip
def test_a_number_is_found_however_it_is_set(text, number, expected):
    assert gpt_oss.says_number(text, number) is expected


@pytest.mark.parametrize(("text", "found"), [
    *(("391" + more, True) for more in (
        " zq vrmoo lkj", "\n\nParis is the capital of France.", " 391 391", " 12 77 45", " 答案", " Bonjour")),
    *((text, False) for text in (
        "391", "**391**.", "The answer is: 391\n", "20 + 3 is 23, so it is 391, not 23.", "391 \u2705",
        "\\[ 17 \\times 23 = \\boxed{391} \\]")),
])  # fmt: skip
def test_a_surplus_is_more_than_a_sum_needs(text, found):
    assert bool(gpt_oss.surplus(text, 391)) is found


COUNTED = [str(number) for number in range(1, gpt_oss.COUNT + 1)]


@pytest.mark.parametrize("lines", [
    COUNTED[:80], COUNTED[:63] + COUNTED[64:], COUNTED[1:], COUNTED[:9] * 2 + COUNTED[9:],
    [*COUNTED[:70], "zq vr", *COUNTED[71:]], ["".join(COUNTED)], [*COUNTED, "121"], [*COUNTED, "And so on."],
    [one.replace("77", "71") for one in COUNTED],
])  # fmt: skip
def test_a_count_lacks_nothing(lines):
    assert gpt_oss.counted("\n".join(COUNTED)) is None
    assert gpt_oss.counted("\n".join(lines))


@pytest.mark.parametrize("change", [
    lambda text: text.encode("ascii", "ignore").decode(), lambda text: text.replace("ü", "u"),
    lambda text: text.replace(" ", ""), lambda text: text.replace("東京", "东京"), lambda text: text.replace("🚀", ""),
    lambda text: text[:40], json.dumps,
])  # fmt: skip
def test_a_text_comes_back_as_it_was(change):
    assert gpt_oss.is_text('"%s"' % gpt_oss.TEXT)
    assert not gpt_oss.is_text(change(gpt_oss.TEXT))


@pytest.mark.parametrize(("arguments", "right"), [
    ({}, True), ({"city": "Paris, France"}, True), ({"city": "Berlin"}, False), ({"city": None}, False),
    *(({"days": days}, False) for days in (4, "3", True, 3.5, [3], None)), ({"unit": "celsius"}, False),
])  # fmt: skip
def test_arguments_are_those_of_the_question(arguments, right):
    given = {"city": "Paris", "days": 3, **arguments}
    wrong = gpt_oss.Forecast("Paris", 3).wrong({key: value for key, value in given.items() if value is not None})
    assert (not wrong) is right


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"a": 1}', {"a": 1}), (' {"a":\n1} \n', {"a": 1}), ({}, {}), ("[]", None), ("", {}), (None, {}), ("null", {}),
     ("{", None), ('"{}"', None), ('{"a": 1}{}', None), ('{"a": 1, "a": 2}', None), ('{"a": NaN}', None)],
)  # fmt: skip
def test_tool_arguments_are_a_json_object_or_nothing(arguments, expected):
    assert chat.tool_arguments({"arguments": arguments}) == expected


@pytest.mark.parametrize(("low", "high", "expected"), [
    ([1] * 6, [2] * 6, True), ([5] * 6, [5] * 6, False), ([2] * 6, [1] * 6, False),
    ([1, 1, 1, 1, 1, 9], [2] * 6, None), ([3] * 12, [4] * 12, True), ([1] * 9 + [9] * 3, [2] * 12, False),
    ([1] * 10 + [9] * 2, [2] * 12, None),
])  # fmt: skip
def test_the_ranks_of_all_lengths_tell_whether_effort_works(low, high, expected):
    assert probes.longer(low, high) is expected


@pytest.mark.parametrize(
    ("value", "tokens"),
    [(4096, 4096), ("4096", 4096), ("128k", 128000), ("128K", 131072), ("auto", None), (-1, None), ("", None),
     (None, None)],
)  # fmt: skip
def test_the_context_in_a_plan(value, tokens):
    assert probes.planned_context(value) == tokens


# -- workers of Dynamo -------------------------------------------------------------------------------------------------

ENDPOINTS = ["dyn://dynamo.backend.generate", "dyn://dynamo.prefill.generate"]
INSTANCES = [
    {"namespace": "dynamo", "component": component, "endpoint": endpoint, "instance_id": number}
    for component, endpoint, number in (
        ("backend", "clear_kv_blocks", 1), ("backend", "generate", 1), ("prefill", "generate", 2))
]  # fmt: skip


@pytest.mark.parametrize(("health", "prefill", "decode"), [
    ({"status": "healthy", "endpoints": ENDPOINTS, "instances": INSTANCES}, 1, 1),
    ({"endpoints": ENDPOINTS, "instances": []}, 1, 1),
    ({"endpoints": ["dyn://dynamo.tensorrt_llm.generate"]}, 0, 1),
    ({"status": "unhealthy", "message": "No endpoints available", "instances": []}, 0, 0),
    (None, 0, 0),
])  # fmt: skip
def test_instances_are_counted_in_every_versions_health(health, prefill, decode):
    assert dynamo.count_instances(health) == {"prefill": prefill, "decode": decode}


COUNTER = "dynamo_component_requests_total"


@pytest.mark.parametrize(("text", "expected"), [
    (COUNTER + '{dynamo_component="backend",dynamo_endpoint="generate"} 3\n', 3),
    (COUNTER + '{dynamo_endpoint="generate"} 3\n' + COUNTER + '{dynamo_endpoint="clear_kv_blocks"} 9\n', 3),
    (COUNTER + " 1e1\n", 10), ("dynamo_component_uptime_seconds 7\n", 0), ("python_info 1\n", None), ("", None),
])  # fmt: skip
def test_requests_are_counted_by_the_generate_endpoint(text, expected):
    assert dynamo.request_count(text) == expected


def test_one_of_several_workers_may_be_left_alone_by_the_router():
    roles = {"prefill-0": "prefill", "prefill-1": "prefill", "decode-0": "decode"}
    before = dict.fromkeys(roles, (1, 7))
    after = {**before, "prefill-1": (2, None)}
    assert probes.unused(before, after, roles) == causes.idle_cause(["decode-0"])
    after["decode-0"] = (2, 8)
    assert probes.unused(before, after, roles) is None
    after["decode-0"] = (2, 7)
    assert probes.unused(before, after, roles) == causes.still_cause(["decode-0"])
    after["decode-0"] = (1, 7)
    assert probes.unused(before, {**after, "decode-0": (None, 7)}, roles) is None


def test_keys_that_are_there_twice_are_found_in_linear_time():
    keys = ["k%d" % (at % 100_000) for at in range(100_001)]
    assert chat.strict("{%s}" % ", ".join('"%s": 1' % key for key in keys))[1] == "the key 'k0' is there twice"
