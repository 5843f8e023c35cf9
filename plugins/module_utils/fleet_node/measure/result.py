# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Results of measurements: a JSON document with the same keys for each tool and platform, their history, and the
comparison of a score with a published score.

docs/developing/measuring.md describes each key. Durations are milliseconds, rates are per second. A number that a tool
does not report is null, never 0.
"""

from __future__ import annotations

import json
import math
import os
import re

from ..errors import FleetError
from ..host import files
from ..host.server_spec import digest
from ..host.values import mapping_of, now

SCHEMA = 2
FOLDER = "measurements"  # below the folder of an inventory's reports
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
RATES = (
    "requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "output_tokens_per_s_per_user",
    "output_tokens_per_s_per_accelerator", "goodput_requests_per_s",
)  # fmt: skip
TEXT, NUMBER = (str, None), (float, None)
HEAD = {
    "schema": int, "kind": str, "id": str, "began": str, "ended": str, "inventory": str, "recipe": str,
    "recipe_hash": str, "plan_hash": str, "platform": str, "engine": str, "versions": {"*": TEXT},
    "hardware": {"accelerator": str, "count": int}, "scope": str, "host": str, "servers": [str],
    "tool": {"name": str, "version": TEXT, "command": [str]}, "profile": str,
    "errors": [{"message": str, "count": int}], "ok": bool, "reason": TEXT, "void": TEXT,
}  # fmt: skip
# {kind: the shape of a result}, for host.files.fits().
FORMS = {
    "benchmark": {
        **HEAD,
        "workload": {
            "input_tokens_asked": int, "output_tokens_asked": int, "input_tokens": NUMBER, "output_tokens": NUMBER,
            "concurrency": (int, None), "request_rate": NUMBER, "requests": int, "load": str,
        },
        "counts": {"asked": int, "completed": int, "failed": int},
        "metrics": {**dict.fromkeys(LATENCIES, dict.fromkeys(STATISTICS, NUMBER)), **dict.fromkeys(RATES, NUMBER)},
        "limits": ({"ttft_ms": NUMBER, "tpot_ms": NUMBER}, None),
    },
    "evaluation": {
        **HEAD,
        "eval": str, "effort": TEXT, "verdict": str, "score": NUMBER, "interval": ([float], None), "difference": NUMBER,
        "reference": ({"score": float, "source": str, "model": TEXT, "effort": TEXT}, None),
        "questions": int, "answered": int, "correct": (int, None), "failed": int,
    },
}  # fmt: skip
SCOPES = ("server", "node", "fleet")
VERDICTS = ("agrees", "below", "above", "too-few", "no-reference")
ID = re.compile(r"^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}\Z")
Z = 1.959963984540054  # of 95 %, both sides
# Percentage points. If the interval reaches further from the score, the comparison is inconclusive.
TELLING = 15.0


def new_id(began=None):
    """An id for a measurement that began at this time (now by default); ids sort by time."""
    return re.sub(r"[-:]", "", began or now()) + "-" + os.urandom(4).hex()


def plan_hash(entries):
    """sha256 (hex) over names and hashes of the measured servers' plan entries, in any order."""
    named = sorted((entry["host"], entry["name"], entry["hash"]) for entry in entries)
    return digest(named)


def recipe_hash(deployment):
    """sha256 (hex) of a recipe as resolved for a host, without the keys that change no server."""
    left_out = ("benchmark", "evaluate", "probes", "tune", "verify", "workers_elsewhere")
    return digest({key: value for key, value in deployment.items() if key not in left_out})


LOAD = (
    "input_tokens", "output_tokens", "request_rate", "warmup_requests", "seed", "endpoint", "ignore_eos",
    "server_token_count", "sampling", "arguments",
)  # fmt: skip


def load_hash(point):
    """sha256 (hex) of what a point sends and how, except the concurrency and the number of requests."""
    sent = {key: point[key] for key in LOAD}
    sent.update({key: point["spec"].get(key) for key in ("template", "environment")})
    return digest(sent)


def no_metrics():
    """The metrics of a run that measured nothing: every key, null."""
    return {**{name: dict.fromkeys(STATISTICS) for name in LATENCIES}, **dict.fromkeys(RATES)}


