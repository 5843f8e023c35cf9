# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tune.yml for a supervised server: nothing has to be measured any more, or may be, and what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import tune
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.fleet import plan_fleet
from ansible_collections.inference.fleet.tests.unit.engines.measured_results import benchmark
from ansible_collections.inference.fleet.tests.unit.engines.small_fleet import Fleet
from ansible_collections.inference.fleet.tests.unit.engines.small_node import (
    NEEDS,
    SUPERVISED,
    SmallNode,
    copy_engine,
    free_port,
    watched,
)
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import model_folder

PROFILE = {"tool": "aiperf", "input_tokens": 64, "output_tokens": 32, "concurrency": 2, "requests": 8}
WORKLOAD = {
    "input_tokens_asked": 64, "output_tokens_asked": 32, "input_tokens": 64.0, "output_tokens": 32.0, "concurrency": 2,
    "request_rate": None, "requests": 8,
}  # fmt: skip


class Tuned(Fleet):
    """One host whose setting `users` can be 2 or 4, with a supervised engine."""

    def __init__(self, folder):
        super().__init__(folder, free_port())
        command = [sys.executable, "-S", copy_engine(folder)]
        for host in self.hosts.values():
            host.update(SUPERVISED)
            host["fleet_override"].update(needs=NEEDS, model=model_folder(folder / "model"), command=command)
            host["fleet_override"]["benchmark"] = {"profiles": {"quick": PROFILE}}
            host["fleet_override"]["tune"] = {"arguments": {"max-num-seqs": [2, 4]}, "limits": {"ttft_ms": 100}}

    def tune(self, *arguments, **more):
        more = {"fleet_reports_dir": str(self.reports), "fleet_verify": "quick", **more}
        return self.play(*arguments, playbook="playbooks/tune.yml", variables=more)

    def measured(self, users, rate):
        """Add what a sweep would have measured to the history."""
        host = {**self.hosts["n1"], tune.LAYER: {"arguments": {"max-num-seqs": users}} if users else {}}
        item = plan_fleet(["n1"], lambda name: host, deploys=True)["n1"]
        (call,) = tune.calls_of(item["servers"], item["deployment"], "quick")
        one = benchmark(
            plan_hash=result.plan_hash(item["servers"]), recipe_hash=result.recipe_hash(item["deployment"]),
            workload={**WORKLOAD, "load": result.load_hash(call["point"])}, inventory="reports",
        )  # fmt: skip
        one["metrics"]["output_tokens_per_s"] = rate
        result.keep(str(self.reports), one)

    @property
    def file(self):
        path = self.reports / "tuned.yml"
        return yaml.safe_load(path.read_text()) if path.exists() else None


def rows(run):
    table = run.output[run.output.index("TUNING *") :].splitlines()[2:]
    return [" ".join(line.split()) for line in table[: table.index("")]]


def test_what_is_measured_is_not_measured_again_and_the_best_is_a_file(tmp_path):
    node = SmallNode(tmp_path / "root1")
    with watched(tmp_path):
        try:
            sweep(tmp_path, Tuned(tmp_path), node)
        finally:
            node.end()


def sweep(tmp_path, fleet, node):
    fleet.measured(2, 300)
    run = fleet.tune("--check", "--diff").ok()
    assert [row.partition(" not ")[2] for row in rows(run)] == ["measured yet", "", "measured yet"]
    assert "TASK [Serve the candidate" not in run.output and fleet.file is None
    assert not (tmp_path / "root1").exists()
    for users, rate in ((None, 100), (4, 200)):
        fleet.measured(users, rate)
    run = fleet.tune().ok()
    assert rows(run) == [
        "as it is 100.0 2 72.0 11.7 within the limits",
        "max-num-seqs=2 300.0 2 72.0 11.7 best",
        "max-num-seqs=4 200.0 2 72.0 11.7 within the limits",
    ]
    assert run.count("changed") == 2  # the server and the file: an interrupted run may have left a candidate
    assert fleet.file == {"fleet_override_tuned": {"arguments": {"max-num-seqs": 2}}}
    entry = Path(node.paths.entry("server-0"))
    assert "max-num-seqs" not in json.loads(entry.read_text())["arguments"]
    assert fleet.tune().ok().count("changed") == 0

    # taken over, it is what there is
    run = fleet.tune("-e", "@%s/tuned.yml" % fleet.reports).ok()
    assert rows(run)[0] == "max-num-seqs=2 (as it is) 300.0 2 72.0 11.7 best"
    assert json.loads(entry.read_text())["arguments"]["max-num-seqs"] == 2

    run = fleet.tune("-e", '{"fleet_tune_limits": {"ttft_ms": 1}}', fleet_tune_file=str(tmp_path / "other.yml"))
    run.failed("None of 3 candidates keeps the limits (TTFT of 1 ms)")
    assert rows(run)[0] == "as it is 100.0 2 72.0 11.7 over the limit of TTFT"
    assert not (tmp_path / "other.yml").exists()
