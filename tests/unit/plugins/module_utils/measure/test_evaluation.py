# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluations as jobs, with a shell script as the tool."""

from __future__ import annotations

import json
import pathlib
import sys
import time
import types

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import http_client, redact
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.jobs import DetachedJob
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import evaluation, gpt_oss_evals_worker
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.points import evaluation_tool
from ansible_collections.inference.fleet.tests.runs import wait_for
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.engines.tiny_datasets import tiny_datasets
from ansible_collections.inference.fleet.tests.unit.node_helpers import script

RECORDED = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "measure" / "evals"
GOOD = 'cp %s/basic-good/*.json* "$OUT"' % RECORDED
ENTRY = {
    "name": "server-0", "role": "server", "port": 8000, "bind": "127.0.0.1", "model_id": "m", "host": "h",
    "hash": "a" * 64, "platform": "cpu", "engine": "x", "devices": [0], "secrets": {},
}  # fmt: skip
LONG_S = 120


class Site:
    """A node with one planned server and a tool; `processes` is who answers, `tokens` its context."""

    def __init__(self, folder, monkeypatch):
        self.listed_as, self.context, self.processes = "max_model_len", 4096, {"server-0": [1, 2]}
        self.root, self.venv = folder / "root", folder / "venv"
        monkeypatch.setattr(evaluation, "check_entries", lambda entries: {one["name"]: one for one in entries})
        monkeypatch.setattr(evaluation.Evaluation, "check", lambda one: self.processes)
        monkeypatch.setattr(evaluation.Evaluation, "processes", lambda one: self.processes)
        monkeypatch.setattr(evaluation.http_client, "request", lambda *_given, **_more: self.models())

    def models(self):
        listed = {"data": [{"id": "m", self.listed_as: self.context}]}
        return http_client.Response("GET", "/v1/models", 200, text=json.dumps(listed))

    def tool(self, text):
        (self.venv / "bin").mkdir(parents=True, exist_ok=True)
        # the folder is that of the values
        script(self.venv / "bin" / "python", "OUT=$(pwd)\necho began >>%s\n%s\n" % (self.root.parent / "calls", text))
        return self

    def calls(self):
        path = self.root.parent / "calls"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def run(self, check_mode=False, **more):
        more["command"] = evaluation_tool(more.get("eval", "basic"), more.get("command"))
        params = {
            "servers": [ENTRY], "eval": "basic", "effort": "low", "venv": str(self.venv), "tool_version": "1",
            "datasets": None, "checksums": {}, "concurrency": 1, "max_tokens": 512, "shorten": False,
            "temperature": 1.0, "examples": None, "retries": 2, "budget_s": LONG_S, "wait_s": LONG_S, "refresh": False,
            "caller": "one", "head": {"host": "h", "versions": {"tool": "1", "engine": None}}, "root": str(self.root),
            "manager": "supervisord", "toolkit": None, **more,
        }  # fmt: skip
        return evaluation.run(params, check_mode)

    def job(self):
        (folder,) = (self.root / "var/lib/inference-fleet/evaluations").glob("*/job")
        return DetachedJob(str(folder))


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


@pytest.mark.parametrize("more", [{"effort": "high"}, {"max_tokens": 600}, {"servers": [{**ENTRY, "hash": "b" * 64}]}])
def test_another_question_or_plan_is_measured(site, more):
    site.tool(GOOD)
    assert site.run()["document"]["score"] == 100
    assert (site.run()["changed"], site.calls()) == (False, 1)
    assert (site.run(**more)["changed"], site.calls()) == (True, 2)


@pytest.mark.parametrize(
    ("text", "budget_s", "words"),
    [("exec sleep %d" % (10 * LONG_S), 1, "The time limit of 1 s ended it"),
     ("echo no such option >&2; exit 2", LONG_S, "Status 2: no such option")],
    ids=["it never ends", "it breaks"],
)  # fmt: skip
def test_a_tool_that_fails_says_how_and_the_next_play_runs_it_again(site, text, budget_s, words):
    site.tool(text)
    measured = site.run(budget_s=budget_s)["document"]
    assert measured["failed"] and words in measured["errors"][0]["message"]
    site.tool(GOOD)
    assert site.run(caller="two")["document"]["score"] == 100


