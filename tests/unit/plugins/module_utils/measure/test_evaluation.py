# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluations as jobs, with a shell script as the tool."""

from __future__ import annotations

import json
import pathlib
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import http_client
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.jobs import DetachedJob
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import evaluation

RECORDED = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "measure" / "evals"
GOOD = 'cp %s/basic-good/*.json* "$6"' % RECORDED
ENTRY = {
    "name": "server-0", "role": "server", "port": 8000, "bind": "127.0.0.1", "model_id": "m", "host": "h",
    "hash": "a" * 64, "platform": "cpu", "engine": "x", "devices": [0], "secrets": {},
}  # fmt: skip
LONG_S = 120


class Site:
    """A node with one planned server and a tool; `processes` is who answers, `tokens` its context."""

    def __init__(self, folder, monkeypatch):
        self.listed_as = "max_model_len"
        self.root, self.venv, self.processes, self.context = (
            folder / "root",
            folder / "venv",
            {"server-0": [1, 2]},
            4096,
        )
        monkeypatch.setattr(evaluation, "check_entries", lambda entries: {one["name"]: one for one in entries})
        monkeypatch.setattr(evaluation.Evaluation, "check", lambda one: self.processes)
        monkeypatch.setattr(evaluation.Evaluation, "processes", lambda one: self.processes)
        monkeypatch.setattr(evaluation.http_client, "request", lambda *_given, **_more: self.models())

    def models(self):
        listed = {"data": [{"id": "m", self.listed_as: self.context}]}
        return http_client.Response("GET", "/v1/models", 200, text=json.dumps(listed))

    def tool(self, script):
        program = self.venv / "bin" / "python"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\necho began >>%s\n%s\n" % (self.root.parent / "calls", script))
        program.chmod(0o755)
        return self

    def calls(self):
        path = self.root.parent / "calls"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def run(self, check_mode=False, **more):
        params = {
            "servers": [ENTRY], "eval": "basic", "effort": "low", "venv": str(self.venv), "tool_version": "1",
            "config": None, "datasets": None, "checksums": {}, "threads": 1, "max_tokens": 512, "shorten": False,
            "temperature": 1.0, "examples": None, "retries": 2, "budget_s": LONG_S, "wait_s": LONG_S, "refresh": False,
            "caller": "one", "command": None, "root": str(self.root), "manager": "supervisord",
            "toolkit": None, **more,
        }  # fmt: skip
        return evaluation.run(params, check_mode)

    def job(self):
        (folder,) = (self.root / "var/lib/inference-fleet/evaluations").glob("*/job")
        return DetachedJob(str(folder))


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def test_a_good_result_is_not_measured_again(site):
    site.tool(GOOD)
    first = site.run()
    assert first["changed"] and first["finished"] and first["measured"]["score"] == 100
    again = site.run()
    assert (again["changed"], again["finished"], site.calls()) == (False, True, 1)
    assert again["measured"] == first["measured"]
    other = site.run(refresh=True, caller="two")
    assert site.calls() == 2 and other["measured"]["id"] != first["measured"]["id"]


@pytest.mark.parametrize("more", [{"effort": "high"}, {"max_tokens": 600}, {"servers": [{**ENTRY, "hash": "b" * 64}]}])
def test_another_question_or_plan_is_measured(site, more):
    site.tool(GOOD)
    site.run()
    assert site.run(**more)["changed"]
    assert site.calls() == 2


def test_a_refused_request_is_kept_said_and_asked_again(site):
    site.tool('cp %s/basic-400/*.json* "$6"' % RECORDED)
    measured = site.run()["measured"]
    assert (measured["failed"], measured["score"]) == (1, None)
    site.tool(GOOD)
    assert site.run(caller="two")["measured"]["failed"] == 0


def test_a_tool_that_never_ends_is_ended(site):
    site.tool("exec sleep %d" % (10 * LONG_S))
    began = time.monotonic()
    measured = site.run(budget_s=1)["measured"]
    assert time.monotonic() - began < LONG_S
    assert measured["failed"] and "The time limit of 1 s ended it" in measured["errors"][0]["message"]


def test_a_tool_that_breaks_says_its_last_words(site):
    site.tool("echo no such option >&2; exit 2")
    (error,) = site.run()["measured"]["errors"]
    assert error["message"].endswith("Status 2: no such option")


