# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Datasets of evaluations. They are checked before a request is sent; without them the tools fail in between."""

from __future__ import annotations

import csv
import glob
import hashlib
import os

from ..errors import FleetError
from ..host.files import sha256_file

# {evaluation: ([files with questions], [further files]}, both below the folder of datasets.
FILES = {
    "basic": ([], []),
    "gpqa": (["gpqa_diamond.csv"], []),
    "aime25": (["aime2025-I.jsonl", "aime2025-II.jsonl"], []),
    "mmlu": (["mmlu/test/*_test.csv"], ["mmlu/dev/*_dev.csv"]),
    "gsm8k": (["gsm8k/test.jsonl"], ["gsm8k/train.jsonl"]),
}


def check_datasets(folder, names, checksums):
    """{name: {questions: {path: number of rows}, sha256}} of the datasets of these evaluations, without those that have
    none.

    folder: of all datasets; checksums: {path below it: sha256}, as far as they are known. sha256 is that of the
    checksums of all files of the dataset. Raises FleetError with all missing and wrong files.
    """
    found, wrong = {}, []
    for name in dict.fromkeys(names):
        sums, questions = {}, {}
        if name not in FILES:
            wrong.append("%s is not an evaluation; allowed: %s" % (name, ", ".join(FILES)))
        patterns, more = FILES.get(name, ([], []))
        for pattern in patterns + more:
            paths = sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))
            wrong += [] if paths else ["%s (%s) is missing" % (pattern, name)]
            for path in paths:
                below = os.path.relpath(path, folder)
                try:
                    rows, sums[below] = _rows(path), sha256_file(path)
                except (OSError, ValueError, csv.Error) as error:
                    wrong.append("%s (%s) cannot be read: %s" % (below, name, error))
                    continue
                wanted = checksums.get(below)
                if wanted and wanted.lower() != sums[below]:
                    wrong.append("%s (%s) has the sha256 %s, not %s" % (below, name, sums[below], wanted))
                elif not rows:
                    wrong.append("%s (%s) has no rows" % (below, name))
                if pattern in patterns:
                    questions[below] = rows
        if patterns:
            listed = "".join("%s  %s\n" % (sums[path], path) for path in sorted(sums))
            found[name] = {"questions": questions, "sha256": hashlib.sha256(listed.encode()).hexdigest()}
    if wrong:
        raise FleetError(
            "evaluate.datasets-wrong",
            "%d file(s) of datasets below %s cannot be used: %s. Set evaluate_datasets to a directory with them "
            "(docs/using/measure-reference.md lists the files), or correct evaluate_checksums.",
            (len(wrong), folder, "; ".join(wrong[:10])),
            details={"wrong": wrong},
        )
    return found


def _rows(path):
    """The number of questions. The CSV files of MMLU have no header."""
    with open(path, encoding="utf-8", newline="") as stream:
        if not path.endswith(".csv"):
            return sum(1 for line in stream if line.strip())
        rows = sum(1 for _row in csv.reader(stream))
    return rows if path.endswith(("_test.csv", "_dev.csv")) else max(0, rows - 1)
