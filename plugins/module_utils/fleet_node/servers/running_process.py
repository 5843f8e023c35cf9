# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's process as /proc shows it."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import time

from ..node import commands, processes

UNLIMITED = -1
LIMITS = {"Max open files": "NOFILE", "Max locked memory": "MEMLOCK"}
LIMIT = re.compile(r"^(Max [a-z ]+?) {2,}(\S+) +(\S+)")
GROUP_LIMITS = {"memory.max": "MemoryMax", "memory.high": "MemoryHigh", "pids.max": "TasksMax", "cpu.max": "CPUQuota"}
CGROUPS = "/sys/fs/cgroup"
INTERPRETER_S = 20
# What executes something else with an environment and a command line of its own making.
SHELLS = frozenset(("sh", "bash", "dash", "ash", "ksh", "zsh", "busybox"))
WRAPPERS = SHELLS | {"env", "numactl", "taskset", "nice", "ionice", "chrt", "setarch", "stdbuf", "mpirun"}
PYTHON = re.compile(r"^python[\d.]*$")


@dataclasses.dataclass
class Running:
    """A process as /proc shows it.

    environment: {name: value}, None where it is not ours to read; limits: {"NOFILE": (soft, hard)}; cpus: a set, None
    where they are not known; unit: the service of systemd that it belongs to, or None; group: {file: value} of its
    cgroup's limits; parent: limits of its parent, the service manager; age: seconds since its start; command: as text.
    """

    pid: int
    argv: list = ()
    environment: dict | None = None
    limits: dict = dataclasses.field(default_factory=dict)
    cpus: set | None = None
    uid: int | None = None
    unit: str | None = None
    group: dict = dataclasses.field(default_factory=dict)
    parent: dict = dataclasses.field(default_factory=dict)
    age: float = 0.0
    command: str | None = None


def look_at(pid):
    """The Running process `pid`, None where it is gone."""
    found = processes.process(pid)
    if found is None or found.state in processes.ENDED:
        return None
    environment = processes.environment_of(pid)
    try:
        cpus = os.sched_getaffinity(pid)
        uid = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        cpus, uid = None, None
    unit, group = unit_of_process(pid)
    one = Running(
        pid,
        argv=processes.argv(pid),
        environment={os.fsdecode(key): os.fsdecode(value) for key, value in environment.items()} or None,
        limits=limits_of(pid),
        cpus=cpus,
        uid=uid,
        unit=unit,
        group=group_limits(group),
        parent=limits_of(found.parent),
        age=max(0.0, time.time() - (processes.started_at(pid) or time.time())),
        command=processes.command(pid),
    )
    return one if lives(pid, found.ticks) else None  # what ended meanwhile showed only a part


def lives(pid, ticks=None):
    """Whether the process is there and no zombie; ticks: of its start, where another one of this number is none."""
    found = processes.process(pid)
    return found is not None and found.state not in processes.ENDED and ticks in (None, found.ticks)


def limits_of(pid):
    """{"NOFILE": (soft, hard), "MEMLOCK": …} of the process, -1 for no limit; empty where it is gone."""
    found = {}
    for line in _lines("/proc/%d/limits" % pid):
        match = LIMIT.match(line)
        if match and match.group(1) in LIMITS:
            pair = tuple(UNLIMITED if word == "unlimited" else int(word) for word in match.groups()[1:])
            found[LIMITS[match.group(1)]] = pair
    return found


def unit_of_process(pid):
    """(name of its service of systemd or None, path of its cgroup below /sys/fs/cgroup or None)."""
    unit = group = None
    for line in _lines("/proc/%d/cgroup" % pid):
        number, controllers, path = [*line.rstrip("\n").split(":", 2), "", ""][:3]
        services = [part for part in path.split("/") if part.endswith(".service")]
        if services and (controllers in ("", "name=systemd")):
            unit = services[-1]
        if number == "0" and not controllers:
            group = path
    return unit, group


def group_limits(group):
    """{file: value} of GROUP_LIMITS in the cgroup, those that can be read."""
    found = {}
    for name in GROUP_LIMITS if group else ():
        text = "".join(_lines("%s%s/%s" % (CGROUPS, group, name))).strip()
        if text:
            found[name] = text
    return found


def _lines(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.readlines()
    except OSError:
        return []


@functools.cache
def interpreter_problem(program):
    """None, or what is wrong with an interpreter that a unit names. What is no Python by its name is not executed."""
    if not os.path.isabs(program) or not os.path.exists(program):
        return "it is not there"
    if not os.access(program, os.X_OK):
        return "it cannot be executed"
    if not PYTHON.match(os.path.basename(program)):
        return None
    try:
        done = commands.run([program, "-I", "-S", "-c", ""], limit_s=INTERPRETER_S)
    except OSError as error:
        return "it cannot be executed: %s" % error.strerror
    except commands.TimedOut:
        return "it does not end within %d s" % INTERPRETER_S
    return "it ends with exit status %d" % done.returncode if done.returncode else None


@functools.cache
def is_wrapper(program):
    """Whether the program executes something else that need not look like what was asked for."""
    if os.path.basename(program) in WRAPPERS:
        return True
    try:
        with open(shutil.which(program) or program, "rb") as stream:
            first, second = [*stream.read(512).split(b"\n"), b""][:2]
    except OSError:
        return False
    if not first.startswith(b"#!") or second.startswith(b"'''exec'"):  # how pip writes a long path to a Python
        return False
    words = first[2:].decode("utf-8", "replace").split()
    names = [os.path.basename(word) for word in words]
    return bool(names) and (names[0] in SHELLS or (names[0] == "env" and bool(SHELLS.intersection(names[1:]))))


def shown_command(command, length=200):
    """A command line of somebody's for a message: masked, then cut where it is long."""
    return processes.masked(command or "gone")[:length]
