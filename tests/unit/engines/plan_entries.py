# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan entries for tests that need a server's entry and no plan, and servers that are observed as deployed."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import write_json
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.server_spec import entry_hash
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import artifacts
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import Observed
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.base import Status


def compile_cache(key, leaders=()):
    """The hooks of an entry whose engine compiles."""
    return {"compile_cache": {"key": key, "leaders": list(leaders), "variable": "NEURON_COMPILED_ARTIFACTS"}}


def complete_artifact(path, key):
    """Record the files in `path` as an artifact that server-0 has compiled."""
    compiled = {"name": "server-0", "environment": {}, "health": {"budget_s": 1}, "hooks": compile_cache(key)}
    begun = artifacts.compiling_record(compiled)
    write_json(str(path / artifacts.RECORD), begun)
    artifacts.complete(str(path), compiled, begun)


def plan_entry(port, name="server-0", **changes):
    """A whole entry with a true hash: a vLLM server on 127.0.0.1; `changes` replace keys."""
    entry = {
        "schema": 2,
        "host": "node-1",
        "name": name,
        "role": "server",
        "launcher": "process",
        "platform": "cpu",
        "engine": "vllm",
        "devices": [0],
        "bind": "127.0.0.1",
        "port": port,
        "ports": {},
        "command": ["/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server"],
        "arguments": {},
        "environment": {},
        "secrets": {},
        "secret_versions": {},
        "config": None,
        "container": None,
        "launch": [],
        "directories": {},
        "user": None,
        "model_id": "gpt-oss-120b",
        "reasoning_field": "reasoning",
        "health": {"port": None, "path": "/health", "budget_s": 300, "poll_s": 2},
        "start": {"after": []},
        "cpus": None,
        "hooks": {},
        "weights": [],
    }
    entry.update(changes)
    entry["hash"] = entry_hash(entry)
    return entry


def container(**changes):
    """The `container` of an entry; `changes` replace keys."""
    return {"engine": "docker", "address": None, "image": "app:1", "digest": None, "mounts": [], "devices": [],
            "flags": [], "workdir": "/", "entrypoint": None, "user": None, **changes}  # fmt: skip


def running(entry, record=None, **changes):
    """An Observed server that runs as the entry says; `record` changes the record of its start."""
    state = {"name": entry["name"], "hash": entry["hash"], "pid": 7, "phase": "running", "since": 1000.0,
             "started": 1000.0, "starts": [1000.0], "count": 1, **(record or {})}  # fmt: skip
    values = {"entry": entry, "definition": "d", "state": state, "fresh": True, "service": Status("up", 7),
              "pids": [7], "files": ["e"]}  # fmt: skip
    return Observed(entry["name"], **{**values, **changes})
