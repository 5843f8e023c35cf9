# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe's own probes."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking, runner
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import (
    CHAT,
    LEAK,
    LENGTH,
    by_name,
    failing,
    verdict_of,
)


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


def test_a_negative_number_in_a_field_counts_from_the_end():
    """Whether or not a reasoning item comes before the message."""
    expect = {"field": "output.-1.role"}
    with ScriptedEngine() as engine:
        assert own(engine, path="/v1/responses", body={"input": "What is 17*23?"}, expect=expect)["ok"] is True


@pytest.mark.parametrize(
    ("faults", "probe", "cause"),
    [
        (
            (),
            {"body": MESSAGES, "expect": {"field": "choices.-2.message.content"}},
            "the recipe expects choices.-2.message.content in the answer, and it is empty or missing",
        ),
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
        "in the answer to own: in the content: <|channel|>final<|message|>In the north-east."
    )


def test_a_text_with_an_umlaut_is_found_although_the_body_escapes_it():
    with ScriptedEngine(pages={"/name": '{"name": "K\\u00f6ln"}'}) as engine:
        assert own(engine, path="/name", expect={"contains": ["Köln"]})["ok"] is True


def test_an_expected_error_passes():
    with ScriptedEngine() as engine:
        assert own(engine, body=dict(MESSAGES, model="x"), expect={"status": 404})["ok"] is True
        assert own(engine, path="/nothing", expect={"status": 404})["ok"] is True


@pytest.mark.parametrize(
    "given_probes",
    [
        [{"name": "chat"}],
        [{"name": "a", "path": "/a"}, {"name": "a", "path": "/a"}],
        [{"name": "a", "path": "v1"}],
        [{"name": "a"}],
    ],
)
def test_a_bad_probe_is_refused(given_probes):
    with pytest.raises(FleetError) as caught:
        runner.check_probes(given_probes)
    assert caught.value.code == "probes.invalid" and given_probes[0]["name"] in caught.value.values[0]
