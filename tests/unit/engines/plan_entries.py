# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan entries for tests that need a server's entry and no plan."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.server_spec import entry_hash


def compile_cache(key, leaders=(), variable="NEURON_COMPILED_ARTIFACTS"):
    """The hooks of an entry whose engine compiles."""
    return {"compile_cache": {"key": key, "leaders": list(leaders), "variable": variable}}


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
