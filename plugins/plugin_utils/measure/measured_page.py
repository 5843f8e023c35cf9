# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificate and its measurements as one HTML page: charts where they could be drawn, the numbers always."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.result import STATISTICS
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import some
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import certificate as certificates
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import compare
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import charts, page
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.page_values import (
    counted,
    cut,
    items,
    mapping,
    moment,
    natural,
    quoted,
    time_of,
)

try:
    from markupsafe import Markup
except ImportError:
    Markup = None  # only where the sanity tests import this alone: it comes with jinja2

TEMPLATE = "report.html.j2"
WORDS = {page.PASSED: "good", page.FAILED: "failed"}
SERIES = 4  # curves of one chart: as many colours and shapes as there are
TITLES = {"verify": "Answers", "benchmark": "Speed", "evaluate": "Accuracy"}
VERDICTS = {
    "agrees": "agrees", "below": "below the reference", "above": "above the reference",
    "too-few": "too few questions to tell", "no-reference": "no reference",
}  # fmt: skip
CHANGES = {
    compare.WORSE: "worse", compare.BETTER: "better", compare.SAME: "same", compare.UNCLEAR: "not told from noise",
}  # fmt: skip
CAPTIONS = {
    "throughput": "Throughput over concurrency",
    "ttft": "TTFT against throughput",
    "tpot": "TPOT against throughput",
    "percentiles-ttft": "Time to first token",
    "percentiles-tpot": "Time per output token",
    "percentiles-e2e": "Whole request",
    "change": "Change against the runs before",
    "platforms": "Output tokens/s for each accelerator",
    "accuracy": "Score, its 95 % interval, and the reference as an upright tick",
}
LATENCY_NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E"}
STARTS = 64  # servers in the table of starts
STEPS = ("installed", "weights", "started")
ARTIFACTS = {"compiles": "compiled", "loads": "loaded"}
TONES = {compare.WORSE: page.FAILED, compare.BETTER: page.PASSED}
SCOPES = {"server": "one server", "node": "one node", "fleet": "the fleet"}


def contents(certificate, results, others=()):
    """What the page says of the measurements, without charts: {view, charts: {name: specification}}.

    certificate: certificates.assemble(); results: the history of this inventory; others: results of other inventories.
    """
    known = {one["id"]: one for one in results}
    benchmarks = [known[one["id"]] for one in certificate["benchmarks"] if one["id"] in known]
    measured = [one for one in benchmarks if compare.counts(one)]
    evaluations = [known[one["id"]] for one in certificate["evaluations"] if one["id"] in known]
    sections, drawings = {}, {}
    for name, made in (
        ("speed", _speed(measured, benchmarks)),
        ("percentiles", _percentiles(measured)),
        ("change", _change(certificate, known)),
        ("platforms", _platforms(measured, others)),
        ("accuracy", _accuracy(evaluations)),
    ):
        drawings.update(made.pop("charts") if made else {})
        sections[name] = made
    return {
        "sections": sections,
        "charts": drawings,
        "tools": _tools(benchmarks + evaluations),
        "tiles": _tiles(certificate, measured, evaluations, results),
    }


def render(certificate, results, fleet=None, problems=(), others=()):
    """The page as text of an HTML file.

    fleet: the content of verdict.json, or None. problems: sentences on what was left out.
    """
    found = contents(certificate, results, others)
    drawn = charts.draw(found["charts"])
    verdict = page.view(fleet)
    state = page.PASSED if certificate["ok"] else page.UNKNOWN if certificate["ok"] is None else page.FAILED
    values = {
        "state": state,
        "headline": certificates.headline(certificate),
        "about": [moment(certificate["generated"]), cut(certificate["inventory"]), *verdict["on"]],
        "tiles": found["tiles"],
        "notes": verdict["notes"] + _notes(problems),
        "sections": {**found["sections"], "start": _start(verdict["hosts"])},
        "drawn": {name: {"svg": Markup(svg), "caption": CAPTIONS[name]} for name, svg in drawn.items()},
        "tools": found["tools"],
        "hosts": verdict["hosts"],
        "limit": "%g" % certificate["regression_limit"],
    }
    return page.template(TEMPLATE).render(values)


