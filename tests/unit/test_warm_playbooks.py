# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks in forks of a process that has imported Ansible: they do and say what the command does and says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.tests import runs
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import tasks_play


def playbook(folder, *tasks):
    (folder / "play.yml").write_text(json.dumps([tasks_play(tasks)]))
    return folder / "play.yml"


def test_a_run_that_takes_too_long_is_killed_and_the_next_one_goes_on(tmp_path):
    path = playbook(tmp_path, {"ansible.builtin.pause": {"seconds": 300}})
    with pytest.raises(subprocess.TimeoutExpired):
        runs.ansible_playbook([path, "-i", "localhost,"], timeout=2)
    assert runs.ansible_playbook(["playbooks/plan.yml", "-i", "inventories/local"]).status == 0


def test_a_fork_says_what_the_command_says(tmp_path):
    path = playbook(
        tmp_path,
        {"ansible.builtin.set_stats": {"data": {"a": 1}}},
        {"ansible.builtin.stat": {"path": "/"}},
        {"ansible.builtin.command": {"argv": ["sh", "-c", "echo out; echo err >&2; exit 3"]}, "ignore_errors": True},
        {"ansible.builtin.copy": {"nothing": 1}, "ignore_errors": True},
        {"inference.fleet.node": {"operation": "node_layout", "arguments": {"root": "relative"}}},
    )
    here = "ansible_python_interpreter=" + sys.executable
    environment = {"ANSIBLE_SHOW_CUSTOM_STATS": "1"}
    assert runs.warm[0].takes({**os.environ, **environment})
    for arguments in ((path, "-i", "localhost,", "-e", here, "--diff"), ("--no-such-option",)):
        fork, command = [runs.ansible_playbook(arguments, environment, cold=cold) for cold in (False, True)]
        assert (fork.output, fork.status, command.status) == (command.output, 2, 2)
