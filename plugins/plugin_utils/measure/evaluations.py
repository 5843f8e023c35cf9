# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An evaluation as a result: what a node measured, beside the published score that it compares with."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result, verdict

DEFAULT_EFFORT = "medium"  # of gpt-oss; a source that names none is taken to mean it
REFERENCE_KEYS = {"eval", "models", "platforms", "efforts", "score", "source"}


def reference_of(references, name, effort, model, platform):
    """{score, source, model, effort} of the first reference that is about this; None where there is none.

    references: [{eval, models [repo], platforms [name]|None for all, efforts [str]|None, score, source}] in the order
    in which they count. Raises FleetError for one that is written otherwise.
    """
    for number, one in enumerate(references):
        score = one.get("score") if isinstance(one, dict) else None
        wrong = not isinstance(one, dict) or set(one) - REFERENCE_KEYS or not {"eval", "models", "source"} <= set(one)
        if wrong or isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 100:
            raise FleetError(
                "evaluate.reference-invalid",
                "evaluate_references[%d] is %r; it must have eval, models, source and a score from 0 to 100, and may "
                "have platforms and efforts. Correct the entry.",
                (number, one),
            )
        fits = one["eval"] == name and model in one["models"] and platform in (one.get("platforms") or [platform])
        if fits and effort in (one.get("efforts") or [DEFAULT_EFFORT]):
            named = effort if one.get("efforts") else None
            return {"score": float(score), "source": one["source"], "model": model, "effort": named}
    return None


def document(measured, head, deployment, references, telling=verdict.TELLING):
    """A result of the kind evaluation.

    measured: what evaluation_run returns; head: head.head_of() of the servers that were asked.
    """
    model = (deployment.get("model") or {}).get("repo")
    # of some subjects alone, a whole run's score says nothing
    whole = measured.get("whole", True)
    reference = None
    if whole:
        reference = reference_of(references, measured["eval"], measured["effort"], model, deployment.get("platform"))
    judged = verdict.judge(measured["score"], measured["interval"], reference and reference["score"], telling)
    difference = None
    if reference and measured["score"] is not None:
        difference = round(measured["score"] - reference["score"], 2)
    ok, reason = judgement(measured, judged, reference, difference)
    return {
        "schema": result.SCHEMA,
        "kind": "evaluation",
        "id": measured["id"],
        "began": measured["began"],
        "ended": measured["ended"],
        **head,
        "plan_hash": measured["plan_hash"],
        "servers": measured["servers"],
        "tool": measured["tool"],
        "errors": measured["errors"],
        "ok": ok,
        "reason": reason,
        "void": measured["void"],
        "eval": measured["eval"],
        "effort": measured["effort"],
        "score": _rounded(measured["score"]),
        "questions": measured["questions"],
        "answered": measured["answered"],
        "correct": measured["correct"],
        "failed": measured["failed"],
        "interval": measured["interval"] and [_rounded(value) for value in measured["interval"]],
        "reference": reference,
        "difference": difference,
        "verdict": judged,
    }


def _rounded(value):
    return None if value is None else round(value, 2)


def judgement(measured, judged, reference, difference):
    """(ok, the reason as a sentence)."""
    if measured["void"]:
        return False, "It does not count: %s." % measured["void"].rstrip(".")
    if measured["failed"]:
        first = measured["errors"][0]["message"] if measured["errors"] else "unknown"
        return False, "%d of %d answers did not come: %s" % (measured["failed"], measured["asked"], first)
    if measured["score"] is None:
        return False, "There is no score."
    if measured["eval"] == "basic":
        return True, "The servers answer; any answer counts as right, so the score says nothing."
    span = "%.1f %% (95 %%: %.1f to %.1f) of %d answers to %d questions" % (
        measured["score"], *measured["interval"], measured["answered"], measured["questions"]
    )  # fmt: skip
    if reference is None:
        return True, "%s; there is no published score to compare with." % span
    beside = "%.1f %% published (%s)" % (reference["score"], reference["source"])
    if judged == "below":
        return False, "%s is %.1f points below %s, more than chance explains." % (span, -difference, beside)
    if judged == "above":
        return True, "%s is %.1f points above %s, more than chance explains." % (span, difference, beside)
    if judged == "too-few":
        return True, "%s: too few to tell whether it agrees with %s." % (span, beside)
    return True, "%s agrees with %s." % (span, beside)


def row(measured):
    """The cells of one evaluation in the table for people, as COLUMNS."""
    low_high = measured["interval"] and "%.1f-%.1f" % tuple(measured["interval"])
    reference = measured["reference"]
    return [
        measured["host"], measured["eval"], measured["effort"] or "", measured["questions"], measured["failed"],
        "" if measured["score"] is None else "%.1f" % measured["score"], low_high or "",
        "%.1f" % reference["score"] if reference else "", measured["verdict"] if measured["ok"] else "FAILED",
    ]  # fmt: skip


COLUMNS = ("host", "evaluation", "effort", "questions", "failed", "score", "95 %", "published", "verdict")
