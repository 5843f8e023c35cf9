# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An evaluation as a result: its published score, the verdict, and why it is good or not."""

from __future__ import annotations

import pathlib

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import gpt_oss_evals, result
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import evaluations
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.head import head_of

CLONE = pathlib.Path(__file__).resolve().parents[5]
REFERENCES = yaml.safe_load((CLONE / "roles/evaluate/vars/main.yml").read_text(encoding="utf-8"))["evaluate_references"]
BIG, SMALL, BF16 = "openai/gpt-oss-120b", "openai/gpt-oss-20b", "unsloth/gpt-oss-120b-BF16"
ENTRY = {"host": "localhost", "name": "server-0", "platform": "cpu", "engine": "x", "devices": [0]}
DEPLOYMENT = {"name": "r", "platform": "cpu", "engine": "x", "model": {"repo": BIG}}
KNOWN = {"servers": [ENTRY], "deployment": DEPLOYMENT, "hardware": {"accelerator": "cpu"}, "profile": "full",
         "scope": "server", "tool_version": "1"}  # fmt: skip
HEAD = head_of(KNOWN, "localhost", "/reports/local")


def measured(right, asked, failed=0, **more):
    answers = [("q%d" % number, int(number < right), None) for number in range(asked)]
    answers += [("f%d" % number, 0, "No response (bad request).") for number in range(failed)]
    return {
        **gpt_oss_evals.counted(answers), "id": "20260131T120000Z-0a1b2c3d", "began": "2026-01-31T12:00:00Z",
        "ended": "2026-01-31T12:01:00Z", "eval": "gpqa", "effort": "medium", "servers": ["server-0"],
        "plan_hash": "b" * 64, "tool": {"name": "t", "version": "1", "command": ["t"]}, "void": None, "dataset": None,
        "whole": True, **more,
    }  # fmt: skip


def found(*numbers, **more):
    document = evaluations.document(measured(*numbers, **more), HEAD, DEPLOYMENT, REFERENCES)
    assert result.problems(document) == []
    assert len(evaluations.row(document)) == len(evaluations.COLUMNS)
    return document


@pytest.mark.parametrize(
    ("name", "effort", "model", "platform", "score"),
    [
        ("gpqa", "low", BIG, "nvidia", 65.3), ("aime25", "high", SMALL, "nvidia", 85.8),
        ("gpqa", "high", BF16, "ascend", 79.4), ("mmlu", "medium", BF16, "ascend", 89.5),
        # the platform's own score for the default effort, and the general one for another
        ("gpqa", "medium", BIG, "neuron", 72.22), ("gpqa", "high", BIG, "neuron", 79.4),
    ],
)  # fmt: skip
def test_published_scores(name, effort, model, platform, score):
    one = evaluations.reference_of(REFERENCES, name, effort, model, platform)
    assert one["score"] == score and one["source"] and one["model"] == model
    assert (one["effort"] is None) == (score in (72.22, 89.5))


@pytest.mark.parametrize(
    ("name", "effort", "model"), [("mmlu", "low", BF16), ("mmlu", "medium", SMALL), ("basic", "low", BIG)]
)
def test_what_nobody_published(name, effort, model):
    assert evaluations.reference_of(REFERENCES, name, effort, model, "nvidia") is None


@pytest.mark.parametrize("wrong", [{"score": "high"}, {"score": 101}, {"score": None}, {"scores": 1}])
def test_a_reference_that_is_none_is_refused(wrong):
    one = {"eval": "gpqa", "models": [BIG], "score": 1, "source": "s", **wrong}
    with pytest.raises(FleetError) as caught:
        evaluations.reference_of([one], "gpqa", "low", BIG, "cpu")
    assert caught.value.code == "evaluate.reference-invalid" and caught.value.values[0] == 0


@pytest.mark.parametrize(
    ("right", "asked", "verdict", "ok"),
    [(143, 198, "agrees", True), (99, 198, "below", False), (180, 198, "above", True), (9, 12, "too-few", True)],
)
def test_verdicts(right, asked, verdict, ok):
    document = found(right, asked)
    assert (document["verdict"], document["ok"]) == (verdict, ok)
    assert document["difference"] == pytest.approx(document["score"] - 72.4, abs=0.01)


def test_one_failed_request_fails_the_evaluation():
    document = found(143, 198, 1)
    assert (document["ok"], document["failed"], document["verdict"]) == (False, 1, "agrees")
    assert document["reason"] == "1 of 199 answers did not come: No response (bad request)."


def test_nothing_but_failures_has_no_score():
    document = found(0, 0, 3)
    assert (document["ok"], document["score"], document["interval"], document["verdict"]) == (
        False, None, None, "too-few"
    )  # fmt: skip


def test_a_restart_makes_it_void():
    document = found(143, 198, void="a server was restarted meanwhile")
    assert not document["ok"] and document["reason"] == "It does not count: a server was restarted meanwhile."


def test_some_subjects_are_not_compared_with_all():
    assert found(10, 12, eval="mmlu", whole=True)["verdict"] == "too-few"
    document = found(10, 12, eval="mmlu", whole=False)
    assert (document["verdict"], document["reference"], document["ok"]) == ("no-reference", None, True)


def test_basic_says_nothing_of_the_score():
    document = found(1, 1, eval="basic")
    assert document["ok"] and "says nothing" in document["reason"]