def number(value):
    """A number for people, with three digits that count; – where there is none."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return "{:,.0f}".format(value).replace(",", "\u202f")
    return "%.1f" % value if abs(value) >= 10 else "%.2f" % value if value else "0"


def _percent(value):
    return "–" if value is None else "%.1f %%" % value


def _signed(value):
    return "%+.0f %%" % value if abs(value) >= 0.5 else "0 %"


def _concurrency(result):
    return result["workload"]["concurrency"]


def _series(result):
    """A curve's name in a legend."""
    where = ", ".join(result["servers"]) if result["scope"] == "server" else result["host"]
    rate = result["workload"]["request_rate"]
    return "%s, %s%s" % (
        cut(result["tool"]["name"]),
        cut(SCOPES["fleet"] if result["scope"] == "fleet" else where),
        ", %g requests/s" % rate if rate else "",
    )


def _order(result):
    scope = ("fleet", "node", "server").index(result["scope"])
    return scope, natural(_series(result)), _concurrency(result) or 0, result["began"]


def _tiles(certificate, measured, evaluations, results):
    """The parts of the verdict, each with its number: [{title, state, word, value, what, change, reasons, summary}].

    A number stands only where something was measured: an evaluation that nothing can be compared with has none.
    """
    tiles = []
    for name in certificates.PARTS:
        part = certificate["parts"][name]
        value, what, change = "", part["summary"], ""
        if name == "verify":
            value, _space, what = part["summary"].partition(" servers ")
            value, what = (value.replace(" of ", " / "), "servers verified") if what else ("", part["summary"])
        if name == "benchmark" and measured:
            best = max(measured, key=lambda one: one["metrics"]["output_tokens_per_s"] or 0)
            value = number(best["metrics"]["output_tokens_per_s"])
            what = "output tokens/s, %s" % certificates.named(best)
            last = compare.before(best, results)[-1:]
            before = last[0]["metrics"]["output_tokens_per_s"] if last else None
            if before:
                now = best["metrics"]["output_tokens_per_s"] or 0
                change = _since(_signed(100 * (now / before - 1)), number(before), last[0])
        told = [one for one in evaluations if certificates.judged(one) or not certificates.evaluation_ok(one)]
        if name == "evaluate" and told and part["ok"] is not None:
            one = max(
                told, key=lambda item: (not certificates.evaluation_ok(item), item["questions"], item["score"] or 0)
            )
            value, what = (
                _percent(one["score"]),
                "%s, %s" % (certificates.named(one), counted(one["questions"], "question")),
            )
            last = certificates.earlier(one, results)
            if last and None not in (one["score"], last["score"]):
                points = "%+.1f points" % (one["score"] - last["score"])
                change = _since(points, _percent(last["score"]), last)
        state = page.PASSED if part["ok"] else page.UNKNOWN if part["ok"] is None else page.FAILED
        reasons = [] if part["ok"] else [cut(reason, page.CAUSE) for reason in part["reasons"]]
        word = WORDS.get(state) or certificates.UNKNOWN[name]
        tiles.append({"title": TITLES[name], "state": state, "word": word, "value": value, "what": what,
                      "change": change, "reasons": reasons, "summary": part["summary"]})  # fmt: skip
    return tiles


def _since(change, before, last):
    """The change of a number since the last run of the same."""
    return "%s against %s on %s" % (change, before, moment(last["began"]))


def _notes(problems):
    notes = []
    if problems:
        more = " And %d more." % (len(problems) - 3) if len(problems) > 3 else ""
        text = " ".join(cut(problem, page.CAUSE) for problem in problems[:3]) + more
        notes.append({"title": "Left out of the history", "text": text})
    return notes


def _table(caption, columns, rows):
    """columns: [(title, is it a number)]; rows: lists of texts, or of {text, state}; the first is the row's head."""
    cells = [[cell if isinstance(cell, dict) else {"text": cell, "state": ""} for cell in row] for row in rows]
    return {"caption": caption, "columns": columns, "rows": cells}


