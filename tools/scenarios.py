# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs Molecule's scenarios, each on nodes of its own, and says what each cost.

    .venv/bin/python tools/scenarios.py [NAME…]      # all of molecule/ without names

Where nodes cannot be started it says why, and what it leaves out; with CI set that is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import nodes
import run

ROOT = Path(__file__).resolve().parent.parent


def scenario_names():
    return sorted(path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml"))


def molecule(name, environment):
    """Run a scenario and print what it prints; whether it passed. A step whose playbook is missing counts as failed."""
    command = [str(ROOT / ".venv" / "bin" / "molecule"), "test", "--no-command-borders", "-s", name]
    missing = False
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as process:  # fmt: skip
        for line in process.stdout:
            missing = missing or "Missing playbook" in line
            print(line, end="", flush=True)
    return process.returncode == 0 and not missing


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
    costs = []
    try:
        for name in chosen:
            began = time.monotonic()
            costs.append((name, "ok" if molecule(name, environment) else "failed", time.monotonic() - began))
    finally:
        nodes.end_engine()
    for name, verdict, seconds in costs:
        print("scenarios: %-20s %-6s %4d s" % (name, verdict, seconds))
    return int(any(verdict != "ok" for _name, verdict, _seconds in costs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
