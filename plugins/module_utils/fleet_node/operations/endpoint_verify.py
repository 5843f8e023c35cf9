# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What endpoint_verify takes and does."""

from __future__ import annotations

from ..model import gpt_oss
from ..servers.model import NODE_ARGUMENTS
from ..verify import runner

ARGUMENTS = {
    "servers": {"type": "list", "elements": "dict", "required": True},
    "workers_elsewhere": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "host": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "role": {"type": "str", "choices": ["prefill", "decode"], "required": True},
            "bind": {"type": "str", "required": True},
            "ports": {"type": "dict", "default": {}},
        },
    },
    "mode": {"type": "str", "choices": ["auto", "full", "quick"], "default": "auto"},
    "servers_changed": {"type": "bool"},
    "probes": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "path": {"type": "str", "default": "/v1/chat/completions"},
            "body": {"type": "dict"},
            "expect": {
                "type": "dict",
                "options": {
                    "status": {"type": "int", "default": 200},
                    "contains": {"type": "list", "elements": "str", "default": []},
                    "field": {"type": "str"},
                },
            },
        },
    },
    "effort_parameter": {
        "type": "str",
        "choices": list(gpt_oss.EFFORT_PARAMETERS),
        "default": gpt_oss.EFFORT,
    },
    "responses_api": {"type": "bool", "default": True},
    "timeout": {"type": "float", "default": 120},
    "quick_timeout": {"type": "float", "default": 20},
    **NODE_ARGUMENTS,
    "api_key": {"type": "str", "default": "", "no_log": True},
    "reports_dir": {"type": "path", "default": ""},
    "deployment": {"type": "dict", "default": {}},
    "simulated": {"type": "str", "default": ""},
    "problem": {"type": "str", "default": ""},
}
READS = True


def run(params, check_mode):
    """A verdict for each server. Raises FleetError."""
    return {"changed": False, **runner.verify_from_parameters(params, check_mode)}
