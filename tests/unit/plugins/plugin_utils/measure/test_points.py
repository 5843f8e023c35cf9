# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a profile of a recipe asks of servers, and what it may not."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.points import elsewhere_of, points
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.plans import error

ENTRIES = [
    {
        "host": "node", "name": "server-%d" % number, "role": "server", "engine": "vllm", "bind": "127.0.0.1",
        "port": 8000 + number, "model_id": "m", "devices": [number], "hash": "%d" % number * 64,
        "arguments": {"max-num-seqs": 8, "max-model-len": 4096},
    }
    for number in range(2)
]  # fmt: skip


def deployment(**profile):
    profile = {"tool": "aiperf", "input_tokens": 64, "output_tokens": 32, "concurrency": [2, 8], **profile}
    return {"name": "r", "model": {"path": "/m"}, "benchmark": {"profiles": {"quick": profile}}}


def test_each_concurrency_is_a_point_of_all_servers():
    found = points(ENTRIES, deployment())
    assert [one["label"] for one in found] == ["aiperf, node, 2 at once", "aiperf, node, 8 at once"]
    assert found[0]["point"]["urls"] == ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]
    assert [one["point"]["requests"] for one in found] == [10, 40]
    assert {one["profile"] for one in found} == {"quick"}


def test_a_tool_with_one_address_measures_one_server_after_another():
    found = points(ENTRIES, deployment(tool="vllm-bench", concurrency=4))
    assert [one["point"]["urls"] for one in found] == [["http://127.0.0.1:8000"], ["http://127.0.0.1:8001"]]
    assert {one["scope"] for one in found} == {"server"}


def test_workers_behind_a_frontend_are_measured_with_it_and_not_asked():
    frontend = {**ENTRIES[0], "name": "frontend-0", "role": "frontend", "arguments": {}}
    worker = {**ENTRIES[1], "role": "decode"}
    found = points([worker, frontend], deployment(concurrency=8))
    assert [one["name"] for one in found[0]["servers"]] == ["frontend-0", "server-1"]
    assert found[0]["point"]["urls"] == ["http://127.0.0.1:8000"]
    caught = error(points, [worker, frontend], deployment(concurrency=9))
    assert caught.code == "measure.profile-invalid" and "at most 8," in caught.values[3]
    assert points([frontend], deployment(concurrency=500))  # its workers are elsewhere, and what they take not known


def test_a_sweep_ends_at_what_the_servers_take():
    found = points(ENTRIES, deployment(concurrency=[1, 8, 64], up_to_full=True))
    assert [one["point"]["concurrency"] for one in found] == [1, 8, 16]
    found = points(ENTRIES, deployment(concurrency=[1, 8], up_to_full=True, scope="server"))
    assert [(one["servers"][0]["name"], one["point"]["concurrency"]) for one in found] == [
        ("server-0", 1), ("server-1", 1), ("server-0", 8), ("server-1", 8)
    ]  # fmt: skip


def test_a_tool_with_an_engine_of_its_own_measures_one_server_and_stops_all():
    found = points(ENTRIES, deployment(tool="vllm-latency", concurrency=4))
    assert [(one["servers"][0]["name"], [entry["name"] for entry in one["beside"]]) for one in found] == [
        ("server-0", ["server-1"])
    ]
    assert found[0]["point"]["engine_arguments"][:2] == ["--model", "/m"]


COMMAND = {"argv": ["bench", "${url}"], "files": ["r.json"], "metrics": {"completed": "ok", "output_tokens_per_s": "r"}}


def command(**more):
    return {"tool": "command", "scope": None, "command": {**COMMAND, **more}}


@pytest.mark.parametrize(
    ("profile", "value"),
    [
        ({"concurrency": 17}, "concurrency"),
        ({"output_tokens": 4096}, "input_tokens"),
        ({"tool": "vllm-bench", "scope": "node"}, "scope"),
        ({"input_tokens": None}, "input_tokens"),
        ({"tool": "llmperf", "request_rate": 2}, "request_rate"),
        ({"tool": "llmperf", "concurrency": None}, "concurrency"),
        ({"tool": "llmperf", "warmup_requests": 5}, "warmup_requests"),
        ({"tool": "llmperf", "limits": {"ttft_ms": 100}}, "limits"),
        ({"tool": "trtllm-bench", "sampling": {"seed": 1}}, "sampling"),
        ({"tool": "llmperf", "endpoint": "/v1/completions"}, "endpoint"),
        ({"tool": "aisbench", "concurrency": 4, "seed": 7}, "seed"),
        ({"tool": "vllm-latency", "concurrency": 4, "ignore_eos": False}, "ignore_eos"),
        ({"tool": "vllm-bench", "server_token_count": False}, "server_token_count"),
        ({**command(), "endpoint": "/v1/completions"}, "endpoint"),
        ({"tool": "command"}, "command"),
        ({"command": COMMAND}, "command"),
        (command(argv=["x", "${address}"]), '"${address}"'),
        (command(environment={"A": "${request_rate}"}), "request_rate"),
        ({**command(argv=["x", "${concurrency}"]), "concurrency": None}, "concurrency"),
        ({**command(), "request_rate": 2}, "request_rate"),
        ({**command(), "arguments": ["-x"]}, "arguments"),
        (command(metrics={"completed": "ok"}), "command.metrics"),
    ],
)
def test_a_load_that_servers_or_tool_do_not_support_is_an_error_before_it_is_sent(profile, value):
    caught = error(points, ENTRIES, deployment(**profile))
    assert caught.code == "measure.profile-invalid" and value in caught.values


