# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Disaggregated serving with the real Dynamo, vLLM and NIXL. The tests of this file build on each other."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.tests.e2e.conftest import UNTOLD, patience

MODEL = "gpt-oss-tiny-standin"
NOT_PASSED = UNTOLD | {"context", "effort", "responses-stream", "responses-tools"}
GUIDE = {"guide-responses", "guide-tool-call", "guide-tool-result", "guide-high-effort"}
MOVED = re.compile(r"vllm:nixl_bytes_transferred_sum: decode-0 (\d+) -> (\d+)")
NAMES = ("frontend-0", "prefill-0", "decode-0")
CARDS = {"prefill-0": "*prefill*", "decode-0": "*backend*"}  # what a worker registers


def discovery(dynamo):
    return dynamo.root / "var/lib/inference-fleet/servers/frontend-0/work/discovery"


def is_registered(dynamo, name):
    return list((discovery(dynamo) / "v1" / "mdc").glob(CARDS[name]))


@pytest.fixture(autouse=True)
def registered(dynamo):
    """A worker that stood still for long, on a machine that runs other tests as well, is starting again now."""
    for name in CARDS if discovery(dynamo).exists() else ():
        dynamo.wait_for(lambda name=name: is_registered(dynamo, name) or not runs(dynamo, name), 300, "a registration")


def results_of(dynamo):
    """{probe: its result} of the frontend in the last report."""
    (path,) = (dynamo.reports / "hosts").iterdir()
    (verdict,) = json.loads(path.read_text())["verdicts"]
    assert verdict["server"] == "frontend-0"
    return {probe["name"]: probe for probe in verdict["probes"]}


def failed(dynamo):
    """{probe: cause} of those that failed."""
    return {name: result["cause"] for name, result in results_of(dynamo).items() if result["ok"] is False}


def pids(dynamo):
    return {name: dynamo.state(name)["pid"] for name in NAMES}


def runs(dynamo, name):
    """Whether a test has not stopped it: one that ended is started again 2 s later."""
    ends = time.monotonic() + 10
    while not os.path.exists("/proc/%d" % dynamo.state(name)["pid"]):
        if time.monotonic() > ends:
            return False
        time.sleep(1)
    return True


def answers(dynamo):
    """Whether a completion comes back through the frontend."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "How are you?"}], "max_tokens": 64}
    url = "http://127.0.0.1:%d/v1/chat/completions" % dynamo.ports[0]
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=patience(60)) as got:
            return bool(json.load(got)["choices"])
    except (urllib.error.URLError, OSError):
        return False


def test_site_ends_with_a_verified_frontend_and_a_cache_that_was_moved(dynamo):
    run = dynamo.site().ok()
    assert "VERDICTS" in run.output
    results = results_of(dynamo)
    assert set(results) >= GUIDE | {"census", "disaggregation", "tool-round-trip", "responses", "streaming"}
    assert {name for name, result in results.items() if result["ok"] is not True} <= NOT_PASSED
    assert results["census"]["got"] == "prefill 1 of 1, decode 1 of 1"
    before, after = MOVED.search(results["disaggregation"]["got"]).groups()
    assert int(after) > int(before)
    assert results["reasoning"]["got"].startswith("reasoning_content")


def test_second_run_changes_nothing_and_restarts_nothing(dynamo):
    before = pids(dynamo)
    assert dynamo.site().ok().count("changed") == 0
    assert pids(dynamo) == before
    assert list(results_of(dynamo)) == ["identity", "census", "model-id", "completion"]


def test_what_listens_where(dynamo):
    """Only KV events and the event plane listen beyond the bind address, which is loopback here; UCX does not."""
    sockets = {"socket:[%d]" % inode: (address, port) for address, port, inode, _uid in processes.listening_sockets()}
    pids = [pid for one in processes.marked_processes(str(dynamo.root)).values() for pid in one]
    links = {os.readlink(one) for pid in pids for one in pathlib.Path("/proc/%d/fd" % pid).iterdir()}
    found = {sockets[link] for link in links & set(sockets)}
    print("\n" + "\n".join("%s %d" % one for one in sorted(found)))
    assert {address for address, _port in found if not address.startswith("127.")} <= {"0.0.0.0", "::"}


@pytest.mark.soak
def test_a_worker_that_stood_still_starts_again_and_is_found(dynamo):
    """For longer than its registration lasts; it would go on without one."""
    dynamo.site().ok()
    before = pids(dynamo)
    os.kill(before["decode-0"], signal.SIGSTOP)
    try:
        dynamo.wait_for(lambda: not is_registered(dynamo, "decode-0"), patience(60), "the end of the registration")
    finally:
        os.kill(before["decode-0"], signal.SIGCONT)
    dynamo.wait_for(lambda: dynamo.state("decode-0")["pid"] != before["decode-0"], 300, "a new process")
    dynamo.wait_for(lambda: answers(dynamo), 900, "an answer")
    assert {name for name, pid in pids(dynamo).items() if pid != before[name]} == {"decode-0"}


@pytest.mark.soak
def test_a_removed_folder_of_discovery_heals_without_a_play(dynamo):
    dynamo.site().ok()
    before = pids(dynamo)
    shutil.rmtree(discovery(dynamo))
    for name in NAMES:
        dynamo.wait_for(lambda name=name: pids(dynamo)[name] != before[name], 300, "a new process")
    dynamo.wait_for(lambda: answers(dynamo), 900, "an answer")
    assert dynamo.play("playbooks/verify.yml", "-e", "fleet_verify=full").ok().count("changed") == 0


def test_a_stopped_prefill_worker_fails_the_verdict_with_that_cause(dynamo):
    dynamo.site().ok()
    control = dynamo.root / "var/lib/inference-fleet/toolkit/bin/supervisorctl"
    conf = dynamo.root / "etc/inference-fleet/supervisord.conf"
    subprocess.run([str(control), "-c", str(conf), "stop", "inference-fleet-prefill-0"], check=True)
    dynamo.play("playbooks/verify.yml").failed("prefill-0")
    assert all("prefill-0" in cause for cause in failed(dynamo).values())


def test_stopped_leaves_no_process_and_nothing_registered(dynamo):
    dynamo.play("playbooks/stop.yml").ok()
    assert dynamo.processes() == []
    assert [path for path in discovery(dynamo).rglob("*") if path.is_file() and "instances" in str(path)] == []
