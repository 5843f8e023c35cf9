# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import tune
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.fleet import plan_fleet
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load
from ansible_collections.inference.fleet.tests.unit.engines.measured_results import benchmark
from ansible_collections.inference.fleet.tests.unit.engines.plans import error

LIMITS = {"ttft_ms": 100.0, "tpot_ms": 10.0}
NONE = dict.fromkeys(tune.LIMITS)


def point(rate, ttft=50.0, tpot=5.0, **more):
    one = benchmark(**more)
    one["metrics"]["output_tokens_per_s"] = rate
    for metric, value in (("ttft_ms", ttft), ("tpot_ms", tpot)):
        one["metrics"][metric] = dict.fromkeys(result.STATISTICS, value)
    return one


def test_candidates_are_what_there_is_and_each_combination():
    wanted = {
        "arguments": {"max-num-seqs": [4, 8], "unused": None},
        "variants": {
            "speculation": {"with": None, "without": {"arguments": {"speculative-config": None}}},
            "old": None,
        },
    }
    assert tune.candidates(wanted) == [
        ("as it is", {}),
        ("max-num-seqs=4 speculation=with", {"arguments": {"max-num-seqs": 4}}),
        ("max-num-seqs=4 speculation=without", {"arguments": {"max-num-seqs": 4, "speculative-config": None}}),
        ("max-num-seqs=8 speculation=with", {"arguments": {"max-num-seqs": 8}}),
        ("max-num-seqs=8 speculation=without", {"arguments": {"max-num-seqs": 8, "speculative-config": None}}),
    ]


def test_settings_that_make_no_sweep_are_errors():
    assert tune.candidates({"arguments": {"a": ["x\ny: 1"]}})[1][0] == "a=x\\ny: 1"  # a line of the file's comment
    five = {"arguments": {"a": list(range(5)), "b": list(range(5))}}
    assert [error(tune.candidates, one).code for one in ({}, five)] == ["tune.not-possible"] * 2
    twice = {"arguments": {"a": [1]}, "variants": {"b": {"x": {"arguments": {"a": 2}}}}}
    assert error(tune.candidates, twice).code == "override.leaf-set-twice"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, {"ttft_ms": 2000, "tpot_ms": None}),
        ({"tpot_ms": "50"}, {"ttft_ms": None, "tpot_ms": 50.0}),
        ({"ttft_ms": None, "tpot_ms": 1.5}, {"ttft_ms": None, "tpot_ms": 1.5}),
    ],
)
def test_limits_of_the_variable_overrule_the_recipe(wanted, expected):
    assert tune.limits_of(wanted, {"limits": {"ttft_ms": 2000}}) == expected


def test_the_highest_throughput_within_the_limits_is_best():
    found = {
        "a": [point(100), point(300, ttft=101)],
        "b": [point(90), point(200, tpot=10.0)],
        "c": [point(400), None],
        "d": [point(400, tpot=11)],
    }
    assert tune.choose(found, LIMITS) == "b"
    assert tune.choose(found, NONE) == "d"
    assert tune.rows(found, LIMITS, {"c": "0 of 2 servers ready\nmore"}) == [
        ["a", "100.0", 8, "50.0", "5.0", "within the limits"],
        ["b", "200.0", 8, "50.0", "10.0", "best"],
        ["c", "", "", "", "", "failed: 0 of 2 servers ready"],
        ["d", "400.0", 8, "50.0", "11.0", "over the limit of TPOT"],
    ]
    assert tune.choose({"a": found["d"], "c": found["c"]}, LIMITS) is None
    assert tune.rows({"c": found["c"]}, LIMITS) == [["c", "", "", "", "", "not measured yet"]]


