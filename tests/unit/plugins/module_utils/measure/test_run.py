# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job of one point: a shell script stands for the tool; no server is asked."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import types
from unittest import mock

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.http_client import Response
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.jobs import DetachedJob
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import benchmark, run
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.tools import benchmarks
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import Observed
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.supervisord import Supervisord
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.systemd import Systemd
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.points import points, tools
from ansible_collections.inference.fleet.tests.runs import wait_for
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.node_helpers import script
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.measure.test_tools import POINT

HEAD = {
    "inventory": "local", "recipe": "r", "recipe_hash": "a" * 64, "platform": "cpu", "engine": "e", "scope": "node",
    "versions": {"engine": None, "tool": "1", "collection": None}, "host": "node", "profile": "quick",
    "hardware": {"accelerator": "cpu", "count": 2},
}  # fmt: skip
# Counts its calls, waits where it is told to, and writes a profile of as many requests as `count` says.
TOOL = """
folder=$(dirname "$0")
echo called >> "$folder/calls"
while [ $# -gt 1 ]; do [ "$1" = --artifact-dir ] && out=$2; shift; done
while [ -e "$folder/wait" ]; do sleep 0.05; done
count=$(cat "$folder/count")
echo '{"request_count": {"avg": '$count'}, "output_token_throughput": {"avg": 100}, "is_complete": true,
       "inter_token_latency": {"avg": 10}, "output_token_throughput_per_user": {"avg": 4471}}' \
  > "$out/profile_export_aiperf.json"
"""


# Leaves the files profile and records as its own, and ends well.
LEFT = """
folder=$(dirname "$0")
while [ $# -gt 1 ]; do [ "$1" = --artifact-dir ] && out=$2; shift; done
[ "$(cat "$folder/profile")" = null ] || cp "$folder/profile" "$out/profile_export_aiperf.json"
cp "$folder/records" "$out/profile_export.jsonl"
"""

PROGRAM = benchmarks.program


