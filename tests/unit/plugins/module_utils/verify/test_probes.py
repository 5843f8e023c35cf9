# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probes, on a good server and on every bad one."""

from __future__ import annotations

import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import Fault, ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import (
    CHAT,
    NO_EFFORT,
    NO_MODELS,
    SEQUENCE,
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


# -- every way to misbehave: the failing probes, each with its cause ---------------------------------------------------


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
