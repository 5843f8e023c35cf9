# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One point of a benchmark."""

from __future__ import annotations

import os
import pwd

from ..errors import FleetError
from ..host import commands, files
from ..host.server_spec import check_entries
from ..servers.desired import container_owner
from ..servers.model import Node
from . import result
from .run import LONGEST, TIMED_OUT, UNREADABLE, Run, StoppedServers
from .tools import benchmarks
from .tools.reading import Reading

SENTENCE = "The quick brown fox jumps over the lazy dog."
FEWEST = 4  # tokens of that sentence; an empty tokenizer has 3
COUNT = "import sys, tokenizers; t = tokenizers.Tokenizer.from_file(sys.argv[1]); print(len(t.encode(sys.argv[2]).ids))"
UNTOLD = "the tool reports no reason"


def run(params, check_mode=False):
    """The result of a point, or its state: Run.look(). params: those of the operation benchmark_run."""
    return Benchmark(params, Node.of_parameters(params)).look(check_mode)


class Benchmark(Run):
    """A call of a benchmark tool."""

    def __init__(self, params, node):
        point = self.point = params["point"]
        head = self.head = params["head"]
        planned = check_entries(params["servers"])
        asked = {key: value for key, value in point.items() if key != "timeout_s"}
        plan_hash = result.plan_hash([*planned.values(), *params["elsewhere"]])
        key = [plan_hash, head["recipe_hash"], head["profile"], asked, head["versions"]["tool"]]
        key += ["candidate"] if head.get("candidate") else []  # whose results do not count elsewhere
        super().__init__(params, node, planned, "benchmarks", key, point["timeout_s"], params["again"])
        self.tool, self.spec, self.environment = point["tool"], point["spec"], params["environment_path"]
        self.is_outside = benchmarks.outside(self.spec)
        if self.first["container"] and not self.is_outside:  # a folder that the container sees
            self.output = os.path.join(self.first["directories"]["work"], "benchmark-" + self.digits)
        if self.spec["program"][0] == "instead":
            self.stopped = StoppedServers(node, check_entries([*planned.values(), *(params["beside"] or ())]))

    def prepare(self):
        """(argv, environment)."""
        user, owner = self.first["user"], container_owner(self.first)
        if user and not self.is_outside:
            owner = (pwd.getpwnam(user).pw_uid, None)
        if owner and not self.is_outside:
            files.place(self.output, 0o700, *owner, folder=True)
        return super().prepare()

    def values(self):
        return benchmarks.values(self.point, self.output)

    def check_tokenizer(self, python):
        """It splits a sentence. With an empty tokenizer some tools silently count no tokens. Raises FleetError."""
        path = os.path.join(self.point["tokenizer"], "tokenizer.json")
        problem = "" if os.path.isfile(path) else "tokenizer.json is missing"
        if not problem and python:
            done = commands.run([python, "-I", "-c", COUNT, path, SENTENCE], idle_s=commands.IDLE_S)
            count = done.stdout.strip()
            if done.returncode or not count.isdigit():
                problem = (done.stderr.strip().splitlines() or ["no output"])[-1]
            elif int(count) < FEWEST:
                problem = "%r is %s tokens" % (SENTENCE, count)
        if problem:
            raise FleetError("measure.tokenizer", self.point["tokenizer"], problem)

    def progress(self):
        """{phase, percent, …} for the screen."""
        done, asked = benchmarks.done(self.point, self.output, self.job.log()), self.point["requests"]
        return {
            "phase": "%s: %s of %d requests" % (self.tool, "?" if done is None else done, asked),
            "percent": None if done is None else min(100, round(100 * done / asked)),
            "requests_done": done,
        }

    def reading(self):
        """The Reading of the tool's files; damaged files count as no answers."""
        try:
            return benchmarks.read(self.point, self.output, self.job.log())
        except UNREADABLE as error:
            message = "the files of %s cannot be read: %r" % (self.tool, error)
            return Reading(errors=[{"message": message[:LONGEST], "count": self.point["requests"]}])

    def document(self, empty, status):
        """`empty` with what the tool reports. status: its exit status, None if it was killed."""
        asked, reading = self.point["requests"], self.reading()
        failed = min(asked, max(reading.failed, asked - reading.completed))
        errors, told = list(reading.errors), sum(one["count"] for one in reading.errors)
        why = errors[0]["message"] if errors else self.last_words().splitlines()[-1]
        if failed > told:
            words = "no answer within %d s, the time limit" % self.limit_s if status in TIMED_OUT else UNTOLD
            errors.append({"message": words, "count": failed - told})
        reason = "%d of %d requests failed" % (failed, asked) if failed else None
        if not reading.completed:
            reason = "no request was answered: " + why
        elif not reading.metrics["output_tokens_per_s"]:
            reason = "%s reports no output tokens/s for %d completed requests: %s" % (
                self.tool, reading.completed, why
            )  # fmt: skip
        count = self.head["hardware"]["count"]
        rate, tpot = reading.metrics["output_tokens_per_s"], reading.metrics["tpot_ms"]["mean"]
        reading.metrics["output_tokens_per_s_per_accelerator"] = rate / count if rate is not None and count else None
        if tpot:  # a mean of the rates of requests would be dominated by answers that arrive in one chunk
            reading.metrics["output_tokens_per_s_per_user"] = 1000 / tpot
        lengths = {"input_tokens": reading.input_tokens, "output_tokens": reading.output_tokens}
        return {
            **empty,
            "workload": {**empty["workload"], **lengths},
            "counts": {"asked": asked, "completed": asked - failed, "failed": failed},
            "errors": sorted(errors, key=lambda one: -one["count"]),
            "metrics": reading.metrics,
            "ok": reason is None and not empty["void"],
            "reason": reason,
        }
