# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""report.html: the certificate and its measurements, as tables and charts."""

from __future__ import annotations

import json
import math
import os
import re
import time

from ansible.errors import AnsibleActionFail

from ...module_utils.fleet_node.host.files import fits, readable_json, write_atomic
from ...module_utils.fleet_node.host.values import TIME, mapping_of, now
from ...module_utils.fleet_node.measure import result as history
from ...module_utils.fleet_node.measure.result import LATENCIES, STATISTICS
from ..base.words import some
from ..reporting import page, report
from ..reporting import runs as kept_runs
from ..reporting.page import counted, cut, duration, moment, natural, time_of, visible
from ..reporting.runs import reports_folder, run_id
from ..reporting.screen import show
from . import certificate as certificates
from . import compare

PAGE, TEMPLATE = "report.html", "report.html.j2"
WORDS = {page.PASSED: "good", page.FAILED: "failed"}
SERIES = 4  # curves of a chart: the number of colours and shapes
TITLES = {"verify": "Answers", "benchmark": "Speed", "evaluate": "Accuracy"}
VERDICTS = {
    "agrees": "agrees", "below": "below the reference", "above": "above the reference",
    "too-few": "inconclusive", "no-reference": "no reference",
}  # fmt: skip
CHANGES = {
    compare.WORSE: (page.FAILED, "worse"), compare.BETTER: (page.PASSED, "better"),
    compare.SAME: (page.UNKNOWN, "same"), compare.UNCLEAR: (page.UNKNOWN, "within the noise"),
}  # fmt: skip
# (title of the chart, key of x, title of the x axis, key of y, title of the y axis)
CHARTS = (
    ("Throughput over concurrency", "concurrency", "concurrent requests", "rate", "output tokens/s"),
    ("TTFT against throughput", "rate", "output tokens/s", "ttft_ms", "TTFT p50, ms"),
    ("TPOT against throughput", "rate", "output tokens/s", "tpot_ms", "TPOT p50, ms"),
)
STARTS = 64  # servers in the table of starts
RUNS = 20  # in the table of runs
DIGEST = re.compile(r"sha256:([0-9a-f]{12})[0-9a-f]{52}")
ARTIFACTS = {"compiles": "compiled", "loads": "loaded"}
TICKS = 5
LEAST = 1e-6  # of an axis; smaller numbers are shown as 0


def write(folder, percent, run_id=None):
    """Write the certificate, and its page, of the inventory whose reports are in `folder`. Return the certificate.
    Raises OSError.

    percent: the limit of a regression of a metric. run_id: only verdicts and results since the run of that id began
    count; by default the newest results count.
    """
    path = os.path.join(folder, "verdict.json")
    fleet = readable_json(path)
    results, problems = history.history(folder)
    if not fits(fleet, (report.FLEET, None), complete=True):
        problems.append("%s is not a record of verdicts. Remove the file, and run verify.yml." % path)
        fleet = None
    generated, run = now(), mapping_of(fleet, "run")
    began = run.get("began") if run_id and run.get("id") == run_id else None
    since = began or generated if run_id else None
    # the time of a result by this machine's clock, because a node's clock may differ
    added = {one["id"]: os.path.getmtime(history.path_of(folder, one["id"])) for one in results} if began else {}
    kept = {name for name, at in added.items() if time.strftime(TIME, time.gmtime(at)) >= began}
    inventory = os.path.basename(os.path.normpath(folder))
    made = certificates.assemble(fleet, results, generated, inventory, percent, since, kept)
    runs, more = kept_runs.history(folder)
    page_text = render(made, results, fleet, problems + more, runs)
    os.makedirs(folder, exist_ok=True)
    for name, text in ((certificates.FILE, json.dumps(made, indent=1) + "\n"), (PAGE, page_text)):
        write_atomic(os.path.join(folder, name), text)
    return made


def render(certificate, results, fleet=None, problems=(), runs=()):
    """Return the page as the content of an HTML file.

    certificate: certificates.assemble(); results: the history. fleet: the content of verdict.json, or None. problems:
    sentences about files that were left out. runs: kept_runs.history(), the oldest first.
    """
    known = {one["id"]: one for one in results}
    benchmarks = sorted((known[one["id"]] for one in certificate["benchmarks"]), key=_order)
    evaluations = [known[one["id"]] for one in certificate["evaluations"]]
    measured = [one for one in benchmarks if compare.counts(one)]
    verdict = page.view(fleet)
    return page.template(TEMPLATE).render(
        state=page.state_of(certificate["ok"]),
        headline=certificates.headline(certificate),
        about=[moment(certificate["generated"]), cut(certificate["inventory"]), *verdict["on"]],
        tiles=[_tile(certificate, name, measured, evaluations) for name in certificates.PARTS],
        notes=verdict["notes"] + _notes(problems),
        charts=_charts(measured),
        benchmarks=benchmarks,
        percentiles=[
            (one, metric)
            for metric in LATENCIES
            for one in measured
            if any(one["metrics"][metric][key] is not None for key in STATISTICS)
        ],
        changes=[
            (known[one["id"]], row, [known[name] for name in one["before"]])
            for one in certificate["benchmarks"]
            for row in one["compared"]
        ],
        evaluations=sorted(evaluations, key=lambda one: (one["eval"], one["effort"] or "", one["host"])),
        runs=[_run(one) for one in runs[: -RUNS - 1 : -1]],
        starts=[(host, server) for host in verdict["hosts"] for server in host["servers"] if server["start"]][:STARTS],
        versions=runs[-1]["versions"] if runs else {},
        hosts=verdict["hosts"],
        limit="%g" % certificate["regression_limit"],
        **FUNCTIONS,
    )


