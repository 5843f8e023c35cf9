# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on checkpoints and encodings."""

from __future__ import annotations

from ..discover import Operation
from ..model import gpt_oss
from ..model.formats import FORMATS
from ..weights import encodings, pipeline

MODEL_WEIGHTS = {
    "source": {"type": "str", "choices": ["standin", "path", "huggingface", "modelscope"], "required": True},
    "repo": {"type": "str", "required": True},
    "revision": {"type": "str"},
    "destination": {"type": "path", "required": True},
    "path": {"type": "path"},
    "copy": {"type": "bool", "default": False},
    "format": {"type": "str", "choices": list(FORMATS)},
    "family": {"type": "str", "default": gpt_oss.MODEL_TYPE},
    "verify": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
    "draft": {"type": "path"},
    "draft_repo": {"type": "str"},
    "draft_revision": {"type": "str"},
    "draft_eagle3": {"type": "bool", "default": False},
    "adapter": {"type": "dict", "default": {}},
    "archive": {"type": "path"},
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


def model_weights_due(result):
    """Why the operation changes something; None if it does not."""
    return result["message"] if result["changed"] or not result.get("finished", True) else None


TIKTOKEN_ENCODINGS = {
    "directory": {"type": "path", "required": True},
    "encodings": {
        "type": "list",
        "elements": "str",
        "choices": list(encodings.ENCODINGS),
        "default": [gpt_oss.VOCABULARY],
    },
    "sources": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "type": {"type": "str", "choices": list(encodings.SOURCES), "required": True},
            "python": {"type": "path"},
            "path": {"type": "str"},
            "copied": {"type": "dict"},
            "base": {"type": "str"},
        },
        "required_if": [("type", kind, [place]) for kind, place in encodings.SOURCES.items()],
    },
    "environment": {"type": "dict", "default": {}},
    "ca_bundle": {"type": "path"},
}


def tiktoken_encodings(params, check_mode):
    """The result of the operation. Raises FleetError."""
    return encodings.ensure(check_mode=check_mode, **params)


OPERATIONS = {
    "model_weights": Operation(MODEL_WEIGHTS, pipeline.model_weights, due=model_weights_due),
    "tiktoken_encodings": Operation(TIKTOKEN_ENCODINGS, tiktoken_encodings),
}
