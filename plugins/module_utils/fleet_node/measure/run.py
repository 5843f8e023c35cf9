# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A measurement on a node: a job that outlives the call which starts it, and its result.

The folder of a measurement is named after everything that its result depends on, so that a later call finds a running
job, a result that counts, or what an interrupted one left.
"""

from __future__ import annotations

import json
import os
import re
import shlex

from ..errors import FleetError
from ..host import files, http_client
from ..host.files import make_directory
from ..host.jobs import DetachedJob
from ..host.paths import PATH
from ..host.server_spec import digest
from ..host.values import mapping_of, now, utc
from ..launchers import stop_leftovers
from ..servers import identity
from ..servers.api_keys import client_key, common_client_key
from ..servers.model import Observed
from ..servers.observe import observe
from ..servers.readiness import check_ready
from ..verify import runner
from ..verify.asking import Options
from . import result
from .tools import benchmarks, reading

NO_KEY = "EMPTY"  # clients of these tools do not start without a key
KILL_S = 30  # after the time limit
# The exit status is kept for messages: whether requests failed is read from the tool's output.
JOB = (
    'umask 077; folder=$1; cd "$2" || exit; shift 2; "$@"; status=$?; %s'
    'echo $status >"$folder/.status" && mv "$folder/.status" "$folder/status"'
)
# The signals that end a job end the tool, but not this shell. The end of the log is the tool's.
AFTER = 'trap : TERM INT HUP; "$@"; status=$?; %s >/dev/null 2>&1; exit $status'
TIMED_OUT = ("124", "137")
STARTED = re.compile(r"^process_start_time_seconds(?:\{[^}]*\})? (\S+)", re.MULTILINE)
LONGEST = 2000  # characters of the end of a log in a message
# The exceptions of code that reads the files of a tool.
UNREADABLE = (OSError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError)


class Run:
    """A measurement of planned servers. The folder has job/, output/ (the tool's files), status (the exit status of a
    tool that has ended) and result.json.

    A subclass has tool (its name), spec (its entry in tools.json), environment (the folder of its environment),
    values() of the placeholders, document(result.empty(), status), and progress(). planned: {name: plan entry};
    limit_s: the time limit; again: whether a result that counts is measured again.
    """

    def __init__(self, params, node, planned, folder, key, limit_s, again):
        self.params, self.node, self.planned, self.limit_s, self.again = params, node, planned, limit_s, again
        self.digits = digest([result.SCHEMA, key])[:16]
        self.folder = os.path.join(node.paths.lib, folder, self.digits)
        self.job = DetachedJob(os.path.join(self.folder, "job"))
        self.output = os.path.join(self.folder, "output")
        self.stopped = None  # StoppedServers, for a tool that starts an engine

    @property
    def first(self):
        """The first measured server."""
        return next(iter(self.planned.values()))

    def look(self, check_mode=False):
        """{changed, finished, document or None, progress, restarted}: the result, or the state of the job, which is
        started if there is neither. Raises FleetError if the servers differ from the plan."""
        self.key()  # also masks it in what the tool printed
        kept = files.read_json(os.path.join(self.folder, "result.json"))
        if check_mode:
            counts = kept and kept["ok"] and not self.again and not self.job.alive()
            return self.answer(not counts, kept if counts else None, True)
        with self.job.judging():
            return self.advance(kept)

    def advance(self, kept):
        """Collect, start or report the job, with the start lock locked."""
        request = self.job.request()
        mine = request.get("caller") == self.params["caller"]
        if self.job.alive():
            if not mine:
                self.job.keep_request({**request, "caller": self.params["caller"]})
        else:
            collected = not kept and request and (mine or not self.again)
            if collected:
                kept = self.collect(request)
            if kept and (mine or (kept["ok"] and not self.again)):
                changed = collected or (mine and (self.stopped or not kept["ok"]))
                return self.answer(bool(changed), kept)
            self.start(request)
        if not self.job.gone(self.params["wait_s"]):
            return self.answer(True, None)
        return self.answer(True, self.collect(self.job.request()))

    def answer(self, changed, document, finished=None):
        """The result of the operation. It is finished when the stopped servers are ready again."""
        progress = self.progress() if os.path.isdir(self.job.folder) else None
        lack = self.stopped.lack() if self.stopped and document and changed else None
        if lack:
            document, progress["phase"] = None, "waiting for servers: " + lack
        return {
            "changed": changed,
            "finished": finished or document is not None,
            "document": document,
            "progress": progress,
            "restarted": sorted(self.stopped.entries) if self.stopped and changed and not finished else [],
        }

    def start(self, before):
        """Check the servers, then send load. before: the request of the last job."""
        processes = self.check()
        killed = self.spec.get("resumes") and before and not os.path.exists(os.path.join(self.folder, "status"))
        killed = killed and not changed_starts(before["processes"], processes)  # else its result would be void
        make_directory(self.folder)
        for folder in (self.job.folder,) if killed else (self.job.folder, self.output):
            files.remove(folder)
        for folder in (self.job.folder, self.output):
            make_directory(folder)
            files.place(folder, 0o700, folder=True)  # a server may write next to its output
        argv, environment = self.prepare()
        files.write_atomic(os.path.join(self.folder, "result.json"), "null\n")
        if os.path.exists(os.path.join(self.folder, "status")):
            os.unlink(os.path.join(self.folder, "status"))
        began = before["began"] if killed else now()
        request = {
            "caller": self.params["caller"],
            "id": before["id"] if killed else result.new_id(began),
            "began": began,
            "command": argv,
            "processes": before["processes"] if killed else processes,
        }
        environment = {
            "PATH": PATH, "LANG": "C.UTF-8", "HOME": self.output, "OPENAI_API_KEY": self.key() or NO_KEY, **environment
        }  # fmt: skip
        environment = {name: value for name, value in environment.items() if value is not None}
        argv = [*self.time_limit(), *argv]
        if self.stopped:
            self.job.keep_request(request)  # if this ends before the launch, the next call starts the servers
            self.stopped.stop()
            argv = self.stopped.wrapped(argv)
        # files of the tool that contain the API key
        clean = "rm -rf -- %s; " % self.spec["clean"] if self.spec.get("clean") else ""
        self.job.launch(["/bin/sh", "-c", JOB % clean, "sh", self.folder, self.output, *argv], request, environment)

    def time_limit(self):
        """The beginning of a command that ends at the time limit."""
        return ["timeout", "--kill-after=%d" % KILL_S, str(self.limit_s)]

    def prepare(self):
        """(argv, environment)."""
        version = self.params["head"]["versions"]["engine"]
        argv, variables, python = benchmarks.program(
            self.tool, self.spec, self.environment, self.first, self.node.paths.root, self.folder, version,
            bool(self.key()), self.time_limit(),
        )  # fmt: skip
        self.check_tokenizer(python)
        values = self.values()
        argv += reading.expand(self.spec["template"], values)
        return argv, {**variables, **reading.environment(self.spec, values)}

    def check_tokenizer(self, python):
        """Raises FleetError if the tool needs a tokenizer that cannot be used."""

    def collect(self, request):
        """The document of a job that has ended, kept in the folder."""
        self.job.stop()  # processes that the tool left
        void = None
        if self.stopped:
            self.stopped.start()
        else:
            changed = changed_starts(request["processes"], self.processes())
            void = "%s changed or restarted during the run" % ", ".join(changed) if changed else None
        status = (files.read_text(os.path.join(self.folder, "status")) or "").strip() or None
        document = self.document({**result.empty(self.params, request, self.ended()), "void": void}, status)
        text = json.dumps(document, indent=1) + "\n"
        files.write_atomic(os.path.join(self.folder, "result.json"), text, mode=0o600)
        return document

    def key(self):
        """The API key that is sent."""
        return common_client_key(self.node.paths, self.planned.values())

    def check(self):
        """Every server is the planned one and answers: processes(). Raises FleetError."""
        key, watch = self.key(), identity.Watch(self.node)
        found = runner.verify_servers(
            list(self.planned.values()),
            Options(mode="quick"),
            watch.over,
            key_of=lambda entry: client_key(self.node.paths, entry),
        )
        problems = ["%s: %s" % (one["server"], _cause(one)) for one in found["verdicts"] if one["ok"] is not True]
        headers = {"Authorization": "Bearer " + key} if key else None
        for name, url in self.others().items():
            answer = http_client.request("GET", url + "/v1/models", headers=headers)
            if answer.status != 200:
                problems.append(
                    "%s of another host does not answer this host at %s (%s)"
                    % (name, url, answer.error or "status %s" % answer.status)
                )
        if problems or not found["verdicts"]:
            raise FleetError("measure.not-verified", "; ".join(problems) or "none has a port")
        return self.processes()

    def others(self):
        """{HOST/NAME: address} of the measured servers of other hosts."""
        return {"%(host)s/%(name)s" % one: one["url"] for one in self.params.get("elsewhere") or () if one["url"]}

    def processes(self):
        """{name: value that differs between two starts of a server}. A change makes a measurement void."""
        found = starts_of(self.node, self.planned)
        for name, url in self.others().items():
            began = STARTED.search(http_client.request("GET", url + "/metrics").text or "")
            found[name] = began and began.group(1)
        return found

    def ended(self):
        """The time at which the tool ended, which may be long before its result is collected."""
        for path in (os.path.join(self.folder, "status"), self.job.path("log")):
            if os.path.exists(path):
                return utc(os.path.getmtime(path))
        return now()

    def last_words(self):
        """The end of the log."""
        lines = [line.strip() for line in self.job.log().replace("\r", "\n").splitlines() if line.strip()]
        return "\n".join(lines[-12:])[-LONGEST:] or "the tool printed nothing"


class StoppedServers:
    """Servers that stop for a tool that starts an engine, and start again. entries: {name: plan entry}.

    The job of the tool starts them when the tool has ended, even if no call waits for it. If the job was killed, the
    next call starts them; after a reboot the service manager does, because they were stopped and not disabled.
    """

    def __init__(self, node, entries):
        self.node, self.entries = node, entries

    def stop(self):
        """Stop them. Raises FleetError if a process remains, and starts them again."""
        try:
            self.node.manager.stop(list(self.entries))
            self._end_leftovers()
        except FleetError:
            self.node.manager.start(list(self.entries))
            raise

    def _end_leftovers(self):
        for name, entry in self.entries.items():
            left = stop_leftovers(entry, self.node.paths.root)
            if left:
                raise FleetError("measure.server-stays", name, "; ".join(left))

    def wrapped(self, argv):
        """argv that runs `argv` and then starts the servers."""
        return ["/bin/sh", "-c", AFTER % shlex.join(self.node.manager.start_argv(list(self.entries))), "sh", *argv]

    def start(self):
        """End the tool's engine, and start the servers that do not run."""
        up = {name for name, status in self.node.manager.statuses().items() if status.state in ("up", "restarting")}
        down = [name for name in self.entries if name not in up]
        if down:
            self._end_leftovers()
            self.node.manager.start(down)

    def lack(self):
        """The reason why they are not ready, or None. Raises FleetError if waiting cannot help."""
        try:
            check_ready(self.node, list(self.entries.values()))
        except FleetError as error:
            if error.details.get("final"):
                raise
            return error.message
        return None


def starts_of(node, entries):
    """{name: value} of a node's planned servers, from the guard's record and from whether it is current: a server that
    died has the old record until it is started again. entries: {name: plan entry}."""
    observed = observe(node.paths, node.manager, entries)
    found = {}
    for name in entries:
        one = observed.get(name) or Observed(name)
        state = mapping_of(one.state)
        found[name] = [
            state.get("hash"), state.get("pid"), state.get("ticks"), state.get("started"), one.fresh,
            sorted(container.id for container in one.containers if container.running),
        ]  # fmt: skip
    return found


def changed_starts(before, after):
    """The names of servers whose start differs, sorted."""
    return sorted(name for name, start in after.items() if before.get(name) != start)


def _cause(verdict):
    return verdict.get("not_verified") or "; ".join(
        "%s: %s" % (probe["name"], probe["cause"]) for probe in verdict["probes"] if probe["ok"] is False
    )
