# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations that measure servers."""

from __future__ import annotations

import os

from ..discover import Operation, lists, options, required
from ..measure import benchmark, evaluation
from ..servers.model import NODE_ARGUMENTS, servers_elsewhere

MEASURED_ARGUMENTS = {
    **NODE_ARGUMENTS,
    **required("list", "servers", elements="dict"),
    **options("str", "tool_version", caller=""),
    **options("int", wait_s=5),
    **options("dict", deployment={}, hardware={}, head={}),
    **options("path", "reports_dir"),
}

BENCHMARK_RUN = {
    **MEASURED_ARGUMENTS,
    "elsewhere": servers_elsewhere(**required("str", "hash"), **lists("raw", "devices"), **options("str", "url")),
    "scope": {"type": "str", "choices": ["server", "node", "fleet"], "default": "node"},
    **lists("dict", "beside"),
    **required("dict", "point"),
    **options("str", profile=""),
    **options("path", "environment_path"),
    **options("bool", again=False),
}

EVALUATION_DATASETS = {
    **required("path", "path"),
    **required("list", "evals", elements="str"),
    **options("dict", checksums={}),
}


def evaluation_datasets(params, check_mode):
    """Check the datasets. Raises FleetError."""
    if check_mode and not os.path.isdir(params["path"]):
        return {"changed": False, "datasets": {}}
    found = evaluation.check_datasets(params["path"], params["evals"], params["checksums"])
    return {"changed": False, "datasets": found}


EVALUATION_RUN = {
    **MEASURED_ARGUMENTS,
    "effort": {"type": "str", "choices": ["low", "medium", "high"], "required": True},
    "max_tokens": {"type": "int", "default": 131072, "no_log": False},
    "references": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            **required("str", "eval", "source"),
            **required("list", "models", elements="str"),
            **required("float", "score"),
            "platforms": {"type": "list", "elements": "str"},
            "efforts": {"type": "list", "elements": "str"},
        },
    },
    **required("str", "eval"),
    **options("str", profile="full"),
    **options("dict", "command", checksums={}),
    **options("path", "venv", "datasets"),
    **options("bool", shorten=False, refresh=False),
    **options("int", "examples", concurrency=32, retries=4, budget_s=14400),
    **options("float", temperature=1.0),
}


OPERATIONS = {
    "benchmark_run": Operation(BENCHMARK_RUN, benchmark.run),
    "evaluation_datasets": Operation(EVALUATION_DATASETS, evaluation_datasets, reads=True),
    "evaluation_run": Operation(EVALUATION_RUN, evaluation.run),
}
