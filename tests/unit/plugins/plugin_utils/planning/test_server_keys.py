# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""API keys and secrets in a plan: who gets them, what is refused, what is warned of, and that no value is in it."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import Hosts
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.plans import LOCAL, Lazy, plan_of

KEY = "sk-never-in-a-plan"
TRN3 = {"fleet_recipe": "trn3-eagle3", "fleet_hardware": plans.TRN3}
SECRETS = {"VLLM_API_KEY": "fleet_api_key", "INFERENCE_FLEET_OTHER_API_KEYS": "fleet_api_key"}
MIDDLEWARE = ["--middleware", "inference_fleet_api_keys.ApiKeys"]


def unresolvable(cause):
    """What reading a variable raises."""
    error = FleetError("test.unresolvable", "variable vault_token cannot be worked out for the plan: %s" % cause)
    error.__cause__ = RuntimeError(cause)
    return error


LOCKED = unresolvable("Attempt to use undecryptable variable: Attempting to decrypt but no vault secrets found.")


def entries_of(variables, deploys=True):
    return plan_of(variables, deploys=deploys)["node1"]["servers"]


@pytest.mark.parametrize("base", [LOCAL, TRN3, {**TRN3, "fleet_recipe": "trn3-start-script"}])
def test_a_key_becomes_a_secret_of_every_server_and_its_value_is_nowhere(base):
    without = entries_of(base)
    planned = plan_of({**base, "fleet_api_key": [KEY, KEY + "2"]})
    assert KEY not in json.dumps(planned)
    for entry, plain in zip(planned["node1"]["servers"], without):
        assert entry["secrets"] == SECRETS
        assert entry["secret_versions"] == dict.fromkeys(SECRETS, "1")
        assert entry["command"] == [*plain["command"], *MIDDLEWARE]
        folder = base.get("fleet_root", "") + "/var/lib/inference-fleet/lib/engine"
        assert entry["environment"] == {**plain["environment"], "PYTHONPATH": folder}
        assert entry["hooks"] == plain["hooks"]  # nothing is compiled again for a key


def test_the_plan_depends_on_the_version_and_not_on_value_or_vault():
    one = entries_of({**LOCAL, "fleet_api_key": KEY})
    for value in ("other", ["a", "b"], LOCKED):
        assert entries_of({**LOCAL, "fleet_api_key": value}) == one
    two = entries_of({**LOCAL, "fleet_api_key": KEY, "fleet_api_key_version": 2})
    assert two[0]["secret_versions"] == dict.fromkeys(SECRETS, "2")
    assert two[0]["hash"] != one[0]["hash"]


def test_what_is_no_key_stops_a_deployment_and_nothing_else():
    wrong = {**LOCAL, "fleet_api_key": KEY + " x"}
    message = plans.error(plan_of, wrong, deploys=True).message
    assert message.startswith("node1: fleet_api_key ") and KEY not in message
    assert entries_of(wrong, deploys=False)[0]["secrets"] == SECRETS


def test_own_middleware_and_python_path_stay():
    layer = {"arguments": {"middleware": "site.Own"}, "environment": {"PYTHONPATH": "/opt/site"}}
    entry = entries_of({**LOCAL, "fleet_api_key": KEY, "fleet_override": layer})[0]
    at = entry["command"].index("--middleware")
    assert entry["command"][at : at + 2] == ["--middleware", "site.Own"]
    assert entry["command"][-2:] == MIDDLEWARE
    assert entry["environment"]["PYTHONPATH"] == "/r/var/lib/inference-fleet/lib/engine:/opt/site"


def test_a_container_gets_the_module_mounted_and_the_key_by_name_alone():
    layer = {"launcher": "container", "container": {"image": "vllm/vllm-openai:v0.11.1"}}
    entry = entries_of({**LOCAL, "fleet_api_key": KEY, "fleet_override": layer})[0]
    folder = "/r/var/lib/inference-fleet/lib/engine"
    assert {"source": folder, "target": folder, "read_only": True} in entry["container"]["mounts"]
    assert "--env=VLLM_API_KEY" in entry["launch"]
    assert "--env=INFERENCE_FLEET_OTHER_API_KEYS" in entry["launch"]


