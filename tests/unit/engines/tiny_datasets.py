# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Datasets of every evaluation, with a few made-up questions."""

from __future__ import annotations

import json


def tiny_datasets(folder):
    """Datasets of every evaluation, with made-up questions; what evaluate_datasets is."""
    (folder / "mmlu").mkdir(parents=True)
    columns = ["Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"]
    rows = [["What is %d + 1?" % number, *(str(number + more) for more in (1, 2, 3, 4))] for number in range(3)]
    (folder / "gpqa_diamond.csv").write_text("\n".join(map(",".join, [columns, *rows])) + "\n")
    for part, numbers in (("I", (1, 2)), ("II", (3, 4))):
        lines = [json.dumps({"question": "What is %d + 1?" % number, "answer": str(number + 1)}) for number in numbers]
        (folder / ("aime2025-%s.jsonl" % part)).write_text("\n".join(lines) + "\n")
    for split in ("dev", "test"):
        (folder / "mmlu" / split).mkdir()
        for subject in ("anatomy", "astronomy"):
            rows = ["What is %d + 1?,%d,%d,%d,%d,A" % (n, n + 1, n + 2, n + 3, n + 4) for n in range(6)]
            (folder / "mmlu" / split / ("%s_%s.csv" % (subject, split))).write_text("\n".join(rows) + "\n")
    for split in ("train", "test"):
        (folder / "gsm8k").mkdir(exist_ok=True)
        line = json.dumps({"question": "What is 17*23?", "answer": "#### 391"})
        (folder / "gsm8k" / (split + ".jsonl")).write_text(line + "\n")
    return folder
