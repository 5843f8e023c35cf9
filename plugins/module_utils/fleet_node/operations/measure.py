# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations that measure servers."""

from __future__ import annotations

import os

from ..discover import Operation
from ..measure import benchmark, evaluation
from ..servers.model import NODE_ARGUMENTS, servers_elsewhere

MEASURED_ARGUMENTS = {
    "tool_version": {"type": "str"},
    "wait_s": {"type": "int", "default": 5},
    "deployment": {"type": "dict", "default": {}},
    "hardware": {"type": "dict", "default": {}},
    "head": {"type": "dict", "default": {}},
    "caller": {"type": "str", "default": ""},
    "reports_dir": {"type": "path"},
}

BENCHMARK_RUN = {
    "servers": {"type": "list", "elements": "dict", "required": True},
    "elsewhere": servers_elsewhere(
        hash={"type": "str", "required": True},
        devices={"type": "list", "elements": "raw", "default": []},
        url={"type": "str"},
    ),
    "beside": {"type": "list", "elements": "dict", "default": []},
    "point": {"type": "dict", "required": True},
    "profile": {"type": "str", "default": ""},
    "scope": {"type": "str", "choices": ["server", "node", "fleet"], "default": "node"},
    "environment_path": {"type": "path"},
    "again": {"type": "bool", "default": False},
    **MEASURED_ARGUMENTS,
    **NODE_ARGUMENTS,
}

EVALUATION_DATASETS = {
    "path": {"type": "path", "required": True},
    "evals": {"type": "list", "elements": "str", "required": True},
    "checksums": {"type": "dict", "default": {}},
}


def evaluation_datasets(params, check_mode):
    """Check the datasets. Raises FleetError."""
    if check_mode and not os.path.isdir(params["path"]):
        return {"changed": False, "datasets": {}}
    found = evaluation.check_datasets(params["path"], params["evals"], params["checksums"])
    return {"changed": False, "datasets": found}


EVALUATION_RUN = {
    "servers": {"type": "list", "elements": "dict", "required": True},
    "eval": {"type": "str", "required": True},
    "command": {"type": "dict"},
    "effort": {"type": "str", "choices": ["low", "medium", "high"], "required": True},
    "venv": {"type": "path"},
    "datasets": {"type": "path"},
    "checksums": {"type": "dict", "default": {}},
    "concurrency": {"type": "int", "default": 32},
    "max_tokens": {"type": "int", "default": 131072, "no_log": False},
    "shorten": {"type": "bool", "default": False},
    "temperature": {"type": "float", "default": 1.0},
    "examples": {"type": "int"},
    "retries": {"type": "int", "default": 4},
    "budget_s": {"type": "int", "default": 14400},
    "refresh": {"type": "bool", "default": False},
    "references": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "eval": {"type": "str", "required": True},
            "models": {"type": "list", "elements": "str", "required": True},
            "platforms": {"type": "list", "elements": "str"},
            "efforts": {"type": "list", "elements": "str"},
            "score": {"type": "float", "required": True},
            "source": {"type": "str", "required": True},
        },
    },
    "telling": {"type": "float", "default": 15},
    "profile": {"type": "str", "default": "full"},
    **MEASURED_ARGUMENTS,
    **NODE_ARGUMENTS,
}


OPERATIONS = {
    "benchmark_run": Operation(BENCHMARK_RUN, benchmark.run),
    "evaluation_datasets": Operation(EVALUATION_DATASETS, evaluation_datasets, reads=True),
    "evaluation_run": Operation(EVALUATION_RUN, evaluation.run),
}
