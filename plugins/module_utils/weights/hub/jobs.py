# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that bring weights: started once for each destination, looked at as often as one likes, ended by nobody else.

Beside what every detached job has, its folder holds state.json: how far it is, or how it ended. An end is news to those
who saw the job at work; to others it is worth what lies on the disk, and a failure nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node import files
from ansible_collections.inference.fleet.plugins.module_utils.node.jobs import DetachedJob, fresh
from ansible_collections.inference.fleet.plugins.module_utils.weights.hub import TOKENS
from ansible_collections.inference.fleet.plugins.module_utils.weights.lock import WAITING

STUCK_S = 30  # without a byte; then a worker gives way to one that goes another way
LOOK_S = 60  # without a byte; then a look is given up
DEATHS = 3  # that a job may die without a byte of progress before that is told
LOG_LINES = 15
ENDED = ("done", "failed")
RUNNING = {"state": "running"}  # of a worker that has not said more yet
KEPT = ("left", "news", "again", "owed")  # of a request, where its job was killed
# What a worker must not take over from whoever starts it: other accounts, other caches, other Python.
FOREIGN = ("HF_", "HUGGING", "MODELSCOPE_", "PYTHON", "ANSIBLE_")


class Job(DetachedJob):
    """The job that brings weights to one destination. toolkit: the environment with the clients; None: none is needed,
    and the interpreter of this process does."""

    def __init__(self, folder, toolkit, destination):
        key = hashlib.sha256(destination.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        super().__init__(os.path.join(folder, "weights-" + key))
        self.toolkit = toolkit

    def request(self):
        """callers: {who saw it at work: the way that they asked for}. told: who was told its end. left: ways that were
        given up for its own. owed: {caller: {way, state} of an earlier job whose failure it has to be told}."""
        return {"callers": {}, "told": [], "left": [], "owed": {}, **super().request()}

    def state(self):
        """The state as the worker wrote it, None where there is none."""
        return files.read_json(self.path("state.json"))

    def pending(self, caller):
        """Whether a worker is at work, was killed at it, or came to an end that this caller has to hear of."""
        if self.alive():
            return True
        state = self.state()
        if state is None or state["state"] == "running":
            return state is not None
        request = self.request()
        if caller in request["callers"]:
            return caller not in request["told"]
        return state["state"] == "done" and not request["told"]

    def advance(self, task, how, environment, wait_s, caller="", tell=True):
        """Start the job unless it is running, wait up to wait_s seconds for its end, and say how it is.

        task: a Task. how: what is no part of the weights (endpoint, proxies, token, …), JSON. A running worker of
        another `how` is joined; only one without progress is ended, and its successor goes on where it was. Its failure
        is told to nobody who asked for another way. environment(home): the variables of a worker. caller: the task
        whose calls belong together. Each caller is told an end once; without `tell` one that is good is told until
        `told` is called.

        Returns the job's state; its "state" is also `told` where this end was told to another call of this caller, so
        that one must look again. Raises FleetError where the job cannot be started, or another one works there.
        """
        end = time.monotonic() + wait_s
        seen = None
        while True:
            with self.judging():
                state = self._turn(task, self.fingerprint(how), environment, caller, seen)
                seen = self.request().get("generation")
                if state["state"] in ENDED and (tell or state["state"] == "failed") and "owed" not in state:
                    self._tell(caller)
            if state["state"] != "running" or time.monotonic() >= end:
                return state
            time.sleep(0.05)

    def told(self, caller):
        """This caller knows of the end that was told without `tell`."""
        if self.state() is None:
            return
        with self.judging():
            if (self.state() or {}).get("state") in ENDED:
                self._tell(caller)

    def _tell(self, caller):
        """Note whom the end is told; forget it when all who saw the job know."""
        request = self.request()
        request["told"].append(caller)
        self.keep_request(request)
        if set(request["callers"]) <= set(request["told"]):
            self._forget()

    def _turn(self, task, way, environment, caller, seen):
        """Join the worker, tell its end or start one: the state. seen: the generation that this call has waited for."""
        if (self.state() or {}).get("state") in ENDED:
            self.gone(2)
        alive, request, state = self.alive(), self.request(), self.state()
        same = request.get("identity") == task.identity
        more = {}
        if alive:
            if not same:
                raise FleetError(
                    "jobs.other-job",
                    "Another job brings weights to %s: %s, process %s. Wait until it has ended, or end it with "
                    "`kill %s`; what has come stays.",
                    (task.destination, request.get("name"), self.pid(), self.pid()),
                )
            # Who was given up once does not come back against its successor: two that hang would take turns.
            if way in (request.get("way"), *request["left"]) or not _stuck(request, state):
                if caller not in request["callers"]:
                    request["callers"][caller] = way
                    self.keep_request(request)
                return state or RUNNING
            self.stop()
            more = {"left": [*request["left"], request.get("way")], "owed": request["owed"]}
        elif same and state and state["state"] in ENDED:
            found, more = self._judged(task, way, caller, request, state)
            if found:
                return found
        elif same and state is None and seen and seen == request.get("generation"):
            if request["told"]:
                return {"state": "told"}
            self._tell_trouble(request, caller)
            raise FleetError(
                "jobs.did-not-start",
                "The job that brings %s to %s did not start. The last lines of %s:\n%s",
                (task.name, task.destination, self.path("log"), _tail(self.log())),
            )
        elif same and (state or not request["told"]):
            more = self._after_death(task, request, state, caller)
        owed = request["owed"].pop(caller, None)
        if owed and same and owed["way"] == way and fresh(owed["state"]["updated"]):
            self.keep_request(request)  # the other way failed too: neither is tried again and again
            return {**owed["state"], "owed": True}
        self._start(task, way, environment, {"callers": {caller: way}, **more})
        return RUNNING

    def _judged(self, task, way, caller, request, state):
        """(the state to tell this caller, None), or (None, what the next job has to keep of this end)."""
        mine = caller in request["callers"]
        if caller in request["told"] or (request["told"] and not mine):
            return None, {}
        if state["state"] == "failed":
            if mine and way == request.get("way") and fresh(state["updated"]):
                return state, None
            its = request.get("way")
            others = [other for other, asked in request["callers"].items() if asked == its and other != caller]
            due = {other: {"way": its, "state": state} for other in others if other not in request["told"]}
            return None, {"owed": {**request["owed"], **due}}
        result = state["result"]
        news = {"message": result["message"], "before": result["diff"]["before"]}
        kept = {"news": _merged(request.get("news"), news)} if result["changed"] else {}
        asked = mine and "full" in (request.get("verify"), result.get("verified"))
        if (task.verify == "full" and not asked) or (task.refresh and not mine):
            return None, kept
        differs = task.differs(strict=False)  # what came may be gone by now
        if not differs and not mine and task.differs(strict=True):
            return None, kept
        if differs and not request.get("again"):
            return None, {"again": True}
        if differs:  # twice is no chance
            self._tell_trouble(request, caller)
            raise FleetError(
                "weights.changed-meanwhile",
                "%s came to %s twice, and then %s. Something else changes that directory; find out what, and run "
                "again.",
                (task.name, task.destination, differs),
            )
        return {**state, "result": _told_late(result, request.get("news"), mine)}, None

    def _after_death(self, task, request, state, caller):
        """What the next job keeps of one that was killed, or the machine was: it goes on where that one was."""
        if not request.get("generation"):
            return {}
        done = state["progress"]["bytes_done"] if state else 0
        deaths = request.get("deaths", 0) + 1 if done <= request.get("begun_at", -1) else 1
        if deaths > DEATHS:
            self._tell_trouble(request, caller)
            raise FleetError(
                "jobs.died",
                "The job that brings %s to %s died %d times without getting further. The last lines of %s:\n%s",
                (task.name, task.destination, deaths, self.path("log"), _tail(self.log())),
            )
        return {"deaths": deaths, "begun_at": done, **{key: request[key] for key in KEPT if key in request}}

    def _tell_trouble(self, request, caller):
        """An error that is no state is told: the next call begins anew."""
        self._forget()
        self.keep_request({**request, "told": [*request["told"], caller]})

    def _forget(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("state.json"))

    def _start(self, task, way, environment, more):
        python = python_of(self.toolkit) if self.toolkit else sys.executable
        script = self._script()
        self._forget()
        request = {
            "identity": task.identity,
            "name": task.name,
            "verify": task.verify,
            "way": way,
            "generation": os.urandom(8).hex(),
            "begun": time.time(),
            **more,
        }
        given = json.dumps({**task.request, "state": self.path("state.json")})
        os.makedirs(self.path("home"), mode=0o700, exist_ok=True)
        self.launch([python, "-I", script], request, environment(self.path("home")), given)

    def look(self, wanted, environment):
        """What a run would do, by a worker that changes nothing: its state. Raises FleetError where it does not run.

        environment(home): the variables of a worker. One that gets no further is ended; its state is a failure then.
        Without the toolkit it is the interpreter of this process.
        """
        toolkit = bool(self.toolkit) and os.path.isdir(self.toolkit)
        python = python_of(self.toolkit) if toolkit else sys.executable
        with tempfile.TemporaryDirectory(prefix="inference-fleet-") as folder:
            script, kept, log = (os.path.join(folder, name) for name in ("weights-worker.pyz", "state.json", "log"))
            files.write_atomic(script, packed())
            begun, given_up = time.time(), False
            with open(log, "wb") as stream:
                process = subprocess.Popen(
                    [python, "-I", script],
                    stdin=subprocess.PIPE,
                    stdout=stream,
                    stderr=stream,
                    cwd="/",
                    env=environment(folder),
                )
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps({"wanted": wanted.plain(), "state": kept, "toolkit": toolkit}).encode())
                process.stdin.close()
            while process.poll() is None:
                state = files.read_json(kept) or {"moved": begun}
                if time.time() - state["moved"] > LOOK_S:
                    given_up = True
                    process.kill()
                    process.wait()
                time.sleep(0.02)
            state, said = files.read_json(kept), files.read_text(log)
        if state and state["state"] in ENDED:
            return state
        if given_up:
            message = (
                "A look at %s got no further for %d s and was ended. %s may be overloaded or out of reach; check "
                "endpoint and proxies, or try later." % (wanted.name, LOOK_S, wanted.hub)
            )
            return {**(state or {}), "state": "failed", "error": {"message": message, "details": {"problem": "busy"}}}
        raise FleetError(
            "jobs.worker-no-answer", "The worker in %s did not answer:\n%s", (self.toolkit, _tail(said or ""))
        )

    def _script(self):
        """The worker as one file, written where it is missing or another version."""
        content = packed()
        path = os.path.join(os.path.dirname(self.folder), "weights-worker.pyz")
        try:
            with open(path, "rb") as stream:
                if stream.read() == content:
                    return path
        except FileNotFoundError:
            pass
        files.write_atomic(path, content)
        return path


