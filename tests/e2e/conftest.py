# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The local deployment for real: the playbooks of this clone, real vLLM, a folder of its own below .cache."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.tests.nodes import debian_packages
from ansible_collections.inference.fleet.tests.runs import CLONE, play, wait_for
from ansible_collections.inference.fleet.tools import engine_venv

JUDGE = Path(__file__).with_name("parser_judge.py")
FIRST_PORT = 18500
# probes that a stand-in need not pass
UNTOLD = {
    "tool-arguments", "tool-result", "second-tool-round", "system-message", "developer-message", "multi-turn",
    "long-prompt", "long-answer", "exact-text", "unbuffered",
}  # fmt: skip
KEYS = ['sk-e2e-"first"\\&/%41', "sk-e2e-second"]  # the servers ask for one of them, clients of ours send the first
# The same in each run, however busy the machine is: another limit asks for another full verification.
VERIFY_TIMEOUT_S = 240


def patience(seconds):
    """Returns how long to wait for what takes so many seconds at most on a machine that does nothing else."""
    return seconds * max(1, round(os.getloadavg()[0] / len(os.sched_getaffinity(0))))


class Deployment:
    """A fleet_root with its reports, ports and the playbooks run against it."""

    wait_for = staticmethod(wait_for)
    first_port, api_keys = FIRST_PORT, KEYS

    def __init__(self, folder, venv):
        self.root = folder / "r"
        self.reports = folder / "reports"
        self.ports = [self.first_port, self.first_port + 1]
        # The environment with vLLM is shared by all runs of the tests; everything else is made anew.
        # A start has longer than a play: the machine may do other work too, and what waits in vain is seen.
        self.keys = folder.parent / "e2e-keys.json"  # not in a command line, as a vault's would not be
        self.keys.parent.mkdir(parents=True, exist_ok=True)
        self.keys.write_text(json.dumps({"fleet_api_key": self.api_keys} if self.api_keys else {}))
        servers = {"server": {"port": self.first_port}}
        self.layers = {"venv": venv, "servers": servers, "start": {"budget_s": 1800}}

    def play(self, playbook, *arguments, override=None, cold=False):
        """Run a playbook of the clone; ``override`` is laid over the recipe as a layer of its own."""
        variables = {
            "fleet_override_e2e": self.layers, "fleet_reports_dir": str(self.reports),
            "verify_timeout_s": VERIFY_TIMEOUT_S, "verify_quick_timeout_s": patience(20),
        }  # fmt: skip
        if override:
            variables["fleet_override_test"] = override
        return play(
            playbook, "inventories/local", "-e", "@%s" % self.keys, *arguments,
            variables=variables, environment={"FLEET_ROOT": str(self.root)}, cold=cold,
        )  # fmt: skip

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


class Dynamo(Deployment):
    """The recipe cpu-dynamo; Dynamo has no API keys."""

    recipe = "cpu-dynamo"
    first_port, api_keys = FIRST_PORT + 50, None

    def __init__(self, folder, venv):
        super().__init__(folder, venv)
        groups = {"frontend": {"port": self.first_port}}
        for number, name in enumerate(("prefill", "decode")):
            ports = ("system", "side_channel", "kv_events")
            groups[name] = {
                "ports": {kind: self.first_port + 1 + 10 * number + 3 * at for at, kind in enumerate(ports)}
            }
        self.layers["servers"] = groups

    def play(self, playbook, *arguments, **options):
        return super().play(playbook, "-e", "fleet_recipe=" + self.recipe, *arguments, **options)


class Measured(Deployment):
    """The local deployment as people have it: without API keys."""

    first_port, api_keys = FIRST_PORT + 80, None

    def benchmark(self, name, profile, *arguments):
        """(the Run of benchmark.yml with this profile, the results that it added to the history, the newest last)."""
        known = {one["id"] for one in self.history()}
        override = {"benchmark": {"profiles": {name: profile}}}
        arguments = ["-e", "benchmark_profile=" + name, "-e", "benchmark_again=true", *arguments]
        run = self.play("playbooks/benchmark.yml", *arguments, override=override)
        return run, [one for one in self.history() if one["id"] not in known]

    def history(self):
        return result.history(str(self.reports), candidates=True)[0]


@contextlib.contextmanager
def killed_while_asked(one, pid, requests):
    """kill -9 for a process of the deployment as soon as a benchmark tool has an answer of so many requests."""
    done = re.compile(r"\b[1-9]\d*/%d\b" % requests)
    folder, began = one.root / "var" / "lib" / "inference-fleet" / "benchmarks", time.time()

    def answered():
        logs = [log for log in folder.glob("*/job/log") if log.stat().st_mtime >= began]
        return any(done.search(log.read_text(errors="replace")) for log in logs)

    def kill():
        wait_for(answered, 600, "an answer")
        os.kill(pid, signal.SIGKILL)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        yield
        killing.result(0)


def said_by(venv, script, *arguments, given=None):
    """The JSON in the last line of what a script prints in an environment, with `given` on its input."""
    done = subprocess.run(
        [str(Path(venv) / "bin" / "python"), str(script), *arguments], input=json.dumps(given),
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def debian_programs(package):
    """The folder of the programs of a package of Debian, unpacked in the cache and not installed."""
    folder = CLONE / ".cache" / "debian" / package
    programs = folder / "root" / "usr" / "bin"
    if not programs.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        debian_packages.unpack(folder, package)
    return programs


@contextlib.contextmanager
def deployed(kind, folder, *recipe):
    """A deployment of this kind in an empty folder of the cache, taken down at the end whatever happens."""
    folder = CLONE / ".cache" / folder
    one = kind(folder, {"path": str(engine_venv.ensure(*recipe)), "create": not engine_venv.borrowed(*recipe)})
    if folder.exists():
        one.play("playbooks/stop.yml")
        shutil.rmtree(folder)
    try:
        yield one
    finally:
        one.play("playbooks/stop.yml")


@pytest.fixture(scope="module")
def measured():
    """Two servers that are measured."""
    with deployed(Measured, "e2e-measured/m") as one:
        one.site().ok()
        yield one


@pytest.fixture(scope="module")
def dynamo():
    """A frontend, a prefill and a decode worker."""
    with deployed(Dynamo, "e2e-dynamo/d", Dynamo.recipe) as one:
        yield one


@pytest.fixture(scope="session")
def deployment():
    """One deployment for all tests of the session."""
    with deployed(Deployment, "e2e") as one:
        yield one
