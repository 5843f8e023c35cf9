# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Datasets of evaluations: all that is missing or wrong is one error."""

from __future__ import annotations

import hashlib

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import evaluation as datasets

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
        datasets.check_datasets(str(folder), names, checksums or {})
    assert caught.value.code == "evaluate.datasets-wrong"
    return caught.value.details["wrong"]


def test_questions_are_counted(folder):
    found = datasets.check_datasets(str(folder), ALL, {})
    counts = {name: sum(one["questions"].values()) for name, one in found.items()}
    assert counts == {"gpqa": 2, "aime25": 6, "mmlu": 10, "gsm8k": 2}
    assert list(found["mmlu"]["questions"]) == ["mmlu/test/anatomy_test.csv", "mmlu/test/high_school_physics_test.csv"]


def test_a_dataset_is_known_by_all_of_its_files(folder):
    before = datasets.check_datasets(str(folder), ["aime25"], {})["aime25"]["sha256"]
    assert datasets.check_datasets(str(folder), ["aime25"], {})["aime25"]["sha256"] == before
    (folder / "aime2025-II.jsonl").write_text('{"question": "b", "answer": "7"}\n')
    assert datasets.check_datasets(str(folder), ["aime25"], {})["aime25"]["sha256"] != before


def test_all_that_is_missing_is_said_at_once(tmp_path):
    found = wrong(tmp_path / "none", ALL)
    assert [text.partition(" ")[0] for text in found] == [
        "gpqa_diamond.csv", "aime2025-I.jsonl", "aime2025-II.jsonl", "mmlu/test/*_test.csv", "mmlu/dev/*_dev.csv",
        "gsm8k/test.jsonl", "gsm8k/train.jsonl",
    ]  # fmt: skip
    assert all(text.endswith("is missing") for text in found)


@pytest.mark.parametrize(
    ("path", "text"), [("gpqa_diamond.csv", GPQA), ("gpqa_diamond.csv", ""), ("gsm8k/train.jsonl", "\n")]
)
def test_a_file_without_questions_is_wrong(folder, path, text):
    (folder / path).write_text(text)
    (one,) = wrong(folder, ALL)
    assert one.startswith(path + " (") and one.endswith(") has no rows")


def test_another_checksum_is_said(folder):
    right = hashlib.sha256((folder / "gpqa_diamond.csv").read_bytes()).hexdigest()
    assert datasets.check_datasets(str(folder), ["gpqa"], {"gpqa_diamond.csv": right.upper(), "other": "x"})
    assert wrong(folder, ["gpqa"], {"gpqa_diamond.csv": "0" * 64}) == [
        "gpqa_diamond.csv (gpqa) has the sha256 %s, not %s" % (right, "0" * 64)
    ]


def test_an_unknown_evaluation_is_refused(folder):
    (one,) = wrong(folder, ["hellaswag"])
    assert one.startswith("hellaswag is not an evaluation")
