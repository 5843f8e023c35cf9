# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of the node. Each call has a time limit, after which the program is killed."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import subprocess
import time

from ..errors import FleetError
from . import processes

LIMIT_S = 40  # so that a run reports a program that hangs within a minute
IDLE_S = 300  # for installations: a process that used no processor time for so long makes no progress
KILL_S = 2  # a process that is blocked in the kernel (state D) does not end even by SIGKILL
POLL_S = 5
SHOWN = 160  # characters of a command line in messages
SCARCE = {errno.EAGAIN: "the limit of processes is reached", errno.ENOMEM: "no memory is left",
          errno.EMFILE: "the limit of open files is reached",
          errno.ENFILE: "the node's limit of open files is reached"}  # fmt: skip


class TimedOut(FleetError):
    """A program did not end in time. Checks of a node stop then, because the next program may hang too."""


def hangs(error):
    """Whether a program that did not end in time caused this error."""
    while error is not None and not isinstance(error, TimedOut):
        error = error.__cause__
    return error is not None


def shown(argv):
    """A command line for a message, without secrets."""
    text = processes.masked(" ".join(shlex.quote(os.fsdecode(word)) for word in argv))
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def start(argv, **options):
    """The Popen of a program. Raises FleetError if the node can start no program, OSError if only this program."""
    try:
        return subprocess.Popen(argv, **options)
    except OSError as error:
        if error.errno not in SCARCE:
            raise
        raise FleetError("node.no-process", shown(argv), SCARCE[error.errno], error.strerror) from error


def run(argv, limit_s=LIMIT_S, idle_s=None, text=None, merged=False, errors="replace", **options):
    """Run a program and return its CompletedProcess, with strings, for any exit status.

    limit_s: seconds within which it must end, or None with idle_s: seconds that it and its children may use no
    processor time. text: its input, None without input. merged: its errors are in its output. options: of Popen. Raises
    TimedOut, FleetError (see start()), and OSError if the program cannot be executed.
    """
    process = start(
        argv,
        stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        encoding="utf-8",
        errors=errors,
        start_new_session=True,  # the limit also ends its children, which may keep its output open
        **{"cwd": "/", **options},
    )
    end, used = time.monotonic() + (idle_s or limit_s), None
    try:
        while True:
            wait_s = end - time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, words = process.communicate(text, timeout=max(0, min(POLL_S, wait_s) if idle_s else wait_s))
                return subprocess.CompletedProcess(argv, process.returncode, output, words)
            text, before, used = None, used, _processor_ticks(process.pid) if idle_s else None
            if used != before:
                end = time.monotonic() + idle_s
            if time.monotonic() >= end:
                raise _timed_out(process, argv, limit_s, idle_s)
    finally:
        _end(process)


def _timed_out(process, argv, limit_s, idle_s):
    held = getattr(processes.process(process.pid), "state", None) == "D"
    remedy = "Run it on the node to see what it waits for: a daemon, a driver, a lock or the network."
    if held:
        remedy = "A driver, a disk or a network file system blocks it in the kernel (state D). See dmesg, and reboot "
        remedy += "the node if that does not pass."
    what = "used no processor time" if idle_s else "did not end"
    return TimedOut("node.command-timeout", shown(argv), what, idle_s or limit_s, remedy)


def _end(process):
    """Kill the remaining processes of its session, without waiting for those that are blocked in the kernel."""
    if process.returncode is not None:
        return
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(OSError):
            if stream:
                stream.close()


def _processor_ticks(session):
    """Processor time of all processes of a session, with that of the children that they waited for."""
    return sum(one.used for one in processes.process_table().values() if one.session == session)
