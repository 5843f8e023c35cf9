# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Results of measurements: a JSON document with the same keys for each tool and platform, and their history.

docs/developing/measuring.md describes each key. Durations are milliseconds, rates are per second. A number that a tool
does not report is null, never 0.
"""

from __future__ import annotations

import hashlib
import json
import os
import re

from ..errors import FleetError
from ..host import files
from ..host.server_spec import canonical
from ..host.values import now

SCHEMA = 1
KINDS = ("benchmark", "evaluation")
LARGEST = 4 << 20  # bytes of a file
FOLDER = "measurements"  # below the folder of an inventory's reports
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
RATES = (
    "requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "output_tokens_per_s_per_user",
    "output_tokens_per_s_per_accelerator", "goodput_requests_per_s",
)  # fmt: skip
ID = re.compile(r"^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}\Z")


def new_id(began=None):
    """An id for a measurement that began at this time (now by default); ids sort by time."""
    return re.sub(r"[-:]", "", began or now()) + "-" + os.urandom(4).hex()


def plan_hash(entries):
    """sha256 (hex) over names and hashes of the measured servers' plan entries, in any order."""
    named = sorted((entry["host"], entry["name"], entry["hash"]) for entry in entries)
    return hashlib.sha256(canonical(named)).hexdigest()


def recipe_hash(deployment):
    """sha256 (hex) of a recipe as resolved for a host, without the keys that change no server."""
    left_out = ("benchmark", "evaluate", "probes", "tune", "verify", "workers_elsewhere")
    return hashlib.sha256(
        canonical({key: value for key, value in deployment.items() if key not in left_out})
    ).hexdigest()


def no_metrics():
    """The metrics of a run that measured nothing: every key, null."""
    return {**{name: dict.fromkeys(STATISTICS) for name in LATENCIES}, **dict.fromkeys(RATES)}


def path_of(folder, identity):
    """The file of a result. folder: that of an inventory's reports."""
    return os.path.join(folder, FOLDER, identity + ".json")


def keep(folder, document):
    """Add a document to the history and return its path. A kept result never changes. Raises FleetError or OSError."""
    if not ID.match(str(document["id"])):  # it becomes a file name
        raise FleetError(
            "measure.bad-result",
            "The node returned a result with the id %r, which is no id. Run the measurement again.",
            (document["id"],),
        )
    path = path_of(folder, document["id"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if files.read_text(path) is None:
        files.write_atomic(path, json.dumps(document, indent=1) + "\n")
    return path


def history(folder):
    """(documents, warnings): the history, the oldest first. Other and unreadable files are left out with a warning."""
    kept = os.path.join(folder, FOLDER)
    try:
        names = sorted(os.listdir(kept))
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    documents, warnings = [], []
    for name in names:
        if not name.endswith(".json") or name.startswith("."):
            continue
        path = os.path.join(kept, name)
        document = _read(path)
        if document is None:
            warnings.append("%s is not a result of a measurement. Remove the file." % path)
        else:
            documents.append(document)
    return sorted(documents, key=lambda one: (one["began"], one["id"])), warnings


def _read(path):
    """The result in a file; None if it is not a result with that name. Pipes and devices are not opened."""
    value = files.readable_json(path) if os.path.isfile(path) and os.path.getsize(path) <= LARGEST else None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA or value.get("kind") not in KINDS:
        return None
    return value if os.path.basename(path) == "%s.json" % value.get("id") else None
