# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard becomes an engine, and keeps the record of its starts and of ends on request."""

from __future__ import annotations

import json
import os
import pathlib
import pwd
import resource
import signal
import subprocess
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import paths as host_paths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import state as guard_state
from ansible_collections.inference.fleet.tests.unit.engines import guard_place, small_node

SHOW = (
    "import json, os, resource, signal; print(json.dumps({'environ': dict(os.environ), 'cwd': os.getcwd(), "
    "'cpus': sorted(os.sched_getaffinity(0)), 'nofile': resource.getrlimit(resource.RLIMIT_NOFILE), "
    "'pid': os.getpid(), 'input': os.readlink('/proc/self/fd/0'), "
    "'ignored': open('/proc/self/status').read().split('SigIgn:')[1].split()[0], "
    "'fds': sorted(os.listdir('/proc/self/fd'))[:-1]}))"
)


def test_the_engine_finds_what_the_plan_says_and_nothing_that_leaks(place):
    entry = place.node.entry("server-0")
    entry = small_node.rehash(
        entry,
        command=[*small_node.python_command("-c", SHOW)],
        environment={"LANG": "de_DE.UTF-8", "X": "1"},
        cpus=str(min(os.sched_getaffinity(0))),
    )
    place.write(entry, HF_TOKEN="hf_secret")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = time.time()
    try:
        leaking = {"LEAK": "1", "TERM": "xterm", "SUPERVISOR_ENABLED": "1", "LD_PRELOAD": ""}
        run = place.execute(place.command(entry), env=leaking, stdin=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    shown = json.loads(run.stdout)
    user = pwd.getpwuid(os.getuid())
    assert shown["environ"] == {
        "PATH": host_paths.PATH, "HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name,
        "LANG": "de_DE.UTF-8", "SPT_NOENV": "1", "X": "1", "HF_TOKEN": "hf_secret",
        "INFERENCE_FLEET_SERVER": "server-0", "INFERENCE_FLEET_ROOT": place.node.root,
        **({"LC_CTYPE": shown["environ"]["LC_CTYPE"]} if "LC_CTYPE" in shown["environ"] else {}),
    }  # fmt: skip
    assert shown["cwd"] == entry["directories"]["work"]
    assert shown["cpus"] == [0]
    assert shown["nofile"][0] == shown["nofile"][1] == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert shown["input"] == os.devnull
    assert shown["fds"] == ["0", "1", "2", "3"]  # the last one keeps the version of the program
    # Python itself ignores SIGPIPE and SIGXFSZ, the engine that it is here too. Signals 32 and 33 are libc's own: who
    # started the tests may have left them ignored, and no program can change that.
    libc = 1 << 31 | 1 << 32
    assert int(shown["ignored"], 16) & ~libc == (1 << signal.SIGPIPE - 1) | (1 << signal.SIGXFSZ - 1)
    state = place.state(entry)
    found = {"hash": entry["hash"], "pid": shown["pid"], "phase": "running", "count": 1}
    assert found.items() <= state.items()
    assert state["starts"] == [state["started"]]
    assert before - 0.001 <= state["started"] <= time.time() + 0.001
    assert "hf_secret" not in json.dumps(state)


def test_the_start_limit_trips_and_its_interval_is_long_enough(place):
    entry = small_node.rehash(place.node.entry("server-0"), command=["true"])
    entry["health"]["budget_s"] = 1500
    # five compilations of 25 minutes, each of which fails at its end
    assert guard_state.start_interval(1500) == 5 * 1505 * 2
    limited = ("--burst", "3", "--restart-delay", "0.05")
    for number in range(1, 4):
        assert (place.run(entry, *limited).returncode, place.state(entry)["count"]) == (0, number)
    run, state = place.run(entry, *limited), place.state(entry)
    reason = "start limit: it started 3 times within 9000 s and ended each time"
    assert (run.returncode, state["phase"], state["reason"], state["count"]) == (194, "failed", reason, 3)
    assert run.stdout.endswith(" guard: %s\n" % reason)
    # starts that are long ago do not count, nor those of the future: the clock was set back
    for starts in ([start - 9001 for start in state["starts"]], [time.time() + 4000] * 5):
        path = pathlib.Path(place.node.paths.server_state("server-0"))
        path.write_text(json.dumps(dict(state, starts=starts)), encoding="utf-8")
        assert (place.run(entry, *limited).returncode, place.state(entry)["count"]) == (0, 4)


def test_it_waits_between_starts(place):
    entry = small_node.rehash(place.node.entry("server-0"), command=["true"])
    for _start in range(2):
        assert place.run(entry, "--restart-delay", "0.4").returncode == 0
    first, second = place.state(entry)["starts"]
    assert second - first >= 0.4
    process = place.started(entry, "restarting", "--restart-delay", "3600")
    assert place.state(entry)["reason"] == "it ended; start 3 of 5 within 36300 s"
    guard_place.end(process, signal.SIGKILL)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"command": ["/no/such/engine"]}, "[Errno 2] No such file or directory"),
    ({"command": ["no-such-engine"]}, "[Errno 2] No such file or directory"),
    ({"cpus": "4000-4003"}, "cpus 4000-4003 are not among this node's"),
    ({"directories": {"work": "/no/such/folder"}}, "[Errno 2] No such file or directory: '/no/such/folder'"),
])  # fmt: skip
def test_what_cannot_be_executed_is_recorded(place, changes, reason):
    entry = small_node.rehash(place.node.entry("server-0"), **changes)
    run, state = place.run(entry, "--restart-delay", "0.01"), place.state(entry)
    assert (run.returncode, state["phase"], state["count"]) == (127, "failed", 1)
    assert state["reason"].startswith("it cannot be executed: " + reason)
    assert state["reason"] in run.stdout


