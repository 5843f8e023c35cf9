# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluations: a tool or a program of the recipe asks the servers of a node, and its answers are counted.

plugin_utils/measure/tools.json describes the tools; functions that count their answers are here. gpt_oss.evals counts a
refused request as a wrong answer, and AISBench ends with status 0 if all requests failed.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import os
import re

from ..errors import FleetError
from ..host import files, http_client
from ..host.server_spec import check_entries
from ..host.values import dig, items_of
from ..servers.model import Node
from ..verify.probes import listed_context
from . import result
from .run import LONGEST, TIMED_OUT, UNREADABLE, Run
from .tools import reading

# {evaluation: {files below the folder of datasets: whether they are its questions}}
FILES = {
    "basic": {},
    "gpqa": {"gpqa_diamond.csv": True},
    "aime25": {"aime2025-I.jsonl": True, "aime2025-II.jsonl": True},
    "mmlu": {"mmlu/test/*_test.csv": True, "mmlu/dev/*_dev.csv": False},
    "gsm8k": {"gsm8k/test.jsonl": True, "gsm8k/train.jsonl": False},
}
# Questions of a complete dataset. A score of fewer is not comparable with a published one.
QUESTIONS = {"gpqa": 198, "aime25": 30, "mmlu": 14042, "gsm8k": 1319}
PROMPT_TOKENS = 1024  # of the longest question of a dataset, with the chat template
REFUSED = "No response"  # how the answer of a failed request begins, the tool's own and the worker's
SCORE = re.compile(r"<p>Score: ([0-9.]+)</p>")
OPTIONS = re.compile(r"\n\n\(A\) ")  # the options that follow have a different order in each repeat


# -- datasets, which are checked before a request is sent; without them the tools fail in between ----------------------


def check_datasets(folder, names, checksums):
    """{name: {questions: {path: number of rows}, sha256, complete}} of the datasets of these evaluations, without those
    that have none.

    folder: of all datasets; checksums: {path below it: sha256}, as far as they are known. sha256 is that of the
    checksums of all files of the dataset; complete: whether it has the number of questions of the published dataset.
    Raises FleetError with all missing and wrong files.
    """
    found, wrong = {}, []
    for name in dict.fromkeys(names):
        sums, questions = {}, {}
        if name not in FILES:
            wrong.append("%s is not an evaluation; allowed: %s" % (name, ", ".join(FILES)))
        for pattern, asked in FILES.get(name, {}).items():
            paths = sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))
            wrong += [] if paths else ["%s (%s) is missing" % (pattern, name)]
            for path in paths:
                below = os.path.relpath(path, folder)
                try:
                    rows, sums[below] = _rows(path), files.sha256_file(path)
                except (OSError, ValueError, csv.Error) as error:
                    wrong.append("%s (%s) cannot be read: %s" % (below, name, error))
                    continue
                wanted = checksums.get(below)
                if wanted and wanted.lower() != sums[below]:
                    wrong.append("%s (%s) has the sha256 %s, not %s" % (below, name, sums[below], wanted))
                elif not rows:
                    wrong.append("%s (%s) has no rows" % (below, name))
                if asked:
                    questions[below] = rows
        if FILES.get(name):
            listed = "".join("%s  %s\n" % (sums[path], path) for path in sorted(sums))
            found[name] = {
                "questions": questions,
                "sha256": hashlib.sha256(listed.encode()).hexdigest(),
                "complete": sum(questions.values()) == QUESTIONS[name],
            }
    if wrong:
        raise FleetError("evaluate.datasets-wrong", len(wrong), folder, "; ".join(wrong[:10]), details={"wrong": wrong})
    return found


def _rows(path):
    """The number of questions. The CSV files of MMLU have no header."""
    with open(path, encoding="utf-8", newline="") as stream:
        if not path.endswith(".csv"):
            return sum(1 for line in stream if line.strip())
        rows = sum(1 for _row in csv.reader(stream))
    return rows if path.endswith(("_test.csv", "_dev.csv")) else max(0, rows - 1)


# -- a run -------------------------------------------------------------------------------------------------------------


def run(params, check_mode):
    """{changed, finished, progress, document, complete}: the result of an evaluation, or its state, see Run.look(), and
    whether its dataset is complete.

    Raises FleetError before a request is sent if the servers differ from the plan, a dataset is wrong, or the
    context is too short.
    """
    node = Node.of_parameters(params)
    installed = params["venv"] is None or os.path.exists(os.path.join(params["venv"], "bin", "python"))
    if check_mode and not installed:
        return {"changed": True, "finished": True, "progress": None, "document": None, "complete": True}
    folder = params["datasets"] or node.paths.lib + "/datasets"
    known = [params["eval"]] if params["eval"] in FILES else []  # a recipe's command contains its questions
    data = check_datasets(folder, known, params["checksums"]).get(params["eval"]) or {}
    return {**Evaluation(params, node, folder, data).look(check_mode), "complete": data.get("complete", True)}


