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
from ..base.words import natural, some
from ..reporting import page, report
from ..reporting import runs as kept_runs
from ..reporting.page import counted, cut, duration, moment, template, time_of, visible
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
RUNS = 20  # in the table of runs, and in a sparkline
APART = 600  # seconds without a start between two timelines
TIMELINES = 4
DIGEST = re.compile(r"sha256:([0-9a-f]{12})[0-9a-f]{52}")
MARKED = re.compile(r"([\\`*_\[\]<>|#~&])")  # characters with a meaning in Markdown
ARTIFACTS = {"compiles": "compiled", "loads": "loaded"}


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
    known, series = {one["id"]: one for one in results}, _series_of(results)
    benchmarks = [known[one["id"]] for one in certificate["benchmarks"]]
    evaluations = [known[one["id"]] for one in certificate["evaluations"]]
    measured = sorted(filter(compare.counts, benchmarks), key=_order)
    verdict = page.view(fleet)
    values = {
        "state": page.state_of(certificate["ok"]),
        "headline": certificates.headline(certificate),
        "about": [moment(certificate["generated"]), cut(certificate["inventory"]), *verdict["on"]],
        "tiles": [_tile(certificate, name, measured, evaluations, series) for name in certificates.PARTS],
        "notes": verdict["notes"] + _notes(problems),
        "charts": _charts(measured),
        "tables": {
            "speed": _speed(benchmarks),
            "percentiles": _percentiles(measured),
            "change": _change(certificate, known, series),
            "runs": _runs(runs),
            "accuracy": _accuracy(evaluations),
            "start": _start(verdict["hosts"]),
        },
        "outcomes": [_outcome(run) for run in runs[-RUNS:]],
        "timelines": timelines(verdict["hosts"]),
        "versions": runs[-1]["versions"] if runs else {},
        "hosts": verdict["hosts"],
        "limit": "%g" % certificate["regression_limit"],
    }
    return page.template(TEMPLATE).render(values, markdown=markdown(values))


def markdown(values):
    """Return the parts and tables of the page as Markdown, for an issue or a chat."""

    def plain(text):
        return MARKED.sub(r"\\\1", " ".join(visible(str(text)).split()))

    found = ["# " + plain(values["headline"]), "", plain(" · ".join(filter(None, values["about"]))), ""]
    for tile in values["tiles"]:
        words = "%s, %s %s" % (tile["word"], tile["value"], tile["what"])
        found.append("- **%s**: %s" % (tile["title"], plain(words)))
        found += ["  - " + plain(reason) for reason in tile["reasons"]]
    for table in filter(None, values["tables"].values()):
        found += ["", "## " + plain(table["caption"]), ""]
        found.append("| %s |" % " | ".join(plain(title) for title, _numeric in table["columns"]))
        found.append("| %s |" % " | ".join("---:" if numeric else "---" for _title, numeric in table["columns"]))
        found += ["| %s |" % " | ".join(plain(cell[1]) for cell in row) for row in table["rows"]]
    return "\n".join(found) + "\n"


def _series_of(results):
    """Return {key: [result]} of comparable results that count, the oldest first."""
    found = {}
    for one in sorted(results, key=lambda one: (one["began"], one["id"])):
        if one["ok"] and not one["void"]:
            found.setdefault(certificates.key(one), []).append(one)
    return found


def _trend(series, one, value_of, points=False):
    """Return the values of a result and of those before it, as a sparkline; None without an earlier value."""
    found = [value_of(other) for other in series.get(certificates.key(one), ()) if other["began"] <= one["began"]]
    return spark([value for value in found if value is not None][-RUNS:], points)


def spark(values, points=False):
    """Return a sparkline of 90 by 20 with the change of the last value, in percent or points: {points, last, change,
    label}; None for fewer than two values."""
    if len(values) < 2:
        return None
    low, high, step = min(values), max(values), 90 / (len(values) - 1)
    places = [
        (round(step * count, 1), round(20 - 20 * (value - low) / (high - low), 1) if high > low else 10)
        for count, value in enumerate(values)
    ]
    before, now = values[-2:]
    change = "%+.1f points" % (now - before) if points else _signed((now / before - 1) * 100) if before else ""
    label = "last %d runs: %s" % (len(values), ", ".join(number(value) for value in values))
    return {"points": places, "last": places[-1], "change": change, "label": label}


