# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The watchdog of a node: whom it asks, what counts as a failure, and whom it leaves alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files, http_client, jobs, processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import watchdog
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry

ENTRY = plan_entry(1, health={"port": None, "path": "/health", "budget_s": 600, "poll_s": 1})
HANGS = (None, "timed out")


class Node:
    """One server of a node: a process that sleeps, its entry and its record; `answers` is what it says."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.said, self.asked = folder, [], []
        self.answers = {"/v1/chat/completions": (200, "{}"), "/health": (200, "{}"), "/metrics": (404, "")}
        self.options = types.SimpleNamespace(
            etc=str(folder), state=str(folder / "state"), root="", failures=2, timeout=9
        )
        self.process = None
        monkeypatch.setattr(watchdog, "say", lambda text, _who: self.said.append(text))
        monkeypatch.setattr(http_client, "request", self.request)
        self.memory = {}
        self.start()

    def start(self, entry=None, age=1000, phase="running", server="server-0", root="/", **secrets):
        """Start the server, in the place of an earlier one."""
        self.end()
        sleep = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(900)"]
        markers = {"INFERENCE_FLEET_SERVER": server, "INFERENCE_FLEET_ROOT": root}
        self.process = subprocess.Popen(sleep, env=markers)
        pid = self.process.pid
        record = {"name": "server-0", "phase": phase, "pid": pid, "ticks": processes.process(pid).ticks,
                  "started": time.time() - age}  # fmt: skip
        for path, value in (("servers", entry or ENTRY), ("state", record), ("secrets", secrets)):
            (self.folder / path).mkdir(exist_ok=True)
            (self.folder / path / "server-0.json").write_text(json.dumps(value))

    def request(self, method, url, body=None, timeout=30, headers=None):
        path = "/" + url.split("/", 3)[3]
        self.asked.append((path, (headers or {}).get("Authorization", "").partition(" ")[2] or None))
        answer = self.answers[path]
        status, text = answer.pop(0) if isinstance(answer, list) else answer
        if status is None:
            return http_client.Response(method, url, error="timeout", detail=text)
        return http_client.Response(method, url, status=status, text=text)

    def look(self):
        """Whether the server lives after another look."""
        self.memory = watchdog.look(self.options, self.memory)
        return self.process.poll() is None

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def node(tmp_path, monkeypatch):
    made = Node(tmp_path, monkeypatch)
    yield made
    made.end()


def test_it_restarts_after_failures_in_a_row(node):
    node.answers["/v1/chat/completions"] = [HANGS, (200, "{}"), HANGS, (503, "dead\n"), (200, "{}")]
    assert [node.look() for _turn in range(3)] == [True] * 3
    node.process.send_signal(signal.SIGSTOP)
    assert not node.look()
    assert node.said == [
        "server-0 does not answer, 1 of 2: a completion: no answer within 9 s",
        "server-0 does not answer, 1 of 2: a completion: no answer within 9 s",
        "server-0 does not answer, 2 of 2: a completion: HTTP 503 dead",
        "server-0 is restarted",
    ]
    assert node.process.wait() == -signal.SIGTERM
    node.look()
    assert node.memory == {}  # nobody is asked who does not run
    assert len(node.said) == 4


def test_nothing_is_restarted_while_a_run_changes_servers(node):
    """A server that is drained refuses requests."""
    node.options.root = str(node.folder)
    node.start(root=node.options.root)
    node.answers["/v1/chat/completions"] = (503, "draining")
    lock = node.folder / "run/inference-fleet/engine_servers.lock"
    lock.parent.mkdir(parents=True)
    with files.open_lock(str(lock)) as stream:
        assert lock.stat().st_mode & 0o777 == 0o600  # else another account could keep it locked
        assert jobs.locked(stream)
        assert all(node.look() for _turn in range(4))
    assert [node.look(), node.look()] == [True, False]


def test_an_answer_that_cannot_be_read_is_a_failure_of_that_server_alone(node, monkeypatch):
    monkeypatch.setattr(watchdog, "fault", lambda *_arguments: int("x"))
    assert [node.look(), node.look()] == [True, False]


def test_it_asks_until_another_version_is_current_also_with_a_full_disk(node, monkeypatch, tmp_path):
    node.answers["/v1/chat/completions"] = HANGS
    monkeypatch.setattr(watchdog.metrics, "update", lambda *_arguments: os.stat("/dev/full/x"))
    node.options.every = 1
    program = tmp_path / "current"
    program.symlink_to("one")
    monkeypatch.setattr(sys, "argv", [str(program)])

    def sleep(_seconds):
        if node.process.poll() is not None:
            program.unlink()
            program.symlink_to("two")

    monkeypatch.setattr(watchdog, "time", types.SimpleNamespace(sleep=sleep, time=time.time))
    assert watchdog.watch(node.options) == 0
    assert node.process.wait(10) == -signal.SIGTERM


def test_a_new_process_is_not_charged_with_the_failures_of_the_old_one(node):
    node.answers["/v1/chat/completions"] = HANGS
    assert node.look()
    node.start()
    assert node.look()
    assert node.memory["server-0"]["failures"] == 1


def test_what_counts_tokens_is_busy(node):
    node.answers["/v1/chat/completions"] = HANGS
    node.answers["/metrics"] = [(200, "vllm:tokens_total %d" % number) for number in range(20)]
    assert all(node.look() for _turn in range(4))
    node.answers["/metrics"] = (200, "vllm:tokens_total 7")
    assert [node.look(), node.look()] == [True, False]


@pytest.mark.parametrize(("answer", "started", "asked"), [
    ((429, "no"), {}, True),  # what refuses lives
    (HANGS, {"age": 10}, True),  # it has its budget
    (HANGS, {"phase": "restarting"}, False),
    # it is the server's user who writes the record, and root who restarts
    (HANGS, {"server": "server-1"}, False), (HANGS, {"root": "/other"}, False),
])  # fmt: skip
def test_who_is_left_alone(node, answer, started, asked):
    node.start(**started)
    node.answers["/v1/chat/completions"] = answer
    assert all(node.look() for _turn in range(4))
    assert (node.said, bool(node.asked)) == ([], asked)


def test_one_that_has_answered_has_no_budget(node):
    node.start(age=10)
    node.answers["/v1/chat/completions"] = [(200, "{}"), HANGS, HANGS]
    assert [node.look() for _turn in range(3)] == [True, True, False]


def test_a_key_is_sent_and_a_worker_is_asked_for_its_health(node):
    node.start(VLLM_API_KEY="secret")
    node.look()
    assert ("/v1/chat/completions", "secret") in node.asked
    for changes, asked in (
        ({"role": "decode", "port": None, "ports": {"system": 7}}, [("/health", None)]),
        ({"port": None}, []),
    ):
        node.asked.clear()
        node.start(dict(ENTRY, **changes))
        assert (node.look(), node.asked) == (True, asked)


def test_an_entry_that_was_edited_does_not_end_the_watch(node):
    (node.folder / "servers" / "server-0.json").write_text('{"name": "server-0"}')
    assert node.look()
    assert node.asked == []
