# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The event listener of supervisord."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files, processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import reap as reaper
from ansible_collections.inference.fleet.tests.unit.engines import small_node


def test_the_reaper_kills_the_group_of_a_program_that_ended():
    script = "import os, time\nif os.fork() == 0: time.sleep(900)\nprint('x', flush=True)"
    groups = []
    for _number in range(2):
        leader = subprocess.Popen([sys.executable, "-I", "-S", "-c", script], stdout=subprocess.PIPE, process_group=0)
        leader.stdout.readline()
        leader.wait()
        groups.append(leader.pid)
    ours = "processname:x groupname:inference-fleet-a from_state:RUNNING"
    events = [
        event("PROCESS_STATE_EXITED", "%s expected:0 pid:%d" % (ours, groups[0])),
        event("PROCESS_STATE_EXITED", "processname:x groupname:other from_state:RUNNING expected:0 pid:%d" % groups[1]),
        event("PROCESS_STATE_FATAL", ours),
        # a number that another process has by now
        event("PROCESS_STATE_STOPPED", "%s pid:%d" % (ours, os.getpid())),
    ]
    sink = io.BytesIO()
    assert reaper.reap(io.BytesIO(b"".join(events)), sink) == 0
    assert sink.getvalue() == b"READY\nRESULT 2\nOK" * 4 + b"READY\n"
    small_node.wait_until(lambda: not _members(groups[0]))
    assert len(_members(groups[1])) == 1
    os.killpg(groups[1], signal.SIGKILL)


def test_the_reaper_takes_back_what_was_stopped_and_what_restarts_with_it(tmp_path):
    servers, states = tmp_path / "servers", tmp_path / "states"
    servers.mkdir()
    states.mkdir()
    follower = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(900)"], process_group=0)
    ended = subprocess.Popen(["true"], process_group=0)
    ended.wait(60)
    records = {"lead": (ended.pid, 0), "other": (ended.pid + 1, 0),
               "bound": (follower.pid, processes.process(follower.pid).ticks)}  # fmt: skip
    for name, (pid, ticks) in records.items():
        start = {"after": ["lead"], "restart_with_leader": True} if name == "bound" else {"after": []}
        (servers / (name + ".json")).write_text(json.dumps({"start": start}))
        record = {"phase": "running", "pid": pid, "ticks": ticks, "started": 7.5, "starts": [3.5, 7.5], "count": 2}
        (states / (name + ".json")).write_text(json.dumps(record))

    def starts(kind):
        payload = "processname:x groupname:inference-fleet-%s from_state:STOPPING pid:%d"
        events = [event(kind, payload % (name, ended.pid)) for name in ("lead", "other", "gone")]
        reaper.reap(io.BytesIO(b"".join(events)), io.BytesIO(), str(servers), str(states))
        return {name: files.readable_json(str(states / (name + ".json")))["starts"] for name in records}

    assert starts("PROCESS_STATE_EXITED") == {"lead": [3.5, 7.5], "other": [3.5, 7.5], "bound": [3.5]}
    assert starts("PROCESS_STATE_STOPPED") == {"lead": [3.5], "other": [3.5, 7.5], "bound": [3.5]}
    assert follower.wait(60) == -signal.SIGTERM


def test_a_late_reaper_leaves_those_alone_that_follow_the_successor(tmp_path):
    """Each case: the leader's record, when the follower was started, whether it is ended for the end of process 11."""
    entries, states = tmp_path / "entries", tmp_path / "states"
    for folder in (entries, states):
        folder.mkdir()
    (entries / "bound.json").write_text(json.dumps({"start": {"after": ["lead"], "restart_with_leader": True}}))
    follower = os.getpid(), processes.process(os.getpid()).ticks
    for record, started, ends in (
        ({"pid": 11, "started": 100.0}, 200.0, True),  # nobody has taken its place yet
        ({"pid": 12, "started": None}, 200.0, True),  # a guard that waits or delays its start
        ({"pid": 12, "started": 300.0}, 200.0, True),
        ({"pid": 12, "started": 300.0}, 300.0, False),
        ({"pid": 12, "started": 300.0}, 400.0, False),
        (None, 200.0, True),
    ):
        (states / "lead.json").write_text(json.dumps(record))
        (states / "bound.json").write_text(
            json.dumps({"pid": follower[0], "ticks": follower[1], "phase": "running", "started": started})
        )
        found = reaper.followers("lead", 11, str(entries), str(states))
        assert found == ([(str(states / "bound.json"), *follower)] if ends else []), record


def event(name, payload):
    header = "ver:3.0 server:inference-fleet serial:1 pool:reaper poolserial:1 eventname:%s len:%d\n"
    return (header % (name, len(payload)) + payload).encode()


def _members(group):
    members = []
    for pid in processes.process_table():
        try:
            if os.getpgid(pid) == group:
                members.append(pid)
        except ProcessLookupError:
            continue
    return members
