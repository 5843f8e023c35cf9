# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a result says besides its numbers: recipe, hardware, versions; and how it reads on a screen."""

from __future__ import annotations

import os

import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import read_json, read_text
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES

COLLECTION = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


def head_of(arguments, host, folder):
    """The keys of a result that the plan knows. arguments: of the module benchmark_run; folder: of reports, or None."""
    deployment = arguments.get("deployment") or {}
    entries = [entry for entry in arguments.get("servers") or () if isinstance(entry, dict)]
    hardware = arguments.get("hardware") or {}
    measured = [*entries, *(arguments.get("elsewhere") or ())]
    devices = {(entry.get("host"), one) for entry in measured for one in entry.get("devices") or ()}
    return {
        "inventory": os.path.basename(folder) if folder else "inventory",
        "recipe": deployment.get("name") or "none",
        "recipe_hash": result.recipe_hash(deployment),
        "platform": deployment.get("platform") or "none",
        "engine": deployment.get("engine") or "none",
        "versions": {
            "engine": engine_version(deployment),
            "tool": arguments.get("tool_version") or None,
            "collection": collection_version(),
        },
        "hardware": {"accelerator": hardware.get("accelerator") or "none", "count": len(devices)},
        "scope": arguments.get("scope") or "node",
        "host": host,
        "profile": arguments.get("profile") or "none",
    }


def engine_version(deployment):
    """As the plan pins it, None where it does not."""
    engine = ENGINES.get(deployment.get("engine"))
    version = engine.version(deployment) if engine else None
    return None if version is None else str(version)


def collection_version():
    """Of this collection, None where neither of its files is there."""
    manifest = read_json(os.path.join(COLLECTION, "MANIFEST.json"))
    if isinstance(manifest, dict):
        return manifest["collection_info"]["version"]
    text = read_text(os.path.join(COLLECTION, "galaxy.yml"))
    return str(yaml.safe_load(text)["version"]) if text else None


COLUMNS = (
    "host", "measured", "at once", "requests", "failed", "output tokens/s", "TTFT p50, ms", "TPOT p50, ms", "result",
)  # fmt: skip


def row(document):
    """The cells of one benchmark in the table for people, as COLUMNS."""
    counts, metrics = document["counts"], document["metrics"]
    where = ", ".join(document["servers"]) if document["scope"] == "server" else document["scope"]
    numbers = (metrics["output_tokens_per_s"], metrics["ttft_ms"]["p50"], metrics["tpot_ms"]["p50"])
    return [
        document["host"], "%s, %s" % (document["tool"]["name"], where), document["workload"]["concurrency"],
        counts["asked"], counts["failed"], *(None if one is None else "%.1f" % one for one in numbers),
        "good" if document["ok"] else "VOID" if document["void"] else "FAILED",
    ]  # fmt: skip


def failure(document):
    """One sentence on a result that is not good."""
    counts = document["counts"]
    parts = [
        "The benchmark of %s by %s failed: %d of %d requests completed."
        % (", ".join(document["servers"]), document["tool"]["name"], counts["completed"], counts["asked"])
    ]
    void, reason = document["void"], document["reason"]
    if void:  # begins with the name of a server, which keeps its letters
        parts.append(void + ".")
    if reason:
        parts.append(reason[:1].upper() + reason[1:] + ".")
    parts += ["%d times: %s" % (one["count"], one["message"]) for one in document["errors"][:3]]
    return " ".join(parts)
