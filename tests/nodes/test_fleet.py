# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Three nodes of which one is down: the others are served, the report says which is missing, and it catches up."""

from __future__ import annotations

import html
import json
import os

import pytest


@pytest.fixture(scope="module")
def fleet(nodes, make_site):
    """A site of three nodes, the last of which is down."""
    names = ["trio-%d-%d" % (os.getpid(), index) for index in range(3)]
    try:
        made = nodes.create(names)
        one = make_site(made)
        nodes.docker("stop", "--time", "20", made[2].container)
        yield one
    finally:
        nodes.destroy(names)


def test_a_node_that_is_down_does_not_hold_up_the_others(fleet):
    up, down = [node.name for node in fleet.nodes[:2]], fleet.nodes[2].name
    run = fleet.site()
    assert run.status == 4, run.output  # as ansible-playbook says "unreachable"
    assert run.count("unreachable") == 1
    assert run.count("failed") == 0
    assert "fatal: [%s]: UNREACHABLE!" % down in run.output
    assert sorted(fleet.verified()) == up
    assert all(fleet.healthy(name, node) for node in fleet.nodes[:2] for name in ("server-0", "server-1"))
    report = json.loads((fleet.reports / "verdict.json").read_text())
    assert (report["ok"], report["run"]["hosts"]) == (None, [*up, down])
    assert report["hosts"][down]["missing"]["last"] is None
    page = (fleet.reports / "verdict.html").read_text()
    assert "4 of 6 servers verified" in page
    cause = report["hosts"][down]["missing"]["cause"]
    assert cause.startswith("Unreachable: ")
    assert html.escape(cause) in page


def test_the_others_have_nothing_to_do_with_limit(fleet):
    run = fleet.site("--limit", "!" + fleet.nodes[2].name).ok()
    assert run.count("changed") == 0
    report = json.loads((fleet.reports / "verdict.json").read_text())
    assert report["run"]["hosts"] == [node.name for node in fleet.nodes[:2]]
    assert report["hosts"][fleet.nodes[2].name]["missing"]["run"] != report["run"]["id"]
    assert report["ok"] is None


def test_it_catches_up_when_it_is_back(fleet, nodes):
    nodes.docker("start", fleet.nodes[2].container)
    nodes.wait_for_boot(fleet.nodes[2])
    run = fleet.site().ok()
    changed = [line for line in run.output.splitlines() if "changed=" in line and "changed=0" not in line]
    assert len(changed) == 1
    assert changed[0].startswith(fleet.nodes[2].name)
    assert sorted(fleet.verified()) == [node.name for node in fleet.nodes]
    fleet.play("playbooks/status.yml").ok()
    report = json.loads((fleet.reports / "verdict.json").read_text())
    assert (report["ok"], len(report["hosts"])) == (True, 3)
