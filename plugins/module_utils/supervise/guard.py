# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands between a service manager and an engine, alone: standard library only, nothing of the collection.

    guard.py run ENTRY.json --state STATE.json --secrets SECRETS.json --root ROOT
    guard.py end ENTRY.json --root ROOT [--state STATE.json] [--remove]
    guard.py folders ENTRY.json [--user NAME]
    guard.py reap [--servers FOLDER --state FOLDER]

`run` is what a service manager executes. It sweeps what an earlier start of the same server left behind, keeps the
start limit and the start order, records what it does in STATE and becomes the engine (execve: its pid is the engine's).
An engine in a container is no child of this: the guard becomes the engine's client (docker run, podman run), whose end
the service manager sees. `end` stops the container (--remove: nothing is left of it) when the client has to go; with
--state, it takes back the start of an engine that a service manager is about to end as it was asked to.
It also keeps the compiled artifacts of engines that have them: one server compiles, the others load what it made.
`folders` makes the server's directories where they are gone; a service manager runs it with the right to do so.
`reap` is an event listener of supervisord that kills the process group of a program that has ended, ends those
servers that restart with it, and takes back the starts of those that were ended on request.

A copy of this file lies on the node, with container_engine.py beside it; the collection's modules import it for its
view of /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pwd
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time

MARKER_SERVER = "INFERENCE_FLEET_SERVER"
MARKER_ROOT = "INFERENCE_FLEET_ROOT"
API_KEY = "VLLM_API_KEY"  # the secret of a server that its clients send as a bearer token
PREFIX = "inference-fleet-"
START_LIMIT_EXIT = 194  # the one exit after which a service manager must not start again
BURST = 5  # starts
RESTART_DELAY_S = 5.0
FIRST_DELAY_S = 1.0
TERM_S = 5.0
KILL_S = 5.0
FOLLOWER_S = 15.0
REQUEST_S = 5.0
ENGINE_S = 120.0  # how long a container engine may take to come up again
ENGINE_POLL_S = 1.0
END_CALL_S = 8  # of each call of `end --remove`: two of them, TERM and KILL fit into the unit's TimeoutStopSec
KEPT_STARTS = 20
LOOKS = 50  # at a process that shows no variables, LOOK_S apart, since it may be in the middle of execve
LOOKS_WITH_ARGUMENTS = 5  # the same where it does show arguments: execve may have come to its end in between
LOOK_S = 0.001
PF_KTHREAD = 0x00200000  # include/linux/sched.h
ENDED = ("Z", "X")  # states of processes that only wait to be forgotten
ARTIFACT_VARIABLE = "NEURON_COMPILED_ARTIFACTS"
ARTIFACT_RECORD = "inference-fleet.json"
ARTIFACT_SCHEMA = 1
ARTIFACT_IDENTITY = ("versions", "weights", "machine")  # what an archive carries of it
# Distributions that a compilation depends on, as far as an environment has them.
PACKAGES = ("vllm", "vllm-neuron", "neuronx-cc", "neuronx-distributed-inference", "libneuronxla", "torch-neuronx")
WEIGHT_MANIFEST = ".inference-fleet-manifest.json"  # weight_manifest.py writes it beside weights
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SHARD = ".safetensors"
ENCODINGS_VARIABLE = "TIKTOKEN_ENCODINGS_BASE"
VOCABULARY = ".tiktoken"
DIGITS = 12  # of a digest, for a person
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
    text, whole = b"", 0
    try:
        for _look in range(LOOKS):
            text = _shown(pid, "environ")
            if text or not _is_program(pid):
                break
            whole += bool(_shown(pid, "cmdline"))
            if whole == LOOKS_WITH_ARGUMENTS:
                break
            time.sleep(LOOK_S)
    except OSError:
        return {}
    return dict(item.split(b"=", 1) for item in text.split(b"\0") if b"=" in item)


def _is_program(pid):
    found = process(pid)
    return found is not None and found.state not in ENDED and not found.kernel


def _shown(pid, name):
    with open("/proc/%d/%s" % (pid, name), "rb") as stream:
        return stream.read()


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

    {name, hash, user, pid, ticks, phase, since, started, starts, count, reason, artifact, weights, encodings}: pid and
    ticks name the process that wrote it; phase is "restarting", "waiting for NAME", "running" or "failed", since when:
    epoch seconds; started: when the engine was executed; starts: the latest of such times, without those of engines
    that were ended on request; count: how many there were in all since the module's own start; artifact: "compiles" or
    "loads" for a server with a compiled artifact, else null; weights: {folder: weights_note()} and encodings:
    encodings_note() as they were when the engine was executed, null before.
    """

    def __init__(self, path, name, entry_hash):
        self.path = path
        self.name = name
        self.hash = entry_hash
        kept = read_json(path)
        kept = kept if isinstance(kept, dict) and kept.get("name") == name else {}
        now = time.time()
        self.artifact = None
        self.weights = None
        self.encodings = None
        self.starts = [start for start in kept.get("starts", []) if start < now + 60]  # a clock that was set back
        self.count = kept.get("count", len(self.starts))

    def recent(self, seconds):
        """How many starts lie in the last `seconds`."""
        return sum(1 for start in self.starts if start > time.time() - seconds)

    def count_start(self):
        self.starts = [*self.starts, round(time.time(), 3)][-KEPT_STARTS:]
        self.count += 1

    def write(self, phase, reason=None):
        """Record the phase. Where that fails, the log says so, and the server goes on: one that serves without a record
        is better than none."""
        try:
            self._write(phase, reason)
        except OSError as error:
            say("its record %s cannot be written (%s), so neither status nor the start limit know of this: %s"
                % (self.path, error.strerror, phase))  # fmt: skip

    def _write(self, phase, reason):
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
            "artifact": self.artifact,
            "weights": self.weights,
            "encodings": self.encodings,
        }
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with folder_lock(os.path.dirname(self.path)):  # see take_back()
            write_json(self.path, state)


def take_back(state_path, pid):
    """Do not count the start of the engine `pid` any more: it is ended on request. Raises OSError.

    Nothing where the record is of another process, or of a guard that waits, since waiting is no start.
    """
    with folder_lock(os.path.dirname(state_path)):  # else a guard's newer record could be lost
        record = read_json(state_path)
        if isinstance(record, dict) and record.get("phase") == "running" and record.get("pid") == pid:
            kept = [start for start in record.get("starts", ()) if start != record.get("started")]
            write_json(state_path, dict(record, starts=kept))


def read_json(path):
    """The JSON value in the file, None where it is missing or broken."""
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return None


def write_json(path, value):
    """Put the JSON value at `path`, mode 0644; readers see the old file or the new one. Raises OSError."""
    handle, temporary = tempfile.mkstemp(prefix=".%s." % os.path.basename(path), dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(value, stream)
        os.chmod(temporary, 0o644)
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def folder_lock(path):
    """One process at a time looks at what is in a folder and decides; file systems without locks go without."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.ENOSYS):
                raise
        yield
    finally:
        os.close(handle)


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


# ---- containers


def container_engine():
    """The module container_engine, of which a copy lies beside that of this script."""
    import importlib.util  # here, since a process needs none of it

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "container_engine.py")
    spec = importlib.util.spec_from_file_location("container_engine", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def sweep_containers(entry, options, state):
    """Nothing of an earlier start is left with the container engine, and the name is free.

    None, or why this cannot start. It waits for an engine that does not answer: after
    a reboot or its own end it may come later than its servers.
    """
    module = container_engine()
    engine = module.engine_of_entry(entry)
    end = time.monotonic() + ENGINE_S
    while True:
        try:
            left = engine.containers(options.root, entry["name"])
            engine.stop(left, round(TERM_S))
            engine.remove(left)
            holder = engine.holder_of_name(module.container_name(entry["name"], options.root))
            break
        except module.EngineError as error:
            if time.monotonic() > end or error.kind not in ("down", "timeout"):
                return "%s: %s" % (engine.label, error.words)
            state.write("waiting for " + engine.label, error.words)
            time.sleep(ENGINE_POLL_S)
    if holder:
        words = "the name %s belongs to a container that is not of this server (%s)"
        return words % (module.container_name(entry["name"], options.root), holder[0][:12])
    return None


def container_argv(entry):
    """The entry's launch as it is executed: with the hash as a label, and the image by what is on this node.

    Raises FileNotFoundError where the image is not there.
    """
    module = container_engine()
    container, launch = entry["container"], list(entry["launch"])
    try:
        found = module.engine_of_entry(entry).find_image(container["image"], container["digest"])
    except module.EngineError as error:
        raise OSError(error.words) from error
    if found is None:
        named = module.pinned_reference(container["image"], container["digest"])
        raise FileNotFoundError("the image %s is not on this node; a run of the collection fetches it" % named)
    launch[len(launch) - len(entry["command"]) - 1] = found["reference"]
    at = launch.index("run") + 1
    return [*launch[:at], "--label=%s=%s" % (module.LABEL_HASH, entry["hash"]), *launch[at:]]


def client_environment(entry, secrets, root):
    """{str: str} for the client of a container engine.

    What the engine inside gets stands in the entry's launch. Secrets, and values that podman would change, are only
    named there, and the client takes them from here.
    """
    environment = container_engine().engine_of_entry(entry).client_environment()
    named = {name: value for name, value in entry["environment"].items() if "--env=" + name in entry["launch"]}
    environment.update(named)
    environment.update(secrets)
    environment[MARKER_SERVER] = entry["name"]
    environment[MARKER_ROOT] = root or "/"
    return environment


def end(options):
    """Stop the container of an entry, with --remove until nothing is left of it; the exit status.

    With --state it takes the start back where the stop was asked for. Where the engine does not answer, or with
    --remove, its processes are ended as the node's /proc shows them. All of it comes to its end within the time that
    the service manager gives.
    """
    if options.state:
        excuse_request(options.state)
    entry = read_json(options.entry) or {}
    if entry.get("launcher") != "container":
        return 0
    module = container_engine()
    engine = module.engine_of_entry(entry, END_CALL_S)
    problem = None
    if engine is not None:
        try:
            left = engine.containers(options.root, entry["name"])
            if options.remove:
                engine.remove(left)
            else:
                engine.stop(left)
        except module.EngineError as error:
            problem = error.words
    survivors = []
    if entry.get("name") and (options.remove or problem):
        survivors = terminate(lambda: marked_processes(options.root).get(entry["name"], ()), TERM_S, KILL_S)
    if survivors:
        say("processes that cannot be killed: %s" % ", ".join(map(str, survivors)))
    if problem:
        say("%s: %s; the container may be left there" % (engine.label, problem))
    return 1 if problem or survivors else 0


def excuse_request(state_path):
    """In an ExecStop of systemd: take the start back if the stop was asked for.

    systemd runs ExecStop after an engine that ended by itself as well, so this one must still live; and where systemd
    itself ends one, since a worker of it ran out of memory, SERVICE_RESULT says so.
    """
    record = read_json(state_path)
    pid = record.get("pid") if isinstance(record, dict) else None
    found = process(pid or 0)
    lives = found is not None and found.ticks == record.get("ticks") and found.state not in ENDED
    if lives and os.environ.get("SERVICE_RESULT", "success") == "success":
        try:
            take_back(state_path, pid)
        except OSError as error:
            say("this stop will count as a failed start: %s" % error)


# ---- run


def start_interval(budget_s, burst=BURST, restart_delay_s=RESTART_DELAY_S):
    """Seconds within which `burst` starts are one too few to go on.

    Twice as long as that many whole start budgets, so that it also trips on a server that dies after 25 minutes of
    compiling, every time. A start whose engine was ended on request is taken back and counts no more, however often an
    operator, a leader or docker restarts it; see excuse_request() and reap().
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

    if entry["launcher"] == "container":
        problem = sweep_containers(entry, options, state)
        if problem:
            return give_up(state, problem, 1, options.restart_delay)

    budget = entry["health"]["budget_s"]
    interval = start_interval(budget, options.burst, options.restart_delay)
    recent = state.recent(interval)
    if recent >= options.burst:
        reason = "start limit: it started %d times within %d s and ended each time" % (recent, interval)
        return give_up(state, reason, START_LIMIT_EXIT, 0)
    if recent:
        state.write("restarting", "it ended; start %d of %d within %d s" % (recent + 1, options.burst, interval))
        time.sleep(min(FIRST_DELAY_S, options.restart_delay) if recent == 1 else options.restart_delay)

    artifact = artifact_of(entry)
    for leader in entry["start"]["after"]:
        compiles = artifact is not None and leader in compile_cache(entry)["leaders"]
        if not wait_for(leader, options, state, (lambda: is_loadable(artifact, entry)) if compiles else None):
            return 1

    if artifact is not None:
        try:
            state.artifact, begun = take_artifact(artifact, entry, state, options)
        except OSError as error:
            reason = "its compiled artifact %s cannot be prepared: %s" % (artifact, error)
            return give_up(state, reason, 1, options.restart_delay)
        if state.artifact is None:
            return 1

    state.count_start()
    try:
        if artifact is not None:
            watch_artifact(artifact, entry, options, begun)
        secrets = read_json(options.secrets) or {}
        contained = entry["launcher"] == "container"
        environment = (client_environment if contained else engine_environment)(entry, secrets, options.root)
        launch = container_argv(entry) if contained else entry["launch"]
        argv = [item.encode("utf-8", "surrogateescape") for item in launch]
        program = find_program(launch[0], environment["PATH"])
        prepare_process(entry)
        state.weights = {folder: weights_note(folder) for folder in entry.get("weights", ())}
        state.encodings = encodings_note(entry)
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


def wait_for(leader, options, state, needless=None):
    """Wait until the server `leader` answers its health path with 200. False when its start budget is over.

    needless: a function that says whether there is nothing to wait for any more.
    """
    began = time.monotonic()
    told = False
    while True:
        if needless is not None and needless():
            return True
        entry = read_json(os.path.join(os.path.dirname(options.entry), leader + ".json"))
        health = (entry or {}).get("health", {})
        beside = [os.path.join(os.path.dirname(path), leader + ".json") for path in (options.state, options.secrets)]
        if entry is not None and is_healthy(entry, *beside):
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


def is_healthy(entry, state_path, secrets_path=None):
    """Whether the server answers 200 on its health path; one without any port is healthy when its engine runs.

    secrets_path: of the server's secrets, for a health path that asks for its API key.
    """
    port = entry["port"] or entry["ports"].get("system")
    if port is None:
        state = read_json(state_path) or {}
        found = process(state.get("pid") or 0)
        return state.get("phase") == "running" and found is not None and found.ticks == state.get("ticks")
    import http.client  # here, since it takes 30 ms that only a follower's start needs

    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(entry["bind"], entry["bind"])
    connection = http.client.HTTPConnection(host, port, timeout=REQUEST_S)
    try:
        connection.request("GET", entry["health"]["path"], headers=key_header(secrets_path))
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def key_header(secrets_path):
    """The header with a server's API key; {} where it has none, or its secrets are another user's."""
    secrets = read_json(secrets_path) if secrets_path else None
    key = secrets.get(API_KEY) if isinstance(secrets, dict) else None
    usable = isinstance(key, str) and key.isascii() and key.isprintable()
    return {"Authorization": "Bearer " + key} if usable else {}


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
    if entry["cpus"] and entry["launcher"] != "container":  # there the engine does it
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


# ---- compiled artifacts
#
# An engine on Neuron compiles a model for 20 to 40 minutes and saves the result in a directory that other servers of
# the same configuration load. Nothing in that directory says whether it is whole, so a record in it does: who compiles
# it, from before the first file on, and, once that server is healthy, which files it has. Of two servers that would
# compile one artifact, the second waits for the first. What a compilation left that did not come to its end is cleared
# before the next one. A directory with files and no record is somebody else's: it is loaded as it is, never cleared.
# An engine loads whatever it finds, so the record also says what it was compiled for: the plan's key, the packages of
# the environment and the weights. One that was compiled for anything else is compiled again.


def compile_cache(entry):
    """The entry's hook compile_cache, {key, leaders, variable}; None without one. Schema 1 kept it elsewhere."""
    if "hooks" in entry:
        return entry["hooks"].get("compile_cache")
    leaders = (entry.get("start") or {}).get("artifact_leaders", ())
    return {"key": entry.get("artifact_key"), "leaders": leaders, "variable": ARTIFACT_VARIABLE}


def artifact_of(entry):
    """The directory of the entry's compiled artifact, None for an engine without one."""
    path, hook = (entry.get("directories") or {}).get("artifact"), compile_cache(entry)
    return path if path and hook and entry["environment"].get(hook["variable"]) == path else None


def artifact_files(path, entry=None):
    """{name below `path`: bytes} of the artifact's files, the record apart. Raises OSError.

    entry: leave out what its engine keeps in VLLM_CACHE_ROOT beside compiled graphs, which it changes as it likes.
    """
    files = {}
    cache = (entry or {}).get("environment", {}).get("VLLM_CACHE_ROOT")
    graphs = os.path.join(cache, "neuron", "compile_cache", "") if cache else None
    for folder, folders, names in os.walk(path):
        for name in sorted(names):
            file = os.path.join(folder, name)
            relative = os.path.relpath(file, path)
            if relative == ARTIFACT_RECORD or relative.startswith("." + ARTIFACT_RECORD):
                continue
            if cache and file.startswith(os.path.join(cache, "")) and not file.startswith(graphs):
                continue
            files[relative] = os.lstat(file).st_size
        folders.sort()
    return files


def artifact_state(path):
    """(state, record) of the directory `path`; record is {} where there is none.

    state: "empty", "complete", "damaged" (complete once, and files are missing or of another size), "compiling" (by
    a process that lives), "abandoned" (by one that does not) or "foreign" (files that no server of ours made). Raises
    OSError.
    """
    record = read_json(os.path.join(path, ARTIFACT_RECORD))
    if not isinstance(record, dict):
        return ("foreign" if artifact_files(path) else "empty"), {}
    if record.get("state") == "complete":
        files = artifact_files(path)
        lost = [name for name, size in record.get("files", {}).items() if files.get(name) != size]
        if lost and record.get("found"):
            return "foreign", {}
        return ("damaged" if lost else "complete"), record
    return ("compiling" if compiler_lives(record) else "abandoned"), record


def artifact_identity(entry):
    """What a compilation for the entry depends on, as this node has it now and beside what is planned.

    {versions: {package: version}, weights: [weights_identity() of each of its folders], machine: of this node}.
    """
    return {
        "versions": environment_versions(entry),
        "weights": [weights_identity(folder) for folder in entry.get("weights", ())],
        "machine": machine_id(),
    }


def artifact_misfit(entry, record):
    """Why what the record (or an archive's manifest) tells of was compiled for something else, None where it was not.

    What only one side knows is not compared; what somebody else made, never.
    """
    if record.get("found"):
        return None
    key = (compile_cache(entry) or {}).get("key")
    if key and record.get("key") not in (None, key):
        return "it was compiled for another configuration (key %s, this one is %s)" % (record["key"], key)
    now = artifact_identity(entry)
    old, new = record.get("versions") or {}, now["versions"]
    differing = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    if old and new and differing:
        words = [", ".join("%s %s" % (name, side[name]) if name in side else "no " + name for name in differing)
                 for side in (old, new)]  # fmt: skip
        return "it was compiled with %s, and this node has %s" % tuple(words)
    here = (record.get("host"), record.get("machine")) == (socket.gethostname(), now["machine"] or "unknown")
    for folder, old, new in zip(entry.get("weights", ()), record.get("weights") or (), now["weights"]):
        if not old or not new:
            continue
        for kind in ("files", "content"):
            if old.get(kind) and new[kind] and old[kind] != new[kind]:
                return "it was compiled from other weights (digest %s) than those in %s (digest %s)" % (
                    old[kind][:DIGITS], folder, new[kind][:DIGITS])  # fmt: skip
        before, after = old.get("written") or {}, new["written"] or {}
        mended = sorted(name for name in before if before[name] != after.get(name))
        if here and after and 0 < len(mended) < len(before):
            # a shard was mended; an engine keeps the weights beside its graphs, and there it is rotten still. Where all
            # were written anew they came anew.
            return "weights in %s were mended since (%s)" % (folder, ", ".join(mended))
    return None


def is_loadable(path, entry):
    """Whether a start of the entry would load what is in the directory `path`."""
    try:
        found, record = artifact_state(path)
    except OSError:
        return False
    return found == "foreign" or (found == "complete" and artifact_misfit(entry, record) is None)


def environment_versions(entry):
    """{package: version} of PACKAGES in the environment of the entry's command, {} where none is found.

    It looks at the names of what is installed and imports nothing. What a container has, its image says, which is in
    the plan's key, as surely as it is named by its digest.
    """
    if entry.get("launcher") == "container" or not entry.get("command"):
        return {}
    import glob  # here, since only servers with an artifact need it

    environment = entry["environment"]
    path = environment.get("PATH", PATH)
    programs = [shutil.which(name, path=path) for name in (entry["command"][0], "python3")]
    first, second = (os.path.dirname(os.path.dirname(program)) if program else None for program in programs)
    for root in filter(None, (first, environment.get("VIRTUAL_ENV"), second)):
        found = {}
        for folder in sorted(glob.glob(os.path.join(glob.escape(root), "lib*", "python3*", "*-packages"))):
            with contextlib.suppress(OSError):
                found.update(_versions_in(folder))
        if found:
            return found
    return {}


def _versions_in(folder):
    versions = {}
    for name in sorted(os.listdir(folder)):
        stem, ending = os.path.splitext(name)
        package, _dash, version = stem.partition("-")
        package = package.replace("_", "-").replace(".", "-").lower()
        if ending == ".dist-info" and package in PACKAGES:
            versions[package] = version
    return versions


def machine_id():
    """What the system calls this machine, None where it has no name for it."""
    try:
        with open("/etc/machine-id", encoding="ascii") as stream:
            return stream.read().strip() or None
    except (OSError, ValueError):
        return None


def is_here(record):
    """Whether the record was written on this machine; two may have one name, and one need not have a machine-id."""
    there, here = record.get("machine"), machine_id()
    return record.get("host") == socket.gethostname() and (there is None or here is None or there == here)


def compiler_lives(record):
    """Whether the process that the record says compiles is there. One of another host is believed for its budget."""
    if not is_here(record):
        return time.time() - record.get("since", 0) < record.get("budget_s", 0)
    found = process(record.get("pid") or 0)
    return (
        record.get("boot") == boot_id()
        and found is not None
        and found.ticks == record.get("ticks")
        and found.state not in ENDED
    )


def boot_id():
    """What the kernel calls this boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return None


def clear_artifact(path):
    """Delete all that is in the directory `path`, the record last. Raises OSError."""
    for name in sorted(os.listdir(path), key=lambda name: name == ARTIFACT_RECORD):
        file = os.path.join(path, name)
        if os.path.isdir(file) and not os.path.islink(file):
            shutil.rmtree(file)
        else:
            os.unlink(file)


def take_artifact(path, entry, state, options):
    """Make the artifact fit for this server's start: (how, record).

    how: "loads", or "compiles" where it is this server's to make; then record is what says so. Waits while another
    server compiles it; how is None when the start budget is over by then. Raises OSError.
    """
    began = time.monotonic()
    told = None
    while True:
        os.makedirs(path, exist_ok=True)
        with folder_lock(path):
            found, record = artifact_state(path)
            misfit = artifact_misfit(entry, record) if found == "complete" else None
            if found == "foreign" or (found == "complete" and misfit is None):
                return "loads", {}
            if found != "compiling":
                if found != "empty":
                    fault = misfit or ARTIFACT_FAULTS[found] % record.get("server")
                    say("clearing the artifact %s: %s" % (path, fault))
                    clear_artifact(path)
                begun = compiling_record(entry)
                write_json(os.path.join(path, ARTIFACT_RECORD), begun)
                return "compiles", begun
        ready = compiler_if_ready(record, options)
        if ready is not None:
            complete_artifact(path, ready, record)
            continue
        if told != record.get("server"):
            told = record.get("server")
            say("waiting for %s, which compiles %s" % (told, path))
            state.write("waiting for %s" % told, "it compiles")
        if time.monotonic() - began > entry["health"]["budget_s"]:
            say("%s did not finish the artifact %s within %d s" % (told, path, entry["health"]["budget_s"]))
            return None, {}
        time.sleep(entry["health"]["poll_s"])


def compiler_if_ready(record, options):
    """The entry of the server that the record says compiles if it answers, so that only its record is missing.

    None otherwise; also where a server of this root is called like that, and the one that compiles is another root's.
    """
    name = "%s.json" % record.get("server")
    entry = read_json(os.path.join(os.path.dirname(options.entry), name))
    state_path = os.path.join(os.path.dirname(options.state), name)
    state = read_json(state_path)
    if entry is None or not isinstance(state, dict) or not is_here(record):
        return None
    same = all(state.get(key) == record.get(key) for key in ("pid", "ticks"))
    secrets_path = os.path.join(os.path.dirname(options.secrets), name)
    return entry if same and is_healthy(entry, state_path, secrets_path) else None


ARTIFACT_FAULTS = {
    "abandoned": "%s compiled it and ended before it was ready",
    "damaged": "files are missing or cut since %s completed it",
}


def compiling_record(entry):
    """What stands in the entry's artifact from before the compilation until the server is ready."""
    return {
        "schema": ARTIFACT_SCHEMA,
        "key": (compile_cache(entry) or {}).get("key"),
        "state": "compiling",
        "server": entry["name"],
        "host": socket.gethostname(),
        "boot": boot_id(),
        "pid": os.getpid(),
        "ticks": process(os.getpid()).ticks,
        "since": round(time.time(), 3),
        "budget_s": entry["health"]["budget_s"],
        **artifact_identity(entry),
    }


def watch_artifact(path, entry, options, begun):
    """Leave a process behind that records the artifact as complete once this one, the engine to be, is healthy.

    begun: the record of take_artifact(). It ends then, or with the engine. It is nobody's child, so that no engine
    meets one that it does not know.
    """
    pid, ticks = os.getpid(), process(os.getpid()).ticks
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:
            os.chdir("/")
            while True:
                found = process(pid)
                if found is None or found.ticks != ticks or found.state in ENDED:
                    break
                if is_healthy(entry, options.state, options.secrets):
                    complete_artifact(path, entry, begun)
                    break
                time.sleep(entry["health"]["poll_s"])
    except Exception as error:  # whatever it is, this copy of the guard must not go on as a second engine
        say("the artifact %s is not recorded as complete: %s" % (path, error))
    finally:
        os._exit(0)


def complete_artifact(path, entry, begun=None):
    """Record that the artifact is whole, as it is now; a server that saved nothing leaves no record. Raises OSError.

    begun: the record with which the compilation began; {} for files that somebody else made. If there is another one by
    now, then another host took this compilation for dead, cleared what it had and began anew: it is left to that one.
    """
    begun = begun or {}
    record_path = os.path.join(path, ARTIFACT_RECORD)
    with folder_lock(path):
        files = artifact_files(path, entry)
        found, record = artifact_state(path)  # last, since not every file system has locks
        if found == "complete":
            return
        if record != begun:
            whose = "is of %s on %s" % (record.get("server"), record.get("host")) if record else "is gone"
            say("the artifact %s is not recorded as complete: its record %s by now" % (path, whose))
            return
        if not files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(record_path)
            say("the engine is ready and saved nothing in %s; the next start compiles again" % path)
            return
        seconds = time.time() - begun["since"] if "since" in begun else None
        record = {
            # as it was when the compilation began, whoever looks at it now
            **{name: begun[name] for name in ARTIFACT_IDENTITY if name in begun},
            "schema": ARTIFACT_SCHEMA,
            "key": begun.get("key", (compile_cache(entry) or {}).get("key")),
            "state": "complete",
            "server": entry["name"],
            "found": found == "foreign",
            "host": socket.gethostname(),
            "at": round(time.time(), 3),
            "seconds": None if seconds is None else round(seconds, 1),
            "files": files,
        }
        write_json(record_path, record)
    say("the artifact %s is complete: %d files, %d bytes" % (path, len(files), sum(files.values())))


# ---- weights


def _digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("utf-8")).hexdigest()


