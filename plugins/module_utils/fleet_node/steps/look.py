# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the steps of a run have anything to do on this node: each step's own code in check mode, in their order."""

from __future__ import annotations

from ..errors import FleetError
from ..node import processes
from ..node.commands import hangs

SERVERS = "engine_servers"


def look(looks, operation_of, validated):
    """{steps: [{step, differs, reason}], first: the first step that differs or None, serving: whether servers run here,
    warnings: [texts]}.

    looks: [{step, module, arguments}] in the order of the run; it ends with the first that differs, as what the next
    ones find may be changed by then. operation_of(name) -> its module or None.
    validated(operation, arguments) -> parameters; FleetError where they are invalid.
    A look that fails differs: the step itself then says what is wrong. One at which a program hangs is a FleetError, as
    the step would wait for the same program again.
    """
    steps, warnings = {}, []
    root = next((one["arguments"].get("root") for one in looks if one["module"] == SERVERS), None)
    result = {"serving": root is None or bool(processes.marked_processes(root))}
    for one in looks:
        step = steps.setdefault(one["step"], {"step": one["step"], "differs": False, "reason": None})
        reason, said = _due(one, operation_of(one["module"]), validated)
        if reason is not None:
            step.update(differs=True, reason=reason)
            return {**result, "steps": list(steps.values()), "first": one["step"], "warnings": warnings}
        warnings += said
    return {**result, "steps": list(steps.values()), "first": None, "warnings": warnings}


def _due(one, operation, validated):
    """(why a module has something to do or None, its warnings)."""
    if operation is None:
        return "nothing is known about %s before it runs" % one["module"], []
    try:
        result = operation.run(validated(operation, one["arguments"]), True)
    except FleetError as error:
        if hangs(error):
            raise
        return _gist(error), []
    except Exception as error:  # whatever it is, the step itself meets it again and fails with all that can be said
        return "%s: %s" % (type(error).__name__, error), []
    due = getattr(operation, "due", None)
    if due is not None:
        return due(result), result.get("warnings", [])
    return (result.get("message") or one["module"]) if result["changed"] else None, result.get("warnings", [])


def _gist(error):
    """One line of an error: of several problems the first, as the line above them names none."""
    problems = error.details.get("problems") or ()
    text = problems[0]["message"] if problems else error.message
    more = " (and %d more)" % (len(problems) - 1) if len(problems) > 1 else ""
    return text.partition("\n")[0] + more
