# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One point of a benchmark on a node: what is checked before load is sent, the job, and the result that follows.

A job outlives the call that starts it. The folder of a point is named after what is measured, so that a later play
finds a job that runs, a result that counts, or what an interrupted one left.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import time

from ..errors import FleetError
from ..node import commands, files, http_client
from ..node.directories import make_directory
from ..node.jobs import DetachedJob
from ..node.paths import PATH
from ..node.server_spec import canonical, check_entries
from ..servers import identity
from ..servers.api_keys import api_keys
from ..servers.model import Node
from ..verify import runner
from ..verify.asking import Options
from . import own_engine, result, starts
from .tools import programs
from .tools.base import Point, Reading
from .tools.registry import TOOLS

NO_KEY = "EMPTY"  # the clients of these tools refuse to start without one
KILL_S = 10  # after the time limit, which is timeout's, so that it holds where nobody looks any more
SENTENCE = "The quick brown fox jumps over the lazy dog."
FEWEST = 4  # tokens of that sentence; an empty tokenizer has 3 of its own
COUNT = "import sys, tokenizers; t = tokenizers.Tokenizer.from_file(sys.argv[1]); print(len(t.encode(sys.argv[2]).ids))"
STARTED = re.compile(r"^process_start_time_seconds(?:\{[^}]*\})? (\S+)", re.MULTILINE)
UNTOLD = "not said by the tool"
LOG = 2000  # characters of the end of a log, where it is all there is


def bring(params, check_mode=False):
    """Start the point, or look at it: {changed, finished, progress, document or None}. Raises FleetError.

    params: those of the module benchmark_run.
    """
    given = params["point"]
    sequences = {name: tuple(given.get(name) or ()) for name in ("urls", "arguments", "engine_arguments")}
    point = Point(**{**given, **sequences})
    planned = check_entries(params["servers"])
    node = Node.of_parameters(params)
    run = _Run(params, point, planned, node)
    kept = run.kept()
    if check_mode:
        return run.answer(False, kept) if kept and not params["again"] else {**run.answer(True, None), "finished": True}
    with run.job.judging():
        return run.advance(kept, params["wait_s"])