def number(value):
    """Return a number with three significant digits, or –."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return "{:,.0f}".format(value).replace(",", "\u202f")
    return "%.1f" % value if abs(value) >= 10 else "%.2f" % value if value else "0"


def _percent(value):
    return "–" if value is None else "%.1f %%" % value


def _signed(value):
    return "%+.0f %%" % value if abs(value) >= 0.5 else "0 %"


def _series(result):
    """Return a curve's name in a legend."""
    where = certificates.place(result)
    rate = result["workload"]["request_rate"]
    return "%s, %s%s" % (cut(result["tool"]["name"]), cut(where), ", %g requests/s" % rate if rate else "")


def _order(result):
    scope = ("fleet", "node", "server").index(result["scope"])
    return scope, natural(_series(result)), result["workload"]["concurrency"] or 0, result["began"]


def _tile(certificate, name, measured, evaluations, series):
    """Return a part of the verdict with its number: {title, state, word, value, what, reasons, trend}.
    Evaluations without a comparison have no number."""
    part = certificate["parts"][name]
    value, what, trend = "", part["summary"], None
    if name == "verify" and what.endswith(" servers verified"):
        value, what = what[: -len(" servers verified")].replace(" of ", " / "), "servers verified"
    if name == "benchmark" and measured:
        best = max(measured, key=lambda one: one["metrics"]["output_tokens_per_s"] or 0)
        value = number(best["metrics"]["output_tokens_per_s"])
        what = "output tokens/s, %s" % certificates.named(best)
        trend = _trend(series, best, lambda other: other["metrics"]["output_tokens_per_s"])
    shown = [one for one in evaluations if certificates.judged(one) or not certificates.evaluation_ok(one)]
    if name == "evaluate" and shown and part["ok"] is not None:
        one = max(shown, key=lambda item: (not certificates.evaluation_ok(item), item["questions"]))
        value = _percent(one["score"])
        what = "%s, %s" % (certificates.named(one), counted(one["questions"], "question"))
        trend = _trend(series, one, lambda other: other["score"], points=True)
    state = page.state_of(part["ok"])
    reasons = [] if part["ok"] else [cut(reason, page.CAUSE) for reason in part["reasons"]]
    return {"title": TITLES[name], "state": state, "word": WORDS.get(state) or certificates.UNKNOWN[name],
            "value": value, "what": what, "reasons": reasons, "trend": trend}  # fmt: skip


def _notes(problems):
    if not problems:
        return []
    more = " And %d more." % (len(problems) - 3) if len(problems) > 3 else ""
    text = " ".join(cut(problem, page.CAUSE) for problem in problems[:3]) + more
    return [{"title": "Left out of the history", "text": text}]


def _table(caption, columns, rows):
    """Return a table, None without rows. columns: titles, with a leading # for numbers;
    cells: strings, (state, string), or (state, string, sparkline)."""
    if not rows:
        return None
    columns = [(title.lstrip("#"), title.startswith("#")) for title in columns]
    rows = [[(*cell, None)[:3] if isinstance(cell, tuple) else ("", cell, None) for cell in row] for row in rows]
    return {"caption": caption, "columns": columns, "rows": rows}


def _charts(measured):
    """Return [{caption, svg}] of the points with a concurrency and a throughput."""
    points = [
        {
            "series": _series(one), "concurrency": one["workload"]["concurrency"],
            "rate": one["metrics"]["output_tokens_per_s"],
            **{name: one["metrics"][name]["p50"] for name in ("ttft_ms", "tpot_ms")},
        }
        for one in measured
        if one["workload"]["concurrency"] and one["metrics"]["output_tokens_per_s"] is not None
    ]  # fmt: skip
    names = list(dict.fromkeys(point["series"] for point in points))[:SERIES]
    points = [point for point in points if point["series"] in names]
    found = []
    for caption, x, x_title, y, y_title in CHARTS:
        rows = [{"series": one["series"], "x": one[x], "y": one[y], "concurrency": one["concurrency"]}
                for one in points if one[y] is not None]  # fmt: skip
        if rows:
            found.append({"caption": caption, "svg": lines(rows, caption, x_title, y_title)})
    return found


