# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs Molecule's scenarios, each on separate nodes, and prints the time of each and its first failure.

    .venv/bin/python tools/scenarios.py [NAME…]      # without names: all except those of `make soak`
    .venv/bin/python tools/scenarios.py soak         # soak_*

If nodes cannot be started, it prints the reason and the scenarios that are left out; with CI set it fails.
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
SOAK = "soak"  # how names of the scenarios of `make soak` begin
MISSING = "Missing playbook"
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
FAILURE = re.compile(r"fatal: |failed: |\[ERROR\]: |ERROR! ")  # Ansible's
VERDICT = re.compile(r"(CRITICAL|ERROR)\s")  # Molecule's
LINES, WIDTH = 6, 200  # of a failure that are shown


def scenario_names(soak=False):
    """Returns the names of the scenarios of `make test`, or of those of `make soak`."""
    found = sorted(path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml"))
    return [name for name in found if name.startswith(SOAK) == soak]


def molecule(name, environment):
    """Runs a scenario, prints its output and returns (passed, its lines). A missing playbook is a failure."""
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
    """Returns the lines that report Ansible's failure and Molecule's verdict, else the last lines."""
    verdict = next((number for number, line in enumerate(lines) if VERDICT.match(line) or MISSING in line), len(lines))
    failures = [number for number in range(verdict) if FAILURE.match(lines[number])][-1:]  # others were rescued
    found = [line for number in [*failures, verdict] for line in lines[number : number + LINES]]
    return [line if len(line) <= WIDTH else line[:WIDTH] + " ..." for line in found or lines[-LINES:]]


def main(names):
    """Returns the exit status: 0 if every scenario passed, or could not be run outside CI."""
    names = scenario_names(soak=True) if names == [SOAK] else names
    known = scenario_names() + scenario_names(soak=True)
    unknown = sorted(set(names) - set(known))
    if unknown:
        print("scenarios: unknown: %s; allowed: %s." % (", ".join(unknown), ", ".join(known)), file=sys.stderr)
        return 2
    chosen = list(names) or scenario_names()
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
