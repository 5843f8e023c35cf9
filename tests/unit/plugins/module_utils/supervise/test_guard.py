# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard, run as a service manager runs it: alone, from a copy."""

from __future__ import annotations

import ast
import errno
import importlib.util
import io
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.node import processes
from ansible_collections.inference.fleet.plugins.module_utils.supervise import guard

_spec = importlib.util.spec_from_file_location(
    "small_node_of_guard", pathlib.Path(__file__).parents[3] / "engines" / "small_node.py"
)
small_node = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(small_node)

SHOW = (
    "import json, os, resource, signal; print(json.dumps({'environ': dict(os.environ), 'cwd': os.getcwd(), "
    "'cpus': sorted(os.sched_getaffinity(0)), 'nofile': resource.getrlimit(resource.RLIMIT_NOFILE), "
    "'pid': os.getpid(), 'input': os.readlink('/proc/self/fd/0'), "
    "'ignored': open('/proc/self/status').read().split('SigIgn:')[1].split()[0], "
    "'fds': sorted(os.listdir('/proc/self/fd'))[:-1]}))"
)


@pytest.fixture(scope="module", autouse=True)
def watchdog(tmp_path_factory):
    with small_node.watched(tmp_path_factory.getbasetemp()):
        yield


class Place:
    """A root with the guard's copy, where entries are run by it."""

    def __init__(self, folder):
        self.node = small_node.SmallNode(folder / "r")
        self.folder = folder
        self.guard = folder / "guard.py"
        self.guard.write_bytes(pathlib.Path(guard.__file__).read_bytes())

    def write(self, entry, **secrets):
        os.makedirs(entry["directories"]["work"], exist_ok=True)
        (self.folder / (entry["name"] + ".json")).write_text(json.dumps(entry), encoding="utf-8")
        (self.folder / "secrets.json").write_text(json.dumps(secrets), encoding="utf-8")

    def command(self, entry, *options):
        return [
            *(sys.executable, "-I", str(self.guard), "run", str(self.folder / (entry["name"] + ".json"))),
            *("--state", self.node.paths.server_state(entry["name"])),
            *("--secrets", str(self.folder / "secrets.json"), "--root", self.node.root, *options),
        ]

    def run(self, entry, *options, **kwargs):
        self.write(entry)
        return subprocess.run(self.command(entry, *options), capture_output=True, text=True, timeout=300, check=False,
                              **kwargs)  # fmt: skip

    def start(self, entry, *options):
        self.write(entry)
        return subprocess.Popen(self.command(entry, *options), start_new_session=True)

    def state(self, entry):
        return guard.read_json(self.node.paths.server_state(entry["name"])) or {}


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    yield place
    place.node.end()


