# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AISBench: what it is called with, and what its files say.

It ends with status 0 when every request failed, with "-" for a score. So predictions and failures are counted here:
predictions/<model>/<dataset>.jsonl has those that came, <dataset>_failed.jsonl the others, and the accuracy is in
results/<model>/<dataset>.json. Its performance mode is in tools/benchmarks.py.
"""

from __future__ import annotations

import csv
import glob
import json
import os
import re

from ..host import files
from . import verdict
from .tools.reading import json_lines, short

NAME = "AISBench"
EVALS = ("mmlu", "gsm8k")
SERVERS = 1  # how many addresses it takes
RESUMES = True
GIVEN = "given.json"
# It writes its settings, which contain the API key, into files.
CLEAN = 'rm -rf -- "$HOME"/*/configs "$HOME"/tmp "$HOME"/*/*/configs; '
MODEL = "fleet"  # the tool's own name for what is measured, in the paths of its files
SUBJECTS = 57  # of the whole dataset
PREFIX = "lukaemon_mmlu_"
COLUMNS = 6  # question, four options, letter; no header
LETTERS = ("A", "B", "C", "D")
SPLITS = ("dev", "test")
GSM8K = "gsm8k"  # has no subjects, and counts as one
GSM8K_SPLITS = ("train", "test")  # the tool reads both and asks the second
SOLUTION = re.compile(r"#### -?[0-9][0-9,]*\s*$")  # the tool compares whole numbers


def dataset_files(name, find):
    """{path below the datasets' folder: function that counts the questions of a file and says what is wrong}."""
    if name == GSM8K:
        return {"%s/%s.jsonl" % (name, split): _solved if split == "test" else _solved_before for split in GSM8K_SPLITS}
    found = {path for split in SPLITS for path in find("%s/%s/*_%s.csv" % (name, split, split))}
    subjects = {os.path.basename(path).rpartition("_")[0] for path in found}
    paths = {"%s/%s/%s_%s.csv" % (name, split, subject, split): split
             for subject in subjects or {"abstract_algebra"} for split in SPLITS}  # fmt: skip
    return {path: _test_questions if split == "test" else _dev_questions for path, split in paths.items()}


def subjects_of(name, files):
    """Names of the subjects of these paths, sorted."""
    if name == GSM8K:
        return [GSM8K]
    return sorted({os.path.basename(path).rpartition("_")[0] for path in files})


def _test_questions(path):
    with open(path, encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    if not rows:
        raise ValueError("has no rows")
    for number, row in enumerate(rows, 1):
        if len(row) != COLUMNS or row[-1] not in LETTERS:
            raise ValueError(
                "has in row %d no question, four options and the letter of one (it has no header)" % number
            )
    return len(rows)


def _dev_questions(path):
    _test_questions(path)
    return 0


def _solved(path):
    with open(path, encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]  # an empty line ends the tool
    if not rows:
        raise ValueError("has no rows")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not row.get("question") or not SOLUTION.search(str(row.get("answer"))):
            raise ValueError("has in row %d no question, or no answer that ends with #### and a whole number" % number)
    return len(rows)


def _solved_before(path):
    _solved(path)
    return 0


def questions(folder, name, subjects, examples):
    """{subject: how many questions are asked}, at most `examples` of each."""
    if name == GSM8K:
        every = {GSM8K: _solved(os.path.join(folder, GSM8K, "test.jsonl"))}
    else:
        every = {one: _test_questions(os.path.join(folder, name, "test", one + "_test.csv")) for one in subjects}
    return {one: min(count, examples or count) for one, count in every.items()}


def prepare(folder, settings):
    """Write what the configuration file reads. Returns (argv, environment).

    folder: of the job; settings: of given() and command(), and python, config (its configuration file), files (of the
    dataset).
    """
    settings["subjects"] = subjects_of(settings["eval"], settings["files"])
    asked = questions(settings["datasets"], settings["eval"], settings["subjects"], settings["examples"])
    path = os.path.join(folder, GIVEN)
    files.write_atomic(path, json.dumps({**given(settings), "asked": asked}, indent=1) + "\n", mode=0o600)
    return command(settings["python"], settings["config"], settings), {"FLEET_AISBENCH": path, "HF_HUB_OFFLINE": "1"}


def given(settings):
    """What its configuration file reads as JSON.

    settings: {eval, effort, model, host, port, datasets, folder, threads, max_tokens, temperature, subjects}.
    """
    return {
        "eval": settings["eval"],
        "work_dir": settings["folder"],
        "datasets": os.path.join(settings["datasets"], settings["eval"]),
        "subjects": settings["subjects"],
        "model": settings["model"],
        "host": settings["host"],
        "port": settings["port"],
        "max_tokens": settings["max_tokens"],
        "concurrency": settings["threads"],
        "generation": {"temperature": settings["temperature"], "reasoning_effort": settings["effort"]},
    }


def command(python, config, settings):
    """The argv that runs one evaluation; with `examples` only so many questions of each subject. A run of before that
    was killed is continued."""
    argv = [os.path.join(os.path.dirname(python), "ais_bench"), config, "--mode", "all", "--dump-eval-details",
            "--merge-ds"]  # fmt: skip
    if settings.get("examples"):
        argv += ["--num-prompts", str(settings["examples"])]
    begun = latest(settings["folder"])
    return argv + (["--reuse", os.path.basename(begun)] if begun else [])


def latest(folder):
    """The folder of the newest run below a working directory; None where there is none."""
    runs = [path for path in glob.glob(glob.escape(folder) + "/*_*/") if re.search(r"/[0-9]{8}_[0-9]{6}/$", path)]
    return max(runs).rstrip("/") if runs else None


def progress(folder):
    """How many answers there are by now: (int, None)."""
    run, count = latest(folder), 0
    for path in glob.glob(glob.escape(run) + "/predictions/*/*.jsonl") if run else ():
        if os.path.basename(path).startswith((PREFIX, GSM8K)):
            count += len(json_lines(path))
    return count, None


def read(job, folder, _name):
    """What an evaluation measured: the keys of gpt_oss_evals.read(), the score as the mean of the subjects' scores, and
    whether all subjects were asked. job: the folder of the job. Raises ValueError if there is no result."""
    asked = (files.read_json(os.path.join(job, GIVEN)) or {}).get("asked") or {}
    run = latest(folder)
    if run is None:
        raise ValueError("%s started no run in %s" % (NAME, folder))
    errors, strata, answered, failed = {}, [], 0, 0
    for subject, questions in sorted(asked.items()):
        came, refused = _subject(run, subject)
        accuracy = _accuracy(run, subject)
        lost = max(0, questions - came - sum(refused.values()))
        if lost:
            refused["There is neither an answer nor an error."] = lost
        if came and accuracy is None:
            refused["The answers were not graded."] = refused.get("The answers were not graded.", 0) + came
            came = 0
        for text, count in refused.items():
            errors[text] = errors.get(text, 0) + count
        failed += sum(refused.values())
        answered += came
        if came:
            strata.append((round(accuracy * came / 100), came))
    shares = [correct / count for correct, count in strata]
    return {
        "score": 100 * sum(shares) / len(shares) if shares else None,
        "questions": sum(asked.values()),
        "answered": answered,
        "correct": sum(correct for correct, _count in strata),
        "failed": failed,
        "asked": sum(asked.values()),
        "interval": verdict.stratified(strata),
        "errors": [{"message": text, "count": count} for text, count in sorted(errors.items())],
        "whole": len(asked) == SUBJECTS or GSM8K in asked,
    }


def _dataset(subject):
    """The tool's own name of what a subject's files are named after."""
    return subject if subject == GSM8K else PREFIX + subject


def _subject(run, subject):
    """(how many answers came, {why not: how many}) of a subject."""
    at = "%s/predictions/%s/%s" % (run, MODEL, _dataset(subject))
    errors, came = {}, 0
    for line in json_lines(at + ".jsonl"):
        text = line.get("prediction")
        if line.get("success", True) and isinstance(text, str) and text.rpartition("</think>")[2].strip():
            came += 1
        else:
            why = line.get("error_info") or "The answer was empty."
            errors[why] = errors.get(why, 0) + 1
    for line in json_lines(at + "_failed.jsonl"):
        why = short(line.get("error_info") or "The request failed.")
        errors[why] = errors.get(why, 0) + 1
    return came, errors


def _accuracy(run, subject):
    """Percent, None where it was not graded."""
    try:
        with open("%s/results/%s/%s.json" % (run, MODEL, _dataset(subject)), encoding="utf-8") as stream:
            value = json.load(stream).get("accuracy")
    except (OSError, ValueError, AttributeError):
        return None
    return float(value) if isinstance(value, (int, float)) else None
