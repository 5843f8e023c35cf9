# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that install weights: one for each destination, which outlives the call that starts it.

A job is running, done or failed, as its state.json states; one that is gone while "running" was killed, and is started
again. A call that finds a running job for the same weights joins it. Each caller that saw a job running receives its
end once; every other call compares the files themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from dataclasses import asdict

from .. import program
from ..errors import FleetError
from ..host import files
from ..host.jobs import ENDED, DetachedJob, fresh

DEATHS = 3  # that a job may die without a byte of progress before that is an error
LOG_LINES = 15
RUNNING = {"state": "running"}  # of a worker that has not written more yet
FOREIGN = ("HF_", "HUGGING", "MODELSCOPE_", "PYTHON", "ANSIBLE_")  # variables that a worker does not inherit
IDENTITY = (
    "source", "repo", "revision", "destination", "path", "include", "exclude", "format", "draft", "adapter", "refresh",
)  # fmt: skip


class Job(DetachedJob):
    """The job that installs weights at one destination. folder: of all jobs."""

    def __init__(self, folder, destination):
        key = hashlib.sha256(destination.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        super().__init__(os.path.join(folder, "weights-" + key))

    def state(self):
        """The state as the worker wrote it, None if there is none."""
        return files.read_json(self.path("state.json"))

    def pending(self, caller):
        """Whether a worker is running, was killed, or has an end that this caller has not received."""
        if self.alive():
            return True
        state = self.state()
        return state is not None and (state["state"] == "running" or caller in self.request().get("callers", ()))

    def advance(self, wanted, settings, wait_s, caller=""):
        """Start the job unless it is running, wait up to wait_s seconds for its end, and return its state.

        settings: {token, variables, ca_bundle}. Raises FleetError if the job cannot be started, or another job works
        there.
        """
        end = time.monotonic() + wait_s
        while True:
            with self.judging():
                state = self._turn(wanted, settings, caller)
            if state["state"] != "running" or time.monotonic() >= end:
                return state
            time.sleep(0.05)

    def _turn(self, wanted, settings, caller):
        """Join the worker, return its end or start one: the state."""
        if (self.state() or {}).get("state") in ENDED:
            self.gone(2)
        alive, request, state = self.alive(), self.request(), self.state()
        callers, given = request.get("callers", []), asdict(wanted)
        identity = json.loads(json.dumps({key: given[key] for key in IDENTITY}))
        ours = request.get("identity") == identity
        if alive and not ours:
            raise FleetError("jobs.other-job", wanted.destination, request.get("name"), self.pid())
        if alive:
            if caller not in callers:
                self.keep_request({**request, "callers": [*callers, caller]})
            return state if state and state["state"] == "running" else RUNNING
        if ours and state is not None and state["state"] in ENDED and caller in callers:
            callers.remove(caller)
            self.keep_request({**request, "callers": callers})
            verified = (request["verify"], state.get("result", {}).get("verified"))
            counts = wanted.verify == "quick" or "full" in verified
            if fresh(state["updated"]) if state["state"] == "failed" else counts:
                return state
        request = {
            "identity": identity,
            "name": wanted.name,
            "verify": wanted.verify,
            "callers": [caller],
            **(self._deaths(wanted, request, state) if ours else {}),
        }
        self._start(given, settings, request)
        return RUNNING

    def _deaths(self, wanted, request, state):
        """How often the job died without progress: {deaths, begun_at}. Raises FleetError."""
        if state and state["state"] != "running":
            return {}
        done = state["progress"]["bytes_done"] if state else 0
        deaths = request.get("deaths", 0) + 1 if done <= request.get("begun_at", 0) else 1
        if deaths <= DEATHS:
            return {"deaths": deaths, "begun_at": done}
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("state.json"))
        self.keep_request({})  # the next call starts again
        log = "\n".join(self.log().splitlines()[-LOG_LINES:])
        raise FleetError("jobs.died", wanted.name, wanted.destination, deaths, log or "(nothing)", self.path("log"))

    def _start(self, wanted, settings, request):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("state.json"))
        home = self.path("home")
        for folder in (self.folder, home):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        environment.update(HOME=home, TMPDIR=home)  # files of a killed job are removed with its folder
        given = json.dumps({"wanted": wanted, "settings": settings, "state": self.path("state.json")})
        from . import worker  # a quick check needs none of it

        self.launch([sys.executable, "-I", *program.work(self.folder, worker)], request, environment, given)
