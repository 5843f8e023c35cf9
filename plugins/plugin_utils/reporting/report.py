# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts as files and as output: one file per host, a file for the fleet and its page, a table and a message.

A run begins by marking the hosts that will get a verdict in the fleet's file. The mark remains for a host that is
unreachable or fails before its servers are verified.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import urllib.parse

from ...module_utils.fleet_node.errors import cut
from ...module_utils.fleet_node.host.files import fits, read_json, read_text, write_atomic
from ...module_utils.fleet_node.host.server_spec import answers
from ...module_utils.fleet_node.host.values import all_ok, format_cpu_list, items_of, mapping_of, now
from ..base.words import some
from . import runs
from .runs import host_path

SCHEMA = 1
TITLE = "Verdicts"
COLUMNS = ("host", "server", "port", "verdict", "probes", "details")
WORDS = {True: "ok", False: "FAILED", None: "not verified"}
DETAILS = 300  # characters of the reason in the table
MISSED = "No verdict of this run yet: not reached, failed before its servers were asked, or not asked yet."
NEVER = "Planned, but in no run so far."

VERDICT = {"server": str, "ok": runs.STATE, "url": object, "probes": [{"name": str, "ok": runs.STATE, "cause": object}]}
FULL = {"ok": runs.STATE, "generated": runs.TEXT, "verdicts": [VERDICT]}
# The shapes of hosts/<host>.json and verdict.json, for host.files.fits(): what this collection reads of them.
HOST = {
    **FULL, "mode": runs.TEXT, "problem": runs.TEXT, "last_full": (FULL, None),
    "deployed": ({"servers": [{"name": str, "role": str, "hash": str}]}, None),
}  # fmt: skip
FLEET = {
    "generated": runs.TEXT,
    "run": ({"id": str, "began": str, "hosts": [str]}, None),
    "hosts": {"*": HOST},
}


def deployed(entries, deployment=None, simulated=""):
    """The deployment of a host in its report, without secrets and commands.

    entries: the host's plan entries; deployment: the recipe as resolved for the host, or None; simulated: a description
    of simulated parts. Returns {recipe, description, guide, platform, engine, software: [str], model: {id, repo,
    revision, format, source}, simulated, memory_gib: of the host for each server, as the recipe needs it, servers:
    [{name, role, bind, port, devices, launcher, hash}]}; unknown values are None.
    """
    recipe = deployment if isinstance(deployment, dict) else {}
    entries = [entry for entry in entries if isinstance(entry, dict)]
    first = entries[0] if entries else {}
    model = recipe.get("model") or {}
    return {
        "recipe": recipe.get("name"),
        "description": recipe.get("description"),
        "guide": recipe.get("guide"),
        "platform": recipe.get("platform") or first.get("platform"),
        "engine": recipe.get("engine") or first.get("engine"),
        "software": _software(entries, recipe.get("venv") or {}),
        "model": {
            "id": model.get("id") or first.get("model_id"),
            **{key: model.get(key) for key in ("repo", "revision", "format", "source")},
        },
        "simulated": simulated or None,
        "memory_gib": (recipe.get("needs") or {}).get("host_memory_gib"),
        "servers": [
            {
                **{key: entry[key] for key in ("name", "role", "bind", "port", "launcher", "hash")},
                "devices": format_cpu_list(entry["devices"]),
            }
            for entry in entries
        ],
    }


def _software(entries, venv):
    """Versions that the plan pins: packages of the environment and images; otherwise the path of the environment."""
    found = [*(venv.get("packages") or []), *([venv["torch"]] if venv.get("torch") else [])]
    for entry in entries:
        container = entry["container"] or {}
        if container.get("image"):
            digest = container.get("digest")
            found.append(container["image"] + ("@" + digest if digest else ""))
    if not found and venv.get("path"):
        found.append("packages in " + venv["path"])
    return list(dict.fromkeys(found))


def host_report(host, mode, verdicts, generated, previous=None, what=None, problem=None):
    """The content of hosts/<host>.json: {schema, host, ok, generated, mode, problem, deployed, verdicts, last_full}.

    previous: the report that it replaces, or None. A quick run keeps the last full verdicts in last_full {ok,
    generated, verdicts}; for a full run it is null. what: deployed(), or None. problem: the error before the servers
    were asked, or None; with a problem, the host is not ok.
    """
    report = {
        "schema": SCHEMA,
        "host": host,
        "ok": False if problem else all_ok(verdict["ok"] for verdict in verdicts),
        "generated": generated,
        "mode": mode,
        "problem": problem or None,
        "deployed": what,
        "verdicts": verdicts,
        "last_full": None,
    }
    if mode != "full":
        report["last_full"] = last_full(previous)
    return report