@pytest.mark.parametrize(
    ("layer", "where"),
    [
        ({"arguments": {"api-key": "x"}}, "arguments.api-key"),
        ({"arguments": {"api_key": ["x", "y"]}}, "arguments.api_key"),
        ({"environment": {"VLLM_API_KEY": "x"}}, "environment.VLLM_API_KEY"),
        ({"config": {"format": "yaml", "content": {"api-key": ["x"]}}}, "config.content.api-key"),
        ({"config": {"format": "yaml", "content": {"api_key": "x"}}}, "config.content.api_key"),
        ({"command": ["vllm", "serve", "m", "--api-key", "x"]}, "command"),
        ({"command": ["vllm", "serve", "m", "--api_key=x"]}, "command"),
    ],
)
def test_a_key_in_the_open_is_an_error(layer, where):
    problem = plans.problem(plan_of, {**LOCAL, "fleet_override": layer})
    assert (problem.code, problem.values[1]) == ("plan.api-key-in-the-open", where)


def test_two_variables_for_one_key():
    layer = {"secrets": {"VLLM_API_KEY": "vault_key"}}
    assert entries_of({**LOCAL, "fleet_override": layer})[0]["secrets"] == {"VLLM_API_KEY": "vault_key"}
    variables = {**LOCAL, "fleet_override": layer, "fleet_api_key": KEY}
    assert "secrets.VLLM_API_KEY" in plans.error(plan_of, variables).message
    same = {"secrets": {"VLLM_API_KEY": "fleet_api_key"}}
    assert entries_of({**LOCAL, "fleet_override": same, "fleet_api_key": KEY})[0]["secrets"] == SECRETS


@pytest.mark.parametrize(
    "layer",
    [
        {"engine": "trtllm"},
        {"engine": "dynamo", "backend": "trtllm", "venv": {"packages": ["ai-dynamo==1.6.1"]},
         "environment": {"ETCD_ENDPOINTS": "http://x:1"}},
    ],
)  # fmt: skip
def test_an_engine_without_keys_is_not_left_open_silently(layer):
    layer = {"arguments": None, "command": ["serve"], **layer}
    variables = {**LOCAL, "fleet_override": layer}
    assert entries_of(variables)[0]["secrets"] == {}
    assert plans.problem(plan_of, {**variables, "fleet_api_key": KEY}).code == "plan.engine-without-api-keys"
    assert entries_of({**variables, "fleet_api_key": None})[0]["secrets"] == {}


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bind", ["0.0.0.0", "fd00::7"])
def test_beyond_loopback_without_a_key_is_one_warning_for_the_fleet(bind):
    variables = {**LOCAL, "fleet_bind_address": bind}
    hosts = ["node%d" % number for number in range(1, 6)]
    planned = plan_of(variables, hosts=hosts)
    (warning,) = fleet.exposed_warnings(planned)
    assert warning.startswith("node1, node2, node3 and 2 more: the servers listen on %s " % bind)
    assert fleet.exposed_warnings(plan_of({**variables, "fleet_api_key": KEY}, hosts=hosts)) == []
    assert [entry["bind"] for entry in planned["node1"]["servers"]] == [bind, bind]
    assert all(bind in entry["command"] for entry in planned["node1"]["servers"])  # ${bind}
    mixed = {**planned, **plan_of({**LOCAL, "fleet_bind_address": "192.168.0.9"}, hosts=["other"])}
    (warning,) = fleet.exposed_warnings(mixed)
    assert "%s, 192.168.0.9" % bind in warning


# -- secrets without a value -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "is not set for this host"),
        ({"vault_token": None}, "is empty"),
        ({"vault_token": LOCKED}, "is in a vault that is locked, or opened with another password"),
        ({"vault_token": unresolvable("'vault_other' is undefined")}, "names 'vault_other', which is not set for this"),
        ({"vault_token": unresolvable("syntax error in '%s{{'" % KEY)}, "cannot be templated"),
        ({"vault_token": [KEY]}, "cannot be used: vault_token is a list"),
        ({"vault_token": KEY + "\0"}, "cannot be used: vault_token contains a NUL character"),
    ],
)
def test_a_secret_without_a_value(variables, words):
    given = Lazy({**LOCAL, "fleet_override": {"secrets": {"HF_TOKEN": "vault_token"}}, **variables})
    hosts = dict.fromkeys(("node1", "node2"), given)
    planned = fleet.plan_fleet(hosts, hosts.get, deploys=True)
    error = plans.error(fleet.check_secrets, planned, ["node1"], Hosts(hosts.get))
    line = "\nnode1: server-0, server-1: the secret HF_TOKEN comes from the variable 'vault_token', which " + words
    assert error.code == "inventory.secret-missing" and line in error.message
    assert KEY not in error.message
