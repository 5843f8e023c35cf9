# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs make's checks in lanes side by side: each step after the one before it in its lane, all lanes at once.

    .venv/bin/python tools/checks.py nodes=nodes,molecule here=sanity,unit,e2e

Each line carries its lane's name; the end says what each step cost and repeats the last lines of those that failed and
what failed in them, since a log is often kept by its end alone. The first failure ends its lane, not the others.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPEATED = 30  # last lines of a failed step
FAILURES = ("FAILED ", "ERROR ")  # how pytest and the scenarios begin a line about what failed
MAKE_VARIABLES = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # of the make that runs this: its job slots are not ours


@dataclasses.dataclass
class Step:
    """A target of the Makefile in a lane; status: make's exit status, None before its end."""

    lane: str
    target: str
    status: int | None = None
    seconds: float = 0.0
    cpu: float = 0.0  # seconds of processor time, without what containers used
    last: collections.deque = dataclasses.field(default_factory=lambda: collections.deque(maxlen=REPEATED))
    failures: list = dataclasses.field(default_factory=list)

    def verdict(self):
        if self.status is None:
            return "left out"
        return "ok" if self.status == 0 else "FAILED, exit status %d" % self.status


def parse(arguments):
    """{lane: [Step]} of words like nodes=nodes,molecule. ValueError for another form."""
    lanes = {}
    for word in arguments:
        lane, equals, targets = word.partition("=")
        if not lane or not equals or not all(targets.split(",")) or lane in lanes:
            raise ValueError("%r is no lane; write LANE=TARGET,TARGET, each lane once." % word)
        lanes[lane] = [Step(lane, target) for target in targets.split(",")]
    return lanes


def run_lane(steps, make, say):
    """Run the steps one after the other until one fails. say(text): prints a line."""
    environment = {key: value for key, value in os.environ.items() if key not in MAKE_VARIABLES}
    for step in steps:
        began = time.monotonic()
        say("[%s] == %s" % (step.lane, step.target))
        with subprocess.Popen(
            [*make, step.target], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
        ) as process:  # fmt: skip
            for line in process.stdout:
                step.last.append(line.rstrip("\n"))
                if line.startswith(FAILURES):
                    step.failures.append(line.rstrip("\n")[:200])
                say("[%s] %s" % (step.lane, step.last[-1]))
            status, used = os.wait4(process.pid, 0)[1:]
            process.returncode = os.waitstatus_to_exitcode(status)
        step.status, step.seconds = process.returncode, time.monotonic() - began
        step.cpu = used.ru_utime + used.ru_stime
        if step.status:
            return


def main(arguments, make=("make", "--no-print-directory")):
    """Exit status: 0 where every step passed."""
    try:
        lanes = parse(arguments)
    except ValueError as error:
        print("checks: %s" % error, file=sys.stderr)
        return 2
    lock = threading.Lock()

    def say(text):
        with lock:
            print(text, flush=True)

    threads = [threading.Thread(target=run_lane, args=(steps, make, say)) for steps in lanes.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = [step for lane in lanes.values() for step in lane]
    for step in steps:
        times = (step.seconds, step.cpu)
        say("checks: %-10s %-10s %5d s, %5d s of CPU  %s" % (step.lane, step.target, *times, step.verdict()))
    for step in steps:
        if step.status:
            say("\n".join(["checks: the end of %s:" % step.target, *step.last]))
    for step in steps:
        for line in step.failures:
            say("checks: %s: %s" % (step.target, line))
    return int(any(step.status != 0 for step in steps))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
