# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs targets of the Makefile, two at a time, in the given order: the longest first keeps both processors busy.

    .venv/bin/python tools/checks.py nodes e2e unit sanity 'molecule/*'

TARGET/SCENARIO is `make TARGET SCENARIO=SCENARIO`; molecule/* is every scenario except those of `make soak`. Each line
of output starts with its target. The end shows the time of each target, and repeats the last lines and the failures of
those that failed, since often only the end of a log is kept. A failure does not stop the other targets.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import nodes
import scenarios

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2  # three make all of them slower on two processors
REPEATED = 30  # last lines of a failed target
FAILURES = ("FAILED ", "ERROR ")  # how pytest and the scenarios begin a line about what failed
MAKE_VARIABLES = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # of the calling make: its job slots are not available here


@dataclasses.dataclass
class Step:
    """A target of the Makefile, for a scenario if it has any; status: the exit status of make, None before its end."""

    target: str
    scenario: str = ""
    status: int | None = None
    seconds: float = 0.0
    cpu: float = 0.0  # seconds of processor time, without that of containers
    last: collections.deque = dataclasses.field(default_factory=lambda: collections.deque(maxlen=REPEATED))
    failures: list = dataclasses.field(default_factory=list)

    @property
    def name(self):
        return self.scenario or self.target

    @property
    def arguments(self):
        return [self.target, "SCENARIO=" + self.scenario] if self.scenario else [self.target]

    def verdict(self):
        return "ok" if self.status == 0 else "FAILED, exit status %s" % self.status


def parse(words):
    """Returns the steps of words such as unit, molecule/default and molecule/*."""
    steps = []
    for word in words:
        target, _slash, scenario = word.partition("/")
        names = [scenario]
        if scenario == "*":
            names = scenarios.scenario_names()
        steps += [Step(target, name) for name in names]
    return steps


def run(step, make, say):
    """Run a step. say: a function that prints a line."""
    environment = {key: value for key, value in os.environ.items() if key not in MAKE_VARIABLES}
    environment[nodes.KEEP] = "1"  # the targets share a Docker engine
    began = time.monotonic()
    say("[%s] ==" % step.name)
    with subprocess.Popen(
        [*make, *step.arguments], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as process:  # fmt: skip
        for line in process.stdout:
            step.last.append(line.rstrip("\n"))
            if line.startswith(FAILURES):
                step.failures.append(line.rstrip("\n")[:200])
            say("[%s] %s" % (step.name, step.last[-1]))
        status, used = os.wait4(process.pid, 0)[1:]
        process.returncode = os.waitstatus_to_exitcode(status)
    step.status, step.seconds = process.returncode, time.monotonic() - began
    step.cpu = used.ru_utime + used.ru_stime


def main(arguments, make=("make", "--no-print-directory")):
    """Returns the exit status: 0 if every step passed."""
    steps, lock = parse(arguments), threading.Lock()
    waiting = queue.SimpleQueue()
    for step in steps:
        waiting.put(step)

    def say(line):
        with lock:
            print(line, flush=True)

    def work():
        while True:
            try:
                step = waiting.get_nowait()
            except queue.Empty:
                return
            run(step, make, say)

    workers = [threading.Thread(target=work) for _number in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    nodes.end_engine()
    for step in steps:
        say("checks: %-14s %5d s, %5d s of CPU  %s" % (step.name, step.seconds, step.cpu, step.verdict()))
    for step in steps:
        if step.status:
            say("\n".join(["checks: the end of %s:" % step.name, *step.last]))
    for step in steps:
        for line in step.failures:
            say("checks: %s: %s" % (step.name, line))
    return int(any(step.status != 0 for step in steps))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
