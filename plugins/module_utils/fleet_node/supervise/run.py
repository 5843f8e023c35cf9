# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Becomes the engine of an entry."""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import secrets as randomness
import signal
import sys
import time

from ..engines.registry import engine_of
from ..engines.stays_registered import MARK
from ..host.files import place
from ..host.paths import PATH
from ..host.processes import MARKER_ROOT, MARKER_SERVER, marked_processes, terminate, terminate_found
from ..host.server_spec import leaders_to_follow, read_entry
from ..host.values import parse_cpu_list
from .state import (
    KILL_S,
    START_LIMIT_EXIT,
    TERM_S,
    State,
    read_record,
    read_secrets,
    say,
    start_interval,
    take_back,
    weights_read,
)

FIRST_DELAY_S = 1.0
FOLLOWER_S = 15.0


def run(options):
    """Become the engine of the entry. Returns the exit status if that fails."""
    entry = read_entry(options.entry)
    if entry is None:
        say("%s is missing, or no plan entry; engine_servers writes it" % options.entry)
        time.sleep(options.restart_delay)
        return 1
    name = entry["name"]
    enter_clean_environment(name, options.root)
    # the rights of the entry, which guards of other accounts may read
    state = State(options.state, entry["hash"], os.stat(options.entry).st_mode & 0o644)

    survivors = terminate_found(lambda: marked_processes(options.root).get(name, ()), TERM_S, KILL_S)
    if survivors:
        reason = "an earlier start left processes that cannot be killed: %s" % ", ".join(map(str, survivors))
        return give_up(state, reason, 1, options.restart_delay)
    end_followers(name, options)

    contained = entry["launcher"] == "container"
    if contained:
        from . import containers

        problem = containers.sweep(entry, options, state)
        if problem:
            return give_up(state, problem, 1, options.restart_delay)
    # imports before the first wait: see cli.main()
    found = hooks_of(entry, options)
    needs = entry["start"].get("needs") or ()
    given = {**entry["environment"], **read_secrets(options.secrets)} if needs else {}
    if needs or entry["start"]["after"]:
        from . import order
    if needs:
        order.wait_for_services(needs, given, state)

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
        if not order.wait_for_leader(
            leader, options, state, lambda name=leader: any(hook.replaces(name) for hook in found)
        ):
            return 1
    for hook in found:
        try:
            if not hook.prepare(state):
                return 1
        except OSError as error:
            return give_up(state, str(error), 1, options.restart_delay)

    state.count_start()
    try:
        for hook in found:
            hook.before_execution()
        secrets = read_secrets(options.secrets)
        make = containers.client_environment if contained else engine_environment
        environment = make(entry, secrets, options.root)
        launch = containers.launch_command(entry, options.root) if contained else entry["launch"]
        prepare_process(entry)
        state.weights = weights_read(entry)
        make_shared_folder(entry)
        state.write("running")
        program_folder = getattr(sys.modules["__main__"], "HANDLE", None)
        if program_folder is not None:
            os.set_inheritable(program_folder, True)  # this version stays as long as the engine
        os.execvpe(launch[0], launch, environment)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        return give_up(state, "it cannot be executed: %s" % error, 127, options.restart_delay)


def end_followers(leader, options):
    """End the engines that restart with this server; their service manager starts them again, and no start is counted.

    With systemd they have ended already (PartOf=). A guard that waits for its leader is not ended.
    """
    running, pids = marked_processes(options.root), []
    for name in sorted(set(running) - {leader}):
        entry = read_entry(os.path.join(os.path.dirname(options.entry), name + ".json"))
        path = os.path.join(os.path.dirname(options.state), name + ".json")
        record = read_record(path)
        engine = record.get("phase") == "running" and record.get("pid") in running[name]
        if engine and entry and leader in leaders_to_follow(entry):
            with contextlib.suppress(OSError):
                take_back(path, record["pid"])
            pids.append(record["pid"])
    terminate(pids, FOLLOWER_S, KILL_S)


def hooks_of(entry, options):
    """[hook] of an entry, whose `hooks` is {name: settings}.

    options.start_hooks() returns the module with the class StartHook for each name. Its of(entry, options) returns the
    hook of an entry or None. replaces(leader): whether that server need not be waited for; prepare(state): False if the
    server must not start, OSError if it cannot; before_execution(): right before the engine.
    """
    if not entry["hooks"]:
        return []  # without an import of all platforms
    modules = options.start_hooks()
    found = [modules[name].StartHook.of(entry, options) for name in entry["hooks"] if name in modules]
    return [hook for hook in found if hook is not None]


def make_shared_folder(entry):
    """Create that folder if it is missing, with the owner of its parent, and a mark in it."""
    folder = engine_of(entry).shared_folder(entry)
    if not folder:
        return
    with contextlib.suppress(OSError):
        above = os.stat(os.path.dirname(folder))
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)
            os.chown(folder, above.st_uid, above.st_gid, follow_symlinks=False)
        new = os.open(os.path.join(folder, MARK), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(new, "w") as stream:
            stream.write(randomness.token_hex(8))


def give_up(state, reason, status, delay):
    say(reason)
    state.write("failed", reason)
    time.sleep(delay)
    return status


def enter_clean_environment(name, root):
    """Execute this program again with only the two markers in its environment, unless that has happened.

    By the markers a waiting guard is found like an engine; the service manager's variables are dropped.
    """
    clean = {"PATH": PATH, "LANG": "C.UTF-8", MARKER_SERVER: name, MARKER_ROOT: root or "/"}
    if all(os.environ.get(key) == value for key, value in clean.items()):
        return
    os.execve(sys.executable, [sys.executable, "-I", os.path.abspath(sys.argv[0]), *sys.argv[1:]], clean)


def engine_environment(entry, secrets, root):
    """{str: str} for the engine: basic variables of the user, the entry's variables, its secrets and the markers."""
    user = pwd.getpwuid(os.getuid())
    basic = {"PATH": PATH, "HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "LANG": "C.UTF-8"}
    markers = {MARKER_SERVER: entry["name"], MARKER_ROOT: root or "/"}
    return {**basic, **engine_of(entry).environment, **entry["environment"], **secrets, **markers}


def prepare_process(entry):
    """Set the CPUs, limits, work directory, input and signals of the engine. Raises OSError, ValueError."""
    if entry["cpus"] and entry["launcher"] != "container":  # the container engine does it there
        try:
            os.sched_setaffinity(0, parse_cpu_list(entry["cpus"]))
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
    # Python ignores SIGPIPE, a shell's background job SIGINT, and execve keeps that
    for sign in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(sign, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def make_folders(entry, user):
    """Create missing directories of the entry for the user, e.g. on a disk that a reboot empties. Raises OSError."""
    owner = pwd.getpwnam(user)
    for path in sorted(set((entry.get("directories") or {}).values())):
        if not os.path.isdir(path):
            os.makedirs(path, mode=0o755)
            # the owner of the parent may have replaced the folder with a link
            place(path, 0o755, owner.pw_uid, owner.pw_gid, folder=True)
    return 0
