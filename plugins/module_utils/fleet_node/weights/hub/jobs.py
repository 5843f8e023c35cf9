# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that bring weights: one for each destination, started by a call and joined by others, ended by nobody else.

A job is running, done or failed, as its state.json says; one that is gone without an end was killed, and is started
again a few times. Its end is reported once to each caller that saw it running. The end of a job that no caller saw is
reported to the next one, if what lies on the disk agrees; a failure that no caller saw counts for nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import NamedTuple

from ... import program
from ...errors import FleetError
from ...node import files
from ...node.jobs import DetachedJob, fresh
from ..lock import WAITING

STUCK_S = 30  # without a byte; then a worker gives way to one with other settings
LOOK_S = 60  # without a byte; then a look is given up
DEATHS = 3  # that a job may die without a byte of progress before that is an error
LOG_LINES = 15
ENDED = ("done", "failed")
RUNNING = {"state": "running"}  # of a worker that has not said more yet
# What a job knows of those before it at the same weights: settings that were given up for its own; {caller: {settings,
# state}} of a failure that is due; results that no caller was given; whether files were changed by others meanwhile.
BEFORE = {"given_up": [], "failures": {}, "earlier": [], "repeated": False}


class Job(DetachedJob):
    """The job that brings weights to one destination. toolkit: the environment with the clients; None: none is needed,
    and the interpreter of this process does."""

    def __init__(self, folder, toolkit, destination):
        key = hashlib.sha256(destination.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        super().__init__(os.path.join(folder, "weights-" + key))
        self.toolkit = toolkit

    def request(self):
        """waiting: {who saw it running, and was not given its end: the settings that they asked for}. reported: whether
        anybody was given its end. BEFORE: see there."""
        return {**BEFORE, "waiting": {}, "reported": False, **super().request()}

    def state(self):
        """The state as the worker wrote it, None where there is none."""
        return files.read_json(self.path("state.json"))

    def pending(self, caller):
        """Whether a worker is running, was killed, or came to an end that this caller has to be given."""
        if self.alive():
            return True
        state = self.state()
        if state is None or state["state"] == "running":
            return state is not None
        request = self.request()
        return caller in request["waiting"] or (state["state"] == "done" and not request["reported"])

    def advance(self, task, settings, environment, wait_s, caller="", report=True):
        """Start the job unless it is running, wait up to wait_s seconds for its end, and return its state.

        task: a Task. settings: what is no part of the weights (endpoint, proxies, token, …), JSON. A running worker
        with other settings is joined; only one without progress is ended, and its successor continues its files. Its
        failure is reported to nobody who asked for other settings. environment(home): the variables of a worker.
        caller: the task whose calls belong together. Without `report` a good end counts as not reported until report().

        Returns None where the end was reported to another call of this caller, so that one must look again. Raises
        FleetError where the job cannot be started, or another one works there.
        """
        end = time.monotonic() + wait_s
        seen = None
        while True:
            with self.judging():
                state = self._turn(task, self.fingerprint(settings), environment, caller, seen)
                seen = self.request().get("generation")
                if report and state is not None and state["state"] == "done":
                    self._report(caller)
            if state is None or state["state"] != "running" or time.monotonic() >= end:
                return state
            time.sleep(0.05)

    def report(self, caller):
        """This caller has used the end that was returned without `report`."""
        if self.state() is None:
            return
        with self.judging():
            if (self.state() or {}).get("state") == "done":
                self._report(caller)

    def _report(self, caller):
        """Note that the caller knows the end; forget it when all who saw the job know."""
        request = self.request()
        request["waiting"].pop(caller, None)
        self.keep_request({**request, "reported": True})
        if not request["waiting"]:
            self._forget()

    def _turn(self, task, settings, environment, caller, seen):
        """Join the worker, return its end or start one: the state. seen: the generation that this call waited for."""
        if (self.state() or {}).get("state") in ENDED:
            self.gone(2)
        alive, request, state = self.alive(), self.request(), self.state()
        deaths = {}
        if alive:
            if request.get("identity") != task.identity:
                raise FleetError(
                    "jobs.other-job",
                    "Another job brings weights to %s: %s, process %s. Wait until it has ended, or end it with "
                    "`kill %s`; what has come stays.",
                    (task.destination, request.get("name"), self.pid(), self.pid()),
                )
            # Settings that were given up once do not end their successor: two that hang would take turns.
            if settings in (request.get("settings"), *request["given_up"]) or not _stuck(request, state):
                if caller not in request["waiting"]:
                    request["waiting"][caller] = settings
                    self.keep_request(request)
                return state if state and state["state"] == "running" else RUNNING  # one that has just ended: next time
            self.stop()
            request["given_up"] = [*request["given_up"], request.get("settings")]
        elif request.get("identity") != task.identity:
            request = dict(BEFORE)
        elif request["reported"] and (state is None or caller not in request["waiting"]):
            if seen == request.get("generation"):
                return None
            request = {**BEFORE, "failures": request["failures"]}
        elif state is None or state["state"] == "running":
            deaths = self._after_death(task, request, state, caller, seen)
        elif state["state"] == "failed":
            failure = {"settings": request.get("settings"), "state": state}
            due = [other for other, asked in request["waiting"].items() if asked == failure["settings"]]
            request["failures"] = {**request["failures"], **dict.fromkeys(due, failure)}
        else:
            result = self._result(task, caller, request, state["result"])
            if result is not None:
                return {**state, "result": result}
        request["failures"] = dict(request["failures"])
        failure = request["failures"].pop(caller, None)
        if failure and failure["settings"] == settings and fresh(failure["state"]["updated"]):
            # Where other settings have failed too, none of them are tried again and again.
            self.keep_request({**request, "waiting": {}, "reported": True})
            self._forget()
            return failure["state"]
        self._start(task, settings, environment, caller, request, deaths)
        return RUNNING

    def _result(self, task, caller, request, result):
        """The result for this caller; None where a job has to look again, and `request` says what it has to know."""
        seen = caller in request["waiting"]
        request.update(given_up=[], failures={})
        earlier = request["earlier"] + [result] * result["changed"]
        read = seen and "full" in (request.get("verify"), result.get("verified"))
        more = (task.verify == "full" and not read) or (task.refresh and not seen)
        differs = "" if more else task.differs(strict=False)  # what came may be gone by now
        if more or (not differs and not seen and task.differs(strict=True)):
            request["earlier"] = earlier
            return None
        if differs and request["repeated"]:  # twice is no chance
            self._give_up(request, caller)
            raise FleetError(
                "weights.changed-meanwhile",
                "%s came to %s twice, and then %s. Something else changes that directory; find out what, and run "
                "again.",
                (task.name, task.destination, differs),
            )
        if differs:
            request["repeated"] = True
            return None
        if request["earlier"]:
            message = "; ".join(one["message"] for one in earlier)
            diff = {**result["diff"], "before": earlier[0]["diff"]["before"]}
            result = {**result, "changed": True, "message": message, "diff": diff}
        return result if seen else {**result, "verified": "quick"}

    def _after_death(self, task, request, state, caller, seen):
        """How often it died: a killed job is started again, and continues what that one left. Raises FleetError."""
        if state is None and seen and seen == request.get("generation"):
            self._give_up(request, caller)
            raise FleetError(
                "jobs.did-not-start",
                "The job that brings %s to %s did not start. The last lines of %s:\n%s",
                (task.name, task.destination, self.path("log"), _tail(self.log())),
            )
        done = state["progress"]["bytes_done"] if state else 0
        deaths = request.get("deaths", 0) + 1 if done <= request.get("begun_at", -1) else 1
        if deaths > DEATHS:
            self._give_up(request, caller)
            raise FleetError(
                "jobs.died",
                "The job that brings %s to %s died %d times without getting further. The last lines of %s:\n%s",
                (task.name, task.destination, deaths, self.path("log"), _tail(self.log())),
            )
        return {"deaths": deaths, "begun_at": done}

    def _give_up(self, request, caller):
        """An end by an error: the next call begins anew."""
        self._forget()
        request["waiting"].pop(caller, None)
        self.keep_request({**request, "reported": True})

    def _forget(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("state.json"))

    def _start(self, task, settings, environment, caller, before, deaths):
        python = python_of(self.toolkit) if self.toolkit else sys.executable
        self._forget()
        request = {
            "identity": task.identity,
            "name": task.name,
            "verify": task.verify,
            "settings": settings,
            "generation": os.urandom(8).hex(),
            "begun": time.time(),
            "waiting": {caller: settings},
            **{key: before[key] for key in BEFORE},
            **deaths,
        }
        given = json.dumps({**task.request, "state": self.path("state.json")})
        os.makedirs(self.path("home"), mode=0o700, exist_ok=True)
        self.launch(_argv(python, self), request, environment(self.path("home")), given)

    def look(self, wanted, environment):
        """What a run would do, by a worker that changes nothing: its state. Raises FleetError where it does not run.

        environment(home): the variables of a worker. One that gets no further is ended; its state is a failure then.
        Without the toolkit it is the interpreter of this process.
        """
        toolkit = bool(self.toolkit) and os.path.isdir(self.toolkit)
        python = python_of(self.toolkit) if toolkit else sys.executable
        with tempfile.TemporaryDirectory(prefix="inference-fleet-") as folder:
            job = DetachedJob(folder)
            given = {"wanted": asdict(wanted), "state": job.path("state.json"), "toolkit": toolkit}
            begun, given_up = time.time(), False
            process = job.launch(_argv(python, job), {}, environment(folder), json.dumps(given))
            while process.poll() is None:
                state = files.read_json(job.path("state.json")) or {"moved": begun}
                if time.time() - state["moved"] > LOOK_S:
                    given_up = True
                    job.stop()
                time.sleep(0.02)
            state, said = files.read_json(job.path("state.json")), job.log()
        if state and state["state"] in ENDED:
            return state
        if given_up:
            message = (
                "A look at %s got no further for %d s and was ended. %s may be overloaded or out of reach; check "
                "endpoint and proxies, or try later." % (wanted.name, LOOK_S, wanted.hub)
            )
            return {**(state or {}), "state": "failed", "error": {"message": message, "details": {"problem": "busy"}}}
        raise FleetError("jobs.worker-no-answer", "The worker in %s did not answer:\n%s", (self.toolkit, _tail(said)))


def _stuck(request, state):
    """Whether a worker got no further for a while. One that waits for its turn would be followed by one that does."""
    if state is None:
        return time.time() - request["begun"] > STUCK_S
    return not state["progress"]["phase"].startswith(WAITING) and time.time() - state["moved"] > STUCK_S


def _tail(text):
    return "\n".join(text.splitlines()[-LOG_LINES:]) or "(nothing)"


class Task(NamedTuple):
    """What a job does. name: for messages. identity: what makes two jobs the same (JSON). request: for the worker.

    differs(strict): what lies at the destination is not what the manifest there says, as text, "" where it is; strict:
    other times count. verify, refresh: as in hub.Desired; such a job must have been seen at work by who asked for it.
    """

    name: str
    destination: str
    identity: dict
    request: dict
    differs: Callable
    verify: str = "quick"
    refresh: bool = False


def hub_task(wanted, differs):
    """The Task of bringing a hub.Desired."""
    identity = {
        **wanted.identity(),
        "destination": wanted.destination,
        "format": wanted.format,
        "draft": wanted.draft,
        "refresh": wanted.refresh,
    }
    request = {"wanted": asdict(wanted)}
    return Task(wanted.name, wanted.destination, identity, request, differs, wanted.verify, wanted.refresh)


def python_of(toolkit):
    """The interpreter of the toolkit. Raises FleetError."""
    python = os.path.join(toolkit, "bin", "python")
    if not os.access(python, os.X_OK):
        raise FleetError(
            "weights.toolkit-missing", "There is no Python environment in %s; run the role toolkit first.", (toolkit,)
        )
    return python


def _argv(python, job):
    from . import worker  # here, since a quick look does without most of it

    return [python, "-I", *program.work(job.folder, worker)]
