# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process of a job that installs weights.

It reads {wanted, settings: {token, variables, ca_bundle}, state: path} from standard input, so that no command line,
environment or file contains a secret, and writes its state to that path until it ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback

from ..errors import FleetError
from ..host import files
from ..host.jobs import ENDED
from ..host.redact import Masked, Redactor
from .http import Http
from .hub import Hub
from .progress import Progress
from .run import Run
from .wanted import Wanted

EVERY_S = 0.5


def http_of(settings):
    """The function that returns the hub.Hub of a Wanted. Its proxies are added to those of this process."""

    def hub(wanted):
        limits = (wanted.timeout_s, wanted.min_rate, wanted.min_rate_window_s)
        http = Http({**os.environ, **settings["variables"]}, settings["ca_bundle"], *limits)
        return Hub(wanted, settings["token"], http)

    return hub


class Reporter:
    """Keeps the state file of a job."""

    def __init__(self, path, progress, redactor):
        self._path, self._progress, self._redactor = path, progress, redactor
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def write(self, state, **more):
        """Write a state, none after the last. A full disk keeps the older one."""
        with self._lock:
            if self._ended.is_set():
                return
            if state in ENDED:
                self._ended.set()
            found = {"state": state, "updated": time.time(), "progress": self._progress.snapshot(), **more}
            try:
                files.write_atomic(self._path, json.dumps(self._redactor.value(found)), mode=0o600)
            except OSError as error:
                sys.stderr.write("cannot write %s: %s\n" % (self._path, error))

    def tick(self):
        """Write the state until the job ends."""
        while not self._ended.wait(EVERY_S):
            self.write("running")


def main():
    """Read the request, and install the weights."""
    request = json.load(sys.stdin)
    progress, settings = Progress(), request["settings"]
    redactor = Redactor([settings["token"]], {**os.environ, **settings["variables"]})
    sys.stdout, sys.stderr = Masked(sys.stdout, redactor), Masked(sys.stderr, redactor)
    reporter = Reporter(request["state"], progress, redactor)
    reporter.write("running")
    threading.Thread(target=reporter.tick, daemon=True).start()
    try:
        result = Run(Wanted(**request["wanted"]), http_of(settings), progress).run()
        progress.phase = "done"
        reporter.write("done", result=result)
    except FleetError as error:
        reporter.write("failed", error={"message": error.message, "details": error.details})
    except BaseException as error:
        sys.stderr.write(traceback.format_exc())
        message = "The job failed: %s: %s. Check its log in %s." % (
            type(error).__name__, error, os.path.dirname(request["state"])
        )  # fmt: skip
        reporter.write("failed", error={"message": message, "details": {}})
    sys.stdout.close()
    sys.stderr.close()
    os._exit(0)  # threads of a failed download may still wait for a response
