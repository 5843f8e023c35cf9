# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan entries for tests that need a server's entry and no plan."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.server_spec import entry_hash


def plan_entry(port, name="server-0", **changes):
    """A whole entry with a true hash: a vLLM server on 127.0.0.1; `changes` replace keys."""
    entry = {
        "schema": 1,
        "host": "node-1",
        "name": name,
        "role": "server",
        "launcher": "process",
        "platform": "cpu",
        "devices": [0],
        "bind": "127.0.0.1",
        "port": port,
        "ports": {},
        "command": ["/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server"],
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
        "health": {"path": "/health", "budget_s": 300, "poll_s": 2},
        "start": {"after": []},
        "cpus": None,
        "artifact_key": None,
        "weights": [],
    }
    entry.update(changes)
    entry["hash"] = entry_hash(entry)
    return entry
