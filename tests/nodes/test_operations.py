# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Day two on two nodes with real sshd whose host keys are checked: restart, clean, and a node that is replaced."""

from __future__ import annotations

import json
import os

import markupsafe
import pytest
import yaml
from ansible_collections.inference.fleet.tests.nodes.conftest import created, fingerprint, host_key

OTHER = "other.example ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIC somebody else's"
LIB = "/var/lib/inference-fleet"


class Pair:
    """Two nodes that are reached by name, through an ssh configuration that checks host keys."""

    def __init__(self, site):
        self.site, self.play = site, site.play
        self.folder = site.reports.parent
        self.known = self.folder / "known_hosts"
        self.config = self.folder / "ssh_config"
        self.names = [node.name for node in site.nodes]
        self.write_config()
        self.known.write_text("\n".join([*(self.line(node) for node in site.nodes), OTHER]) + "\n")

    def write_config(self):
        """Have Ansible connect by the nodes' names, at the addresses that they have now."""
        inventory = yaml.safe_load(self.site.inventory.read_text())
        for name, host in inventory["cpu"]["hosts"].items():
            host.update(ansible_host=name, ansible_ssh_common_args="-F %s" % self.config)
        self.site.inventory.write_text(yaml.safe_dump(inventory))
        lines = ["IdentitiesOnly yes", "StrictHostKeyChecking yes", "UserKnownHostsFile %s" % self.known]
        lines.append("HashKnownHosts yes")
        for node in self.site.nodes:
            lines += ["Host " + node.name, "  HostName " + node.address, "  HostKeyAlias " + node.name]
        self.config.write_text("\n".join(lines) + "\n")

    def line(self, node):
        return "%s %s" % (node.name, host_key(node))

    def pids(self, node):
        state = "cat /run/inference-fleet/servers/server-%d.json"
        return [json.loads(node.ssh(state % number))["pid"] for number in (0, 1)]

    @property
    def report(self):
        return json.loads((self.site.reports / "verdict.json").read_text())

    @property
    def verified(self):
        return sorted(name for name, host in self.report["hosts"].items() if host["ok"])


@pytest.fixture(scope="module")
def pair(nodes, make_site):
    with created(["pair-%d-%d" % (os.getpid(), index) for index in range(2)]) as made:
        one = Pair(make_site(made))
        one.site.site().ok()
        assert one.verified == one.names
        yield one


def test_one_server_is_restarted_and_the_others_are_not(pair):
    first, second = pair.site.nodes
    before = pair.pids(first), pair.pids(second)
    run = pair.play("playbooks/restart.yml", "--check", "--limit", first.name, fleet_server="server-1").ok()
    assert "server-1: would restart: state is restarted" in run.output
    assert (pair.pids(first), pair.pids(second)) == before
    assert pair.verified == pair.names, "what was not restarted keeps its verdict"

    pair.play("playbooks/restart.yml", "--limit", first.name, fleet_server="server-1").ok()
    after = pair.pids(first)
    assert after[0] == before[0][0]
    assert after[1] != before[0][1]
    assert pair.pids(second) == before[1]
    assert (pair.report["run"]["hosts"], pair.verified) == ([first.name], pair.names)
    assert pair.report["hosts"][first.name]["mode"] == "full"


def test_clean_lists_and_deletes_what_nothing_uses(pair):
    first, second = pair.site.nodes
    old = ["servers/server-7", "models/old", "venvs/old"]
    first.ssh(
        "cd %s && mkdir -p servers/server-7/work models/old venvs/old models/mine && touch models/old/"
        ".inference-fleet-manifest.json venvs/old/.inference-fleet.json" % LIB
    )
    before = pair.pids(first), pair.pids(second)
    run = pair.play("playbooks/clean.yml", "--check", fleet_clean=True).ok()
    assert all("%s/%s" % (LIB, path) in run.output for path in old)
    assert (run.count("changed"), run.output.count("would be deleted")) == (1, 3)
    there = "ls -d %s" % " ".join("%s/%s" % (LIB, path) for path in [*old, "models/mine"])
    assert len(first.ssh(there).split()) == 4
    assert pair.play("playbooks/clean.yml", fleet_clean=True).ok().count("changed") == 1
    assert first.ssh(there + " 2>/dev/null", check=False).split() == [LIB + "/models/mine"]
    assert (pair.pids(first), pair.pids(second)) == before


def test_a_node_that_is_down_does_not_hold_up_the_other(pair, nodes):
    first, second = pair.site.nodes
    nodes.docker("stop", "--time", "20", first.container)
    before = pair.pids(second)
    run = pair.site.site()
    assert (run.status, run.count("unreachable"), run.count("failed")) == (4, 1, 0), run.output
    assert (pair.verified, pair.pids(second)) == ([second.name], before)
    assert (pair.report["ok"], pair.report["run"]["hosts"]) == (None, pair.names)
    cause = pair.report["hosts"][first.name]["missing"]["cause"]
    assert cause.startswith("Unreachable: ")
    assert str(markupsafe.escape(cause)) in (pair.site.reports / "verdict.html").read_text()

    run = pair.play("playbooks/restart.yml", fleet_server="all")
    assert run.status == 4, run.output
    after = pair.pids(second)
    assert not set(after) & set(before)
    assert pair.site.site("--limit", second.name).ok().count("changed") == 0

    nodes.docker("start", first.container)
    nodes.wait_for_boot(first)
    pair.site.site().ok()
    assert (pair.report["ok"], pair.verified, pair.pids(second)) == (True, pair.names, after)


def test_a_replaced_node_comes_back_by_one_command(pair, nodes):
    """An empty machine under the old name."""
    first, second = pair.site.nodes
    before = pair.pids(second)
    first = nodes.create([first.name])[0]
    pair.site.__init__([first, second], pair.folder)  # puts the engine there too
    pair.write_config()
    first.ssh("useradd --system --user-group inference-fleet")  # the step prepare installs from a network
    right = fingerprint(first)

    run = pair.site.site()
    assert run.status == 4
    assert "fatal: [%s]: UNREACHABLE!\n    its host key has changed to %s (ED25519)" % (first.name, right) in run.output
    assert pair.verified == [second.name]

    replace = ("playbooks/replace_node.yml", "--skip-tags", "prepare,weights")
    run = pair.play(*replace, fleet_node=first.name, fleet_host_key=right).ok()
    assert pair.verified == pair.names
    assert pair.pids(second) == before
    lines = pair.known.read_text().splitlines()
    assert lines[:2] == [pair.line(second), OTHER]
    assert len(lines) == 3
    assert lines[2].startswith("|1|")
    assert pair.report["run"]["hosts"] == [first.name]
    # the same command has nothing to do now
    assert pair.play(*replace, fleet_node=first.name, fleet_host_key=right).ok().count("changed") == 0
