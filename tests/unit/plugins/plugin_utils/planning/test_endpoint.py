# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Backends from the plan, mistakes in the endpoint's settings, configurations that the real HAProxy reads, and what
Prometheus scrapes."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result as history
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import endpoint
from ansible_collections.inference.fleet.tests.unit.engines import plans, proxy
from ansible_collections.inference.fleet.tests.unit.engines.certificates import made
from ansible_collections.inference.fleet.tests.unit.engines.measured_results import benchmark
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry

LARGE, SMALL, LONG = "gpt-oss-120b", "gpt-oss-20b", "/mnt/inference/models/gpt-oss-120b"
ADDRESSES = {"one": {"ansible_host": "10.0.0.1"}, "two": {"fleet_address": "fd00::2"}, "proxy": {}}


def plan(host, *changes, repo="openai/gpt-oss-120b"):
    """The plan of a host with a server for each mapping of changes."""
    servers = [
        plan_entry(8000 + number, "server-%d" % number, **{"host": host, "bind": "0.0.0.0", "model_id": LARGE, **one})
        for number, one in enumerate(changes or ({},))
    ]
    return servers, {"model": {"repo": repo, "path": "/m"}}


def code(call, *arguments, **named):
    return [one.code for one in plans.error(call, *arguments, **named).problems]


def places(groups):
    return {group["name"]: [one["netloc"] for one in group["servers"]] for group in groups}


def test_addresses_for_the_host_of_the_proxy():
    plans = [plan("one"), plan("two", {}, {"bind": "10.9.9.9"}), plan("proxy", {"bind": "127.0.0.1"}, {"bind": "::"})]
    assert places(endpoint.backends(plans, ADDRESSES, "proxy")) == {
        "model.gpt-oss-120b": [
            "10.0.0.1:8000", "[fd00::2]:8000", "10.9.9.9:8001", "127.0.0.1:8000", "[::1]:8001"],
    }  # fmt: skip


def test_a_deployment_is_represented_by_its_frontends():
    roles = [{"role": role} for role in ("frontend", "prefill", "decode")]
    assert places(endpoint.backends([plan("one", *roles)], ADDRESSES)) == {"model.gpt-oss-120b": ["10.0.0.1:8000"]}
    workers = [{"role": "prefill"}, {"role": "decode"}]
    assert code(endpoint.backends, [plan("one", *workers)], ADDRESSES) == ["endpoint.no-server"]


def test_the_alias_has_the_servers_of_all_models():
    named = {"arguments": {"served-model-name": ["openai/gpt-oss-120b", LARGE]}, "model_id": "openai/gpt-oss-120b"}
    plans = [plan("one"), plan("two", named), plan("proxy", {"engine": "trtllm", "model_id": LONG})]
    found = endpoint.backends(plans, ADDRESSES, "proxy", LARGE)
    assert places(found) == {
        "model.gpt-oss-120b": ["10.0.0.1:8000"],
        "model.openai_gpt-oss-120b": ["[fd00::2]:8000"],
        "model._mnt_inference_models_gpt-oss-120b": ["127.0.0.1:8000"],
        "alias.gpt-oss-120b": ["10.0.0.1:8000", "[fd00::2]:8000", "127.0.0.1:8000"],
    }
    assert [one["track"] for one in found[-1]["servers"]] == [group["name"] for group in found[:-1]]
    assert list(places(endpoint.backends(plans[:1], ADDRESSES, "proxy", LARGE))) == ["model.gpt-oss-120b"]
    alike = endpoint.backends([plan("one", {"model_id": "a/b"}, {"model_id": "a_b"})], ADDRESSES)
    assert len({group["name"] for group in alike}) == 2


def test_names_of_models_that_a_map_file_cannot_contain_are_refused():
    plans = [plan("one", {"model_id": "gpt oss", "arguments": {"served-model-name": ["gpt oss", "g\u00e9"]}})]
    assert code(endpoint.backends, plans, ADDRESSES) == ["input.value-invalid"]
    assert code(endpoint.backends, plans, ADDRESSES, alias="g\u00e9") == ["input.value-invalid"] * 2


@pytest.mark.parametrize(("value", "disabled"), [("on", True), ("off", False), (None, False)])
def test_maintenance(value, disabled):
    variables = {"one": {**ADDRESSES["one"], **({} if value is None else {"fleet_maintenance": value})}}
    assert endpoint.backends([plan("one")], variables)[0]["servers"][0]["disabled"] is disabled


