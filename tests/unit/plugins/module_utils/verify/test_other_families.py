# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts on servers of other families than gpt-oss."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import causes, readiness
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import (
    by_name,
    failing,
    verdict_of,
)

TOOLS = {"tool-call-parser": "hermes", "max-num-seqs": 4}
OWN = [{"name": "own-chat", "body": {"messages": [{"role": "user", "content": "Hello"}]}},
       {"name": "own-models", "path": "/v1/models"}]  # fmt: skip
PLAIN = {"max-num-seqs": 4}


def judged(faults=(), family="chat", arguments=None, mode="full", **changes):
    with ScriptedEngine(faults) as engine:
        entry = plan_entry(engine.port, arguments=arguments or PLAIN, family=family, **changes)
        return verdict_of(engine, asking.Options(mode=mode, timeout=60, probes=OWN), [entry])


def test_a_chat_model_without_parsers_is_asked_for_no_tools_and_no_reasoning():
    verdict = judged()
    assert failing(verdict) == {}
    assert {"own-chat", "own-models", "chat", "multi-turn", "json-schema", "streaming", "concurrent"} <= set(
        by_name(verdict)
    )
    assert not {"effort", "harmony-residue", "developer-message", "responses", "reasoning", "tool-call"} & set(
        by_name(verdict)
    )


def test_a_chat_model_with_a_tool_parser_is_asked_for_tools():
    verdict = judged(arguments=TOOLS)
    assert failing(verdict) == {}
    assert by_name(verdict)["tool-arguments"]["ok"] is True


@pytest.mark.parametrize(
    ("fault", "probe", "cause"),
    [
        ("schema-ignored", "json-schema", causes.SCHEMA_IGNORED),
        ("wrong-answer", "chat", causes.WRONG_ANSWER),
    ],
)
def test_faults_of_a_chat_model_have_their_causes(fault, probe, cause):
    assert failing(judged(fault))[probe] == cause


def test_an_embedding_model_is_asked_for_vectors(tmp_path):
    verdict = judged(family="embedding")
    assert failing(verdict) == {}
    assert [name for name in by_name(verdict) if name.startswith(("embedding", "own"))] == [
        "embedding", "embedding-order", "embedding-repeat", "own-models"]  # fmt: skip
    assert list(by_name(judged(family="embedding", mode="quick"))) == ["identity", "model-id", "embedding"]


@pytest.mark.parametrize(
    ("fault", "probe", "cause"),
    [
        ("vectors-of-zeros", "embedding", causes.VECTORS),
        ("vector-missing", "embedding-order", causes.VECTORS),
        ("vectors-swapped", "embedding-repeat", causes.VECTOR_CHANGES),
    ],
)
def test_faults_of_an_embedding_model_have_their_causes(fault, probe, cause):
    assert failing(judged(fault, "embedding"))[probe] == cause


def test_vectors_have_the_model_s_size(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4096}))
    verdict = judged(family="embedding", weights=[str(tmp_path)])
    assert failing(verdict)["embedding"] == causes.VECTOR_SIZE


def test_an_embedding_server_is_ready_when_it_answers_a_vector():
    with ScriptedEngine() as engine:
        entry = plan_entry(engine.port, family="embedding")
        assert readiness.probe(entry, 60) is None
        assert [path for method, path, *_rest in engine.requests if method == "POST"] == ["/v1/embeddings"]
