# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An evaluation as a result: its published score, the verdict, and why it is good or not."""

from __future__ import annotations

import pathlib

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import measure
from ansible_collections.inference.fleet.tests.unit.engines.measured_results import evaluation

CLONE = pathlib.Path(__file__).resolve().parents[5]
REFERENCES = yaml.safe_load((CLONE / "roles/evaluate/vars/main.yml").read_text(encoding="utf-8"))["evaluate_references"]
BIG, SMALL, BF16 = "openai/gpt-oss-120b", "openai/gpt-oss-20b", "unsloth/gpt-oss-120b-BF16"
DEPLOYMENT = {"name": "r", "platform": "cpu", "engine": "x", "model": {"repo": BIG}}


def found(right, asked, failed=0, name="gpqa", **more):
    """The evaluation of the node, as the control node keeps it."""
    numbers = {
        "questions": asked, "answered": asked, "correct": right, "failed": failed,
        "score": round(100 * right / asked, 2) if asked else None,
        "interval": result.wilson(right, asked) if asked else None,
        "errors": [{"message": "bad request", "count": failed}] if failed else [],
        "ok": bool(asked) and not failed and not more.get("void"),
    }  # fmt: skip
    document = {**evaluation(name, "medium", reference=None), **numbers, **more}
    document = measure.compared(document, REFERENCES, DEPLOYMENT, 15)
    table = measure.table(document)
    assert len(table["rows"][0]) == len(table["columns"])
    return document


@pytest.mark.parametrize(
    ("name", "effort", "model", "platform", "score"),
    [
        ("gpqa", "low", BIG, "nvidia", 65.3), ("aime25", "high", SMALL, "nvidia", 85.8),
        ("gpqa", "high", BF16, "ascend", 79.4), ("mmlu", "medium", BF16, "ascend", 89.5),
        # the platform's score for the default effort, and the general one for another
        ("gpqa", "medium", BIG, "neuron", 72.22), ("gpqa", "high", BIG, "neuron", 79.4),
        # not published
        ("mmlu", "low", BF16, "nvidia", None), ("mmlu", "medium", SMALL, "nvidia", None),
        ("basic", "low", BIG, "nvidia", None),
    ],
)  # fmt: skip
def test_published_scores(name, effort, model, platform, score):
    one = measure.reference_of(REFERENCES, name, effort, model, platform)
    assert (one and one["score"]) == score
    if one:
        assert one["source"] and one["model"] == model and (one["effort"] is None) == (score in (72.22, 89.5))


@pytest.mark.parametrize(
    ("right", "asked", "judged", "ok"),
    [(143, 198, "agrees", True), (99, 198, "below", False), (180, 198, "above", True), (9, 12, "too-few", True)],
)
def test_verdicts(right, asked, judged, ok):
    document = found(right, asked)
    assert (document["verdict"], document["ok"]) == (judged, ok)
    assert document["difference"] == pytest.approx(document["score"] - 72.4, abs=0.01)


def test_basic_has_no_meaningful_score():
    document = found(1, 1, name="basic")
    assert document["ok"] and document["verdict"] == "no-reference"
