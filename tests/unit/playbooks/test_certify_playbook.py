# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""certify.yml and benchmark.yml with scripts for tools: what runs after a part has failed, what the certificate says,
bad input, and servers of two hosts that are measured together."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.tests.runs import BIN, CLONE
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.engines.small_fleet import Fleet
from ansible_collections.inference.fleet.tests.unit.node_helpers import script
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import flat, model_folder

ANSWERS = CLONE / "tests" / "unit" / "fixtures" / "measure" / "evals" / "basic-good"
REQUESTS = 8
# As AIPerf: requests to each --url in turn, one at a time and not more than the file `most` allows, and a profile.
TOOL = """
import json, os, sys, urllib.request

def given(name):
    return [sys.argv[at + 1] for at, word in enumerate(sys.argv) if word == name]

urls, (path,), (count,), (folder,) = map(given, ("--url", "--endpoint", "--request-count", "--artifact-dir"))
body = {"model": given("--model")[0], "messages": [{"role": "user", "content": "What is 17*23?"}]}
with open(os.path.join(os.path.dirname(__file__), "most")) as stream:
    count = min(int(count), int(stream.read()))
for number in range(count):
    request = urllib.request.Request(urls[number % len(urls)] + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=60).close()
metrics = {"request_count": {"avg": count}, "output_token_throughput": {"avg": 100}, "is_complete": True}
with open(os.path.join(folder, "profile_export_aiperf.json"), "w") as stream:
    json.dump(metrics, stream)
"""
PROFILE = {"tool": "aiperf", "input_tokens": 64, "output_tokens": 32, "concurrency": 2, "requests": REQUESTS}
VARIABLES = {"benchmark_profile": "quick", "evaluate_with_gpt_oss": False, "fleet_verify": "quick"}


def engine():
    return ScriptedEngine(model="gpt-oss-small", seconds=0.05)


def load(engine):
    """The requests of the tool; those of verifications and evaluations say more."""
    return [body for body in engine.bodies("/v1/chat/completions") if "temperature" not in body]


class Certified(Fleet):
    """A Fleet whose hosts have scripts for gpt_oss.evals and, unless the real one is installed, AIPerf.
    together: measured as one, from the first host."""

    def __init__(self, folder, *ports, together=False, real=False):
        super().__init__(folder, *ports)
        self.variables = {**VARIABLES, "fleet_reports_dir": str(self.reports)}
        self.variables.update({"benchmark_uv": str(BIN / "uv")} if real else {"benchmark_tools": {}})
        model = model_folder(folder / "model")
        for host in self.hosts.values():
            override, venvs = host["fleet_override"], Path(host["fleet_root"]) / "var/lib/inference-fleet/venvs"
            override["benchmark"] = {"profiles": {"quick": {**PROFILE, **({"scope": "fleet"} if together else {})}}}
            override["model"] = model
            if together:  # servers that others reach
                host.update(fleet_bind_address="0.0.0.0", ansible_host="127.0.0.1")
            aiperf, evals = venvs / "aiperf-/bin", venvs / "gpt-oss-evals-0.0.9/bin"
            aiperf.mkdir(parents=True)
            evals.mkdir(parents=True)
            (aiperf / "tool.py").write_text(TOOL)
            (aiperf / "most").write_text(str(REQUESTS))
            script(aiperf / "python", "echo 10\n")
            script(aiperf / "aiperf", 'exec %s "$(dirname "$0")/tool.py" "$@"\n' % sys.executable)
            script(evals / "python", "cp %s/*.json* .\n" % ANSWERS)

    def certify(self, *arguments, **more):
        variables = {**self.variables, **more.pop("variables", {})}
        return self.play(*arguments, **{"playbook": "playbooks/certify.yml", "variables": variables, **more})

    @property
    def certificate(self):
        return json.loads((self.reports / "certificate.json").read_text())

    @property
    def parts(self):
        """{part: (ok, reasons)} of the certificate."""
        return {name: (part["ok"], part["reasons"]) for name, part in self.certificate["parts"].items()}