class Evaluation(Run):
    """A call of an evaluation tool. data: of check_datasets(), or empty."""

    def __init__(self, params, node, folder, data):
        self.datasets, self.data = folder, data
        self.tool, self.spec, self.environment = params["command"]["name"], params["command"], params["venv"]
        planned = check_entries(params["servers"])
        names = ("eval", "effort", "examples", "max_tokens", "temperature", "tool_version", "command")
        key = {name: params[name] for name in names}
        key.update(plan=result.plan_hash(planned.values()), dataset=data.get("sha256"))
        super().__init__(params, node, planned, "evaluations", key, params["budget_s"], params["refresh"])

    def values(self):
        """The values of placeholders in the table of tools, and in a recipe's commands."""
        names = ("eval", "effort", "concurrency", "temperature", "examples", "retries")
        questions = self.data.get("questions") or {}
        begun = _begun(self.output)
        values = {
            **{name: self.params[name] for name in names},
            "model": self.first["model_id"],
            "urls": [self.url(entry) + "/v1" for entry in self.planned.values()],
            "host": http_client.connect_host(self.first["bind"]),
            "port": self.first["port"],
            "datasets": self.datasets,
            "questions": {os.path.basename(path): count for path, count in questions.items()},
            "output": self.output,
            "max_tokens": self.answer_tokens(),
        }
        if questions and values["examples"]:  # the tools fail if they are asked for more than there are
            values["examples"] = min(values["examples"], sum(questions.values()))
        if self.tool not in ANSWERS:  # words of a recipe's command stay, with an empty string
            values["examples"] = values["examples"] or ""
        more = {"begun": begun and os.path.basename(begun), "url": values["urls"][0], "values": json.dumps(values)}
        return {**values, **more}

    @staticmethod
    def url(entry):
        """The address of a server."""
        return http_client.base_url(entry["bind"], entry["port"])

    def answer_tokens(self):
        """The number of tokens that an answer may have: max_tokens, or less if the servers' context requires it and
        `shorten` is set. Raises FleetError if it is not set."""
        wanted, contexts = self.params["max_tokens"], []
        headers = {"Authorization": "Bearer " + self.key()} if self.key() else {}
        for entry in self.planned.values():
            found = http_client.request("GET", self.url(entry) + "/v1/models", timeout=30, headers=headers).json()
            contexts += filter(None, map(listed_context, items_of(dig(found, "data"))))
        allowed = min(contexts) - PROMPT_TOKENS if contexts else wanted
        if wanted <= allowed:
            return wanted
        if self.params["shorten"] and allowed > 0:
            return allowed
        raise FleetError("evaluate.context-too-short", self.params["eval"], wanted, min(contexts), max(allowed, 0))

    def progress(self):
        """{phase, percent} for the screen."""
        done, total = reading.progress(self.job.log())
        return {
            "phase": "%s: %s of %s answers" % (self.params["eval"], *(("?", "?") if total is None else (done, total))),
            "percent": int(100 * done / total) if total else None,
        }

    def document(self, empty, status):
        """`empty` with what the tool reports; the control node adds the comparison with a published score.
        status: of the tool's exit, None if it was killed."""
        try:
            read = ANSWERS.get(self.tool, self.metrics)
            if self.tool not in ANSWERS and (status is None or status in TIMED_OUT):
                raise ValueError("it was ended before its last question")
            numbers = read(self.output, self.params["eval"], self.asked())
        except UNREADABLE as error:
            asked = sum(self.asked().values()) or 1
            message = self.why(error, status)[:LONGEST]
            numbers = {"failed": asked, "errors": [{"message": message, "count": asked}]}
        document = {**empty, **numbers}
        if document["score"] is not None:
            document["score"] = round(document["score"], 2)
            document["ok"] = not document["failed"] and not document["void"]
        return document

    def asked(self):
        """{file of the dataset: number of questions that are asked}."""
        limit = self.params["examples"]
        return {path: min(count, limit or count) for path, count in (self.data.get("questions") or {}).items()}

    def why(self, error, status):
        """The reason why there is no result."""
        if status is None:
            return "The evaluation was killed."
        read = "The files of %s cannot be read: %s." % (self.tool, error or repr(error))
        if status in TIMED_OUT:
            return "%s The time limit of %d s ended it." % (read, self.limit_s)
        return "%s Status %s: %s" % (read, status, self.last_words())

    def metrics(self, folder, _name, _asked):
        """The numbers of a recipe's command. Raises ValueError without a score."""
        data = reading.load(folder, self.spec["files"]) or {}
        found = {name: reading.measured(data, path) for name, path in self.spec["metrics"].items()}
        questions, failed = (int(found.get(name) or 0) for name in ("questions", "failed"))
        if found["score"] is None or questions < 1 or not 0 <= failed <= questions:
            raise ValueError("no score, or no numbers of questions, in %s" % ", ".join(self.spec["files"]))
        errors = [{"message": "the program reports no reason", "count": failed}] if failed else []
        return _numbers(float(found["score"]), questions - failed, errors)