def test_it_imports_nothing_of_the_collection():
    tree = ast.parse(pathlib.Path(guard.__file__).read_text(encoding="utf-8"))
    modules = set()
    for found in ast.walk(tree):
        if isinstance(found, ast.Import):
            modules.update(alias.name for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            modules.add(found.module)
    assert {module.split(".")[0] for module in modules} <= set(sys.stdlib_module_names) | {"__future__"}


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
        run = subprocess.run(
            place.command(entry),
            env={"LEAK": "1", "TERM": "xterm", "SUPERVISOR_ENABLED": "1", "LD_PRELOAD": ""},
            stdin=subprocess.PIPE,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    shown = json.loads(run.stdout)
    user = guard.user_of_process()
    assert shown["environ"] == {
        "PATH": guard.PATH,
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "LANG": "de_DE.UTF-8",
        "SPT_NOENV": "1",
        "X": "1",
        "HF_TOKEN": "hf_secret",
        "INFERENCE_FLEET_SERVER": "server-0",
        "INFERENCE_FLEET_ROOT": place.node.root,
        **({"LC_CTYPE": shown["environ"]["LC_CTYPE"]} if "LC_CTYPE" in shown["environ"] else {}),
    }
    assert shown["cwd"] == entry["directories"]["work"]
    assert shown["cpus"] == [0]
    assert shown["nofile"][0] == shown["nofile"][1] == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert shown["input"] == os.devnull
    assert shown["fds"] == ["0", "1", "2"]
    # Python itself ignores SIGPIPE and SIGXFSZ, the engine that it is here too. Signals 32 and 33 are libc's own: who
    # started the tests may have left them ignored, and no program can change that.
    libc = 1 << 31 | 1 << 32
    assert int(shown["ignored"], 16) & ~libc == (1 << signal.SIGPIPE - 1) | (1 << signal.SIGXFSZ - 1)
    state = place.state(entry)
    assert (state["name"], state["hash"], state["pid"], state["phase"], state["count"]) == (
        "server-0",
        entry["hash"],
        shown["pid"],
        "running",
        1,
    )
    assert state["starts"] == [state["started"]]
    assert before - 0.001 <= state["started"] <= time.time() + 0.001
    assert "hf_secret" not in json.dumps(state)


def test_the_start_limit_trips_and_its_interval_is_long_enough(place):
    entry = small_node.rehash(place.node.entry("server-0"), command=["true"])
    entry["health"]["budget_s"] = 1500
    assert guard.start_interval(1500) == 5 * 1505 * 2
    # five compilations of 25 minutes, each of which fails at its end
    assert guard.start_interval(1500) > 5 * 1500
    for number in range(1, 4):
        assert place.run(entry, "--burst", "3", "--restart-delay", "0.05").returncode == 0
        assert place.state(entry)["count"] == number
    run = place.run(entry, "--burst", "3", "--restart-delay", "0.05")
    reason = "start limit: it started 3 times within 9000 s and ended each time"
    assert (run.returncode, place.state(entry)["phase"], place.state(entry)["reason"]) == (194, "failed", reason)
    assert run.stdout.endswith(" guard: %s\n" % reason)
    assert place.state(entry)["count"] == 3
    # starts that are long ago do not count
    state = place.state(entry)
    state["starts"] = [start - 9001 for start in state["starts"]]
    pathlib.Path(place.node.paths.server_state("server-0")).write_text(json.dumps(state), encoding="utf-8")
    assert place.run(entry, "--burst", "3", "--restart-delay", "0.05").returncode == 0
    assert place.state(entry)["count"] == 4


def ended(place, entry, **environment):
    """What a unit's ExecStop does; the record after it."""
    argv = [sys.executable, "-I", str(place.guard), "end", str(place.folder / (entry["name"] + ".json")), "--root",
            place.node.root, "--state", place.node.paths.server_state(entry["name"])]  # fmt: skip
    subprocess.run(argv, env={"PATH": guard.PATH, **environment}, timeout=300, check=True)
    return place.state(entry)


def running(place, entry):
    """The engine of the entry, started and recorded."""
    process = place.start(entry, "--burst", "2", "--restart-delay", "0.05")
    expected = {"phase": "running", "pid": process.pid}
    small_node.wait_until(lambda: expected.items() <= place.state(entry).items())
    return process


def test_stops_that_were_asked_for_do_not_count(place):
    """More of them than the limit allows; count goes on, since a person wants to know of every start."""
    entry = place.node.entry("server-0")
    for number in range(1, 5):
        process = running(place, entry)
        assert (len(place.state(entry)["starts"]), place.state(entry)["count"]) == (1, number)
        state = ended(place, entry, SERVICE_RESULT="success")
        assert (state["starts"], state["count"], state["phase"]) == ([], number, "running")
        assert ended(place, entry) == state
        process.terminate()
        process.wait(60)
    # a server that is up and dies every time is given up, whatever systemd calls its end
    for _start in range(2):
        process = running(place, entry)
        process.terminate()
        process.wait(60)
        ended(place, entry, SERVICE_RESULT="success")
    assert place.run(entry, "--burst", "2", "--restart-delay", "0.05").returncode == 194


def test_systemd_ending_an_engine_itself_does_count(place):
    entry = place.node.entry("server-0")
    process = running(place, entry)
    assert len(ended(place, entry, SERVICE_RESULT="oom-kill")["starts"]) == 1
    process.terminate()
    process.wait(60)


def test_the_stop_of_a_guard_that_waits_takes_nothing_back(place):
    leader = place.node.entry("leader", health={"path": "/health", "budget_s": 600, "poll_s": 0.1})
    place.write(leader)
    entry = place.node.entry("server-0", start={"after": ["leader"]})
    process = place.start(entry)
    small_node.wait_until(lambda: place.state(entry).get("phase") == "waiting for leader")
    before = place.state(entry)
    assert ended(place, entry) == before
    process.kill()
    process.wait(60)
    pathlib.Path(place.node.paths.server_state("server-0")).write_text("{", encoding="utf-8")
    assert ended(place, entry) == {}


def test_it_waits_between_starts(place):
    entry = small_node.rehash(place.node.entry("server-0"), command=["true"])
    for _start in range(2):
        assert place.run(entry, "--restart-delay", "0.4").returncode == 0
    first, second = place.state(entry)["starts"]
    assert second - first >= 0.4
    process = place.start(entry, "--restart-delay", "3600")
    small_node.wait_until(lambda: place.state(entry)["phase"] == "restarting")
    assert place.state(entry)["reason"] == "it ended; start 3 of 5 within 36300 s"
    process.kill()
    process.wait()


def test_what_cannot_be_executed_is_recorded(place):
    cases = [
        ({"command": ["/no/such/engine"]}, "it cannot be executed: [Errno 2] No such file or directory"),
        ({"command": ["no-such-engine"]}, "it cannot be executed: there is no 'no-such-engine' in " + guard.PATH),
        ({"cpus": "4000-4003"}, "it cannot be executed: cpus 4000-4003 are not among this node's"),
        ({"directories": {"work": "/no/such/folder"}}, "it cannot be executed: [Errno 2] No such file or directory: "
                                                       "'/no/such/folder'"),
    ]  # fmt: skip
    for number, (changes, reason) in enumerate(cases):
        entry = small_node.rehash(place.node.entry("server-%d" % number), **changes)
        os.makedirs(place.node.paths.directories(entry["name"])["work"], exist_ok=True)
        (place.folder / (entry["name"] + ".json")).write_text(json.dumps(entry), encoding="utf-8")
        run = subprocess.run(
            place.command(entry, "--restart-delay", "0.01"), capture_output=True, text=True, timeout=300, check=False
        )
        state = place.state(entry)
        assert (run.returncode, state["phase"], state["count"]) == (127, "failed", 1)
        assert state["reason"].startswith(reason)
        assert state["reason"] in run.stdout


def test_without_its_entry_it_says_so(place):
    entry = place.node.entry("server-0")
    run = subprocess.run(
        place.command(entry, "--restart-delay", "0.01"), capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 1
    assert run.stdout.endswith("server-0.json is missing or no JSON; engine_servers writes it\n")


def test_it_sweeps_what_an_earlier_start_left_and_not_itself(place):
    entry = place.node.entry("server-0", "--child", "--away", "--ignore-term")
    first = place.start(entry)
    old = small_node.wait_until(lambda: _two(place.node.running("server-0")))
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    (orphan,) = [pid for pid in old if pid != first.pid]
    assert small_node.alive(orphan)
    place.guard.write_text(place.guard.read_text(encoding="utf-8").replace("TERM_S = 5.0", "TERM_S = 0.2"), "utf-8")
    second = place.start(entry, "--restart-delay", "0.01")
    small_node.wait_until(lambda: place.state(entry)["count"] == 2)
    assert not small_node.alive(orphan)
    assert second.poll() is None
    small_node.wait_until(lambda: second.pid in place.node.running("server-0"))
    os.killpg(second.pid, signal.SIGKILL)
    second.wait()


def _two(found):
    return found if len(found) == 2 else None


def test_a_guard_that_waits_can_be_found_and_gives_up_after_the_leaders_budget(place):
    leader = place.node.entry("leader", health={"path": "/health", "budget_s": 600, "poll_s": 0.1})
    place.write(leader)
    follower = place.node.entry("server-0", start={"after": ["leader"]})
    process = place.start(follower)
    small_node.wait_until(lambda: place.state(follower).get("phase") == "waiting for leader")
    assert place.node.running("server-0") == [process.pid]
    assert process.poll() is None
    place.write(small_node.rehash(leader, health=dict(leader["health"], budget_s=0.1)))
    assert process.wait(60) == 1
    # waiting is no start
    assert place.state(follower)["count"] == 0

    server = place.start(leader)
    process = place.start(follower)
    small_node.wait_until(lambda: place.state(follower).get("phase") == "running")
    assert place.state(follower)["started"] > place.state(leader)["started"]
    for one in (server, process):
        one.terminate()
        one.wait(60)


def test_a_leader_that_is_not_deployed_or_has_no_port(place):
    follower = place.node.entry("server-0", start={"after": ["leader"]})
    process = place.start(follower)
    small_node.wait_until(lambda: place.state(follower).get("phase") == "waiting for leader")
    assert place.state(follower)["reason"] == "leader is not deployed on this node"
    process.kill()
    process.wait()
    worker = small_node.rehash(
        place.node.entry("leader"), port=None, role="decode", command=["sleep", "900"],
        health={"path": "/health", "budget_s": 60, "poll_s": 0.1},
    )  # fmt: skip
    follower = small_node.rehash(follower, command=["true"])
    server = place.start(worker)
    assert place.run(follower).returncode == 0
    assert place.state(follower)["count"] == 1
    server.kill()
    server.wait()


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("looks", [0, 20])
def test_a_process_in_the_middle_of_execve_is_found(tmp_path, monkeypatch, looks, done):
    """It shows neither variables nor arguments then; done: execve ends after the last look in vain at the first."""
    seen, real = [], guard._shown
    marks = {guard.MARKER_SERVER: "server-0", guard.MARKER_ROOT: str(tmp_path)}
    child = subprocess.Popen(["sleep", "900"], env=marks)

    def shown(pid, name):
        seen.extend([name] if pid == child.pid else [])
        return b"" if pid == child.pid and len(seen) <= 2 * looks - done else real(pid, name)

    try:
        small_node.wait_until(lambda: real(child.pid, "cmdline").startswith(b"sleep"))
        monkeypatch.setattr(guard, "_shown", shown)
        assert guard.marked_processes(str(tmp_path)) == {"server-0": [child.pid]}
        assert seen == ["environ", "cmdline"] * looks + ["environ"]
    finally:
        child.kill()
        child.wait()


def test_a_process_that_shows_nothing_at_all_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr(guard, "_shown", lambda pid, name: b"")
    looks = []
    monkeypatch.setattr(guard.time, "sleep", looks.append)
    assert guard.environment_of(os.getpid()) == {}
    assert looks == [guard.LOOK_S] * guard.LOOKS
    monkeypatch.setattr(guard, "_shown", lambda pid, name: b"" if name == "environ" else b"sleep")
    assert guard.environment_of(os.getpid()) == {}
    assert len(looks) == guard.LOOKS + guard.LOOKS_WITH_ARGUMENTS - 1
    ended = subprocess.Popen(["true"])
    small_node.wait_until(lambda: not small_node.alive(ended.pid))
    looks.clear()
    assert guard.environment_of(ended.pid) == {} and looks == []
    ended.wait()


def test_the_state_of_another_server_or_a_broken_one_is_not_believed(place):
    entry = small_node.rehash(place.node.entry("server-0"), command=["true"])
    path = pathlib.Path(place.node.paths.server_state("server-0"))
    path.parent.mkdir(parents=True)
    for text in ('{"name": "server-1", "starts": [1, 2], "count": 9}', "{", "[]"):
        path.write_text(text, encoding="utf-8")
        assert place.run(entry).returncode == 0
        assert place.state(entry)["count"] == 1
    future = {"name": "server-0", "starts": [time.time() + 4000] * 5, "count": 5}
    path.write_text(json.dumps(future), encoding="utf-8")
    assert place.run(entry).returncode == 0  # the clock was set back; that is no start limit


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
    assert guard.reap(io.BytesIO(b"".join(events)), sink) == 0
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
               "bound": (follower.pid, guard.process(follower.pid).ticks)}  # fmt: skip
    for name, (pid, ticks) in records.items():
        start = {"after": ["lead"], "restart_with_leader": True} if name == "bound" else {"after": []}
        (servers / (name + ".json")).write_text(json.dumps({"start": start}))
        record = {"phase": "running", "pid": pid, "ticks": ticks, "started": 7.5, "starts": [3.5, 7.5], "count": 2}
        (states / (name + ".json")).write_text(json.dumps(record))

    def starts(kind):
        payload = "processname:x groupname:inference-fleet-%s from_state:STOPPING pid:%d"
        events = [event(kind, payload % (name, ended.pid)) for name in ("lead", "other", "gone")]
        guard.reap(io.BytesIO(b"".join(events)), io.BytesIO(), str(servers), str(states))
        return {name: guard.read_json(str(states / (name + ".json")))["starts"] for name in records}

    assert starts("PROCESS_STATE_EXITED") == {"lead": [3.5, 7.5], "other": [3.5, 7.5], "bound": [3.5]}
    assert starts("PROCESS_STATE_STOPPED") == {"lead": [3.5], "other": [3.5, 7.5], "bound": [3.5]}
    assert follower.wait(60) == -signal.SIGTERM


def test_a_late_reaper_leaves_those_alone_that_follow_the_successor(tmp_path):
    """Each case: the leader's record, when the follower was started, whether it is ended for the end of process 11."""
    entries, states = tmp_path / "entries", tmp_path / "states"
    for folder in (entries, states):
        folder.mkdir()
    (entries / "bound.json").write_text(json.dumps({"start": {"after": ["lead"], "restart_with_leader": True}}))
    follower = os.getpid(), guard.process(os.getpid()).ticks
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
        found = guard.followers("lead", 11, str(entries), str(states))
        assert found == ([(str(states / "bound.json"), *follower)] if ends else []), record


def event(name, payload):
    header = "ver:3.0 server:inference-fleet serial:1 pool:reaper poolserial:1 eventname:%s len:%d\n"
    return (header % (name, len(payload)) + payload).encode()


def _members(group):
    members = []
    for pid in guard.process_table():
        try:
            if os.getpgid(pid) == group:
                members.append(pid)
        except ProcessLookupError:
            continue
    return members


def test_cpu_lists():
    assert guard.parse_cpus("0-3,8") == {0, 1, 2, 3, 8}
    with pytest.raises(ValueError):
        guard.parse_cpus("a")


def test_the_copy_runs_with_another_copy_of_the_same_root(place):
    """Two guards of one server at a time: the later one ends the earlier one, so there are never two engines."""
    leader = place.node.entry("leader", health={"path": "/health", "budget_s": 600, "poll_s": 0.1})
    place.write(leader)
    entry = place.node.entry("server-0", start={"after": ["leader"]})
    first = place.start(entry)
    small_node.wait_until(lambda: place.state(entry).get("phase") == "waiting for leader")
    second = place.start(entry)
    assert first.wait(60) == -signal.SIGTERM
    assert processes.processes_with_marker(place.node.root, "server-0") == [second.pid]
    second.kill()
    second.wait()


def test_a_record_that_cannot_be_written_keeps_no_server_from_starting(place):
    """A full /run, or one that is read-only: the log says why neither status nor the start limit know."""
    (place.folder / "file").write_text("")
    entry = small_node.rehash(place.node.entry("server-0"), command=small_node.python_command("-c", "print('engine')"))
    place.write(entry)
    command = place.command(entry)
    record = str(place.folder / "file" / "servers" / "server-0.json")
    command[command.index("--state") + 1] = record
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    lines = [line.partition(" guard: ")[2] or line for line in done.stdout.splitlines()]
    assert (done.returncode, lines[-1]) == (0, "engine")
    assert (
        "its record %s cannot be written (Not a directory), so neither status nor the start limit know of this: running"
        % record
    ) in lines


@pytest.mark.parametrize("name", ["ENOSPC", "EROFS", "EDQUOT", "EIO"])
def test_a_record_that_fails_half_way_leaves_no_file_behind(tmp_path, monkeypatch, name):
    path = tmp_path / "state.json"
    guard.write_json(str(path), {"old": 1})

    def fail(*unused):
        raise OSError(getattr(errno, name), "no")

    monkeypatch.setattr(guard.os, "rename", fail)
    with pytest.raises(OSError, match="no"):
        guard.write_json(str(path), {"new": 1})
    assert os.listdir(tmp_path) == ["state.json"]
    assert guard.read_json(str(path)) == {"old": 1}


def test_a_follower_asks_its_leader_with_the_leaders_key(place):
    entry = place.node.entry("leader", "--guards-health", "--wants-key", "sk-leader")
    secrets = place.folder / "leader-secrets.json"
    secrets.write_text(json.dumps({"VLLM_API_KEY": "sk-leader"}), encoding="utf-8")
    engine = subprocess.Popen(entry["command"], start_new_session=True)
    try:
        small_node.wait_until(lambda: guard.is_healthy(entry, "", str(secrets)), what="the leader")
        assert not guard.is_healthy(entry, "")
        for broken in ('{"VLLM_API_KEY": "a\\nb"}', '{"VLLM_API_KEY": "\\u00e9"}', "[]", "no JSON"):
            secrets.write_text(broken, encoding="utf-8")
            assert not guard.is_healthy(entry, "", str(secrets))
    finally:
        engine.kill()
        engine.wait()