def last_full(report):
    """The full verdicts of a host's report, {ok, generated, verdicts}, or None."""
    if not isinstance(report, dict):
        return None
    if report.get("mode") == "full":
        return {key: report.get(key) for key in ("ok", "generated", "verdicts")}
    return report.get("last_full")


def settle_auto(servers_changed, servers, previous, asked=None):
    """quick or full, for mode auto.

    quick is enough only if nothing changed, the last report of the host is good, and the last full report is good for
    the same servers and the same probes. asked: digest of what a full verification asks.
    """
    full = last_full(previous)
    if servers_changed is not False or not full or not full.get("ok") or previous.get("ok") is not True:
        return "full"
    verified = {one.get("server"): (one.get("hash"), one.get("asked")) for one in full.get("verdicts") or []}
    wanted = {entry.get("name"): (entry.get("hash"), asked) for entry in servers if answers(entry)}
    return "quick" if verified == wanted else "full"


def begin(fleet, run, due, planned, generated):
    """The content of verdict.json when a run begins: without the verdicts of the hosts in `due`.

    fleet: the previous content, or None. run: {id, began}; a run that has already begun continues with these hosts.
    due: hosts that get a verdict in this run. planned: {host: deployed() or None} of all hosts that have servers, in
    this run or not; other hosts are removed.
    """
    known, last = mapping_of(fleet, "hosts"), mapping_of(fleet, "run")
    hosts = {name: value for name, value in known.items() if name in due}
    for name, what in planned.items():
        if name in due:
            hosts[name] = _without_verdict(name, what, MISSED, run, known.get(name))
        else:
            hosts[name] = known.get(name) or _without_verdict(name, what, NEVER)
    before = last["hosts"] if last.get("id") == run["id"] else []
    return _fleet(hosts, {**run, "hosts": sorted({*before, *due} & set(planned))}, generated)


def _without_verdict(host, what, cause, run=None, before=None):
    """A host in verdict.json until it has a verdict. before: its previous report, which is summarized."""
    last = mapping_of(before, "missing").get("last")
    if before and not mapping_of(before, "missing"):
        last = {key: before.get(key) for key in ("ok", "generated", "mode")}
    run = run or {"id": None, "began": None}
    return {
        **host_report(host, None, [], None, None, what),
        "missing": {"cause": cause, "run": run["id"], "began": run["began"], "last": last},
    }


def merge(fleet, report, inventory_hosts, generated):
    """The content of verdict.json with `report` of a host: {schema, ok, generated, run, hosts: {name: short report}}.

    fleet: the previous content, or None. Hosts that are not in the inventory are removed, except that of the report.
    Short: without the requests and answers of probes that did not fail. They are in the host's file.
    """
    keep = {*inventory_hosts, report["host"]}
    hosts = {name: value for name, value in mapping_of(fleet, "hosts").items() if name in keep}
    hosts[report["host"]] = report
    return _fleet(hosts, mapping_of(fleet, "run"), generated)


def _fleet(hosts, run, generated):
    return {
        "schema": SCHEMA,
        # a host without a frontend, such as a decode node, has no verdict
        "ok": all_ok(
            value["ok"]
            for value in hosts.values()
            if value["verdicts"] or value["ok"] is not None or mapping_of(value, "missing")
        ),
        "generated": generated,
        "run": run or None,
        "hosts": {name: _short(hosts[name]) for name in sorted(hosts)},
    }


def void(report, actions, when):
    """A host's report with void verdicts of the servers in `actions` ({server: what was done});
    the same object if there is nothing to void.

    A void verdict has ok null and the reason in `void`, and keeps its probes.
    """
    if not isinstance(report, dict):
        return report
    changed = dict(report, verdicts=_void(report.get("verdicts"), actions, when))
    full = report.get("last_full")
    if full:
        changed["last_full"] = {**full, "verdicts": _void(full.get("verdicts"), actions, when)}
        changed["last_full"]["ok"] = all_ok(verdict["ok"] for verdict in changed["last_full"]["verdicts"])
    if changed == report:
        return report
    changed["ok"] = False if report.get("problem") else all_ok(verdict["ok"] for verdict in changed["verdicts"])
    return changed


def _void(verdicts, actions, when):
    return [
        dict(verdict, ok=None, void="%s at %s, after this verdict; run verify.yml" % (actions[verdict["server"]], when))
        if verdict.get("server") in actions and not verdict.get("void")
        else verdict
        for verdict in verdicts or []
    ]


def void_verdicts(folder, host, actions):
    """void() in hosts/<host>.json, verdict.json and its page; only changed files are written. Raises OSError."""
    when, path = now(), host_path(folder, host)
    before = _read(path, HOST)
    after = void(before, actions, when)
    if after is not before:
        write_atomic(path, _text(after))
    known = mapping_of(_read(os.path.join(folder, "verdict.json"), FLEET), "hosts").get(host)
    if void(known, actions, when) is not known:
        _change(folder, lambda fleet: _void_host(fleet, host, actions, when), kept=False)


