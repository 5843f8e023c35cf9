# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers behind a frontend: are they there, and is anything disaggregated?"""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import causes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import probes
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.test_judging import ENDPOINTS, INSTANCES
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import (
    SEQUENCE,
    by_name,
    failing,
    unmeasured,
    verdict_of,
)

pytestmark = pytest.mark.usefixtures("short_streams")

HEALTH = {"status": "healthy", "endpoints": ENDPOINTS, "instances": INSTANCES}


class Worker:
    """A worker's system port whose counter rises by `step` with every look."""

    def __init__(self, step=1, text='dynamo_component_requests_total{dynamo_endpoint="generate"} %d\n'):
        self.step, self.text, self.count = step, text, 5

    def metrics(self):
        self.count += self.step
        return self.text % self.count if "%d" in self.text else self.text


def disaggregated(health=None, prefill=None, decode=None, ports=True, elsewhere=False):
    prefill, decode = prefill or Worker(), decode or Worker()
    pages = {"/health": json.dumps(HEALTH if health is None else health)}
    with (
        ScriptedEngine(pages=pages) as front,
        ScriptedEngine(pages={"/metrics": prefill.metrics}) as one,
        ScriptedEngine(pages={"/metrics": decode.metrics}) as two,
    ):
        entries = [
            plan_entry(
                front.port, "frontend", role="frontend", engine="dynamo", command=["python3", "-m", "dynamo.frontend"]
            ),
            plan_entry(None, "prefill-0", role="prefill", ports={"system": one.port} if ports else {}),
            plan_entry(None, "decode-0", role="decode", ports={"system": two.port} if ports else {}),
        ]
        others = []
        if elsewhere:  # the prefill worker is another host's
            one = entries.pop(1)
            others = [{**{key: one[key] for key in ("name", "role", "bind", "ports")}, "host": "node-2"}]
        return verdict_of(front, entries=entries, elsewhere=others)


@pytest.fixture(autouse=True)
def in_time(monkeypatch):
    monkeypatch.setattr(probes, "LATE_S", 0)


REQUESTS = 'dynamo_component_requests_total{dynamo_endpoint="generate"} %d\n'
MOVED = 'vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} %s\n'


def test_a_disaggregated_deployment_has_two_more_probes():
    verdict = disaggregated()
    assert [probe["name"] for probe in verdict["probes"]] == [
        "identity", "alive", "census", *SEQUENCE[2:], "disaggregation",
    ]  # fmt: skip
    assert verdict["ok"] is True
    assert by_name(verdict)["census"]["got"] == "prefill 1 of 1, decode 1 of 1"
    assert by_name(verdict)["disaggregation"]["got"] == (
        "dynamo_component_requests_total: prefill-0 6 -> 7, decode-0 6 -> 7"
    )


def test_a_missing_prefill_worker_is_counted_although_health_is_200():
    verdict = disaggregated(health={"status": "healthy", "instances": HEALTH["instances"][:2]})
    assert failing(verdict) == {"census": causes.CENSUS}
    assert by_name(verdict)["census"]["got"].startswith("prefill 0 of 1, decode 1 of 1; HTTP 200 {")


def test_workers_of_other_hosts_are_counted_and_must_do_their_part():
    verdict = disaggregated(elsewhere=True)
    assert verdict["ok"] is True
    assert by_name(verdict)["census"]["got"] == "prefill 1 of 1, decode 1 of 1"
    assert by_name(verdict)["disaggregation"]["got"] == (
        "dynamo_component_requests_total: decode-0 6 -> 7, node-2/prefill-0 6 -> 7"
    )
    assert by_name(verdict)["identity"]["got"] == "frontend answers; decode-0 answers"  # the other host's own matter
    missing = disaggregated(health={"status": "healthy", "instances": HEALTH["instances"][:2]}, elsewhere=True)
    assert by_name(missing)["census"]["got"].startswith("prefill 0 of 1, decode 1 of 1")
    assert list(failing(missing)) == ["census"]


def test_a_prefill_worker_that_gets_no_work_is_found_out():
    assert failing(disaggregated(prefill=Worker(step=0))) == {"disaggregation": causes.idle_cause(["prefill-0"])}


def test_a_decode_worker_that_fetches_no_cache_is_found_out():
    """It was started without a connector, or answers as an aggregated one."""
    verdict = disaggregated(decode=Worker(text=REQUESTS + MOVED % "4096.0"))
    assert failing(verdict) == {"disaggregation": causes.still_cause(["decode-0"])}
    assert by_name(verdict)["disaggregation"]["got"].endswith(
        "; vllm:nixl_bytes_transferred_sum: decode-0 4096 -> 4096"
    )


def test_counters_that_come_late_are_waited_for(monkeypatch):
    monkeypatch.setattr(probes, "LATE_S", 30)
    looks = iter((5, 5, 6))
    late = Worker()
    late.metrics = lambda: REQUESTS % next(looks)
    verdict = disaggregated(prefill=late)
    assert verdict["ok"] is True
    assert "prefill-0 5 -> 6" in by_name(verdict)["disaggregation"]["got"]


def test_counters_that_are_not_there_are_not_measured():
    nowhere = disaggregated(ports=False)
    assert nowhere["ok"] is True
    assert unmeasured(nowhere) == {
        "disaggregation": "not measurable: the workers have no system port (DYN_SYSTEM_PORT) to read counters from"
    }
    other = disaggregated(decode=Worker(text="python_info 1\n"))
    assert unmeasured(other) == {"disaggregation": "not measurable: no counters at the system port of decode-0"}
