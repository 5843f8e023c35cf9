# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks of this clone, run as a user runs them; what the tests of tests/e2e and tests/nodes have in common."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
warm = []  # Servers of warm_playbooks: tests/conftest.py has one


@dataclasses.dataclass
class Run:
    """What a playbook did: exit status, screen, seconds, and the recap's counts summed over the hosts.

    processor_s: seconds of processors that it took, whatever else the machine did; with cold=True also of modules that
    ran here, not of what outlives them.
    """

    status: int
    output: str
    seconds: float
    processor_s: float

    def count(self, word):
        return sum(int(number) for number in re.findall(r"\b%s=(\d+)" % word, self.output))

    def ok(self):
        assert self.status == 0, self.output
        assert self.count("failed") == self.count("unreachable") == 0, self.output
        return self

    def failed(self, *texts):
        assert self.status != 0, self.output
        for text in texts:
            assert text in self.output, self.output
        return self


def play(playbook, inventory, *arguments, variables=None, environment=None, timeout=900, folder=CLONE, cold=False):
    """Run a playbook of the clone, in `folder`, and print what it printed. variables are extra ones (-e)."""
    arguments = [playbook, "-i", str(inventory), "-e", json.dumps(variables or {}), *arguments]
    run = ansible_playbook(arguments, environment, timeout, folder, cold)
    print(run.output)
    print("%s: %.1f s, %.1f s of processors" % (playbook, run.seconds, run.processor_s))
    return run


def ansible_playbook(arguments, environment=None, timeout=600, folder=CLONE, cold=False):
    """The Run of the command with these arguments; environment: variables beside those of this process, None for less.

    cold: the command itself, not a fork that has its imports already (warm_playbooks.py).
    """
    started, before = time.monotonic(), processor_seconds()
    environment = {**os.environ, **(environment or {})}
    environment = {name: value for name, value in environment.items() if value is not None}
    arguments = [str(argument) for argument in arguments]
    server = next((one for one in warm if one.takes(environment)), None)
    if not cold and server and (done := server.run(arguments, folder, environment, timeout)):
        status, output, used = done
        return Run(status, output, time.monotonic() - started, used)
    done = subprocess.run(
        [str(BIN / "ansible-playbook"), *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    return Run(done.returncode, done.stdout, time.monotonic() - started, processor_seconds() - before)


def without_ansible(**more):
    """This process's environment with nothing of Ansible's and Python's but this."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "PYTHON"))}
    return {**kept, "ANSIBLE_NOCOLOR": "1", **more}


def processor_seconds():
    """Seconds of processors that the children of this process took which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_for(condition, seconds=60, what="it"):
    """The first true value of `condition()`; patient, for a machine that does other work too."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "%s did not happen within %d s" % (what, seconds)
        time.sleep(0.05)
    return value
