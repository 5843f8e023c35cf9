# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluation tools by the names of their evaluations, and datasets: complete, in the tool's form, and unchanged.

The tools download their datasets while they run, or fail in between; so they are checked before a request is sent.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import os

from ..errors import FleetError
from . import aisbench, gpt_oss_evals, verdict
from .tools import reading

EVALS = {name: tool for tool in (gpt_oss_evals, aisbench) for name in tool.EVALS}


def tool_of(name, command=None):
    """The tool of an evaluation. command: {argv, environment, files, metrics} of the recipe. Raises FleetError."""
    if command:
        return Command(name, command)
    if name not in EVALS:
        raise FleetError(
            "evaluate.eval-unknown",
            "%r is not an evaluation; allowed: %s. Correct evaluate.evals, or add it to evaluate.commands.",
            (name, ", ".join(sorted(EVALS))),
        )
    return EVALS[name]


class Command:
    """A program of the recipe, with the functions of the other tools."""

    RESUMES, CLEAN = False, ""

    def __init__(self, name, command):
        self.NAME, self.command = "command:" + name, command
        self.SERVERS = None if "urls" in reading.placeholders(command["argv"]) else 1

    def prepare(self, _folder, settings):
        """(argv, environment)."""
        names = ("eval", "effort", "model", "urls", "threads", "max_tokens", "temperature", "examples", "datasets")
        values = {name: "" if settings[name] is None else settings[name] for name in names}
        values.update(url=settings["urls"][0], output=settings["folder"], concurrency=settings["threads"])
        unknown = reading.placeholders([*self.command["argv"], *self.variables().values()]) - set(values)
        if unknown:
            raise FleetError(
                "evaluate.command-invalid",
                "evaluate.commands.%s has the unknown placeholder ${%s}; allowed: %s. Correct the recipe.",
                (settings["eval"], min(unknown), ", ".join(sorted(values))),
            )
        environment = {name: "".join(reading.expand([[text]], values)) for name, text in self.variables().items()}
        return reading.expand([[word] for word in self.command["argv"]], values), environment

    def variables(self):
        """The environment of the recipe."""
        return self.command.get("environment") or {}

    def progress(self, _folder):
        """Unknown."""
        return 0, None

    def read(self, _job, folder, _name):
        """The keys of gpt_oss_evals.read() from the program's files. Raises ValueError without a score."""
        data = reading.load(folder, self.command["files"]) or {}
        found = {name: reading.measured(data, path) for name, path in self.command["metrics"].items()}
        if found["score"] is None or not found["questions"]:
            raise ValueError("no score, or no number of questions, in %s" % ", ".join(self.command["files"]))
        questions = int(found["questions"])
        failed = int(found.get("failed") or 0)
        answered = max(0, questions - failed)
        correct = round(found["score"] * answered / 100)
        return {
            "score": float(found["score"]),
            "questions": questions,
            "answered": answered,
            "correct": correct,
            "failed": failed,
            "asked": questions,
            "interval": verdict.wilson(correct, answered) if answered and correct <= answered else None,
            "errors": [{"message": "the program reports no reason", "count": failed}] if failed else [],
            "whole": True,
        }


def look(folder, names, checksums):
    """{name: {questions: int|None, sha256, files}} of the datasets of these evaluations, those without one left out.

    folder: where all datasets are; names: evaluations; checksums: {path below it: sha256}, as far as they are known.
    sha256 is over the checksums of all files of the dataset. Raises FleetError with all that is missing or wrong.
    """
    found, wrong = {}, []
    for name in dict.fromkeys(names):
        paths = tool_of(name).dataset_files(name, _below(folder))
        sums, questions = {}, 0
        for path, form in sorted(paths.items()):
            try:
                sums[path] = _sha256(os.path.join(folder, path))
                questions += form(os.path.join(folder, path)) if callable(form) else _rows(folder, path, form)
            except FileNotFoundError:
                wrong.append("%s (%s) is missing" % (path, name))
                continue
            except (OSError, ValueError) as error:
                wrong.append("%s (%s) %s" % (path, name, _why(error)))
                continue
            wanted = checksums.get(path)
            if wanted and wanted.lower() != sums[path]:
                wrong.append("%s (%s) has the sha256 %s, not %s" % (path, name, sums[path], wanted))
        if paths:
            listed = "".join("%s  %s\n" % (sums[path], path) for path in sorted(sums))
            found[name] = {"questions": questions, "sha256": hashlib.sha256(listed.encode()).hexdigest(), "files": sums}
    if wrong:
        raise FleetError(
            "evaluate.datasets-wrong",
            "%d file(s) of datasets below %s cannot be used: %s. Set evaluate_datasets to a directory with them "
            "(docs/using/measure-reference.md lists the files), or correct evaluate_checksums.",
            (len(wrong), folder, "; ".join(wrong[:10])),
            details={"wrong": wrong},
        )
    return found


def _below(folder):
    """A function that finds paths below the folder by a pattern, relative to it."""
    return lambda pattern: sorted(
        os.path.relpath(path, folder) for path in glob.glob(os.path.join(glob.escape(folder), pattern))
    )


def _rows(folder, path, columns):
    """How many rows a CSV file or a file of JSON lines has; ValueError where one lacks a column."""
    with open(os.path.join(folder, path), encoding="utf-8", newline="") as stream:
        if path.endswith(".csv"):
            rows = list(csv.DictReader(stream))
        else:
            rows = [json.loads(line) for line in stream if line.strip()]
    if not rows:
        raise ValueError("has no rows")
    for number, row in enumerate(rows, 1):
        lacking = [name for name in columns if not isinstance(row, dict) or row.get(name) in (None, "")]
        if lacking:
            raise ValueError("has no %s in row %d" % (", ".join(map(repr, lacking)), number))
    return len(rows)


def _sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _why(error):
    if isinstance(error, (UnicodeDecodeError, json.JSONDecodeError)):
        return "cannot be read: %s" % error
    return str(error) if isinstance(error, ValueError) else "cannot be read: %s" % error.strerror