def number(value):
    """Return a number with three significant digits, or –."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return "{:,.0f}".format(value).replace(",", "\u202f")
    return "%.1f" % value if abs(value) >= 10 else "%.2f" % value if value else "0"


def _percent(value):
    return "–" if value is None else "%.1f %%" % value


def _series(result):
    """Return a curve's name in a legend."""
    where = certificates.place(result)
    rate = result["workload"]["request_rate"]
    return "%s, %s%s" % (cut(result["tool"]["name"]), cut(where), ", %g requests/s" % rate if rate else "")


def _order(result):
    scope = ("fleet", "node", "server").index(result["scope"])
    return scope, natural(_series(result)), result["workload"]["concurrency"] or 0, result["began"]


def _tile(certificate, name, measured, evaluations):
    """Return a part of the verdict with its number: {title, state, word, value, what, reasons}.
    Evaluations without a comparison have no number."""
    part = certificate["parts"][name]
    value, what = "", part["summary"]
    if name == "verify" and what.endswith(" servers verified"):
        value, what = what[: -len(" servers verified")].replace(" of ", " / "), "servers verified"
    if name == "benchmark" and measured:
        best = max(measured, key=lambda one: one["metrics"]["output_tokens_per_s"] or 0)
        value = number(best["metrics"]["output_tokens_per_s"])
        what = "output tokens/s, %s" % certificates.named(best)
    shown = [one for one in evaluations if certificates.judged(one) or not certificates.evaluation_ok(one)]
    if name == "evaluate" and shown and part["ok"] is not None:
        one = max(shown, key=lambda item: (not certificates.evaluation_ok(item), item["questions"]))
        value = _percent(one["score"])
        what = "%s, %s" % (certificates.named(one), counted(one["questions"], "question"))
    state = page.state_of(part["ok"])
    reasons = [] if part["ok"] else [cut(reason, page.CAUSE) for reason in part["reasons"]]
    return {"title": TITLES[name], "state": state, "word": WORDS.get(state) or certificates.UNKNOWN[name],
            "value": value, "what": what, "reasons": reasons}  # fmt: skip


def _notes(problems):
    if not problems:
        return []
    more = " And %d more." % (len(problems) - 3) if len(problems) > 3 else ""
    text = " ".join(cut(problem, page.CAUSE) for problem in problems[:3]) + more
    return [{"title": "Left out of the history", "text": text}]


def _result(result):
    """Return (state, words) of a result."""
    if result["ok"] and not result["void"]:
        good = result["kind"] == "benchmark" or certificates.judged(result)
        return page.PASSED if good else page.UNKNOWN, VERDICTS.get(result.get("verdict"), "good")
    reason = cut(result["void"] or result["reason"] or "failed", page.CAUSE)
    return page.UNKNOWN if result["void"] else page.FAILED, reason


def _run(run):
    """Return a run of the history for the table."""
    oks = [one["ok"] for host in run["hosts"].values() for one in host["servers"].values()]
    bad = sorted((cut(name) for name, host in run["hosts"].items() if host["ok"] is not True), key=natural)
    return {
        "began": run["run"]["began"],
        "ended": run["generated"],
        "state": page.state_of(run["ok"]),
        "words": page.WORDS[page.state_of(run["ok"])] + (": " + some(bad) if bad else ""),
        "verified": "%d / %d" % (sum(ok is True for ok in oks), len(oks)),
        "modes": ", ".join(sorted({cut(host["mode"]) for host in run["hosts"].values()} - {""})),
        "versions": run["versions"],
        "software": ", ".join(DIGEST.sub(r"\1", one.rpartition("/")[2]) for one in run["versions"]["software"]),
    }


def _took(began, ended):
    """Return the time between two times of a report."""
    began, ended = time_of(began), time_of(ended)
    return duration((ended - began).total_seconds() * 1000) if began and ended and ended >= began else "–"


def _gib(value, unit=1):
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12
    return "%.1f" % (value / unit) if valid else "–"


