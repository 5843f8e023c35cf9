# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A call of a benchmark tool: its command, and the content of its output.

plugin_utils/measure/tools.json describes the tools; functions for what is not data are here, by the names of the tools.
Exit codes are never read: AIPerf exits 0 if half of the requests fail, `vllm bench serve` if all do. No command
contains an API key: it is in the environment, as OPENAI_API_KEY. docs/developing/measuring.md compares the metrics.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import math
import os
import re
import shutil
import statistics
import urllib.parse
from dataclasses import dataclass, field

from ...containers.engine import engine_of_entry
from ...containers.launcher import container_name
from ...errors import FleetError
from ...host.files import write_atomic
from ...program import start
from ...supervise import containers
from ...supervise.run import engine_environment
from . import reading
from .reading import Reading, counted, json_lines, short

RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Point:
    """One call of a tool. spec: {program, template, environment, files, statistics, metrics} of the tool. urls:
    http://host:port, without a path. concurrency: None for no limit. limits: {ttft_ms, tpot_ms} or None.
    server_token_count: whether tokens are those of the server's `usage`. arguments: further arguments of the tool.
    sampling: further keys of each request's body. engine_arguments: of a tool that starts an engine."""

    tool: str
    spec: dict
    model: str
    tokenizer: str
    urls: tuple
    input_tokens: int
    output_tokens: int
    requests: int
    concurrency: int | None = None
    request_rate: float | None = None
    warmup_requests: int = 0
    seed: int = 0
    endpoint: str = "/v1/chat/completions"
    ignore_eos: bool = True
    server_token_count: bool = True
    sampling: dict = field(default_factory=dict)
    arguments: tuple = ()
    limits: dict | None = None
    engine_arguments: tuple = ()
    timeout_s: int = 3600

    def command(self, program, folder):
        """argv. program: argv before the tool's own arguments; folder: for the tool's files."""
        return [*program, *reading.expand(self.spec["template"], self.values(folder))]

    def variables(self, folder):
        """The environment; None removes a variable."""
        return reading.environment(self.spec, self.values(folder))

    def values(self, folder):
        """The values of placeholders in the table of tools, and in a recipe's commands."""
        url = urllib.parse.urlsplit(self.urls[0])
        goodput = [
            "%s:%s" % (name, self.limits[key])
            for key, name in (self.spec.get("goodput") or {}).items()
            if (self.limits or {}).get(key)
        ]
        body = {**({"ignore_eos": True} if self.ignore_eos else {}), **self.sampling}
        inputs = {"max_tokens": self.output_tokens, **self.sampling}
        if self.ignore_eos:
            inputs.update(min_tokens=self.output_tokens, ignore_eos=True)
        flags = [["--%s ${value}" % name.replace("_", "-"), {"value": value}] for name, value in self.sampling.items()]
        users = self.concurrency or 1
        values = {**dataclasses.asdict(self), "output": folder, "host": url.hostname, "port": url.port}
        del values["spec"]
        return {
            **values,
            "values": json.dumps(values),
            "url": self.urls[0],
            "several": True if len(self.urls) > 1 else None,
            "base_urls": ";".join(url + "/v1" for url in self.urls),
            "kind": "chat" if "chat" in self.endpoint else "completions",
            "backend": "openai-chat" if "chat" in self.endpoint else "openai",
            "warmup": self.warmup_requests or None,
            "warmup_or_one": max(1, self.warmup_requests),
            "warmup_batches": math.ceil(self.warmup_requests / users),
            "batches": math.ceil(self.requests / users),
            "goodput": goodput or None,
            "goodput_line": " ".join(goodput) or None,
            "body": json.dumps(body),
            "extra_inputs": [
                json.dumps({name: value}) if isinstance(value, dict) else "%s:%s" % (name, json.dumps(value))
                for name, value in inputs.items()
            ],
            "sampling_flags": [word for flag, value in flags for word in reading.expand([flag], value)],
        }

    def read(self, folder, log):
        """The Reading of a folder. An exception means a run without a result."""
        data = reading.load(folder, self.spec["files"])
        records = RECORDS[self.tool](folder) if self.tool in RECORDS else []
        errors = _aiperf_errors(data) if self.tool == "aiperf" and data else None
        errors = errors or counted(one for one in records if one is not None)
        if not errors and self.tool == "llmperf":  # threads that died
            errors = counted(short("%s: %s" % found) for found in RAISED.findall(log))
        found = Reading(errors=errors)
        if data is None:
            found.completed = records.count(None)
            found.failed = len(records) - found.completed
            return found
        if self.tool == "vllm-latency":
            data = _latencies(data, self)
        data = {**data, "point": dataclasses.asdict(self)}
        return reading.read(self.spec["metrics"], data, self.spec.get("statistics") or {}, found)

    def done(self, folder, log):
        """The number of finished requests of a running tool, None if unknown."""
        if self.tool == "vllm-latency":  # the first progress bar is that of the warm-up
            batches, _all = reading.progress(log.partition("Profiling iterations")[2])
            return batches and batches * self.concurrency
        found, _all = reading.progress(log)
        return len(RECORDS[self.tool](folder)) if found is None and self.tool in RECORDS else found