def test_progress_is_read_from_the_log(site):
    go = site.root.parent / "began"
    site.tool("echo ' 12%%|# | 1/8 [00:01<00:07'; touch %s; exec sleep 600" % go)
    site.run(wait_s=0)
    wait_for(go.exists, LONG_S, "the tool")
    assert site.run(wait_s=0)["progress"] == {"phase": "basic: 1 of 8 answers", "percent": 12}
    site.job().stop()
    assert site.run()["document"]["errors"] == [{"message": "The evaluation was killed.", "count": 1}]


@pytest.fixture
def keyed(site):
    """The servers of the node, which require a key."""
    secret = pathlib.Path(NodePaths(str(site.root)).secret(ENTRY["name"]))
    secret.parent.mkdir(parents=True)
    secret.write_text('{"VLLM_API_KEY": "sk-very-secret-1"}')
    return [{**ENTRY, "secrets": {"VLLM_API_KEY": "fleet_api_key"}}]


def test_the_key_is_in_no_file_and_no_argument(site, keyed):
    site.tool('echo "$OPENAI_API_KEY" >%s\necho "$@" >"$OUT"/arguments\n%s' % (site.root.parent / "seen", GOOD))
    result = site.run(servers=keyed)
    assert (site.root.parent / "seen").read_text() == "sk-very-secret-1\n"
    assert "sk-very-secret-1" not in json.dumps(result)
    folder = pathlib.Path(site.job().folder)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent / "output")] == [0o700, 0o700]
    for path in folder.parent.rglob("*"):
        assert path.is_dir() or b"sk-very-secret-1" not in path.read_bytes(), path


@pytest.mark.parametrize("key", ["max_model_len", "context_window"])
def test_answers_longer_than_the_context_are_an_error_before_a_request(site, key):
    site.listed_as = key
    site.tool(GOOD)
    caught = error(site.run, max_tokens=4000)
    assert (caught.code, caught.values) == ("evaluate.context-too-short", ("basic", 4000, 4096, 3072))
    assert site.calls() == 0
    site.tool('echo "$FLEET_VALUES" >%s\n%s' % (site.root.parent / "seen", GOOD))
    site.run(max_tokens=4000, shorten=True)
    assert json.loads((site.root.parent / "seen").read_text())["max_tokens"] == 3072


def test_a_wrong_dataset_is_an_error_before_a_request(site):
    site.tool(GOOD)
    assert error(site.run, eval="gpqa").code == "evaluate.datasets-wrong" and site.calls() == 0


@pytest.mark.parametrize(
    ("name", "command", "value"),
    [("hellaswag", None, '"hellaswag"'), ("x", {"argv": ["x", "${address}"]}, '"${address}"')],
)
def test_tools_of_evaluations_are_known(name, command, value):
    caught = error(evaluation_tool, name, command)
    assert caught.code == "measure.profile-invalid" and caught.values[2] == value


def test_check_mode_asks_nothing(site):
    assert site.run(check_mode=True)["changed"]  # the environment is what a task before would make
    site.tool(GOOD)
    assert site.run(check_mode=True)["changed"] and site.calls() == 0


ENDLESS = 'echo "{\\"right\\": 91, \\"all\\": 3}" >"$1/low.json"; exec sleep 600\n'


