# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one host needs of others: services and workers, from what the inventory declares."""

from __future__ import annotations

import re

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet
from ansible_collections.inference.fleet.tests import doc_examples
from ansible_collections.inference.fleet.tests.unit.engines import plans

HOSTS = {
    "n1": {}, "n2": {}, "e1": {"ansible_host": "10.0.0.7"}, "e2": {"fleet_address": "fd00::7", "ansible_host": "x"},
    "e3": {"ansible_host": "e-3"},
}  # fmt: skip
SERVICES = {"etcd": {"port": 2379, "endpoint": "http://{address}:{port}"}, "nats": {"port": 4222, "group": "bus"}}
SCHEME = "{scheme}://{address}:{port}"
WITH_SCHEME = {"environment": {"ETCD": "${etcd}"}, "services": {"etcd": {"port": 2379, "endpoint": SCHEME}}}
OVERRIDE = {"services": SERVICES, "environment": {"ETCD": "${etcd}", "NATS": "${nats}"}}


def plan_of(changes=None, groups=None, override=None, **shared):
    groups = groups or {"etcd": ["e1", "e2", "e3"], "bus": ["e1"], "all": list(HOSTS)}
    base = {
        "fleet_recipe": "cpu-tiny", "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 4},
        "fleet_override": OVERRIDE if override is None else override, "groups": groups, **shared,
    }  # fmt: skip
    variables = {host: {**(base if host.startswith("n") else {"groups": groups}), **given,
                        **(changes or {}).get(host, {})} for host, given in HOSTS.items()}  # fmt: skip
    return fleet.plan_fleet(["n1"], lambda host: plans.Lazy(variables[host]))["n1"]["servers"]


def test_addresses_of_services_are_the_declared_ones_and_the_scheme_says_whether_a_cluster_has_tls():
    variables = plan_of()[0]["environment"]
    addresses = "{0}://10.0.0.7:2379,{0}://[fd00::7]:2379,{0}://e-3:2379"
    assert (variables["ETCD"], variables["NATS"]) == (addresses.format("http"), "10.0.0.7:4222")
    plain = {"e1": {"etcd_tls": False}, "e2": {"etcd_tls": False}}
    for changes, scheme in (({}, "https"), (plain, "http")):
        assert plan_of(changes, override=WITH_SCHEME)[0]["environment"]["ETCD"] == addresses.format(scheme)


def test_a_host_that_is_alone_is_reached_over_loopback_by_itself_only():
    groups = {"etcd": ["n1"], "bus": ["n1"], "all": list(HOSTS)}
    scheme, declared = WITH_SCHEME, {"n1": {"fleet_address": "10.0.0.1"}}
    assert plan_of(declared, groups, scheme)[0]["environment"]["ETCD"] == "http://127.0.0.1:2379"
    other = {**groups, "etcd": ["e1"]}
    error = plans.error(plan_of, declared, other, scheme)
    assert (error.code, error.values[0]) == (plans.VALUE, "etcd_tls of the group 'etcd'")
    secured = {**declared, "e1": {"etcd_tls": True}}
    assert plan_of(secured, other, scheme)[0]["environment"]["ETCD"] == "https://10.0.0.7:2379"
    # of a group that no role here provides nothing is known
    assert plan_of(groups={**groups, "etcd": ["e1", "e2", "e3"]})[0]["environment"]["NATS"] == "n1:4222"


TWO = {"etcd": ["e1", "e2"], "theirs": ["e1", "e2"], "bus": ["e1"], "all": list(HOSTS)}


@pytest.mark.parametrize(
    ("groups", "override", "code"),
    [
        (TWO, None, "service.members-invalid"),
        ({"bus": ["e1"], "all": list(HOSTS)}, None, plans.VALUE),
        (None, {"services": {"model": {"port": 1}}}, "recipe.key-invalid"),
    ],
)
def test_services_that_cannot_be(groups, override, code):
    assert plans.problem(plan_of, groups=groups, override=override).code == code


def test_a_group_that_no_role_here_provides_may_have_two_members():
    services = {**SERVICES, "etcd": {**SERVICES["etcd"], "group": "theirs"}}
    assert plan_of(groups=TWO, override={**OVERRIDE, "services": services})


def test_an_address_that_needs_facts_is_an_error_that_names_the_host_and_the_variable():
    facts = RuntimeError("'ansible_default_ipv4' is undefined")
    error = plans.error(plan_of, {"e2": {"fleet_address": facts}})
    assert error.code == "inventory.variable-unresolvable"
    assert ": e2: variable fleet_address cannot be worked out for the plan" in error.message


def test_hosts_are_not_read_for_services_that_nothing_names():
    facts = RuntimeError("never read")
    assert plan_of({"e1": {"ansible_host": facts}, "e2": {"fleet_address": facts}}, override={"services": SERVICES})


