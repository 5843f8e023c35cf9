# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What model_weights takes and does."""

from __future__ import annotations

from ..model import gpt_oss
from ..weights import pipeline

ARGUMENTS = {
    "source": {"type": "str", "choices": ["standin", "path", "huggingface", "modelscope"], "required": True},
    "repo": {"type": "str", "required": True},
    "revision": {"type": "str"},
    "destination": {"type": "path", "required": True},
    "path": {"type": "path"},
    "copy": {"type": "bool", "default": False},
    "format": {"type": "str", "choices": list(gpt_oss.FORMATS)},
    "verify": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
    "draft": {"type": "path"},
    "draft_repo": {"type": "str"},
    "draft_revision": {"type": "str"},
    "draft_eagle3": {"type": "bool", "default": False},
    "encodings_file": {"type": "path"},
    "packed": {"type": "path"},
    "expected": {"type": "dict"},
    "endpoint": {"type": "str"},
    "include": {"type": "list", "elements": "str", "default": []},
    "exclude": {"type": "list", "elements": "str", "default": ["original/*", "metal/*"]},
    "token": {"type": "str", "no_log": True},
    "refresh": {"type": "bool", "default": False},
    "workers": {"type": "int", "default": 8},
    "retries": {"type": "int", "default": 5},
    "timeout_s": {"type": "int", "default": 30},
    "wait_s": {"type": "int", "default": 5},
    "environment": {"type": "dict", "default": {}},
    "ca_bundle": {"type": "path"},
    "sha256sums": {"type": "str"},
    "sums": {"type": "str"},
    "min_rate": {"type": "int", "default": 10240},
    "min_rate_window_s": {"type": "int", "default": 60},
    "root": {"type": "path", "default": ""},
    "caller": {"type": "str"},
}


def run(params, check_mode):
    """The result of the module; its warnings with it. Raises FleetError."""
    return pipeline.bring(params, check_mode)


def due(result):
    """Why the module has something to do; None where it has nothing."""
    return result["message"] if result["changed"] or not result.get("finished", True) else None
