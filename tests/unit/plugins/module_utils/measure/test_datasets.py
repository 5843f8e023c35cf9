# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Datasets of evaluations: all that is missing or wrong is one error."""

from __future__ import annotations

import hashlib

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import datasets

GPQA = "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n"
GSM8K = '{"question": "a", "answer": "1,000 and 200 more\\n#### 1,200"}\n'
ALL = ["basic", "gpqa", "aime25", "mmlu", "gsm8k"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "gpqa_diamond.csv").write_text(GPQA + '"two\nlines",1,2,3,4\nb,1,2,3,4\n')
    for part in ("I", "II"):
        (tmp_path / ("aime2025-%s.jsonl" % part)).write_text('{"question": "a", "answer": "7"}\n' * 3)
    for split in ("dev", "test"):
        (tmp_path / "mmlu" / split).mkdir(parents=True)
        for subject in ("anatomy", "high_school_physics"):
            (tmp_path / "mmlu" / split / ("%s_%s.csv" % (subject, split))).write_text("q,1,2,3,4,B\n" * 5)
    (tmp_path / "gsm8k").mkdir()
    for split, count in (("train", 3), ("test", 2)):
        (tmp_path / "gsm8k" / (split + ".jsonl")).write_text(GSM8K * count)
    return tmp_path


def wrong(folder, names, checksums=None):
    with pytest.raises(FleetError) as caught:
        datasets.look(str(folder), names, checksums or {})
    assert caught.value.code == "evaluate.datasets-wrong"
    return caught.value.details["wrong"]


def test_questions_are_counted(folder):
    found = datasets.look(str(folder), ALL, {})
    assert {name: one["questions"] for name, one in found.items()} == {"gpqa": 2, "aime25": 6, "mmlu": 10, "gsm8k": 2}
    assert len(found["mmlu"]["files"]) == 4


def test_a_dataset_is_known_by_all_of_its_files(folder):
    before = datasets.look(str(folder), ["aime25"], {})["aime25"]["sha256"]
    assert datasets.look(str(folder), ["aime25"], {})["aime25"]["sha256"] == before
    (folder / "aime2025-II.jsonl").write_text('{"question": "b", "answer": "7"}\n')
    assert datasets.look(str(folder), ["aime25"], {})["aime25"]["sha256"] != before


def test_all_that_is_missing_is_said_at_once(tmp_path):
    found = wrong(tmp_path / "none", ALL)
    assert [text.partition(" ")[0] for text in found] == [
        "gpqa_diamond.csv", "aime2025-I.jsonl", "aime2025-II.jsonl", "mmlu/dev/abstract_algebra_dev.csv",
        "mmlu/test/abstract_algebra_test.csv", "gsm8k/test.jsonl", "gsm8k/train.jsonl",
    ]  # fmt: skip
    assert all(text.endswith("is missing") for text in found)


def test_a_subject_needs_both_files(folder):
    (folder / "mmlu" / "dev" / "anatomy_dev.csv").unlink()
    assert wrong(folder, ["mmlu"]) == ["mmlu/dev/anatomy_dev.csv (mmlu) is missing"]


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("gpqa_diamond.csv", "Question,Correct Answer\na,b\n", "has no 'Incorrect Answer 1', 'Incorrect Answer 2', "
         "'Incorrect Answer 3' in row 1"),
        ("gpqa_diamond.csv", GPQA, "has no rows"),
        ("gpqa_diamond.csv", "", "has no rows"),
        ("gpqa_diamond.csv", GPQA + "a,b,c,d,e\na,b,c,d,\n", "has no 'Incorrect Answer 3' in row 2"),
        ("aime2025-I.jsonl", "<html>", "cannot be read: Expecting value: line 1 column 1 (char 0)"),
        ("aime2025-I.jsonl", "[1]\n", "has no 'question', 'answer' in row 1"),
        ("mmlu/test/anatomy_test.csv", "question,A,B,C,D,answer\n", "has in row 1 no question, four options and the "
         "letter of one (it has no header)"),
        ("gsm8k/test.jsonl", GSM8K + '{"question": "a", "answer": "1200"}\n', "has in row 2 no question, or no answer "
         "that ends with #### and a whole number"),
        ("gsm8k/train.jsonl", "", "has no rows"),
        ("gsm8k/train.jsonl", GSM8K + "\n", "cannot be read: Expecting value: line 2 column 1 (char 1)"),
    ],
)  # fmt: skip
def test_a_file_of_another_form_is_said(folder, path, text, said):
    (folder / path).write_text(text)
    (one,) = wrong(folder, ALL)
    assert one.startswith(path + " (") and one.endswith(") " + said)


def test_another_checksum_is_said(folder):
    right = hashlib.sha256((folder / "gpqa_diamond.csv").read_bytes()).hexdigest()
    assert datasets.look(str(folder), ["gpqa"], {"gpqa_diamond.csv": right.upper(), "other": "x"})
    assert wrong(folder, ["gpqa"], {"gpqa_diamond.csv": "0" * 64}) == [
        "gpqa_diamond.csv (gpqa) has the sha256 %s, not %s" % (right, "0" * 64)
    ]


def test_an_unknown_evaluation_is_refused(folder):
    with pytest.raises(FleetError) as caught:
        datasets.look(str(folder), ["hellaswag"], {})
    assert caught.value.code == "evaluate.eval-unknown"
