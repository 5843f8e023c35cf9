# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which batches Ansible takes the hosts of the step serve, whatever their order in the inventory is."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from ansible_collections.inference.fleet.tests.runs import CLONE, play
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import LOCAL, hosts_file, play_tasks, tasks_play

# What the look would have found: whether servers run on the host.
FOUND = {"n1": True, "n2": True, "n3": False, "n4": True, "n5": False}
LOOKUP = """
from ansible.plugins.lookup import LookupBase
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look
class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        for host, serving in %r.items():
            run_look.note(host, ["serve"], "serve", serving)
        return ["noted"]
"""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["n3 n5", "n1", "n2 n4"]),
        ({"fleet_serial": 1}, ["n3 n5", "n1", "n2", "n4"]),
        ({"fleet_changes": "together"}, ["n3 n5 n1 n2 n4"]),
    ],
)
def test_bare_hosts_first_then_one_alone(tmp_path, variables, expected):
    (tmp_path / "lookup_plugins").mkdir()
    (tmp_path / "lookup_plugins" / "look.py").write_text(LOOKUP % FOUND)
    inventory = hosts_file(tmp_path, {host: {**LOCAL, "fleet_recipe": "cpu-tiny"} for host in FOUND})
    (step,) = yaml.safe_load((CLONE / "playbooks/steps/serve.yml").read_text())
    show = {"ansible.builtin.debug": {"msg": "batch {{ ansible_play_batch | join(' ') }}."}, "run_once": True}
    note = {"ansible.builtin.debug": {"msg": "{{ lookup('look') }}"}, "run_once": True}
    plays = [
        tasks_play([note], hosts="all"),
        tasks_play([show], hosts=step["hosts"], serial=step["serial"]),
    ]
    (tmp_path / "play.yml").write_text(json.dumps(plays))
    run = play(str(tmp_path / "play.yml"), inventory, variables=variables).ok()
    assert re.findall(r"batch ([^.]*)\.", run.output) == expected


def test_after_a_failure_no_server_of_another_host_is_changed(tmp_path):
    common = {"servers": [], "root": str(tmp_path / "r"), "reports_dir": ""}

    def call(**more):
        return {"inference.fleet.node": {"operation": "engine_servers", "arguments": {**common, **more}}}

    tasks = [
        {**call(changes="one_by_one"), "when": "inventory_hostname == 'n2'"},
        {**call(state="rolled_back"), "when": "inventory_hostname == 'n1'"},
        {**call(changes="wave", only=[]), "when": "inventory_hostname == 'n2'"},
    ]
    inventory = hosts_file(tmp_path, dict.fromkeys(("n1", "n2"), LOCAL))
    run = play_tasks(tmp_path, tasks, inventory=inventory, hosts="all")
    run.failed("servers of n1 could not be changed, so the run ends; those of n2 are left as they are.")
    assert run.output.count("fatal:") == 1