def _speed(benchmarks):
    columns = ["tool, where", "#concurrency", "#requests", "#failed", "#output tokens/s", "#for each user",
               "#for each accelerator", "#requests/s", "#TTFT p50, ms", "#TPOT p50, ms", "measured",
               "result"]  # fmt: skip
    rates = ("output_tokens_per_s", "output_tokens_per_s_per_user", "output_tokens_per_s_per_accelerator",
             "requests_per_s")  # fmt: skip
    rows = [
        [
            _series(one), str(one["workload"]["concurrency"] or "–"), str(one["counts"]["asked"]),
            str(one["counts"]["failed"]), *(number(one["metrics"][key]) for key in rates),
            *(number(one["metrics"][key]["p50"]) for key in ("ttft_ms", "tpot_ms")),
            moment(one["began"]), _result(one),
        ]
        for one in sorted(benchmarks, key=_order)
    ]  # fmt: skip
    return _table("Throughput and latency at each point", columns, rows)


def _result(result):
    """Return (state, words) of a result."""
    if result["ok"] and not result["void"]:
        return page.PASSED, "good"
    reason = cut(result["void"] or result["reason"] or "failed", page.CAUSE)
    return page.UNKNOWN if result["void"] else page.FAILED, reason


def _percentiles(measured):
    rows = [
        [_series(one), str(one["workload"]["concurrency"] or "–"), metric[:-3].upper()]
        + [number(one["metrics"][metric][key]) for key in STATISTICS]
        for metric in LATENCIES
        for one in measured
        if any(one["metrics"][metric][key] is not None for key in STATISTICS)
    ]
    columns = ["tool, where", "#concurrency", "latency, ms", *("#" + key for key in STATISTICS)]
    return _table("Percentiles of latencies", columns, rows)


def _change(certificate, known, series):
    rows = []
    for judged in certificate["benchmarks"]:
        one, earlier = known[judged["id"]], [known[name] for name in judged["before"] if name in known]
        for row in judged["compared"] if earlier else ():
            measures = (row["metric"], row["statistic"])
            trend = _trend(series, one, lambda other, measures=measures: compare.value_of(other, *measures))
            rows.append(
                [
                    "%s, concurrency %s" % (_series(one), one["workload"]["concurrency"] or "–"),
                    ("", certificates.label(row), trend), number(row["before"]), number(row["now"]),
                    _signed(row["change"]), "%.0f %%" % row["noise"], counted(len(earlier), "run"),
                    moment(earlier[-1]["began"]), CHANGES[row["verdict"]],
                ]
            )  # fmt: skip
    columns = ["tool, where", "metric", "#before", "#now", "#change for the worse", "#noise", "compared with", "last",
               "result"]  # fmt: skip
    return _table("This run and the runs before", columns, rows)


def _accuracy(evaluations):
    rows = []
    for one in sorted(evaluations, key=lambda item: (item["eval"], item["effort"] or "", item["host"])):
        reference = one["reference"] or {}
        state, words = _result(one)
        if state == page.PASSED:
            words = VERDICTS[one["verdict"]]
            state = page.PASSED if certificates.judged(one) else page.UNKNOWN
        rows.append(
            [
                cut(one["eval"]) + (", " + cut(one["effort"]) if one["effort"] else ""),
                *(str(one[key]) for key in ("questions", "answered", "failed")), _percent(one["score"]),
                "%.1f to %.1f %%" % tuple(one["interval"]) if one["interval"] else "–",
                _percent(reference.get("score")), cut(reference.get("source")) or "–",
                "–" if one["difference"] is None else "%+.1f" % one["difference"],
                moment(one["began"]), (state, words),
            ]
        )  # fmt: skip
    columns = ["evaluation", "#questions", "#answered", "#failed", "#score", "#95 % interval", "#reference", "source",
               "#difference, points", "measured", "result"]  # fmt: skip
    return _table("Scores and references", columns, rows)