def _void_host(fleet, host, actions, when):
    hosts = dict(mapping_of(fleet, "hosts"))
    if host in hosts:
        hosts[host] = void(hosts[host], actions, when)
    return _fleet(hosts, mapping_of(fleet, "run"), fleet.get("generated"))


def _short(report):
    """A host's report without the requests and answers of probes that did not fail."""
    short = {**report, "verdicts": [_short_verdict(verdict) for verdict in report["verdicts"]]}
    full = report["last_full"]
    if full:
        short["last_full"] = {**full, "verdicts": [_short_verdict(verdict) for verdict in full["verdicts"]]}
    return short


def _short_verdict(verdict):
    probes = [one if one["ok"] is False else {**one, "sent": None, "got": None} for one in verdict["probes"]]
    return {**verdict, "probes": probes}


def page_path(folder):
    """The path of the fleet's page below `folder`."""
    return os.path.join(folder, "verdict.html")


def write_all(folder, verified, inventory_hosts):
    """Write hosts/<host>.json of each host, and update verdict.json and verdict.html, below `folder`.

    folder: if it is not set, nothing is written. verified: {host: (mode, verdicts, what, problem)}, see host_report().
    Returns {host: report}. Several processes may report at the same time: the fleet's file is changed under a lock.
    Raises OSError.
    """
    generated, reports = now(), {}
    for host, (mode, verdicts, what, problem) in verified.items():
        path = host_path(folder or "", host)
        before = _read(path, HOST) if folder else None
        reports[host] = host_report(host, mode, verdicts, generated, before, what, problem)
        if folder:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_atomic(path, _text(reports[host]))
    if not folder:
        return reports

    def merged(fleet):
        for one in reports.values():
            fleet = merge(fleet, one, {*inventory_hosts, *reports}, generated)
        return fleet

    _change(folder, merged)
    return reports


def begin_run(folder, run_id, hosts, going, planned, sources=()):
    """begin() below `folder`, if it changes anything. Returns the run {id, began, hosts}.

    hosts: all hosts of the run. going: those that have not failed; if this run has begun before, the verdicts of the
    others remain. planned: a function that returns `planned` of begin(). sources: the values of -i, for the versions in
    the history. Raises OSError.
    """
    fleet = _read(os.path.join(folder, "verdict.json"), FLEET)
    known, run = mapping_of(fleet, "hosts"), mapping_of(fleet, "run")
    began = run["began"] if run.get("id") == run_id else None
    for value in known.values():
        # another run may have begun since, with other hosts: the hosts of this run have its time
        if mapping_of(value, "missing").get("run") == run_id:
            began = began or mapping_of(value, "missing")["began"]
    if began is not None:
        hosts = [host for host in going if mapping_of(known.get(host), "missing").get("run") != run_id]
        if not hosts:
            return run if run.get("id") == run_id else {"id": run_id, "began": began, "hosts": sorted(going)}
    generated, planned = now(), planned()
    begun = {"id": run_id, "began": began or generated}
    os.makedirs(folder, exist_ok=True)
    versions = runs.versions(sources)
    return _change(folder, lambda fleet: begin(fleet, begun, hosts, planned, generated), versions)["run"]


def not_written(folder, error):
    """The warning of an OSError. Reports that cannot be written do not fail a run."""
    return (
        "No report could be written to reports_dir %s: %s. The verdicts are in the run's statistics (fleet_verdict); "
        "set fleet_reports_dir to a folder that can be written." % (folder, error.strerror or error)
    )


def summary(report):
    """A summary of a host's report for set_stats: {ok, mode, generated, problem, servers: {name: {ok, url, failed}}}.

    failed: {probe: cause}.
    """
    servers = {
        verdict["server"]: {
            "ok": verdict["ok"],
            "url": verdict["url"],
            "failed": {probe["name"]: probe["cause"] for probe in verdict["probes"] if probe["ok"] is False},
        }
        for verdict in report["verdicts"]
    }
    return {**{key: report[key] for key in ("ok", "mode", "generated", "problem")}, "servers": servers}


def say_unreachable(folder, run_id, reasons):
    """Write the reasons why hosts of this run have no verdict: {host: sentence}. Raises OSError."""

    def say(fleet):
        hosts = dict(mapping_of(fleet, "hosts"))
        for host, reason in reasons.items():
            missing = mapping_of(hosts.get(host), "missing")
            if missing.get("run") == run_id:
                hosts[host] = {**hosts[host], "missing": {**missing, "cause": "Unreachable: %s." % reason.rstrip(".")}}
        return _fleet(hosts, mapping_of(fleet, "run"), now())

    _change(folder, say)


