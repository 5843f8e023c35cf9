# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificate of a fleet: whether its servers answer correctly (verify), how fast they are (benchmark), and whether
they are as accurate as published (evaluate). Pure functions."""

from __future__ import annotations

from ...module_utils.fleet_node.host.server_spec import answers
from ...module_utils.fleet_node.host.values import items_of, mapping_of
from ...module_utils.fleet_node.measure.result import plan_hash
from . import compare

SCHEMA = 1
FILE = "certificate.json"
PARTS = ("verify", "benchmark", "evaluate")
UNKNOWN = {"verify": "not verified", "benchmark": "not measured", "evaluate": "not evaluated"}
OPEN = ("too-few", "no-reference")  # verdicts of evaluations that are neither good nor bad
MEASURED = "Verified and measured, accuracy not evaluated"
WHY_OPEN = {
    "too-few": "too few questions to compare the score with the published one",
    "no-reference": "no published score to compare with",
}
REASONS = 20  # of each part


def assemble(fleet, results, generated, inventory, percent=compare.LIMIT, since=None, kept=()):
    """Return the certificate: {schema, ok, complete, generated, inventory, since, regression_limit, parts, benchmarks,
    evaluations}.

    fleet: the content of verdict.json, or None; results: the history, in any order; percent: the limit of a regression
    of a metric. since: the time at which the run began, and kept: the ids of its results; only these results count, and
    each host of the run must have some. Without since, the newest result counts for each point of the recipe and the
    servers that were measured last on each host of `fleet`, each of which must have results of the servers in `fleet`.
    parts: {verify|benchmark|evaluate: {ok, summary, reasons}}. ok is True if all parts are, False if a part is not,
    None if something is missing. complete: whether only a published score, or enough questions to compare with it, is
    missing. benchmarks and evaluations: the judged results by id, with the comparison of compare.compare().
    """
    planned = {
        name: items_of(mapping_of(host, "deployed").get("servers")) for name, host in mapping_of(fleet, "hosts").items()
    }
    servers = {host: {one.get("name"): one.get("hash") for one in entries} for host, entries in planned.items()}
    counted = latest(results, servers, kept if since else None)
    benchmarks = [one for one in counted if one["kind"] == "benchmark"]
    evaluations = [one for one in counted if one["kind"] == "evaluation"]
    hosts = mapping_of(fleet, "run").get("hosts") or () if since else planned
    due = [host for host in hosts if any(map(answers, planned.get(host, ())))]
    lacking = [_lacking(some, servers, due, since) for some in (benchmarks, evaluations)]
    compared = [_compared(one, compare.before(one, results), percent) for one in benchmarks]
    parts = {
        "verify": _verify(fleet),
        "benchmark": _benchmark(benchmarks, compared, percent, lacking[0]),
        "evaluate": _evaluate(evaluations, lacking[1]),
    }
    states = [part["ok"] for part in parts.values()]
    return {
        "schema": SCHEMA,
        "ok": False if False in states else True if all(states) else None,
        # nothing failed, and each host has all results, including an evaluation with any verdict
        "complete": bool(all(states[:2]) and states[2] is not False and evaluations and not lacking[1]),
        "generated": generated,
        "inventory": inventory,
        "since": since,
        "regression_limit": percent,
        "parts": parts,
        "benchmarks": compared,
        "evaluations": [{"id": one["id"], "ok": evaluation_ok(one), "verdict": one["verdict"]} for one in evaluations],
    }


def _compared(one, before, percent):
    ok = compare.counts(one)
    rows = compare.compare(one, before, percent) if ok else []
    return {"id": one["id"], "ok": ok, "before": [earlier["id"] for earlier in before], "compared": rows}


def headline(certificate):
    """Return a summary of the certificate in a few words."""
    if certificate["ok"] is None:
        return MEASURED if certificate["complete"] else "Not certified yet"
    return "Certified" if certificate["ok"] else "Not certified"


COLUMNS = ("part", "result", "details")


def rows(certificate):
    """Return the rows of the certificate's table, with COLUMNS."""
    found = [(name, part["ok"], part["summary"]) for name, part in certificate["parts"].items()]
    found.append(("certificate", certificate["ok"], headline(certificate)))
    return [[name, {True: "good", False: "FAILED", None: UNKNOWN.get(name)}[ok], text] for name, ok, text in found]


def judged(result):
    """Return whether an evaluation proves the accuracy: it has a published score and enough questions."""
    return evaluation_ok(result) and result["verdict"] not in OPEN


def evaluated(result):
    """Return the key of comparable evaluations."""
    return (*(result[key] for key in ("recipe", "scope", "host", "eval", "effort")), result["tool"]["name"])


def fits(result, servers):
    """Return whether a result is of the servers that were verified. servers: {host: {server: hash}}."""
    entries = []
    for one in result["servers"]:
        host, _slash, name = one.rpartition("/")
        host = host or result["host"]
        entries.append({"host": host, "name": name, "hash": servers.get(host, {}).get(name)})
    return plan_hash(entries) == result["plan_hash"]


def latest(results, servers, kept=None):
    """Return the newest result of each point and evaluation, in the order in which they first occur.
    servers: {host: {server: hash}}; results of other hosts do not count. kept: only results with these ids."""
    results = sorted(results, key=lambda one: (one["began"], one["id"]))
    results = [one for one in results if not servers or one["host"] in servers]
    if kept is not None:
        results = [one for one in results if one["id"] in kept]
    else:
        # the recipe, and whether the servers are those that were verified
        measured = [(one, (one["recipe_hash"], fits(one, servers))) for one in results]
        newest = {one["host"]: found for one, found in measured}
        results = [one for one, found in measured if found == newest[one["host"]]]
    return list({key(one): one for one in results}.values())


