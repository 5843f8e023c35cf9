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


def both(*arguments, **options):
    """The Runs of a fork and of the command; the fork is one."""
    assert runs.warm[0].takes({**os.environ, **options.get("environment", {})})
    return [runs.ansible_playbook(arguments, cold=cold, **options) for cold in (False, True)]


@pytest.mark.parametrize("arguments", [
    ("site.yml", "-i", "inventories/trn3", "-e", "fleet_capacity=maybe"), ("--no-such-option",),
])  # fmt: skip
def test_a_fork_says_what_the_command_says(arguments):
    fork, command = both(*arguments, environment={"ANSIBLE_SHOW_CUSTOM_STATS": "1"})
    assert (fork.output, fork.status, command.status) == (command.output, 2, 2)


def playbook(folder, *tasks):
    path = folder / "play.yml"
    path.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": list(tasks)}]))
    return path


def test_a_run_that_takes_too_long_is_killed_and_the_next_one_goes_on(tmp_path):
    path = playbook(tmp_path, {"ansible.builtin.pause": {"seconds": 300}})
    with pytest.raises(subprocess.TimeoutExpired):
        runs.ansible_playbook([path, "-i", "localhost,"], timeout=2)
    assert runs.ansible_playbook(["playbooks/plan.yml", "-i", "inventories/local"]).status == 0


HERE = json.dumps({"ansible_connection": "local", "ansible_python_interpreter": sys.executable})


def test_a_module_in_a_fork_returns_what_the_command_returns(tmp_path):
    tasks = [
        {"ansible.builtin.stat": {"path": "/"}},
        {"ansible.builtin.command": {"argv": ["sh", "-c", "echo out; echo err >&2; exit 3"]}, "ignore_errors": True},
        {"ansible.builtin.copy": {"nothing": 1}, "ignore_errors": True},
        {"inference.fleet.node": {"operation": "node_layout", "arguments": {"root": "relative"}}},
    ]
    fork, command = both(playbook(tmp_path, *tasks), "-i", "localhost,", "-e", HERE, "--diff")
    assert fork.output == command.output
    assert (fork.status, command.status) == (2, 2)
