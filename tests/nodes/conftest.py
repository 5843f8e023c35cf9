# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks of this clone against test nodes. The scenario's steps build on each other, in the order of their file."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

CLONE = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
RUN = "/run/inference-fleet/servers"


def _load_tool():
    spec = importlib.util.spec_from_file_location("nodes_tool", CLONE / "tools" / "nodes.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


tool = _load_tool()


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


class Site:
    """A node with small servers, and the playbooks run against it."""

    def __init__(self, node, folder):
        self.node = node
        self.reports = folder / "reports"
        self.inventory = folder / "hosts.yml"
        variables = {
            **node.variables(),
            "ansible_python_interpreter": "/usr/bin/python3",
            "fleet_recipe": "node-small",
            "fleet_recipe_paths": [str(HERE / "recipes")],
            "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2},
            "fleet_reports_dir": str(self.reports),
        }
        hosts = {node.name: variables}
        self.inventory.write_text(yaml.safe_dump({"cpu": {"hosts": hosts}, "vllm": {"children": {"cpu": {}}}}))

    def play(self, playbook, *arguments, override=None, **variables):
        """Run a playbook of the clone, `override` laid over the recipe."""
        if override:
            variables["fleet_override_test"] = override
        started = time.monotonic()
        done = subprocess.run(
            [str(BIN / "ansible-playbook"), playbook, "-i", str(self.inventory), "-e", json.dumps(variables),
             *arguments],
            cwd=CLONE, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        run = Run(done.returncode, done.stdout, time.monotonic() - started)
        print(run.output)
        print("%s: %.1f s" % (playbook, run.seconds))
        return run

    def site(self, *arguments, **others):
        return self.play("tests/nodes/site.yml", *arguments, **others)

    def state(self, name):
        """What the guard wrote of a server."""
        return json.loads(self.node.ssh("cat %s/%s.json" % (RUN, name)))

    def pids(self):
        return {name: self.state(name)["pid"] for name in ("server-0", "server-1")}

    def processes(self):
        """[(pid, server)] of all that runs with a guard's marker on the node."""
        script = (
            "for f in /proc/[0-9]*; do s=$(tr '\\0' '\\n' < $f/environ 2>/dev/null | "
            'sed -n s/^INFERENCE_FLEET_SERVER=//p); [ -n "$s" ] && echo ${f#/proc/} $s; done; true'
        )
        lines = (line.split() for line in self.node.ssh(script).splitlines())
        return sorted((int(pid), server) for pid, server in lines)

    def healthy(self, name):
        port = 8000 + int(name[-1])
        code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:%d/health', timeout=5).status)" % port
        return self.node.ssh('/usr/bin/python3 -c "%s"' % code, check=False).strip() == "200"

    @staticmethod
    def wait_for(condition, seconds, what):
        """The condition's value as soon as it is true; an error naming ``what`` after ``seconds``."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = condition()
            if value:
                return value
            time.sleep(0.3)
        raise AssertionError("%s: not within %d s" % (what, seconds))


@pytest.fixture(scope="session")
def nodes():
    """The tool, where nodes can be started; without them the tests are left out, in CI they fail."""
    try:
        tool.build()
    except tool.Unavailable as error:
        if os.environ.get("CI"):
            pytest.fail("test nodes: %s" % error)
        pytest.skip("test nodes: %s" % error)
    yield tool
    tool.end_engine()


@pytest.fixture(scope="module")
def site(nodes, tmp_path_factory):
    """One node for all tests of a file, removed at the end whatever happens."""
    began = time.monotonic()
    name = "test-%d" % os.getpid()
    try:
        (node,) = nodes.create([name])
        print("node: %.1f s" % (time.monotonic() - began))
        node.ssh("mkdir -p /opt/engine")
        node.copy(HERE / "engine.py", "/opt/engine/")
        node.copy(CLONE / "tests" / "unit" / "engines" / "scripted_engine.py", "/opt/engine/")
        yield Site(node, tmp_path_factory.mktemp("site"))
    finally:
        nodes.docker("rm", "--force", "--volumes", nodes.container_name(name), check=False)
