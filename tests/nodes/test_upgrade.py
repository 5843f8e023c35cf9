# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the release before deployed under systemd is taken over: no server is lost, no restart is unannounced."""

from __future__ import annotations

import os

import pytest
from ansible_collections.inference.fleet.tests.releases import before

# {platform of test nodes: (playbook, its variables)}
PLATFORMS = {
    "cpu": ("tests/nodes/site.yml", {
        "fleet_override_upgrade": {
            "secrets": {"HF_TOKEN": "test_token"},
            "environment": {"PERCENT": "100%", "QUOTES": "'\" $HOME\n;"},
            "arguments": {"json": {"share": "7%"}},
            "start": {"order": "leader-first", "restart_with_leader": True},
        },
        "test_token": "hf_test_0123456789abcdef",
        "fleet_watchdog": True,
        "fleet_watchdog_interval_s": 1,
    }),
    # simulated devices; compiled artifacts, packages and encodings are the real roles' work
    "neuron4": ("site.yml", {
        "fleet_recipe": "trn3-eagle3",
        "fleet_hardware": {"accelerator": "trainium3", "count": 4, "cores": 8, "lnc": 2, "memory_gib": 144},
        "fleet_override_upgrade": {"start": {"budget_s": 120, "poll_s": 1}},
        "toolkit_find_links": ["/opt/shared/wheels"],
        "toolkit_environment": {"PIP_NO_INDEX": "1"},
        "tiktoken_encodings_sources": [{"type": "file", "path": "/opt/shared/encodings"}],
        "fleet_purge_artifacts": True,
    }),
}  # fmt: skip


class Upgrade:
    """A node that the release before deployed servers on; the playbooks of now run against it."""

    def __init__(self, site, playbook, variables, release):
        recipes = str(release["folder"] / "tests" / "nodes" / "recipes")
        self.site, self.playbook = site, playbook
        self.variables = {**variables, "fleet_recipe_paths": [recipes]}

    def play(self, playbook, *arguments, **others):
        return self.site.play(playbook, *arguments, **self.variables, **others)

    def deploy(self, *arguments, **others):
        return self.play(self.playbook, *arguments, **others)

    def healthy(self):
        return all(self.site.healthy(name) for name in ("server-0", "server-1"))


@pytest.fixture(scope="module", params=PLATFORMS)
def upgrade(request, nodes, make_site, tmp_path_factory):
    name = "upgrade-%s-%d" % (request.param, os.getpid())
    release = before(tmp_path_factory.mktemp("release"))
    try:
        site = make_site(nodes.create([name], request.param))
        one = Upgrade(site, *PLATFORMS[request.param], release)
        assert one.deploy(release=release).ok().count("changed") > 0
        assert one.deploy(release=release).ok().count("changed") == 0
        yield one
    finally:
        nodes.docker("rm", "--force", "--volumes", nodes.container_name(name), check=False)


def test_servers_are_kept_or_their_restart_is_announced(upgrade):
    site, pids, processes = upgrade.site, upgrade.site.pids(), upgrade.site.processes()
    looked = upgrade.play("playbooks/status.yml")
    check = upgrade.deploy("--check", "--diff").ok()
    assert site.processes() == processes  # neither changes anything
    run = upgrade.deploy().ok()
    assert run.count("changed") == check.count("changed") <= 1
    words = " ".join(run.output.split())
    restarted = [name for name, pid in pids.items() if site.pids()[name] != pid]
    print("upgrade: changed=%d, restarted: %s" % (run.count("changed"), ", ".join(restarted) or "none"))
    assert all("%s was restarted" % name in words for name in restarted)
    assert looked.status == (2 if run.count("changed") else 0)
    assert upgrade.healthy()
    assert site.verified() == [site.node.name]
    assert {server for _pid, server in site.processes()} == set(pids)


def test_a_second_run_and_status_have_nothing_to_do(upgrade):
    pids = upgrade.site.pids()
    assert upgrade.deploy().ok().count("changed") == 0
    assert upgrade.play("playbooks/status.yml").ok().count("changed") == 0
    assert upgrade.site.pids() == pids


def test_a_killed_server_comes_back_with_what_is_on_the_node_now(upgrade):
    site, pids = upgrade.site, upgrade.site.pids()
    site.node.ssh("kill -9 %d" % pids["server-1"])
    site.wait_for(lambda: site.pids()["server-1"] != pids["server-1"] and upgrade.healthy(), 300, "server-1")
    assert site.pids()["server-0"] == pids["server-0"]
    assert upgrade.deploy().ok().count("changed") == 0


def test_a_reboot_ends_in_the_same_state(upgrade):
    upgrade.site.node.reboot()
    upgrade.site.wait_for(upgrade.healthy, 300, "both servers after the reboot")
    assert upgrade.deploy().ok().count("changed") == 0


def test_stop_and_purge_leave_nothing_of_either_release(upgrade):
    upgrade.play("playbooks/stop.yml", fleet_purge=True).ok()
    # the record beside weights of somebody else's stays with them
    left = "find / -xdev -path /mnt/inference/models -prune -o -name '*inference-fleet*' -print; "
    left += "ls -d /run/inference-fleet 2>/dev/null"
    assert upgrade.site.node.ssh(left + "; getent passwd inference-fleet", check=False) == ""
    assert upgrade.site.processes() == []
