# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpt_oss.evals: how it is called, and what its files say.

It never ends against a server that is gone, and counts a refused request as a wrong answer; so its answers are counted
here, one by one. Its files hold score, htmls and convos of all answers, in one order.
"""

from __future__ import annotations

import glob
import json
import os
import re

from .. import program
from . import gpt_oss_evals_worker as worker
from . import verdict

NAME = "gpt_oss.evals"
EVALS = ("basic", "gpqa", "aime25")
SERVERS = None  # how many addresses it takes: all
RESUMES, CLEAN = False, ""
REFUSED = "No response"  # how the answer of a request that was refused begins, the tool's own and the worker's
POINT = re.compile(r"<p>Score: ([0-9.]+)</p>")
OPTIONS = re.compile(r"\n\n\(A\) ")  # what follows is in another order in each repeat
# The columns that the tool reads.
FILES = {
    "basic": {},
    "gpqa": {
        "gpqa_diamond.csv": ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2",
                             "Incorrect Answer 3"),
    },
    "aime25": {"aime2025-I.jsonl": ("question", "answer"), "aime2025-II.jsonl": ("question", "answer")},
}  # fmt: skip


def dataset_files(name, _find):
    """{path below the datasets' folder: columns that it must have} of an evaluation."""
    return FILES[name]


def prepare(folder, settings):
    """(argv, environment) of an evaluation. folder: of the job; settings: of command(), and python."""
    return command(settings["python"], program.work(folder, worker), settings), {"HF_HUB_OFFLINE": "1"}


def command(python, work, settings):
    """The argv that runs one evaluation. work: program.work().

    settings: {eval, effort, model, urls [str], datasets, folder, threads, max_tokens, temperature, examples int|None,
    retries}. With `examples` only so many questions are asked, once each.
    """
    return [
        python, "-I", *work, settings["datasets"], settings["folder"], ",".join(settings["urls"]),
        str(settings["max_tokens"]), str(settings["retries"]), str(settings["examples"] or 0),
        "--sampler", "chat_completions", "--base-url", settings["urls"][0], "--eval", settings["eval"],
        "--model", settings["model"], "--reasoning-effort", settings["effort"],
        "--temperature", "%g" % settings["temperature"], "--n-threads", str(settings["threads"]),
    ]  # fmt: skip


def progress(folder):
    """How many answers there are by now, and of how many: (int, int|None)."""
    try:
        with open(os.path.join(folder, "answers.jsonl"), "rb") as stream:
            lines = stream.read().splitlines()
    except FileNotFoundError:
        return 0, None
    asked = None
    if lines and b'"asked"' in lines[0]:
        asked = json.loads(lines.pop(0).decode()).get("asked")
    return len(lines), asked


def read(_job, folder, name):
    """What an evaluation measured, from the tool's files in a folder.

    {score, questions, answered, correct, failed, interval, errors [{message, count}], asked}: questions are different
    ones, the other counts are answers; score and interval are percent of the answers that came. Raises ValueError if
    there is no result.
    """
    found = sorted(glob.glob(os.path.join(glob.escape(folder), "%s_*_allresults.json" % name)))
    if not found:
        raise ValueError("%s left no result after %d answers" % (NAME, progress(folder)[0]))
    with open(found[-1], encoding="utf-8") as stream:
        written = json.load(stream)
    answers = [_answer(convo, html) for convo, html in zip(written["convos"], written["htmls"])]
    return counted(answers)


def counted(answers):
    """The numbers of read() from [(question, correct, failure or None)]."""
    clusters, errors = {}, {}
    for question, correct, failure in answers:
        cluster = clusters.setdefault(question, [0, 0])
        if failure:
            errors[failure] = errors.get(failure, 0) + 1
        else:
            cluster[0] += correct
            cluster[1] += 1
    correct, answered = (sum(cluster[index] for cluster in clusters.values()) for index in (0, 1))
    return {
        "score": 100 * correct / answered if answered else None,
        "questions": len(clusters),
        "answered": answered,
        "correct": correct,
        "failed": sum(errors.values()),
        "asked": len(answers),
        "interval": verdict.interval([tuple(cluster) for cluster in clusters.values()]),
        "errors": [{"message": text, "count": count} for text, count in sorted(errors.items())],
        "whole": True,  # a dataset that lacks questions is refused before
    }


def _answer(convo, html):
    """(question, 1 or 0, None or why there is no answer) of one conversation and its page."""
    (question, *_more) = (message["content"] for message in convo if message["role"] == "user")
    answer = convo[-1]["content"] or ""
    if answer.startswith(REFUSED) or not answer.strip():
        return OPTIONS.split(question)[0], 0, answer.strip() or "The answer was empty."
    point = POINT.findall(html)[-1]
    return OPTIONS.split(question)[0], int(float(point) == 1), None