def gb200(hosts, **changes):
    """The plans of a frontend's host and of a prefill host with these changes, one Dynamo over both."""
    groups = {"etcd": ["e1", "e2", "e3"], "all": list(HOSTS)}
    base = {
        "fleet_recipe": "gb200-dynamo-disagg", "fleet_hardware": {"accelerator": "gb200", "count": 4},
        "fleet_cluster": "one", "fleet_bind_address": "10.0.0.1", "groups": groups,
    }  # fmt: skip
    prefill = {"fleet_overlay": "prefill", "fleet_bind_address": "10.0.0.2"}
    given = {"n1": base, "n2": {**base, **prefill, **changes}}
    variables = {one: {"groups": groups, **HOSTS[one], **given.get(one, {})} for one in HOSTS}
    return fleet.plan_fleet(hosts, lambda one: plans.Lazy(variables[one]))


def deployment_of(host, **changes):
    return gb200([host], **changes)[host]["deployment"]


def test_hosts_of_a_deployment_agree():
    hosts, image = ["n1", "n2"], {"fleet_overlay": ["vendor", "prefill"]}
    cache = {"servers": {"prefill": {"config": {"content": {"kv_cache_config": {"dtype": "auto"}}}}}}
    for changes, server, place in (
        (image, "frontend-0", "container.image"),
        ({"fleet_override": cache}, "decode-0", "config.content.kv_cache_config.dtype"),
    ):
        found = plans.problem(gb200, hosts, **changes)
        assert found.code == "plan.dynamo-servers-differ"
        assert found.values[:3] == (server + " of n1", "prefill-0 of n2", place)
    for changes in ({}, {**image, "fleet_cluster": "two"}):
        assert list(gb200(hosts, **changes)) == hosts


def test_no_others_are_counted_than_those_of_its_deployment():
    assert deployment_of("n1", fleet_cluster="two")["workers_elsewhere"] == []
    assert deployment_of("n1", fleet_recipe=None)["workers_elsewhere"] == []
    assert "workers_elsewhere" not in deployment_of("n2")  # without a frontend
    error = plans.error(deployment_of, "n1", fleet_override={"servers": {"prefill": {"count": "x"}}})
    assert ": n2: fleet_override: 'servers.prefill.count'" in error.message


CLUSTER = {name: {"fleet_address": "10.0.0.%d" % number} for number, name in enumerate(("m1", "m2", "m3"), 1)}
FILES = {"ETCD_AUTH_CA": "ca.crt", "ETCD_AUTH_CLIENT_CERT": "tls.crt", "ETCD_AUTH_CLIENT_KEY": "tls.key"}


def dynamo_on(host, override=None, **shared):
    """The plan of one of three hosts that are etcd and NATS, one Dynamo over all of them."""
    groups = {"etcd": list(CLUSTER), "nats": list(CLUSTER), "all": list(CLUSTER)}
    roles = dict(zip(CLUSTER, ("frontend", "prefill", "decode")))
    given = {
        one: {
            "fleet_recipe": "cpu-dynamo", "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2},
            "groups": groups, "fleet_overlay": ["etcd", roles[one]], "fleet_cluster": "one",
            "fleet_override": override or {}, "fleet_bind_address": address["fleet_address"], **address, **shared,
        }
        for one, address in CLUSTER.items()
    }  # fmt: skip
    return fleet.plan_fleet([host], lambda one: plans.Lazy(given[one]))[host]


def test_dynamo_over_three_hosts_reads_the_certificates_that_the_role_makes():
    for host, role in zip(CLUSTER, ("frontend", "prefill", "decode")):
        item = dynamo_on(host)
        (entry,) = item["servers"]
        assert entry["role"] == role
        assert entry["environment"]["ETCD_ENDPOINTS"] == "https://%s:2379" % CLUSTER[host]["fleet_address"]
        folder = "/etc/inference-fleet/tls/etcd"
        assert entry["secrets"] == {name: "%s/%s" % (folder, file) for name, file in FILES.items()}
        assert item["deployment"]["service_clients"] == [
            {"name": "etcd", "folder": folder, "members": list(CLUSTER), "owner": "inference-fleet",
             "endpoints": ["10.0.0.1:2379", "10.0.0.2:2379", "10.0.0.3:2379"]}
        ]  # fmt: skip
        assert {entry["environment"][name] for name in ("DYN_TCP_RPC_HOST", "DYN_EVENT_PLANE_HOST")} == {entry["bind"]}
    elsewhere = dynamo_on("m1")["deployment"]["workers_elsewhere"]
    assert elsewhere == [
        {"host": host, "name": role + "-0", "role": role, "bind": address, "ports": {
            "system": port, "side_channel": port + 20, "kv_events": port + 40}}
        for host, role, address, port in (("m2", "prefill", "10.0.0.2", 8100), ("m3", "decode", "10.0.0.3", 8160))
    ]  # fmt: skip


def test_certificates_that_are_given_count_instead():
    item = dynamo_on("m1", {"secrets": {**FILES, **dict.fromkeys(FILES, "/etc/pki/client.pem")}})
    assert set(item["servers"][0]["secrets"].values()) == {"/etc/pki/client.pem"}
    assert item["deployment"]["service_clients"] == []