# AIPerf accepts a key only as an argument, which other users of the node could read; it is added in-process.
AIPERF_WITH_KEY = (
    "import os, sys; sys.argv = ['aiperf', *sys.argv[1:], '--api-key', os.environ['OPENAI_API_KEY']]; "
    "from aiperf.cli import app; sys.exit(app())"
)


def with_key(tool, program):
    """The program of a tool for servers that require an API key."""
    if tool != "aiperf":
        return program
    return [os.path.join(os.path.dirname(program[0]), "python"), "-c", AIPERF_WITH_KEY]


def _aiperf_records(folder):
    """Without a profile, which AIPerf does not write if all requests failed, the records contain the errors."""
    found = json_lines(os.path.join(folder, "profile_export.jsonl"))
    found = [one for one in found if (one.get("metadata") or {}).get("benchmark_phase") == "profiling"]
    return [_aiperf_message(one["error"]) if one.get("error") else None for one in found]


def _aiperf_errors(profile):
    return [
        {"message": _aiperf_message(one.get("error_details")), "count": int(one.get("count") or 0)}
        for one in profile.get("error_summary") or ()
    ]


def _aiperf_message(details):
    details = details if isinstance(details, dict) else {}
    return short(details.get("cause") or details.get("message") or details.get("type") or "unknown")


def _llmperf_records(folder):
    found = reading.load(folder, ("*_individual_responses.json",)) or {}
    return [
        None if one.get("error_code") is None
        else short(("%s: %s" % (one["error_code"], one.get("error_msg") or "")).strip(": "))
        for one in found.values()
    ]  # fmt: skip


def _aisbench_records(folder):
    pattern = "/[0-9]*_[0-9]*/performances/fleet/synthetic_details.jsonl"
    paths = sorted(glob.glob(glob.escape(folder) + pattern))
    found = json_lines(paths[-1]) if paths else []
    return [None if one.get("success") else short(one.get("error_info") or "The request failed.") for one in found]


RECORDS = {"aiperf": _aiperf_records, "aisbench": _aisbench_records, "llmperf": _llmperf_records}


def _latencies(data, point):
    """The requests of a batch begin and end together: the duration of a batch is the latency of its requests."""
    times = sorted(one for one in data.get("latencies") or () if isinstance(one, (int, float)))
    if not times:
        return {}
    shares = statistics.quantiles(times * 2 if len(times) == 1 else times, n=100, method="inclusive")
    return {
        "completed": min(len(times) * point.concurrency, point.requests),
        "latency": {"mean": sum(times) / len(times), **{"p%d" % one: shares[one - 1] for one in (50, 90, 95, 99)}},
    }


# ---- how each tool is started on a node


METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: %s\n"


def outside(spec):
    """Whether a tool does not run in the engine's environment or container."""
    return spec["program"][0] in ("environment", "worker", "node")


