# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs in the toolkit's environment, where the hub clients are: a job, or a look at what it would do.

It reads {wanted: … or local: …, state: path, toolkit: whether that is there} from standard input, and writes its state
to that file, again and again until it ends. A state is {pid, state: running|done|failed, progress, started, moved,
updated, error: {message, details}, result}; the last two where there is one; moved: when it last got further. A token
comes in the environment alone; no state and no message holds it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
import traceback

from ...errors import FleetError
from ...node import files
from ...node.redact import Masked, Redactor
from .. import local as local_weights
from ..progress import Progress
from ..sources import Request
from . import TOKENS, Desired, HubProblem, plain
from .download import Download

EVERY_S = 0.5


class Reporter:
    """Keeps the state file of a job."""

    def __init__(self, path, progress, redactor):
        self._path = path
        self._progress = progress
        self._redactor = redactor
        self._started = self._moved = time.time()
        self._at = None
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def state(self, state, **more):
        """A state as JSON."""
        progress, now = self._progress.snapshot(), time.time()
        at = [progress[key] for key in ("phase", "bytes_done", "file")]
        if at != self._at:
            self._at, self._moved = at, now
        found = {
            "pid": os.getpid(),
            "state": state,
            "started": self._started,
            "moved": self._moved,
            "updated": now,
            "progress": progress,
            **more,
        }
        return json.dumps(self._redactor.value(found))

    def write(self, text, last=False):
        """Put a state in its place, none after the last; a disk that is full keeps the older one."""
        with self._lock:
            if self._ended.is_set() and not last:
                return
            try:
                files.write_atomic(self._path, text, mode=0o600)
            except OSError as error:
                sys.stderr.write("cannot write %s: %s\n" % (self._path, error))

    def tick(self):
        """Write the state until the job ends."""
        while not self._ended.wait(EVERY_S):
            self.write(self.state("running"))

    def end(self, text):
        """Write the last state."""
        self._ended.set()
        self.write(text, last=True)


def client_of(wanted, token, toolkit=True):
    """The client of the wanted source; for a look the plain one where its library is not there. Raises HubProblem."""
    package = __name__.rpartition(".")[0]
    if not toolkit:
        return plain.Client(wanted, token)
    try:
        return importlib.import_module("%s.%s" % (package, wanted.source)).Client(wanted, token)
    except HubProblem as problem:
        if problem.kind != "client" or not wanted.check_mode:
            raise
    return plain.Client(wanted, token)


def bring(request, token, progress):
    """The result of a request: {wanted: …} of a hub, {local: what local_weights.ensure takes} of other sources."""
    if "local" in request:
        local = request["local"]
        return local_weights.ensure(**{**local, "request": Request(**local["request"])}, progress=progress)
    wanted = Desired(**request["wanted"])
    toolkit = request.get("toolkit", True)
    return Download(wanted, lambda other: client_of(other, token, toolkit), progress).run()


def work(request, token, reporter, progress):
    """Run it; returns the last state as text."""
    try:
        result = bring(request, token, progress)
        if not request.get("wanted", {}).get("check_mode"):
            progress.phase = "done"
        return reporter.state("done", result=result)
    except FleetError as error:
        return reporter.state("failed", error={"message": error.message, "details": error.details})
    except BaseException as error:
        sys.stderr.write(traceback.format_exc())
        message = "The job broke down: %s: %s." % (type(error).__name__, error)
        return reporter.state("failed", error={"message": message, "details": {}})


def main():
    """Read the request, do it."""
    request = json.load(sys.stdin)
    token = os.environ.get(TOKENS.get(request.get("wanted", {}).get("source"), "")) or None
    progress = Progress()
    redactor = Redactor([token], os.environ)
    sys.stdout, sys.stderr = Masked(sys.stdout, redactor), Masked(sys.stderr, redactor)
    reporter = Reporter(request["state"], progress, redactor)
    reporter.write(reporter.state("running"))
    threading.Thread(target=reporter.tick, daemon=True).start()
    reporter.end(work(request, token, reporter, progress))
    sys.stdout.close()
    sys.stderr.close()
    os._exit(0)  # threads of a download that failed may still wait for an answer
