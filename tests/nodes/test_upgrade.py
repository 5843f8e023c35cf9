# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the release before deployed under systemd is taken over: no server is lost, no restart is unannounced."""

from __future__ import annotations

import os

import pytest
from ansible_collections.inference.fleet.tests.releases import before

PLATFORMS = {
    "cpu": {
        "fleet_override_upgrade": {
            "secrets": {"HF_TOKEN": "test_token"},
            "environment": {"PERCENT": "100%", "QUOTES": "'\" $HOME\n;"},
            "arguments": {"json": {"share": "7%"}},
            "start": {"order": "leader-first", "restart_with_leader": True},
        },
        "test_token": "hf_test_0123456789abcdef",
        "fleet_watchdog": True,
        "fleet_watchdog_interval_s": 1,
    },
}


class Upgrade:
    """A node that the release before deployed servers on; the playbooks of now run against it."""

    def __init__(self, site, variables, release):
        self.site, self.variables, self.release = site, variables, release

    def play(self, playbook, *arguments, release=None):
        return self.site.play(playbook, *arguments, release=release, **self.variables)

    def deploy_with_the_release_before(self):
        recipes = str(self.release["folder"] / "tests" / "nodes" / "recipes")
        self.variables = {**self.variables, "fleet_recipe_paths": [recipes]}
        return self.play("tests/nodes/site.yml", release=self.release)

    def healthy(self):
        return all(self.site.healthy(name) for name in ("server-0", "server-1"))


@pytest.fixture(scope="module", params=PLATFORMS)
def upgrade(request, nodes, make_site, tmp_path_factory):
    name = "upgrade-%d" % os.getpid()
    release = before(tmp_path_factory.mktemp("release"))
    try:
        site = make_site(nodes.create([name], request.param))
        one = Upgrade(site, PLATFORMS[request.param], release)
        assert one.deploy_with_the_release_before().ok().count("changed") > 0
        assert one.play("tests/nodes/site.yml", release=release).ok().count("changed") == 0
        yield one
    finally:
        nodes.docker("rm", "--force", "--volumes", nodes.container_name(name), check=False)


def test_servers_are_kept_or_their_restart_is_announced(upgrade):
    site, pids, processes = upgrade.site, upgrade.site.pids(), upgrade.site.processes()
    looked = upgrade.play("playbooks/status.yml")
    check = upgrade.play("tests/nodes/site.yml", "--check", "--diff").ok()
    assert site.processes() == processes  # neither changes anything
    run = upgrade.play("tests/nodes/site.yml").ok()
    assert run.count("changed") == check.count("changed") <= 1
    words = " ".join(run.output.split())
    restarted = [name for name, pid in pids.items() if site.pids()[name] != pid]
    print("upgrade: changed=%d, restarted: %s" % (run.count("changed"), ", ".join(restarted) or "none"))
    assert all("%s was restarted" % name in words for name in restarted)
    assert looked.status == (2 if restarted else 0)
    assert upgrade.healthy()
    assert site.verified() == [site.node.name]
    assert {server for _pid, server in site.processes()} == set(pids)


def test_a_second_run_and_status_have_nothing_to_do(upgrade):
    pids = upgrade.site.pids()
    assert upgrade.play("tests/nodes/site.yml").ok().count("changed") == 0
    assert upgrade.play("playbooks/status.yml").ok().count("changed") == 0
    assert upgrade.site.pids() == pids


def test_a_killed_server_comes_back_with_what_is_on_the_node_now(upgrade):
    site, pids = upgrade.site, upgrade.site.pids()
    site.node.ssh("kill -9 %d" % pids["server-1"])
    site.wait_for(lambda: site.pids()["server-1"] != pids["server-1"] and upgrade.healthy(), 300, "server-1")
    assert site.pids()["server-0"] == pids["server-0"]
    assert upgrade.play("tests/nodes/site.yml").ok().count("changed") == 0


def test_a_reboot_ends_in_the_same_state(upgrade):
    upgrade.site.node.reboot()
    upgrade.site.wait_for(upgrade.healthy, 300, "both servers after the reboot")
    assert upgrade.play("tests/nodes/site.yml").ok().count("changed") == 0


def test_stop_and_purge_leave_nothing_of_either_release(upgrade):
    upgrade.site.play("playbooks/stop.yml", fleet_purge=True, **upgrade.variables).ok()
    left = "find / -xdev -name '*inference-fleet*'; ls -d /run/inference-fleet 2>/dev/null"
    assert upgrade.site.node.ssh(left + "; getent passwd inference-fleet", check=False) == ""
    assert upgrade.site.processes() == []