@pytest.mark.parametrize(
    ("plans", "settings", "codes"),
    [
        ([], {}, ["endpoint.no-server"]),
        ([plan("one", {"bind": "127.0.0.1"})], {}, ["endpoint.loopback-server"]),
        ([plan("one", {"bind": "127.0.0.1"}, {"bind": "::1"})], {}, ["endpoint.loopback-server"] * 2),
        ([plan("proxy")], {"ports": [8405, 8000]}, ["endpoint.port-taken"]),
        ([plan("proxy", {"ports": {"system": 8405}})], {"ports": [8405]}, ["endpoint.port-taken"]),
        ([plan("one"), plan("two", {"model_id": LONG})], {"alias": LARGE}, ["endpoint.alias-unknown"]),
        ([plan("one", {"adapters": [LARGE]})], {"alias": LARGE}, ["plan.taken-twice"]),
        (
            [plan("one", {"engine": "trtllm"}), plan("two", {"engine": "trtllm"}, repo="openai/gpt-oss-20b")],
            {"alias": "gpt-oss"},
            ["endpoint.alias-models"],
        ),
    ],
)  # fmt: skip
def test_mistakes_of_the_plan(plans, settings, codes):
    assert code(endpoint.backends, plans, ADDRESSES, "proxy", **settings) == codes


def test_the_same_model_from_repositories_of_other_formats():
    plans = [plan("one"), plan("two", repo="unsloth/gpt-oss-120b-BF16")]
    assert len(endpoint.backends(plans, ADDRESSES, alias=LARGE)) == 1
    assert endpoint.backends([plan("one"), plan("one", repo="x/y")], ADDRESSES)  # without an alias


def test_keys_of_servers():
    with_key = {"secrets": {"VLLM_API_KEY": "fleet_api_key"}}
    groups = endpoint.backends([plan("one", with_key), plan("two", with_key)], ADDRESSES)
    assert endpoint.server_keys(groups, {"one": {"fleet_api_key": ["k1", "k0"]}, "two": {"fleet_api_key": "k1"}}) == {
        "model.gpt-oss-120b": "k1"
    }
    different = {"one": {"fleet_api_key": "k1"}, "two": {"fleet_api_key": "k2"}}
    assert code(endpoint.server_keys, groups, different) == ["endpoint.server-keys"]
    assert endpoint.server_keys(endpoint.backends([plan("one")], ADDRESSES), {"one": {}}) == {}


def test_keys_of_clients():
    names = endpoint.key_names({"alice": ["new", "old"], "bob": "b\n", "carol": None})
    assert list(names.values()) == ["alice", "alice", "bob"]
    assert "81b637d8fcd2c6da6359e6963113a1170de795e4b725b84d1e0b4cfd9ec58ce9" not in names  # of "bob"
    assert names["3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"] == "bob"
    assert code(endpoint.key_names, {"alice": "k", "bob": ["x", "k"]}) == ["endpoint.key-twice"]
    assert code(endpoint.key_names, {"alice": "with space"}) == ["secrets.invalid"]
    assert code(endpoint.key_names, {"a b": "k"}) == ["input.value-invalid"]
    error = plans.error(endpoint.key_names, {"alice": "secret-key", "bob": "secret-key"})
    assert "secret-key" not in error.message and error.values == ("alice", "bob")


def test_access_without_keys_only_on_loopback():
    assert endpoint.check_access({}, "127.0.0.1") and endpoint.check_access({"x": "alice"}, "0.0.0.0", {"alice": "60"})
    assert code(endpoint.check_access, {}, "0.0.0.0") == ["endpoint.no-keys"]
    for limits in ({"alcie": 60}, {"alice": "ten"}, {"alice": -1}, {"alice": None}):
        assert code(endpoint.check_access, {"x": "alice"}, "0.0.0.0", limits) == ["input.value-invalid"]


def test_certificates():
    chain, key = made()
    assert endpoint.certificate(chain, key) == chain + key
    assert endpoint.certificate("", "") == ""
    for pair in ((chain, ""), ("", key), (chain, made()[1]), ("x", key), made(-1), made(2, since=1)):
        assert code(endpoint.certificate, *pair) == ["endpoint.certificate-invalid"]


def test_hosts_of_the_run():
    assert endpoint.hosts(["a", "b"], ["b", "c"]) == ["b"]
    assert code(endpoint.hosts, ["a"], ["c"]) == ["endpoint.no-host"]
    assert code(endpoint.hosts, [], ["c"]) == ["endpoint.no-host"]


