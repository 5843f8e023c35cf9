# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node without a controller pulls inventories/pull from a git repository and converges itself."""

from __future__ import annotations

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

NAME = "pull-0"  # the first host of the example
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
    """The repository of a site, and the node that serves it and pulls from it."""

    def __init__(self, node, folder):
        self.node, self.site = node, folder / "site"
        shutil.copytree(CLONE / "inventories" / "pull", self.site)
        self.variables = self.site / "hosts" / "group_vars" / "all.yml"
        said = yaml.safe_load(self.variables.read_text())
        assert said["fleet_recipe"] == VARIABLES["fleet_recipe"]
        self.write(**{**said, **VARIABLES})
        git(self.site, "init", "--quiet", "--initial-branch", "main")
        self.url = "git://%s/site.git" % node.address
        subprocess.run([str(BIN / "ansible-galaxy"), "collection", "build", "--output-path", str(folder), str(CLONE)],
                       check=True, capture_output=True)  # fmt: skip
        (archive,) = folder.glob("*.tar.gz")
        node.copy(archive, "/root/fleet.tar.gz")
        node.ssh(INSTALL, timeout=300)
        bring_engine(node)
        self.commit("begin")
        node.ssh("git daemon --detach --export-all --base-path=/srv --listen=%s /srv" % node.address)

    def write(self, **variables):
        self.variables.write_text(yaml.safe_dump(variables))

    def commit(self, message):
        git(self.site, "add", "--all")
        git(self.site, "commit", "--quiet", "--message", message)
        bare = self.site.parent / "site.git"
        shutil.rmtree(bare, ignore_errors=True)
        git(self.site, "clone", "--quiet", "--bare", ".", str(bare))
        self.node.ssh("rm -rf /srv/site.git")
        self.node.copy(bare, "/srv/")
        self.node.ssh("chown -R root:root /srv/site.git")

    def pull(self):
        """(changed, the verdict of its own report) after the node has pulled."""
        played = self.node.ssh(PULL % self.url, timeout=600).rpartition("PLAY RECAP")[2]
        report = json.loads(self.node.ssh("cat /var/lib/fleet-reports/verdict.json"))
        assert list(report["hosts"]) == [NAME]
        return sum(map(int, re.findall(r"\bchanged=(\d+)", played))), report["ok"]


@pytest.fixture(scope="module")
def pulling(nodes, tmp_path_factory):
    with created([NAME], "pull") as (node,):
        yield Pulling(node, tmp_path_factory.mktemp("pull"))


def test_a_node_converges_itself_and_writes_its_own_verdict(pulling):
    changed, ok = pulling.pull()
    assert changed > 0 and ok is True
    assert pulling.pull()[0] == 0


def test_a_commit_changes_it(pulling):
    variables = yaml.safe_load(pulling.variables.read_text())
    variables["fleet_override"]["arguments"]["max-num-seqs"] = 4
    pulling.write(**variables)
    pulling.commit("fewer sequences")
    # one server after the other, then the plan that a rollback returns to
    assert pulling.pull() == (3, True)
    entry = json.loads(pulling.node.ssh("cat /etc/inference-fleet/servers/server-0.json"))
    assert entry["arguments"]["max-num-seqs"] == 4
