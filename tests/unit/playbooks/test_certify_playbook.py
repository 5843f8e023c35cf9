# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""certify.yml with scripts for tools: what runs after a part has failed, what the certificate says, bad input."""

from __future__ import annotations

import json
from pathlib import Path

from ansible_collections.inference.fleet.tests.runs import CLONE
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.engines.small_fleet import Fleet
from ansible_collections.inference.fleet.tests.unit.node_helpers import script

ANSWERS = CLONE / "tests" / "unit" / "fixtures" / "measure" / "evals" / "basic-good"
REFUSED = CLONE / "tests" / "unit" / "fixtures" / "measure" / "aiperf-all-failed.jsonl"
# As AIPerf: it counts its calls, and answers as many requests as the file `count` beside it says; with a file `records`
# it leaves that and no profile, as AIPerf does when all requests fail.
TOOL = """
folder=$(dirname "$0")
echo called >> "$folder/calls"
while [ $# -gt 1 ]; do [ "$1" = --artifact-dir ] && out=$2; shift; done
count=$(cat "$folder/count")
[ -e "$folder/records" ] && cp "$folder/records" "$out/profile_export.jsonl" && exit 0
echo '{"request_count": {"avg": '$count'}, "output_token_throughput": {"avg": 100}, "is_complete": true}' \\
  > "$out/profile_export_aiperf.json"
"""
PROFILE = {"tool": "aiperf", "input_tokens": 64, "output_tokens": 32, "concurrency": 2, "requests": 8}
# no environment is made for the scripts
VARIABLES = {"benchmark_tools": {}, "evaluate_with_gpt_oss": False, "fleet_verify": "quick"}


class Certified(Fleet):
    """A Fleet whose hosts have scripts for AIPerf and gpt_oss.evals."""

    def __init__(self, folder, *ports):
        super().__init__(folder, *ports)
        for host in self.hosts.values():
            override, root = host["fleet_override"], Path(host["fleet_root"])
            override["benchmark"] = {"profiles": {"quick": PROFILE}}
            override["model"] = {"path": str(folder / "model")}
            lib = root / "var" / "lib" / "inference-fleet"
            for venv in ("aiperf-", "gpt-oss-evals-0.0.9"):
                (lib / "venvs" / venv / "bin").mkdir(parents=True)
            script(lib / "venvs/aiperf-/bin/aiperf", TOOL)
            script(lib / "venvs/aiperf-/bin/python", "echo 10\n")
            (lib / "venvs/aiperf-/bin/count").write_text("8")
            script(lib / "venvs/gpt-oss-evals-0.0.9/bin/python", "cp %s/*.json* .\n" % ANSWERS)
        (folder / "model").mkdir()
        (folder / "model" / "tokenizer.json").write_text("{}")

    def tool(self, host):
        return Path(self.hosts[host]["fleet_root"]) / "var/lib/inference-fleet/venvs/aiperf-/bin"

    @property
    def load(self):
        """The hosts whose servers got load, once for each time."""
        calls = {host: self.tool(host) / "calls" for host in self.hosts}
        return [host for host, path in calls.items() if path.exists() for _call in path.read_text().split()]

    def certify(self, *arguments, **more):
        variables = {**VARIABLES, "fleet_reports_dir": str(self.reports), **more.pop("variables", {})}
        return self.play(*arguments, **{"playbook": "playbooks/certify.yml", "variables": variables, **more})

    @property
    def certificate(self):
        return json.loads((self.reports / "certificate.json").read_text())

    @property
    def parts(self):
        """{part: (ok, reasons)} of the certificate."""
        return {name: (part["ok"], part["reasons"]) for name, part in self.certificate["parts"].items()}


def engine():
    return ScriptedEngine(model="gpt-oss-small")


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
        assert fleet.load == ["n1", "n2"]
        assert (fleet.reports / "report.html").exists()

        before, load = (fleet.reports / "certificate.json").read_bytes(), fleet.load
        run = fleet.certify("--check", "--diff").ok()
        assert "changed: [n1] => (item=aiperf, node, 2 at once)" in run.output
        assert "changed: [n1] => (item=basic, effort low)" in run.output
        assert ((fleet.reports / "certificate.json").read_bytes(), fleet.load) == (before, load)

        (fleet.tool("n1") / "count").write_text("5")
        run = fleet.certify()
        assert run.status == 2
        run.failed("Not certified. %s/report.html" % fleet.reports)
        words = "aiperf of n1, 2 at once: 3 of 8 requests failed"
        assert fleet.parts == {"verify": (True, []), "benchmark": (False, [words]), "evaluate": (None, open_ones)}
        assert len(fleet.certificate["evaluations"]) == 2
        assert "  " + words in run.output


def test_requests_that_are_all_refused_fail_the_play_the_certificate_and_the_page(tmp_path):
    with engine() as first, Certified(tmp_path, None).deployed(first) as fleet:
        (fleet.tool("n1") / "records").write_bytes(REFUSED.read_bytes())
        why = "Unsupported parameter: nvext.ignore_eos"
        for playbook in ("benchmark", "certify"):  # both end with the page, which says what failed
            run = fleet.certify(playbook="playbooks/%s.yml" % playbook)
            assert run.status == 2
            run.failed("0 of 8 requests completed. No request was answered: ", why)
            assert "Page: %s/report.html" % fleet.reports in run.output
            ok, (reason,) = fleet.parts["benchmark"]
            assert ok is False and why in reason
            page = (fleet.reports / "report.html").read_text("utf-8")
            assert "<title>Not certified" in page and "nvext.ignore_eos" in page
        assert fleet.parts["verify"][0] is True


def test_hosts_that_are_down_or_not_verified_get_no_load(tmp_path):
    with engine() as first, Certified(tmp_path, None, 18001, 18002).deployed(first) as fleet:
        assert fleet.certify(broken=["n3"]).status == 2
        assert (fleet.load, fleet.certificate["ok"]) == (["n1"], False)
        ok, reasons = fleet.parts["verify"]
        assert ok is False and {reason.split()[0].rstrip(":") for reason in reasons} == {"n2", "n3"}
        absent = (None, ["n2: no result in this run", "n3: no result in this run"])
        assert fleet.parts["benchmark"] == fleet.parts["evaluate"] == absent


def test_bad_input_is_one_error_before_anything_is_asked(tmp_path):
    more = {"evaluate_evals": ["aime25"], "evaluate_files": [], "evaluate_datasets": ""}
    with engine() as first, Certified(tmp_path, None).deployed(first) as fleet:
        run = fleet.certify(variables=more)
        assert run.status == 2
        flat = " ".join(run.output.split())
        assert "aime2025-I.jsonl (aime25) is missing" in flat and flat.count("FAILED!") == 1
        assert (fleet.load, "Verify servers" in flat) == ([], False)
