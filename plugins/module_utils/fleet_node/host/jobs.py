# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs on a node that outlive the call that starts them, in a separate session. Later calls find them again.

The folder of a job (0700) contains request.json (what it does and for whom; no secret), lock, pid and log. All
processes of the job inherit the locked lock and keep it until they die for any reason. So a call that can lock it knows
that none of them is alive. Next to the folder is its start lock, which a call keeps locked while it checks or changes
the job.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time

from ..errors import FleetError
from . import commands, files, processes
from .files import make_directory

TERM_S = 5.0
KILL_S = 60.0  # for a process that is blocked in the kernel, for example by a network disk
ENDED = ("done", "failed")  # states of a job; the third is "running"
FRESH_S = 120  # a failure counts for so long; later its cause may be gone


class DetachedJob:
    """The job of a folder, which need not exist yet."""

    def __init__(self, folder):
        self.folder = folder

    def path(self, name):
        """A file of the job."""
        return os.path.join(self.folder, name)

    @contextlib.contextmanager
    def judging(self, wait=True):
        """Make the folder's parent and lock the start lock. Yields whether it is locked, which is certain with
        `wait`."""
        make_directory(os.path.dirname(self.folder))
        with open(self.folder + ".lock", "a+b") as stream:
            if wait:
                fcntl.flock(stream, fcntl.LOCK_EX)
            yield wait or locked(stream)

    def alive(self):
        """Whether a process of the job is alive."""
        return files.is_locked(self.path("lock"))

    def request(self):
        """The request that the job was started with, {} if there is none."""
        return files.read_json(self.path("request.json")) or {}

    def keep_request(self, request):
        """Write it down."""
        files.write_atomic(self.path("request.json"), json.dumps(request, indent=2) + "\n", mode=0o600)

    def launch(self, argv, request, environment, stdin=""):
        """Start it. The start lock must be locked and no process alive. Returns the process."""
        self.keep_request(request)
        with open(self.path("lock"), "a+b") as stream, open(self.path("log"), "wb") as log:
            fcntl.flock(stream, fcntl.LOCK_EX)
            process = commands.start(
                argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment,
                pass_fds=(stream.fileno(),),
                start_new_session=True,
                umask=0o022,
            )
        files.write_atomic(self.path("pid"), "%d\n" % process.pid, mode=0o600)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(stdin.encode())
            process.stdin.close()
        return process

    def pid(self):
        """The number of its first process, as a string."""
        return (files.read_text(self.path("pid")) or "?").strip()

    def stop(self):
        """End its processes. Raises FleetError if they cannot be ended."""
        for number, seconds in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
            self._signal(number)
            if self.gone(seconds):
                return
        raise FleetError("jobs.cannot-end", self.pid(), self.path("lock"))

    def gone(self, seconds):
        """Wait at most so long for its end, and return whether it has ended."""
        end = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() >= end:
                return False
            time.sleep(0.02)
        return True

    def _signal(self, number):
        """Send it to the session of the first process if that is still the job's: another process may have the number.

        Not to its group alone: timeout(1) makes a separate group.
        """
        lock = os.path.realpath(self.path("lock"))
        with contextlib.suppress(ValueError):
            session = int(self.pid())
            members = [pid for pid, one in processes.process_table().items() if one.session == session]
            if any(lock in processes.open_files(pid) for pid in members):
                for pid in members:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)

    def log(self):
        """What it printed."""
        return files.read_text(self.path("log")) or ""

    def remove(self):
        """Remove the folder of a job that has ended."""
        shutil.rmtree(self.folder, ignore_errors=True)


def locked(stream):
    """Lock this open file. Returns False if another process has locked it."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def fresh(since):
    """Whether that time (of the clock) is recent enough that a failure still counts."""
    return 0 <= time.time() - since < FRESH_S
