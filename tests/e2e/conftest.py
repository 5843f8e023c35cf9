# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The local deployment for real: the playbooks of this clone, real vLLM, a folder of its own below .cache."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
# The environment with vLLM is shared by all runs of the tests; everything else is made anew.
VENV = CLONE / ".cache" / "e2e-venv"
FIRST_PORT = 18500


@dataclasses.dataclass
class Run:
    """What a playbook did: exit status, screen, seconds, and the recap's counts summed over the hosts."""

    status: int
    output: str
    seconds: float

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


class Deployment:
    """A fleet_root with its reports, ports and the playbooks run against it."""

    def __init__(self, folder, first_port=FIRST_PORT):
        self.root = folder / "r"
        self.reports = folder / "reports"
        self.ports = [first_port, first_port + 1]
        self.layers = {"venv": {"path": str(VENV)}, "servers": {"server": {"port": first_port}}}

    def play(self, playbook, *arguments, override=None):
        """Run a playbook of the clone; ``override`` is laid over the recipe as a layer of its own."""
        variables = {"fleet_override_e2e": self.layers, "fleet_reports_dir": str(self.reports)}
        if override:
            variables["fleet_override_test"] = override
        started = time.monotonic()
        done = subprocess.run(
            [
                str(BIN / "ansible-playbook"),
                playbook,
                "-i",
                "inventories/local",
                "-e",
                json.dumps(variables),
                *arguments,
            ],
            cwd=CLONE,
            env={**os.environ, "FLEET_ROOT": str(self.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )
        run = Run(done.returncode, done.stdout, time.monotonic() - started)
        print(run.output)
        return run

    def site(self, *arguments, **kwargs):
        return self.play("site.yml", *arguments, **kwargs)

    def verdicts(self):
        """{server: {probe: ok}} of the last report."""
        report = json.loads((self.reports / "verdict.json").read_text())
        return {
            verdict["server"]: {probe["name"]: probe["ok"] for probe in verdict["probes"]}
            for host in report["hosts"].values()
            for verdict in host["verdicts"]
        }

    def state(self, name):
        """What the guard wrote of a server: pid, hash, started."""
        return json.loads((self.root / "run" / "inference-fleet" / "servers" / (name + ".json")).read_text())

    def pids(self):
        return {name: self.state(name)["pid"] for name in ("server-0", "server-1")}

    def processes(self):
        """Every process that belongs to this root: servers by their marker, supervisord by its configuration."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            try:
                environ = (folder / "environ").read_bytes().split(b"\0")
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue
            ours = b"INFERENCE_FLEET_ROOT=" + str(self.root).encode() in environ
            if ours or (str(self.root) in command and "supervisord" in command):
                found.append((int(folder.name), command))
        return found

    @staticmethod
    def wait_for(condition, seconds, what):
        """The condition's value as soon as it is true; an error naming ``what`` after ``seconds``."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = condition()
            if value:
                return value
            time.sleep(0.5)
        raise AssertionError("%s: not within %d s" % (what, seconds))


@pytest.fixture(scope="session")
def deployment():
    """One deployment for all tests of the session, taken down at the end whatever happens."""
    folder = CLONE / ".cache" / "e2e"
    one = Deployment(folder)
    if folder.exists():
        one.play("playbooks/stop.yml")
        shutil.rmtree(folder)
    yield one
    one.play("playbooks/stop.yml")
