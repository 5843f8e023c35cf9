# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the evaluation tools leave, by files that they wrote: they end with status 0 in all of these cases."""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import aisbench, gpt_oss_evals

RECORDED = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "measure" / "evals"
GAVE_UP = "No response (%s)."


def read(case, name="gpqa"):
    return gpt_oss_evals.read(None, str(RECORDED / case), name)


def test_repeats_are_counted_by_question():
    found = read("gpqa-good")
    assert (found["questions"], found["asked"], found["answered"], found["correct"], found["failed"]) == (
        3,
        24,
        24,
        4,
        0,
    )
    assert found["score"] == pytest.approx(100 * 4 / 24)
    assert found["interval"][0] < found["score"] < found["interval"][1]
    assert read("basic-good", "basic")["score"] == 100
    assert read("aime-good", "aime25")["questions"] == 2


@pytest.mark.parametrize(
    ("case", "name", "count", "message"),
    [
        ("gpqa-400", "gpqa", 2, GAVE_UP % "bad request"),
        ("basic-400", "basic", 1, GAVE_UP % "bad request"),  # the tool's own score is 1.0
        ("gpqa-404", "gpqa", 2, GAVE_UP % "NotFoundError after 2 trials: Error code: 404 - The model does not exist"),
        ("gpqa-empty", "gpqa", 2,
         GAVE_UP % "ValueError after 2 trials: OpenAI API returned empty response; retrying"),
        ("basic-dead", "basic", 1, GAVE_UP % "APIConnectionError after 2 trials: Connection error"),
    ],
)  # fmt: skip
def test_a_request_that_failed_is_no_wrong_answer(case, name, count, message):
    found = read(case, name)
    assert (found["failed"], found["answered"], found["correct"], found["score"]) == (count, 0, 0, None)
    assert found["errors"] == [{"message": message, "count": count}]


def test_failures_beside_answers_are_counted_apart():
    found = gpt_oss_evals.counted([("a", 1, None), ("a", 0, "No response (x)."), ("b", 0, None), ("b", 1, None)])
    assert (found["score"], found["answered"], found["failed"], found["questions"]) == (200 / 3, 3, 1, 2)


def test_without_a_result_the_answers_that_came_are_said(tmp_path):
    shutil.copy(RECORDED / "gpqa-good" / "answers.jsonl", tmp_path)
    assert gpt_oss_evals.progress(str(tmp_path)) == (24, 24)
    with pytest.raises(ValueError) as caught:
        gpt_oss_evals.read(None, str(tmp_path), "gpqa")
    assert str(caught.value) == "gpt_oss.evals left no result after 24 answers"
    (tmp_path / "gpqa_x_allresults.json").write_text('{"convos": [[]], "htmls": [""]}')
    with pytest.raises(ValueError):
        gpt_oss_evals.read(None, str(tmp_path), "gpqa")


SETTINGS = {
    "eval": "gpqa", "effort": "low", "model": "m", "urls": ["http://a:1/v1", "http://a:2/v1"], "datasets": "/d",
    "folder": "/f", "threads": 4, "max_tokens": 512, "temperature": 1.0, "examples": None, "retries": 4,
}  # fmt: skip


def test_the_command_of_gpt_oss_evals():
    argv = gpt_oss_evals.command("/v/bin/python", ["/p", "work", "x"], SETTINGS)
    assert argv[:5] == ["/v/bin/python", "-I", "/p", "work", "x"]
    assert argv[5:11] == ["/d", "/f", "http://a:1/v1,http://a:2/v1", "512", "4", "0"]
    assert " ".join(argv[11:]) == (
        "--sampler chat_completions --base-url http://a:1/v1 --eval gpqa --model m --reasoning-effort low "
        "--temperature 1 --n-threads 4"
    )


ASKED = {"anatomy": 6, "astronomy": 6}