def _charts(measured):
    """Return the values of the charts of points with a concurrency and a throughput."""
    points = [
        {
            "series": visible(_series(one)), "concurrency": one["workload"]["concurrency"],
            "rate": one["metrics"]["output_tokens_per_s"],
            **{name: one["metrics"][name]["p50"] for name in ("ttft_ms", "tpot_ms")},
        }
        for one in measured
        if one["workload"]["concurrency"] and one["metrics"]["output_tokens_per_s"] is not None
    ]  # fmt: skip
    names = list(dict.fromkeys(point["series"] for point in points))[:SERIES]
    found = []
    for caption, x, x_title, y, y_title in CHARTS:
        rows = [one for one in points if one["series"] in names and one[y] is not None]
        if rows:
            found.append(
                {"caption": caption, "x_title": x_title, "y_title": y_title, "x": x, "y": y, **_places(rows, x, y)}
            )
    return found


def _places(rows, x, y):
    """Return the marks of both axes as (place, text), and the rows of each line with their places. A place is a part of
    the axis from 0 to 1. The steps of the concurrency are equal."""
    highest = {axis: ticks(max(row[axis] for row in rows)) for axis in (x, y)}
    marks = {axis: [(mark / found[-1], text_of(mark)) for mark in found] for axis, found in highest.items()}
    steps = sorted({row["concurrency"] for row in rows})
    middle = {step: (number + 0.5) / len(steps) for number, step in enumerate(steps)}
    if x == "concurrency":
        marks[x] = [(place, str(step)) for step, place in middle.items()]
    lines = {}
    for row in sorted(rows, key=lambda row: row["concurrency"]):
        place = middle[row[x]] if x == "concurrency" else row[x] / highest[x][-1]
        lines.setdefault(row["series"], []).append({**row, "at_x": place, "at_y": row[y] / highest[y][-1]})
    return {"x_marks": marks[x], "y_marks": marks[y], "lines": lines}


def ticks(high):
    """Return round numbers from 0 to at least `high`, about TICKS steps."""
    high = high if high > LEAST else 1
    step = 10 ** math.floor(math.log10(high / TICKS))
    step *= next(factor for factor in (1, 2, 5, 10) if high / (step * factor) <= TICKS)
    return [step * number for number in range(math.ceil(high / step) + 1)]


def text_of(number):
    """Return a number on an axis as a string."""
    return "{:,.10g}".format(round(number, 6))


# What the template calls.
FUNCTIONS = {
    "series": _series, "number": number, "percent": _percent, "result": _result, "took": _took, "gib": _gib, "cut": cut,
    "moment": moment, "counted": counted, "label": certificates.label, "text_of": text_of, "time_of": time_of,
    "STATISTICS": STATISTICS, "CHANGES": CHANGES, "ARTIFACTS": ARTIFACTS,
}  # fmt: skip


def certificate(action, given, task_vars):
    """Return {certificate, fleet_page, fleet_report, reports_dir, msg}."""
    folder = reports_folder(given["reports_dir"], task_vars, action._templar)
    result = {"certificate": None, "reports_dir": folder}
    if action._task.check_mode:
        return result
    if not folder:
        raise AnsibleActionFail("A certificate is made of reports: set fleet_reports_dir to a folder for them.")
    try:
        made = write(folder, given["regression_limit"], run_id() if given["this_run"] else None)
    except OSError as error:
        raise AnsibleActionFail("The certificate cannot be written to %s: %s." % (folder, error.strerror)) from error
    result.update(certificate=made)
    short = {key: made[key] for key in ("ok", "complete", "generated", "parts")}
    result["ansible_stats"] = {"data": {"fleet_certificate": short}, "per_host": False, "aggregate": False}
    result["fleet_page"] = os.path.join(folder, PAGE)
    if given["shown"]:
        rows = certificates.rows(made)
        result["fleet_report"] = {"title": "Certificate", "columns": list(certificates.COLUMNS), "rows": rows}
        show(result["fleet_report"])
    result["msg"] = message(made, result["fleet_page"])
    result["failed"] = given["strict"] and not (made["ok"] or made["complete"])
    return result


def message(made, path):
    """Return the certificate as lines for people, with the reasons why it is not good."""
    lines = ["%s. %s" % (certificates.headline(made), path)]
    for name, part in made["parts"].items():
        lines.append("%s: %s" % (name, part["summary"]))
        lines += ["  " + reason for reason in part["reasons"] if part["ok"] is not True]
    return "\n".join(lines)


ARGUMENTS = {
    "regression_limit": {"type": "float", "default": compare.LIMIT},
    "reports_dir": {"type": "path"},
    "shown": {"type": "bool", "default": True},
    "strict": {"type": "bool", "default": False},
    "this_run": {"type": "bool", "default": False},
}
KINDS = {"certificate": (ARGUMENTS, certificate)}
