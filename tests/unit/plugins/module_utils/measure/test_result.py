# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of results, and their history."""

from __future__ import annotations

import hashlib
import json
import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import evaluation as datasets
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.tests.unit.engines.measured_results import benchmark, evaluation
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.engines.tiny_datasets import tiny_datasets


def test_history_is_appended_and_never_changed(tmp_path):
    assert result.history(str(tmp_path / "none")) == ([], [])
    older, newer = benchmark(day=1), evaluation(day=2)
    path = result.keep(str(tmp_path), newer)
    result.keep(str(tmp_path), older)
    assert path == str(tmp_path / "measurements" / (newer["id"] + ".json"))
    result.keep(str(tmp_path), {**newer, "ok": False})
    assert result.history(str(tmp_path)) == ([older, newer], [])


@pytest.mark.parametrize("identity", ["", "../../etc/x", None, "20260131T120000Z-0a1b2c3d\n"])
def test_an_id_that_is_no_file_name_is_refused(tmp_path, identity):
    caught = error(result.keep, str(tmp_path), {**benchmark(), "id": identity})
    assert (caught.code, caught.values) == ("measure.bad-result", (identity,))
    assert list(tmp_path.iterdir()) == []


def test_other_files_in_the_history_are_left_out_with_a_warning(tmp_path):
    one = benchmark()
    result.keep(str(tmp_path), one)
    kept = tmp_path / "measurements"
    (kept / "notes.txt").write_text("x", encoding="utf-8")
    (kept / ".20260131T120000Z-0a1b2c3d.json.x.json").write_text("{", encoding="utf-8")
    (kept / "20260101T000000Z-00000001.json").mkdir()
    (kept / "20260101T000000Z-00000002.json").write_text("[" * 200000, encoding="utf-8")
    (kept / "20260101T000000Z-00000003.json").write_bytes(b"\xff\xfe{}")
    (kept / "20260101T000000Z-00000004.json").write_text(json.dumps(one), encoding="utf-8")
    (kept / "20260101T000000Z-00000005.json").symlink_to("/nonexistent")
    os.mkfifo(kept / "20260101T000000Z-00000006.json")
    other = [
        {**one, "schema": 1}, {**one, "kind": []}, {**one, "began": None}, {**one, "workload": {}},
        {**one, "scope": "moon"}, {**evaluation(), "interval": [1.0]}, {**evaluation(), "verdict": "fine"},
    ]  # fmt: skip
    for number, document in enumerate(other, 7):
        identity = "20260101T000000Z-%08d" % number
        (kept / (identity + ".json")).write_text(json.dumps({**document, "id": identity}), encoding="utf-8")
    documents, warnings = result.history(str(tmp_path))
    assert documents == [one]
    assert all("%08d.json" % number in text for number, text in enumerate(warnings, 1)) and len(warnings) == 13


def test_the_plan_hash_is_of_the_servers_and_not_of_their_order():
    one, other = ({"host": "h", "name": name, "hash": name * 64} for name in "ab")
    assert result.plan_hash([one, other]) == result.plan_hash([other, one]) != result.plan_hash([one])
    assert result.plan_hash([{**one, "hash": "c" * 64}]) != result.plan_hash([one])


def test_the_recipe_hash_leaves_out_the_keys_that_change_no_server():
    recipe = {"name": "x", "arguments": {"a": 1}, "benchmark": {"quick": {}}, "probes": []}
    assert result.recipe_hash(recipe) == result.recipe_hash({**recipe, "benchmark": None, "probes": [1]})
    assert result.recipe_hash(recipe) != result.recipe_hash({**recipe, "arguments": {"a": 2}})


@pytest.mark.parametrize(
    ("correct", "asked", "low", "high"),
    # R: prop.test(x, n, correct = FALSE)
    [(0, 10, 0.0, 27.75), (5, 10, 23.66, 76.34), (10, 10, 72.25, 100.0), (895, 1000, 87.45, 91.25)],
)
def test_the_interval_is_wilsons(correct, asked, low, high):
    assert [round(value, 2) for value in result.wilson(correct, asked)] == [low, high]


def test_answers_that_differ_within_questions_narrow_the_interval():
    low, high = result.interval([(4, 8)] * 25)
    assert (round(low, 1), round(high, 1)) == (43.1, 56.9)  # as of 200 answers
    low, high = result.interval([(8, 8), (0, 8)] * 12)
    assert high - low > 37  # as of 24
    assert result.interval([]) is result.interval([(0, 0)]) is None