def program(point, environment, entry, root, folder, version=None):
    """(argv before the tool's own arguments, variables, the Python that can load a tokenizer or None).

    point: has `tool`, the name, and `spec`. environment: folder of the tool's environment. entry: the first measured
    server. folder: for this collection's files; it exists. version: of the engine. Raises FleetError if the tool is not
    installed.
    """
    kind, *inner = point.spec["program"]
    if kind == "node":
        return [], {}, None
    if kind == "environment":
        # a configuration file of the tool is next to its environment
        argv = [os.path.join(environment, "bin", inner[0]), *(environment + name for name in inner[1:])]
        return _installed(argv, point), {}, os.path.join(environment, "bin", "python")
    if kind == "worker":
        python, worker, *script = [os.path.join(environment, "bin", "python"), *inner]
        source = environment + "-source"  # LLMPerf is not a package: a script and its modules
        script = [os.path.join(source, name) for name in script]
        _installed([python, *script], point)
        argv = [python, *([] if script else ["-I"]), start(folder), "work", worker, *script]
        return argv, {"PYTHONPATH": os.path.join(source, "src")} if script else {}, python
    if kind == "instead":
        return _instead(point, entry, root, folder, version)
    if entry["container"]:
        inner = ["vllm", "bench", *inner] if kind == "engine" else inner
        argv = engine_of_entry(entry).argv("exec", "-e", "OPENAI_API_KEY", container_name(entry["name"], root), *inner)
        return argv, {}, None
    if kind == "container":
        _missing(point, "%s does not run in a container" % entry["name"])
    argv, python = _vllm(entry, point, folder, version)
    variables = {name: value for name, value in entry["environment"].items() if name != "PATH"}
    return [*argv, "bench", *inner], {**variables, "PYTHONPATH": folder}, python


def _instead(point, entry, root, folder, version):
    """program() of a tool that starts an engine in place of that of an entry: on its cores, in its container.

    The next start of the server ends processes that the tool left, like those of a previous start.
    """
    action = point.spec["program"][1]
    if entry["container"]:
        argv = ["vllm", "bench", action]
        launch = [*entry["launch"][: len(entry["launch"]) - len(entry["command"])], *argv]
        argv = containers.launch_command({**entry, "launch": launch, "command": argv}, root)
        return argv, containers.client_environment(entry, {}, root), None
    argv, python = _vllm(entry, point, folder, version)
    argv += ["bench", action]
    if entry["cpus"]:
        argv = ["taskset", "--cpu-list", entry["cpus"], *argv]
    variables = {**engine_environment(entry, {}, root), "PYTHONPATH": folder}
    if entry["user"]:  # files that it writes into the engine's folders belong to the server
        argv = ["runuser", "-u", entry["user"], "--", *argv]
    return argv, variables, python


def _vllm(entry, point, folder, version):
    """(argv of the engine's command line, its Python). Its distribution is written into the folder, because the command
    line requires it even if the engine was installed under another name. Raises OSError."""
    python = entry["command"][0]
    if os.path.basename(python) == "vllm":
        python = os.path.join(os.path.dirname(python), "python")
    _installed([python], point)
    # without +cpu the command line loads kernels for AVX-512, whatever the CPU has
    version = (version or "0") + ("+cpu" if entry["platform"] == "cpu" else "")
    for other in glob.glob(os.path.join(glob.escape(folder), "vllm-*.dist-info")):
        shutil.rmtree(other, ignore_errors=True)
    path = os.path.join(folder, "vllm-%s.dist-info" % version)
    os.makedirs(path, exist_ok=True)
    write_atomic(os.path.join(path, "METADATA"), METADATA % version)
    return [python, "-m", "vllm.entrypoints.cli.main"], python


def _installed(argv, point):
    for path in argv:
        if not os.path.exists(path):
            _missing(point, "%s does not exist" % path)
    return argv


def _missing(point, why):
    raise FleetError("measure.tool-missing", point.tool, why)