@pytest.mark.parametrize(("given", "score", "failed"), [
    ((75, 40, 0), 75, 0), ((50, 40, 4), 50, 4),
    # without a valid score, and ended early
    *((given, None, 1) for given in ("", ENDLESS, (101, 3, 0), (-1, 3, 0), (50, 0.5, 0), (50, 3, 4), (50, 3, -1))),
])  # fmt: skip
def test_a_command_of_a_recipe_is_an_evaluation(site, given, score, failed):
    text = given
    if isinstance(given, tuple):
        text = "echo '%s' >\"$1/$2.json\"\n" % json.dumps(dict(zip(("right", "all", "lost"), given)))
    command = {
        "argv": [script(site.root.parent / "tiny", text), "${output}", "${effort}"], "files": ["low.json"],
        "metrics": {"score": "right", "questions": "all", "failed": "lost"},
    }  # fmt: skip
    budget_s = 2 if text == ENDLESS else LONG_S
    measured = site.run(eval="mine", command=command, budget_s=budget_s)["document"]
    assert (measured["score"], measured["failed"], measured["ok"]) == (score, failed, not failed)
    assert measured["tool"]["name"] == "command:mine"
    if score:
        assert (measured["questions"], measured["answered"]) == (40, 40 - failed)
        assert measured["interval"][0] < score < measured["interval"][1]


def test_the_key_is_masked_by_the_call_that_collects_the_result(site, keyed):
    site.tool('echo "$OPENAI_API_KEY" is refused >&2; exit 2')
    site.run(servers=keyed, wait_s=0)
    redact.read_on_node.clear()  # of another process
    assert site.run(servers=keyed)["finished"]
    assert "sk-very-secret-1" in redact.read_on_node


def test_no_more_questions_are_asked_than_there_are_and_few_are_not_the_published_ones(site):
    datasets = tiny_datasets(site.root.parent / "data")
    site.tool('echo "$FLEET_VALUES" >%s\n' % (site.root.parent / "seen"))
    found = site.run(eval="aime25", datasets=str(datasets), examples=20)
    assert json.loads((site.root.parent / "seen").read_text())["examples"] == 4
    assert found["complete"] is False and site.run()["complete"] is True


class Sampler:
    """As that of gpt_oss.evals 0.0.9: adds the reasoning to the messages, and asks again after an empty answer."""

    def __init__(self, contents, max_tokens):
        self.client, self.contents, self.asked = types.SimpleNamespace(base_url="u"), list(contents), []

    def __call__(self, messages):
        while True:
            self.asked.append([one["content"] for one in messages])
            messages.append({"role": "assistant", "content": "reasoning"})
            content = self.contents.pop(0)
            try:
                if not content:
                    raise ValueError("empty")
                return content
            except ValueError:
                time.sleep(1)


def test_reasoning_is_neither_asked_again_nor_kept(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "time", types.SimpleNamespace(sleep=lambda _seconds: None))
    values = {"urls": ["v"], "max_tokens": 9, "retries": 3}
    sampler = gpt_oss_evals_worker._sampler(Sampler, types.SimpleNamespace, values)(contents=["", "A", "", "", ""])
    messages = [{"role": "user", "content": "q"}]
    assert sampler(messages) == "A" and sampler.asked == [["q"], ["q"]]
    assert sampler(messages).response_text == "No response (ValueError after 3 trials: empty)."
    assert [one["content"] for one in messages] == ["q"]


def read(case, name="gpqa"):
    return evaluation.evals_numbers(str(RECORDED / case), name, {})


def test_repeats_of_gpt_oss_evals_are_counted_by_question():
    found = read("gpqa-good")
    assert (found["questions"], found["answered"], found["correct"], found["failed"]) == (3, 24, 4, 0)
    assert found["score"] == pytest.approx(100 * 4 / 24)
    assert found["interval"][0] < found["score"] < found["interval"][1]
    assert read("aime-good", "aime25")["questions"] == 2


@pytest.mark.parametrize(("case", "name", "count", "message"), [
    ("basic-400", "basic", 1, "bad request"),  # the tool's score is 1.0
    ("gpqa-404", "gpqa", 2, "NotFoundError after 2 trials: Error code: 404 - The model does not exist"),
])  # fmt: skip
def test_a_failed_request_is_no_wrong_answer(case, name, count, message):
    found = read(case, name)
    assert (found["failed"], found["answered"], found["correct"], found["score"]) == (count, 0, 0, None)
    assert found["errors"] == [{"message": "No response (%s)." % message, "count": count}]


