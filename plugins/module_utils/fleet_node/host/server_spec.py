# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan entry of a server process, on the control node and on managed nodes."""

from __future__ import annotations

import hashlib
import json
import re

from ..errors import FleetError
from .files import fits, readable_json

SCHEMA = 2
NAME = re.compile(r"^[a-z0-9-]{1,40}\Z")
ARTIFACT_KEY = re.compile(r"^[0-9a-f]{8,64}\Z")  # names files and folders
ARTIFACT_RECORD = "inference-fleet.json"  # in a compiled artifact; contains its owner
SHAPE = {
    "schema": int, "host": str, "devices": [int], "reasoning_field": (str, None),
    "name": str, "role": str, "launcher": str, "platform": str, "engine": str, "hash": str, "bind": (str, None),
    "port": (int, None), "ports": {"*": (int, None)}, "command": [str], "launch": [str], "arguments": {"*": object},
    "environment": {"*": str}, "secrets": {"*": str}, "secret_versions": {"*": object}, "user": (str, None),
    "config": ({"path": str, "format": str}, None), "directories": {"*": str}, "model_id": str, "cpus": (str, None),
    "health": {"path": str, "port": (int, None), "budget_s": float, "poll_s": float}, "weights": [str],
    "start": {"after": [str], "units": [str]}, "hooks": {"*": {"leaders": [str]}}, "container": (
        {"engine": str, "address": (str, None), "image": str, "digest": (str, None), "mounts": [{"*": object}],
         "devices": [str], "flags": [str], "workdir": str, "entrypoint": (str, None), "user": (str, None)}, None
    ),
}  # fmt: skip
PROBED_ROLES = ("server", "frontend")  # clients send requests to these
FURTHER = frozenset(("adapters", "family"))  # keys that an entry need not have


def canonical(value):
    """The canonical bytes for hashes: JSON with sorted keys and no spaces, in UTF-8."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def digest(value):
    """sha256 (hex) of the canonical bytes of a value."""
    return hashlib.sha256(canonical(value)).hexdigest()


def entry_hash(entry):
    """sha256 (hex) of the entry without its own hash and its host, whose name comes from the inventory and does not
    affect a process. It contains secrets by name and version only."""
    return digest({key: value for key, value in entry.items() if key not in ("hash", "host")})


def read_entry(path):
    """The plan entry in the file `path`, as far as it was written; None if there is none whose values have the types of
    an entry's values. Raises no OSError."""
    entry = readable_json(path)
    return entry if isinstance(entry, dict) and fits(entry, SHAPE) else None


def answers(entry):
    """Whether clients send requests to the server of a plan entry, or of JSON of any shape."""
    return entry.get("role") in PROBED_ROLES and bool(entry.get("port"))


def health_port(entry):
    """The port that serves the health path; None for a server without it, which is ready when it runs."""
    return (entry.get("health") or {}).get("port") or entry.get("port") or (entry.get("ports") or {}).get("system")


def server_ports(entry):
    """[(port, its name)] of an entry."""
    ports = [(entry["port"], "port")] if entry.get("port") else []
    return ports + [(port, "%s port" % kind) for kind, port in sorted((entry.get("ports") or {}).items()) if port]


def artifact_directory(entry):
    """The directory of a server's compiled artifact, None for a server without an artifact."""
    path, variable = (entry.get("directories") or {}).get("artifact"), _compile_cache(entry).get("variable")
    return path if path and variable and entry["environment"].get(variable) == path else None


def artifact_key(entry):
    """The key of the artifact that a server compiles or loads, None for a server without an artifact."""
    return _compile_cache(entry).get("key")


def artifact_leaders(entry):
    """Servers after which this server starts only until their common artifact is complete."""
    return _compile_cache(entry).get("leaders", ())


def _compile_cache(entry):
    return (entry.get("hooks") or {}).get("compile_cache") or {}


def _entry_problem(entry):
    """Why a value is no plan entry, as a clause; None if it is one of them."""
    if not isinstance(entry, dict):
        return "is a %s; allowed: a mapping" % type(entry).__name__
    for words, keys in (
        ("lacks", set(SHAPE) - set(entry)),
        ("has the unknown keys", set(entry) - set(SHAPE) - FURTHER),
    ):
        if keys:
            return "%s %s" % (words, ", ".join(sorted(map(str, keys))))
    if entry["schema"] != SCHEMA:
        return "has the schema %r; allowed: %d" % (entry["schema"], SCHEMA)
    for key, value in entry.items():
        if not fits(value, SHAPE.get(key, object)):
            return "has an invalid value of %s" % key
    if not NAME.match(entry["name"]):
        return "has no valid name; allowed: 1-40 characters of a-z, 0-9 and '-'"
    key = entry["hooks"].get("compile_cache", {}).get("key", "")
    if "compile_cache" in entry["hooks"] and not (isinstance(key, str) and ARTIFACT_KEY.match(key)):
        return "has the hooks.compile_cache.key %r; allowed: 8-64 characters of 0-9 and a-f" % (key,)
    return "has a hash that does not fit its content" if entry["hash"] != entry_hash(entry) else None


def check_entries(entries):
    """{name: entry} of these entries in their order. Raises FleetError unless all are valid and names are unique."""
    by_name = {}
    for entry in entries:
        problem = _entry_problem(entry)
        if problem:
            raise FleetError("entry.invalid", entry.get("name") if isinstance(entry, dict) else None, problem)
        if entry["name"] in by_name:
            raise FleetError("entry.invalid", entry["name"], "appears twice")
        by_name[entry["name"]] = entry
    return by_name


def start_order(entries):
    """Names of `entries` ({name: entry}), leaders first, otherwise in their order. Raises FleetError for a cycle."""
    order = []
    waiting = list(entries)
    while waiting:
        ready = [
            name
            for name in waiting
            if all(one in order or one not in entries for one in entries[name].get("start", {}).get("after", ()))
        ]
        if not ready:
            raise FleetError("servers.start-order-cycle", ", ".join(waiting))
        order += ready
        waiting = [name for name in waiting if name not in ready]
    return order


def leaders_to_follow(entry):
    """Names of the servers with which the server of this entry restarts."""
    start = entry.get("start", {})
    return start.get("after", []) if start.get("restart_with_leader") else []


def check_order(entries):
    """Raises FleetError if a server of `entries` ({name: entry}) starts after an unknown server, or in a cycle."""
    for name, entry in entries.items():
        for leader in entry["start"]["after"]:
            if leader not in entries:
                raise FleetError("servers.start-order-invalid", name, leader, ", ".join(entries))
    start_order(entries)