def _speed(measured, benchmarks):
    if not benchmarks:
        return None
    rows, names = [], []
    for one in sorted(measured, key=_order):
        if one["workload"]["concurrency"] and one["metrics"]["output_tokens_per_s"] is not None:
            if _series(one) not in names:
                names.append(_series(one))
            if names.index(_series(one)) < SERIES:
                rows.append(
                    {
                        "series": _series(one), "concurrency": _concurrency(one),
                        "throughput": one["metrics"]["output_tokens_per_s"],
                        "TTFT": one["metrics"]["ttft_ms"]["p50"], "TPOT": one["metrics"]["tpot_ms"]["p50"],
                    }
                )  # fmt: skip
    drawings = {}
    if rows:
        chart = charts.specification("throughput", rows, "Output tokens per second over concurrent requests")
        drawings["throughput"] = chart
        for name, what in (("TTFT", "Time to first token"), ("TPOT", "Time per output token")):
            points = [{**row, "latency": row[name]} for row in rows if row[name] is not None]
            if points:
                label = "%s, median, against output tokens per second; each point is a concurrency" % what
                drawings[name.lower()] = charts.specification("latency", points, label, {"y": name + " p50, ms"})
    columns = [
        ("tool, where", False), ("concurrency", True), ("requests", True), ("failed", True), ("output tokens/s", True),
        ("for each user", True), ("for each accelerator", True), ("requests/s", True), ("TTFT p50, ms", True),
        ("TPOT p50, ms", True), ("result", False),
    ]  # fmt: skip
    table = [
        [
            _series(one), "%s" % (_concurrency(one) or "–"), str(one["counts"]["asked"]), str(one["counts"]["failed"]),
            *(number(one["metrics"][key]) for key in (
                "output_tokens_per_s", "output_tokens_per_s_per_user", "output_tokens_per_s_per_accelerator",
                "requests_per_s")),
            number(one["metrics"]["ttft_ms"]["p50"]), number(one["metrics"]["tpot_ms"]["p50"]),
            _result(one, compare.counts(one)),
        ]
        for one in sorted(benchmarks, key=_order)
    ]  # fmt: skip
    return {"charts": drawings, "table": _table("Throughput and latency at each point", columns, table),
            "workload": _workload(benchmarks)}  # fmt: skip


def _result(result, good):
    text = "good" if good else cut(result["void"] or result["reason"] or "failed", page.CAUSE)
    return {"text": text, "state": page.PASSED if good else page.UNKNOWN if result["void"] else page.FAILED}


def _workload(benchmarks):
    """The lengths in a line: as asked, and as they arrived where that is told."""
    found = {}
    for one in benchmarks:
        asked = (one["workload"]["input_tokens_asked"], one["workload"]["output_tokens_asked"])
        found.setdefault(asked, []).append((one["workload"]["input_tokens"], one["workload"]["output_tokens"]))
    parts = []
    for (asked_in, asked_out), arrived in sorted(found.items())[:3]:
        sides = [sorted({round(side) for side in values if side is not None}) for values in zip(*arrived)]
        seen = ["–".join(str(end) for end in sorted({side[0], side[-1]})) if side else "?" for side in sides]
        parts.append(
            "%d tokens in and %d out were asked for; on average %s and %s arrived" % (asked_in, asked_out, *seen)
        )
    return "; ".join(parts) + "."


def _percentiles(measured):
    if not measured:
        return None
    ordered = sorted(measured, key=_order)
    curves = {}
    for one in ordered:
        curves.setdefault(compare.curve(one), []).append(one)
    # the widest scope's longest curve
    shown = max(curves.values(), key=lambda points: (len(points), -ordered.index(points[0])))
    drawings = {}
    for metric, name in LATENCY_NAMES.items():
        points = [
            {"concurrency": _concurrency(one) or 0, "percentile": percentile, "ms": one["metrics"][metric][percentile]}
            for one in shown
            for percentile in STATISTICS[1:]
            if one["metrics"][metric][percentile] is not None
        ]
        if points and metric != "itl_ms":
            label = "%s latency: p50, p90, p95 and p99 over concurrent requests" % name
            title = {"y": "%s, ms" % name}
            drawings["percentiles-" + metric[:4].strip("_")] = charts.specification("percentiles", points, label, title)
    columns = [
        ("tool, where", False),
        ("concurrency", True),
        ("latency, ms", False),
        *((key, True) for key in STATISTICS),
    ]
    table = _table("Percentiles of latencies, %s" % _series(shown[0]), columns, _percentile_rows(shown))
    rest = _table(
        "Percentiles of latencies, all others", columns, _percentile_rows([one for one in ordered if one not in shown])
    )
    if not table["rows"]:
        return None
    return {"charts": drawings, "of": _series(shown[0]), "table": table, "rest": rest}


