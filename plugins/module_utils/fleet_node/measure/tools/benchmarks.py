# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A call of a benchmark tool: its command, and the content of its output.

plugin_utils/measure/tools.json describes the tools; functions for what is not data are here, by the names of the tools.
Exit codes are never read: AIPerf exits 0 if half of the requests fail, `vllm bench serve` if all do. No command
contains an API key: it is in the environment, as OPENAI_API_KEY. docs/developing/measuring.md compares the metrics.
"""

from __future__ import annotations

import glob
import json
import math
import os
import re
import shutil
import statistics
import urllib.parse

from ...containers.engine import container_name, engine_of_entry
from ...errors import FleetError
from ...host.files import write_atomic
from ...host.values import mapping_of
from ...program import start
from ...supervise import containers
from ...supervise.run import engine_environment
from . import reading
from .reading import Reading, counted, json_lines, short

RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.*)$", re.MULTILINE)


def values(point, folder):
    """The values of placeholders in the table of tools, and in a recipe's commands.

    point: of plugin_utils.measure.points; folder: for the tool's files.
    """
    url, limits, sampling = urllib.parse.urlsplit(point["urls"][0]), point["limits"] or {}, point["sampling"]
    names = (point["spec"].get("goodput") or {}).items()
    goodput = ["%s:%s" % (name, limits[key]) for key, name in names if limits.get(key)]
    body, inputs = dict(sampling), {"max_tokens": point["output_tokens"], **sampling}
    if point["ignore_eos"]:
        body = {"ignore_eos": True, **sampling}
        inputs.update(min_tokens=point["output_tokens"], ignore_eos=True)
    flags = [["--%s ${value}" % name.replace("_", "-"), {"value": value}] for name, value in sampling.items()]
    users, chat = point["concurrency"] or 1, "chat" in point["endpoint"]
    found = {**point, "output": folder, "host": url.hostname, "port": url.port}
    del found["spec"]
    return {
        **found,
        "values": json.dumps(found),
        "url": point["urls"][0],
        "several": True if len(point["urls"]) > 1 else None,
        "base_urls": ";".join(url + "/v1" for url in point["urls"]),
        "kind": "chat" if chat else "completions",
        "backend": "openai-chat" if chat else "openai",
        "warmup": point["warmup_requests"] or None,
        "warmup_or_one": max(1, point["warmup_requests"]),
        "warmup_batches": math.ceil(point["warmup_requests"] / users),
        "batches": math.ceil(point["requests"] / users),
        "goodput": goodput or None,
        "goodput_line": " ".join(goodput) or None,
        "body": json.dumps(body),
        "extra_inputs": [
            json.dumps({name: value}) if isinstance(value, dict) else "%s:%s" % (name, json.dumps(value))
            for name, value in inputs.items()
        ],
        "sampling_flags": [word for flag, value in flags for word in reading.expand([flag], value)],
    }


def read(point, folder, log):
    """The Reading of a tool's folder and log. An exception means a run without a result."""
    tool, spec = point["tool"], point["spec"]
    data = reading.load(folder, spec["files"])
    records = RECORDS[tool](folder) if tool in RECORDS else []
    errors = _aiperf_errors(data) if tool == "aiperf" and data else None
    errors = errors or counted(one for one in records if one is not None)
    if not errors and tool == "llmperf":  # threads that died
        errors = counted(short("%s: %s" % found) for found in RAISED.findall(log))
    found = Reading(errors=errors)
    if data is None:
        found.completed = records.count(None)
        found.failed = len(records) - found.completed
        return found
    if tool == "vllm-latency":
        data = _latencies(data, point)
    return reading.read(spec["metrics"], {**data, "point": point}, spec.get("statistics") or {}, found)


def done(point, folder, log):
    """The number of finished requests of a running tool, None if unknown."""
    if point["tool"] == "vllm-latency":  # the first progress bar is that of the warm-up
        batches, _all = reading.progress(log.partition("Profiling iterations")[2])
        return batches and batches * point["concurrency"]
    found, _all = reading.progress(log)
    return len(RECORDS[point["tool"]](folder)) if found is None and point["tool"] in RECORDS else found


