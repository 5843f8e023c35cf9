# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan that is made once: who takes it, when it is made again, and what its file holds."""

from __future__ import annotations

import json
import os
import stat

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet, inventory, run_plan
from ansible_collections.inference.fleet.tests.unit.engines.plans import LOCAL, error

TOO_LARGE = {"fleet_override": {"arguments": {"max-model-len": 131072, "kv-cache-memory-bytes": "32M"}}}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The file of a run, and a count of how often a host was planned."""
    made = []
    plan_one = fleet.plan_one
    monkeypatch.setattr(run_plan.C, "DEFAULT_LOCAL_TMP", str(tmp_path))
    for name, value in (("_loaded", {}), ("_settled", {}), ("_right", set())):
        monkeypatch.setattr(run_plan, name, value)
    monkeypatch.setattr(fleet, "plan_one", lambda given, *more: made.append(given.host) or plan_one(given, *more))
    return tmp_path / run_plan.NAME, made


def planned(variables, hosts=("node1",), deploys=True, sources=("/inventory",), save=False):
    plan = run_plan.RunPlan()
    found = fleet.plan_fleet(hosts, lambda host: variables, sources, deploys, plan)
    if save:
        plan.save()
    return found


def test_a_plan_is_made_once_and_the_same(kept):
    file, made = kept
    first = planned(LOCAL, ["node1", "node2"], save=True)
    assert planned(LOCAL, ["node1"])["node1"] == first["node1"]
    assert planned(LOCAL, ["node2"], deploys=False)["node2"] == first["node2"]
    assert made == ["node1", "node2"]
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    planned(LOCAL, ["node3"], save=True)
    assert sorted(json.loads(file.read_text())["hosts"]) == ["node1", "node2", "node3"]


@pytest.mark.parametrize(
    "change",
    [
        {"fleet_override_more": {"start": {"budget_s": 5}}},
        {"fleet_api_key": "sk-one"},
        {"fleet_recipe": None},
    ],
)
def test_it_is_made_again_where_a_variable_has_changed(kept, change):
    planned(LOCAL, save=True)
    assert planned({**LOCAL, **change}) == fleet.plan_fleet(
        ["node1"], lambda host: {**LOCAL, **change}, ["/inventory"], True
    )
    assert len(kept[1]) == 3


def test_a_variable_that_no_plan_reads_changes_nothing(kept):
    planned(LOCAL, save=True)
    planned({**LOCAL, "serve_result": {"changed": True}})
    assert len(kept[1]) == 1
    planned(LOCAL, sources=["/another"])
    assert len(kept[1]) == 2


def test_what_may_not_be_deployed_is_not_taken_for_it(kept):
    planned({**LOCAL, **TOO_LARGE}, deploys=False, save=True)
    assert error(planned, {**LOCAL, **TOO_LARGE}).code == "plan.does-not-fit-memory"


def test_the_task_of_a_host_compares_its_variables_once(kept, monkeypatch):
    planned(LOCAL, save=True)
    monkeypatch.setattr(run_plan, "_in_task", lambda: True)
    first = planned(LOCAL)
    assert planned({**LOCAL, "fleet_root": "/other"}) == first
    assert len(kept[1]) == 1


CLUSTER = {
    "fleet_recipe": "b200-dynamo-vllm-disagg",
    "fleet_hardware": {"accelerator": "b200", "count": 8},
    "fleet_overlay": "etcd",
    "fleet_cluster": "one",
}


def cluster(number, **changes):
    """{host: variables} of a deployment over several hosts."""
    names = ["n%02d" % index for index in range(number)]
    groups = {"all": names, "etcd": names[:3], "nats": names[:3]}
    hosts = {name: {**CLUSTER, "groups": groups, "ansible_host": "192.0.2.%s" % name[1:]} for name in names}
    return {name: {**given, **changes.get(name, {})} for name, given in hosts.items()}


def plan_cluster(hosts, names=None):
    plan = run_plan.RunPlan()
    found = fleet.plan_fleet(names or list(hosts), hosts.get, ["/inventory"], True, plan)
    plan.save()
    return found


def test_a_cluster_is_kept_once(kept):
    sizes = []
    for number in (4, 12):
        hosts = cluster(number)
        kept[0].unlink(missing_ok=True)
        first = plan_cluster(hosts)
        others = inventory.Hosts(hosts.get, ["/inventory"])
        assert run_plan.recalled(list(hosts), others, True) == first
        assert [len(item["deployment"]["workers_elsewhere"]) for item in first.values()] == [8 * (number - 1)] * number
        sizes.append(kept[0].stat().st_size)
    assert sizes[1] < 3.1 * sizes[0]
    assert len(kept[1]) == 16


def test_what_a_plan_reads_of_other_hosts_is_compared(kept, monkeypatch):
    plan_cluster(cluster(3))
    changed = cluster(3, n02={"fleet_bind_address": "192.0.2.9"})
    found = fleet.plan_fleet(["n00"], changed.get, ["/inventory"], True, run_plan.RunPlan())
    assert {one["bind"] for one in found["n00"]["deployment"]["workers_elsewhere"]} == {"127.0.0.1", "192.0.2.9"}
    assert len(kept[1]) == 4


def test_other_hosts_are_compared_once_for_a_play(kept, monkeypatch):
    """Not in each task of each host; the host's own variables are."""
    before, read = cluster(3), []
    plan_cluster(before)
    run_plan.settle(inventory.Hosts(before.get, ["/inventory"]))
    monkeypatch.setattr(run_plan, "_in_task", lambda: True)
    hosts = inventory.Hosts(lambda host: read.append(host) or before[host], ["/inventory"])
    assert run_plan.RunPlan().recall("n00", hosts, True)
    assert read == ["n00"]
    changed = cluster(3, n01={"fleet_bind_address": "192.0.2.9"})
    assert run_plan.RunPlan().recall("n01", inventory.Hosts(changed.get, ["/inventory"]), True) is None
    run_plan.settle(inventory.Hosts(changed.get, ["/inventory"]))
    assert run_plan.RunPlan().recall("n02", inventory.Hosts(changed.get, ["/inventory"]), True) is None
