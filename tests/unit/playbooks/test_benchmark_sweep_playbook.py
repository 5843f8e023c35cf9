# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sweep of benchmark.yml that is interrupted at any of its points goes on; a script stands in for AIPerf."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.tests.runs import BIN, CLONE, wait_for
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.engines.small_fleet import Fleet
from ansible_collections.inference.fleet.tests.unit.node_helpers import script

POINTS = [1, 2, 4]
PROFILE = {"tool": "aiperf", "input_tokens": 64, "output_tokens": 32, "concurrency": POINTS, "requests": 8}
# It writes down its process for each call, and stands still in the one that the file `hold` names.
TOOL = """
folder=$(dirname "$0")
echo $$ >> "$folder/calls"
call=$(wc -l < "$folder/calls")
while [ "$(cat "$folder/hold" 2> /dev/null)" = "$call" ]; do sleep 0.1; done
while [ $# -gt 1 ]; do [ "$1" = --artifact-dir ] && out=$2; shift; done
echo '{"request_count": {"avg": 8}, "output_token_throughput": {"avg": 100}, "is_complete": true}' \\
  > "$out/profile_export_aiperf.json"
"""


class Swept(Fleet):
    """One host with a sweep of three points."""

    def __init__(self, folder):
        super().__init__(folder, None)
        (folder / "model").mkdir()
        (folder / "model" / "tokenizer.json").write_text("{}")
        (host,) = self.hosts.values()
        host["fleet_override"]["benchmark"] = {"profiles": {"sweep": PROFILE}}
        host["fleet_override"]["model"] = {"path": str(folder / "model")}
        self.tool = Path(host["fleet_root"]) / "var/lib/inference-fleet/venvs/aiperf-/bin"
        self.tool.mkdir(parents=True)
        script(self.tool / "aiperf", TOOL)
        script(self.tool / "python", "echo 10\n")
        self.variables = {
            "benchmark_tools": {}, "benchmark_profile": "sweep", "benchmark_poll_s": 1,
            "fleet_reports_dir": str(self.reports),
        }  # fmt: skip

    @property
    def calls(self):
        """The process of each call of the tool."""
        path = self.tool / "calls"
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    @property
    def measured(self):
        """The concurrency of each result."""
        results = result.history(str(self.reports))[0]
        assert all(one["ok"] for one in results)
        return [one["workload"]["concurrency"] for one in results]

    def interrupted(self, call, tool_too):
        """End benchmark.yml while the tool is in this call of it, and the tool where asked."""
        (self.tool / "hold").write_text(str(call))
        argv = [BIN / "ansible-playbook", "playbooks/benchmark.yml", "-i", self.folder / "hosts.yml"]
        argv += ["-e", json.dumps(self.variables)]
        with subprocess.Popen(argv, cwd=CLONE, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as play:
            try:
                wait_for(lambda: len(self.calls) == call, 120, "call %d of the tool" % call)
            finally:
                play.terminate()
        if tool_too:
            os.kill(self.calls[-1], signal.SIGKILL)
        (self.tool / "hold").unlink()


@pytest.mark.parametrize(
    "tool_too", [pytest.param(False, marks=pytest.mark.soak), True], ids=["the-tool-goes-on", "the-tool-is-killed-too"]
)
def test_a_sweep_that_is_interrupted_at_each_point_goes_on(tmp_path, tool_too):
    fleet, again = Swept(tmp_path), 2 if tool_too else 1
    with ScriptedEngine(model="gpt-oss-small") as engine, fleet.deployed(engine):
        for point in range(len(POINTS)):
            # where the tool goes on, the next play takes its result; else it asks for the point again
            fleet.interrupted(point * again + 1, tool_too)
            assert fleet.measured == POINTS[:point]
        run = fleet.play(playbook="playbooks/benchmark.yml", variables=fleet.variables).ok()
    assert fleet.measured == POINTS
    assert len(fleet.calls) == len(POINTS) * again
    assert [run.output.count("(item=aiperf, node, %d at once)" % point) for point in POINTS] == [1, 1, 1]
