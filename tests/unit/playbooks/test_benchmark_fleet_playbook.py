# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""benchmark.yml with scope fleet: one tool on the first host sends its requests to the servers of two."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.tests.runs import BIN
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.engines.small_fleet import Fleet
from ansible_collections.inference.fleet.tests.unit.node_helpers import script
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import model_folder

REQUESTS = 12
# As AIPerf: requests to each --url in turn, one of them at a time, and a profile of those that were answered.
TOOL = """
import json, os, sys, urllib.request

def given(name):
    return [sys.argv[at + 1] for at, word in enumerate(sys.argv) if word == name]

urls, (path,), (count,), (folder,) = map(given, ("--url", "--endpoint", "--request-count", "--artifact-dir"))
body = {"model": given("--model")[0], "messages": [{"role": "user", "content": "What is 17*23?"}]}
answered = 0
for number in range(int(count)):
    request = urllib.request.Request(urls[number % len(urls)] + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answered += answer.status == 200
metrics = {"request_count": {"avg": answered}, "output_token_throughput": {"avg": 100}, "is_complete": True}
with open(os.path.join(folder, "profile_export_aiperf.json"), "w") as stream:
    json.dump(metrics, stream)
"""
PROFILE = {"tool": "aiperf", "scope": "fleet", "input_tokens": 64, "output_tokens": 32, "concurrency": 2,
           "requests": REQUESTS}  # fmt: skip


class Engine(ScriptedEngine):
    """A ScriptedEngine that says in /metrics when it began."""

    def __init__(self):
        super().__init__(model="gpt-oss-small", pages={"/metrics": self.metrics}, seconds=0.05)
        self.restarts_at = None  # the request after which it is another process

    def metrics(self):
        began = self.restarts_at is not None and len(self.load) >= self.restarts_at
        return "process_start_time_seconds %s\n" % (2e9 if began else 1e9)

    @property
    def load(self):
        """The requests of the tool; those of the verification before it ask something else."""
        return [body for body in self.bodies("/v1/chat/completions") if "temperature" not in body]


class Together(Fleet):
    """Two hosts whose servers listen on all addresses, as those that others reach do, measured together."""

    def __init__(self, folder, scripted=True):
        super().__init__(folder, None, None)
        model = model_folder(folder / "model")
        self.tools = {"benchmark_tools": {}} if scripted else {"benchmark_uv": str(BIN / "uv")}
        for host in self.hosts.values():
            host.update(fleet_bind_address="0.0.0.0", ansible_host="127.0.0.1")
            override = host["fleet_override"]
            override["benchmark"] = {"profiles": {"together": PROFILE}}
            override["model"] = model
            if scripted:
                place = Path(host["fleet_root"]) / "var/lib/inference-fleet/venvs/aiperf-/bin"
                place.mkdir(parents=True)
                (place / "tool.py").write_text(TOOL)
                script(place / "python", "echo 10\n")
                script(place / "aiperf", 'exec %s "$(dirname "$0")/tool.py" "$@"\n' % sys.executable)

    def benchmark(self):
        variables = {"benchmark_profile": "together", "benchmark_again": True, "fleet_reports_dir": str(self.reports)}
        return self.play(playbook="playbooks/benchmark.yml", variables={**variables, **self.tools})

    @property
    def results(self):
        return result.history(str(self.reports))[0]

    def ran_on(self):
        """The hosts on which a tool was started."""
        roots = {name: Path(host["fleet_root"]) for name, host in self.hosts.items()}
        return [name for name, root in roots.items() if any(root.glob("var/lib/inference-fleet/benchmarks/*/job/log"))]


def check(fleet):
    """One result of both hosts' servers; then the second one's restarts meanwhile; then it is gone."""
    with Engine() as first, Engine() as second, fleet.deployed(first, second):
        fleet.benchmark().ok()
        (document,) = fleet.results
        assert (document["ok"], document["scope"], document["host"]) == (True, "fleet", "n1")
        assert document["servers"] == ["server-0", "n2/server-0"]
        assert document["hardware"]["count"] == 2
        assert document["counts"] == {"asked": REQUESTS, "completed": REQUESTS, "failed": 0}
        assert [len(one.load) for one in (first, second)] == [REQUESTS // 2] * 2
        assert fleet.ran_on() == ["n1"]

        second.restarts_at = REQUESTS // 2 + 3
        run = fleet.benchmark()
        void = "n2/server-0 changed or restarted during the run"
        document = fleet.results[-1]
        assert (document["ok"], document["void"], document["counts"]["completed"]) == (False, void, REQUESTS)
        run.failed("12 of 12 requests completed. %s." % void)
        assert fleet.ran_on() == ["n1"]

        load = len(first.load)
        second.die()
        run = fleet.benchmark()
        port = fleet.hosts["n2"]["fleet_override"]["servers"]["server"]["port"]
        run.failed("n2/server-0 of another host does not answer this host at http://127.0.0.1:%d" % port)
        assert len(first.load) == load and len(fleet.results) == 3
        assert (fleet.results[-1]["ok"], fleet.results[-1]["counts"]["completed"]) == (False, 0)


def test_one_result_is_of_the_servers_of_both_hosts_until_one_of_the_other_restarts(tmp_path):
    check(Together(tmp_path))


@pytest.mark.soak
def test_the_same_with_aiperf(tmp_path):
    check(Together(tmp_path, scripted=False))