def test_a_part_that_fails_is_in_the_certificate_and_the_others_run(tmp_path):
    with engine() as first, engine() as second, Certified(tmp_path, None, None).deployed(first, second) as fleet:
        run = fleet.certify().ok()
        # one question that any answer is right to says nothing of the accuracy, and that is no failure
        open_ones = ["basic, low effort of server-0: no published score to compare with"] * 2
        assert (fleet.certificate["ok"], fleet.certificate["complete"]) == (None, True)
        assert fleet.parts == {"verify": (True, []), "benchmark": (True, []), "evaluate": (None, open_ones)}
        lines = [line.rstrip() for line in run.output.splitlines() if line.strip()]
        for words in ("BENCHMARK *", "n1    aiperf, node  2        8         0       100.0 ", "CERTIFICATE *"):
            assert any(line.startswith(words) for line in lines), words
        assert "Page: %s/report.html" % fleet.reports in lines[-2:]
        assert [len(load(one)) for one in (first, second)] == [REQUESTS] * 2
        assert (fleet.reports / "report.html").exists()

        before = (fleet.reports / "certificate.json").read_bytes()
        run = fleet.certify("--check", "--diff").ok()
        assert "changed: [n1] => (item=aiperf, node, 2 at once)" in run.output
        assert "changed: [n1] => (item=basic, effort low)" in run.output
        assert ((fleet.reports / "certificate.json").read_bytes(), len(load(first))) == (before, REQUESTS)

        (Path(fleet.hosts["n1"]["fleet_root"]) / "var/lib/inference-fleet/venvs/aiperf-/bin/most").write_text("5")
        run = fleet.certify()
        assert run.status == 2
        run.failed("Not certified. %s/report.html" % fleet.reports)
        words = "aiperf of n1, 2 at once: 3 of 8 requests failed"
        assert fleet.parts == {"verify": (True, []), "benchmark": (False, [words]), "evaluate": (None, open_ones)}
        assert len(fleet.certificate["evaluations"]) == 2
        assert "  " + words in run.output

        asked = len(load(first))
        run = fleet.certify(variables={"evaluate_evals": ["aime25"], "evaluate_files": [], "evaluate_datasets": ""})
        assert "aime2025-I.jsonl (aime25) is missing" in flat(run.output)
        assert run.output.count("FAILED!") == 2  # one for each host
        assert (run.status, len(load(first)), "Verify servers" in run.output) == (2, asked, False)


def test_hosts_that_are_down_or_not_verified_get_no_load(tmp_path):
    with engine() as first, Certified(tmp_path, None, 18001, 18002).deployed(first) as fleet:
        assert fleet.certify(broken=["n3"]).status == 2
        assert (len(load(first)), fleet.certificate["ok"]) == (REQUESTS, False)
        ok, reasons = fleet.parts["verify"]
        assert ok is False and {reason.split()[0].rstrip(":") for reason in reasons} == {"n2", "n3"}
        absent = (None, ["n2: no result in this run", "n3: no result in this run"])
        assert fleet.parts["benchmark"] == fleet.parts["evaluate"] == absent


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_servers_of_two_hosts_are_measured_together_and_a_missing_one_is_an_error(tmp_path, real):
    given = {"playbook": "playbooks/benchmark.yml", "variables": {"benchmark_again": True}}
    fleet = Certified(tmp_path, None, None, together=True, real=real)
    with engine() as first, engine() as second, fleet.deployed(first, second):
        fleet.certify(**given).ok()
        ((document,), _warnings) = result.history(str(fleet.reports))
        assert (document["ok"], document["scope"], document["host"]) == (True, "fleet", "n1")
        assert document["servers"] == ["server-0", "n2/server-0"]
        assert document["hardware"]["count"] == 2
        assert document["counts"] == {"asked": REQUESTS, "completed": REQUESTS, "failed": 0}
        assert [len(load(one)) for one in (first, second)] == [REQUESTS // 2] * 2
        ran = [host["fleet_root"] for host in fleet.hosts.values()
               if any(Path(host["fleet_root"]).glob("var/lib/inference-fleet/benchmarks/*/job/log"))]  # fmt: skip
        assert ran == [fleet.hosts["n1"]["fleet_root"]]

        second.die()
        run = fleet.certify(**given)
        port = fleet.hosts["n2"]["fleet_override"]["servers"]["server"]["port"]
        run.failed("n2/server-0 of another host does not answer this host at http://127.0.0.1:%d" % port)
        assert "Page: %s/report.html" % fleet.reports in run.output
        documents, _warnings = result.history(str(fleet.reports))
        assert [(one["ok"], one["counts"]["completed"]) for one in documents] == [(True, REQUESTS), (False, 0)]
        assert len(load(first)) == REQUESTS // 2
