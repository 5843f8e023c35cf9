# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one host needs of others: services and totals, from what the inventory declares."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet
from ansible_collections.inference.fleet.tests.unit.engines.lazy_variables import Lazy

HOSTS = {
    "n1": {}, "n2": {}, "e1": {"ansible_host": "10.0.0.7"}, "e2": {"fleet_address": "fd00::7", "ansible_host": "x"}
}  # fmt: skip
SERVICES = {"etcd": {"port": 2379, "endpoint": "http://{address}:{port}"}, "nats": {"port": 4222, "group": "bus"}}
OVERRIDE = {"services": SERVICES, "environment": {"ETCD": "${etcd}", "NATS": "${nats}", "N": "${total_server}"}}


def plan_of(changes=None, groups=None, override=None, **shared):
    groups = groups or {"etcd": ["e1", "e2"], "bus": ["e1"], "all": list(HOSTS)}
    base = {
        "fleet_recipe": "cpu-tiny", "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 4},
        "fleet_override": OVERRIDE if override is None else override, "groups": groups, **shared,
    }  # fmt: skip
    variables = {host: {**(base if host.startswith("n") else {"groups": groups}), **given,
                        **(changes or {}).get(host, {})} for host, given in HOSTS.items()}  # fmt: skip
    return fleet.plan_fleet(["n1"], lambda host: Lazy(variables[host]))["n1"]["servers"]


def code(*args, **kwargs):
    with pytest.raises(FleetError) as caught:
        plan_of(*args, **kwargs)
    return caught.value.code, caught.value.message


def test_addresses_of_services_are_the_declared_ones():
    variables = plan_of()[0]["environment"]
    assert variables["ETCD"] == "http://10.0.0.7:2379,http://[fd00::7]:2379"
    assert variables["NATS"] == "10.0.0.7:4222"


def test_a_total_counts_the_hosts_of_a_cluster():
    assert plan_of()[0]["environment"]["N"] == "2"  # the host alone
    more = {"n2": {"fleet_override": {"servers": {"server": {"count": 3}}}}}
    assert plan_of(more, fleet_cluster="a")[0]["environment"]["N"] == "5"
    apart = {"n2": {**more["n2"], "fleet_cluster": "b"}}
    assert plan_of(apart, fleet_cluster="a")[0]["environment"]["N"] == "2"


def test_an_address_that_needs_facts_is_an_error_that_names_the_variable():
    facts = RuntimeError("'ansible_default_ipv4' is undefined")
    found, message = code({"e2": {"fleet_address": facts}})
    assert found == "inventory.variable-unresolvable"
    assert "variable fleet_address cannot be worked out for the plan" in message


def test_a_service_without_hosts_is_an_error():
    assert code(groups={"bus": ["e1"], "all": list(HOSTS)})[0] == "plan.service-without-hosts"


def test_hosts_are_not_read_for_services_that_nothing_names():
    facts = RuntimeError("never read")
    assert plan_of({"e1": {"ansible_host": facts}, "e2": {"fleet_address": facts}}, override={"services": SERVICES})


def test_a_service_cannot_have_the_name_of_a_placeholder():
    _code, message = code(override={"services": {"model": {"port": 1}}})
    assert "'services.model' has the name of another placeholder" in message


def deployment_of(host, **changes):
    """The deployment of a frontend's host and that of a prefill host, one Dynamo over both."""
    groups = {"etcd": ["e1"], "all": list(HOSTS)}
    base = {
        "fleet_recipe": "gb200-dynamo-disagg", "fleet_hardware": {"accelerator": "gb200", "count": 4},
        "fleet_cluster": "one", "fleet_bind_address": "10.0.0.1", "groups": groups,
    }  # fmt: skip
    prefill = {"fleet_overlay": "prefill", "fleet_bind_address": "10.0.0.2"}
    given = {"n1": base, "n2": {**base, **prefill, **changes}, "e1": {"groups": groups}, "e2": {"groups": groups}}
    return fleet.plan_fleet([host], lambda one: Lazy({**HOSTS[one], **given[one]}))[host]["deployment"]


def test_a_frontend_knows_the_workers_of_other_hosts():
    found = deployment_of("n1")["workers_elsewhere"]
    assert [(one["host"], one["name"], one["role"], one["bind"]) for one in found] == [
        ("n2", "prefill-%d" % number, "prefill", "10.0.0.2") for number in range(4)
    ]
    assert [one["ports"]["system"] for one in found] == [8100, 8101, 8102, 8103]


def test_no_others_are_counted_than_those_of_its_deployment():
    assert deployment_of("n1", fleet_cluster="two")["workers_elsewhere"] == []
    assert deployment_of("n1", fleet_recipe=None)["workers_elsewhere"] == []
    assert "workers_elsewhere" not in deployment_of("n2")  # without a frontend