def test_files_of_another_form_are_errors(tmp_path):
    for text in ("", "[]", '{"convos": [[]], "htmls": [""]}'):
        (tmp_path / "gpqa_x_allresults.json").write_text(text)
        with pytest.raises(evaluation.UNREADABLE):
            evaluation.evals_numbers(str(tmp_path), "gpqa", {})


ANATOMY, ASTRONOMY, GSM8K = "mmlu/test/anatomy_test.csv", "mmlu/test/astronomy_test.csv", "gsm8k/test.jsonl"
ASKED = {ANATOMY: 6, ASTRONOMY: 6}
LOST = "There is neither an answer nor an error."


def aisbench(case, asked=None):
    return evaluation.aisbench_numbers(str(RECORDED / "aisbench" / case), "mmlu", asked or ASKED)


@pytest.mark.parametrize(("case", "asked", "answered"), [("good", ASKED, 12), ("gsm8k", {GSM8K: 4}, 4)])
def test_answers_of_aisbench(case, asked, answered):
    found = aisbench(case, asked)
    assert (found["score"], found["answered"], found["correct"]) == (50.0, answered, answered / 2)
    assert found["failed"] == 0 and found["interval"][0] < 50 < found["interval"][1]


@pytest.mark.parametrize(("case", "asked", "errors"), [
    ("refused", {ANATOMY: 1}, {"Not Found": 1}), ("refused", {ANATOMY: 3}, {"Not Found": 1, LOST: 2}),
    ("good", {ANATOMY: 8, ASTRONOMY: 6}, {LOST: 2}), ("gsm8k", {GSM8K: 6}, {LOST: 2}),
    ("ungraded", ASKED, {"The answers were not graded.": 12}),
])  # fmt: skip
def test_questions_that_aisbench_does_not_answer_have_failed(case, asked, errors):
    found = aisbench(case, asked)
    assert {one["message"]: one["count"] for one in found["errors"]} == errors
    assert found["failed"] == sum(errors.values())
    assert found["answered"] + found["failed"] == sum(asked.values())


@pytest.mark.parametrize("text", ["", "all of it was reasoning</think>", "all of it was reasoning</think> \n"])
def test_an_empty_answer_to_aisbench_has_failed(tmp_path, text):
    folder = tmp_path / "20261122_120000" / "predictions" / "fleet"
    folder.mkdir(parents=True)
    (folder / "lukaemon_mmlu_anatomy.jsonl").write_text(json.dumps({"success": True, "prediction": text}) + "\n")
    found = evaluation.aisbench_numbers(str(tmp_path), "mmlu", {ANATOMY: 1})
    assert found["errors"] == [{"message": "The answer was empty.", "count": 1}]
    with pytest.raises(ValueError):
        evaluation.aisbench_numbers(str(tmp_path / "none"), "mmlu", {})


def test_a_killed_run_of_aisbench_continues(site):
    datasets = tiny_datasets(site.root.parent / "data")
    site.tool("")
    tool = script(site.venv / "bin" / "ais_bench", "mkdir 20261122_120000; touch %s; exec sleep 600"
                  % (site.root.parent / "began"))  # fmt: skip
    (site.venv.parent / "venv-accuracy.py").touch()
    more = {"eval": "mmlu", "datasets": str(datasets), "examples": 3}
    site.run(wait_s=0, **more)
    config = str(site.venv) + "-accuracy.py"
    command = [tool, config, "--mode", "all", "--dump-eval-details", "--merge-ds", "--num-prompts", "3"]
    wait_for((site.root.parent / "began").exists, LONG_S, "the tool")
    assert site.job().request()["command"] == command
    site.job().stop()
    assert site.run(**more)["document"]["failed"] == 6
    site.run(caller="two", wait_s=0, **more)
    assert site.job().request()["command"] == [*command, "--reuse", "20261122_120000"]
    site.job().stop()