def test_a_command_measures_each_server_or_all_of_them_by_its_placeholders():
    found = points(ENTRIES, deployment(**command(), concurrency=4))
    assert [(one["point"]["urls"], one["label"]) for one in found] == [
        (["http://127.0.0.1:8000"], "command:quick, server-0, 4 at once"),
        (["http://127.0.0.1:8001"], "command:quick, server-1, 4 at once"),
    ]
    assert found[0]["point"]["spec"]["template"] == [["bench"], ["${url}"]]
    assert len(points(ENTRIES, deployment(**command(argv=["bench", "${urls}"]), concurrency=4))) == 1


def test_profiles_there_are_not_and_servers_there_are_not():
    caught = error(points, ENTRIES, deployment(), "fast")
    assert caught.code == "measure.profile-unknown" and "quick" in caught.values
    assert error(points, [], deployment()).code == "measure.no-server"


OTHER = {**ENTRIES[0], "host": "other", "bind": "10.0.0.2"}


def test_a_fleet_is_measured_from_one_host_by_all_addresses():
    found = points(ENTRIES, deployment(scope="fleet"), None, elsewhere_of([OTHER], {}))[0]
    assert found["point"]["urls"] == ["http://127.0.0.1:8000", "http://127.0.0.1:8001", "http://10.0.0.2:8000"]
    other = {"host": "other", "name": "server-0", "hash": "0" * 64, "devices": [0], "url": "http://10.0.0.2:8000"}
    assert found["elsewhere"] == [other]
    assert (found["label"], found["scope"]) == ("aiperf, fleet, 2 at once", "fleet")
    caught = error(points, ENTRIES, deployment(scope="fleet", concurrency=25), None, elsewhere_of([OTHER], {}))
    assert caught.code == "measure.profile-invalid" and "at most 24," in caught.values[3]
    alone = points(ENTRIES, deployment(scope="node"), None, elsewhere_of([OTHER], {}))[0]
    assert (len(alone["point"]["urls"]), alone["elsewhere"]) == (2, [])


def test_servers_of_other_hosts_that_cannot_be_measured_together():
    for change in ({"bind": "127.0.0.1"}, {"model_id": "n"}):
        elsewhere = elsewhere_of([{**OTHER, **change}], {})
        assert error(points, ENTRIES, deployment(scope="fleet"), None, elsewhere).code == "measure.not-together"


@pytest.mark.parametrize(("name", "overlay"), [one for one in plans.EACH if "embedding" not in one[0]])
def test_all_profiles_of_a_recipe_fit_its_servers(name, overlay):
    entries, recipe, *_more = plans.each(name, overlay)
    if not any(entry["role"] in ("server", "frontend") for entry in entries):
        assert error(points, entries, recipe).code == "measure.no-server"  # their frontend is another host's
        return
    for profile in recipe["benchmark"]["profiles"]:
        assert points(entries, recipe, profile)


@pytest.mark.parametrize(("name", "tool", "concurrency"), [
    ("ascend-a2", "vllm-bench", [None]), ("cpu-tiny", "aiperf", [2, 8]),  # quick, because there is no guide
    ("trn3-eagle3", "llmperf", [8]),  # 1 on each of 8 servers
    ("blackwell-quickstart-low-latency", "trtllm-bench", [32, 64, 128, 256, 512, 720]),
    # 640 on each of 8 GPUs, and of 4
    ("b200-max-throughput", "trtllm-bench", [32, 64, 128, 256, 512, 1024, 2048, 4096, 5120]),
    ("gb200-max-throughput", "trtllm-bench", [32, 64, 128, 256, 512, 1024, 2048, 2560]),
])  # fmt: skip
def test_the_guides_own_tool_is_the_default(name, tool, concurrency):
    entries, recipe, *_more = plans.each(name, "")
    found = [one for one in points(entries, recipe) if one["servers"][0] is entries[0]]
    assert {one["point"]["tool"] for one in found} == {tool}
    assert [one["point"]["concurrency"] for one in found] == concurrency


def test_a_prefill_worker_needs_no_room_for_the_answer():
    site = {"clustered": True, "endpoints": (("etcd", "http://etcd-1:2379"),)}
    change = {"benchmark": {"profiles": {"guide": {"output_tokens": 3000}}}}
    entries, recipe, *_more = plans.planned("gb200-dynamo-disagg", override=change, **site)
    caught = error(points, entries, recipe)
    assert caught.code == "measure.profile-invalid" and "at most 11000" in caught.values[3]
