# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs Molecule's scenarios, each on nodes of its own, and says what each cost and what failed first in it.

    .venv/bin/python tools/scenarios.py [NAME…]      # all of molecule/ without names

Where nodes cannot be started it says why, and what it leaves out; with CI set that is a failure.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import nodes
import run

ROOT = Path(__file__).resolve().parent.parent
MISSING = "Missing playbook"
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
HEADER = re.compile(r"(TASK|RUNNING HANDLER|PLAY) \[|PLAY RECAP ")
FAILURE = re.compile(r"fatal: |failed: |\[ERROR\]: |ERROR! ")  # Ansible's
VERDICT = re.compile(r"(CRITICAL|ERROR)\s")  # Molecule's
LINES, WIDTH = 6, 200  # of a failure that are shown


def scenario_names():
    return sorted(path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml"))


def molecule(name, environment):
    """Run a scenario and print what it prints; (whether it passed, its lines). A step without its playbook fails."""
    command = [str(ROOT / ".venv" / "bin" / "molecule"), "test", "--no-command-borders", "-s", name]
    lines = []
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as process:  # fmt: skip
        for line in process.stdout:
            lines.append(ESCAPES.sub("", line).rstrip())
            print(line, end="", flush=True)
    return process.returncode == 0 and not any(MISSING in line for line in lines), lines


def first_failure(lines):
    """The lines of a failed scenario that say why: the task, its first failure, and Molecule's verdict."""
    end = next((number for number, line in enumerate(lines) if VERDICT.match(line)), None)
    if end is None:
        return [line for line in lines if MISSING in line][:LINES] or lines[-LINES:]
    plays = [number for number in range(end) if lines[number].startswith("PLAY [")]
    recaps = [number for number in range(plays[-1]) if lines[number].startswith("PLAY RECAP")] if plays else []
    run = range(min(number for number in plays if number > recaps[-1]) if recaps else 0, end)  # of the last playbook
    failures = [number for number in run if FAILURE.match(lines[number])]
    found = []
    if failures:
        # what a block rescued came before what it did not
        first = failures[-1 if any(re.search(r"rescued=[1-9]", lines[number]) for number in run) else 0]
        found = [lines[number] for number in run if number < first and HEADER.match(lines[number])][-1:]
        found += block(lines[first:end], HEADER)
    return [cut(line) for line in [*found, *block(lines[end:], re.compile(r"[A-Z]+ +\S"))]]


def block(lines, stop):
    """The first line and the next ones that say something, up to one that begins something else."""
    end = next((number for number, line in enumerate(lines) if number and stop.match(line)), None)
    return [line for line in lines[:end] if line][:LINES]


def cut(line):
    """Both ends of a long line: a command names its playbook at its end."""
    return line if len(line) <= WIDTH else line[: WIDTH // 2 - 3] + " ... " + line[-(WIDTH // 2 - 2) :]


def main(names):
    """Exit status: 0 where every scenario passed or could not be run outside CI."""
    known = scenario_names()
    unknown = sorted(set(names) - set(known))
    if unknown:
        print("scenarios: there is no %s; there are: %s." % (", ".join(unknown), ", ".join(known)), file=sys.stderr)
        return 2
    chosen = list(names) or known
    try:
        nodes.build()
    except nodes.Unavailable as error:
        print("scenarios: left out: %s: %s" % (", ".join(chosen), error), file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    environment = {**run.environment(), nodes.KEEP: "1"}
    costs, failed = [], {}
    try:
        for name in chosen:
            began = time.monotonic()
            passed, lines = molecule(name, environment)
            costs.append((name, "ok" if passed else "failed", time.monotonic() - began))
            if not passed:
                failed[name] = first_failure(lines)
    finally:
        nodes.end_engine()
    for name, verdict, seconds in costs:
        print("scenarios: %-20s %-6s %4d s" % (name, verdict, seconds))
    for name, lines in failed.items():
        print("\n".join(["scenarios: what failed first in %s:" % name, *lines]))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