@pytest.mark.parametrize(("score", "bounds", "reference", "said"), [
    (89.0, [87.0, 91.0], 89.5, "agrees"), (80.0, [77.0, 83.0], 89.5, "below"),
    (95.0, [93.0, 97.0], 89.5, "above"), (75.0, [47.0, 91.0], 89.5, "too-few"), (0.0, [0.0, 24.0], 89.5, "below"),
    (50.0, [20.0, 80.0], None, "no-reference"), (None, None, 89.5, "too-few"), (None, None, None, "no-reference"),
])  # fmt: skip
def test_what_a_score_says_beside_a_published_one(score, bounds, reference, said):
    assert result.judge(score, bounds, reference) == said


GPQA = "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n"
ALL = ["basic", "gpqa", "aime25", "mmlu", "gsm8k"]


@pytest.fixture
def folder(tmp_path):
    tiny_datasets(tmp_path)
    (tmp_path / "gpqa_diamond.csv").write_text(GPQA + '"two\nlines",1,2,3,4\nb,1,2,3,4\n')
    return tmp_path


def wrong(folder, names, checksums=None):
    caught = error(datasets.check_datasets, str(folder), names, checksums or {})
    assert caught.code == "evaluate.datasets-wrong"
    return caught.details["wrong"]


def test_questions_are_counted(folder):
    found = datasets.check_datasets(str(folder), ALL, {})
    counts = {name: sum(one["questions"].values()) for name, one in found.items()}
    assert counts == {"gpqa": 2, "aime25": 4, "mmlu": 12, "gsm8k": 1}
    assert not any(one["complete"] for one in found.values())
    for part in ("I", "II"):
        (folder / ("aime2025-%s.jsonl" % part)).write_text('{"question": "a", "answer": "7"}\n' * 15)
    assert datasets.check_datasets(str(folder), ["aime25"], {})["aime25"]["complete"]
    assert list(found["mmlu"]["questions"]) == ["mmlu/test/anatomy_test.csv", "mmlu/test/astronomy_test.csv"]


def test_a_dataset_is_known_by_all_of_its_files(folder):
    before = datasets.check_datasets(str(folder), ["aime25"], {})
    assert datasets.check_datasets(str(folder), ["aime25"], {}) == before
    (folder / "aime2025-II.jsonl").write_text('{"question": "b", "answer": "7"}\n')
    assert datasets.check_datasets(str(folder), ["aime25"], {})["aime25"]["sha256"] != before["aime25"]["sha256"]


def test_all_that_is_missing_is_said_at_once(tmp_path):
    found = wrong(tmp_path / "none", ALL)
    assert [text.partition(" ")[0] for text in found] == [
        "gpqa_diamond.csv", "aime2025-I.jsonl", "aime2025-II.jsonl", "mmlu/test/*_test.csv", "mmlu/dev/*_dev.csv",
        "gsm8k/test.jsonl", "gsm8k/train.jsonl",
    ]  # fmt: skip
    assert all(text.endswith("is missing") for text in found)


@pytest.mark.parametrize(("path", "text", "evals", "words"), [
    *((path, text, ALL, "%s (%s) has no rows" % (path, name)) for path, text, name in (
        ("gpqa_diamond.csv", GPQA, "gpqa"), ("gpqa_diamond.csv", "", "gpqa"), ("gsm8k/train.jsonl", "\n", "gsm8k"))),
    ("gpqa_diamond.csv", "x" * 200000, ["gpqa"],
     "gpqa_diamond.csv (gpqa) cannot be read: field larger than field limit (131072)"),
    (None, None, ["gpqa"], "gpqa_diamond.csv (gpqa) has the sha256 %(right)s, not %(wrong)s"),
    (None, None, ["hellaswag"], "hellaswag is not an evaluation; allowed: " + ", ".join(ALL)),
])  # fmt: skip
def test_wrong_files_and_an_unknown_evaluation_are_named(folder, path, text, evals, words):
    right = hashlib.sha256((folder / "gpqa_diamond.csv").read_bytes()).hexdigest()
    assert datasets.check_datasets(str(folder), ["gpqa"], {"gpqa_diamond.csv": right.upper(), "other": "x"})
    checksums = {} if path else {"gpqa_diamond.csv": "0" * 64}
    if path:
        (folder / path).write_text(text)
    assert wrong(folder, evals, checksums) == [words % {"right": right, "wrong": "0" * 64}]