@pytest.mark.parametrize(
    ("plans", "settings"),
    [
        ([plan("one"), plan("two", {}, {})], {"endpoint_balance": "prefix", "endpoint_server_connections": 64}),
        ([plan("one", {"model_id": "it's\"odd\"\\{}"})], {}),
        ([plan("one", {"engine": "trtllm"}), plan("two", {"engine": "trtllm", "model_id": LONG})],
         {"endpoint_alias": LARGE, "endpoint_balance": "prefix"}),
        ([plan("one", {"secrets": {"VLLM_API_KEY": "key"}})], {"endpoint_metrics_address": "0.0.0.0"}),
        ([plan("proxy", {"bind": "::1"})], {"endpoint_keys": {}, "endpoint_address": "127.0.0.1"}),
        ([plan("one", {"role": "frontend", "engine": "dynamo"}, {"role": "decode"})], {"endpoint_address": "::"}),
        ([plan("one", {"family": "embedding", "secrets": {"VLLM_API_KEY": "key"}})], {}),
    ],
)  # fmt: skip
def test_haproxy_accepts_the_configuration(tmp_path, plans, settings):
    proxy.require_haproxy()
    variables = {
        **{host: {**found, "key": "server's-key"} for host, found in ADDRESSES.items()},
        "maintained": {"ansible_host": "10.0.0.3", "fleet_maintenance": True},
    }
    settings = {"endpoint_keys": {"alice": "key"}, **settings}
    path = proxy.rendered(tmp_path, plans, variables, **settings)
    proxy.check(path)
    assert "server's-key" not in path.read_text()


def test_servers_of_embeddings_are_checked_by_one(tmp_path):
    text = proxy.rendered(tmp_path, [plan("one", {"family": "embedding"})], ADDRESSES).read_text()
    (check,) = [line for line in text.splitlines() if "http-check send" in line]
    assert " uri /v1/embeddings " in check and check.endswith("""body '{"model": "gpt-oss-120b", "input": "1"}'""")


def test_numbers_may_be_strings_as_from_the_command_line(tmp_path):
    given = {"endpoint_timeout_s": 900, "endpoint_max_body": 65536, "endpoint_server_connections": 0}
    texts = [
        proxy.rendered(tmp_path, [plan("one")], ADDRESSES, **{name: kind(value) for name, value in given.items()})
        .read_text() for kind in (int, str)
    ]  # fmt: skip
    assert texts[0] == texts[1] and "hard-stop-after 1800s" in texts[0]


# -- Prometheus --------------------------------------------------------------------------------------------------------


def entry(host="n1", name="server-0", role="server", port=8000, bind="0.0.0.0", engine="vllm", **ports):
    return {"host": host, "name": name, "role": role, "port": port, "bind": bind, "engine": engine, "model_id": "m",
            "ports": ports}  # fmt: skip


def found(entries, variables=None, groups=None, ports=None, monitor="mon"):
    hosts = {"n1": {"ansible_host": "10.0.0.1"}, "n2": {}, "mon": {}, **(variables or {})}
    groups, deployment = {"monitoring": ["mon"], **(groups or {})}, {"name": "r", "platform": "nvidia"}
    result = endpoint.targets([(entries, deployment)], hosts, groups, monitor, ports)
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
    error = plans.problem(found, entries, groups=groups)
    assert error.code == "endpoint.loopback-server"
    assert error.values[2:] == ("127.0.0.1", "endpoint_metrics_address" if groups else "fleet_bind_address")


def test_a_node_with_a_root_has_no_node_exporter():
    places, _result = found([entry()], variables={"n1": {"fleet_root": "/srv/fleet"}})
    assert (places["engines"], places["nodes"]) == (["n1:8000"], ["127.0.0.1:9100"])


def test_on_the_same_host_loopback_is_reached():
    places, _result = found([entry(bind="127.0.0.1")], monitor="n1")
    assert (places["engines"], places["nodes"]) == (["127.0.0.1:8000"], ["127.0.0.1:9100", "mon:9100"])


def test_limits_of_the_last_good_benchmarks(tmp_path):
    def write(day, **values):
        history.keep(str(tmp_path), benchmark(day=day, **values))

    assert endpoint.limits(str(tmp_path)) == {}
    write(1, recipe="a", limits={"ttft_ms": 1, "tpot_ms": 2})
    write(2, recipe="a", limits={"ttft_ms": 500, "tpot_ms": None})
    write(3, recipe="a", limits={"ttft_ms": 9, "tpot_ms": None}, ok=False)
    write(4, recipe="b", limits=None)
    assert endpoint.limits(str(tmp_path)) == {"a": {"ttft_ms": 500}}