def _stuck(request, state):
    """Whether a worker got no further for a while. One that waits for its turn would be followed by one that does."""
    state = state or {}
    if state.get("progress", {}).get("phase", "").startswith(WAITING):
        return False
    # A worker of an older version says only that it lives.
    moved = state.get("moved", request.get("begun", state.get("updated")))
    return moved is not None and time.time() - moved > STUCK_S


def _merged(first, second):
    """The news of two ends as one. first: or None."""
    return {"message": first["message"] + "; " + second["message"], "before": first["before"]} if first else second


def _told_late(result, news, mine):
    """The result with the news of an earlier end that nobody was told; what was not read for this caller is not
    verified in full."""
    if news:
        own = {"message": result["message"], "before": result["diff"]["before"]}
        news = _merged(news, own) if result["changed"] else news
        result = {
            **result,
            "changed": True,
            "message": news["message"],
            "diff": {**result["diff"], "before": news["before"]},
        }
    return result if mine else {**result, "verified": "quick"}


def _tail(text):
    return "\n".join(text.splitlines()[-LOG_LINES:]) or "(nothing)"


class Task(NamedTuple):
    """What a job does. name: for messages. identity: what makes two jobs the same (JSON). request: for the worker.

    differs(strict): what lies at the destination is not what the manifest there says, as text, "" where it is; strict:
    other times count. verify, refresh: as in hub.Wanted; such a job must have been seen at work by who asked for it.
    """

    name: str
    destination: str
    identity: dict
    request: dict
    differs: Callable
    verify: str = "quick"
    refresh: bool = False


