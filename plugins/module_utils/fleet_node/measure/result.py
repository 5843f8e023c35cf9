# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One JSON document for what was measured at one point: the same keys for every tool and every platform.

docs/developing/measuring.md explains each key. Durations are milliseconds, rates are per second; what a tool does not
tell is null, never 0.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import re

from ..errors import FleetError
from ..host import files
from ..host.server_spec import canonical

SCHEMA = 1
KINDS = ("benchmark", "evaluation")
SCOPES = ("server", "node", "fleet")
VERDICTS = ("agrees", "below", "above", "too-few", "no-reference")
LARGEST = 4 << 20  # bytes; what is larger is no result
FOLDER = "measurements"  # below the folder of an inventory's reports
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
RATES = (
    "requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "output_tokens_per_s_per_user",
    "output_tokens_per_s_per_accelerator", "goodput_requests_per_s",
)  # fmt: skip
ID = re.compile(r"^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}\Z")
TIME = "%Y-%m-%dT%H:%M:%SZ"


def _number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_time(value):
    try:
        return bool(datetime.datetime.strptime(value, TIME))
    except (TypeError, ValueError):
        return False


# {name of a rule: (test, allowed)}; with ? a value may also be null.
VALUES = {
    "schema": (lambda value: value == SCHEMA, str(SCHEMA)),
    "kind": (lambda value: value in KINDS, ", ".join(KINDS)),
    "scope": (lambda value: value in SCOPES, ", ".join(SCOPES)),
    "verdict": (lambda value: value in VERDICTS, ", ".join(VERDICTS)),
    "id": (lambda value: isinstance(value, str) and ID.match(value), "a time and 8 digits, 20260131T120000Z-0a1b2c3d"),
    "time": (_is_time, "a time in UTC, 2026-01-31T12:00:00Z"),
    "hash": (lambda value: isinstance(value, str) and re.match(r"[0-9a-f]{64}\Z", value), "a sha256 in hex"),
    "word": (lambda value: isinstance(value, str), "a string"),
    "text": (lambda value: isinstance(value, str) and value != "", "a string"),
    "switch": (lambda value: isinstance(value, bool), "true or false"),
    "count": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0,
        "a number from 0 on",
    ),
    "number": (_number, "a number"),
    "amount": (lambda value: _number(value) and value >= 0, "a number of at least 0"),
    "interval": (lambda value: isinstance(value, list) and len(value) == 2 and all(map(_number, value)), "[low, high]"),
}
# A list has items of one form; a tuple is a form, or null.
HEAD = {
    "schema": "schema", "kind": "kind", "id": "id", "began": "time", "ended": "time", "inventory": "text",
    "recipe": "text", "recipe_hash": "hash", "plan_hash": "hash", "platform": "text", "engine": "text",
    "versions": {"engine": "text?", "tool": "text?", "collection": "text?"},
    "hardware": {"accelerator": "text", "count": "count"},
    "scope": "scope", "host": "text", "servers": ["text"],
    "tool": {"name": "text", "version": "text?", "command": ["word"]},
    "profile": "text", "errors": [{"message": "text", "count": "count"}],
    "ok": "switch", "reason": "text?", "void": "text?",
}  # fmt: skip
BENCHMARK = {
    "workload": {
        "input_tokens_asked": "count", "output_tokens_asked": "count", "input_tokens": "amount?",
        "output_tokens": "amount?", "concurrency": "count?", "request_rate": "amount?", "requests": "count",
    },
    "counts": {"asked": "count", "completed": "count", "failed": "count"},
    "metrics": {
        **{name: dict.fromkeys(STATISTICS, "amount?") for name in LATENCIES},
        **dict.fromkeys(RATES, "amount?"),
    },
    "limits": ({"ttft_ms": "amount?", "tpot_ms": "amount?"},),
}  # fmt: skip
EVALUATION = {
    "eval": "text", "effort": "text?", "score": "number?", "questions": "count", "answered": "count",
    "correct": "count?", "failed": "count", "interval": "interval?",
    "reference": ({"score": "number", "source": "text", "model": "text?", "effort": "text?"},),
    "difference": "number?", "verdict": "verdict",
}  # fmt: skip


def now():
    """The time as results have it: UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).strftime(TIME)


def new_id(began=None):
    """An id for what began then (a time as of now()); ids sort by time."""
    return re.sub(r"[-:]", "", began or now()) + "-" + os.urandom(4).hex()


def plan_hash(entries):
    """sha256 (hex) over names and hashes of the measured servers' plan entries, in any order."""
    named = sorted((entry["host"], entry["name"], entry["hash"]) for entry in entries)
    return hashlib.sha256(canonical(named)).hexdigest()


