# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Benchmarks and evaluations on the control node: results are judged, displayed and added to the history."""

from __future__ import annotations

import contextlib
import os

from ansible.errors import AnsibleActionFail, AnsibleError

from ...module_utils.fleet_node.errors import cut
from ...module_utils.fleet_node.host.values import now
from ...module_utils.fleet_node.measure import result as history
from ..base.checks import clean
from ..engines import ENGINES
from ..measure import points
from ..planning.hardware import parse_hardware
from ..reporting.runs import collection_version, reports_folder
from ..reporting.screen import candidate_of, of_candidate, show
from .servers import void

LONGEST = 500  # characters of an error in a result
HERE = ("reports_dir", "deployment", "hardware", "references")  # not sent to the node


def benchmark_run(action, given, task_vars):
    """Return the result of the operation, and path; see modules/benchmark_run.py."""
    return _measure(action, "benchmark_run", clean(dict(given), "benchmark_run"), task_vars)


def evaluation_run(action, given, task_vars):
    """Return the result of the operation, with evaluation and path; see modules/evaluation_run.py."""
    arguments = {"profile": "full", **clean(dict(given), "evaluation_run")}
    tool = points.evaluation_tool(arguments["eval"], arguments.get("command"))
    servers = points.answering(arguments["eval"], arguments["servers"])
    arguments.update(command=tool, servers=servers if tool.get("several") else servers[:1])
    result = _measure(action, "evaluation_run", arguments, task_vars)
    document = result.pop("document", None)
    return {**result, "evaluation": document} if document else result


def _measure(action, operation, arguments, task_vars):
    host = task_vars["inventory_hostname"]
    folder = reports_folder(arguments.get("reports_dir"), task_vars, action._templar)
    head = head_of(arguments, host, folder)
    candidate = candidate_of(task_vars)
    head.update({"candidate": candidate} if candidate else {})
    # The caller is the same for all tasks of a run: a task may start a job that another task waits for.
    sent = {**arguments, "head": head, "caller": action._task._uuid.rpartition("-")[0]}
    asked = folder and not action._task.check_mode
    try:
        result = action.call(operation, {name: sent[name] for name in sent if name not in HERE}, task_vars)
    except AnsibleError as error:  # such as a lost connection
        if asked:
            _keep_failure(folder, sent, str(error))
        raise
    if asked and (result.get("failed") or result.get("unreachable")):
        _keep_failure(folder, sent, str(result.get("msg") or ""))
    if folder and not action._task.check_mode:
        void(result, folder, host, dict.fromkeys(result.get("restarted") or (), "restarted"))
    document, complete = result.get("document"), result.pop("complete", True)
    if not document or result.get("failed") or action._task.check_mode:
        return result
    if document["kind"] == "evaluation":
        references, deployment = arguments.get("references") or [], arguments.get("deployment") or {}
        document = compared(document, references, deployment, complete)
        result["document"] = document
    result["fleet_report"] = of_candidate(table(document), task_vars)
    show(result["fleet_report"])
    if folder:
        result["path"] = _keep(folder, document)
    if not document["ok"]:
        where = " The complete result: %s" % result["path"] if folder else ""
        result.update(failed=True, msg=failure(document) + where)
    return result


def _keep(folder, document):
    try:
        return history.keep(folder, document)
    except OSError as error:
        raise AnsibleActionFail("The result cannot be kept: %s" % error) from error


def _keep_failure(folder, arguments, why):
    """Add the result of a call that failed before the tool was asked, so that the certificate contains the failure.
    arguments: of the operation; why: the error, which is reported even if this result cannot be kept."""
    began = now()
    request = {"id": history.new_id(began), "began": began, "command": []}
    with contextlib.suppress(AnsibleActionFail):
        _keep(folder, {**history.empty(arguments, request, began), "reason": cut(why, LONGEST) or "failed"})


DEFAULT_EFFORT = "medium"  # of gpt-oss; the assumed effort of a published score without an effort