class _Run:
    """A point in its folder: job/ (the job), output/ (the tool's files), result.json (when it has ended)."""

    def __init__(self, params, point, planned, node):
        self.params, self.point, self.planned, self.node = params, point, planned, node
        self.tool = TOOLS[point.tool]
        self.plan_hash = result.plan_hash([*planned.values(), *params["elsewhere"]])
        asked = {key: value for key, value in dataclasses.asdict(point).items() if key != "timeout_s"}
        key = [self.plan_hash, params["head"].get("recipe_hash"), params["head"].get("profile"), asked]
        digits = hashlib.sha256(canonical(key)).hexdigest()[:16]
        self.folder = os.path.join(node.paths.lib, "benchmarks", digits)
        self.job = DetachedJob(os.path.join(self.folder, "job"))
        self.output = os.path.join(self.folder, "output")
        first = next(iter(planned.values()))
        if first["container"] and self.tool.NAME not in programs.OWN:  # what the container sees as well
            self.output = os.path.join(first["directories"]["work"], "benchmark-" + digits)
        self.stopped = None
        if self.tool.OWN_ENGINE:
            self.stopped = own_engine.Servers(node, check_entries([*planned.values(), *(params["beside"] or ())]))

    def kept(self):
        """The document of the last run of this point; None without one."""
        return files.read_json(os.path.join(self.folder, "result.json"))

    def advance(self, kept, wait_s):
        """One look, with the start lock held."""
        request = self.job.request()
        mine = request.get("caller") == self.params["caller"]
        if not self.job.alive():
            if kept and kept["ok"] and (mine or not self.params["again"]):
                return self.answer(mine and self.stopped is not None, kept)
            if kept and mine:
                return self.answer(True, kept)
            if not kept and request and (mine or not self.params["again"]):
                document = self.collect(request)
                if document["ok"] or mine:
                    return self.answer(True, document)
            self.start()
        elif not mine:
            self.job.keep_request({**request, "caller": self.params["caller"]})
        if not self.job.gone(wait_s):
            return self.answer(True, None)
        return self.answer(True, self.collect(self.job.request()))

    def answer(self, changed, document):
        """What the module returns. It is finished when servers that were stopped are ready again."""
        progress = self.progress()
        lack = self.stopped.lack() if self.stopped and document and changed else None
        if lack:
            document, progress["phase"] = None, "the servers come back: " + lack
        restarted = sorted(self.stopped.entries) if self.stopped and changed else []
        return {
            "changed": changed, "finished": document is not None, "document": document, "progress": progress,
            "restarted": restarted,
        }  # fmt: skip

    def start(self):
        """Check what must be right, then send load."""
        key = next(iter(api_keys(self.params["api_key"], "benchmark_api_key")), "")
        before = self.check()
        make_directory(self.folder)
        argv, variables, python = self.program()
        if key and hasattr(self.tool, "with_key"):
            argv = self.tool.with_key(argv)
        self.check_tokenizer(python)
        for folder in (self.output, self.job.folder):
            shutil.rmtree(folder, ignore_errors=True)
        make_directory(self.output)
        make_directory(self.job.folder)
        files.write_atomic(os.path.join(self.folder, "result.json"), "null\n")
        argv = self.tool.command(self.point, argv, self.output)
        environment = {
            "PATH": PATH,
            "LANG": "C.UTF-8",
            "HOME": self.output,
            "OPENAI_API_KEY": key or NO_KEY,
            **variables,
            **self.tool.variables(self.point, self.output),
        }
        if self.first["user"] and self.tool.NAME not in programs.OWN:
            shutil.chown(self.output, self.first["user"])
        environment = {name: value for name, value in environment.items() if value is not None}
        request = {
            "caller": self.params["caller"],
            "began": result.now(),
            "at": time.time(),
            "command": argv,
            "before": before,
        }
        argv = ["timeout", "--kill-after=%d" % KILL_S, str(self.point.timeout_s), *argv]
        if self.stopped:
            self.stopped.stop()
            argv = self.stopped.wrapped(argv)
        self.job.launch(argv, request, environment)

    def program(self):
        """What programs.program() says of the tool."""
        version = (self.params["head"].get("versions") or {}).get("engine")
        root = self.node.paths.root
        if self.stopped:
            return programs.own_engine(self.point.tool, self.tool.ACTION, self.first, root, self.folder, version)
        environment = self.params["environment_path"]
        return programs.program(self.point.tool, environment, self.first, root, self.folder, version)

    @property
    def first(self):
        return next(iter(self.planned.values()))

    def check(self):
        """Every server is the planned one and answers: {name: which process}. Raises FleetError."""
        options = Options(mode="quick", api_key=next(iter(api_keys(self.params["api_key"], "benchmark_api_key")), ""))
        watch = identity.Watch(self.node)
        found = runner.verify_servers(list(self.planned.values()), options, watch.over)
        bad = [verdict for verdict in found["verdicts"] if verdict["ok"] is not True]
        if bad or not found["verdicts"]:
            why = "; ".join("%s: %s" % (one["server"], _cause(one)) for one in bad) or "none has a port"
            raise FleetError(
                "measure.not-verified",
                "The servers are not verified, so nothing was sent: %s. Run site.yml, or verify.yml to see more.",
                (why,),
            )
        processes = self.processes()
        headers = {"Authorization": "Bearer " + options.api_key} if options.api_key else None
        for name, url in self.others().items():
            answer = http_client.request("GET", url + "/v1/models", headers=headers)
            if answer.status != 200:
                raise FleetError(
                    "measure.not-answering",
                    "%s of another host does not answer this one at %s (%s), so nothing was sent. Verify that host, "
                    "and see that its port can be reached from here.",
                    (name, url, answer.error or "status %s" % answer.status),
                )
        return processes

    def others(self):
        """{HOST/NAME: address} of the servers of other hosts that are asked."""
        return {_elsewhere(one): one["url"] for one in self.params["elsewhere"] if one.get("url")}

    def processes(self):
        """{name: what tells one start of a server from another}."""
        found = starts.starts_of(self.node, self.planned)
        for name, url in self.others().items():  # where they tell; another process has begun at another time
            began = STARTED.search(http_client.request("GET", url + "/metrics").text or "")
            found[name] = began and began.group(1)
        return found

    def check_tokenizer(self, python):
        """It can be loaded and splits a sentence. Some tools count nothing, silently, where it cannot."""
        path = os.path.join(self.point.tokenizer, "tokenizer.json")
        problem = "" if os.path.isfile(path) else "there is no tokenizer.json"
        if not problem and python:
            done = commands.run([python, "-I", "-c", COUNT, path, SENTENCE], idle_s=commands.IDLE_S)
            count = done.stdout.strip()
            if done.returncode or not count.isdigit():
                problem = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            elif int(count) < FEWEST:
                problem = "%r is %s tokens" % (SENTENCE, count)
        if problem:
            raise FleetError(
                "measure.tokenizer",
                "The tokenizer in %s cannot be used: %s. Tools would count no tokens. Check the weights.",
                (self.point.tokenizer, problem),
            )

    def collect(self, request):
        """The document of a job that has ended, kept in the folder."""
        self.job.stop()  # what a tool left behind
        changed = []
        if self.stopped:
            self.stopped.start()
        else:
            changed = starts.changed(request["before"], self.processes())
        document = self.document(self.reading(), request, changed)
        files.write_json(os.path.join(self.folder, "result.json"), document)
        return document

    def reading(self):
        """What the tool's files say; files of another form say nothing, as if nothing was answered."""
        try:
            return self.tool.read(self.point, self.output, self.job.log())
        except (OSError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
            message = "the files of %s cannot be read: %r" % (self.point.tool, error)
            return Reading(errors=[{"message": message[:LOG], "count": self.point.requests}])

    def document(self, reading, request, changed):
        """The result. reading: base.Reading; changed: servers that are not those of before."""
        point, asked = self.point, self.point.requests
        failed = min(asked, max(reading.failed, asked - reading.completed))
        errors, told = list(reading.errors), sum(one["count"] for one in reading.errors)
        late = time.time() - request["at"] >= point.timeout_s
        if failed > told:
            words = "no answer within %d s, the time limit of the run" % point.timeout_s if late else UNTOLD
            errors.append({"message": words, "count": failed - told})
        void = "%s changed or restarted during the run" % ", ".join(changed) if changed else None
        reason = "%d of %d requests failed" % (failed, asked) if failed else None
        if not reading.completed:
            reason = "no request was answered: " + _last_words(self.job.log(), errors)
        elif not reading.metrics["output_tokens_per_s"]:
            reason = "%s has no output tokens/s of %d requests that it calls completed: %s" % (
                point.tool, reading.completed, _last_words(self.job.log(), errors)
            )  # fmt: skip
        count = (self.params["head"].get("hardware") or {}).get("count") or 0
        rate = reading.metrics["output_tokens_per_s"]
        reading.metrics["output_tokens_per_s_per_accelerator"] = rate / count if rate is not None and count else None
        tpot = reading.metrics["tpot_ms"]["mean"]
        # of all tools the same; the mean of each request's rate is that of answers that came in one piece
        user = 1000 / tpot if tpot else reading.metrics.get("output_tokens_per_s_per_user")
        reading.metrics["output_tokens_per_s_per_user"] = user
        return {
            "schema": result.SCHEMA,
            "kind": "benchmark",
            "id": result.new_id(request["began"]),
            "began": request["began"],
            "ended": self.ended(),
            **self.params["head"],
            "plan_hash": self.plan_hash,
            "servers": [*self.planned, *map(_elsewhere, self.params["elsewhere"])],
            "tool": {
                "name": point.tool,
                "version": (self.params["head"].get("versions") or {}).get("tool"),
                "command": request["command"],
            },
            "workload": {
                "input_tokens_asked": point.input_tokens,
                "output_tokens_asked": point.output_tokens,
                "input_tokens": reading.input_tokens,
                "output_tokens": reading.output_tokens,
                "concurrency": point.concurrency,
                "request_rate": point.request_rate,
                "requests": asked,
            },
            "counts": {"asked": asked, "completed": asked - failed, "failed": failed},
            "errors": sorted(errors, key=lambda one: -one["count"]),
            "metrics": reading.metrics,
            "limits": point.limits,
            "ok": reason is None and not void,
            "reason": reason,
            "void": void,
        }

    def ended(self):
        """When the tool wrote its last word; who collects its result may come much later."""
        try:
            return time.strftime(result.TIME, time.gmtime(os.path.getmtime(self.job.path("log"))))
        except OSError:
            return result.now()

    def progress(self):
        """{phase, percent, rate, ...} for the screen, as other polled tasks have it."""
        done = self.tool.done(self.point, self.output, self.job.log()) if os.path.isdir(self.job.folder) else None
        seconds = time.time() - self.job.request().get("at", time.time())
        return {
            "phase": "%s: %s of %d requests" % (self.point.tool, "?" if done is None else done, self.point.requests),
            "percent": None if done is None else min(100, round(100 * done / self.point.requests)),
            "requests_done": done,
            "requests_per_s": round(done / seconds, 2) if done and seconds > 0 else None,
            "seconds": round(seconds),
        }


def _elsewhere(one):
    """The name of a server of another host, where names of this host's servers stand beside it."""
    return "%s/%s" % (one["host"], one["name"])


def _cause(verdict):
    return verdict.get("not_verified") or "; ".join(
        "%s: %s" % (probe["name"], probe["cause"]) for probe in verdict["probes"] if probe["ok"] is False
    )


def _last_words(log, errors):
    lines = [line.strip() for line in log.replace("\r", "\n").splitlines() if line.strip()]
    told = next((one["message"] for one in errors if one["message"] != UNTOLD), None)
    return (told or (lines[-1] if lines else "the tool said nothing"))[-LOG:]
