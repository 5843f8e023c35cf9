# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan that is made once in a run: who uses it, when it is made again, and the content of its file."""

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
    made, plan_one = [], fleet.plan_one
    monkeypatch.setattr(run_plan.C, "DEFAULT_LOCAL_TMP", str(tmp_path))
    monkeypatch.setattr(run_plan, "_loaded", {})
    monkeypatch.setattr(run_plan, "_settled", {})
    monkeypatch.setattr(fleet, "plan_one", lambda given, *more: made.append(given.host) or plan_one(given, *more))
    return tmp_path / run_plan.NAME, made


def planned(variables, hosts=("node1",), deploys=True, sources=("/inventory",), save=False):
    """variables: of each host, or {host: those of each}."""
    each = variables if set(variables) == set(hosts) else dict.fromkeys(hosts, variables)
    plan, others = run_plan.RunPlan(), inventory.Hosts(each.get, sources)
    found = fleet.plan_hosts(hosts, others, deploys, plan)
    if save:
        run_plan.save(plan.packed, others)
    return found


def test_a_plan_is_made_once_and_the_same(kept):
    file, made = kept
    first = planned(LOCAL, ["node1", "node2"], save=True)
    assert planned(LOCAL, ["node1"])["node1"] == first["node1"]
    assert planned({**LOCAL, "serve_result": {"changed": True}}, ["node2"], deploys=False)["node2"] == first["node2"]
    assert made == ["node1", "node2"]
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    planned(LOCAL, ["node3"], save=True)
    assert sorted(json.loads(file.read_text())["hosts"]) == ["node1", "node2", "node3"]
    planned(LOCAL, sources=["/another"])
    assert made[2:] == ["node3", "node1"]


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
    changed = planned({**LOCAL, **change})
    assert len(kept[1]) == 2
    assert changed == fleet.plan_fleet(["node1"], lambda host: {**LOCAL, **change}, ["/inventory"], True)


def test_what_may_not_be_deployed_is_not_used_for_it(kept):
    planned({**LOCAL, **TOO_LARGE}, deploys=False, save=True)
    assert error(planned, {**LOCAL, **TOO_LARGE}).code == "plan.does-not-fit-memory"


def test_the_task_of_a_host_compares_its_variables_once(kept, monkeypatch):
    planned(LOCAL, save=True)
    monkeypatch.setattr(run_plan, "_in_task", lambda: True)
    first = planned(LOCAL)
    assert planned({**LOCAL, "fleet_root": "/other"}) == first
    assert len(kept[1]) == 1


def test_the_workers_of_a_cluster_are_stored_once(kept):
    """Without reading the variables of its other hosts for each task of each host."""
    sizes = []
    for number in (4, 12):
        names = ["n%02d" % index for index in range(number)]
        shared = {
            "fleet_recipe": "b200-dynamo-vllm-disagg", "fleet_hardware": {"accelerator": "b200", "count": 8},
            "fleet_overlay": "etcd", "fleet_cluster": "one",
            "groups": {"all": names, "etcd": names[:3], "nats": names[:3]},
        }  # fmt: skip
        hosts = {name: {**shared, "ansible_host": "192.0.2.%s" % name[1:]} for name in names}
        kept[0].unlink(missing_ok=True)
        first = planned(hosts, names, save=True)
        assert [len(item["deployment"]["workers_elsewhere"]) for item in first.values()] == [8 * (number - 1)] * number
        others = inventory.Hosts(hosts.get, ["/inventory"])
        assert run_plan.recalled(["n01"], others, True) == {"n01": first["n01"]}
        assert [one.host for one in others.asked()] == ["n01"]
        sizes.append(kept[0].stat().st_size)
    assert sizes[1] < 3.1 * sizes[0]
    assert len(kept[1]) == 16