def hub_task(wanted, differs):
    """The Task of bringing a hub.Wanted."""
    identity = {
        **wanted.identity(),
        "destination": wanted.destination,
        "format": wanted.format,
        "draft": wanted.draft,
        "refresh": wanted.refresh,
    }
    request = {"wanted": wanted.plain()}
    return Task(wanted.name, wanted.destination, identity, request, differs, wanted.verify, wanted.refresh)


def python_of(toolkit):
    """The interpreter of the toolkit. Raises FleetError."""
    python = os.path.join(toolkit, "bin", "python")
    if not os.access(python, os.X_OK):
        raise FleetError(
            "weights.toolkit-missing", "There is no Python environment in %s; run the role toolkit first.", (toolkit,)
        )
    return python


def carried():
    """Everything that the worker imports of this collection, the worker last; a quick look does without most of it."""
    from ansible_collections.inference.fleet.plugins.module_utils import errors
    from ansible_collections.inference.fleet.plugins.module_utils.node import (
        directories,
        files,
        os_errors,
        paths,
        redact,
    )
    from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron import eagle3
    from ansible_collections.inference.fleet.plugins.module_utils.weights import (
        checkpoints,
        hub,
        local,
        lock,
        manifest,
        progress,
        sources,
        staging,
        standin,
    )
    from ansible_collections.inference.fleet.plugins.module_utils.weights.hub import (
        digest,
        download,
        huggingface,
        known,
        modelscope,
        plain,
        preview,
        private,
        selection,
        transfer,
        worker,
    )
    from ansible_collections.inference.fleet.plugins.module_utils.weights.sources import path as path_source
    from ansible_collections.inference.fleet.plugins.module_utils.weights.sources import standin as standin_source

    return (
        checkpoints, digest, directories, download, eagle3, errors, files, hub, huggingface, known, local, lock,
        manifest, modelscope, os_errors, path_source, paths, plain, preview, private, progress, redact, selection,
        sources, staging, standin, standin_source, transfer, worker,
    )  # fmt: skip