# AIPerf accepts a key only as an argument, which other users of the node could read; it is added in-process.
AIPERF_WITH_KEY = (
    "import os, sys; sys.argv = ['aiperf', *sys.argv[1:], '--api-key', os.environ['OPENAI_API_KEY']]; "
    "from aiperf.cli import app; sys.exit(app())"
)


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
    details = mapping_of(details)
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
        "completed": min(len(times) * point["concurrency"], point["requests"]),
        "latency": {"mean": sum(times) / len(times), **{"p%d" % one: shares[one - 1] for one in (50, 90, 95, 99)}},
    }


# ---- how each tool is started on a node


METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: %s\n"


def outside(spec):
    """Whether a tool does not run in the engine's environment or container."""
    return spec["program"][0] in ("environment", "worker", "node")


def program(tool, spec, environment, entry, root, folder, version=None, key=False, time_limit=()):
    """(argv before the tool's own arguments, variables, the Python that can load a tokenizer or None).

    environment: folder of the tool's environment. entry: the first measured server. folder: for this collection's
    files; it exists. version: of the engine. key: whether the servers require an API key. time_limit: a command that
    ends another, for a process in a container, which does not end with the engine's client. Raises FleetError if the
    tool is not installed.
    """
    kind, *inner = spec["program"]
    if kind == "node":
        return [], {}, None
    python = os.path.join(environment, "bin", "python") if environment else None
    if kind == "environment":
        # a configuration file of the tool is next to its environment
        argv = [os.path.join(environment, "bin", inner[0]), *(environment + name for name in inner[1:])]
        _installed(argv, tool)
        return [python, "-c", AIPERF_WITH_KEY] if key and tool == "aiperf" else argv, {}, python
    if kind == "worker":
        worker, *script = inner
        source = environment + "-source"  # LLMPerf is not a package: a script and its modules
        script = [os.path.join(source, name) for name in script]
        _installed([python, *script], tool)
        argv = [python, *([] if script else ["-I"]), start(folder), "work", worker, *script]
        return argv, {"PYTHONPATH": os.path.join(source, "src")} if script else {}, python
    if kind == "container" and not entry["container"]:
        _missing(tool, "%s does not run in a container" % entry["name"])
    argv = inner if kind == "container" else ["vllm", "bench", *inner]
    if entry["container"] and kind == "instead":
        launch = [*entry["launch"][: len(entry["launch"]) - len(entry["command"])], *argv]
        argv = containers.launch_command({**entry, "launch": launch, "command": argv}, root)
        return argv, containers.client_environment(entry, {}, root), None
    if entry["container"]:
        name = container_name(entry["name"], root)
        return engine_of_entry(entry).argv("exec", "-e", "OPENAI_API_KEY", name, *time_limit, *argv), {}, None
    vllm, python = _vllm(entry, tool, folder, version)
    argv = [*vllm, *argv[1:]]
    if kind == "engine":
        variables = {name: value for name, value in entry["environment"].items() if name != "PATH"}
        return argv, {**variables, "PYTHONPATH": folder}, python
    # an engine in place of that of the entry, on its cores; the next start of the server ends what it leaves
    if entry["cpus"]:
        argv = ["taskset", "--cpu-list", entry["cpus"], *argv]
    if entry["user"]:  # files that it writes into the engine's folders belong to the server
        argv = ["runuser", "-u", entry["user"], "--", *argv]
    return argv, {**engine_environment(entry, {}, root), "PYTHONPATH": folder}, python


def _vllm(entry, tool, folder, version):
    """(argv of the engine's command line, its Python). Its distribution is written into the folder, because the command
    line requires it even if the engine was installed under another name. Raises OSError."""
    python = entry["command"][0]
    if os.path.basename(python) == "vllm":
        python = os.path.join(os.path.dirname(python), "python")
    _installed([python], tool)
    # without +cpu the command line loads kernels for AVX-512, whatever the CPU has
    version = (version or "0") + ("+cpu" if entry["platform"] == "cpu" else "")
    for other in glob.glob(os.path.join(glob.escape(folder), "vllm-*.dist-info")):
        shutil.rmtree(other, ignore_errors=True)
    path = os.path.join(folder, "vllm-%s.dist-info" % version)
    os.makedirs(path, exist_ok=True)
    write_atomic(os.path.join(path, "METADATA"), METADATA % version)
    return [python, "-m", "vllm.entrypoints.cli.main"], python


def _installed(argv, tool):
    for path in argv:
        if not os.path.exists(path):
            _missing(tool, "%s does not exist" % path)


def _missing(tool, why):
    raise FleetError("measure.tool-missing", tool, why)
