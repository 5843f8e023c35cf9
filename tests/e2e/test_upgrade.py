# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the previous commit deployed below a fleet_root, with supervisord, runs on under this one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.tests.runs import CLONE, play, wait_for

FIRST_PORT = 18600
NAMES = ("server-0", "server-1")
STEPS = ("playbooks/prepare.yml", "playbooks/serve.yml", "playbooks/verify.yml")
DEPLOYS = ("inventories", "playbooks", "plugins", "recipes", "roles", "site.yml")  # what is on nodes comes of these
NOW = {"folder": CLONE, "environment": {}}


def git(*arguments, check=True):
    return subprocess.run(["git", "-C", str(CLONE), *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=check)  # fmt: skip


def previous_commit():
    """The last commit from which this working tree differs in what it deploys. Skips where there is no history."""
    if not (CLONE / ".git").exists():
        pytest.skip("this is no git clone, so there is no previous commit")
    for commit in git("rev-list", "--first-parent", "HEAD").stdout.split():
        if git("diff", "--quiet", commit, "--", *DEPLOYS, check=False).returncode == 1:
            return commit
    pytest.skip("no commit of this clone deploys anything else; of a shallow one: git fetch --unshallow")


def unpacked(commit, folder):
    """{folder, environment} for runs.play(): the commit as an operator has it."""
    clone = folder / "previous"
    collections = clone / ".ansible" / "collections"
    link = collections / "ansible_collections" / "inference" / "fleet"
    link.parent.mkdir(parents=True)
    link.symlink_to(os.path.relpath(clone, link.parent))
    git("archive", "--output", str(folder / "previous.tar"), commit)
    subprocess.run(["tar", "-C", str(clone), "-xf", str(folder / "previous.tar")], check=True)
    environment = {"ANSIBLE_HOME": str(clone / ".ansible"), "ANSIBLE_COLLECTIONS_PATH": str(collections),
                   "ANSIBLE_CONFIG": str(clone / "ansible.cfg"), "PYTHONPATH": str(collections)}  # fmt: skip
    return {"folder": clone, "environment": environment}


class Upgrade:
    """Two scripted servers below a folder; the playbooks of this clone or of the previous commit run against them."""

    def __init__(self, folder):
        self.root = folder / "r"
        engine = folder / "engine"
        engine.mkdir()
        for path in (CLONE / "tests" / "nodes" / "engine.py", CLONE / "tests/unit/engines/scripted_engine.py"):
            shutil.copy(path, engine)
        self.previous = unpacked(previous_commit(), folder)
        self.variables = {
            "fleet_recipe": "node-small",
            "fleet_recipe_paths": [str(self.previous["folder"] / "tests" / "nodes" / "recipes")],
            "fleet_override": {
                "venv": {"path": sys.prefix},
                "model": {"path": str(engine)},
                "command": [sys.executable, str(engine / "engine.py")],
                "servers": {"server": {"port": FIRST_PORT}},
                "start": {"budget_s": 300},
            },
            "fleet_reports_dir": str(folder / "reports"),
        }

    def play(self, playbook, tree=None):
        tree = tree or NOW
        environment = {**tree["environment"], "FLEET_ROOT": str(self.root)}
        return play(playbook, "inventories/local", variables=self.variables, folder=tree["folder"],
                    environment=environment)  # fmt: skip

    def deploy(self, tree=None):
        """The sum of what changed."""
        return sum(self.play(step, tree).ok().count("changed") for step in STEPS)

    def pids(self):
        states = self.root / "run" / "inference-fleet" / "servers"
        return {name: json.loads((states / (name + ".json")).read_text())["pid"] for name in NAMES}


@pytest.fixture
def upgrade(tmp_path):
    one = Upgrade(tmp_path)
    try:
        yield one
    finally:
        one.play("playbooks/stop.yml")


def test_no_server_of_the_previous_commit_restarts(upgrade):
    assert upgrade.deploy(upgrade.previous) > 0
    before = upgrade.pids()
    upgrade.deploy()
    assert upgrade.pids() == before
    assert upgrade.deploy() == 0
    assert upgrade.pids() == before
    os.kill(before["server-1"], 9)  # supervisord holds the previous commit's command until the next start
    wait_for(lambda: upgrade.pids()["server-1"] != before["server-1"], 120, "server-1")
    wait_for(lambda: upgrade.play("playbooks/status.yml").status == 0, 120, "all is as planned")
    assert upgrade.pids()["server-0"] == before["server-0"]