def _start(hosts):
    """Return the times of each server's start, and its planned and measured host memory."""
    rows = []
    started = [(host, server) for host in hosts for server in host["servers"] if server["start"]]
    for host, server in started[:STARTS]:
        start = server["start"]
        began, ready = (time_of(start.get(key)) for key in ("started", "ready"))
        rows.append(
            [
                "%s / %s" % (host["name"], server["name"]),
                moment(start.get("started")) if began else "–",
                ARTIFACTS.get(cut(start.get("artifact")), "–"),
                "%d s" % (ready - began).total_seconds() if began and ready and ready >= began else "–",
                _gib(host["memory_gib"]),
                _gib(start.get("memory_mib"), 1024),
            ]
        )
    columns = ["server", "started", "artifact", "#start to ready", "#host memory planned, GiB", "#measured, GiB"]
    return _table("The start of each server, and its memory on the host", columns, rows)


def _outcome(run):
    """Return a run in a few values: {state, share, verified, servers, label}; share: percent of verified servers."""
    oks = [one["ok"] for host in run["hosts"].values() for one in host["servers"].values()]
    verified = sum(ok is True for ok in oks)
    label = "%s: %d of %d" % (moment(run["run"]["began"]), verified, len(oks))
    share = round(100 * verified / len(oks)) if oks else 0
    return {
        "state": page.state_of(run["ok"]),
        "share": share,
        "verified": verified,
        "servers": len(oks),
        "label": label,
    }


def _runs(runs):
    """Return the table of the last runs, the newest first, each compared with the run before of the same hosts."""
    rows, earlier = [], {}
    for run in runs[-RUNS:]:
        found, hosts = _outcome(run), tuple(sorted(run["hosts"]))
        bad = sorted((cut(name) for name in hosts if run["hosts"][name]["ok"] is not True), key=natural)
        began, ended = time_of(run["run"]["began"]), time_of(run["generated"])
        took = duration((ended - began).total_seconds() * 1000) if began and ended and ended >= began else "–"
        software = ", ".join(DIGEST.sub(r"\1", one.rpartition("/")[2]) for one in run["versions"].get("software", ()))
        shown = [cut(text) or "–" for text in (*map(run["versions"].get, ("collection", "inventory")), software)]
        verified, versions = earlier.get(hosts, (None, shown))
        cells = [("new" if text != last else "", text) for text, last in zip(shown, versions)]
        if verified is not None and software and shown[2] == versions[2]:
            cells[2] = ("", "same")
        rows.append(
            [
                moment(run["run"]["began"]),
                (found["state"], page.WORDS[found["state"]] + (": " + some(bad) if bad else "")),
                "%d / %d" % (found["verified"], found["servers"]),
                "–" if verified is None else ("%+d" % (found["verified"] - verified)).replace("+0", "0"),
                ", ".join(sorted({cut(host["mode"]) for host in run["hosts"].values()} - {""})) or "–", took, *cells,
            ]
        )  # fmt: skip
        earlier[hosts] = (found["verified"], shown)
    columns = ["run", "result", "#servers verified", "#change", "verification", "#took", "collection", "inventory",
               "software"]  # fmt: skip
    return _table("The last runs, each compared with the run before of the same hosts", columns, rows[::-1])


def timelines(hosts):
    """Return bars of the starts of servers, from the start of each process until it was ready: [{caption, marks,
    rows: [{name, x, width, took}]}], in percent of the width. Starts that are far apart in time are separate."""
    spans = []
    for host in hosts:
        for server in host["servers"]:
            began, ready = (time_of(server["start"].get(key)) for key in ("started", "ready"))
            if began and ready and ready >= began:
                spans.append((began, ready, "%s / %s" % (host["name"], server["name"])))
    groups = []
    for span in sorted(spans, key=lambda one: (one[0], natural(one[2]))):
        if not groups or (span[0] - max(ready for _began, ready, _name in groups[-1])).total_seconds() > APART:
            groups.append([])
        groups[-1].append(span)
    return [_timeline(group[:STARTS]) for group in groups[-TIMELINES:]]


