# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Prometheus scrapes, by the plan and the inventory."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import endpoint
from ansible_collections.inference.fleet.tests.unit.engines.plans import problem

DEPLOYMENT = {"name": "r", "platform": "nvidia"}


def entry(host="n1", name="server-0", role="server", port=8000, bind="0.0.0.0", engine="vllm", **ports):
    return {"host": host, "name": name, "role": role, "port": port, "bind": bind, "engine": engine, "model_id": "m",
            "ports": ports}  # fmt: skip


def found(entries, variables=None, groups=None, ports=None, monitor="mon"):
    hosts = {"n1": {"ansible_host": "10.0.0.1"}, "n2": {}, "mon": {}, **(variables or {})}
    result = endpoint.targets([(entries, DEPLOYMENT)], hosts, {"monitoring": ["mon"], **(groups or {})}, monitor, ports)
    return {job: [one["targets"][0] for one in targets] for job, targets in result.items()}, result


def test_servers_workers_and_their_nodes():
    entries = [
        entry(),
        entry(name="trt", engine="trtllm", port=8001),
        entry(name="decode-0", role="decode", port=None, engine="dynamo", system=8100),
        entry(name="decode-1", role="decode", port=None, engine="dynamo"),  # no metrics of its own
    ]
    places, result = found(entries, ports={"nvidia": 9400, "ascend": 8082})
    assert places["engines"] == ["10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.1:8100"]
    paths = [one["labels"].pop("__metrics_path__") for one in result["engines"]]
    assert paths == ["/metrics", "/prometheus/metrics", "/metrics"]
    assert result["engines"][0]["labels"] == {
        "host": "n1", "server": "server-0", "role": "server", "model": "m", "engine": "vllm", "recipe": "r",
    }  # fmt: skip
    assert (places["nodes"], places["accelerators"]) == (["10.0.0.1:9100", "127.0.0.1:9100"], ["10.0.0.1:9400"])


@pytest.mark.parametrize(("given", "metrics", "services"), [
    ({}, [], []),
    ({"etcd": ["n1"], "nats": ["n1"]}, [], []),  # single members listen on loopback of another host
    ({"etcd": ["mon"], "nats": ["mon"]}, ["127.0.0.1:2381"], [("127.0.0.1:4222", "nats")]),
    ({"etcd": ["n1", "n2", "mon"], "nats": ["n1", "n2", "mon"]}, ["10.0.0.1:2381", "n2:2381", "mon:2381"],
     [("10.0.0.1:2379", "tls"), ("n2:2379", "tls"), ("mon:2379", "tls"),
      ("10.0.0.1:4222", "nats_tls"), ("n2:4222", "nats_tls"), ("mon:4222", "nats_tls")]),
])  # fmt: skip
def test_shared_services(given, metrics, services):
    places, result = found([entry()], groups=given)
    assert places["etcd"] == metrics
    assert [(one["targets"][0], one["labels"]["module"]) for one in result["services"]] == services


def test_the_endpoint_and_its_certificate():
    proxy = {"endpoint_metrics_address": "0.0.0.0", "endpoint_certificate": "c.pem", "endpoint_port": 443}
    places, result = found(
        [entry()], variables={"n2": {"ansible_host": "10.0.0.2", **proxy}}, groups={"endpoint": ["n2"]}
    )
    assert places["endpoint"] == ["10.0.0.2:8405"]
    assert result["services"] == [
        {"targets": ["10.0.0.2:443"], "labels": {"host": "n2", "service": "endpoint", "module": "tls"}}
    ]


@pytest.mark.parametrize(("entries", "groups"), [([entry(bind="127.0.0.1")], {}), ([entry()], {"endpoint": ["n2"]})])
def test_loopback_of_another_host_is_refused(entries, groups):
    error = problem(found, entries, groups=groups)
    assert error.code == "endpoint.loopback-server"
    assert error.values[2:] == ("127.0.0.1", "endpoint_metrics_address" if groups else "fleet_bind_address")


def test_a_node_with_a_root_has_no_node_exporter():
    places, _result = found([entry()], variables={"n1": {"fleet_root": "/srv/fleet"}})
    assert (places["engines"], places["nodes"]) == (["n1:8000"], ["127.0.0.1:9100"])


def test_on_the_same_host_loopback_is_reached():
    places, _result = found([entry(bind="127.0.0.1")], monitor="n1")
    assert (places["engines"], places["nodes"]) == (["127.0.0.1:8000"], ["127.0.0.1:9100", "mon:9100"])


def test_limits_of_the_last_good_benchmarks(tmp_path):
    def write(number, **values):
        document = {"schema": 1, "kind": "benchmark", "id": "id-%d" % number, "began": str(number), "ok": True}
        document.update(values)
        (tmp_path / "measurements").mkdir(exist_ok=True)
        (tmp_path / "measurements" / ("id-%d.json" % number)).write_text(json.dumps(document))

    assert endpoint.limits(str(tmp_path)) == {}
    write(1, recipe="a", limits={"ttft_ms": 1, "tpot_ms": 2})
    write(2, recipe="a", limits={"ttft_ms": 500, "tpot_ms": None})
    write(3, recipe="a", limits={"ttft_ms": 9}, ok=False)
    write(4, recipe="b", limits=None)
    assert endpoint.limits(str(tmp_path)) == {"a": {"ttft_ms": 500}}