def weight_records(folder):
    """{name: {size, sha256, mtime_ns, …}} of the manifest beside the weights in `folder`, None without one."""
    manifest = read_json(os.path.join(folder, WEIGHT_MANIFEST))
    records = manifest.get("files") if isinstance(manifest, dict) else None
    return records if isinstance(records, dict) and all(isinstance(one, dict) for one in records.values()) else None


def weights_note(folder):
    """A digest of what the manifest in `folder` says of its files, None without one.

    A file that was mended has the checksum that it always should have had, so when it was written counts too.
    """
    records = weight_records(folder)
    if records is None:
        return None
    return _digest({name: [one.get("size"), one.get("sha256"), _written(one)] for name, one in records.items()})


def weights_identity(folder):
    """Digests of what an engine compiles from: configuration, index and shards. None where no checkpoint is.

    {files: without a look at the shards but for their sizes, content: by the manifest's checksums, written: {name: when
    it was written, by the manifest}; the last two null without a manifest}.
    """
    try:
        shards = {name: os.stat(os.path.join(folder, name)).st_size
                  for name in os.listdir(folder) if name.endswith(SHARD)}  # fmt: skip
        texts = {}
        for name in (CONFIG, INDEX):
            with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, name), "rb") as stream:
                texts[name] = hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return None
    if CONFIG not in texts:
        return None
    records = weight_records(folder)
    loaded = {name: one for name, one in (records or {}).items() if name in texts or name in shards}
    return {
        "files": _digest([texts, shards]),
        "content": _digest({name: one.get("sha256") for name, one in loaded.items()}) if loaded else None,
        "written": {name: _written(one) for name, one in loaded.items()} or None,
    }