def _timeline(group):
    first = group[0][0]
    marks = ticks(max((ready - first).total_seconds() for _began, ready, _name in group))

    def at(seconds):
        return round(100 * seconds / marks[-1], 1)

    rows = [
        {"name": name, "x": at((began - first).total_seconds()), "width": at((ready - began).total_seconds()),
         "took": duration((ready - began).total_seconds() * 1000)}
        for began, ready, name in group
    ]  # fmt: skip
    return {"caption": "From %s" % moment(first.strftime(TIME)), "rows": rows,
            "marks": [(at(mark), text_of(mark) + " s") for mark in marks]}  # fmt: skip


def _gib(value, unit=1):
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12
    return "%.1f" % (value / unit) if valid else "–"


try:
    from markupsafe import Markup
except ImportError:
    Markup = None  # without jinja2, which ansible-core requires: only if the sanity tests import this file alone

SHAPES = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z", "M-3.5,-3.5h7v7h-7Z", "M0,-4.5L4.5,3.5L-4.5,3.5Z", "M0,-5L5,0L0,5L-5,0Z",
)  # fmt: skip
TICKS = 5
LEAST = 1e-6  # of an axis; smaller numbers are shown as 0
LEFT, RIGHT, HEIGHT = 62, 340, 200  # of the plot
LEGEND = 18  # height of an entry
LONGEST = 46  # characters of the name of a line


def lines(rows, label, x_title, y_title):
    """Return the SVG of rows {series, x, y, concurrency}. label: its description for screen readers. If x is the
    concurrency, its steps are equal; otherwise each point shows its concurrency."""
    rows = [{**row, "series": visible(row["series"])} for row in rows]
    names = list(dict.fromkeys(row["series"] for row in rows))
    top = LEGEND * len(names) + 12
    y_marks = ticks(max(row["y"] for row in rows))
    at_y = _scale(y_marks, top + HEIGHT, top)
    equal = all(row["x"] == row["concurrency"] for row in rows)
    if equal:
        steps = sorted({row["x"] for row in rows})
        width = (RIGHT - LEFT) / len(steps)
        x_marks = [(round(LEFT + width * (number + 0.5), 1), str(step)) for number, step in enumerate(steps)]
        at_x = dict(zip(steps, (place for place, _text in x_marks))).get
    else:
        marks = ticks(max(row["x"] for row in rows))
        at_x = _scale(marks, LEFT, RIGHT)
        x_marks = [(at_x(mark), text_of(mark)) for mark in marks]
    drawn = []
    for number, name in enumerate(names):
        points = [
            {
                "x": at_x(row["x"]), "y": at_y(row["y"]), "note": "" if equal else str(row["concurrency"]),
                "label": "%s; %s: %s; %s: %s; concurrent requests: %s" % (
                    name, x_title, text_of(row["x"]), y_title, text_of(row["y"]), row["concurrency"]
                ),
            }
            for row in sorted(rows, key=lambda row: row["concurrency"]) if row["series"] == name
        ]  # fmt: skip
        drawn.append(
            {"name": cut(name, LONGEST), "color": "var(--s%d)" % (number % 4 + 1), "shape": SHAPES[number % 4],
             "points": points, "legend": 14 + LEGEND * number}
        )  # fmt: skip
    values = {
        "label": label, "width": RIGHT + 20, "height": top + HEIGHT + 42, "left": LEFT, "right": RIGHT, "top": top,
        "bottom": top + HEIGHT, "x_title": x_title, "y_title": y_title, "x_marks": x_marks,
        "y_marks": [(at_y(mark), text_of(mark)) for mark in y_marks], "lines": drawn,
    }  # fmt: skip
    return Markup(template("chart.svg.j2").render(values))


def ticks(high):
    """Return round numbers from 0 to at least `high`, about TICKS steps."""
    high = high if high > LEAST else 1
    step = 10 ** math.floor(math.log10(high / TICKS))
    step *= next(factor for factor in (1, 2, 5, 10) if high / (step * factor) <= TICKS)
    return [step * number for number in range(math.ceil(high / step) + 1)]


def text_of(number):
    """Return a number on an axis as a string."""
    return "{:,.10g}".format(round(number, 6))


def _scale(marks, begin, end):
    return lambda value: round(begin + (end - begin) * value / marks[-1], 1)


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
