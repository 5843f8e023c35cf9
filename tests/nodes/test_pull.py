# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node without a controller pulls inventories/pull from a git repository and converges itself."""

from __future__ import annotations

import concurrent.futures
import json
import re
import shutil
import subprocess

import pytest
import yaml
from ansible_collections.inference.fleet.tests.nodes.conftest import bring_engine, created
from ansible_collections.inference.fleet.tests.nodes.test_breakages import VARIABLES
from ansible_collections.inference.fleet.tests.runs import BIN, CLONE

pytestmark = pytest.mark.soak

NAMES = ["pull-0"]  # the first host of the example
CHECKOUT = "/var/lib/fleet-site"
INSTALL = (
    "python3 -m venv /opt/fleet && /opt/fleet/bin/pip install --quiet --no-index "
    "--find-links /opt/shared/controller-wheels ansible-core jsonschema && "
    "/opt/fleet/bin/ansible-galaxy collection install --offline /root/fleet.tar.gz -p /opt/fleet/collections"
)
# as docs/using/scale.md has it
PULL = "/opt/fleet/bin/ansible-pull -U %s -d {0} -i {0}/hosts/$(hostname).yml {0}/site.yml".format(CHECKOUT)


def git(folder, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


class Pulling:
    """The repository of a site, served by the first node, and nodes that pull from it."""

    def __init__(self, nodes, folder):
        self.nodes, self.site = nodes, folder / "site"
        shutil.copytree(CLONE / "inventories" / "pull", self.site)
        self.variables = self.site / "hosts" / "group_vars" / "all.yml"
        said = yaml.safe_load(self.variables.read_text())
        assert said["fleet_recipe"] == VARIABLES["fleet_recipe"]
        self.write(**{**said, **VARIABLES})
        git(self.site, "init", "--quiet", "--initial-branch", "main")
        self.url = "git://%s/site.git" % nodes[0].address
        subprocess.run([str(BIN / "ansible-galaxy"), "collection", "build", "--output-path", str(folder), str(CLONE)],
                       check=True, capture_output=True)  # fmt: skip
        (archive,) = folder.glob("*.tar.gz")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: self.install(node, archive), nodes))
        self.commit("begin")
        nodes[0].ssh("git daemon --detach --export-all --base-path=/srv --listen=%s /srv" % nodes[0].address)

    @staticmethod
    def install(node, archive):
        node.copy(archive, "/root/fleet.tar.gz")
        node.ssh(INSTALL, timeout=300)
        bring_engine(node)

    def write(self, **variables):
        self.variables.write_text(yaml.safe_dump(variables))

    def commit(self, message):
        git(self.site, "add", "--all")
        git(self.site, "commit", "--quiet", "--message", message)
        bare = self.site.parent / "site.git"
        shutil.rmtree(bare, ignore_errors=True)
        git(self.site, "clone", "--quiet", "--bare", ".", str(bare))
        self.nodes[0].ssh("rm -rf /srv/site.git")
        self.nodes[0].copy(bare, "/srv/")
        self.nodes[0].ssh("chown -R root:root /srv/site.git")

    def pull(self):
        """{node: (changed, what its own report says)} after each has pulled; all at once."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            screens = list(pool.map(lambda node: node.ssh(PULL % self.url, timeout=600), self.nodes))
        found = {}
        for node, screen in zip(self.nodes, screens):
            report = json.loads(node.ssh("cat /var/lib/fleet-reports/verdict.json"))
            played = screen.rpartition("PLAY RECAP")[2]
            found[node.name] = sum(map(int, re.findall(r"\bchanged=(\d+)", played))), report
        return found


@pytest.fixture(scope="module")
def pulling(nodes, tmp_path_factory):
    with created(NAMES, "pull") as made:
        yield Pulling(made, tmp_path_factory.mktemp("pull"))


def test_a_node_converges_itself_and_writes_its_own_verdict(pulling):
    for name, (changed, report) in pulling.pull().items():
        assert changed > 0
        assert (report["ok"], list(report["hosts"])) == (True, [name])
    assert [changed for changed, _report in pulling.pull().values()] == [0]


def test_a_commit_changes_it(pulling):
    variables = yaml.safe_load(pulling.variables.read_text())
    variables["fleet_override"]["arguments"]["max-num-seqs"] = 4
    pulling.write(**variables)
    pulling.commit("fewer sequences")
    for name, (changed, report) in pulling.pull().items():
        # one server after the other, then the plan that a rollback returns to
        assert (changed, report["ok"], list(report["hosts"])) == (3, True, [name])
    entries = [node.ssh("cat /etc/inference-fleet/servers/server-0.json") for node in pulling.nodes]
    assert [json.loads(entry)["arguments"]["max-num-seqs"] for entry in entries] == [4]
