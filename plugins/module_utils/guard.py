# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands between a service manager and an engine, alone: standard library only, nothing of the collection.

    guard.py run ENTRY.json --state STATE.json --secrets SECRETS.json --root ROOT
    guard.py reap

`run` is what a service manager executes. It sweeps what an earlier start of the same server left behind, keeps the
start limit and the start order, records what it does in STATE and becomes the engine (execve: its pid is the engine's).
`reap` is an event listener of supervisord that kills the process group of a program that has ended.

A copy of this file lies on the node; the collection's modules import it for its view of /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import resource
import shutil
import signal
import sys
import tempfile
import time

MARKER_SERVER = "INFERENCE_FLEET_SERVER"
MARKER_ROOT = "INFERENCE_FLEET_ROOT"
PREFIX = "inference-fleet-"
START_LIMIT_EXIT = 194  # the one exit after which a service manager must not start again
BURST = 5  # starts
RESTART_DELAY_S = 5.0
FIRST_DELAY_S = 1.0
TERM_S = 5.0
KILL_S = 5.0
REQUEST_S = 5.0
KEPT_STARTS = 20
PF_KTHREAD = 0x00200000  # include/linux/sched.h
ENDED = ("Z", "X")  # states of processes that only wait to be forgotten
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


# ---- the node's processes, as /proc shows them


class Process:
    """A line of /proc/PID/stat: state (a letter), parent (pid), kernel (a kernel's own thread), ticks (start, in clock
    ticks after boot)."""

    def __init__(self, state, parent, kernel, ticks):
        self.state = state
        self.parent = parent
        self.kernel = kernel
        self.ticks = ticks


def process(pid):
    """The Process with this pid, or None where it is gone. A zombie is a Process whose state is "Z"."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            text = stream.read()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # the name before it may hold blanks and brackets
    if len(fields) < 20:
        return None
    return Process(fields[0].decode("ascii"), int(fields[1]), bool(int(fields[6]) & PF_KTHREAD), int(fields[19]))


def process_table():
    """{pid: Process} of all processes that live; zombies and the kernel's own threads are not among them."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            found = process(int(entry))
            if found is not None and found.state not in ENDED and not found.kernel:
                table[int(entry)] = found
    return table


def environment_of(pid):
    """{bytes: bytes} that the process was executed with; empty where it is gone or not ours to read."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as stream:
            text = stream.read()
    except OSError:
        return {}
    return dict(item.split(b"=", 1) for item in text.split(b"\0") if b"=" in item)


def markers_of(pid):
    """(root, server) from the environment of a process that a guard started, else None. The system's root is "/"."""
    environment = environment_of(pid)
    server = environment.get(MARKER_SERVER.encode())
    root = environment.get(MARKER_ROOT.encode())
    return None if server is None or root is None else (os.fsdecode(root), os.fsdecode(server))


def marked_processes(root):
    """{server: sorted pids} of all that runs of this root's servers: the marked processes and all below them.

    What an engine started with an emptied environment is found through its parent. This process and its ancestors are
    never in it.
    """
    table = process_table()
    spared = set()
    pid = os.getpid()
    while pid in table and pid not in spared:
        spared.add(pid)
        pid = table[pid].parent
    server_of = {}
    for pid in table:
        markers = markers_of(pid)
        if markers is not None and markers[0] == (root or "/"):
            server_of[pid] = markers[1]
    children = {}
    for pid, found in table.items():
        children.setdefault(found.parent, []).append(pid)
    waiting = list(server_of)
    while waiting:
        parent = waiting.pop()
        for child in children.get(parent, ()):
            if child not in server_of:
                server_of[child] = server_of[parent]
                waiting.append(child)
    servers = {}
    for pid in sorted(set(server_of) - spared):
        servers.setdefault(server_of[pid], []).append(pid)
    return servers


def terminate(find, term_s, kill_s):
    """End what `find` (a function that gives pids) finds: TERM, up to term_s seconds, KILL, up to kill_s seconds.

    It looks again and again, so a process that is forked meanwhile is ended as well. Returns the pids that survived.
    """
    for sign, seconds in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        signalled = set()
        end = time.monotonic() + seconds
        pause = 0.02
        while True:
            alive = set(find())
            if not alive:
                return []
            for pid in alive - signalled:
                signalled.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, sign)
            if time.monotonic() >= end:
                break
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
    return sorted(find())


# ---- what the guard remembers