def test_without_its_entry_it_says_so(place):
    run = place.execute(place.command(place.node.entry("server-0"), "--restart-delay", "0.01"))
    assert run.returncode == 1
    assert run.stdout.endswith("server-0.json is missing, or no plan entry; engine_servers writes it\n")


def test_it_sweeps_what_an_earlier_start_left_and_not_itself(place):
    entry = place.node.entry("server-0", "--child", "--away", "--ignore-term")
    first = place.start(entry)
    small_node.wait_until(lambda: len(place.node.running("server-0")) == 2)
    old = place.node.running("server-0")
    guard_place.end(first, signal.SIGKILL)
    (orphan,) = [pid for pid in old if pid != first.pid]
    assert small_node.alive(orphan)
    place.guard = guard_place.altered(place.folder, ("supervise/state.py", "TERM_S = 5.0", "TERM_S = 0.2"))
    second = place.start(entry, "--restart-delay", "0.01")
    small_node.wait_until(lambda: place.state(entry)["count"] == 2)
    assert not small_node.alive(orphan)
    assert second.poll() is None
    small_node.wait_until(lambda: second.pid in place.node.running("server-0"))
    os.killpg(second.pid, signal.SIGKILL)
    second.wait()


def test_a_record_that_cannot_be_written_keeps_no_server_from_starting(place):
    """A full /run, or one that is read-only: the log says why neither status nor the start limit know."""
    (place.folder / "file").write_text("")
    entry = small_node.rehash(place.node.entry("server-0"), command=small_node.python_command("-c", "print('engine')"))
    place.write(entry)
    command = place.command(entry)
    record = str(place.folder / "file" / "servers" / "server-0.json")
    command[command.index("--state") + 1] = record
    done = place.execute(command)
    lines = [line.partition(" guard: ")[2] or line for line in done.stdout.splitlines()]
    assert (done.returncode, lines[-1]) == (0, "engine")
    assert (
        "its record %s cannot be written (Not a directory), so neither status nor the start limit know of this: running"
        % record
    ) in lines


def test_stops_that_were_asked_for_do_not_count(place):
    """More of them than the limit allows; count goes on, since a person wants to know of every start."""
    entry = small_node.rehash(place.node.entry("server-0"), command=["sleep", "900"])
    for number in range(1, 4):
        process = place.running(entry)
        assert (len(place.state(entry)["starts"]), place.state(entry)["count"]) == (1, number)
        state = place.ended(entry, SERVICE_RESULT="success")
        assert (state["starts"], state["count"], state["phase"]) == ([], number, "running")
        assert place.ended(entry) == state
        guard_place.end(process)
    # a server that is up and dies every time is given up, whatever systemd calls its end; so is one that systemd ends
    process = place.running(entry)
    guard_place.end(process)
    place.ended(entry, SERVICE_RESULT="success")
    process = place.running(entry)
    assert len(place.ended(entry, SERVICE_RESULT="oom-kill")["starts"]) == 2
    guard_place.end(process)
    assert place.run(entry, "--burst", "2", "--restart-delay", "0.05").returncode == 194


def test_the_stop_of_a_guard_that_waits_takes_nothing_back(place):
    leader = place.node.entry("leader", health={"path": "/health", "budget_s": 600, "poll_s": 0.1})
    place.write(leader)
    entry = place.node.entry("server-0", start={"after": ["leader"]})
    process = place.started(entry, "waiting for leader")
    before = place.state(entry)
    assert place.ended(entry) == before
    guard_place.end(process, signal.SIGKILL)
    pathlib.Path(place.node.paths.server_state("server-0")).write_text("{", encoding="utf-8")
    assert place.ended(entry) == {}
