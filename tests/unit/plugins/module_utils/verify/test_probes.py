# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sequence on good servers: what is sent, what is reported, the recipe's own probes, and other families."""

from __future__ import annotations

import json
import re
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import causes, readiness
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking, runner
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import Fault, ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import (
    AT_ONCE,
    CHAT,
    LEAK,
    LENGTH,
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
    assert (failing(verdict), unmeasured(verdict), verdict["ok"]) == ({}, {}, True)
    assert {key: verdict[key] for key in ("schema", "host", "server", "mode", "url", "model_id", "hash")} == {
        "schema": 1, "host": "node-1", "server": "server-0", "mode": "full", "model_id": "gpt-oss-120b",
        "url": "http://127.0.0.1:%d" % engine.port, "hash": entry_of(engine.port)["hash"],
    }  # fmt: skip
    assert time.strptime(verdict["at"], "%Y-%m-%dT%H:%M:%SZ")
    for probe in verdict["probes"]:
        assert set(probe) == {"name", "ok", "ms", "sent", "got", "cause"}
        assert isinstance(probe["ms"], int)
        assert probe["got"] or probe["name"] in ("unbuffered", "context")  # what scripted engines cannot show


def body_of(question, **more):
    return {"model": "gpt-oss-120b", "messages": [{"role": "user", "content": question}], **more}


def test_what_is_sent():
    with ScriptedEngine(together=TOGETHER) as engine:
        verdict_of(engine)
    bodies = engine.bodies(CHAT)
    usual = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 1024}
    for body in (
        body_of("What is 19*24? Answer with the number.", **{**usual, "temperature": 0}),
        body_of("What is 16*47? Answer with the number."),
        body_of("What is 17*23? Answer with the number.", **usual),
        body_of("What is 17*23? Answer with the number.", **usual, stream=True),
    ):
        assert body in bodies
    assert {"system", "developer"} <= {body["messages"][0]["role"] for body in bodies}
    assert len(max((body["messages"][-1]["content"] for body in bodies), key=len)) > 4000
    levels = [body.get("reasoning_effort") for body in bodies if not body.get("tools")]
    assert levels.count("high") == 6
    assert levels.count("low") >= 6 + 5  # and the long answer, the exact text and the stop sequence
    quick = [body for body in bodies if "tools" in body and "quick check" in body["messages"][0]["content"]]
    assert quick[0]["tools"][0]["function"]["name"] == "get_system_health"
    assert quick[0]["messages"] == [{"role": "user", "content": "Hey, quick check: is everything up and running?"}]
    called = quick[1]["messages"][1]["tool_calls"][0]["id"]
    assert re.fullmatch(r"call-\d+", called)
    function = {"name": "get_system_health", "arguments": "{}"}
    assert quick[1]["messages"][1:] == [
        {"role": "assistant", "tool_calls": [{"id": called, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": called, "content": '{"status":"ok","uptime_seconds":372045}'},
    ]
    assert len(engine.held) == AT_ONCE


@pytest.mark.parametrize(
    ("scripted", "probe", "got"),
    [
        ({"reasoning_field": "reasoning_content"}, "reasoning",
         "reasoning_content, 84 characters (the plan expects the name reasoning; this engine version uses the other)"),
        ({"context": 768}, "model-id", "HTTP 200, lists gpt-oss-120b, context 768"),
    ],
)  # fmt: skip
def test_what_is_not_as_usual_is_noted(scripted, probe, got):
    with ScriptedEngine(**scripted) as engine:
        verdict = verdict_of(engine)
    assert (verdict["ok"], by_name(verdict)[probe]["got"]) == (True, got)
    bodies = engine.bodies(CHAT)
    assert {body["max_tokens"] for body in bodies if "max_tokens" in body} == {512 if "context" in scripted else 1024}
    assert len([body for body in bodies if "max_tokens" not in body]) == 1


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
    fault = Fault("message", "required", value=lambda *_answer: ({"role": "assistant", "content": None}, None))
    with ScriptedEngine((fault,), model=model) as engine:
        verdict = verdict_of(engine, entries=[entry_of(engine.port, model_id=model)])
    assert failing(verdict) == {}
    assert by_name(verdict)["tool-choice"]["got"] == "none; named; required is not measurable on a stand-in"


@pytest.mark.parametrize(("fault", "streams"), [("words-first", 2), ("stream-words-first", 3)])
def test_a_model_that_answers_in_words_first_is_asked_again(fault, streams):
    with ScriptedEngine(fault) as engine:
        verdict = verdict_of(engine)
    assert verdict["ok"] is True
    assert len([body for body in engine.bodies(CHAT) if body.get("stream") and body.get("tools")]) == streams
    again = "Call get_system_health now and tell me what it says."
    assert (again in by_name(verdict)["tool-call"]["sent"]) is (fault == "words-first")


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
    with ScriptedEngine(pages={"/health": lambda: json.dumps({"authorization": "Bearer " + KEY})}) as engine:
        verdict = verdict_of(engine, asking.Options(timeout=60, api_key=KEY))
    assert by_name(verdict)["alive"]["got"] == 'HTTP 200 {"authorization": "Bearer ***"}'


@pytest.mark.parametrize(
    ("expected", "listed", "engine_name", "cause"),
    [
        ("gpt-oss-120b", [], "vllm", NO_MODELS),
        ("openai/gpt-oss-120b", ["gpt-oss-120b"], "trtllm",
         "the server lists the basename gpt-oss-120b instead of openai/gpt-oss-120b: trtllm-serve names a local "
         "checkpoint by its folder; make that the recipe's model id, or pass a served model name"),
        ("gpt-oss-120b", ["/mnt/models/gpt-oss-120b"], "vllm",
         "the server lists the path /mnt/models/gpt-oss-120b instead of gpt-oss-120b: it was started without a "
         "served model name (`--served-model-name gpt-oss-120b`)"),
        ("gpt-oss-120b", ["gpt-oss-20b"], "vllm",
         "the server lists gpt-oss-20b instead of gpt-oss-120b: its served model name is another, or another server "
         "has the port"),
    ],
)  # fmt: skip
def test_the_model_id_must_be_the_planned_one_and_the_rest_is_still_measured(expected, listed, engine_name, cause):
    with ScriptedEngine(listed=listed) as engine:
        verdict = verdict_of(engine, entries=[entry_of(engine.port, model_id=expected, engine=engine_name)])
    assert failing(verdict) == ({"model-id": cause} if listed else {"model-id": cause, "warm-up": cause})
    assert not listed or unmeasured(verdict) == {}


# -- the recipe's own probes -------------------------------------------------------------------------------------------

MESSAGES = {"messages": [{"role": "user", "content": "Where is New York?"}]}
PAGES = {"/version": '{"version": "0.32.0"}', "/name": '{"name": "K\\u00f6ln"}'}
MISSING = "the recipe expects %s in the answer, and it is empty or missing"


@pytest.mark.parametrize(
    ("faults", "probe", "cause"),
    [
        ((), {"body": MESSAGES, "expect": {"contains": ["391"], "field": "choices.0.message.content"}}, None),
        ((), {"path": "/version", "expect": {"contains": ["0.32"], "field": "version"}}, None),
        # whether or not a reasoning item comes before the message
        ((), {"path": "/v1/responses", "body": {"input": "Who?"}, "expect": {"field": "output.-1.role"}}, None),
        ((), {"path": "/name", "expect": {"contains": ["Köln"]}}, None),  # the body escapes it
        ((), {"body": dict(MESSAGES, model="x"), "expect": {"status": 404}}, None),
        ((), {"path": "/nothing", "expect": {"status": 404}}, None),
        ((), {"body": MESSAGES, "expect": {"field": "choices.-2.message.content"}},
         MISSING % "choices.-2.message.content"),
        ((), {"body": MESSAGES, "expect": {"field": "choices.0.message.refusal"}},
         MISSING % "choices.0.message.refusal"),
        ((), {"body": MESSAGES, "expect": {"contains": ["NYC"]}}, "the recipe expects the answer to contain 'NYC'"),
        ("length", {"body": MESSAGES, "expect": {"field": "choices.0.message.content"}}, LENGTH),
        ((), {"path": "/nothing"}, causes.PATH_UNKNOWN),
        ((), {"body": dict(MESSAGES, model="x")}, causes.MODEL_UNKNOWN),
    ],
)  # fmt: skip
def test_a_recipes_probe_comes_last_and_passes_or_has_its_cause(faults, probe, cause):
    with ScriptedEngine(faults, pages=PAGES) as engine:
        verdict = verdict_of(engine, asking.Options(timeout=60, probes=[{"name": "own", **probe}]))
    own = verdict["probes"][-1]
    assert (own["name"], own["ok"], own["cause"]) == ("own", cause is None, cause)
    if probe.get("body") == MESSAGES:
        assert engine.bodies(CHAT)[-1] == dict(MESSAGES, model="gpt-oss-120b")  # the model is filled in


def test_a_leak_in_a_recipes_probe_is_found():
    with ScriptedEngine("leak-in-new-york") as engine:
        verdict = verdict_of(engine, asking.Options(timeout=60, probes=[{"name": "own", "body": MESSAGES}]))
    assert failing(verdict) == {"harmony-residue": LEAK}
    assert by_name(verdict)["harmony-residue"]["got"] == (
        "in the answer to own: in the content: <|channel|>final<|message|>In the north-east."
    )


@pytest.mark.parametrize(
    "given_probes",
    [[{"name": "chat"}], [{"name": "a", "path": "/a"}] * 2, [{"name": "a", "path": "v1"}], [{"name": "a"}]],
)
def test_a_bad_probe_is_refused(given_probes):
    caught = error(runner.check_probes, given_probes)
    assert caught.code == "probes.invalid" and given_probes[0]["name"] in caught.values[0]


# -- other families than gpt-oss ---------------------------------------------------------------------------------------

TOOLS = {"tool-call-parser": "hermes", "max-num-seqs": 4}
OWN = [{"name": "own-chat", "body": {"messages": [{"role": "user", "content": "Hello"}]}},
       {"name": "own-models", "path": "/v1/models"}]  # fmt: skip


def judged(faults=(), family="chat", arguments=None, mode="full", **changes):
    with ScriptedEngine(faults) as engine:
        entry = plan_entry(engine.port, arguments=arguments or {"max-num-seqs": 4}, family=family, **changes)
        return verdict_of(engine, asking.Options(mode=mode, timeout=60, probes=OWN), [entry])


def test_a_chat_model_is_asked_for_tools_if_it_has_a_parser_and_for_nothing_of_gpt_oss():
    verdict = judged()
    assert failing(verdict) == {}
    names = set(by_name(verdict))
    assert {"own-chat", "own-models", "chat", "multi-turn", "json-schema", "streaming", "concurrent"} <= names
    assert not {"effort", "harmony-residue", "developer-message", "responses", "reasoning", "tool-call"} & names
    verdict = judged(arguments=TOOLS)
    assert failing(verdict) == {}
    assert by_name(verdict)["tool-arguments"]["ok"] is True


@pytest.mark.parametrize(
    ("family", "fault", "probe", "cause"),
    [
        ("chat", "schema-ignored", "json-schema", causes.SCHEMA_IGNORED),
        ("chat", "wrong-answer", "chat", causes.WRONG_ANSWER),
        ("embedding", "vectors-of-zeros", "embedding", causes.VECTORS),
        ("embedding", "vector-missing", "embedding-order", causes.VECTORS),
        ("embedding", "vectors-swapped", "embedding-repeat", causes.VECTOR_CHANGES),
    ],
)
def test_faults_of_other_families_have_their_causes(family, fault, probe, cause):
    assert failing(judged(fault, family))[probe] == cause


def test_an_embedding_model_is_asked_for_vectors_of_its_size(tmp_path):
    verdict = judged(family="embedding")
    assert failing(verdict) == {}
    assert [name for name in by_name(verdict) if name.startswith(("embedding", "own"))] == [
        "embedding", "embedding-order", "embedding-repeat", "own-models"]  # fmt: skip
    assert list(by_name(judged(family="embedding", mode="quick"))) == ["identity", "model-id", "embedding"]
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4096}))
    assert failing(judged(family="embedding", weights=[str(tmp_path)]))["embedding"] == causes.VECTOR_SIZE


def test_an_embedding_server_is_ready_when_it_answers_a_vector():
    with ScriptedEngine() as engine:
        assert readiness.probe(plan_entry(engine.port, family="embedding"), 60) is None
        assert [path for method, path, *_rest in engine.requests if method == "POST"] == ["/v1/embeddings"]