def _percentile_rows(results):
    return [
        [_series(one), str(_concurrency(one) or "–"), name]
        + [number(one["metrics"][metric][key]) for key in STATISTICS]
        for metric, name in LATENCY_NAMES.items()
        for one in results
        if any(one["metrics"][metric][key] is not None for key in STATISTICS)
    ]


def _change(certificate, known):
    rows, points = [], []
    for judged in certificate["benchmarks"]:
        one = known.get(judged["id"])
        earlier = [known[name] for name in judged["before"] if name in known]
        if not one or not earlier:
            continue
        for row in judged["compared"]:
            what = "%s, %s at once" % (_series(one), _concurrency(one) or "all")
            rows.append(
                [
                    what, certificates.label(row), number(row["before"]), number(row["now"]), _signed(row["change"]),
                    "%.0f %%" % row["noise"], counted(len(earlier), "run"), moment(earlier[-1]["began"]),
                    {"text": CHANGES[row["verdict"]], "state": TONES.get(row["verdict"], page.UNKNOWN)},
                ]
            )  # fmt: skip
            if row["verdict"] == compare.SAME and row["statistic"]:
                continue  # the throughput of each point, and what is not the same
            points.append(
                {
                    "what": "%s · %s" % (certificates.label(row), what), "change": row["change"],
                    "verdict": row["verdict"], "limit": certificate["regression_limit"],
                }
            )  # fmt: skip
    if not rows:
        return None
    points.sort(key=lambda point: -point["change"])
    label = "Change of each metric against the runs before, in percent; more than 0 is worse"
    columns = [
        ("tool, where", False), ("metric", False), ("before", True), ("now", True), ("change for the worse", True),
        ("noise", True), ("compared with", False), ("last of", False), ("result", False),
    ]  # fmt: skip
    return {"charts": {"change": charts.specification("change", points[:24], label)},
            "table": _table("This run and the runs before", columns, rows)}  # fmt: skip


def _platforms(measured, others):
    """This inventory's best point and the newest of others with the same tool and lengths."""
    if not measured or not others:
        return None

    def best(results):
        return max(results, key=lambda one: one["metrics"]["output_tokens_per_s_per_accelerator"] or 0)

    def asked(one):
        return one["tool"]["name"], one["workload"]["input_tokens_asked"], one["workload"]["output_tokens_asked"]

    ours = best(measured)
    groups = {}
    for one in [*others, *measured]:
        if compare.counts(one) and asked(one) == asked(ours):
            key = (one["inventory"], one["recipe"], one["hardware"]["accelerator"], one["hardware"]["count"])
            groups.setdefault(key, []).append(one)
    found = [best(group) for group in groups.values()]
    found = [one for one in found if one["metrics"]["output_tokens_per_s_per_accelerator"]]
    if len({one["inventory"] for one in found}) < 2:
        return None
    found.sort(key=lambda one: -one["metrics"]["output_tokens_per_s_per_accelerator"])
    points, rows = [], []
    for one in found:
        label = PLATFORMS[one["platform"]].label if one["platform"] in PLATFORMS else one["platform"]
        rate = one["metrics"]["output_tokens_per_s_per_accelerator"]
        points.append(
            {"what": "%s · %s" % (cut(one["inventory"]), cut(one["hardware"]["accelerator"])), "throughput": rate}
        )
        rows.append(
            [
                cut(one["inventory"]), cut(label),
                "%d × %s" % (one["hardware"]["count"], cut(one["hardware"]["accelerator"])), cut(one["recipe"]),
                str(_concurrency(one) or "–"), number(rate), number(one["metrics"]["output_tokens_per_s"]),
                number(one["metrics"]["ttft_ms"]["p50"]), number(one["metrics"]["tpot_ms"]["p50"]),
                moment(one["began"]),
            ]
        )  # fmt: skip
    columns = [
        ("inventory", False), ("platform", False), ("hardware", False), ("recipe", False), ("concurrency", True),
        ("output tokens/s for each accelerator", True), ("output tokens/s", True), ("TTFT p50, ms", True),
        ("TPOT p50, ms", True), ("measured", False),
    ]  # fmt: skip
    label = "Output tokens per second for each accelerator, of each inventory's best point"
    return {"charts": {"platforms": charts.specification("platforms", points[:16], label)},
            "table": _table("The best point of each inventory, same tool and lengths", columns, rows)}  # fmt: skip