def test_progress_is_told_while_it_runs(site):
    go = site.root.parent / "go"
    site.tool('echo \'{"asked": 8}\' >"$6"/answers.jsonl; echo {} >>"$6"/answers.jsonl; touch %s.began\n'
              "while ! [ -e %s ]; do sleep 0.05; done\n%s" % (go, go, GOOD))  # fmt: skip
    first = site.run(wait_s=0)
    assert (first["finished"], first["measured"]) == (False, None)
    end = time.monotonic() + LONG_S
    while not pathlib.Path("%s.began" % go).exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert site.run(wait_s=0)["progress"] == {"phase": "basic: 1 of 8 answers", "percent": 12}
    go.touch()
    assert site.run()["measured"]["score"] == 100
    assert site.calls() == 1


def test_a_killed_job_has_failed_and_the_next_play_runs_it_again(site):
    site.tool("exec sleep %d" % (10 * LONG_S))
    site.run(wait_s=0)
    job = site.job()
    job.stop()
    measured = site.run()["measured"]
    assert measured["failed"] and "was killed after 0 answers" in measured["errors"][0]["message"]
    site.tool(GOOD)
    assert site.run(caller="two")["measured"]["score"] == 100


def test_a_restarted_server_makes_it_void(site):
    site.tool(GOOD)
    site.run(wait_s=0)
    site.processes = {"server-0": [3, 4]}
    measured = site.run()["measured"]
    assert measured["void"] == "server-0 changed or restarted during the run"
    assert site.run(caller="two")["measured"]["void"] is None  # it does not count, so it is measured again


def test_the_key_is_in_no_file_and_no_argument(site):
    site.tool('echo "$OPENAI_API_KEY" >%s\necho "$@" >"$6"/arguments\n%s' % (site.root.parent / "seen", GOOD))
    secret = pathlib.Path(NodePaths(str(site.root)).secret(ENTRY["name"]))
    secret.parent.mkdir(parents=True)
    secret.write_text('{"VLLM_API_KEY": "sk-very-secret-1"}')
    result = site.run(servers=[{**ENTRY, "secrets": {"VLLM_API_KEY": "fleet_api_key"}}])
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
    with pytest.raises(FleetError) as caught:
        site.run(max_tokens=4000)
    assert (caught.value.code, caught.value.values) == ("evaluate.context-too-short", ("basic", 4000, 4096, 3072))
    assert site.calls() == 0
    site.run(max_tokens=4000, shorten=True)
    assert "3072" in site.job().request()["command"]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"eval": "gpqa"}, "evaluate.datasets-wrong"),
        ({"eval": "hellaswag"}, "evaluate.eval-unknown"),
        ({"servers": []}, "measure.no-server"),
        ({"servers": [{**ENTRY, "role": "prefill"}]}, "measure.no-server"),
        ({"command": {"argv": ["x", "${address}"], "files": [], "metrics": {}}}, "evaluate.command-invalid"),
    ],
)
def test_what_cannot_be_asked_is_an_error_before_a_request(site, more, code):
    site.tool(GOOD)
    with pytest.raises(FleetError) as caught:
        site.run(**more)
    assert caught.value.code == code and site.calls() == 0


def test_check_mode_asks_nothing(site):
    assert site.run(check_mode=True)["changed"]  # the environment is what a task before would make
    site.tool(GOOD)
    assert site.run(check_mode=True)["changed"] and site.calls() == 0
    site.run()
    assert not site.run(check_mode=True)["changed"]


@pytest.mark.parametrize(("failed", "score"), [(0, 75), (4, 50)])
def test_a_command_of_a_recipe_is_an_evaluation(site, failed, score):
    program = site.root.parent / "tiny"
    program.write_text('#!/bin/sh\necho "{\\"right\\": $3, \\"all\\": 40, \\"lost\\": $4}" >"$2/$1.json"\n')
    program.chmod(0o755)
    command = {
        "argv": [str(program), "${effort}", "${output}", str(score), str(failed)],
        "files": ["low.json"],
        "metrics": {"score": "right", "questions": "all", "failed": "lost"},
    }
    measured = site.run(eval="mine", command=command)["measured"]
    assert (measured["score"], measured["failed"], measured["ok"]) == (score, failed, not failed)
    assert (measured["tool"]["name"], measured["questions"], measured["answered"]) == ("command:mine", 40, 40 - failed)
    assert measured["interval"][0] < score < measured["interval"][1]
    program.write_text("#!/bin/sh\n")
    measured = site.run(eval="mine", command=command, caller="two", refresh=True)["measured"]
    assert measured["score"] is None and measured["failed"] == 1