class Bench:
    """A tool, a node, and what the module is given."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.starts = folder, {"server-0": ["h", 1]}
        tool = script(folder / "tool", TOOL)
        monkeypatch.setattr(benchmarks, "program", lambda *given: ([tool], {}, None))
        monkeypatch.setattr(benchmark.Benchmark, "check", lambda one: dict(self.starts))
        monkeypatch.setattr(benchmark.Benchmark, "processes", lambda one: dict(self.starts))
        self.checked = []  # by the Python of the tool
        monkeypatch.setattr(benchmark.Benchmark, "check_tokenizer", lambda one, python: self.checked.append(python))
        self.answered(8)

    def answered(self, count):
        (self.folder / "count").write_text(str(count))

    def waits(self, yes):
        (self.folder / "wait").touch() if yes else (self.folder / "wait").unlink()

    def begun(self):
        """Start a tool that waits, and let it end later."""
        self.waits(True)
        assert self.call(wait_s=0)["finished"] is False
        wait_for(lambda: self.calls == 1, 60, "the tool")

    @property
    def calls(self):
        path = self.folder / "calls"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def call(self, caller="one", wait_s=60, check_mode=False, again=False, beside=(), head=None, **point):
        spec = tools().get(point.get("tool", "aiperf"))
        point = {**POINT, "spec": spec, "limits": None, "engine_arguments": [], **point}
        params = {
            "point": point, "servers": [plan_entry(8000)], "beside": beside, "elsewhere": [], "head": head or HEAD,
            "caller": caller, "again": again, "wait_s": wait_s, "root": str(self.folder / "root"),
            "manager": "supervisord", "toolkit": None, "environment_path": None,
        }  # fmt: skip
        return benchmark.run(params, check_mode)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch)


def test_a_point_that_counts_is_not_run_again(bench):
    assert bench.call(check_mode=True)["document"] is None and bench.calls == 0
    first = bench.call()
    document = first["document"]
    assert first["changed"] and first["finished"] and document["ok"]
    assert document["counts"] == {"asked": 8, "completed": 8, "failed": 0}
    assert document["metrics"]["output_tokens_per_s_per_accelerator"] == 50
    assert document["metrics"]["output_tokens_per_s_per_user"] == 100
    assert bench.call(check_mode=True)["changed"] is False
    second = bench.call(caller="two")
    assert (second["changed"], second["document"], bench.calls) == (False, document, 1)
    assert bench.call(caller="three", again=True)["document"]["id"] != document["id"]
    head = {**HEAD, "versions": {**HEAD["versions"], "tool": "2"}}
    assert bench.call(caller="four", head=head)["changed"] and bench.calls == 3
    assert bench.call(caller="four", input_tokens=65)["document"]["id"] != document["id"]
    assert bench.calls == len(bench.checked) == 4


ALL_FAILED = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "measure" / "aiperf-all-failed.jsonl"
ANSWERED = '{"metadata": {"benchmark_phase": "profiling"}, "metrics": {}, "error": null}\n'
COUNTED = {"request_count": {"avg": 24}, "output_token_throughput": {"avg": 100}}


@pytest.mark.parametrize(("profile", "records", "completed", "reason"), [
    # what AIPerf left of 24 requests that were all refused; its exit status is not looked at
    (None, ALL_FAILED.read_text(encoding="utf-8"), 0, "no request was answered: {"),
    # answers without a result: nothing is known of them
    (None, ANSWERED * 24, 24, "aiperf reports no output tokens/s for 24 completed requests: "),
    ({**COUNTED, "output_token_throughput": {"avg": 0}}, "", 24, "aiperf reports no output tokens/s for 24"),
    # files of another form
    ({**COUNTED, "request_count": {"avg": math.inf}}, "", 0, "no request was answered: "),
    ({**COUNTED, "error_summary": 3}, "", 0, "no request was answered: the files of aiperf cannot be read: "),
    # more than all of them
    ({**COUNTED, "error_request_count": {"avg": 99}}, "", 0, "24 of 24 requests failed"),
    # fewer than asked
    ({**COUNTED, "request_count": {"avg": 21}}, "", 21, "3 of 24 requests failed$"),
])  # fmt: skip
def test_a_run_without_evidence_of_good_answers_is_a_failure(bench, profile, records, completed, reason):
    (bench.folder / "records").write_text(records, encoding="utf-8")
    (bench.folder / "profile").write_text(json.dumps(profile), encoding="utf-8")
    script(bench.folder / "tool", LEFT)
    document = bench.call(requests=24)["document"]
    assert document["ok"] is False and re.match(reason, document["reason"]), document["reason"]
    assert document["counts"] == {"asked": 24, "completed": completed, "failed": 24 - completed}


def test_a_command_of_a_recipe_is_run_and_its_metrics_are_read(bench, monkeypatch):
    monkeypatch.setattr(benchmarks, "program", PROGRAM)
    output = {"done": 8, "rate": 250, "ttft": {"mean": 0.5, "p99": 2}, "median": 40}
    text = "[ $# = 4 ] && [ $TOKENIZER = /m ] && echo '%s' >\"$3/it is.json\"; exit 1" % json.dumps(output)
    command = {
        "argv": [script(bench.folder / "tiny", text), "--url=${url}", "${urls}", "${output}", "two words"],
        "environment": {"TOKENIZER": "${tokenizer}"},
        "files": ["*.json"],
        "metrics": {"completed": "done", "output_tokens_per_s": "rate", "requests_per_s": "rate / point.output_tokens",
                    "ttft_ms": "ttft.* * 1000", "e2e_ms.p50": "median"},
    }  # fmt: skip
    profile = {"tool": "command", "command": command, "input_tokens": 64, "output_tokens": 32, "requests": 8}
    deployment = {"name": "r", "model": {"path": "/m"}, "benchmark": {"profiles": {"quick": profile}}}
    (call,) = points([plan_entry(8000, engine="vllm", arguments={})], deployment)
    document = bench.call(**call["point"])["document"]
    assert (document["ok"], document["counts"]["failed"], document["tool"]["name"]) == (True, 0, "command:quick")
    assert document["tool"]["command"][1:3] == ["--url=http://127.0.0.1:8000", "http://127.0.0.1:8000"]
    metrics = document["metrics"]
    assert (metrics["output_tokens_per_s"], metrics["requests_per_s"]) == (250, 250 / 32)
    assert metrics["ttft_ms"] == {"mean": 500, "p50": None, "p90": None, "p95": None, "p99": 2000}
    assert metrics["e2e_ms"]["p50"] == 40 and metrics["e2e_ms"]["mean"] is None


@pytest.mark.parametrize("waits", [True, False], ids=["the next play joins it", "it has ended by then"])
def test_a_job_goes_on_when_its_play_has_ended_and_the_next_takes_its_result(bench, waits):
    bench.begun()
    if waits:
        assert bench.call(caller="two", wait_s=0)["finished"] is False
        bench.waits(False)
    else:
        bench.waits(False)
        root = bench.folder / "root"
        wait_for(lambda: list(root.rglob("profile_export_aiperf.json")), 60, "what the tool writes")
    assert bench.call(caller="two")["document"]["ok"] is True
    assert bench.calls == 1


@pytest.mark.parametrize("who", ["the play that waits", "the next play"])
def test_a_tool_that_was_killed(bench, who):
    bench.begun()
    DetachedJob(str(next((bench.folder / "root").rglob("job/pid")).parent)).stop()
    bench.waits(False)
    if who == "the next play":
        assert bench.call(caller="two")["document"]["ok"] is True
        assert bench.calls == 2
        return
    document = bench.call()["document"]
    assert (document["ok"], document["counts"]["failed"], bench.calls) == (False, 8, 1)
    assert document["reason"].startswith("no request was answered")
    assert document["errors"] == [{"message": benchmark.UNTOLD, "count": 8}]


def test_the_time_limit_ends_it(bench):
    bench.waits(True)
    document = bench.call(timeout_s=1)["document"]
    assert document["ok"] is False
    assert document["errors"][0]["message"] == "no answer within 1 s, the time limit"


def test_servers_that_restart_during_the_run_void_it(bench):
    bench.waits(True)
    bench.call(wait_s=0)
    bench.starts = {"server-0": ["h", 2]}
    bench.waits(False)
    document = bench.call()["document"]
    assert (document["ok"], document["void"]) == (False, "server-0 changed or restarted during the run")
    assert document["counts"]["completed"] == 8


def test_a_tokenizer_that_cannot_be_used(bench, monkeypatch, tmp_path):
    monkeypatch.undo()
    one = benchmark.Benchmark.__new__(benchmark.Benchmark)
    one.point = {"tokenizer": str(tmp_path)}
    assert error(one.check_tokenizer, None).code == "measure.tokenizer"
    (tmp_path / "tokenizer.json").write_text(json.dumps({}))
    for text, problem in (("echo 3", "%r is 3 tokens" % benchmark.SENTENCE), ("echo no x >&2; exit 1", "no x")):
        caught = error(one.check_tokenizer, script(tmp_path / "python", text))
        assert caught.values == (str(tmp_path), problem)
    one.check_tokenizer(script(tmp_path / "python", "echo 10"))


@pytest.mark.parametrize(("tool", "environment"), [("aiperf", True), ("trtllm-bench", False)])
def test_a_tool_that_is_not_there(tmp_path, tool, environment):
    folder = str(tmp_path)
    caught = error(
        benchmarks.program, tool, tools()[tool], folder if environment else None, plan_entry(8000), "", folder
    )
    assert caught.code == "measure.tool-missing"


@pytest.mark.parametrize("answered", [20, 0])
def test_servers_that_stop_for_a_tool_are_ready_again_before_it_has_its_result(bench, servers, monkeypatch, answered):
    lacks = [FleetError("test.not-ready", "1 of 2 servers ready")]

    def check_ready(_node, _entries):
        if lacks:
            raise lacks.pop()

    monkeypatch.setattr(run, "check_ready", check_ready)
    made = []
    monkeypatch.setattr(benchmark, "StoppedServers", lambda node, entries: made.append(sorted(entries)) or servers)
    text = 'while [ "$1" != --output-json ]; do shift; done\necho \'{"latencies": [%s]}\' > "$2"' % ", ".join(
        ["0.5"] * (answered // 4)
    )
    tool = script(bench.folder / "latency", text)
    monkeypatch.setattr(benchmarks, "program", lambda *given: ([tool], {}, None))
    workload = {"tool": "vllm-latency", "requests": 20, "concurrency": 4}
    first = bench.call(beside=[plan_entry(8001, "server-1")], **workload)
    assert (first["finished"], first["document"]) == (False, None)
    assert first["progress"]["phase"] == "waiting for servers: 1 of 2 servers ready"
    second = bench.call(beside=[plan_entry(8001, "server-1")], **workload)
    assert second["finished"] and second["document"]["ok"] is bool(answered)
    assert second["document"]["counts"]["completed"] == answered and second["document"]["void"] is None
    assert made[0] == second["restarted"] == list(ENTRIES)
    assert servers.node.manager.calls == [("stop", *ENTRIES), ("start", *ENTRIES)]


@pytest.mark.parametrize(("text", "began"), [("# HELP\nprocess_start_time_seconds 1.5e9\n", "1.5e9"), ("", None)])
def test_a_server_of_another_host_is_told_from_a_later_start(monkeypatch, text, began):
    monkeypatch.setattr(run, "starts_of", lambda *given: {})
    monkeypatch.setattr(run.http_client, "request", lambda method, url: Response(method, url, 200, text=text))
    one = benchmark.Benchmark.__new__(benchmark.Benchmark)
    one.planned = one.node = None
    others = [("frontend", "http://10.0.0.2:8000"), ("decode-0", None)]
    one.params = {"elsewhere": [{"host": "b", "name": name, "url": url} for name, url in others]}
    assert one.processes() == {"b/frontend": began}


RECORD = {"hash": "h", "pid": 7, "ticks": 70, "started": 1.5}
BEGAN = Observed("server-0", state=RECORD, fresh=True)


def container(name, running=True):
    return types.SimpleNamespace(id=name, running=running)


@pytest.mark.parametrize(("change", "changed"), [
    ({}, False), ({"state": {**RECORD, "phase": "running"}}, False),
    ({"containers": [container("b", running=False)]}, False),
    ({"fresh": False}, True),  # killed a moment ago; its record is the old one until it is started again
    ({"state": {**RECORD, "ticks": 71}}, True), ({"state": {**RECORD, "hash": "other"}}, True),
    ({"state": None}, True), ({"containers": [container("b")]}, True),
    (None, True),  # it is gone
])  # fmt: skip
def test_what_is_another_start(monkeypatch, change, changed):
    seen = []
    for observed in (BEGAN, change if change is None else dataclasses.replace(BEGAN, **change)):
        monkeypatch.setattr(run, "observe", lambda *given, one=observed: {"server-0": one} if one else {})
        seen.append(run.starts_of(types.SimpleNamespace(paths=None, manager=None), {"server-0": {}}))
    assert run.changed_starts(*seen) == ["server-0"] * changed


# -- servers that stop for a tool come back, however the tool ends and whoever waits for it ----------------------------

LATENCY = ("vllm-latency", tools()["vllm-latency"])
ENTRIES = {name: plan_entry(8000, name) for name in ("server-0", "server-1")}


class Manager:
    """A service manager that notes what it is asked."""

    def __init__(self, folder):
        self.folder, self.calls, self.up = folder, [], {"server-0", "server-1"}

    def stop(self, names):
        self.calls.append(("stop", *names))
        self.up -= set(names)

    def start(self, names):
        self.calls.append(("start", *names))
        self.up |= set(names)

    def statuses(self):
        return {name: types.SimpleNamespace(state="up" if name in self.up else "down") for name in ENTRIES}

    def start_argv(self, names):
        path = "%s/%s" % (self.folder, "-".join(names))
        return ["sh", "-c", "echo added; echo a warning >&2; touch " + path]


@pytest.fixture
def servers(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "stop_leftovers", lambda _entry, _root: [])
    node = types.SimpleNamespace(manager=Manager(tmp_path), paths=NodePaths(str(tmp_path / "root")))
    found = run.StoppedServers(node, ENTRIES)
    found.back = tmp_path / "server-0-server-1"
    return found


def test_they_stop_and_only_those_that_are_down_start(servers):
    servers.stop()
    servers.node.manager.up.add("server-1")
    servers.start()
    assert servers.node.manager.calls == [("stop", "server-0", "server-1"), ("start", "server-0")]
    servers.start()
    assert len(servers.node.manager.calls) == 2


def test_one_that_does_not_stop_is_an_error_and_all_start_again(servers, monkeypatch):
    left = {"server-0": [], "server-1": ["process 7: engine"]}
    monkeypatch.setattr(run, "stop_leftovers", lambda entry, _root: left[entry["name"]])
    caught = error(servers.stop)
    assert (caught.code, caught.values) == ("measure.server-stays", ("server-1", "process 7: engine"))
    assert servers.node.manager.calls[-1] == ("start", "server-0", "server-1")


@pytest.mark.parametrize("status", [0, 3])
def test_the_job_starts_them_when_the_tool_has_ended_however_it_did(servers, status):
    tool = ["sh", "-c", "echo its last words; exit %d" % status]
    done = subprocess.run(
        servers.wrapped(tool), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert (done.returncode, servers.back.exists(), done.stdout) == (status, True, "its last words\n")


def test_the_job_starts_them_when_it_is_ended(servers, tmp_path):
    tool = script(tmp_path / "tool", "touch %s/at-work\nexec sleep 60" % tmp_path)
    job = subprocess.Popen(servers.wrapped([tool]), start_new_session=True)
    wait_for((tmp_path / "at-work").exists, 60, "the tool")
    os.killpg(job.pid, signal.SIGTERM)
    job.wait(60)
    assert servers.back.exists()


def test_what_starts_them_with_each_service_manager(tmp_path):
    paths = NodePaths(str(tmp_path))
    assert Systemd(paths).start_argv(["server-0"]) == [
        "systemctl", "start", "--no-block", "--", "inference-fleet-server-0.service"
    ]  # fmt: skip
    assert Supervisord(paths, "/toolkit").start_argv(["server-0", "server-1"]) == [
        "/toolkit/bin/supervisorctl", "-c", paths.etc + "/supervisord.conf", "add", "inference-fleet-server-0",
        "inference-fleet-server-1",
    ]  # fmt: skip


def test_an_engine_takes_the_place_of_a_servers_process(tmp_path):
    python = script(tmp_path / "python", "true")
    entry = plan_entry(8000, command=[python, "-m", "x"], cpus="0-3", user="engine", environment={"A": "1"})
    argv, variables, _python = benchmarks.program(*LATENCY, None, entry, "", str(tmp_path), "0.32.0")
    assert argv == [
        "runuser", "-u", "engine", "--", "taskset", "--cpu-list", "0-3", python, "-m", "vllm.entrypoints.cli.main",
        "bench", "latency",
    ]  # fmt: skip
    assert variables["A"] == "1" and variables["INFERENCE_FLEET_SERVER"] == "server-0"
    assert os.path.exists(tmp_path / "vllm-0.32.0+cpu.dist-info" / "METADATA")


def test_tools_run_in_place_of_a_servers_container_or_in_it_with_their_time_limit(monkeypatch, tmp_path):
    seen = []
    containers = benchmarks.containers
    monkeypatch.setattr(containers, "launch_command", lambda entry, _root: seen.append(entry) or entry["launch"])
    monkeypatch.setattr(containers, "client_environment", lambda *given: {"B": "2"})
    engine = types.SimpleNamespace(argv=lambda *words: ["docker", *words])
    monkeypatch.setattr(benchmarks, "engine_of_entry", lambda entry: engine)
    run_it = ["docker", "run", "--name=inference-fleet-server-0", "image"]
    command = ["vllm", "serve", "/m"]
    entry = plan_entry(8000, container={"engine": "docker"}, command=command, launch=run_it + command)
    argv, variables, _python = benchmarks.program(*LATENCY, None, entry, "", "/f")
    assert argv == [*run_it, "vllm", "bench", "latency"]
    assert (variables, seen[0]["command"]) == ({"B": "2"}, ["vllm", "bench", "latency"])
    spec, limit = tools()["trtllm-bench"], ["timeout", "9"]  # it does not end with the engine's client
    argv, _variables, _python = benchmarks.program(
        "trtllm-bench", spec, None, entry, "", str(tmp_path), time_limit=limit
    )
    at = argv.index("timeout")
    assert argv[:2] == ["docker", "exec"] and argv[at : at + 3] == [*limit, spec["program"][1]]


def test_a_link_that_a_server_puts_in_the_place_of_its_output_is_replaced(bench):
    bench.call()
    (output,) = (bench.folder / "root").rglob("output")
    victim = bench.folder / "victim"
    victim.mkdir(mode=0o755)
    output.rename(bench.folder / "away")
    output.symlink_to(victim)
    assert bench.call(caller="two", again=True)["document"]["ok"] is True
    assert victim.stat().st_mode & 0o777 == 0o755 and list(victim.iterdir()) == []
    assert not output.is_symlink() and output.stat().st_mode & 0o777 == 0o700


def test_servers_that_stopped_for_a_tool_start_again_after_a_call_that_was_killed_before_its_launch(
    bench, servers, monkeypatch
):
    monkeypatch.setattr(benchmark, "StoppedServers", lambda node, entries: servers)
    monkeypatch.setattr(servers, "wrapped", mock.Mock(side_effect=KeyboardInterrupt))
    workload = {"tool": "vllm-latency", "requests": 20, "concurrency": 4}
    for caller in ("one", "two"):
        with pytest.raises(KeyboardInterrupt):
            bench.call(caller=caller, **workload)
    assert servers.node.manager.calls == [("stop", *ENTRIES), ("start", *ENTRIES), ("stop", *ENTRIES)]