class State:
    """The server's state file.

    {name, hash, user, pid, ticks, phase, since, started, starts, count, reason}: pid and ticks name the process that
    wrote it; phase is "restarting", "waiting for NAME", "running" or "failed", since when: epoch seconds; started: when
    the engine was executed; starts: the latest of such times; count: how many there were since the module's own start.
    """

    def __init__(self, path, name, entry_hash):
        self.path = path
        self.name = name
        self.hash = entry_hash
        kept = read_json(path)
        kept = kept if isinstance(kept, dict) and kept.get("name") == name else {}
        now = time.time()
        self.starts = [start for start in kept.get("starts", []) if start < now + 60]  # a clock that was set back
        self.count = kept.get("count", len(self.starts))

    def recent(self, seconds):
        """How many starts lie in the last `seconds`."""
        return sum(1 for start in self.starts if start > time.time() - seconds)

    def count_start(self):
        self.starts = [*self.starts, round(time.time(), 3)][-KEPT_STARTS:]
        self.count += 1

    def write(self, phase, reason=None):
        """Record the phase. Raises OSError."""
        now = round(time.time(), 3)
        state = {
            "name": self.name,
            "hash": self.hash,
            "user": user_of_process().pw_name,
            "pid": os.getpid(),
            "ticks": process(os.getpid()).ticks,
            "phase": phase,
            "since": now,
            "started": self.starts[-1] if phase == "running" and self.starts else None,
            "starts": self.starts,
            "count": self.count,
            "reason": reason,
        }
        folder = os.path.dirname(self.path)
        os.makedirs(folder, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".%s." % os.path.basename(self.path), dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(state, stream)
        os.chmod(temporary, 0o644)
        os.rename(temporary, self.path)


def read_json(path):
    """The JSON value in the file, None where it is missing or broken."""
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return None


def user_of_process():
    """The passwd entry of the user that this process runs as; one made of the number where there is none."""
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        return pwd.struct_passwd((str(os.getuid()), "x", os.getuid(), os.getgid(), "", "/", "/bin/sh"))


def say(text):
    """A line in the server's log."""
    sys.stdout.write("%s guard: %s\n" % (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), text))
    sys.stdout.flush()


# ---- run


def start_interval(budget_s, burst=BURST, restart_delay_s=RESTART_DELAY_S):
    """Seconds within which `burst` starts are one too few to go on.

    Twice as long as that many whole start budgets, so that it also trips on a server that dies after 25 minutes of
    compiling, every time.
    """
    return burst * (budget_s + restart_delay_s) * 2


def run(options):
    """Become the engine of the entry; the exit status where that fails."""
    entry = read_json(options.entry)
    if entry is None:
        say("%s is missing or no JSON; engine_servers writes it" % options.entry)
        time.sleep(options.restart_delay)
        return 1
    name = entry["name"]
    enter_clean_environment(name, options.root)
    state = State(options.state, name, entry["hash"])

    survivors = terminate(lambda: marked_processes(options.root).get(name, ()), TERM_S, KILL_S)
    if survivors:
        reason = "an earlier start left processes that cannot be killed: %s" % ", ".join(map(str, survivors))
        return give_up(state, reason, 1, options.restart_delay)

    budget = entry["health"]["budget_s"]
    interval = start_interval(budget, options.burst, options.restart_delay)
    recent = state.recent(interval)
    if recent >= options.burst:
        reason = "start limit: it started %d times within %d s and ended each time" % (recent, interval)
        return give_up(state, reason, START_LIMIT_EXIT, 0)
    if recent:
        state.write("restarting", "it ended; start %d of %d within %d s" % (recent + 1, options.burst, interval))
        time.sleep(min(FIRST_DELAY_S, options.restart_delay) if recent == 1 else options.restart_delay)

    for leader in entry["start"]["after"]:
        if not wait_for(leader, options, state):
            return 1

    state.count_start()
    try:
        secrets = read_json(options.secrets) or {}
        environment = engine_environment(entry, secrets, options.root)
        argv = [item.encode("utf-8", "surrogateescape") for item in entry["launch"]]
        program = find_program(entry["launch"][0], environment["PATH"])
        prepare_process(entry)
        state.write("running")
        os.execve(program, argv, {os.fsencode(key): value.encode("utf-8", "surrogateescape")
                                  for key, value in environment.items()})  # fmt: skip
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        return give_up(state, "it cannot be executed: %s" % error, 127, options.restart_delay)


def give_up(state, reason, status, delay):
    say(reason)
    state.write("failed", reason)
    time.sleep(delay)
    return status


def enter_clean_environment(name, root):
    """Execute this script once more with the two markers and nothing else, unless that has happened.

    The markers make a guard that waits as findable as an engine; the service manager's own variables end here.
    """
    clean = {"PATH": PATH, "LANG": "C.UTF-8", MARKER_SERVER: name, MARKER_ROOT: root or "/"}
    if all(os.environ.get(key) == value for key, value in clean.items()):
        return
    os.execve(sys.executable, [sys.executable, "-I", os.path.abspath(__file__), *sys.argv[1:]], clean)


