# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks of this clone against test nodes. The scenario's steps build on each other, in the order of their file."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from ansible_collections.inference.fleet.tests.nodes import guide_node
from ansible_collections.inference.fleet.tests.runs import CLONE, play, wait_for
from ansible_collections.inference.fleet.tools import nodes as tool

HERE = Path(__file__).resolve().parent
RUN = "/run/inference-fleet/servers"


def host_key(node):
    """The type and the key that the node's ssh server shows."""
    return " ".join(node.ssh("cat /etc/ssh/ssh_host_ed25519_key.pub").split()[:2])


def fingerprint(node):
    command = ["ssh-keygen", "-lf", "-"]
    return subprocess.run(command, input=host_key(node), capture_output=True, text=True, check=True).stdout.split()[1]


def bring_engine(node):
    """Copy the scripted engine to /opt/engine."""
    node.ssh("mkdir -p /opt/engine")
    for path in ("tests/nodes/engine.py", "tests/unit/engines/scripted_engine.py"):
        node.copy(CLONE / path, "/opt/engine/")


class Site:
    """Nodes with small servers, and the playbooks run against them; `node` is the first."""

    wait_for = staticmethod(wait_for)

    def __init__(self, nodes, folder):
        self.nodes = nodes
        self.node = nodes[0]
        self.reports = folder / "reports"
        self.inventory = folder / "hosts.yml"
        variables = {
            "ansible_python_interpreter": "/usr/bin/python3",
            "fleet_recipe": "node-small",
            "fleet_recipe_paths": [str(HERE / "recipes")],
            "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2},
            "fleet_reports_dir": str(self.reports),
        }
        hosts = {node.name: {**variables, **node.variables()} for node in nodes}
        platform, engine = tool.read_platform(self.node.platform).groups
        self.inventory.write_text(yaml.safe_dump({platform: {"hosts": hosts}, engine: {"children": {platform: {}}}}))
        for node in nodes:
            bring_engine(node)

    def play(self, playbook, *arguments, override=None, **variables):
        """Run a playbook of the clone; `override` changes the recipe."""
        if override:
            variables["fleet_override_test"] = override
        return play(playbook, self.inventory, *arguments, variables=variables, timeout=300)

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

    def ignores(self, pid, sign):
        """Whether a process of the node ignores the signal."""
        ignored = self.node.ssh("sed -n 's/^SigIgn:[[:space:]]*//p' /proc/%d/status" % pid)
        return bool(int(ignored, 16) & 1 << sign - 1)

    def verified(self):
        """Names of the hosts all of whose servers passed, of the last report."""
        report = json.loads((self.reports / "verdict.json").read_text())
        return [name for name, host in report["hosts"].items() if host["ok"]]

    def healthy(self, name):
        port = 8000 + int(name[-1])
        code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:%d/health', timeout=5).status)" % port
        return self.node.ssh('/usr/bin/python3 -c "%s"' % code, check=False).strip() == "200"


@contextlib.contextmanager
def created(names, *arguments):
    """The nodes of tool.create() for a `with` statement, removed at its end whatever happens."""
    try:
        yield tool.create(names, *arguments)
    finally:
        for name in names:
            tool.docker("rm", "--force", "--volumes", tool.container_name(name), check=False)


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
def make_site(tmp_path_factory):
    """Makes a Site of nodes that run."""
    return lambda made: Site(made, tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def site(nodes, make_site):
    """One node for all tests of a file, removed at the end whatever happens."""
    began = time.monotonic()
    with created(["test-%d" % os.getpid()]) as made:
        print("node: %.1f s" % (time.monotonic() - began))
        yield make_site(made)


@pytest.fixture(scope="module")
def make_guide_node(nodes, tmp_path_factory):
    """Make a GuideNode of a platform with these variables, removed with the last test of the file."""
    with contextlib.ExitStack() as stack:

        def make(platform, **variables):
            folder = tmp_path_factory.mktemp(platform)
            names, shares = ["guide-%s-%d" % (platform, os.getpid())], [guide_node.share(folder / "tools")]
            (node,) = stack.enter_context(created(names, platform, shares))
            return guide_node.GuideNode(node, folder, **variables)

        yield make
