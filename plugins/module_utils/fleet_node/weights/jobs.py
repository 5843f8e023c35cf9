# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that bring weights: one for each destination, which outlives the call that starts it.

A job is running, done or failed, as its state.json states; one that is gone while "running" was killed, and is started
again. A call that finds a running job for the same weights joins it. The end of a job is given once to each caller that
saw it running; every other call looks at the files themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from typing import NamedTuple

from .. import program
from ..errors import FleetError
from ..host import files
from ..host.jobs import ENDED, DetachedJob, fresh
from .lock import WAITING

STUCK_S = 30  # without a byte; then a worker with other settings replaces it
DEATHS = 3  # that a job may die without a byte of progress before that is an error
LOG_LINES = 15
RUNNING = {"state": "running"}  # of a worker that has not written more yet
FOREIGN = ("HF_", "HUGGING", "MODELSCOPE_", "PYTHON", "ANSIBLE_")  # variables that a worker does not inherit


class Task(NamedTuple):
    """What a job does. name: for messages. identity: what makes two jobs the same (JSON). request: for the worker.

    settings: what may decide whether the job succeeds and is no part of the weights (JSON with secrets; only a
    fingerprint of it is kept). verify: a job that checked less does not count.
    """

    name: str
    destination: str
    identity: dict
    request: dict
    settings: list | None = None
    verify: str = "quick"


class Job(DetachedJob):
    """The job that brings weights to one destination. folder: of all jobs."""

    def __init__(self, folder, destination):
        key = hashlib.sha256(destination.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        super().__init__(os.path.join(folder, "weights-" + key))

    def state(self):
        """The state as the worker wrote it, None where there is none."""
        return files.read_json(self.path("state.json"))

    def pending(self, caller):
        """Whether a worker is running, was killed, or has an end that this caller has to be given."""
        if self.alive():
            return True
        state = self.state()
        return state is not None and (state["state"] == "running" or caller in self.request().get("callers", ()))

    def advance(self, task, wait_s, caller=""):
        """Start the job unless it is running, wait up to wait_s seconds for its end, and return its state.

        Returns None where the end was given to another call of this caller, so that this call must look again. Raises
        FleetError where the job cannot be started, or another job works there.
        """
        end, seen = time.monotonic() + wait_s, None
        while True:
            with self.judging():
                state = self._turn(task, self.fingerprint(task.settings), caller, seen)
                seen = self.request().get("generation")
            if state is None or state["state"] != "running" or time.monotonic() >= end:
                return state
            time.sleep(0.05)

    def _turn(self, task, settings, caller, seen):
        """Join the worker, return its end or start one: the state. seen: the generation that this call waited for."""
        if (self.state() or {}).get("state") in ENDED:
            self.gone(2)
        alive, request, state = self.alive(), self.request(), self.state()
        callers = request.get("callers", [])
        ours = request.get("identity") == task.identity
        if alive and not ours:
            raise FleetError(
                "jobs.other-job",
                "Another job brings weights to %s: %s, process %s. Wait until it has ended, or run `kill %s`; "
                "downloaded bytes are kept.",
                (task.destination, request.get("name"), self.pid(), self.pid()),
            )
        if alive:
            if settings == request.get("settings") or not _stuck(request, state):
                if caller not in callers:
                    self.keep_request({**request, "callers": [*callers, caller]})
                return state if state and state["state"] == "running" else RUNNING
            self.stop()
        elif ours and state is not None and state["state"] in ENDED and caller in callers:
            callers.remove(caller)
            self.keep_request({**request, "callers": callers})
            current = settings == request.get("settings") and fresh(state["updated"])
            verified = (task.verify, request["verify"], state.get("result", {}).get("verified"))
            checked = verified[0] == "quick" or "full" in verified[1:]
            if checked if state["state"] == "done" else current:
                return state
        elif ours and seen and seen == request.get("generation") and caller not in callers:
            return None
        deaths = self._deaths(task, request, state, seen) if ours and not alive else {}
        self._start(task, settings, [*callers, caller] if alive else [caller], deaths)
        return RUNNING

    def _deaths(self, task, request, state, seen):
        """How often the job died without progress: {deaths, begun_at}. Raises FleetError."""
        if state is None and seen and seen == request.get("generation"):
            raise self._died(task, 1)
        if state is None or state["state"] != "running":
            return {}
        done = state["progress"]["bytes_done"]
        deaths = request.get("deaths", 0) + 1 if done <= request.get("begun_at", -1) else 1
        if deaths > DEATHS:
            raise self._died(task, deaths)
        return {"deaths": deaths, "begun_at": done}

    def _died(self, task, deaths):
        """An end by an error: the next call begins anew."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("state.json"))
        self.keep_request({})
        return FleetError(
            "jobs.died",
            "The job that brings %s to %s died %d times without progress. The last lines of its log are:\n%s\nCheck %s "
            "and the node's memory, and run again.",
            (task.name, task.destination, deaths, _tail(self.log()), self.path("log")),
        )

    def _start(self, task, settings, callers, deaths):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("state.json"))
        request = {
            "identity": task.identity,
            "name": task.name,
            "verify": task.verify,
            "settings": settings,
            "generation": os.urandom(8).hex(),
            "begun": time.time(),
            "callers": callers,
            **deaths,
        }
        home = self.path("home")
        os.makedirs(home, mode=0o700, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        environment.update(HOME=home, TMPDIR=home)  # what a killed job leaves goes with its folder
        given = json.dumps({**task.request, "state": self.path("state.json")})
        from . import worker  # here, since a quick check does without most of it

        self.launch([sys.executable, "-I", *program.work(self.folder, worker)], request, environment, given)


def _stuck(request, state):
    """Whether a worker has had no progress for a while, other than waiting for its turn."""
    if state is None:
        return time.time() - request["begun"] > STUCK_S
    return not state["progress"]["phase"].startswith(WAITING) and time.time() - state["moved"] > STUCK_S


def _tail(text):
    return "\n".join(text.splitlines()[-LOG_LINES:]) or "(nothing)"