def _change(folder, change, versions=None, kept=True):
    """Replace verdict.json below `folder` by change(content), and render the page. Returns the new content.

    kept: whether the history has the change; versions: of the run that begins.
    """
    path = os.path.join(folder, "verdict.json")
    with _locked(os.path.join(folder, ".verdict.lock")):
        fleet = change(_read(path, FLEET))
        write_atomic(path, _text(fleet))
        if kept and fleet["run"]:
            runs.keep(folder, _record(fleet), versions)
    write_page(folder)
    return fleet


def _record(fleet):
    """The last run in verdict.json for the history, see runs.keep(): its hosts with their summaries."""
    run = fleet["run"]
    part = _fleet({name: one for name, one in fleet["hosts"].items() if name in run["hosts"]}, run, fleet["generated"])
    software = {item for one in part["hosts"].values() for item in mapping_of(one, "deployed").get("software") or ()}
    hosts = {name: _outcome(one) for name, one in part["hosts"].items()}
    return {**part, "hosts": hosts, "versions": {"software": sorted(software)}}


def _outcome(report):
    """summary() of a host's report. A host without a verdict has its planned servers, and the cause."""
    found, missing = summary(report), mapping_of(report, "missing")
    if missing:
        planned = items_of(mapping_of(report, "deployed").get("servers"))
        asked = {one["name"]: {"ok": None} for one in planned if answers(one)}
        found.update(problem=missing["cause"], servers=asked)
    return found


def write_page(folder):
    """Render verdict.html from verdict.json, unless it is current. Raises OSError.

    A separate lock is used, so that if a hundred hosts report at the same time, most find a page that already contains
    their verdict, and none renders while the others wait to merge.
    """
    with _locked(os.path.join(folder, ".page.lock")):
        text = read_text(os.path.join(folder, "verdict.json"))
        mark = "<!-- of verdict.json, sha256 %s -->\n" % hashlib.sha256(text.encode("utf-8")).hexdigest()
        before = read_text(page_path(folder))
        if before is None or not before.endswith(mark):
            from . import page

            write_atomic(page_path(folder), page.render(json.loads(text)) + mark)


def _read(path, form):
    """The report in a file, None without a file or for another form. Raises OSError."""
    value = read_json(path)
    return value if fits(value, form, complete=True) else None


def _text(value):
    """A report as bytes. Half a surrogate pair, which a server may send, is written as a JSON escape."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


@contextlib.contextmanager
def _locked(path):
    with open(path, "a", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # released with the descriptor, also if the process is killed
        yield


def table(host, verdicts):
    """{title, columns, key, rows} of a host's verdicts for the screen."""
    return {"title": TITLE, "columns": list(COLUMNS), "key": 2, "rows": [_row(host, verdict) for verdict in verdicts]}


def _row(host, verdict):
    stranger, probes, ok = verdict.get("not_verified"), verdict["probes"], verdict["ok"]
    names = {ok: [probe["name"] for probe in probes if probe["ok"] is ok] for ok in (True, False, None)}
    passed, measured = len(names[True]), len(names[True]) + len(names[False])
    if stranger:
        ok, passed, measured, details = None, 0, 0, cut("not verified: " + stranger, DETAILS)
    elif not measured:
        details = probes[0]["cause"] if probes else ""
    else:
        details = "failed: " + ", ".join(names[False])
        if not names[False]:
            slowest = max((probe for probe in probes if probe["ok"]), key=lambda probe: probe["ms"])
            details = "slowest: %s %d ms" % (slowest["name"], slowest["ms"])
        details += "; not measured: " + some(names[None]) if names[None] else ""
    port = urllib.parse.urlsplit(verdict["url"]).port
    return [host, verdict["server"], port, WORDS[ok], "%d/%d" % (passed, measured), details]


def failure_message(host, verdicts):
    """The message about servers that did not pass: request, answer and cause of each failing probe."""
    bad = [verdict for verdict in verdicts if verdict["ok"] is False]
    lines = ["%d of %d servers on %s did not pass the verification." % (len(bad), len(verdicts), host)]
    for verdict in bad:
        failed = [probe for probe in verdict["probes"] if probe["ok"] is False]
        skipped = [probe["name"] for probe in verdict["probes"] if str(probe["cause"]).startswith("not run: ")]
        lines.append("%s at %s (%s), %s:" % (verdict["server"], verdict["url"], verdict["model_id"], verdict["mode"]))
        for probe in failed:
            lines.append("  %s failed after %d ms" % (probe["name"], probe["ms"]))
            repeated = probe["got"] and str(probe["got"]) in str(probe["cause"])
            keys = ("sent", "cause") if repeated else ("sent", "got", "cause")
            lines += ["    %-6s %s" % (key + ":", probe[key]) for key in keys if probe[key]]
        if skipped and not verdict.get("not_verified"):  # otherwise nothing was verified
            lines.append("  not run after that: " + some(skipped))
    return "\n".join(lines)