def _numbers(score, answered, errors):
    """The numbers of a tool that asks each question once. Raises ValueError if the score is no percentage."""
    if score is not None and not 0 <= score <= 100:
        raise ValueError("the score is %s, which is not from 0 to 100" % score)
    failed = sum(one["count"] for one in errors)
    correct = None if score is None else round(score * answered / 100)
    return {
        "score": score,
        "questions": answered + failed,
        "answered": answered,
        "correct": correct,
        "failed": failed,
        "interval": result.wilson(correct, answered) if correct is not None and answered > 0 else None,
        "errors": errors,
    }


def evals_numbers(folder, name, _asked):
    """The numbers of gpt_oss.evals, which asks each question up to eight times. Raises ValueError without a result."""
    found = sorted(glob.glob(os.path.join(glob.escape(folder), "%s_*_allresults.json" % name)))
    written = files.read_json(found[-1]) if found else None
    if written is None:
        raise ValueError("there is no result")
    clusters, errors = {}, []
    for convo, html in zip(written["convos"], written["htmls"]):
        (question, *_more) = (message["content"] for message in convo if message["role"] == "user")
        cluster = clusters.setdefault(OPTIONS.split(question)[0], [0, 0])
        answer = (convo[-1]["content"] or "").strip()
        if answer.startswith(REFUSED) or not answer:
            errors.append(answer or "The answer was empty.")
        else:
            cluster[0] += float(SCORE.findall(html)[-1]) == 1
            cluster[1] += 1
    correct, answered = (sum(cluster[index] for cluster in clusters.values()) for index in (0, 1))
    found = _numbers(100 * correct / answered if answered else None, answered, reading.counted(errors))
    interval = result.interval(clusters.values())
    return {**found, "questions": len(clusters), "correct": correct, "interval": interval}


def aisbench_numbers(folder, _name, asked):
    """The numbers of AISBench: the score is the mean of the subjects' scores. Raises ValueError without a run.

    asked: {file of a subject: number of its questions}.
    """
    begun = _begun(folder)
    if begun is None:
        raise ValueError("no run was started in %s" % folder)
    errors, scores, answered = [], [], 0
    for path, questions in asked.items():
        came, refused = _subject(begun, _dataset(path))
        refused += ["There is neither an answer nor an error."] * (questions - came - len(refused))
        grade = files.read_json("%s/results/fleet/%s.json" % (begun, _dataset(path)))
        score = reading.number(grade.get("accuracy")) if isinstance(grade, dict) else None
        if came and score is None:
            refused += ["The answers were not graded."] * came
        elif came:
            scores.append(score)
            answered += came
        errors += refused
    return _numbers(sum(scores) / len(scores) if scores else None, answered, reading.counted(errors))


def _dataset(path):
    """The tool's name of a subject, after which its files are named. path: of its questions."""
    name = os.path.basename(path)
    return "gsm8k" if path.startswith("gsm8k") else "lukaemon_mmlu_" + name[: -len("_test.csv")]


def _subject(run, dataset):
    """(number of answers, messages of failed requests) of a subject."""
    errors, came = [], 0
    for suffix in ("", "_failed"):
        for line in reading.json_lines("%s/predictions/fleet/%s%s.jsonl" % (run, dataset, suffix)):
            text = line.get("prediction")
            failed = suffix or not line.get("success", True)
            if failed or not isinstance(text, str) or not text.rpartition("</think>")[2].strip():
                errors.append(reading.short(line.get("error_info") or "The answer was empty."))
            else:
                came += 1
    return came, errors


ANSWERS = {"gpt_oss.evals": evals_numbers, "AISBench": aisbench_numbers}


def _begun(folder):
    """The folder of the newest run of AISBench below a working directory; None without one."""
    runs = [path for path in glob.glob(glob.escape(folder) + "/*_*/") if re.search(r"/[0-9]{8}_[0-9]{6}/$", path)]
    return max(runs).rstrip("/") if runs else None