def key(result):
    """Return the key of comparable results of both kinds."""
    return (result["kind"], *(compare.point if result["kind"] == "benchmark" else evaluated)(result))


def place(result):
    """Return the measured servers of a result, its host, or the fleet, by its scope."""
    return {"server": ", ".join(result["servers"]), "node": result["host"], "fleet": "the fleet"}[result["scope"]]


def named(result):
    """Return a benchmark or evaluation in a few words: aiperf of node-1, 8 at once."""
    where = place(result)
    if result["kind"] == "evaluation":
        what = result["eval"] + (", %s effort" % result["effort"] if result["effort"] else "")
        return "%s of %s" % (what, where)
    concurrency = result["workload"]["concurrency"]
    load = "%d at once" % concurrency if concurrency else "concurrency not limited"
    return "%s of %s, %s" % (result["tool"]["name"], where, load)


def _part(ok, summary, reasons=()):
    left = len(reasons) - REASONS
    return {
        "ok": ok,
        "summary": summary,
        "reasons": [*reasons[:REASONS], *(["and %d more" % left] if left > 0 else [])],
    }


def _verify(fleet):
    fleet = mapping_of(fleet)
    hosts = mapping_of(fleet, "hosts")
    if not hosts:
        return _part(None, "no verdict yet", ["verify.yml has not been run for this inventory"])
    reasons, passed, total = [], 0, 0
    for name, host in sorted(hosts.items()):
        host = mapping_of(host)
        for cause in (host.get("problem"), mapping_of(host, "missing").get("cause")):
            reasons += ["%s: %s" % (name, cause)] if cause else []
        for verdict in items_of(host.get("verdicts")):
            total += 1
            passed += verdict.get("ok") is True
            if verdict.get("ok") is not True:
                failed = [
                    str(probe.get("name")) for probe in items_of(verdict.get("probes")) if probe.get("ok") is False
                ]
                why = verdict.get("void") or verdict.get("not_verified") or ", ".join(failed) or "not verified"
                reasons.append("%s / %s: %s" % (name, verdict.get("server"), why))
    ok = False if fleet.get("ok") is False else True if fleet.get("ok") is True and total and not reasons else None
    return _part(ok, "%d of %d servers verified" % (passed, total), reasons)


def _benchmark(benchmarks, compared, percent, lacking):
    if not benchmarks:
        return _part(None, "not measured", ["benchmark.yml has not measured this"])
    reasons = []
    for one, judged in zip(benchmarks, compared):
        if not judged["ok"]:
            reasons.append("%s: %s" % (named(one), one["void"] or one["reason"] or "failed"))
        worse = [row for row in judged["compared"] if row["verdict"] == compare.WORSE]
        if worse:
            changes = ", ".join("%s %.0f %%" % (label(row), row["change"]) for row in worse)
            reasons.append("%s: worse than before by more than %g %%: %s" % (named(one), percent, changes))
    good = sum(judged["ok"] for judged in compared)
    return _whole("%d of %d points measured" % (good, len(benchmarks)), reasons, lacking)


def _whole(summary, reasons, lacking):
    """Return a part that is good only if no host lacks a result."""
    return _part(False if reasons else None if lacking else True, summary, reasons + lacking)


def _lacking(results, servers, due, since):
    """Return a reason for each due host without a result of the servers that were verified."""
    results = [one for one in results if fits(one, servers)]
    done = {name.rpartition("/")[0] or one["host"] for one in results for name in one["servers"]}
    why = "no result in this run" if since else "no result of the servers that were verified"
    return ["%s: %s" % (host, why) for host in due if host not in done]


def label(row):
    """Return the name of a metric: TTFT p50."""
    names = {
        "ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E",
        "output_tokens_per_s": "output tokens/s",
    }  # fmt: skip
    return " ".join(filter(None, (names.get(row["metric"], row["metric"]), row["statistic"])))


def evaluation_ok(result):
    """Return whether an evaluation is complete and not below its reference."""
    return result["ok"] and not result["void"] and result["verdict"] != "below"


def _evaluate(evaluations, lacking):
    if not evaluations:
        return _part(None, "not evaluated", ["evaluate.yml has not asked this"])
    reasons = []
    for one in evaluations:
        if one["void"] or not one["ok"]:
            reasons.append("%s: %s" % (named(one), one["void"] or one["reason"] or "failed"))
        elif one["verdict"] == "below":
            reasons.append("%s: %.1f %% is below the reference of %.1f %%"
                           % (named(one), one["score"], one["reference"]["score"]))  # fmt: skip
    compared = {one["host"] for one in evaluations if judged(one)}
    good = sum(judged(one) for one in evaluations)
    part = _whole("%d of %d evaluations agree with a published score" % (good, len(evaluations)), reasons, lacking)
    unknown = [one for one in evaluations if evaluation_ok(one) and one["host"] not in compared]
    if unknown and part["ok"]:
        reasons = ["%s: %s" % (named(one), WHY_OPEN[one["verdict"]]) for one in unknown]
        return _part(None, part["summary"] if compared else "not evaluated", reasons)
    return part
