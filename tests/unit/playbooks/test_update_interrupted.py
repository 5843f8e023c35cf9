# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Updates of several hosts that end early: an endpoint that cannot be reached, and an incomplete rollback."""

from __future__ import annotations

import json
import os

import pytest
from ansible_collections.inference.fleet.tests.runs import CLONE, play
from ansible_collections.inference.fleet.tests.unit.engines.small_node import host_variables
from ansible_collections.inference.fleet.tests.unit.node_helpers import script
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import LOCAL, hosts_file, play_tasks, tasks_play

HERE = {**LOCAL, "ansible_become": False}
AWAY = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_common_args": "-F none"}


@pytest.mark.parametrize("second", [HERE, AWAY])
def test_no_endpoint_drains_if_another_cannot_be_reached(tmp_path, second):
    """HAProxy's runtime socket is a file that a program named socat writes."""
    asked, program = tmp_path / "asked", tmp_path / "bin" / "socat"
    program.parent.mkdir()
    script(program, "cat >> %s\nexit 1\n" % asked)
    task = {"ansible.builtin.include_role": {"name": "inference.fleet.endpoint", "tasks_from": "admission"}}
    variables = {"endpoint_server_state": "drain", "endpoint_names": ["n1.server-0"]}
    inventory = hosts_file(tmp_path, {"n1": HERE}, ["cpu"], endpoint={"hosts": {"e1": HERE, "e2": second}})
    path = {"PATH": "%s:%s" % (program.parent, os.environ["PATH"])}
    run = play_tasks(tmp_path, [task], variables=variables, inventory=inventory, hosts="n1", environment=path)
    if second is HERE:
        run.ok()
        assert asked.read_text().count("show servers state") == 2
    else:
        run.failed("The endpoint e2 cannot be reached", "Nothing was stopped.")
        assert (asked.exists(), run.count("failed")) == (False, 1)


class Fleet:
    """Hosts with kept plans, and the plan before that update.yml selects for each."""

    def __init__(self, folder):
        self.folder = folder
        hosts = {name: host_variables(folder / name, ansible_become=False) for name in ("n1", "n2")}
        hosts["n2"]["fleet_override"] = {"servers": {"server": {"port": 9000}}}  # both are this machine
        hosts_file(folder, hosts, ["cpu"])
        shown = (
            "{'hash': serve_kept_hash, 'fleet': serve_kept_fleet, 'plan': (update_plan | default({'hash': ''})).hash}"
        )
        copy = {"content": "{{ %s }}" % shown, "dest": "%s/{{ inventory_hostname }}.json" % folder}
        plan = {"import_playbook": str(CLONE / "playbooks/steps/plan.yml")}
        for name, tasks in (("look", "../roles/serve/tasks/kept_plans.yml"), ("select", "tasks/plan_before.yml")):
            include = {"ansible.builtin.include_tasks": str(CLONE / "playbooks" / tasks)}
            given = {"fleet_servers": "{{ lookup('inference.fleet.plan') }}"}
            one = tasks_play([include, {"ansible.builtin.copy": copy}], hosts="cpu", vars=given)
            (folder / (name + ".yml")).write_text(json.dumps([plan, one]))

    def run(self, name):
        """{host: {hash, fleet, plan}}, and the run."""
        run = play(str(self.folder / (name + ".yml")), self.folder / "hosts.yml")
        found = {host: self.folder / (host + ".json") for host in ("n1", "n2")}
        return {host: json.loads(path.read_text()) for host, path in found.items() if path.exists()}, run

    def keep(self, host, **plan):
        path = self.folder / host / "var/lib/inference-fleet/plans.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"servers": [], "deployment": {}, **plan}))


def test_a_rollback_that_was_interrupted_goes_on(tmp_path):
    fleet = Fleet(tmp_path)
    now, _run = fleet.run("look")
    before = {"hash": "old", "fleet": "old", "servers": [], "deployment": {}}

    def updated(host, **changes):
        fleet.keep(host, **{"hash": now[host]["hash"], "fleet": now[host]["fleet"], "before": before, **changes})

    updated("n1")
    fleet.keep("n2", **before)  # the update did not complete it
    assert [one["plan"] for one in fleet.run("select")[0].values()] == ["old", "old"]
    updated("n1", hash="old", before={"hash": now["n1"]["hash"]})  # the rollback has completed it
    updated("n2", fleet="of an earlier update")  # the last one did not change it
    assert [one["plan"] for one in fleet.run("select")[0].values()] == ["old", now["n2"]["hash"]]