def planned(override=None, **variables):
    given = {"fleet_recipe": "cpu-tiny", "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2}, **variables}
    given = {**given, **({tune.LAYER: override} if override else {})}
    return plan_fleet(["node1"], lambda host: given, deploys=True)["node1"]


def test_results_of_the_same_plan_recipe_and_load_are_not_measured_again():
    item = planned({"arguments": {"max-num-seqs": 2}})
    calls = tune.calls_of(item["servers"], item["deployment"], "quick")
    # more than the servers take: it waits in the queue
    assert [call["point"]["concurrency"] for call in calls] == [2, 8]
    head = {"plan_hash": result.plan_hash(item["servers"]), "recipe_hash": result.recipe_hash(item["deployment"])}
    asked = {
        "input_tokens_asked": 64, "output_tokens_asked": 32, "input_tokens": 130.0, "output_tokens": 32.0,
        "request_rate": None, "load": result.load_hash(calls[0]["point"]),
    }  # fmt: skip
    history = [
        benchmark(**head, workload={**asked, "concurrency": 2, "requests": 16}),
        benchmark(**head, workload={**asked, "concurrency": 8, "requests": 64}, ok=False),
        benchmark(**head, workload={**asked, "concurrency": 8, "requests": 65}),
        benchmark(**{**head, "plan_hash": "c" * 64}, workload={**asked, "concurrency": 8, "requests": 64}),
        # of another endpoint, or with other arguments
        benchmark(**head, workload={**asked, "concurrency": 8, "requests": 64, "load": "f" * 64}),
    ]
    assert tune.measured(calls, item["deployment"], history) == [history[0], None]
    history.append(benchmark(**head, workload={**asked, "concurrency": 8, "requests": 64}))
    assert tune.measured(calls, item["deployment"], history) == [history[0], history[-1]]
    # what is tried and what limits there are is no reason to measure again
    item["deployment"]["tune"] = {"limits": {"ttft_ms": 1}}
    assert None not in tune.measured(calls, item["deployment"], history)


class Tagged(dict):
    """A mapping as templates return it, which YAML refuses."""


def candidates_of(*hosts, limits=None, **variables):
    """What a sweep of these hosts tries."""
    given = {"fleet_recipe": "cpu-tiny", "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2}, **variables}
    return tune.planned({"ansible_play_hosts_all": hosts, "hostvars": dict.fromkeys(hosts, given)}, limits)[0]


def test_the_override_of_the_current_deployment_can_be_written():
    layer = Tagged(arguments=Tagged({"max-num-seqs": 3}))
    found = candidates_of("node1", **{tune.LAYER: layer})
    assert found[0]["name"] == "as it is"
    assert yaml.safe_load(yaml.safe_dump(found[0]["override"])) == {"arguments": {"max-num-seqs": 3}}


def test_what_is_wrong_is_an_error_before_a_server_is_touched():
    assert error(candidates_of, "node1", "node2").code == "tune.one-host"
    limits = {"limits": {"ttft_ms": "soon"}}
    assert "fleet_tune_limits.ttft_ms" in error(candidates_of, "node1", **limits).message
    more = {"tune": {"variants": {"no": {"such": {"argumens": {"a": 4}}}}}}
    assert "unknown key 'argumens'" in error(candidates_of, "node1", fleet_override_more=more).message


def test_a_tool_with_one_address_does_not_compare_nodes():
    item = planned()
    assert error(tune.calls_of, item["servers"], item["deployment"], "vllm-bench").code == "tune.not-possible"


RECIPES = [
    name for name in load.available([load.OWN_RECIPES]) if load.load_recipe(load.find_recipe(name, [])).get("tune")
]


@pytest.mark.parametrize("name", RECIPES)
def test_every_candidate_of_every_recipe_can_be_planned_and_is_another_plan(name):
    recipe = load.load_recipe(load.find_recipe(name, []))
    kind = recipe["needs"]["accelerators"][0]
    hardware = {"accelerator": kind, **({"count": 1, "cores": 2} if kind == "cpu" else {"count": 16})}
    plans = []
    for _name, override in tune.candidates(recipe["tune"]):
        plans.append(yaml.safe_dump(planned(override, fleet_recipe=name, fleet_hardware=hardware)["servers"]))
    assert len(plans) > 2
    assert plans[0] in plans[1:]  # what the recipe has is among what is tried
    assert len(set(plans[1:])) == len(plans) - 1
