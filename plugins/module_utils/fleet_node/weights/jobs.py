# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that install weights: one for each destination, which outlives the call that starts it.

A job is running, done or failed, as its state.json states; one that is gone while "running" was killed, and is started
again. A call that finds a running job for the same weights joins it. Each caller that saw a job running receives its
end once; every other call compares the files themselves.

main() is the job's process. It reads {wanted, settings: {token, variables, ca_bundle}, state: path} from standard
input, so that no command line, environment or file contains a secret, and writes its state to that path until it ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from dataclasses import asdict

from .. import program
from ..errors import FleetError
from ..host import files
from ..host.jobs import ENDED, DetachedJob, fresh
from ..host.redact import Masked, Redactor
from .run import Run
from .transfer import Progress
from .wanted import Wanted

DEATHS = 3  # that a job may die without a byte of progress before that is an error
LOG_LINES = 15
EVERY_S = 0.5  # between two states
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
        state = self.state()
        if state is not None and state["state"] in ENDED:  # its process may not have ended yet
            return caller in self.request().get("callers", ())
        return state is not None or self.alive()

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
        self.launch([sys.executable, "-I", *program.work(self.folder, __name__)], request, environment, given)


# ---- the process of a job


def hub_of(wanted, settings):
    """The hub.Hub of a Wanted, None for files of the node. Its proxies are added to those of this process."""
    if not wanted.from_hub:
        return None
    from .http import Http  # here, because a quick check needs neither
    from .hub import Hub

    variables = {**os.environ, **settings["variables"]}
    http = Http(variables, settings["ca_bundle"], wanted.timeout_s, wanted.min_rate)
    return Hub(wanted, settings["token"], http)


def main():
    """Read the request, install the weights and write the state until they are installed."""
    request = json.load(sys.stdin)
    settings, progress, ended = request["settings"], Progress(), threading.Event()
    redactor = Redactor([settings["token"]], {**os.environ, **settings["variables"]})
    sys.stdout, sys.stderr = Masked(sys.stdout, redactor), Masked(sys.stderr, redactor)

    def write(**state):
        """Write a state. A full disk keeps the older one."""
        found = {"state": "running", "updated": time.time(), "progress": progress.snapshot(), **state}
        try:
            files.write_atomic(request["state"], json.dumps(redactor.value(found)), mode=0o600)
        except OSError as error:
            sys.stderr.write("cannot write %s: %s\n" % (request["state"], error))

    def tick():
        while not ended.wait(EVERY_S):
            write()

    write()
    ticks = threading.Thread(target=tick, daemon=True)
    ticks.start()
    state = _end_of(request, progress)
    ended.set()
    ticks.join()  # no state follows the last
    write(**state)
    sys.stdout.close()
    sys.stderr.close()


def _end_of(request, progress):
    """Install the weights: the last state of the job."""
    try:
        wanted = Wanted(**request["wanted"])
        result = Run(wanted, hub_of(wanted, request["settings"]), progress).run()
        progress.phase = "done"
        return {"state": "done", "result": result}
    except FleetError as error:
        return {"state": "failed", "error": {"message": error.message, "details": error.details}}
    except BaseException as error:
        import traceback  # here, because a quick check does not need it

        sys.stderr.write(traceback.format_exc())
        message = "The job failed: %s: %s. Check its log in %s." % (
            type(error).__name__, error, os.path.dirname(request["state"])
        )  # fmt: skip
        return {"state": "failed", "error": {"message": message, "details": {}}}