def wait_for(leader, options, state):
    """Wait until the server `leader` answers its health path with 200. False when its start budget is over."""
    began = time.monotonic()
    told = False
    while True:
        entry = read_json(os.path.join(os.path.dirname(options.entry), leader + ".json"))
        health = (entry or {}).get("health", {})
        if entry is not None and is_healthy(entry, os.path.join(os.path.dirname(options.state), leader + ".json")):
            return True
        if not told:
            told = True
            say("waiting for %s" % leader)
            state.write("waiting for " + leader, None if entry else "%s is not deployed on this node" % leader)
        budget = health.get("budget_s", 300)
        if time.monotonic() - began > budget:
            say("%s was not healthy within its %d s" % (leader, budget))
            return False
        time.sleep(health.get("poll_s", 2))


def is_healthy(entry, state_path):
    """Whether the server answers 200 on its health path; one without any port is healthy when its engine runs."""
    port = entry["port"] or entry["ports"].get("system")
    if port is None:
        state = read_json(state_path) or {}
        found = process(state.get("pid") or 0)
        return state.get("phase") == "running" and found is not None and found.ticks == state.get("ticks")
    import http.client  # here, since it takes 30 ms that only a follower's start needs

    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(entry["bind"], entry["bind"])
    connection = http.client.HTTPConnection(host, port, timeout=REQUEST_S)
    try:
        connection.request("GET", entry["health"]["path"])
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def engine_environment(entry, secrets, root):
    """{str: str} for the engine: the user's basics, the entry's variables, its secrets and the markers. No more."""
    user = user_of_process()
    environment = {
        "PATH": PATH,
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "LANG": "C.UTF-8",
        # setproctitle, which engines use, would wipe /proc/PID/environ and the markers with it
        "SPT_NOENV": "1",
    }
    environment.update(entry["environment"])
    environment.update(secrets)
    environment[MARKER_SERVER] = entry["name"]
    environment[MARKER_ROOT] = root or "/"
    return environment


def find_program(program, path):
    """The program's path. Raises FileNotFoundError."""
    found = program if "/" in program else shutil.which(program, path=path)
    if found is None:
        raise FileNotFoundError("there is no %r in %s" % (program, path))
    return found


def parse_cpus(text):
    """{0, 1, 2, 3, 8} of "0-3,8". ValueError otherwise."""
    cpus = set()
    for item in text.split(","):
        first, _dash, last = item.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def prepare_process(entry):
    """Cores, limits, work directory, input and signals as an engine should find them. Raises OSError, ValueError."""
    if entry["cpus"]:
        try:
            os.sched_setaffinity(0, parse_cpus(entry["cpus"]))
        except OSError as error:
            raise OSError("cpus %s are not among this node's (%s)" % (entry["cpus"], error)) from error
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (hard, hard))
    os.umask(0o022)
    if entry["directories"].get("work"):
        os.chdir(entry["directories"]["work"])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null > 0:
        os.close(null)
    # Python ignores SIGPIPE, a shell's background job SIGINT, and what is ignored stays so through execve
    for sign in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(sign, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


# ---- reap


def reap(source, sink):
    """Serve supervisord's event listener protocol until the input ends: kill the group of each program that ended."""
    while True:
        sink.write(b"READY\n")
        sink.flush()
        line = source.readline()
        if not line:
            return 0
        headers = dict(item.split(b":", 1) for item in line.split())
        payload = source.read(int(headers[b"len"]))
        event = dict(item.split(b":", 1) for item in payload.split() if b":" in item)
        pid = int(event.get(b"pid", b"0"))
        if pid > 1 and event.get(b"groupname", b"").startswith(PREFIX.encode()):
            reap_group(pid)
        sink.write(b"RESULT 2\nOK")
        sink.flush()


def reap_group(pid):
    """Kill what the ended process `pid` left in its process group."""
    if process(pid) is not None:
        return  # the number belongs to another process by now
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def main(arguments):
    parser = argparse.ArgumentParser(prog="guard.py")
    commands = parser.add_subparsers(dest="action", required=True)
    runner = commands.add_parser("run", help="become the engine of an entry")
    runner.add_argument("entry")
    runner.add_argument("--state", required=True)
    runner.add_argument("--secrets", required=True)
    runner.add_argument("--root", required=True)
    runner.add_argument("--burst", type=int, default=BURST)
    runner.add_argument("--restart-delay", type=float, default=RESTART_DELAY_S)
    commands.add_parser("reap", help="event listener of supervisord")
    options = parser.parse_args(arguments)
    if options.action == "reap":
        return reap(sys.stdin.buffer, sys.stdout.buffer)
    try:
        return run(options)
    except Exception as error:  # whatever it is: into the server's log, and not again at once
        say("%s: %s" % (type(error).__name__, error))
        time.sleep(options.restart_delay)
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