def _written(record):
    """When a file of the manifest was written; mtime_ns may be newer, of bytes that were found as they were."""
    return record.get("written_ns", record.get("mtime_ns"))


def encodings_note(entry):
    """{name: [bytes, when it was written, in ns]} of the vocabularies that the entry's engine reads, once, at its start
    or its first chat; None for an engine that is not told of any."""
    folder = entry["environment"].get(ENCODINGS_VARIABLE)
    if not folder:
        return None
    note = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            found = os.stat(os.path.join(folder, name))
            if name.endswith(VOCABULARY):
                note[name] = [found.st_size, found.st_mtime_ns]
    return note


# ---- folders


def make_folders(entry, user):
    """Make the entry's directories that are gone, the user's own, as a disk that a reboot empties needs. OSError."""
    owner = pwd.getpwnam(user) if user else None
    for path in sorted(set((entry.get("directories") or {}).values())):
        if not os.path.isdir(path):
            os.makedirs(path, mode=0o755)
            if owner is not None:
                os.chown(path, owner.pw_uid, owner.pw_gid)
    return 0


# ---- reap


def reap(source, sink, servers=None, states=None):
    """Serve supervisord's event listener protocol until the input ends: kill the group of each program that ended.

    servers, states: folders of entries and of guards' records; servers that restart with the one that ended are ended,
    so that supervisord starts them again. What ended on request is no failed start, nor are these.
    """
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
        group = event.get(b"groupname", b"")
        if pid > 1 and group.startswith(PREFIX.encode()):
            name = os.fsdecode(group[len(PREFIX) :])
            if states and headers.get(b"eventname") == b"PROCESS_STATE_STOPPED":  # else it is EXITED
                with contextlib.suppress(OSError):
                    take_back(os.path.join(states, name + ".json"), pid)
            reap_group(pid)
            for state_path, follower, ticks in followers(name, pid, servers, states):
                with contextlib.suppress(OSError):
                    take_back(state_path, follower)
                end_follower(follower, ticks)
        sink.write(b"RESULT 2\nOK")
        sink.flush()