def recipe_hash(deployment):
    """sha256 (hex) of a recipe as resolved for a host, without what is measured and asked: that changes no server."""
    left_out = ("benchmark", "evaluate", "probes", "tune", "verify", "workers_elsewhere")
    return hashlib.sha256(
        canonical({key: value for key, value in deployment.items() if key not in left_out})
    ).hexdigest()


def no_metrics():
    """The metrics of a run that measured nothing: every key, null."""
    return {**{name: dict.fromkeys(STATISTICS) for name in LATENCIES}, **dict.fromkeys(RATES)}


def problems(document):
    """["key is VALUE; allowed: …"] of a document that is not as results are; empty for one that is."""
    if not isinstance(document, dict):
        return ["it is %s; allowed: a mapping" % _shown(document)]
    rules = {**HEAD, **(EVALUATION if document.get("kind") == "evaluation" else BENCHMARK)}
    return _mistakes(rules, document, "")


def check(document, where):
    """The document. where: whose it is, for a person. Raises FleetError."""
    found = problems(document)
    if found:
        raise FleetError(
            "measure.bad-result",
            "%s is not a result of a measurement: %s. Remove the file; benchmark.yml and evaluate.yml write results as "
            "docs/developing/measuring.md describes them.",
            (where, "; ".join(found[:5])),
        )
    return document


def _mistakes(rule, value, path):
    if isinstance(rule, tuple):
        return [] if value is None else _mistakes(rule[0], value, path)
    if isinstance(rule, dict):
        if not isinstance(value, dict):
            return ["%s is %s; allowed: a mapping" % (path, _shown(value))]
        prefix = path + "." if path else ""
        found = ["%s%s is missing" % (prefix, key) for key in rule if key not in value]
        found += ["%s%s is unknown" % (prefix, key) for key in value if key not in rule]
        for key in rule:
            found += _mistakes(rule[key], value[key], prefix + key) if key in value else []
        return found
    if isinstance(rule, list):
        if not isinstance(value, list):
            return ["%s is %s; allowed: a list" % (path, _shown(value))]
        return [text for index, item in enumerate(value) for text in _mistakes(rule[0], item, "%s[%d]" % (path, index))]
    optional = rule.endswith("?")
    test, allowed = VALUES[rule.rstrip("?")]
    if test(value) or (optional and value is None):
        return []
    return ["%s is %s; allowed: %s" % (path, _shown(value), allowed + (", or null" if optional else ""))]


def _shown(value):
    text = json.dumps(value, default=str)
    return text if len(text) < 60 else text[:57] + "..."


def path_of(folder, identity):
    """The file of a result. folder: that of an inventory's reports."""
    return os.path.join(folder, FOLDER, identity + ".json")


def keep(folder, document):
    """Add a document to the history; returns its path. A result that is there is never changed. FleetError, OSError."""
    path = path_of(folder, check(document, "what was measured")["id"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if files.read_text(path) is None:
        files.write_atomic(path, json.dumps(document, indent=1) + "\n")
    return path


def history(folder):
    """(documents, warnings): all of the history, the oldest first. A file that is no result, is there in part only or
    cannot be read is left out with a warning; never an error."""
    kept = os.path.join(folder, FOLDER)
    documents, warnings = [], []
    try:
        names = sorted(os.listdir(kept))
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except OSError as error:
        return [], ["%s cannot be read: %s." % (kept, error.strerror)]
    for name in names:
        if not name.endswith(".json") or name.startswith("."):
            continue
        path = os.path.join(kept, name)
        try:
            document = check(_read(path), path)
            if document["id"] + ".json" != name:
                warnings.append("%s holds the result %s; it was copied or renamed." % (path, document["id"]))
                continue
        except FleetError as error:
            warnings.append(error.message)
        except OSError as error:
            warnings.append("%s cannot be read: %s." % (path, error.strerror))
        except RecursionError:
            warnings.append("%s is nested too deeply for a result." % path)
        else:
            documents.append(document)
    return sorted(documents, key=lambda one: (one["began"], one["id"])), warnings


def _read(path):
    """The JSON value of a file, None for what is none; a pipe or device is not waited for."""
    return files.read_json(path) if os.path.isfile(path) and os.path.getsize(path) <= LARGEST else None