def head_of(arguments, host, folder):
    """Return the keys of a result that the plan determines.
    arguments: of the operation; folder: of reports, or None."""
    deployment = arguments.get("deployment") or {}
    measured = [*(arguments.get("servers") or ()), *(arguments.get("elsewhere") or ())]
    hardware = arguments.get("hardware")
    units = parse_hardware(hardware, host).chip if hardware else 1  # of a device
    devices = {(entry.get("host"), one // units) for entry in measured for one in entry.get("devices") or ()}
    engine = ENGINES.get(deployment.get("engine"))
    version = engine.version(deployment) if engine else None
    return {
        "inventory": os.path.basename(folder) if folder else "inventory",
        "recipe": deployment.get("name") or "none",
        "recipe_hash": history.recipe_hash(deployment),
        "platform": deployment.get("platform") or "none",
        "engine": deployment.get("engine") or "none",
        "versions": {
            "engine": None if version is None else str(version),
            "tool": arguments.get("tool_version") or None,
            "collection": collection_version(),
        },
        "hardware": {
            "accelerator": (hardware or {}).get("accelerator") or "none",
            "count": len(devices),
        },
        "scope": arguments.get("scope") or "node",
        "host": host,
        "profile": arguments.get("profile") or "none",
    }


def reference_of(references, name, effort, model, platform):
    """Return {score, source, model, effort} of the first matching reference, or None.

    references: [{eval, models [repo], platforms [name]|None for all, efforts [str]|None, score, source}].
    """
    for one in references:
        fits = one["eval"] == name and model in one["models"] and platform in (one.get("platforms") or [platform])
        if fits and effort in (one.get("efforts") or [DEFAULT_EFFORT]):
            named = effort if one.get("efforts") else None
            return {"score": float(one["score"]), "source": one["source"], "model": model, "effort": named}
    return None


def compared(document, references, deployment, complete=True):
    """Return an evaluation with its reference, difference and verdict, and with the resulting ok and reason.
    complete: whether the dataset has all questions of the published one."""
    model, score = (deployment.get("model") or {}).get("repo"), document["score"]
    references = references if complete else ()
    reference = reference_of(references, document["eval"], document["effort"], model, deployment.get("platform"))
    judged = history.judge(score, document["interval"], reference and reference["score"])
    difference = None if reference is None or score is None else round(score - reference["score"], 2)
    reason = _reason({**document, "reference": reference, "difference": difference, "verdict": judged}, complete)
    ok = document["ok"] and judged != "below"
    return {**document, "reference": reference, "difference": difference, "verdict": judged, "ok": ok, "reason": reason}


def _reason(document, complete):
    if document["void"]:
        return "It does not count: %s." % document["void"].rstrip(".")
    if document["failed"]:
        first = document["errors"][0]["message"] if document["errors"] else "unknown"
        asked = document["answered"] + document["failed"]
        return "%d of %d answers did not come: %s" % (document["failed"], asked, first)
    if document["score"] is None:
        return "There is no score."
    if document["eval"] == "basic":
        return "The servers answer. Any answer counts as right, so the score means nothing."
    low, high = document["interval"]
    score = "%.1f %% (95 %%: %.1f to %.1f) of %d answers to %d questions" % (
        document["score"], low, high, document["answered"], document["questions"]
    )  # fmt: skip
    reference, points = document["reference"], document["difference"]
    if reference is None:
        lack = "there is no published score to compare with" if complete else "the dataset lacks questions"
        return "%s; %s." % (score, lack)
    published = "%.1f %% published (%s)" % (reference["score"], reference["source"])
    return {
        "below": "%s is %.1f points below %s, more than chance explains." % (score, -points, published),
        "above": "%s is %.1f points above %s, more than chance explains." % (score, points, published),
        "too-few": "%s: too few to compare with %s." % (score, published),
        "agrees": "%s agrees with %s." % (score, published),
    }[document["verdict"]]


def table(document):
    """Return {title, columns, rows} of a result for the screen."""
    columns, row = _benchmark(document) if document["kind"] == "benchmark" else _evaluation(document)
    return {"title": document["kind"].capitalize(), "columns": columns, "rows": [row]}


def _benchmark(document):
    counts, metrics = document["counts"], document["metrics"]
    where = ", ".join(document["servers"]) if document["scope"] == "server" else document["scope"]
    numbers = (metrics["output_tokens_per_s"], metrics["ttft_ms"]["p50"], metrics["tpot_ms"]["p50"])
    columns = ["host", "measured", "at once", "requests", "failed", "output tokens/s", "TTFT p50, ms", "TPOT p50, ms",
               "result"]  # fmt: skip
    return columns, [
        document["host"], "%s, %s" % (document["tool"]["name"], where), document["workload"]["concurrency"],
        counts["asked"], counts["failed"], *(None if one is None else "%.1f" % one for one in numbers),
        "good" if document["ok"] else "VOID" if document["void"] else "FAILED",
    ]  # fmt: skip


def _evaluation(document):
    score, interval, reference = document["score"], document["interval"], document["reference"]
    columns = ["host", "evaluation", "effort", "questions", "failed", "score", "95 %", "published", "verdict"]
    return columns, [
        document["host"], document["eval"], document["effort"] or "", document["questions"], document["failed"],
        "" if score is None else "%.1f" % score, "%.1f-%.1f" % tuple(interval) if interval else "",
        "%.1f" % reference["score"] if reference else "", document["verdict"] if document["ok"] else "FAILED",
    ]  # fmt: skip


def failure(document):
    """Return the message of a result that is not good."""
    if document["kind"] == "evaluation":
        return "%s, effort %s: %s" % (document["eval"], document["effort"], document["reason"])
    counts = document["counts"]
    parts = [
        "The benchmark of %s by %s failed: %d of %d requests completed."
        % (", ".join(document["servers"]), document["tool"]["name"], counts["completed"], counts["asked"])
    ]
    void, reason = document["void"], document["reason"]
    if void:  # begins with the name of a server, whose case is kept
        parts.append(void + ".")
    if reason:
        parts.append(reason[:1].upper() + reason[1:] + ".")
    parts += ["%d times: %s" % (one["count"], one["message"]) for one in document["errors"][:3]]
    return " ".join(parts)
