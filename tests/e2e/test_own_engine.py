# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`vllm bench latency` and `throughput` for real, for `make soak`: servers stop for them, and come back."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import time
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.jobs import DetachedJob

pytestmark = pytest.mark.soak

LOAD = {"input_tokens": 64, "output_tokens": 32, "requests": 8, "timeout_s": 300}
LATENCY = {"tool": "vllm-latency", "concurrency": 4, **LOAD}
THROUGHPUT = {"tool": "vllm-throughput", **LOAD}


def check_back(measured, before):
    """Both servers are others than before, nothing of the tool's engine is left, and they are verified."""
    after = measured.pids()
    assert all(after[name] != pid for name, pid in before.items()), (before, after)
    commands = [command for _pid, command in measured.processes()]
    assert not [command for command in commands if b"bench" in command.encode()], commands
    assert measured.play("playbooks/verify.yml", "-e", "fleet_verify=quick").ok().count("changed") == 0
    assert all(all(probe is not False for probe in probes.values()) for probes in measured.verdicts().values())
    assert measured.site().ok().count("changed") == 0


@pytest.mark.parametrize("profile", [LATENCY, THROUGHPUT], ids=lambda one: one["tool"])
def test_servers_stop_for_an_engine_of_its_own_and_come_back(measured, profile):
    before = measured.pids()
    run, (document,) = measured.benchmark("own", profile)
    run.ok()
    assert document["counts"] == {"asked": 8, "completed": 8, "failed": 0}
    metrics = document["metrics"]
    assert metrics["output_tokens_per_s"] > 0 and metrics["ttft_ms"]["mean"] is None
    assert (metrics["e2e_ms"]["p50"] is not None) == (profile is LATENCY)
    print(profile["tool"], "output tokens/s: %.1f" % metrics["output_tokens_per_s"], metrics["e2e_ms"], run.seconds)
    check_back(measured, before)


def test_servers_come_back_where_the_tool_fails(measured):
    before = measured.pids()
    run, (document,) = measured.benchmark("own", {**LATENCY, "arguments": ["--no-such-argument"]})
    assert document["counts"] == {"asked": 8, "completed": 0, "failed": 8}
    run.failed("0 of 8 requests completed. No request was answered: ", "unrecognized arguments: --no-such-argument")
    check_back(measured, before)


def test_servers_come_back_where_all_of_the_tool_is_killed(measured):
    before, began = measured.pids(), time.time()
    folder = measured.root / "var" / "lib" / "inference-fleet" / "benchmarks"

    def at_work():
        jobs = [DetachedJob(str(path.parent)) for path in folder.glob("*/job/log") if path.stat().st_mtime > began]
        return next((job for job in jobs if "INFO" in job.log()), None)

    def kill():
        session = int(measured.wait_for(at_work, 120, "an engine of the tool").pid())
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(path.name)) == session:
                    os.kill(int(path.name), signal.SIGKILL)
            except ProcessLookupError:
                pass

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        run, (document,) = measured.benchmark("own", THROUGHPUT)
        killing.result(0)
    assert document["counts"] == {"asked": 8, "completed": 0, "failed": 8}
    run.failed("0 of 8 requests completed.")
    check_back(measured, before)
