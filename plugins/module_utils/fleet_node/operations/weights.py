# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on checkpoints and encodings."""

from __future__ import annotations

from ..discover import Operation, lists, options, required
from ..model import gpt_oss
from ..model.formats import FORMATS
from ..weights import encodings, pipeline

MODEL_WEIGHTS = {
    "source": {"type": "str", "choices": ["standin", "path", "huggingface", "modelscope"], "required": True},
    "format": {"type": "str", "choices": list(FORMATS)},
    "verify": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
    "exclude": {"type": "list", "elements": "str", "default": ["original/*", "metal/*"]},
    "token": {"type": "str", "no_log": True},
    **required("str", "repo"),
    **required("path", "destination"),
    **lists("str", "include"),
    **options("str", "revision", "draft_repo", "draft_revision", "endpoint", "sha256sums", "sums", "caller"),
    **options("str", family=gpt_oss.MODEL_TYPE),
    **options("path", "path", "draft", "archive", "ca_bundle", root=""),
    **options("bool", copy=False, draft_eagle3=False, refresh=False),
    **options("dict", adapter={}, environment={}),
    **options("int", workers=8, retries=5, timeout_s=30, wait_s=5, min_rate=10240),
}


def model_weights_due(result):
    """Why the operation changes something; None if it does not."""
    return result["message"] if result["changed"] or not result.get("finished", True) else None


TIKTOKEN_ENCODINGS = {
    **required("path", "directory"),
    **options("path", "ca_bundle"),
    **options("dict", environment={}),
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
            **options("path", "python"),
            **options("str", "path", "base"),
            **options("dict", "copied"),
        },
        "required_if": [("type", kind, [place]) for kind, place in encodings.SOURCES.items()],
    },
}


OPERATIONS = {
    "model_weights": Operation(MODEL_WEIGHTS, pipeline.model_weights, due=model_weights_due),
    "tiktoken_encodings": Operation(TIKTOKEN_ENCODINGS, encodings.ensure),
}