def packed():
    """The worker and what it needs of this collection as a zip that Python runs; the same bytes each time."""
    import io
    import zipfile

    buffer = io.BytesIO()
    sources = {module.__name__: module for module in carried()}
    folders = {"/".join(name.split(".")[:depth]) for name in sources for depth in range(1, name.count(".") + 1)}
    entries = {folder + "/__init__.py": "" for folder in folders}
    for name, module in sources.items():
        path = name.replace(".", "/")
        loader = module.__spec__.loader if module.__spec__ is not None else module.__loader__
        entries[path + ("/__init__.py" if hasattr(module, "__path__") else ".py")] = loader.get_source(name)
    entries["__main__.py"] = "from %s import main\n\nmain()\n" % carried()[-1].__name__
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(entries):
            archive.writestr(zipfile.ZipInfo(path, date_time=(1980, 1, 1, 0, 0, 0)), entries[path])
    return buffer.getvalue()


def own_environment():
    """The variables of this process, without what is foreign to a worker."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


def child_environment(home, wanted, token, extra, ca_bundle):
    """The variables of a worker: this process's own without what is foreign to it, the proxies, the token.

    extra: {name: value} such as proxies, which stand in both cases. ca_bundle: path or None. home: a folder for what
    the clients want to keep.
    """
    environment = own_environment()
    for name, value in (extra or {}).items():
        for spelling in {name, name.lower(), name.upper()} if name.lower().endswith("_proxy") else {name}:
            environment[spelling] = str(value)
    if ca_bundle:
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            environment[name] = ca_bundle
    environment.update(
        HOME=home,
        TMPDIR=home,  # what a job that is ended leaves behind goes with its folder
        TQDM_DISABLE="1",
        HF_HOME=os.path.join(home, "huggingface"),
        HF_HUB_DISABLE_XET="1",  # goes to other hosts, and cannot go on in the middle of a file
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_DISABLE_UPDATE_CHECK="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        HF_HUB_DISABLE_IMPLICIT_TOKEN="1",
        HF_HUB_DOWNLOAD_TIMEOUT=str(wanted.timeout_s),
        HF_HUB_ETAG_TIMEOUT=str(wanted.timeout_s),
        MODELSCOPE_CACHE=os.path.join(home, "modelscope"),
        MODELSCOPE_DOWNLOAD_TIMEOUT=str(wanted.timeout_s),
        MODELSCOPE_API_TIMEOUT=str(wanted.timeout_s),
        MODELSCOPE_REPO_TREE_PAGE_TIMEOUT_SECONDS=str(wanted.timeout_s),
        MODELSCOPE_DOWNLOAD_TOTAL_TIMEOUT=str(7 * 24 * 3600),  # of one file; its own is one hour
        MODELSCOPE_DOWNLOAD_MIN_BYTES_PER_SECOND=str(wanted.min_rate),
        MODELSCOPE_DOWNLOAD_LOW_SPEED_WINDOW_SECONDS=str(wanted.min_rate_window_s),
        MODELSCOPE_DOWNLOAD_MAX_RETRIES="0",  # the worker tries again, and knows when that is of use
        MODELSCOPE_REPO_TREE_PAGE_MAX_ATTEMPTS="1",
        MODELSCOPE_DOWNLOAD_FILE_LOCK="false",  # the job has its own
    )
    if token:
        environment[TOKENS[wanted.source]] = token
    return environment


def check_certificates(path):
    """Raise FleetError unless this file holds certificates to trust: a client tells of it as if the hub were away, or
    not at all."""
    import ssl  # takes as long as all else that a quick look imports

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cafile=path)
        why = "" if context.cert_store_stats()["x509"] else "it holds none"
    except ssl.SSLError as error:
        why = error.reason.lower().replace("_", " ") if error.reason else str(error)
    except OSError as error:
        why = error.strerror
    if why or not os.path.isabs(path):
        raise FleetError(
            "weights.ca-bundle-unreadable",
            "ca_bundle is %s, which is no file with certificates (PEM) on this node: %s. Give the absolute path of one "
            "(in a play: fleet_ca_bundle), or none for the system's own.",
            (path, why or "it is relative"),
        )


def how(wanted, token, extra, ca_bundle):
    """What differs where a job would go another way to the same weights (JSON). It holds secrets; only a fingerprint of
    it is kept."""
    proxies = sorted((name.lower(), str(value)) for name, value in (extra or {}).items())
    numbers = [wanted.workers, wanted.retries, wanted.timeout_s, wanted.min_rate, wanted.min_rate_window_s]
    return [wanted.endpoint, token, proxies, _file(ca_bundle), *numbers]


def _file(path):
    """A path with what tells whether the file was changed; None for none."""
    if not path:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return [path]
    return [path, status.st_size, status.st_mtime_ns]