def empty(params, request, ended):
    """A result that measured nothing.

    params: of the operation benchmark_run, with point, or evaluation_run, with eval; request: {id, began, command}.
    """
    servers, elsewhere, point = params["servers"], params.get("elsewhere") or (), params.get("point")
    head = params["head"]
    found = {
        "schema": SCHEMA, "kind": "benchmark" if point else "evaluation", "id": request["id"],
        "began": request["began"], "ended": ended, **head, "plan_hash": plan_hash([*servers, *elsewhere]),
        "servers": [one["name"] for one in servers] + ["%(host)s/%(name)s" % one for one in elsewhere],
        "tool": {"name": point["tool"] if point else params["command"]["name"], "version": head["versions"]["tool"],
                 "command": request["command"]},
        "errors": [], "void": None, "ok": False, "reason": None,
    }  # fmt: skip
    if not point:
        numbers = dict.fromkeys(("score", "interval", "reference", "difference"))
        counts = dict.fromkeys(("questions", "answered", "correct", "failed"), 0)
        about = {"eval": params["eval"], "effort": params["effort"], "verdict": "no-reference"}
        return {**found, "scope": "server" if len(servers) == 1 else "node", **about, **numbers, **counts}
    asked = point["requests"]
    return {
        **found,
        "workload": {
            "input_tokens_asked": point["input_tokens"], "output_tokens_asked": point["output_tokens"],
            "input_tokens": None, "output_tokens": None,
            **{key: point[key] for key in ("concurrency", "request_rate", "requests")}, "load": load_hash(point),
        },
        "counts": {"asked": asked, "completed": 0, "failed": asked},
        "metrics": no_metrics(),
        "limits": point["limits"],
    }  # fmt: skip


def path_of(folder, identity):
    """The file of a result. folder: that of an inventory's reports."""
    return os.path.join(folder, FOLDER, identity + ".json")


def keep(folder, document):
    """Add a document to the history and return its path. A kept result never changes. Raises FleetError or OSError."""
    if not ID.match(str(document["id"])):  # it becomes a file name
        raise FleetError("measure.bad-result", document["id"])
    path = path_of(folder, document["id"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if files.read_text(path) is None:
        files.write_atomic(path, json.dumps(document, indent=1) + "\n")
    return path


def history(folder, candidates=False):
    """(documents, warnings): the history, the oldest first. Other and unreadable files are left out with a warning.
    candidates: include the results of a sweep's candidates."""
    kept, documents, warnings = os.path.join(folder, FOLDER), [], []
    for name in files.names_in(kept, suffix=".json") if os.path.isdir(kept) else ():
        path = os.path.join(kept, name + ".json")
        document = _read(path)
        if document is None:
            warnings.append("%s is not a result of a measurement. Remove the file." % path)
        elif candidates or not document.get("candidate"):
            documents.append(document)
    return sorted(documents, key=lambda one: (one["began"], one["id"])), warnings


def _read(path):
    """The result in a file; None if it is not a result with that name."""
    value = mapping_of(files.readable_json(path))
    valid = (
        files.fits(value, FORMS.get(str(value.get("kind"))), complete=True)
        and value["schema"] == SCHEMA
        and os.path.basename(path) == value["id"] + ".json"
        and value["scope"] in SCOPES
        and value.get("verdict", VERDICTS[0]) in VERDICTS
        and len(value.get("interval") or "of") == 2
    )
    return value if valid else None


def wilson(correct, asked):
    """[low, high] in percent around correct of asked, not 0, by Wilson's score interval; both may be fractions.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927) 209-212.
    """
    share = correct / asked
    middle = share + Z * Z / (2 * asked)
    reach = Z * math.sqrt(share * (1 - share) / asked + Z * Z / (4 * asked * asked))
    scale = 1 + Z * Z / asked
    low, high = (middle - reach) / scale, (middle + reach) / scale
    # rounding must not leave the share itself outside
    return [100 * max(0.0, min(low, share)), 100 * min(1.0, max(high, share))]


def effective(clusters):
    """The number of independent answers: between the number of questions and that of answers.

    clusters: [(correct, asked)], one for each question, with asked > 0. Answers to a question are correlated, so the
    variance is that between questions (Kish's design effect); if all answers are equal, a question counts once.
    """
    asked = sum(count for _correct, count in clusters)
    share = sum(correct for correct, _count in clusters) / asked
    questions = len(clusters)
    if questions < 2 or not 0 < share < 1:
        return float(questions)
    spread = sum((correct - share * count) ** 2 for correct, count in clusters)
    variance = spread * questions / (questions - 1) / asked**2  # of the mean, as a ratio of sums
    if variance <= 0:
        return float(asked)
    return min(float(asked), max(float(questions), share * (1 - share) / variance))


def interval(clusters):
    """[low, high] in percent of (correct, asked) by question; None without answers."""
    clusters = [(correct, asked) for correct, asked in clusters if asked]
    if not clusters:
        return None
    size = effective(clusters)
    share = sum(correct for correct, _asked in clusters) / sum(asked for _correct, asked in clusters)
    return wilson(min(size, share * size), size)


def judge(score, bounds, reference):
    """agrees, below, above, too-few or no-reference.

    score: percent or None; bounds: interval() of it; reference: percent or None. A reference outside of the interval is
    a difference; inside, the score agrees if the interval reaches no further from it than TELLING points.
    """
    if reference is None:
        return "no-reference"
    if score is None or bounds is None:
        return "too-few"
    low, high = bounds
    if reference > high:
        return "below"
    if reference < low:
        return "above"
    return "agrees" if max(score - low, high - score) <= TELLING else "too-few"
