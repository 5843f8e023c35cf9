# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The screen: what the callback makes of failures, of polling and of groups that an inventory lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = os.path.join(os.path.dirname(sys.executable), "ansible-playbook")


def screen(tmp_path, tasks, *arguments, hosts="localhost"):
    play = [{"hosts": hosts, "gather_facts": False, "tasks": tasks}]
    path = tmp_path / "play.yml"
    path.write_text(json.dumps(play))
    done = subprocess.run(
        [PLAYBOOK, str(path), "-i", "inventories/local", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_failure_is_told_once_as_text(tmp_path):
    output = screen(tmp_path, [{"name": "Fail", "ansible.builtin.fail": {"msg": 'first "line"\nsecond line'}}])
    assert 'fatal: [localhost]: FAILED!\n    first "line"\n    second line\n' in output
    assert output.count("second line") == 1


def test_verbose_shows_what_the_default_shows(tmp_path):
    output = screen(tmp_path, [{"name": "Fail", "ansible.builtin.fail": {"msg": "why"}}], "-v")
    assert "changed: false" in output


def test_a_group_that_the_inventory_lacks_is_no_news(tmp_path):
    output = screen(tmp_path, [], hosts="neuron")
    assert "no hosts matched" not in output
    assert "WARNING" not in output


def test_ordinary_retries_look_as_always(tmp_path):
    task = {
        "name": "Poll", "ansible.builtin.command": "false", "register": "polled", "until": "polled is success",
        "retries": 1, "delay": 0,
    }  # fmt: skip
    assert "FAILED - RETRYING: [localhost]: Poll (1 retries left)." in screen(tmp_path, [task])