@pytest.fixture
def aisbench_read(tmp_path):
    def read(case, asked=None, name="mmlu"):
        (tmp_path / "given.json").write_text(json.dumps({"asked": asked or ASKED}))
        folder = RECORDED / "aisbench" / case if isinstance(case, str) else case
        return aisbench.read(str(tmp_path), str(folder), name)

    return read


def test_aisbench_scores_each_subject_alike(aisbench_read):
    found = aisbench_read("good")
    assert (found["score"], found["answered"], found["correct"], found["failed"]) == (50.0, 12, 6, 0)
    assert found["interval"][0] < 50 < found["interval"][1]
    assert aisbench.progress(str(RECORDED / "aisbench" / "good")) == (12, None)


def test_gsm8k_of_aisbench_is_one_dataset(tmp_path, aisbench_read):
    found = aisbench_read("gsm8k", {"gsm8k": 4})
    assert (found["score"], found["answered"], found["correct"], found["failed"]) == (50.0, 4, 2, 0)
    assert found["whole"] and not aisbench_read("good")["whole"]
    assert aisbench_read("gsm8k", {"gsm8k": 6})["failed"] == 2
    assert aisbench.progress(str(RECORDED / "aisbench" / "gsm8k")) == (4, None)
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").write_text('{"question": "a", "answer": "#### 7"}\n' * 5)
    assert aisbench.questions(str(tmp_path), "gsm8k", aisbench.subjects_of("gsm8k", {}), 3) == {"gsm8k": 3}
    assert (
        aisbench.given({**SETTINGS, "eval": "gsm8k", "host": "h", "port": 1, "subjects": ["gsm8k"]})["eval"] == "gsm8k"
    )


@pytest.mark.parametrize(
    ("case", "asked", "errors"),
    [
        ("refused", {"anatomy": 1}, {"Not Found": 1}),
        ("refused", {"anatomy": 3}, {"Not Found": 1, "There is neither an answer nor an error.": 2}),
        ("good", {**ASKED, "virology": 5}, {"There is neither an answer nor an error.": 5}),
        ("good", {"anatomy": 8}, {"There is neither an answer nor an error.": 2}),
        ("ungraded", ASKED, {"The answers were not graded.": 12}),
    ],
)
def test_what_aisbench_does_not_answer_has_failed(aisbench_read, case, asked, errors):
    found = aisbench_read(case, asked)
    assert {one["message"]: one["count"] for one in found["errors"]} == errors
    assert found["failed"] == sum(errors.values())
    assert found["answered"] + found["failed"] == sum(asked.values())


@pytest.mark.parametrize("text", ["", "all of it was reasoning</think>", "all of it was reasoning</think> \n"])
def test_an_empty_answer_to_aisbench_has_failed(tmp_path, aisbench_read, text):
    run = tmp_path / "20261122_120000"
    (run / "predictions" / "fleet").mkdir(parents=True)
    line = '{"id": 0, "success": true, "prediction": %s}\n' % ('"%s"' % text.replace("\n", "\\n"))
    (run / "predictions" / "fleet" / "lukaemon_mmlu_anatomy.jsonl").write_text(line)
    found = aisbench_read(tmp_path, {"anatomy": 1})
    assert found["errors"] == [{"message": "The answer was empty.", "count": 1}]


def test_aisbench_that_did_not_begin_is_an_error(tmp_path, aisbench_read):
    with pytest.raises(ValueError):
        aisbench_read(tmp_path)


def test_a_killed_run_of_aisbench_is_continued(tmp_path):
    settings = {**SETTINGS, "folder": str(tmp_path), "examples": 3}
    argv = aisbench.command("/v/bin/python", "/c.py", settings)
    assert argv == [
        "/v/bin/ais_bench", "/c.py", "--mode", "all", "--dump-eval-details", "--merge-ds", "--num-prompts", "3"
    ]  # fmt: skip
    for name in ("20261122_115959", "20261122_120000", "configs_old"):
        (tmp_path / name).mkdir()
    assert aisbench.command("/v/bin/python", "/c.py", settings)[-2:] == ["--reuse", "20261122_120000"]
