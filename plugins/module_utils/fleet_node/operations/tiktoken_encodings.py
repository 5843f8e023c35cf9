# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tiktoken_encodings takes and does."""

from __future__ import annotations

from ..model import gpt_oss
from ..weights import encodings as tiktoken_encodings

ARGUMENTS = {
    "directory": {"type": "path", "required": True},
    "encodings": {
        "type": "list",
        "elements": "str",
        "choices": list(tiktoken_encodings.ENCODINGS),
        "default": [gpt_oss.VOCABULARY],
    },
    "sources": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "type": {"type": "str", "choices": list(tiktoken_encodings.SOURCES), "required": True},
            "python": {"type": "path"},
            "path": {"type": "str"},
            "copied": {"type": "dict"},
            "base": {"type": "str"},
        },
        "required_if": [("type", kind, [place]) for kind, place in tiktoken_encodings.SOURCES.items()],
    },
    "environment": {"type": "dict", "default": {}},
    "ca_bundle": {"type": "path"},
}


def run(params, check_mode):
    """The result of the module. Raises FleetError."""
    return tiktoken_encodings.ensure(check_mode=check_mode, **params)