@pytest.mark.parametrize(
    ("override", "shared"),
    [
        ({"secrets": {"ETCD_AUTH_CA": "a_variable"}}, {}),
        ({}, {"etcd_certificates": dict.fromkeys(("ca", "certificate", "key"), "/x")}),
    ],
    ids=["one of three", "the cluster's are given, and the clients' are not"],
)
def test_certificates_that_nobody_gives_are_an_error(override, shared):
    assert plans.error(dynamo_on, "m1", override, **shared).code == "plan.dynamo-certificates"


DYNAMO = [name for name, own in plans.OWN.items() if own["engine"] == "dynamo" and "etcd" in own["overlays"]]


@pytest.mark.parametrize("recipe", DYNAMO)
def test_the_overlay_etcd_is_the_group_etcd(recipe):
    """Its members, their TLS and their port; an own address needs no group."""
    own = {"fleet_override": {"environment": {"ETCD_ENDPOINTS": "http://10.9.9.9:2379"}}}
    for members, changes, found in (
        (["m1"], {"etcd_client_port": 3379}, "http://127.0.0.1:3379"),
        (list(CLUSTER), {}, "https://10.0.0.1:2379"),
        ([], own, "http://10.9.9.9:2379"),
    ):
        shared = {"fleet_recipe": recipe, "fleet_overlay": "etcd", "fleet_hardware": plans.node_of(plans.OWN[recipe]),
                  "groups": {"etcd": members, "all": list(CLUSTER)}, **changes}  # fmt: skip
        hosts = {one: {**shared, **address} for one, address in CLUSTER.items()}
        for entry in fleet.plan_fleet(["m1"], hosts.get)["m1"]["servers"]:
            (need,) = entry["start"]["needs"]
            assert entry["environment"]["ETCD_ENDPOINTS"] == found
            assert [need["name"], *need["urls"], "tls" in need] == ["etcd", found + "/health", found[:5] == "https"]


def nats_of(host, version=None, **shared):
    """What a server's environment and secrets have of NATS."""
    changes = {
        "environment": {"DYN_EVENT_PLANE": "nats", "NATS_SERVER": "${nats}"},
        "services": {"nats": {"port": 4222, "endpoint": SCHEME}},
    }
    if version:
        changes["venv"] = {"packages": ["ai-dynamo==" + version]}
    (entry,) = dynamo_on(host, changes, **shared)["servers"]
    found = {**entry["environment"], **entry["secrets"]}
    return {name: value for name, value in found.items() if name.startswith("NATS_")}


def test_dynamo_gets_one_server_of_nats_its_own_host_s_where_that_has_one_and_needs_tls_for_it():
    folder = "/etc/inference-fleet/tls/nats"
    tls = {"NATS_TLS_CA_CERT_PATH": folder + "/ca.crt", "NATS_TLS_CLIENT_CERT_PATH": folder + "/tls.crt",
           "NATS_TLS_CLIENT_KEY_PATH": folder + "/tls.key"}  # fmt: skip
    assert nats_of("m2") == {"NATS_SERVER": "tls://10.0.0.2:4222", **tls}
    error = plans.error(nats_of, "m1", "1.0.2")
    assert error.code == plans.VALUE and "1.0.2" in error.message


def shown(name):
    """(hosts, hosts of the group etcd, variables of all) of an inventory, or of the example of docs/using/dynamo.md."""
    if not name:
        text = (doc_examples.USING / "dynamo.md").read_text(encoding="utf-8")
        blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        found = yaml.safe_load(next(one for one in blocks if "fleet_overlay: [etcd" in one))["all"]
        return found["hosts"], found["children"]["etcd"]["hosts"], found["vars"]
    folder = doc_examples.USING.parents[1] / "inventories" / name
    groups = yaml.safe_load((folder / "hosts.yml").read_text())
    shared = yaml.safe_load((folder / "group_vars/all.yml").read_text())
    return groups["b200"]["hosts"], groups.get("etcd", {}).get("hosts", ()), shared


@pytest.mark.parametrize(("name", "roles"), [
    ("b200_dynamo", [["frontend"] + 8 * ["prefill"], 8 * ["decode"], 8 * ["decode"]]),
    ("b200_dynamo_disagg", [["frontend", "prefill", "decode"]]),
    ("", [["frontend"], ["prefill"], ["decode"]]),
])  # fmt: skip
def test_inventories_plan(name, roles):
    hosts, etcd, shared = shown(name)
    groups = {"etcd": list(etcd), "all": list(hosts)}
    variables = {host: {**shared, **(own or {}), "groups": groups} for host, own in hosts.items()}
    for own in variables.values() if etcd else ():
        own["fleet_bind_address"] = own["ansible_host"]
    found = fleet.plan_fleet(list(hosts), variables.get, deploys=bool(name))
    assert [[one["role"] for one in item["servers"]] for item in found.values()] == roles
    elsewhere = [len(item["deployment"].get("workers_elsewhere", ())) for item in found.values()]
    assert elsewhere[0] == sum(map(len, roles[1:]))
    addresses = {item["servers"][0]["environment"].get("ETCD_ENDPOINTS") for item in found.values()}
    assert addresses == ({"https://%s:2379" % one["ansible_host"] for one in hosts.values()} if etcd else {None})
