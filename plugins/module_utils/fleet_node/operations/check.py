# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks which steps of a run have to run on this node. Their operations run in check mode, in order."""

from __future__ import annotations

import base64
import contextlib
import json
import zlib

from ..discover import Operation
from ..errors import FleetError
from ..host import processes
from ..host.commands import hangs
from ..servers.observe import started_by_hand

CHECK = {
    "root": {"type": "path", "default": ""},
    "looks": {"type": "list", "elements": "dict", "default": []},
    "verify": {"type": "dict"},
    "servers": {"type": "str"},
}
SERVERS, VERIFY = "engine_servers", "endpoint_verify"
PLANNED = "planned"  # as the servers of an operation: those of the call


def packed(servers):
    """A plan's servers as the argument of the operation."""
    return base64.b64encode(zlib.compress(json.dumps(servers).encode())).decode()


def check(params, check_mode, operation_of, validated):
    """The first step that has to run on this node. If there is none, and `verify` (arguments of endpoint_verify) is
    given, the result of that operation as `verified`. Raises FleetError, with `hangs`, if a program hangs.

    servers: the plan's, see packed(); they are sent once for all operations.
    """
    looks, verification, servers = unpacked(params)
    try:
        with processes.examined_once():
            found = {"changed": False, **look(looks, operation_of, validated, params["root"])}
    except FleetError as error:
        error.details = {**error.details, "hangs": True}
        raise
    if not found["serving"]:  # servers that were started by hand have clients, too
        found["serving"] = bool(started_by_hand(params["root"], servers, {}))
    if found["first"] is None and verification:
        operation = operation_of(VERIFY)
        with contextlib.suppress(FleetError):  # the verification play reports it
            found["verified"] = operation.run(validated(operation, verification), check_mode)
    return found


def unpacked(params):
    """(looks, arguments of the verification or None, the plan's servers), with the servers where they are needed."""
    servers = json.loads(zlib.decompress(base64.b64decode(params["servers"]))) if params["servers"] else []

    def filled(arguments):
        return {**arguments, "servers": servers} if arguments.get("servers") == PLANNED else arguments

    looks = [{**one, "arguments": filled(one["arguments"])} for one in params["looks"]]
    return looks, params["verify"] and filled(params["verify"]), servers


def look(looks, operation_of, validated, root):
    """{steps: [{step, differs, reason}], first: the first step that differs or None, serving: whether servers run here,
    warnings: [str]}.

    looks: [{step, operation, arguments}] in the order of the run. The check ends at the first operation that differs,
    because later results may change. operation_of(name) -> its Operation or None. validated(operation, arguments) ->
    parameters; raises FleetError if they are invalid. An operation that fails counts as different, because its step
    reports the problem. If a program hangs, FleetError is raised, because the step would wait for the same program.
    """
    steps, warnings, first = {}, [], None
    serves = any(one["operation"] == SERVERS for one in looks)
    serving = not serves or bool(processes.marked_processes(root))
    for one in looks:
        step = steps.setdefault(one["step"], {"step": one["step"], "differs": False, "reason": None})
        reason, said = _due(one, operation_of(one["operation"]), validated)
        if reason is not None:
            step.update(differs=True, reason=reason)
            first = one["step"]
            break
        warnings += said
    return {"serving": serving, "steps": list(steps.values()), "first": first, "warnings": warnings}


def _due(one, operation, validated):
    """(why an operation has to run or None, its warnings)."""
    if operation is None:
        return "nothing is known about %s before it runs" % one["operation"], []
    try:
        result = operation.run(validated(operation, one["arguments"]), True)
    except FleetError as error:
        if hangs(error):
            raise
        return _gist(error), []
    except Exception as error:  # the step fails with the same error and reports it in full
        return "%s: %s" % (type(error).__name__, error), []
    return why(one["operation"], operation, result), result.get("warnings", [])


def why(name, operation, result):
    """Why an operation has to run, from its result in check mode; None if it does not."""
    if operation.due is not None:
        return operation.due(result)
    return (result.get("message") or name) if result["changed"] else None


def _gist(error):
    """A line of an error: the first of several problems, because the line above them names none."""
    problems = error.details.get("problems") or ()
    text = problems[0]["message"] if problems else error.message
    more = " (and %d more)" % (len(problems) - 1) if len(problems) > 1 else ""
    return text.partition("\n")[0] + more


OPERATIONS = {"check": Operation(CHECK, check, reads=True, nested=True)}
