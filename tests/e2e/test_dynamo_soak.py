# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make soak`: Dynamo's servers killed in turn, and other make-ups of the deployment. One kill is in test_dynamo.py."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.tools import dynamo_outages

pytestmark = pytest.mark.soak

AGGREGATED = {"prefill": {"count": 0}, "decode": {"count": 2, "arguments": {
    "disaggregation-mode": "agg", "kv-transfer-config": None}}}  # fmt: skip
PORTS = {"prefill": 40, "decode": 60}  # of groups with two servers, behind the first port


def layout(dynamo, **groups):
    """An override with ports that are far enough apart for two servers of a group."""
    first = dynamo.ports[0]
    return {"servers": {name: {"ports": {kind: first + PORTS[name] + 5 * at for at, kind in enumerate(
        ("system", "side_channel", "kv_events"))}, **groups.get(name, {})} for name in PORTS}}  # fmt: skip


def probes_of(dynamo):
    report = json.loads((dynamo.reports / "verdict.json").read_text())
    (host,) = report["hosts"].values()
    return {probe["name"]: probe for probe in host["verdicts"][0]["probes"]}


@pytest.fixture
def deployed(dynamo):
    """As the recipe has it: a frontend, a prefill and a decode worker."""
    dynamo.site().ok()
    return dynamo


@pytest.mark.parametrize("name", dynamo_outages.SERVERS)
def test_a_killed_server_is_back_without_a_play(deployed, name):
    url = "http://127.0.0.1:%d" % deployed.ports[0]
    model = dynamo_outages.model_of(url)
    dynamo_outages.settle(lambda: dynamo_outages.ask(url, model))
    seen, back = dynamo_outages.outage(deployed.root, name, lambda: dynamo_outages.ask(url, model))
    print(dynamo_outages.row(name, seen, back))
    assert [found for _second, found in seen if found != "200"], "nobody noticed"
    deployed.play("playbooks/verify.yml", "-e", "fleet_verify=full").ok()


def test_a_parser_left_out_fails_the_verdict_with_that_cause(deployed):
    run = deployed.site(override={"arguments": {"dyn-tool-call-parser": None}})
    run.failed("--dyn-tool-call-parser harmony")
    assert probes_of(deployed)["tool-call"]["ok"] is False


def test_two_prefill_workers(dynamo):
    more = {"fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 3}}
    dynamo.site("-e", json.dumps(more), override=layout(dynamo, prefill={"count": 2})).ok()
    assert probes_of(dynamo)["census"]["got"] == "prefill 2 of 2, decode 1 of 1"


def test_aggregated_a_killed_worker_leaves_the_other_one(dynamo):
    dynamo.site(override=layout(dynamo, **AGGREGATED)).ok()
    assert probes_of(dynamo)["census"]["got"] == "prefill 0 of 0, decode 2 of 2"
    url = "http://127.0.0.1:%d" % dynamo.ports[0]
    model = dynamo_outages.model_of(url)
    _seen, back = dynamo_outages.outage(dynamo.root, "decode-1", lambda: dynamo_outages.ask(url, model))
    assert back is not None
