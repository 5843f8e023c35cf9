# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the release before deployed below a fleet_root, with supervisord, is taken over by this one."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest
from ansible_collections.inference.fleet.tests.releases import before
from ansible_collections.inference.fleet.tests.runs import CLONE, play, wait_for

FIRST_PORT = 18600
NAMES = ("server-0", "server-1")
STEPS = ("playbooks/prepare.yml", "playbooks/serve.yml", "playbooks/verify.yml")


class Upgrade:
    """Two scripted servers below a folder; the playbooks of this clone or of the release before run against them."""

    def __init__(self, folder):
        self.root = folder / "r"
        engine = folder / "engine"
        engine.mkdir()
        for path in (CLONE / "tests" / "nodes" / "engine.py", CLONE / "tests/unit/engines/scripted_engine.py"):
            shutil.copy(path, engine)
        self.release = before(folder)
        self.variables = {
            "fleet_recipe": "node-small",
            "fleet_recipe_paths": [str(self.release["folder"] / "tests" / "nodes" / "recipes")],
            "fleet_override": {
                "venv": {"path": sys.prefix},
                "command": [sys.executable, str(engine / "engine.py")],
                "servers": {"server": {"port": FIRST_PORT}},
                "start": {"budget_s": 300},
            },
            "fleet_reports_dir": str(folder / "reports"),
        }

    def play(self, playbook, *arguments, release=None, **variables):
        release = release or {"folder": CLONE, "environment": {}}
        environment = {**release["environment"], "FLEET_ROOT": str(self.root)}
        return play(playbook, "inventories/local", *arguments, variables={**self.variables, **variables},
                    folder=release["folder"], environment=environment)  # fmt: skip

    def deploy(self, *arguments, release=None):
        """The sum of what changed."""
        return sum(self.play(step, *arguments, release=release).ok().count("changed") for step in STEPS)

    def pids(self):
        states = self.root / "run" / "inference-fleet" / "servers"
        return {name: json.loads((states / (name + ".json")).read_text())["pid"] for name in NAMES}


@pytest.fixture(scope="module")
def upgrade(tmp_path_factory):
    one = Upgrade(tmp_path_factory.mktemp("upgrade"))
    try:
        assert one.deploy(release=one.release) > 0
        assert one.deploy(release=one.release) == 0
        yield one
    finally:
        one.play("playbooks/stop.yml")


def test_servers_and_environments_are_kept(upgrade):
    pids = upgrade.pids()
    toolkit = upgrade.root / "var" / "lib" / "inference-fleet" / "toolkit" / ".inference-fleet.json"
    made = toolkit.stat().st_mtime_ns
    announced = upgrade.deploy("--check")
    changed = upgrade.deploy()
    print("upgrade: changed=%d" % changed)
    assert changed == announced <= 1
    assert upgrade.pids() == pids
    assert toolkit.stat().st_mtime_ns == made
    assert upgrade.deploy() == 0
    assert upgrade.play("playbooks/status.yml").ok().count("changed") == 0
    assert upgrade.pids() == pids


def test_a_killed_server_comes_back(upgrade):
    pids = upgrade.pids()
    os.kill(pids["server-1"], 9)
    wait_for(lambda: upgrade.pids()["server-1"] != pids["server-1"], 120, "server-1")
    wait_for(lambda: upgrade.play("playbooks/status.yml").status == 0, 120, "all is as planned")
    assert upgrade.pids()["server-0"] == pids["server-0"]


def test_stop_leaves_no_process(upgrade):
    pids = upgrade.pids().values()
    assert upgrade.play("playbooks/stop.yml").ok().count("changed") == 1
    assert not any(os.path.exists("/proc/%d" % pid) for pid in pids)