def reap_group(pid):
    """Kill what the ended process `pid` left in its process group."""
    if process(pid) is not None:
        return  # the number belongs to another process by now
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def followers(leader, ended, servers, states):
    """[(path of the record, pid, ticks)] of the engines that run and restart with the server `leader`, whose process
    `ended` has ended.

    Not those that were started after its successor: who hears late of an end must not take them for its followers.
    """
    found = []
    successor = read_json(os.path.join(states or "", leader + ".json")) or {}
    since = successor.get("started") if successor.get("pid") != ended else None
    try:
        names = sorted(name for name in os.listdir(servers or "") if name.endswith(".json"))
    except OSError:
        return found
    for name in names:
        start = (read_json(os.path.join(servers, name)) or {}).get("start") or {}
        if start.get("restart_with_leader") and leader in start.get("after", ()):
            path = os.path.join(states, name)
            record = read_json(path) or {}
            running = process(record.get("pid") or 0)
            if since is not None and (record.get("started") or 0) >= since:
                continue
            if record.get("phase") == "running" and running is not None and running.ticks == record.get("ticks"):
                found.append((path, record["pid"], record["ticks"]))
    return found


def end_follower(pid, ticks):
    """TERM, and KILL where it is still there after FOLLOWER_S; supervisord starts it again."""

    def kill():
        found = process(pid)
        if found is not None and found.ticks == ticks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)
    import threading  # here, since only a reaper needs it

    timer = threading.Timer(FOLLOWER_S, kill)
    timer.daemon = True
    timer.start()


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
    ender = commands.add_parser("end", help="stop the container of an entry")
    ender.add_argument("entry")
    ender.add_argument("--root", required=True)
    ender.add_argument("--state")
    ender.add_argument("--remove", action="store_true")
    folders = commands.add_parser("folders", help="make the directories of an entry")
    folders.add_argument("entry")
    folders.add_argument("--user")
    reaper = commands.add_parser("reap", help="event listener of supervisord")
    reaper.add_argument("--servers")
    reaper.add_argument("--state")
    options = parser.parse_args(arguments)
    if options.action == "folders":
        os.umask(0o022)
        return make_folders(read_json(options.entry) or {}, options.user)
    if options.action == "reap":
        return reap(sys.stdin.buffer, sys.stdout.buffer, options.servers, options.state)
    if options.action == "end":
        return end(options)
    try:
        return run(options)
    except Exception as error:  # whatever it is: into the server's log, and not again at once
        say("%s: %s" % (type(error).__name__, error))
        time.sleep(options.restart_delay)
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