def _accuracy(evaluations):
    if not evaluations:
        return None
    points, rows = [], []
    for one in sorted(evaluations, key=lambda item: (item["eval"], item["effort"] or "", item["host"])):
        low, high = one["interval"] or (None, None)
        reference = one["reference"] or {}
        name = cut(one["eval"]) + (", " + cut(one["effort"]) if one["effort"] else "")
        point = {"score": one["score"], "low": low, "high": high, "reference": reference.get("score")}
        points.append({"what": name, **point})
        good = certificates.evaluation_ok(one)
        rows.append(
            [
                name, str(one["questions"]), str(one["answered"]), str(one["failed"]), _percent(one["score"]),
                "–" if low is None else "%.1f to %.1f %%" % (low, high), _percent(reference.get("score")),
                cut(reference.get("source")) or "–",
                "–" if one["difference"] is None else "%+.1f" % one["difference"],
                {"text": VERDICTS[one["verdict"]] if one["ok"] and not one["void"] else _result(one, False)["text"],
                 "state": page.PASSED if certificates.judged(one) else page.UNKNOWN if good else page.FAILED},
            ]
        )  # fmt: skip
    columns = [
        ("evaluation", False), ("questions", True), ("answered", True), ("failed", True), ("score", True),
        ("95 % interval", True), ("reference", True), ("its source", False), ("difference, points", True),
        ("result", False),
    ]  # fmt: skip
    label = "Score of each evaluation with its 95 % interval; the upright tick is the reference"
    return {"charts": {"accuracy": charts.specification("accuracy", points[:24], label)},
            "table": _table("Scores and references", columns, rows)}  # fmt: skip


def _start(hosts):
    """When the steps of each server's start were done, and the host memory that was planned for it and that it has."""
    rows, more = [], 0
    for host in hosts:
        for server in host["servers"]:
            start = server["start"]
            if not start:
                continue
            if len(rows) == STARTS:
                more += 1
                continue
            times = [time_of(start.get(key)) for key in ("started", "ready")]
            took = "%d s" % (times[1] - times[0]).total_seconds() if None not in times and times[1] >= times[0] else "–"
            rows.append(
                [
                    "%s / %s" % (host["name"], server["name"]),
                    *(moment(start.get(key)) if time_of(start.get(key)) else "–" for key in STEPS),
                    ARTIFACTS.get(cut(start.get("artifact")), "–"),
                    moment(start.get("ready")) if None not in times else "–",
                    took,
                    _gib(host["memory_gib"]),
                    _gib(start.get("memory_mib"), 1024),
                ]
            )
    if not rows:
        return None
    columns = [
        ("server", False), ("environment installed", False), ("weights complete", False), ("started", False),
        ("artifact", False), ("seen ready", False), ("start to ready", True), ("host memory planned, GiB", True),
        ("measured, GiB", True),
    ]  # fmt: skip
    caption = "The start of each server, and its memory on the host"
    return {"table": _table(caption, columns, rows), "more": more}


def _gib(value, unit=1):
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12
    return "%.1f" % (value / unit) if number else "–"


def _tools(results):
    """Each tool that measured, once, with a command: [{name, version, versions, hardware, command}]."""
    found = {}
    for one in results:
        found.setdefault((one["tool"]["name"], one["tool"]["version"]), []).append(one)
    tools = []
    for (name, version), group in sorted(found.items(), key=lambda item: str(item[0])):
        last = group[-1]
        tools.append(
            {
                "name": cut(name),
                "version": cut(version),
                "points": counted(len(group), "result"),
                "engine": "%s %s" % (cut(last["engine"]), cut(mapping(last["versions"]).get("engine"))),
                "hardware": "%d × %s" % (last["hardware"]["count"], cut(last["hardware"]["accelerator"])),
                "servers": some([cut(server) for server in items(last["servers"])]),
                "command": cut(" ".join(quoted(word) for word in last["tool"]["command"]), page.LONGEST),
            }
        )
    return tools
