# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What node_state takes and does."""

from __future__ import annotations

import contextlib

from ..errors import FleetError
from ..steps.look import look

ARGUMENTS = {
    "looks": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "step": {"type": "str", "required": True},
            "module": {"type": "str", "required": True},
            "arguments": {"type": "dict", "required": True},
        },
    },
    "verify": {"type": "dict"},
}
VERIFY = "endpoint_verify"
READS = True
NESTED = True  # run() is given the other operations, and what checks their arguments


def run(params, check_mode, operation_of, validated):
    """Where a run has something to do on this node, and where it has nothing to do, with `verify` (the arguments of
    endpoint_verify), what that returns as `verified`. Raises FleetError, with `hangs`, where a program hangs."""
    try:
        found = {"changed": False, **look(params["looks"], operation_of, validated)}
    except FleetError as error:
        error.details = {**error.details, "hangs": True}
        raise
    if found["first"] is None and params["verify"]:
        operation = operation_of(VERIFY)
        with contextlib.suppress(FleetError):  # the play asks again and shows it
            found["verified"] = operation.run(validated(operation, params["verify"]), check_mode)
    return found
