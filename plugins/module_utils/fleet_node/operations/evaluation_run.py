# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What evaluation_run takes and does."""

from __future__ import annotations

from ..measure import evaluation
from ..measure.arguments import MEASURED_ARGUMENTS
from ..servers.model import NODE_ARGUMENTS

ARGUMENTS = {
    "servers": {"type": "list", "elements": "dict", "required": True},
    "eval": {"type": "str", "choices": ["basic", "gpqa", "aime25", "mmlu", "gsm8k"], "required": True},
    "effort": {"type": "str", "choices": ["low", "medium", "high"], "required": True},
    "venv": {"type": "path", "required": True},
    "config": {"type": "path"},
    "datasets": {"type": "path"},
    "checksums": {"type": "dict", "default": {}},
    "threads": {"type": "int", "default": 32},
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
    "reports_dir": {"type": "path"},
    **MEASURED_ARGUMENTS,
    **NODE_ARGUMENTS,
}


def run(params, check_mode):
    """The result of an evaluation, or how far it is. Raises FleetError."""
    return evaluation.run(params, check_mode)
